"""How the benches measure: contestants alternate, in processes of their own where they could share
settings."""

import contextlib
import gc
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from tqdm import tqdm

from nanostories.device import set_up_device
from nanostories.kernels import cpu_features
from nanostories.training.run_directory import read_log

ROOT = Path(__file__).parent.parent
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def train(config: Path, settings: dict, **environment: str) -> list[dict]:
    """The log of a training by train.py, in a process of its own."""
    with tempfile.TemporaryDirectory() as directory:
        flags = (
            f"--{key}={value}"
            for key, value in (settings | dict(name="run", out_dir=directory)).items()
        )
        command = [sys.executable, ROOT / "train.py", config, *flags]
        subprocess.run(command, check=True, stdout=2, env=os.environ | environment)
        return read_log(Path(directory, "run", "log.csv"))


def peer_dtypes() -> list[torch.dtype]:
    """The types to try a peer in: those that the hardware has instructions for."""
    if DEVICE == "cuda" or cpu_features.multiplies_bfloat16():
        return [torch.float32, torch.bfloat16]
    print("peers in bfloat16 are skipped: this processor only emulates it", file=sys.stderr)
    return [torch.float32]


def alternating_medians(
    contestants: dict[str, Callable[[], None]], rounds: int
) -> dict[str, float]:
    """{name: median seconds}; contestants alternate, after one uncounted warm-up round."""
    bar = tqdm(range(rounds + 1), "rounds", leave=False, disable=None)
    _, *seconds = [
        {name: seconds_of(contestant) for name, contestant in contestants.items()} for _ in bar
    ]
    return {name: statistics.median(turn[name] for turn in seconds) for name in contestants}


def seconds_of(function: Callable[[], None]) -> float:
    gc.collect()
    start = time.perf_counter()
    function()
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def alternating_processes(makes: dict[str, Callable], argument, rounds: int) -> dict[str, float]:
    """Like alternating_medians, but each contestant has its own process, so that none runs with
    another's settings.

    makes: {name: function that, called in that process, returns the contestant, a function of
    `argument`}.
    """
    context, pipes = multiprocessing.get_context("spawn"), {}

    def run_once(name: str):
        pipes[name].send("go")
        pipes[name].recv()

    with contextlib.ExitStack() as stack:
        for name, make in makes.items():
            pipes[name], theirs = context.Pipe()
            process = context.Process(
                target=serve_turns, args=(make, argument, theirs), daemon=True
            )
            with (
                theirs
            ):  # closed in this process, so that a contestant that dies raises EOFError here
                process.start()
            stack.callback(
                process.join
            )  # so that its memory is free before anything else is measured
            stack.callback(process.terminate)
        return alternating_medians({name: partial(run_once, name) for name in makes}, rounds)


def serve_turns(make: Callable[[], Callable], argument, pipe):
    set_up_device(DEVICE)  # as train.py does for itself
    contestant = make()
    while pipe.recv():
        contestant(argument)
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        pipe.send("done")
