"""The decoders against the plain forward pass of the whole text, and against themselves in other
batches."""

from functools import partial

import pytest
import torch
from random_models import random_model

from nanostories.generation.decoders import CHUNK, CppDecoder, RereadingDecoder, TorchDecoder
from nanostories.kernels import compile_cpp

T = 150  # longer than two chunks of a prompt
needs_compiler = pytest.mark.skipif(
    compile_cpp.library("decode_step") is None,
    reason="no C++ compiler that builds decode_step.cpp",
)
SHAPES = {
    "window shorter than the text": dict(n_layer=4, n_head=4, n_embd=32, window_size=7),
    "window longer than a chunk": dict(n_layer=2, n_head=4, n_embd=32, window_size=CHUNK + 21),
    "odd number of layers, one head, odd width": dict(
        n_layer=3, n_head=1, n_embd=21, window_size=16
    ),
    "sixteen narrow heads": dict(n_layer=2, n_head=16, n_embd=48, window_size=16),
    "wide heads": dict(n_layer=2, n_head=1, n_embd=48, window_size=200),
    "as GPT-2": dict(
        n_layer=2, n_head=2, n_embd=24, window_size=T, scale_attention=True, qkv_bias=True
    ),
}


def cpp(model, n_slots, dtype=torch.float32, context=T):
    return CppDecoder(model, n_slots, context, dtype)


DECODERS = [
    pytest.param(cpp, marks=needs_compiler),
    pytest.param(lambda model, n_slots: TorchDecoder(model, n_slots, T), id="pytorch"),
    pytest.param(lambda model, n_slots: RereadingDecoder(model), id="rereading"),
]


def read_and_step(decoder, text: list[int], n_prompt: int, slot: int) -> torch.Tensor:
    """Logits (len(text) - n_prompt + 1, vocab_size), from the prompt's last token on."""
    logits = [decoder.read(slot, text[:n_prompt])]
    for token in text[n_prompt:]:
        logits.append(decoder.step([slot], [token])[0].clone())
    return torch.stack(logits)


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@torch.inference_mode()
def test_logits_are_those_of_the_whole_text(decoder, shape):
    """Prompts of different length, two slots side by side, one of them copied, the other after a
    text with which it stood idle at the end of the context."""
    model = random_model(block_size=T, **shape)
    *texts, before = torch.randint(97, (3, T)).tolist()
    plain = model(torch.tensor(texts))[0]
    close = partial(torch.testing.assert_close, atol=1e-4, rtol=0)
    decoder = decoder(model, n_slots=3)
    read_and_step(decoder, before, n_prompt=100, slot=0)
    close(decoder.read(1, texts[0][:99]), plain[0, 98])
    decoder.copy([1], [2])
    close(decoder.step([2], [texts[0][99]])[0], plain[0, 99])
    close(decoder.read(0, texts[1][:3]), plain[1, 2])
    for i in range(T - 100):
        logits = decoder.step([2, 0], [texts[0][100 + i], texts[1][3 + i]])
        close(logits[0], plain[0, 100 + i])
        close(logits[1], plain[1, 3 + i])


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@torch.inference_mode()
def test_batch_and_threads_do_not_change_one_bit(shape, dtype, two_threads):
    """The same text alone and among others, in another slot, in a batch of every size up to 9; by
    two threads and by one."""
    model = random_model(block_size=T, **shape)
    texts = torch.randint(97, (9, 30)).tolist()
    alone = read_and_step(cpp(model, 1, dtype), texts[0], n_prompt=10, slot=0)
    torch.set_num_threads(1)
    for n in range(1, 10):
        decoder = cpp(model, n, dtype, context=40)
        slots = list(range(n))[::-1]
        logits = [decoder.read(slot, text[:10]) for slot, text in zip(slots, texts)][:1]
        for i in range(10, 30):
            logits.append(decoder.step(slots, [text[i] for text in texts[:n]])[0].clone())
        assert torch.equal(torch.stack(logits), alone)


@pytest.mark.parametrize("decoder", [pytest.param(CppDecoder, marks=needs_compiler), TorchDecoder])
@torch.inference_mode()
def test_bfloat16_is_close(decoder):
    """Closer to float32 than a model in bfloat16, of the same weights. These stay as they are."""
    model = random_model(block_size=T, **SHAPES["sixteen narrow heads"])
    text = torch.randint(97, (1, 100))

    def log_probabilities():
        return model(text)[0][0, 49:].float().log_softmax(-1)

    exact = log_probabilities()
    half = decoder(model, 1, T, torch.bfloat16)
    ours = read_and_step(half, text[0].tolist(), 50, slot=0).float().log_softmax(-1)
    assert log_probabilities().equal(exact)
    model.to(torch.bfloat16)
    theirs = log_probabilities()
    assert 0 < (ours - exact).square().mean() < (theirs - exact).square().mean()
