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


def test_a_decoder_block_attends_to_the_pairs_before_the_one_it_decodes(model):
    block = model.blocks[-1]
    source = torch.randn(5, 32)
    x = torch.randn(10, 32)
    of_tokens = block.qkv(block.ln_1(x)).view(10, 3, 4, 8).transpose(0, 2)  # (H, 3, 10, D)
    of_source = block.qkv(source).view(5, 3, 4, 8).transpose(0, 2)  # (H, 3, 5, D)
    seen = torch.arange(5) <= torch.arange(10)[:, None] // 2
    y = F.scaled_dot_product_attention(of_tokens[:, 0], of_source[:, 1], of_source[:, 2], seen)
    expected = x + block.attention_out(y.transpose(0, 1).flatten(1))
    mlp = F.gelu(block.mlp_in(block.ln_2(expected)), approximate="tanh")
    expected = expected + block.mlp_out(mlp)
    result = block(x[None], 3, model.attention(), source[None])[0]
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
