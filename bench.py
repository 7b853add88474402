"""
Every speed that the README states: ours and a peer's, alternating in one run, medians.

$ python bench.py sample           # generate() beside transformers.generate (pip install -r requirements-dev.txt)
$ python bench.py train            # a step of training beside transformers' GPTNeo, eager and compiled
$ python bench.py loss --rounds 3  # how soon each recipe reaches a loss; needs data/sample (README, "ten minutes")
$ python bench.py compressor --rounds 3    # memory and time of a step of compressor.py beside the plain model
$ python bench.py grade            # what 10,000 gradings take besides the judge's time
$ python bench.py rouge            # 500 texts and every training story, beside rouge-score-rs; takes ten minutes
$ python bench.py interpret --rounds 1  # seconds and memory of interpret.py, by stage, beside what it may take
$ python bench.py train --save     # and keep the result: bench/results.jsonl

The last line is a JSON object; its ratios are ours / peer, above 1 is better. Nothing else should run meanwhile.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import gc
import hashlib
import io
import itertools
import json
import math
import multiprocessing
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

import endpoint
import grade
import index
import interpret
import overlap
import prepare
import prompts
import sample
import stories
import train
from generate import generate
from model import GPTNeo, GPTNeoConfig
from prepare import load_meta, prepare_builtin
from runs import read_log, training_seconds
from sample import LocalStudent
from tokenizer import GPT2_VOCAB_SIZE, Tokenizer, cut

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


def peak_memory_here(function: Callable, directory: str | Path) -> float:
    function(directory)
    return peak_mib()


def peak_mib() -> float:
    """Of this process, so far."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**20
    return memory_mib("VmHWM")  # not getrusage: its maximum begins with that of the parent


def memory_mib(what: str) -> float:
    """Of this process: VmRSS now, VmHWM at the most so far."""
    return int(re.search(rf"{what}:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) / 2**10


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

# The 1M shape on a corpus of real stories. The peer has the best batch, learning rate and schedule of those in LOG.md.
LOSS_STEPS = 1600
LOSS_RUNS = {
    "adamw": dict(recipe="paper", learning_rate=6e-3, warmup_steps=40, warmdown=0.6),
    "paper": dict(recipe="paper"),
    "fast": dict(recipe="fast", max_steps=700, eval_interval=50),
}


def train_run(name: str, settings: dict, out_dir: str) -> list[tuple[float, float, int]]:
    """Trains in a process of its own -> (seconds of training, validation loss, tokens) at every evaluation."""
    defaults = dict(max_minutes=0, batch_size=4, max_steps=LOSS_STEPS, eval_interval=LOSS_STEPS, log_interval=50)
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


# ---- grade: 10,000 gradings by a judge who answers at once ----

RUNS, PROMPTS, COMPLETIONS, REPEATS = 5, 100, 10, 2
REPLY = dict(assessment="A story that hangs together, in simple words. It ends a little soon.", age_group="C")


class InstantJudge(endpoint.Endpoint):
    """Another reply to each question, without a network."""

    async def ask(self, model: str, text: str, response_format: dict) -> endpoint.Reply:
        scores = {name: (len(text) + place) % 11 for place, name in enumerate(grade.scoreboard.SCORES)}
        return endpoint.Reply(json.dumps(REPLY | scores), None, 500, 60)


def write_samples(out: Path):
    """RUNS runs that exchange the endings of the built-in stories."""
    texts = [story.text for story in stories.stories(PROMPTS + RUNS * COMPLETIONS)]
    pieces = [prompts.cut_story(text, 0.5) for text in texts]
    for run in range(RUNS):
        rows = [
            dict(prompt_index=i, sample_index=j, prompt=pieces[i].text, reference=pieces[i].reference, finished=True)
            | dict(completion=pieces[i + run * COMPLETIONS + j].reference)
            for i in range(PROMPTS)
            for j in range(COMPLETIONS)
        ]
        sample.write_rows(out / f"run{run}" / "samples.jsonl", rows)


def grade_at_once(directory: str) -> dict[str, float]:
    """Everything that grade.py does but wait: seconds of each part, MiB that it added at the most."""
    os.chdir(directory)
    write_samples(Path("out"))
    args = grade.parse_arguments(f"out --judge instant --base-url http://localhost --repeats {REPEATS}".split())
    before, start, figures = memory_mib("VmRSS"), time.perf_counter(), {}

    def lap(name: str):
        figures[name] = time.perf_counter() - start - sum(figures.values())

    runs, common = grade.read_runs(args.directories)
    ledgers = {run.name: grade.Ledger(run.directory / "grades.jsonl") for run in runs}
    gradings = grade.plan(runs, {}, ledgers, args)
    lap("read and plan")
    judge = InstantJudge(args.base_url, endpoint.Bill(), endpoint.Patience())
    asyncio.run(grade.grade_all(gradings, judge, args.concurrency))
    lap("parse and append")
    for run in runs:
        grade.Ledger(run.directory / "grades.jsonl")
    lap("read again")
    kinds = grade.controls([ending for run in runs for ending in run.true_endings])
    with contextlib.redirect_stdout(io.StringIO()):
        grade.conclude(runs, kinds, gradings, common, args)
    lap("aggregate, table and plot")
    return dict(gradings=len(gradings)) | figures | dict(mib=memory_mib("VmHWM") - before)


def bench_grade(rounds: int) -> tuple[dict, dict]:
    """Each round in a process of its own."""
    results = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as directory, multiprocessing.get_context("spawn").Pool(1) as pool:
            results.append(pool.apply(grade_at_once, (directory,)))
    medians = {name: statistics.median(result[name] for result in results) for name in results[0]}
    n, mib = medians.pop("gradings"), medians.pop("mib")
    figures = {f"{name}, ms each": 1000 * seconds / n for name, seconds in medians.items()}
    figures |= {"all, ms each": sum(figures.values()), "gradings": n, "memory added, MiB": mib}
    return {}, figures


# ---- rouge: the nearest of all training stories, beside rouge-score-rs ----

N_TEXTS, N_STORIES, GROWTH = 500, 100_000, (10_000, 100_000, 1_000_000)


def write_first_stories(source: Path, directory: Path, n: int):
    """The corpus with the first n training stories alone."""
    meta, tokens = prepare.load_meta(source), prepare.load_tokens(source, "train")
    tokens = tokens[: np.flatnonzero(tokens == len(meta["gpt2_ids"]))[n - 1] + 1]
    facts = dict(stories=n, tokens=len(tokens), sha256=hashlib.sha256(tokens).hexdigest())
    meta["splits"]["train"] |= facts
    directory.mkdir()
    tokens.tofile(directory / "train.bin")
    shutil.copy(source / "val.bin", directory)
    (directory / "meta.json").write_text(json.dumps(meta))


def held_out_endings(directory: Path) -> list[str]:
    return [prompt.reference for prompt in sample.evaluation_prompts(directory, N_TEXTS, cut=0.5)]


def find_nearest(stories: index.Stories, texts: list[str]) -> np.ndarray:
    return overlap.search(stories.encode(texts), stories.stream, k=2, counting="clipped").f


def build_words(directory: Path) -> index.Stories:
    shutil.rmtree(directory / "words", ignore_errors=True)
    return index.open_stories(directory)


def race(directory: Path, rounds: int) -> dict[str, float]:
    """Pairs a second. The peer gets a sample of the pairs, in both of the ways that it has for many."""
    from rouge_score_rs.rouge_scorer import RougeScorer  # a peer, not a dependency

    scorer = RougeScorer(["rouge2"])
    stories, texts = build_words(directory), held_out_endings(directory)
    few = [stories.text(i) for i in range(400)]
    pairs = list(zip(*((story, text) for text in texts for story in few)))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        contestants = {
            "ours": lambda: find_nearest(stories, texts),
            "building": lambda: build_words(directory),
            "rouge-score-rs, score_batch": lambda: scorer.score_batch(*pairs),
            "rouge-score-rs, score_multi": lambda: list(pool.map(partial(scorer.score_multi, few), texts)),
        }
        seconds = alternating_medians(contestants, rounds)
        theirs = [best["rouge2"].fmeasure for best in pool.map(partial(scorer.score_multi, few), texts)]
    first = dataclasses.replace(stories.stream, starts=stories.stream.starts[:400], ends=stories.stream.ends[:400])
    assert np.allclose(find_nearest(dataclasses.replace(stories, stream=first), texts), theirs, rtol=0, atol=1e-12)
    building = seconds.pop("building")
    rates = {name: len(texts) * (len(stories) if name == "ours" else len(few)) / t for name, t in seconds.items()}
    return rates | {"ours, building included": len(texts) * len(stories) / (seconds["ours"] + building)}


def growth(directory: Path) -> dict[str, float]:
    """What it takes to build and to read these stories' words, in a process of its own."""
    figures = {}

    def everything(directory: Path):
        start = time.perf_counter()
        build_words(directory)
        built = time.perf_counter()
        stories, texts = index.open_stories(directory), held_out_endings(directory)
        opened = time.perf_counter()
        find_nearest(stories, texts)
        moments = dict(build=built - start, open=opened - built, search=time.perf_counter() - opened)
        figures.update({f"{what}, seconds": value for what, value in moments.items()})

    figures["peak MiB"] = peak_memory_here(everything, directory)
    return figures | {"words on disk, MB": sum(path.stat().st_size for path in (directory / "words").iterdir()) / 1e6}


def bench_rouge(rounds: int) -> tuple[dict, dict]:
    """Built-in stories; the texts are second halves of held-out ones."""
    figures = {}
    with tempfile.TemporaryDirectory() as temporary:
        source = prepare.prepare_builtin(temporary, GROWTH[-1] + 3000, val_share=0.002, name="all")
        for n in GROWTH:
            write_first_stories(source, Path(temporary, f"{n}"), n)
        rates = race(Path(temporary, f"{N_STORIES}"), rounds)
        for n in GROWTH:
            with multiprocessing.get_context("spawn").Pool(1) as process:
                grown = process.apply(growth, (Path(temporary, f"{n}"),))
            figures |= {f"{n:,} stories: {what}": value for what, value in grown.items()}
    peer = max(rate for name, rate in rates.items() if name.startswith("rouge-score-rs"))
    ratios = {"rouge-score-rs": rates["ours"] / peer}
    ratios["rouge-score-rs_building_included"] = rates["ours, building included"] / peer
    return ratios, {f"{name}, pairs/s": rate for name, rate in rates.items()} | figures


# ---- interpret: all that interpret.py does, beside its limits ----

INTERPRET_SHAPE = dict(block_size=512, n_layer=12, n_head=4, n_embd=512)
INTERPRET_LIMITS = dict(seconds=180, MiB=4096)


class Stages(interpret.Stopwatch):
    """Seconds of each stage, and its peak memory in MiB."""

    def __init__(self):
        super().__init__()
        self.peaks = {}

    @contextlib.contextmanager
    def __call__(self, stage: str):
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        else:
            Path("/proc/self/clear_refs").write_text("5")  # Linux: the peak is counted anew
        with super().__call__(stage):
            yield
        self.peaks[stage] = max(peak_mib(), self.peaks.get(stage, 0))


def interpret_here(corpus: str, out_dir: str) -> tuple[dict, dict]:
    """interpret.py on a model of random weights -> seconds and MiB of each stage."""
    train.native.keep_freed_memory()
    tokenizer = Tokenizer(load_meta(corpus)["gpt2_ids"])
    torch.manual_seed(0)
    model = GPTNeo(GPTNeoConfig(vocab_size=tokenizer.vocab_size, **INTERPRET_SHAPE)).eval()
    student = LocalStudent(model.to("cuda" if torch.cuda.is_available() else "cpu"), tokenizer, [tokenizer.end_of_text])
    args, stages = argparse.Namespace(text=None, layer=None, head=None, ablate=None), Stages()
    with contextlib.redirect_stdout(sys.stderr):  # stdout is for our table
        texts = interpret.validation_texts(Path(corpus), 200)
        interpret.interpret(Path(out_dir), "random weights", student, texts, args, stages)
    return stages.seconds, stages.peaks


def bench_interpret(rounds: int) -> tuple[dict, dict]:
    """512 x 12 layers x 4 heads, 200 validation stories: real ones, if data/sample is there (README, "ten minutes")."""
    seconds, peaks = [], []
    with tempfile.TemporaryDirectory() as directory:
        corpus = ROOT / "data" / "sample"
        if not corpus.exists():
            corpus = prepare_builtin(directory, n_stories=5000, vocab_size=10_000)
        for _ in range(rounds):
            with multiprocessing.get_context("spawn").Pool(1) as pool:  # a process of its own, for its peak
                results = pool.apply(interpret_here, (str(corpus), directory))
            seconds.append(results[0])
            peaks.append(results[1])
    figures = {f"{stage}, seconds": statistics.median(each[stage] for each in seconds) for stage in seconds[0]}
    figures |= {f"{stage}, peak MiB": statistics.median(each[stage] for each in peaks) for stage in peaks[0]}
    total = figures["all, seconds"] = statistics.median(sum(each.values()) for each in seconds)
    peak = figures["all, peak MiB"] = max(max(each.values()) for each in peaks)
    return dict(time=INTERPRET_LIMITS["seconds"] / total, memory=INTERPRET_LIMITS["MiB"] / peak), figures


# ---- The command line ----

BENCHES = {
    "sample": bench_sample,
    "train": bench_train,
    "compressor": bench_compressor,
    "loss": bench_loss,
    "grade": bench_grade,
    "rouge": bench_rouge,
    "interpret": bench_interpret,
}


def hardware() -> str:
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    names = [line.split(": ")[1] for line in info.splitlines() if line.startswith("model name")]
    units = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if f" {flag} " in info.replace("\n", " ")]
    return f"{os.cpu_count()} cores, {names[0] if names else platform.processor()} ({' '.join(units)})"


def versions() -> dict[str, str]:
    peers = ("transformers", "rouge-score-rs")
    return {"python": platform.python_version(), "torch": torch.__version__} | {name: version(name) for name in peers}


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
