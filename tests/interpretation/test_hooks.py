"""interpretation/hooks.py: the explicit path gives the same activations as the fast one, and as transformers."""

import torch
from random_models import as_transformers, random_model

from interpretation.hooks import run_with_cache, visible_keys


def test_the_explicit_path_equals_the_fast_one():
    model, tokens = random_model(), torch.randint(97, (3, 40))
    logits, cache = run_with_cache(model, tokens)
    torch.testing.assert_close(logits, model(tokens)[0], atol=1e-5, rtol=1e-5)
    attention = cache["blocks.1.attention"]
    assert attention.shape == (3, 4, 40, 40)
    torch.testing.assert_close(attention.sum(-1), torch.ones(3, 4, 40))
    assert not attention[:, :, ~visible_keys(40, 7)].any()
    assert cache["blocks.2.mlp"].shape == (3, 40, 128) and cache["blocks.2.heads"].shape == (3, 40, 4, 8)
    assert not any(module._forward_pre_hooks for module in model.modules())


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
        torch.testing.assert_close(
            cache[f"blocks.{layer}.attention"], reference.attentions[layer], atol=1e-5, rtol=1e-4
        )
        torch.testing.assert_close(cache[f"blocks.{layer}.input"], reference.hidden_states[layer], atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(cache[f"blocks.{layer}.mlp"], activations[layer], atol=1e-5, rtol=1e-4)
