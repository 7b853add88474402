"""Training and sampling on a GPU give what a CPU gives; tests/kernels has the kernels. Alone: pytest -m gpu -n 0"""

import pytest
import torch
from conftest import arguments, log_of
from random_models import random_model

import train
from generation.generation_loop import beam_search, generate
from model import GPTNeo, GPTNeoConfig
from training.config import TrainConfig, parse_command_line
from training.optimizers import make_optimizers

DEVICE = "cuda"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU that PyTorch can use"),
]


@pytest.fixture(autouse=True)
def float32_is_float32():
    """Whatever ran before: TF32 is for training."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


# ---- Training ----


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
        given, resume, _ = parse_command_line(arguments(config | dict(name=name, dtype="auto"), *flags))
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
