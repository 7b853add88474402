"""On a GPU: attention and loss are the formulas', model, training and sampling a CPU's. Alone:
pytest -m gpu -n 0"""

import pytest
import torch
from conftest import arguments, log_of
from random_models import random_model
from test_attention import assert_as_written_out, attend

import train
from model import GPTNeo, GPTNeoConfig
from nanostories.device import set_up_device
from nanostories.generation.generation_loop import beam_search, generate
from nanostories.generation.prompts import Sampling
from nanostories.kernels.attention import story_starts

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU that PyTorch can use"),
]
HAS_BFLOAT16 = torch.cuda.is_available() and torch.cuda.is_bf16_supported(False)
HALF = torch.bfloat16 if HAS_BFLOAT16 else torch.float16


@pytest.fixture(autouse=True)
def no_tf32():
    """So that float32 is compared with float32, whatever ran before."""
    set_up_device("cuda")
    torch.set_float32_matmul_precision("highest")
    yield
    torch._dynamo.reset()


# ---- Kernels and model ----
def compiled_if(compiled: bool, function):
    return torch.compile(function, dynamic=False, fullgraph=True) if compiled else function


@pytest.mark.parametrize("dtype, tolerance", [(HALF, 0.02), (torch.float32, 1e-4)])
@pytest.mark.parametrize("D", [4, 16, 24, 64])
# 320: there cuDNN's backward pass with a mask gives NaN
@pytest.mark.parametrize("T", [256, 320, 512])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
def test_attention_equals_the_formula(compiled, packed, T, D, dtype, tolerance):
    starts = None
    if packed:
        tokens = torch.rand(4, T, device="cuda") < 1 / 60
        starts = story_starts(tokens.long(), end_of_text=1)
    qkv = torch.randn(4, T, 3, 16, D).to("cuda", dtype)
    assert_as_written_out(qkv, 256, starts, tolerance, compiled_if(compiled, attend))


@pytest.mark.parametrize("width", [4, 16])  # of the heads: the published 1M and 8M
@pytest.mark.parametrize("compiled, packed", [(False, False), (True, False), (True, True)])
def test_loss_and_gradients_of_the_model_are_those_of_a_cpu_and_never_wait_for_the_gpu(
    width, compiled, packed
):
    model = GPTNeo(GPTNeoConfig(vocab_size=2000, n_layer=4, n_head=16, n_embd=16 * width))
    tokens = torch.randint(1, 2000, (2, 513))
    tokens[:, 5::70] = 0
    results = []
    for device in ("cpu", "cuda"):
        model = model.to(device)
        tokens = tokens.to(device)
        forward = compiled_if(compiled and device == "cuda", model)
        for mode in ("default", "error"):  # the first time compiles
            model.zero_grad()
            torch.cuda.set_sync_debug_mode(mode)
            starts = story_starts(tokens[:, :-1], end_of_text=0) if packed else None
            with torch.autocast(device, HALF, enabled=device == "cuda"):
                _, loss = forward(tokens[:, :-1], tokens[:, 1:], starts)
            loss.backward()
        torch.cuda.set_sync_debug_mode("default")
        gradients = [p.grad.flatten().cpu() for p in model.parameters()]
        results.append([loss.detach().cpu(), torch.cat(gradients)])
    for reference, value in zip(*results):
        assert (value - reference).norm() < 0.03 * reference.norm()


# ---- Training ----
@pytest.fixture
def losses_of(config, command_line, tmp_path):
    """losses_of(name, ...) -> those in the log of a run on the GPU; at its end a story is told."""

    def train_run(name: str, *flags: str, **changes) -> list[float]:
        run = tmp_path / "out" / name
        settings = config | {"name": name, "device": "cuda", "dtype": "auto"} | changes
        code, said = command_line(train, tmp_path)(*arguments(settings, *flags))
        assert code == 0 and f"Everything is in {run}/" in said.out
        rows = log_of(run)
        return [float(row["train_loss"]) for row in rows] + [float(rows[-1]["val_loss"])]

    return train_run


@pytest.mark.parametrize("device, limit", [("cuda", 2e-3), ("cpu", 0.05)])
def test_a_resumed_run(device, limit, losses_of):
    """Stopped and resumed, on the GPU or on the CPU: the losses are those of an uninterrupted run,
    up to rounding, as a GPU takes sums in another order each time."""
    whole = losses_of("whole")
    losses_of("parts", max_steps=10)
    assert losses_of("parts", "--resume", device=device) == pytest.approx(whole, rel=limit)


def test_packed_short_windows_compiled(losses_of):
    """The loss falls as on the CPU."""
    changes = {"attend_within_story": True, "short_window_steps": 10, "compile": True}
    on_cpu = losses_of("cpu", device="cpu", dtype="float32", **changes)
    assert losses_of("cuda", **changes)[-1] == pytest.approx(on_cpu[-1], rel=0.02)


def test_cuda_graphs_change_no_loss(losses_of):
    plain = losses_of("plain", compile=True)
    assert losses_of("graphs", compile=True, cuda_graphs=True) == pytest.approx(plain, rel=2e-3)


# ---- Sampling ----
# weights that make some continuations much likelier than others, as training does
SHAPE = dict(vocab_size=300, block_size=96, n_layer=4, n_embd=64, window_size=32)
PROMPTS = {(i, 0): list(range(1, 3 + 5 * i)) for i in range(12)}


@pytest.mark.parametrize("write, beams", [(generate, 1), (beam_search, 4)])
def test_texts_are_those_of_the_cpu(write, beams):
    model = random_model(**SHAPE)
    sampling = Sampling(temperature=0, beams=beams, max_new_tokens=40)
    expected = sorted(write(model, PROMPTS, sampling, stop=0))
    assert sorted(write(model.to("cuda"), PROMPTS, sampling, stop=0)) == expected
