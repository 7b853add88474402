"""nanostories/interpretation/hooks.py: activations are those of model.py and transformers; reading
changes nothing."""

import pytest
import torch
from planted_model import V, for_both_models
from random_models import as_transformers, random_model

from nanostories.interpretation.hooks import run, run_with_cache

NAMES = ["resid_pre", *"qkvz", "pattern", "attn_out", "post", "mlp_out", "resid_post"]


@for_both_models
def test_the_explicit_path_equals_the_fast_one_and_its_parts_add_up(any_model):
    tokens = torch.randint(V, (3, 40))
    logits, cache = run_with_cache(any_model, tokens)
    torch.testing.assert_close(logits, any_model(tokens)[0], atol=1e-5, rtol=1e-5)
    assert len(cache) == 3 * len(NAMES)
    assert not any(part._forward_pre_hooks or part._forward_hooks for part in any_model.modules())
    for i in range(3):
        here = {name.removeprefix(f"blocks.{i}."): x for name, x in cache.items()}
        added = here["resid_pre"] + here["attn_out"] + here["mlp_out"]
        torch.testing.assert_close(added, here["resid_post"])


@for_both_models
@torch.no_grad()
@pytest.mark.parametrize("name", NAMES)
def test_patching_goes_on_with_what_it_is_given(name, any_model):
    """With the activations of other tokens, all that follow are theirs, those that do not depend on
    it are not."""
    tokens, others = torch.randint(V, (2, 2, 20))
    logits, ours = run_with_cache(any_model, tokens)
    their_logits, theirs = run_with_cache(any_model, others)
    place = f"blocks.1.{name}"
    patched_logits, cache = run_with_cache(any_model, tokens, {place: lambda _: theirs[place]})
    torch.testing.assert_close(cache[place], theirs[place])
    torch.testing.assert_close(cache["blocks.0.resid_post"], ours["blocks.0.resid_post"])
    assert (patched_logits - logits).abs().max() > 1e-3
    if name in ("resid_pre", "resid_post"):
        torch.testing.assert_close(patched_logits, their_logits)


def test_what_cannot_be_patched_is_refused():
    with pytest.raises(ValueError, match="blocks.3.z"):
        run(random_model(), torch.randint(97, (1, 8)), patches={"blocks.3.z": torch.zeros_like})


def test_attention_and_activations_equal_those_of_transformers():
    model = random_model()
    theirs = as_transformers(model)
    theirs.set_attn_implementation("eager")
    activations = []
    for block in theirs.transformer.h:
        block.mlp.act.register_forward_hook(lambda _, args, output: activations.append(output))
    tokens = torch.randint(97, (2, 40))
    with torch.no_grad():
        reference = theirs(tokens, output_attentions=True, output_hidden_states=True)
    _, cache = run_with_cache(model, tokens)
    expected = {
        "pattern": reference.attentions,
        "resid_pre": reference.hidden_states[:3],
        "post": activations,
    }
    for name, values in expected.items():
        for layer, value in enumerate(values):
            found = cache[f"blocks.{layer}.{name}"]
            torch.testing.assert_close(found, value, atol=1e-5, rtol=1e-4)
