"""
What the benches measure with: turns, processes of their own, memory.
"""

import contextlib
import gc
import multiprocessing
import re
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import torch
from tqdm import tqdm

from kernels import autotune, cpu_features

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def fast_dtype() -> torch.dtype:
    """What we multiply in: bfloat16, or float32 where that is faster."""
    return torch.bfloat16 if DEVICE == "cuda" else autotune.fast_dtype()


def peer_dtypes() -> list[torch.dtype]:
    """What a peer is tried in: all that the hardware has instructions for."""
    if DEVICE == "cuda" or cpu_features.multiplies_bfloat16():
        return [torch.float32, torch.bfloat16]
    print("peers in bfloat16 are left out: this processor only emulates it", file=sys.stderr)
    return [torch.float32]


def medians(results: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(result[name] for result in results) for name in results[0]}


def alternating_medians(contestants: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """Seconds that each takes, by turns, after one turn that is not counted."""
    turns = tqdm(range(rounds + 1), "rounds", leave=False, disable=None)
    return medians([{name: seconds_of(contestant) for name, contestant in contestants.items()} for _ in turns][1:])


def seconds_of(function: Callable[[], None]) -> float:
    gc.collect()
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def alternating_processes(makes: dict[str, Callable], argument, rounds: int) -> tuple[dict, dict]:
    """As alternating_medians, each contestant in a process of its own, so that none runs under another's settings.

    makes: what makes a contestant, a function of `argument`, in its process. -> (seconds, peak MiB)
    """
    context, pipes, peaks = multiprocessing.get_context("spawn"), {}, {}

    def take_turn(name: str):
        pipes[name].send("go")
        peaks[name] = pipes[name].recv()

    with contextlib.ExitStack() as stack:
        for name, make in makes.items():
            pipes[name], theirs = context.Pipe()
            process = context.Process(target=take_turns, args=(make, argument, theirs), daemon=True)
            with theirs:  # closed here once it is there: where a contestant fails, we hear it
                process.start()
            stack.callback(process.join)  # so that it is gone, and its memory, before anything else is measured
            stack.callback(process.terminate)
        return alternating_medians({name: partial(take_turn, name) for name in makes}, rounds), peaks


def take_turns(make: Callable[[], Callable], argument, pipe):
    contestant = make()
    while pipe.recv():
        contestant(argument)
        pipe.send(peak_mib())


def alone(function: Callable, *args):
    """What it returns, from a process of its own: its peak memory is then its own, too."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(function, *args).result()


def peak_mib() -> float:
    """Of this process, so far: of the GPU, or everything that it imports included."""
    if DEVICE == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    return memory_mib("VmHWM")  # not getrusage: its maximum begins with that of the parent


def memory_mib(what: str) -> float:
    """Of this process: VmRSS now, VmHWM at the most so far."""
    return int(re.search(rf"{what}:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) / 2**10
