"""model.py against transformers.GPTNeoForCausalLM and GPT2LMHeadModel, and packed stories against
each one alone."""

import pytest
import torch
import torch.nn.functional as F
from random_models import as_transformers, random_model
from torch.utils.flop_counter import FlopCounterMode

from model import GPTNeo, GPTNeoConfig
from nanostories.kernels.attention import story_starts

pytest.importorskip("transformers")

SHAPES = {
    "window longer than the sequence": dict(n_layer=2, window_size=100),
    "odd number of layers, one head": dict(n_head=1, n_embd=20, window_size=16),
    "narrow heads, window of one": dict(n_head=16, n_embd=48, window_size=1),
    "GPT-2": dict(window_size=40, scale_attention=True, qkv_bias=True),
}


def sorted_gradients(model) -> torch.Tensor:
    """Of all weights: the reference has the same ones, transposed and in other tensors."""
    gradients = [parameter.grad.flatten() for parameter in model.parameters()]
    return torch.cat(gradients).sort().values


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_logits_loss_and_gradients_equal_the_reference(shape):
    ours = random_model(**shape)
    theirs = as_transformers(ours)
    assert ours.num_params() == theirs.num_parameters()
    tokens = torch.randint(97, (3, 40))
    targets = F.pad(tokens[:, 1:], (0, 1), value=-100)
    logits, _ = ours(tokens)
    _, loss = ours(tokens, targets)
    reference = theirs(tokens, labels=tokens)
    torch.testing.assert_close(logits, reference.logits, atol=1e-4, rtol=0)
    torch.testing.assert_close(loss, reference.loss, atol=1e-5, rtol=0)
    loss.backward()
    reference.loss.backward()
    expected = sorted_gradients(theirs)
    torch.testing.assert_close(sorted_gradients(ours), expected, atol=1e-4, rtol=0)


def test_every_packed_story_is_read_as_if_it_stood_alone():
    """Logits and gradients. 0 comes before each story; all windows but the first begin inside one.
    (Compiled: tests/training/test_train.py.)"""
    model = random_model(block_size=40, window_size=6).double()
    tokens = torch.randint(1, 97, (3, 40)) * (torch.rand(3, 40) > 1 / 8)
    tokens[0, 0] = 0
    tokens[1:, 0] = 5
    logits, _ = model(tokens, story_starts=story_starts(tokens, end_of_text=0))
    windows = []
    for window in tokens:
        begins = [i for i in range(1, 40) if window[i] == 0]
        windows.append(torch.cat([model(x[None])[0][0] for x in window.tensor_split(begins)]))
    alone = torch.stack(windows)
    torch.testing.assert_close(logits, alone)
    parameters = tuple(model.parameters())
    gradients = torch.autograd.grad(logits.logsumexp(-1).sum(), parameters)
    references = torch.autograd.grad(alone.logsumexp(-1).sum(), parameters)
    torch.testing.assert_close(gradients, references)


def test_heads_that_start_as_copiers_copy():
    """With one visible token, attention gives back `gain` times what it was given, in every
    layer."""
    model = GPTNeo(GPTNeoConfig(vocab_size=97, block_size=40, n_layer=2, n_head=4, n_embd=32))
    model.init_copying(0.3)
    x = torch.randn(5, 32)
    for block in model.blocks:
        values = block.qkv(x)[:, 64:]
        torch.testing.assert_close(block.attention_out(values), 0.3 * x, atol=1e-5, rtol=1e-4)


def test_flops_are_those_that_torch_counts():
    """Matrix products of one forward pass, counted by hand against PyTorch's own counter, attention
    written out."""
    model = random_model(vocab_size=50, n_layer=2, n_head=2, n_embd=8, window_size=4)
    tokens = torch.randint(50, (1, 16))
    with FlopCounterMode(display=False) as counter:
        model(tokens)
    counted = counter.get_flop_counts()["Global"]
    linear = counted[torch.ops.aten.mm] + counted[torch.ops.aten.addmm]
    pairs = sum(min(i + 1, 16) for i in range(16)) + sum(min(i + 1, 4) for i in range(16))
    assert model.flops_per_token(16) == round(3 * (linear + 2 * 2 * 8 * pairs) / 16)
