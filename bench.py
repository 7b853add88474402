"""
Every speed that the README states: ours and a peer's, alternating in one run, medians.

$ python bench.py sample           # generate() beside transformers.generate (pip install -r requirements-dev.txt)
$ python bench.py train            # a step of training beside transformers' GPTNeo, eager and compiled
$ python bench.py loss --rounds 3  # how soon each recipe reaches a loss; needs data/sample (README, "ten minutes")
$ python bench.py compressor --rounds 3    # memory and time of a step of compressor.py beside the plain model
$ python bench.py train --save     # and keep the result: bench/results.jsonl

The last line is a JSON object; its ratios are ours / peer, above 1 is better. Nothing else should run meanwhile.
"""

import argparse
import contextlib
import gc
import itertools
import json
import math
import multiprocessing
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

import train
from generate import generate
from model import GPTNeo, GPTNeoConfig
from runs import read_log, training_seconds
from tokenizer import GPT2_VOCAB_SIZE, cut

ROOT = Path(__file__).parent


def alternating_medians(contestants: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """Seconds that each takes, by turns, after one turn that is not counted."""
    seconds = {name: [] for name in contestants}
    for turn in tqdm(range(rounds + 1), "rounds", leave=False, disable=None):
        for name, contestant in contestants.items():
            gc.collect()
            start = time.perf_counter()
            contestant()
            if turn > 0:
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


class Worker:
    """A contestant in a process of its own, so that none runs under the settings of another. Call it for its turn."""

    def __init__(self, make: Callable[[], Callable], argument):
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=work, args=(make, argument, theirs), daemon=True)
        self.process.start()

    def __call__(self):
        self.pipe.send("go")
        self.peak_mib = self.pipe.recv()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()


def work(make: Callable[[], Callable], argument, pipe):
    contestant = make()
    while pipe.recv():
        contestant(argument)
        pipe.send(peak_mib())


# ---- sample: generate() beside transformers.generate ----

SHAPE = dict(vocab_size=10_000, block_size=512, n_layer=8, n_head=16, n_embd=256)
PROMPT_TOKENS, NEW_TOKENS, TOP_K = 40, 200, 50


def our_model(directory: str) -> GPTNeo:
    return GPTNeo.from_hf(directory).to("cuda" if torch.cuda.is_available() else "cpu")


def their_model(directory: str, dtype: torch.dtype = torch.float32):
    from transformers import AutoModelForCausalLM  # a peer, not a dependency

    model = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype).eval()
    return model.to("cuda" if torch.cuda.is_available() else "cpu")


def random_prompts(batch_size: int, length: int = PROMPT_TOKENS) -> torch.Tensor:
    return torch.randint(SHAPE["vocab_size"] - 1, (batch_size, length), generator=torch.Generator().manual_seed(0))


def we_generate(model: GPTNeo, prompts: torch.Tensor, batch_size: int, **settings):
    completions = list(generate(model, prompts.tolist(), NEW_TOKENS, batch_size=batch_size, **settings))
    assert all(len(completion.tokens) == NEW_TOKENS for completion in completions)


@torch.inference_mode()
def they_generate(model, prompts: torch.Tensor):
    prompts = prompts.to(model.device)
    texts = model.generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        do_sample=True,
        top_k=TOP_K,
        max_new_tokens=NEW_TOKENS,
        eos_token_id=None,
        pad_token_id=0,
    )
    assert texts.shape == (len(prompts), prompts.size(1) + NEW_TOKENS)


def export_random_model(directory: str, **shape):
    torch.manual_seed(0)
    GPTNeo(GPTNeoConfig(**SHAPE | shape)).to_hf(directory, cut(np.zeros(GPT2_VOCAB_SIZE), SHAPE["vocab_size"]))


def memory_of_ours(directory: str):
    we_generate(our_model(directory), random_prompts(64), 64, top_k=TOP_K)


def memory_of_theirs(directory: str):
    they_generate(their_model(directory), random_prompts(64))


def peak_memory(function: Callable[[str], None], directory: str) -> float:
    """MiB at the most: of the GPU, or of a process of its own, everything that it imports included."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(peak_memory_here, (function, directory))


def peak_memory_here(function: Callable[[str], None], directory: str) -> float:
    function(directory)
    return peak_mib()


def peak_mib() -> float:
    """Of this process, so far."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**20
    status = Path("/proc/self/status").read_text()  # not getrusage: its maximum begins with that of the parent
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) / 2**10


def bench_sample(rounds: int) -> tuple[dict, dict]:
    ratios, figures = {}, {}
    with tempfile.TemporaryDirectory() as directory:
        export_random_model(directory)
        ours, theirs = our_model(directory), their_model(directory)
        theirs_bfloat16 = their_model(directory, torch.bfloat16)
        for batch_size in (1, 64):
            args = random_prompts(batch_size), batch_size
            contestants = {
                "ours": partial(we_generate, ours, *args, top_k=TOP_K),
                "ours, greedy (float32)": partial(we_generate, ours, *args, temperature=0),
                "transformers, float32": partial(they_generate, theirs, args[0]),
                "transformers, bfloat16": partial(they_generate, theirs_bfloat16, args[0]),
            }
            seconds = alternating_medians(contestants, rounds)
            best_peer = min(seconds["transformers, float32"], seconds["transformers, bfloat16"])
            ratios[f"batch{batch_size}"] = best_peer / seconds["ours"]
            for name, value in seconds.items():
                figures[f"{name}, batch {batch_size}, tokens/s"] = batch_size * NEW_TOKENS / value
        fifty = random_prompts(50, length=100).repeat_interleave(10, dim=0)
        seconds = alternating_medians({"500": lambda: we_generate(ours, fifty, 64)}, rounds=1)
        figures["ours, 50 prompts of 100 tokens x 10 completions of 200, no top-k, seconds"] = seconds["500"]
        figures["ours, batch 64, peak MiB"] = peak_memory(memory_of_ours, directory)
        figures["transformers, float32, batch 64, peak MiB"] = peak_memory(memory_of_theirs, directory)
    return ratios, figures


# ---- train: a step beside transformers' GPTNeo ----

BATCH_SIZE = 16


def our_step(directory: str) -> Callable[[torch.Tensor], None]:
    return step_of(our_model(directory).train())


def step_of(model: GPTNeo) -> Callable[[torch.Tensor], None]:
    """As train.py takes it, compiled, with AdamW."""
    train.native.keep_freed_memory()
    optimizers = train.make_optimizers(model, train.TrainConfig(name="bench"))
    forward = torch.compile(model)
    return partial(take_step, model, optimizers, torch.bfloat16, lambda x, y: forward(x, y)[1])


def their_step(directory: str, dtype: torch.dtype, compiled: bool, keep_freed_memory: bool = False):
    if keep_freed_memory:  # one of the things that train.py does, and a peer could
        train.native.keep_freed_memory()
    model = their_model(directory).train()
    optimizers = [torch.optim.AdamW(model.parameters(), lr=5e-4, fused=True)]
    forward = torch.compile(model) if compiled else model
    return partial(take_step, model, optimizers, dtype, lambda x, y: forward(x, labels=x).loss)  # shifts them itself


def take_step(model, optimizers: list, dtype: torch.dtype, loss_of: Callable, tokens: torch.Tensor):
    """dtype float32: no autocast."""
    tokens = tokens.to(next(model.parameters()).device)
    with torch.autocast(tokens.device.type, dtype, enabled=dtype != torch.float32):
        loss = loss_of(tokens[:, :-1], tokens[:, 1:])
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
    if tokens.is_cuda:
        torch.cuda.synchronize()


def memory_of_a_step(directory: str):
    our_step(directory)(random_prompts(32, 513))


def bench_train(rounds: int) -> tuple[dict, dict]:
    """Batches of 16 x 512 tokens, bf16 autocast unless said otherwise; the same weights, each in its own process."""
    ratios, figures = {}, {}
    tokens = random_prompts(BATCH_SIZE, SHAPE["block_size"] + 1)
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        export_random_model(directory)
        eager = "transformers, eager, float32"
        steps = {
            "ours": partial(our_step, directory),
            eager: partial(their_step, directory, torch.float32, compiled=False),
            f"{eager}, freed memory kept": partial(their_step, directory, torch.float32, False, keep_freed_memory=True),
            "transformers, eager": partial(their_step, directory, torch.bfloat16, compiled=False),
            "transformers, compiled": partial(their_step, directory, torch.bfloat16, compiled=True),
        }
        contestants = {name: stack.enter_context(Worker(make, tokens)) for name, make in steps.items()}
        seconds = alternating_medians(contestants, rounds)
        for name, value in seconds.items():
            figures[f"{name}, tokens/s"] = BATCH_SIZE * SHAPE["block_size"] / value
        ratios["transformers_eager_fp32"] = seconds[eager] / seconds["ours"]
        ratios["transformers_compiled"] = seconds["transformers, compiled"] / seconds["ours"]
        flops = GPTNeo(GPTNeoConfig(**SHAPE)).flops_per_token(SHAPE["block_size"]) * figures["ours, tokens/s"]
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        figures["ours, MFU, percent"] = 100 * flops / train.peak_flops(device, torch.bfloat16)
    with tempfile.TemporaryDirectory() as directory:
        export_random_model(directory, n_layer=12, n_embd=512)
        figures["ours, 12 layers x 512, 32 x 512 tokens, peak MiB"] = peak_memory(memory_of_a_step, directory)
    return ratios, figures


# ---- compressor: a step of it beside the plain model ----

WIDTHS, BATCH_SIZES = (128, 256, 512), (2, 4, 8, 16, 32)
BATCH_SIZE_OF_MATRIX = 8  # at which attention that builds its matrix is measured as well


def step_of_shape(kind: str, width: int, with_matrix: bool = False) -> Callable[[torch.Tensor], None]:
    torch.manual_seed(0)
    model = train.MODELS[kind](GPTNeoConfig(**SHAPE | dict(n_embd=width)))
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    if with_matrix:
        model.attend = attend_with_matrix
    return step_of(model)


def attend_with_matrix(_, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """As it was written before kernels: all T x T weights of all heads, kept for the way back. (B, T, H, D)"""
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k)
    later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    return torch.einsum("bhqk,bkhd->bqhd", scores.masked_fill(later, -torch.inf).softmax(-1), v)


def bench_compressor(rounds: int) -> tuple[dict, dict]:
    """Steps of batches of 512 tokens, AdamW, bf16, compiled; each contestant in its own process."""
    ratios, figures = {}, {}
    for width, batch_size in itertools.product(WIDTHS, BATCH_SIZES):
        tokens = random_prompts(batch_size, SHAPE["block_size"] + 1)
        contestants = {kind: partial(step_of_shape, kind, width) for kind in ("gptneo", "compressor")}
        if batch_size == BATCH_SIZE_OF_MATRIX:
            contestants |= {f"{kind}, matrix": partial(make, with_matrix=True) for kind, make in contestants.items()}
        with contextlib.ExitStack() as stack:
            workers = {name: stack.enter_context(Worker(make, tokens)) for name, make in contestants.items()}
            seconds = alternating_medians(workers, rounds)
        peak = {name: worker.peak_mib for name, worker in workers.items()}
        for name in contestants:
            figures[f"{name}, {width} wide, batch {batch_size}: ms a step"] = 1000 * seconds[name]
            figures[f"{name}, {width} wide, batch {batch_size}: peak MiB"] = peak[name]
        ratios[f"speed_{width}_batch{batch_size}"] = seconds["gptneo"] / seconds["compressor"]
        ratios[f"memory_{width}_batch{batch_size}"] = peak["gptneo"] / peak["compressor"]
        if batch_size == BATCH_SIZE_OF_MATRIX:
            ratios[f"memory_{width}_batch{batch_size}_matrix"] = peak["gptneo, matrix"] / peak["compressor, matrix"]
    few, many = BATCH_SIZES[0], BATCH_SIZES[-1]
    for width, kind in itertools.product(WIDTHS, ("gptneo", "compressor")):  # without what Python and PyTorch take
        difference = figures[f"{kind}, {width} wide, batch {many}: peak MiB"]
        difference -= figures[f"{kind}, {width} wide, batch {few}: peak MiB"]
        figures[f"{kind}, {width} wide: MiB a sequence"] = difference / (many - few)
    return ratios, figures


# ---- loss: both recipes beside a plain AdamW ----

# The 1M shape on a corpus of real stories, the same steps for the peers and half of them for ours.
LOSS_STEPS = 800
LOSS_RUNS = {
    "adamw": dict(recipe="paper", learning_rate=4e-3, warmup_steps=40, warmdown=0.6),  # the best of those in LOG.md
    "paper": dict(recipe="paper"),
    "fast": dict(recipe="fast", max_steps=LOSS_STEPS // 2, eval_interval=50),
}


def train_run(name: str, settings: dict, out_dir: str) -> list[tuple[float, float, int]]:
    """Trains in a process of its own -> (seconds of training, validation loss, tokens) at every evaluation."""
    defaults = dict(max_minutes=0, batch_size=8, max_steps=LOSS_STEPS, eval_interval=LOSS_STEPS, log_interval=50)
    settings = defaults | settings
    flags = [f"--{key}={value}" for key, value in (settings | dict(name=name, out_dir=out_dir)).items()]
    subprocess.run([sys.executable, ROOT / "train.py", ROOT / "configs" / "cpu_1m.py", *flags], check=True, stdout=2)
    rows = read_log(Path(out_dir, name, "log.csv"))
    return [
        (training_seconds(rows[: i + 1]), float(row["val_loss"]), int(row["tokens"]))
        for i, row in enumerate(rows)
        if row["val_loss"]
    ]


def bench_loss(rounds: int) -> tuple[dict, dict]:
    """How long `fast` takes to the loss at which a plain AdamW ends; a round is a seed."""
    figures, ratios = {}, []
    with tempfile.TemporaryDirectory() as out_dir:
        for seed in range(rounds):
            curves = {}
            for name, settings in LOSS_RUNS.items():
                curves[name] = train_run(f"{name}_{seed}", settings | dict(seed=seed), out_dir)
                seconds, val_loss, tokens = curves[name][-1]
                figures[f"{name}, seed {seed}: validation loss at the end"] = val_loss
                figures[f"{name}, seed {seed}: seconds"] = seconds
                figures[f"{name}, seed {seed}: tokens"] = tokens
            goal = curves["adamw"][-1]
            reached = next((point for point in curves["fast"] if point[1] <= goal[1]), (math.inf, 0.0, math.inf))
            figures[f"fast, seed {seed}: seconds to the loss of adamw"] = reached[0]
            figures[f"fast, seed {seed}: tokens to the loss of adamw"] = reached[2]
            ratios.append(goal[0] / reached[0])
    return dict(fast_vs_adamw=statistics.median(ratios)), figures


# ---- The command line ----

BENCHES = {"sample": bench_sample, "train": bench_train, "compressor": bench_compressor, "loss": bench_loss}


def hardware() -> str:
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    names = [line.split(": ")[1] for line in info.splitlines() if line.startswith("model name")]
    units = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if f" {flag} " in info.replace("\n", " ")]
    return f"{os.cpu_count()} cores, {names[0] if names else platform.processor()} ({' '.join(units)})"


def versions() -> dict[str, str]:
    import transformers

    return {"python": platform.python_version(), "torch": torch.__version__, "transformers": transformers.__version__}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=BENCHES)
    parser.add_argument("--rounds", type=int, default=5, help="how often each contestant has its turn")
    parser.add_argument("--save", action="store_true", help="append the result to bench/results.jsonl")
    args = parser.parse_args()
    ratios, figures = BENCHES[args.name](args.rounds)
    width = max(map(len, figures))
    for name, value in figures.items():
        print(f"{name:{width}}  {value:>10,.{0 if value >= 100 else 1 if value >= 10 else 3}f}")
    result = dict(bench=args.name, ratios=ratios, figures=figures, hardware=hardware(), versions=versions())
    if args.save:
        path = ROOT / "bench" / "results.jsonl"
        path.parent.mkdir(exist_ok=True)
        with path.open("a") as file:
            file.write(json.dumps(result) + "\n")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
