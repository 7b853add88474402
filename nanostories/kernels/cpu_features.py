"""
Which instructions this processor has (AVX2, AVX-512, AMX, NEON), and the compiler flags for them.

# as on a PC without AVX-512; or avx512, avx512_bf16, amx, native
$ NANOSTORIES_ISA=avx2 python train.py

That variable makes a processor act like a lesser one: for our kernels, PyTorch, oneDNN and MKL. So
every path can be tested and measured on one machine, and a user's bug reproduced on another.
"""

import itertools
import os
import platform
import time
from pathlib import Path
from typing import NamedTuple

import torch

# Environment variables that limit PyTorch, oneDNN, MKL and torch.compile to an instruction set
LIBRARIES = (
    "ATEN_CPU_CAPABILITY",
    "ONEDNN_MAX_CPU_ISA",
    "MKL_ENABLE_INSTRUCTIONS",
    "TORCHINDUCTOR_CPP_MARCH",
)


class ISA(NamedTuple):
    """A class of x86 processors, by the instructions that matter here; each also has those of the
    classes before it."""

    name: str
    needs: str  # as torch.cpu.get_capabilities calls them
    compiler_flags: str
    limits: tuple[str, ...] = ()  # values of LIBRARIES


X86 = (
    ISA("avx2", "avx2 fma3", "-march=x86-64-v3", ("avx2", "AVX2", "AVX2", "x86-64-v3")),
    ISA(
        "avx512",
        "avx512_f avx512_bw avx512_dq avx512_vl",
        "-march=x86-64-v4",
        ("avx512", "AVX512_CORE_VNNI", "AVX512", "x86-64-v4"),
    ),
    ISA(
        "avx512_bf16",
        "avx512_bf16",
        "-march=x86-64-v4 -mavx512bf16",
        ("avx512", "AVX512_CORE_BF16", "AVX512", "x86-64-v4"),
    ),
    ISA("amx", "amx_bf16", "-march=native"),
)
ISA_VARIABLE = "NANOSTORIES_ISA"


def detected() -> ISA | None:
    """The highest class whose instructions, and those of all classes below it, this processor
    has."""
    has = torch.cpu.get_capabilities()
    found = [*itertools.takewhile(lambda isa: all(map(has.get, isa.needs.split())), X86)]
    return found[-1] if found else None


def _chosen(wanted: str) -> ISA | None:
    """The class that $NANOSTORIES_ISA names; None: everything that the processor has."""
    if wanted in ("", "native"):
        return None
    possible = {isa.name: isa for isa in X86[: X86.index(here) + 1]} if (here := detected()) else {}
    if wanted not in possible:
        raise SystemExit(
            f"{ISA_VARIABLE}={wanted}: this processor supports only"
            f" {', '.join(['native', *possible])}"
        )
    return possible[wanted]


LIMIT = _chosen(os.environ.get(ISA_VARIABLE, ""))
if LIMIT:  # the libraries read these when they first compute
    os.environ.update(zip(LIBRARIES, LIMIT.limits))


def isa() -> str:
    """The processor's class, or the one it is limited to: avx2 to amx, as in X86, or neon; else its
    architecture."""
    if known := LIMIT or detected():
        return known.name
    return "neon" if platform.machine() in ("aarch64", "arm64") else platform.machine()


def compiler_flags() -> list[str]:
    """For the kernels: everything that the processor has, or is limited to."""
    if LIMIT:
        return LIMIT.compiler_flags.split()
    return ["-mcpu=native" if isa() == "neon" else "-march=native"]


def _cpuinfo() -> str:
    info = Path("/proc/cpuinfo")
    return info.read_text() if info.exists() else platform.processor()


def cpu_flags() -> str:
    """The instructions that `native` means on this machine: others may share the cache in a home
    directory."""
    lines = _cpuinfo().splitlines() or [""]
    return next((line for line in lines if line.startswith(("flags", "Features"))), lines[0])


def fast_dtype() -> torch.dtype:
    """The faster type for matrix products: bfloat16 with AMX, and on AMD's processors with
    AVX512-BF16; on Intel's without AMX it is no faster than float32, and elsewhere it is emulated
    (measured: LOG.md)."""
    fast = isa() == "amx" or isa() == "avx512_bf16" and "AuthenticAMD" in _cpuinfo()
    return torch.bfloat16 if fast else torch.float32


def multiplies_bfloat16() -> bool:
    """Whether there are instructions for it, fast or not; otherwise it is emulated, many times
    slower."""
    return isa() in ("avx512_bf16", "amx")


THREADS = torch.get_num_threads()


def free_cores() -> int:
    """How many cores nothing else uses now, from 1 to PyTorch's first number of threads; on Linux,
    and unless OMP_NUM_THREADS says. Threads that share a core with other programs wait for one
    another: on a busy machine, fewer are faster (LOG.md)."""
    if "OMP_NUM_THREADS" in os.environ or not (before := _ticks()):
        return torch.get_num_threads()
    time.sleep(0.1)
    used = [after - ticks for after, ticks in zip(_ticks(), before)]
    free = (os.cpu_count() or 1) * sum(used[3:5]) / sum(used) if any(used) else THREADS
    return max(1, min(THREADS, round(free)))


def _ticks() -> list[int]:
    """Of all cores since the machine started; the fourth and fifth are of idle ones. Empty where
    that is not known."""
    stat = Path("/proc/stat")
    return (
        [int(ticks) for ticks in stat.read_text().splitlines()[0].split()[1:9]]
        if stat.exists()
        else []
    )


def hardware() -> str:
    """The name of this machine in benches/results.jsonl and in reports."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    names = [
        line.split(": ")[1] for line in _cpuinfo().splitlines() if line.startswith("model name")
    ]
    return f"{os.cpu_count()} cores, {names[0] if names else platform.processor()}, as {isa()}"
