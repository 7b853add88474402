"""The compressor: causal to the token, with model.py's interface."""

import pytest
import torch
import torch.nn.functional as F
from random_models import randomize
from torch.utils.flop_counter import FlopCounterMode

from model import GPTNeoConfig
from nanostories.generation.decoders import RereadingDecoder, make_decoder
from nanostories.variants.compressor import Compressor


@pytest.fixture
def model() -> Compressor:
    shape = dict(vocab_size=97, block_size=40, n_layer=4, n_head=4, n_embd=32, window_size=8)
    return randomize(Compressor(GPTNeoConfig(**shape)), std=0.3)


@pytest.mark.parametrize("T", [1, 2, 17])
def test_every_token_reaches_what_follows_and_nothing_before(model, T):
    """By the gradients of its position, which takes the same ways as its embedding."""
    logits, _ = model(torch.randint(97, (2, T)))
    for i in range(T):
        value = logits[:, i].logsumexp(-1).sum()
        (gradient,) = torch.autograd.grad(value, model.wpe.weight, retain_graph=True)
        assert gradient[: i + 1].any(1).all() and not gradient[i + 1 :].any()


THEIR_NAMES = {  # in torch.nn.TransformerDecoderLayer -> ours
    "norm1": "ln_1",
    "self_attn.in_proj": "qkv",
    "self_attn.out_proj": "attention_out",
    "norm2": "ln_source",
    "multihead_attn.in_proj": "q_source kv_source",
    "multihead_attn.out_proj": "source_out",
    "norm3": "ln_2",
    "linear1": "mlp_in",
    "linear2": "mlp_out",
}


def test_a_decoder_block_is_pytorchs(model):
    """Its masks: tokens see those before them, and the pairs that are complete."""
    ours = model.blocks[-1]
    theirs = torch.nn.TransformerDecoderLayer(
        32, 4, 128, 0.0, lambda x: F.gelu(x, approximate="tanh"), norm_first=True, batch_first=True
    ).eval()
    weights = {}
    for their_name, our_names in THEIR_NAMES.items():
        for kind in ("weight", "bias"):
            # q and kv of the attention to the source are in one tensor there
            parts = [ours.get_parameter(f"{name}.{kind}") for name in our_names.split()]
            separator = "_" if their_name.endswith("in_proj") else "."
            weights[f"{their_name}{separator}{kind}"] = torch.cat(parts)
    theirs.load_state_dict(weights)
    x = torch.randn(2, 9, 32)
    source = torch.randn(2, 5, 32)
    tokens = torch.arange(9)[:, None]
    is_later = torch.arange(9) > tokens
    is_incomplete = torch.arange(5) > (tokens + 1) // 2
    expected = theirs(x, source, tgt_mask=is_later, memory_mask=is_incomplete)
    result = ours(x, 3, model.attention(), source)
    torch.testing.assert_close(result, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("T", [7, 40])
def test_flops_are_those_of_the_matrix_products(model, T, monkeypatch):
    """PyTorch counts all but the kernel of causal attention."""
    visible = 0  # (query, key) pairs, times the width

    def attend(layer, q, k, v):
        nonlocal visible
        _, P, H, D = q.shape
        visible += P * (P + 1) // 2 * H * D  # no layer has a window
        return v.clone()

    monkeypatch.setattr(model, "attention", lambda story_starts: attend)
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, T, dtype=torch.long))
    assert model.flops_per_token(T) == round(3 * (counter.get_total_flops() + 2 * 2 * visible) / T)


def test_it_is_decoded_as_models_without_a_cache_are(model):
    """Which tests/generation/test_decoders.py holds."""
    decoder = make_decoder(model, n_slots=1, context=40, exact=True)
    assert type(decoder) is RereadingDecoder
