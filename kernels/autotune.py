"""
Which of several implementations is fastest on this machine: measured once, then remembered in a cache.

>>> fastest("attention of 16 x 512", {"kernel": ours, "pytorch": theirs})
'kernel'
"""

import contextlib
import functools
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import torch

from common.files import cache_directory, read_json, write_json
from kernels.cpu_features import cpu_flags, isa


def fastest(question: str, candidates: dict[str, Callable[[], object]], seconds: float = 0.01) -> str:
    """The name of the candidate that takes the least time, each at its best of a few alternating calls.

    Measured once for each machine, number of threads, version of PyTorch and `question`, then remembered, so that
    every run on this machine makes the same choice. `seconds`: how long each is measured.
    """
    machine = (isa(), cpu_flags(), torch.get_num_threads(), torch.__version__)
    key = hashlib.sha256(repr((question, sorted(candidates), machine)).encode()).hexdigest()[:16]
    path = cache_directory() / f"fastest-{key}.json"
    try:
        return winner(path)
    except ValueError:  # never measured here
        times = measure(candidates, seconds)
    content = dict(question=question, isa=isa(), threads=torch.get_num_threads(), seconds=times)
    own = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(own, content)
        with contextlib.suppress(FileExistsError):
            os.link(own, path)  # not replace: if two processes measure at once, both use the first one's result
        own.unlink()
        return winner(path)
    except (OSError, ValueError):  # the cache cannot be written: the next run measures again
        return min(times, key=times.get)


def winner(path: Path) -> str:
    times = read_json(path)["seconds"]
    return min(times, key=times.get)


def measure(candidates: dict[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """{name: the least seconds of one call}. One that is 10 times slower than another is not called again."""
    for candidate in candidates.values():
        candidate()  # the first call sets things up
    best = dict.fromkeys(candidates, float("inf"))
    spent = dict.fromkeys(candidates, 0.0)
    remaining, turn = list(candidates), 0
    while remaining:
        for name in remaining:
            start = perf_counter()
            candidates[name]()
            elapsed = perf_counter() - start
            best[name], spent[name] = min(best[name], elapsed), spent[name] + elapsed
        turn += 1
        hopeful = [name for name in remaining if best[name] < 10 * min(best.values())]
        remaining = [name for name in hopeful if spent[name] < seconds or turn < 3]  # a call may be disturbed
    return best


@functools.cache
def fast_dtype() -> torch.dtype:
    """bfloat16 where this processor multiplies it faster than float32: having instructions for it is not enough."""
    generator = torch.Generator().manual_seed(0)
    matrices = [torch.randn(512, 256, generator=generator), torch.randn(256, 512, generator=generator)]
    halves = [x.bfloat16() for x in matrices]
    products = dict(float32=lambda: matrices[0] @ matrices[1], bfloat16=lambda: halves[0] @ halves[1])
    return getattr(torch, fastest("product of 512 x 256 and 256 x 512", products))
