"""A GPU computes what the CPU does in float32, and formulas in float64. Alone: python -m pytest -m gpu -n 0"""

import itertools

import pytest
import torch
import torch.nn.functional as F
from conftest import arguments, log_of
from random_models import random_model

import train
from generation.generation_loop import beam_search, generate
from kernels.attention import causal_attention, first_keys, story_starts
from kernels.cross_entropy import head_loss
from model import GPTNeo, GPTNeoConfig
from training.config import TrainConfig, parse_command_line
from training.optimizers import make_optimizers

DEVICE = "cuda"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU that PyTorch can use"),
]
SIZES = {"1M": dict(n_embd=64), "8M": dict(n_embd=256), "33M": dict(n_embd=768, n_layer=4)}
DTYPE = torch.bfloat16 if torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 0) else torch.float16


@pytest.fixture(autouse=True)
def float32_is_float32():
    """Whatever ran before: TF32 is for training."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


def error(x: torch.Tensor, reference: torch.Tensor) -> float:
    """Relative; a NaN is larger than any limit."""
    x, reference = x.detach().double().cpu(), reference.detach().double().cpu()
    return ((x - reference).norm() / reference.norm()).nan_to_num(float("inf")).item()


def compiled_or_not(function, compiled: bool):
    torch.compiler.reset()
    return torch.compile(function, dynamic=False, fullgraph=True) if compiled else function


# ---- Training ----


@pytest.mark.parametrize("stories", [False, True])
@pytest.mark.parametrize("size, compiled", [*itertools.product(SIZES, [False]), ("1M", True), ("8M", True)])
def test_loss_and_gradients(size, compiled, stories):
    torch.manual_seed(0)
    model = GPTNeo(GPTNeoConfig(vocab_size=1000, block_size=512, **SIZES[size]))
    tokens = torch.randint(1000, (2, 513))
    tokens[:, 5::70] = 0

    def run(forward, tokens) -> tuple[torch.Tensor, torch.Tensor]:
        model.zero_grad()
        loss = forward(tokens[:, :-1], tokens[:, 1:], story_starts(tokens[:, :-1], 0) if stories else None)[1]
        loss.backward()
        return loss.detach(), torch.cat([p.grad.flatten().float().cpu() for p in model.parameters()])

    expected = run(model, tokens)
    model.to(DEVICE)
    with torch.autocast(DEVICE, DTYPE):
        found = run(compiled_or_not(model, compiled), tokens.to(DEVICE))
    assert all(error(x, reference) <= 0.03 for x, reference in zip(found, expected))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("stories", [False, True])
@pytest.mark.parametrize("T", [256, 320, 512])  # 320: cuDNN's backward gives NaN with a mask (pytorch issue 196678)
@pytest.mark.parametrize(
    "width, dtype, limit", [(4, DTYPE, 0.02), (16, DTYPE, 0.02), (64, DTYPE, 0.02), (4, torch.float32, 1e-4)]
)
def test_attention(width, dtype, limit, T, stories, compiled):
    """Output and gradient of a layer with a window of 256, by the formula."""
    torch.manual_seed(0)
    qkv = torch.randn(4, T, 3, 16, width, device=DEVICE).to(dtype).requires_grad_()
    upstream = torch.randn(4, T, 16, width, device=DEVICE).to(dtype)
    starts = story_starts((torch.rand(4, T, device=DEVICE) < 1 / 60).long(), 1) if stories else None
    exact, key = qkv.detach().double().requires_grad_(), torch.arange(T, device=DEVICE)
    first = (key - 255).clamp(min=0) if starts is None else torch.maximum(starts, (key - 255).clamp(min=0))
    visible = (key <= key[:, None]) & (key >= first[..., None])
    q, k, v = (x.transpose(1, 2) for x in exact.unbind(2))
    mask = visible if starts is None else visible[:, None]
    reference = ((q @ k.mT).masked_fill(~mask, -torch.inf).softmax(-1) @ v).transpose(1, 2)
    reference.backward(upstream.double())
    y = compiled_or_not(causal_attention, compiled)(*qkv.unbind(2), first_keys(T, 256, qkv.device, starts))
    y.backward(upstream)
    assert error(y, reference) <= limit and error(qkv.grad, exact.grad) <= limit


@pytest.mark.parametrize("compiled", [False, True])
def test_the_head_and_its_memory(compiled):
    """Loss and gradients by the formula; all logits are never held at once."""
    torch.manual_seed(0)
    x, weight = torch.randn(20_000, 256, device=DEVICE), 0.1 * torch.randn(10_000, 256, device=DEVICE)
    targets = torch.randint(10_000, (20_000,), device=DEVICE)
    targets[::5] = -100
    run = compiled_or_not(head_loss, compiled)

    def gradients(loss_of, x, weight):
        x, weight = x.requires_grad_(), weight.requires_grad_()
        loss = loss_of(x, weight)
        return loss.detach(), *torch.autograd.grad(loss, (x, weight))

    with torch.autocast(DEVICE, DTYPE):
        gradients(lambda x, weight: run(x, weight, targets), x, weight)  # compiles
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        found = gradients(lambda x, weight: run(x, weight, targets), x, weight)
    assert torch.cuda.max_memory_allocated() - held < 0.5 * len(x) * len(weight) * DTYPE.itemsize
    exact = gradients(
        lambda x, weight: F.cross_entropy(x @ weight.T, targets), x.detach().double(), weight.detach().double()
    )
    assert all(error(a, b) <= 0.02 for a, b in zip(found, exact))


def test_a_step_never_waits_for_the_device():
    config = TrainConfig(n_embd=64, optimizer="muon", learning_rate=1e-3)
    model = GPTNeo(GPTNeoConfig(vocab_size=300, block_size=512, n_embd=64)).to(DEVICE)
    state = train.TrainingState(model, make_optimizers(model, config), torch.bfloat16)
    tokens = torch.randint(300, (2, 513), device=DEVICE)
    step = [(tokens[:, :-1], tokens[:, 1:], 0.5)] * 2
    for mode in ("default", "default", "error", "error"):  # the first two warm up
        torch.cuda.set_sync_debug_mode(mode)
        try:
            train.train_step(state, lambda x, y: model(x, y)[1], step)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert state.step == 4


@pytest.mark.parametrize("device, limit", [(DEVICE, 2e-3), ("cpu", 0.05)])
def test_a_resumed_run(device, limit, config, tmp_path):
    """Stopped and resumed, on the GPU or on the CPU: the last loss is that of an uninterrupted run, up to rounding, as
    a GPU takes sums in another order each time."""

    def run(name: str, *flags: str) -> list[float]:
        given, resume = parse_command_line(arguments(config | dict(name=name, dtype="auto"), *flags))
        return [float(row["train_loss"]) for row in log_of(train.train(given, resume)[0])]

    whole = run("whole", f"--device={DEVICE}", "--max_steps=20")
    run("parts", f"--device={DEVICE}", "--max_steps=10")
    parts = run("parts", f"--device={device}", "--max_steps=20", "--resume")
    assert parts == pytest.approx(whole, rel=limit)


# ---- Sampling ----


@pytest.fixture(scope="module")
def story_model() -> GPTNeo:
    """Weights that make some continuations much likelier than others, as training does."""
    return random_model(vocab_size=300, block_size=96, n_layer=4, n_head=4, n_embd=64, window_size=32)


def greedy(model: GPTNeo, prompts: list[list[int]]) -> list[list[int]]:
    completions = generate(model, prompts, temperature=0, stop=0, batch_size=5)
    return [completion.tokens for completion in sorted(completions, key=lambda completion: completion.index)]


def beams(model: GPTNeo, prompts: list[list[int]]) -> list[list[int]]:
    return [completion.tokens for completion in beam_search(model, prompts[:4], beams=4, max_new_tokens=40, stop=0)]


@pytest.mark.parametrize("write", [greedy, beams])
def test_texts_are_those_of_the_cpu(write, story_model):
    prompts = [torch.randint(1, 300, (3 + 5 * i,), generator=torch.manual_seed(i)).tolist() for i in range(12)]
    expected = write(story_model.cpu(), prompts)
    assert write(story_model.to(DEVICE), prompts) == expected


def test_sampled_texts_hardly_depend_on_their_batch(story_model):
    """In bfloat16, another batch size may round a close draw differently."""
    prompts = torch.randint(1, 300, (64, 10), generator=torch.manual_seed(0)).tolist()
    model, written = story_model.to(DEVICE), []
    for batch_size in (1, 64):
        completions = generate(model, prompts, max_new_tokens=40, top_k=50, batch_size=batch_size)
        written.append({completion.index: completion.tokens for completion in completions})
    assert sum(written[0][i] != written[1][i] for i in written[0]) <= 32
