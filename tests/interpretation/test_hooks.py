"""nanostories/interpretation/hooks.py: activations are those of model.py and transformers; reading
changes nothing."""

import pytest
import torch
from random_models import as_transformers, random_model

from nanostories.interpretation.hooks import run, run_with_cache, visible_keys

SHAPES = dict(
    resid_pre=(32,),
    q=(4, 8),
    k=(4, 8),
    v=(4, 8),
    z=(4, 8),
    result=(4, 32),
    attn_out=(32,),
    resid_mid=(32,),
)
SHAPES |= dict(post=(128,), mlp_out=(32,), resid_post=(32,))


def test_the_explicit_path_equals_the_fast_one():
    model, tokens = random_model(), torch.randint(97, (3, 40))
    logits, cache = run_with_cache(model, tokens)
    torch.testing.assert_close(logits, model(tokens)[0], atol=1e-5, rtol=1e-5)
    pattern = cache["blocks.1.pattern"]
    assert pattern.shape == (3, 4, 40, 40)
    torch.testing.assert_close(pattern.sum(-1), torch.ones(3, 4, 40))
    assert not pattern[:, :, ~visible_keys(40, 7)].any()
    assert set(cache) == {f"blocks.{i}.{name}" for i in range(3) for name in [*SHAPES, "pattern"]}
    for name, shape in SHAPES.items():
        assert cache[f"blocks.2.{name}"].shape == (3, 40, *shape), name
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())


def test_the_residual_stream_is_the_sum_of_what_is_written():
    model, tokens = random_model(), torch.randint(97, (2, 30))
    _, cache = run_with_cache(model, tokens)
    for i, block in enumerate(model.blocks):
        pre, writes, attn_out, mid, mlp_out, post = (
            cache[f"blocks.{i}.{name}"]
            for name in ("resid_pre", "result", "attn_out", "resid_mid", "mlp_out", "resid_post")
        )
        torch.testing.assert_close(
            writes.sum(2) + block.attention_out.bias, attn_out, atol=1e-5, rtol=1e-4
        )
        torch.testing.assert_close(pre + attn_out, mid)
        torch.testing.assert_close(mid + mlp_out, post)
    torch.testing.assert_close(cache["blocks.1.resid_post"], cache["blocks.2.resid_pre"])


@torch.no_grad()
@pytest.mark.parametrize(
    "name",
    ["resid_pre", "q", "k", "v", "pattern", "z", "attn_out", "post", "mlp_out", "resid_post"],
)
def test_patching_goes_on_with_what_it_is_given(name):
    """With the activations of other tokens, all that follow are theirs, those that do not depend on
    it are not."""
    model, tokens = random_model(), torch.randint(97, (2, 2, 20))
    (_, ours), (theirs, other) = (run_with_cache(model, each) for each in tokens)
    place = f"blocks.1.{name}"
    logits, cache = run_with_cache(model, tokens[0], {place: lambda _: other[place]})
    torch.testing.assert_close(cache[place], other[place])
    torch.testing.assert_close(cache["blocks.0.resid_post"], ours["blocks.0.resid_post"])
    assert (logits - run_with_cache(model, tokens[0])[0]).abs().max() > 1e-3
    if name in ("resid_pre", "resid_post"):
        torch.testing.assert_close(logits, theirs)


def test_what_cannot_be_patched_is_refused():
    model, tokens = random_model(), torch.randint(97, (1, 8))
    with pytest.raises(
        ValueError, match="blocks.0.resid_mid can only be read; patch attn_out instead"
    ):
        run(model, tokens, patches={"blocks.0.resid_mid": torch.zeros_like})
    with pytest.raises(ValueError, match="there are no activations blocks.3.z"):
        run(model, tokens, patches={"blocks.3.z": torch.zeros_like})


def test_attention_and_activations_equal_those_of_transformers():
    model, tokens = random_model(), torch.randint(97, (2, 40))
    theirs = as_transformers(model)
    theirs.set_attn_implementation("eager")
    activations = []
    for block in theirs.transformer.h:
        block.mlp.act.register_forward_hook(lambda _, args, output: activations.append(output))
    with torch.no_grad():
        reference = theirs(tokens, output_attentions=True, output_hidden_states=True)
    _, cache = run_with_cache(model, tokens)
    for layer in range(3):
        for name, expected in dict(
            pattern=reference.attentions[layer],
            resid_pre=reference.hidden_states[layer],
            post=activations[layer],
        ).items():
            torch.testing.assert_close(
                cache[f"blocks.{layer}.{name}"], expected, atol=1e-5, rtol=1e-4
            )
