"""The decoders against the plain forward pass of the whole text, and against themselves in other company."""

import pytest
import torch

from generation import decoders
from generation.decoders import CHUNK, SCRATCH, NativeDecoder, TorchDecoder, make_decoder
from kernels import compile_cpp
from model import GPTNeo, GPTNeoConfig

T = 150  # longer than two chunks of a prompt
needs_compiler = pytest.mark.skipif(
    compile_cpp.library("decode_step") is None, reason="no C++ compiler that builds decode_step.cpp"
)
DECODERS = [pytest.param(NativeDecoder, marks=needs_compiler), TorchDecoder]
SHAPES = {
    "window shorter than the text": dict(n_layer=4, n_head=4, n_embd=32, window_size=7),
    "window longer than a chunk": dict(n_layer=2, n_head=4, n_embd=32, window_size=CHUNK + 21),
    "window of one": dict(n_layer=2, n_head=2, n_embd=32, window_size=1),
    "odd number of layers, one head, odd width": dict(n_layer=3, n_head=1, n_embd=21, window_size=16),
    "sixteen narrow heads": dict(n_layer=2, n_head=16, n_embd=48, window_size=16),
    "wide heads": dict(n_layer=2, n_head=1, n_embd=48, window_size=200),
    "as GPT-2": dict(n_layer=2, n_head=2, n_embd=24, window_size=T, scale_attention=True, qkv_bias=True),
}


def random_model(**shape) -> GPTNeo:
    """Weights far from their initialization, so that every one of them shows in the logits."""
    torch.manual_seed(0)
    model = GPTNeo(GPTNeoConfig(vocab_size=97, block_size=T, **shape)).eval()
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, mean=1.0 if "ln" in name and "weight" in name else 0.0, std=0.15)
    return model


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
    """Prompts of different length, two slots side by side, one of them copied from the desk."""
    model = random_model(**shape)
    text = torch.randint(97, (2, T))
    plain = model(text)[0]
    decoder = decoder(model, n_slots=3, context=T, dtype=torch.float32)
    torch.testing.assert_close(decoder.read(SCRATCH, text[0, :100].tolist()), plain[0, 99], atol=1e-4, rtol=0)
    decoder.copy(SCRATCH, 2)
    torch.testing.assert_close(decoder.read(0, text[1, :3].tolist()), plain[1, 2], atol=1e-4, rtol=0)
    for i in range(T - 100):
        logits = decoder.step([2, 0], [text[0, 100 + i].item(), text[1, 3 + i].item()])
        torch.testing.assert_close(logits[0], plain[0, 100 + i], atol=1e-4, rtol=0)
        torch.testing.assert_close(logits[1], plain[1, 3 + i], atol=1e-4, rtol=0)


@pytest.mark.parametrize("decoder", DECODERS)
@torch.inference_mode()
def test_a_slot_forgets_the_text_before(decoder):
    model = random_model(**SHAPES["window shorter than the text"])
    text = torch.randint(97, (40,)).tolist()
    decoder = decoder(model, n_slots=1, context=T, dtype=torch.float32)
    read_and_step(decoder, torch.randint(97, (T,)).tolist(), n_prompt=100, slot=0)
    logits = read_and_step(decoder, text, n_prompt=5, slot=0)
    torch.testing.assert_close(logits, model(torch.tensor([text]))[0][0, 4:], atol=1e-4, rtol=0)


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@torch.inference_mode()
def test_company_does_not_change_one_bit(shape, dtype):
    """The same text alone and among others, in another slot, in a batch of every size up to 9."""
    model = random_model(**shape)
    texts = torch.randint(97, (9, 30)).tolist()
    alone = read_and_step(NativeDecoder(model, 1, T, dtype), texts[0], n_prompt=10, slot=0)
    for n in range(2, 10):
        decoder = NativeDecoder(model, n, context=40, dtype=dtype)
        slots = list(range(n))[::-1]
        logits = [decoder.read(slot, text[:10]) for slot, text in zip(slots, texts)][:1]
        for i in range(10, 30):
            logits.append(decoder.step(slots, [text[i] for text in texts[:n]])[0].clone())
        assert torch.equal(torch.stack(logits), alone)


@needs_compiler
@torch.inference_mode()
def test_threads_share_the_work_and_change_nothing(two_threads):
    model = random_model(**SHAPES["sixteen narrow heads"])
    texts = torch.randint(97, (5, 30)).tolist()
    results = []
    for n_threads in (2, 1):
        torch.set_num_threads(n_threads)
        decoder = NativeDecoder(model, 5, 40, torch.float32)
        logits = [decoder.read(slot, text[:10]) for slot, text in enumerate(texts)]
        for i in range(10, 30):
            logits.append(decoder.step(list(range(5)), [text[i] for text in texts]).flatten().clone())
        results.append(torch.cat(logits))
    assert torch.equal(*results)


@needs_compiler
@torch.inference_mode()
def test_bfloat16_is_close():
    """As close as PyTorch's own bfloat16 is to float32, on the same weights."""
    model = random_model(**SHAPES["sixteen narrow heads"])
    text = torch.randint(97, (100,)).tolist()
    exact = model(torch.tensor([text]))[0][0, 49:].log_softmax(-1)
    ours = read_and_step(NativeDecoder(model, 1, T, torch.bfloat16), text, 50, slot=0).log_softmax(-1)
    theirs = model.to(torch.bfloat16)(torch.tensor([text]))[0][0, 49:].float().log_softmax(-1)
    errors = [(other - exact).square().mean().sqrt().item() for other in (ours, theirs)]
    assert 0 < errors[0] < errors[1]


@needs_compiler
@pytest.mark.parametrize("block_size", [2, 16, 64, 200])
def test_the_faster_type_is_measured_within_the_context(block_size, monkeypatch):
    """And leaves PyTorch's random numbers as they were."""
    steps = []
    monkeypatch.setattr(decoders.autotune, "fastest", lambda question, of: [of[name]() for name in of] and "float32")
    step = NativeDecoder.step
    monkeypatch.setattr(NativeDecoder, "step", lambda self, *of: steps.append(max(self.lengths)) or step(self, *of))
    config = GPTNeoConfig(vocab_size=97, block_size=block_size, n_layer=1, n_head=2, n_embd=8)
    state = torch.get_rng_state()
    assert decoders.faster_dtype.__wrapped__(config) == torch.float32
    assert torch.equal(torch.get_rng_state(), state)
    assert len(steps) == 2 and max(steps) < block_size


def test_without_a_compiler_pytorch_decodes(monkeypatch):
    monkeypatch.setattr(compile_cpp, "library", lambda name, **constants: None)
    assert isinstance(make_decoder(random_model(**SHAPES["wide heads"]), 1, T, exact=False), TorchDecoder)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU that PyTorch can use")
@torch.inference_mode()
def test_the_cuda_graph_gives_the_logits_of_the_whole_text():
    model = random_model(**SHAPES["window shorter than the text"]).cuda()
    text = torch.randint(97, (T,))
    decoder = TorchDecoder(model, n_slots=3, context=T, dtype=torch.float32)
    logits = read_and_step(decoder, text.tolist(), n_prompt=100, slot=1)
    torch.testing.assert_close(logits, model(text[None].cuda())[0][0, 99:], atol=1e-3, rtol=0)
