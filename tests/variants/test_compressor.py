"""The compressor: causal to the token, with model.py's interface."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

import sample
from model import GPTNeoConfig
from nanostories.checkpoints.models import open_model
from nanostories.generation.backends import load_backend
from nanostories.training.config import TrainConfig
from nanostories.training.optimizers import make_optimizers
from nanostories.variants.compressor import Compressor
from train import train


@pytest.fixture
def model() -> Compressor:
    torch.manual_seed(0)
    shape = dict(vocab_size=97, block_size=40, n_layer=4, n_head=4, n_embd=32, window_size=8)
    model = Compressor(GPTNeoConfig(**shape))
    for p in model.parameters():  # far from uniform, so that nothing is equal by being small
        torch.nn.init.normal_(p, std=0.3)
    return model.eval()


def test_muon_has_every_matrix_of_its_blocks(model):
    """With AdamW at the same learning rate they hardly learn: a loss of 3.66, not 2.78 (LOG.md)."""
    muon, _ = make_optimizers(model, TrainConfig(optimizer="muon"))
    owned = {p for group in muon.param_groups for p in group["params"]}
    assert owned == {p for p in model.blocks.parameters() if p.dim() == 2}


@pytest.mark.parametrize("T", [1, 2, 17])
def test_a_token_reaches_what_follows_and_nothing_before(model, T):
    tokens = torch.randint(97, (2, T), generator=torch.Generator().manual_seed(0))
    logits, _ = model(tokens)
    assert logits.shape == (2, T, 97)
    for i in range(T):
        other = tokens.clone()
        other[:, i] = (other[:, i] + 1) % 97
        change = (model(other)[0] - logits).abs().amax((0, 2))
        assert (change[:i] == 0).all()
        assert (change[i : i + 4] > 0).all()
        (gradient,) = torch.autograd.grad(
            logits[:, i].logsumexp(-1).sum(), model.wpe.weight, retain_graph=True
        )
        assert gradient[: i + 1].any(1).all() and not gradient[i + 1 :].any()


def test_a_decoder_block_is_pytorchs(model):
    """Its masks: tokens see those before them, and the pairs that are complete."""
    ours = model.blocks[-1]
    theirs = torch.nn.TransformerDecoderLayer(
        32, 4, 128, 0.0, lambda x: F.gelu(x, approximate="tanh"), norm_first=True, batch_first=True
    ).eval()
    parts = [
        (theirs.norm1, ours.ln_1),
        (theirs.self_attn.out_proj, ours.attention_out),
        (theirs.norm2, ours.ln_source),
        (theirs.multihead_attn.out_proj, ours.source_out),
        (theirs.norm3, ours.ln_2),
        (theirs.linear1, ours.mlp_in),
        (theirs.linear2, ours.mlp_out),
    ]
    for part, own in parts:
        part.load_state_dict(own.state_dict())
    of_source = (ours.q_source, ours.kv_source)
    for part, linears in ((theirs.self_attn, (ours.qkv,)), (theirs.multihead_attn, of_source)):
        part.in_proj_weight.data = torch.cat([linear.weight for linear in linears])
        part.in_proj_bias.data = torch.cat([linear.bias for linear in linears])
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


@pytest.mark.usefixtures("quick")
def test_a_trained_one_writes_what_its_logits_say(config, command_line, tmp_path):
    settings = config | {"architecture": "compressor", "n_layer": 3, "block_size": 64}
    run, _ = train(TrainConfig(**settings), resume=False)
    backend = load_backend(open_model(str(run)))
    assert type(backend.model) is Compressor
    prompt = "Mia had a"
    text = backend.encode(prompt)
    for _ in range(9):
        logits, _ = backend.model(torch.tensor([text]))
        text.append(logits[0, -1].argmax().item())
    flags = ["--model", run, "--prompt", prompt, "--temperature", 0, "--max_new_tokens", 9]
    code, said = command_line(sample, tmp_path)(*flags)
    _, story, *_ = backend.tokenizer.decode(text).split("<|endoftext|>")
    assert code == 0 and story in said.out and len(story) > len(prompt)
