"""The compressor: causal to the token, at half the length, with model.py's interface."""

import pytest
import torch

from generation.generation_loop import generate
from model import GPTNeoConfig
from variants import compressor
from variants.compressor import Compressor

SHAPE = dict(vocab_size=97, block_size=40, n_layer=4, n_head=4, n_embd=32, window_size=8)


@pytest.fixture
def model() -> Compressor:
    torch.manual_seed(0)
    model = Compressor(GPTNeoConfig(**SHAPE))
    for p in model.parameters():  # far from uniform, so that nothing is equal by being small
        torch.nn.init.normal_(p, std=0.3)
    return model.eval()


@pytest.mark.parametrize("T", [1, 2, 3, 16, 17, 40])
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


def test_generates_what_it_would_alone_and_uncached(model):
    prompts = [[5], [1, 2, 3, 4], list(range(7))]
    for completion in generate(model, prompts, max_new_tokens=9, temperature=0):
        text = list(prompts[completion.index])
        for token in completion.tokens:
            assert token == model(torch.tensor([text]))[0][0, -1].argmax()
            text.append(token)
        assert len(completion.tokens) == 9


@pytest.mark.parametrize("causal", [False, True])
def test_attention_by_sums_as_on_a_gpu_is_the_same(causal):
    q, k, v = torch.randn(3, 50, 3, 4, 16, generator=torch.Generator().manual_seed(0))
    later = torch.ones(3, 3, dtype=torch.bool).triu(1) & causal
    expected = compressor.attend_to_all(0, q, k, v, causal)
    torch.testing.assert_close(compressor.attend_by_sums(q, k, v, later), expected, atol=1e-5, rtol=0)
