"""
How fast is the GPU path? Training beside compiled transformers and nanoGPT-style code, time to a loss, generation, and
where a step goes.
"""

import gc
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch

import train
from benches.gpu_setup import CONFIGS, Setup
from benches.loss import loss_curve
from benches.measure import alternating_medians
from benches.models import PlainGPT
from benches.train import optimizers_of, take_step
from checkpoints.huggingface import config_to_hf
from corpus.preparation import prepare_builtin
from generation.generation_loop import generate
from model import GPTNeo, GPTNeoConfig
from training.config import parse_command_line
from training.device_and_dtype import peak_flops

BATCH_SIZES = (80, 40, 20, 10, 4)  # sequences in a micro-batch: the published 80, or the largest that fits
STEPS_A_TURN = 5


# ---- Training ----


def contestants(setup: Setup, shape: GPTNeoConfig) -> dict[str, Callable]:
    """{name: makes (model, function of inputs and targets -> loss)}; all compiled."""

    def ours(**compiling):
        model = setup.model(shape).to(setup.device)
        forward = setup.compiled(model, **compiling)
        return model, lambda x, y: forward(x, y)[1]

    def nanogpt():
        torch.manual_seed(0)
        sizes = {name: getattr(shape, name) for name in ("vocab_size", "block_size", "n_layer", "n_head", "n_embd")}
        model = PlainGPT(**sizes).to(setup.device)
        return model, setup.compiled(model)

    def transformers():
        from transformers import AutoConfig, GPTNeoForCausalLM  # a peer, not a dependency

        config = AutoConfig.for_model(**config_to_hf(shape), use_cache=False)
        model = GPTNeoForCausalLM(config).to(setup.device).train()
        forward = setup.compiled(model)
        return model, lambda x, y: forward(x, labels=x).loss  # shifts them itself

    makes = {"ours": ours, "nanoGPT-style": nanogpt}
    if find_spec("transformers"):
        makes["transformers"] = transformers
    if shape.n_embd <= 64:  # the smallest, whose step is bound by kernel launches
        makes["ours in CUDA graphs"] = partial(ours, mode="reduce-overhead")
    return makes


class Training:
    """One contestant's steps of AdamW, on the largest batch that fits."""

    def __init__(self, setup: Setup, shape: GPTNeoConfig, make: Callable):
        self.setup = setup
        self.model, self.loss_of = make()
        self.optimizers = optimizers_of(self.model)
        for batch_size in BATCH_SIZES[-1:] if setup.dry_run else BATCH_SIZES:
            self.tokens = setup.tokens(shape, batch_size).to(setup.device)
            start = time.perf_counter()
            try:
                self.run(1)  # compiles
                break
            except torch.OutOfMemoryError:
                self.model.zero_grad()
                torch.cuda.empty_cache()
        self.compile_ms = 1000 * (time.perf_counter() - start)
        held = torch.cuda.memory_allocated() if setup.device.type == "cuda" else 0
        if setup.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        self.run(1)
        self.peak_mib = (torch.cuda.max_memory_allocated() - held) / 2**20 if held else 0.0

    def run(self, n_steps: int) -> None:
        for _ in range(n_steps):
            torch.compiler.cudagraph_mark_step_begin()
            take_step(self.model, self.optimizers, self.setup.dtype, self.loss_of, self.tokens)
        if self.tokens.is_cuda:
            torch.cuda.synchronize()


def alone(setup: Setup) -> Iterator[tuple[str, Callable[[], dict]]]:
    for size, shape in setup.shapes().items():
        yield size, partial(our_speed, setup, shape)


def our_speed(setup: Setup, shape: GPTNeoConfig) -> dict[str, float]:
    return speeds(setup, shape, {"ours": Training(setup, shape, contestants(setup, shape)["ours"])})


def beside_peers(setup: Setup, sizes: Iterable[str]) -> Iterator[tuple[str, Callable[[], dict]]]:
    for size in sizes:
        yield f"{size} beside peers", partial(alternate, setup, setup.shapes()[size])


def alternate(setup: Setup, shape: GPTNeoConfig) -> dict[str, float]:
    """The peers' compiled steps and ours, which is in inductor's cache by now."""
    runs = {name: Training(setup, shape, make) for name, make in contestants(setup, shape).items()}
    figures = speeds(setup, shape, runs)
    mine = figures["ours, tokens/s"]
    return figures | {f"ours / {name}": mine / figures[f"{name}, tokens/s"] for name in runs if name != "ours"}


def speeds(setup: Setup, shape: GPTNeoConfig, runs: dict[str, Training]) -> dict[str, float]:
    """Medians of alternating turns. MFU counts our model's FLOPs for all, against the data sheet's peak."""
    turns = {name: partial(run.run, STEPS_A_TURN) for name, run in runs.items()}
    seconds, figures = alternating_medians(turns, 1 if setup.dry_run else 3), {}
    peak, flops = peak_flops(setup.device, setup.dtype), GPTNeo(shape).flops_per_token(shape.block_size)
    for name, run in runs.items():
        rate = len(run.tokens) * shape.block_size * STEPS_A_TURN / seconds[name]
        figures[f"{name}, tokens/s"] = rate
        figures[f"{name}, MFU, percent"] = 100 * rate * flops / peak
        figures[f"{name}, sequences in a micro-batch"] = len(run.tokens)
        figures[f"{name}, MiB a step adds"] = run.peak_mib
        figures[f"{name}, first step, ms"] = run.compile_ms
    gc.collect()
    return figures


# ---- Time to a loss ----


def time_to_loss(setup: Setup) -> Iterator[tuple[str, Callable[[], dict]]]:
    adamw = dict(recipe="paper", warmup_steps=40, warmdown=0.6)
    yield "the demo's shape, 800 steps", partial(train_demo, setup, {"adamw": adamw, "fast": {}})


def train_demo(setup: Setup, runs: dict[str, dict]) -> dict[str, float]:
    """Seconds of training to the loss at which the first of these runs ends."""
    figures, goal = {}, None
    n_steps = 10 if setup.dry_run else 800
    common = dict(
        max_minutes=0, min_steps=0, max_steps=n_steps, eval_interval=n_steps // 10, log_interval=n_steps // 10
    )
    common |= dict(device=str(setup.device), compile=not setup.dry_run)
    if setup.dry_run:
        common |= dict(n_layer=1, n_embd=16, block_size=64, eval_tokens=2000)
    with tempfile.TemporaryDirectory() as directory:
        prepare_builtin(Path(directory, "builtin"), n_stories=300 if setup.dry_run else 20_000)
        for name, settings in runs.items():
            flags = common | settings | dict(name=name, out_dir=directory, data_dir=directory)
            arguments = [f"--{key}={value}" for key, value in flags.items()]
            run, _ = train.train(parse_command_line([str(CONFIGS / "demo.py"), *arguments])[0], resume=False)
            curve = loss_curve(Path(run))
            seconds, loss, _ = curve[-1]
            figures |= {f"{name}, validation loss": loss, f"{name}, seconds": seconds}
            goal = goal or loss
            reached = [seconds for seconds, loss, _ in curve if loss <= goal]
            if name != next(iter(runs)) and reached:
                figures[f"{name}, seconds to the loss of {next(iter(runs))}"] = reached[0]
    return figures


# ---- Generation ----


def generation(setup: Setup) -> Iterator[tuple[str, Callable[[], dict]]]:
    for batch_size in (1, 4) if setup.dry_run else (1, 64, 1024):
        yield f"8m, batch {batch_size}", partial(generate_batch, setup, batch_size)
    yield "8m", partial(generate_500, setup)


def generate_batch(setup: Setup, batch_size: int) -> dict[str, float]:
    shape = setup.shapes()["8m"]
    seconds = seconds_to_write(setup, setup.tokens(shape, batch_size, shape.block_size // 12).tolist(), batch_size)
    return {"tokens/s": batch_size * new_tokens(shape) / seconds}


def generate_500(setup: Setup) -> dict[str, float]:
    """50 prompts, 10 completions of 200 tokens each."""
    shape, n = setup.shapes()["8m"], 5 if setup.dry_run else 50
    prompts = setup.tokens(shape, n, shape.block_size // 5).repeat_interleave(10, dim=0).tolist()
    return {f"{len(prompts)} completions, seconds": seconds_to_write(setup, prompts, len(prompts))}


def new_tokens(shape: GPTNeoConfig) -> int:
    return min(200, shape.block_size // 2)


def seconds_to_write(setup: Setup, prompts: list[list[int]], batch_size: int) -> float:
    """Seconds of the second run: the first is a warm-up."""
    shape = setup.shapes()["8m"]
    model = setup.model(shape).to(setup.device).eval()
    for _ in range(2):
        start = time.perf_counter()
        completions = list(generate(model, prompts, new_tokens(shape), top_k=50, batch_size=batch_size))
        seconds = time.perf_counter() - start
    assert len(completions) == len(prompts)
    return seconds


# ---- Where a step goes ----


def profiles(setup: Setup, directory: Path) -> Iterator[tuple[str, Callable[[], dict]]]:
    for size in sorted({"8m", "33m"} & set(setup.shapes())):
        yield f"{size}, profile-{size}.txt", partial(profile, setup, size, directory)


def profile(setup: Setup, size: str, directory: Path) -> dict[str, float]:
    shape = setup.shapes()[size]
    run = Training(setup, shape, contestants(setup, shape)["ours"])
    on_gpu = setup.device.type == "cuda"
    kinds = [torch.profiler.ProfilerActivity.CPU] + [torch.profiler.ProfilerActivity.CUDA] * on_gpu
    with torch.profiler.profile(activities=kinds) as profiler:
        start = time.perf_counter()
        run.run(STEPS_A_TURN)
        milliseconds = 1000 * (time.perf_counter() - start)
    events = profiler.key_averages()
    order = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    (directory / f"profile-{size}.txt").write_text(events.table(sort_by=order, row_limit=30))
    launches = sum(event.count for event in events if "LaunchKernel" in event.key)
    # Only kernels are counted: the operators that launch them and annotations repeat their time.
    on_device = [event for event in events if event.device_type == torch.autograd.DeviceType.CUDA]
    busy = sum(event.self_device_time_total for event in on_device if not event.is_user_annotation) / 1000
    return {
        "ms a step, under the profiler": milliseconds / STEPS_A_TURN,
        "kernels launched in a step": launches / STEPS_A_TURN,
        "share of the time in which the GPU computes, percent": 100 * busy / milliseconds,
    }
