"""
Which instructions this processor has (AVX2, AVX-512, AMX, NEON), and the compiler flags for them.

# as on a PC without AVX-512; or avx512, avx512_bf16, amx, native
$ NANOSTORIES_ISA=avx2 python train.py

That variable makes a processor act like a lesser one: for our kernels, PyTorch, oneDNN and MKL. So
every path can be tested and measured on one machine, and a user's bug reproduced on another.
"""

import ctypes
import functools
import os
import platform
import re
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch

from nanostories.cli import UserError


@dataclass(frozen=True)
class InstructionSet:
    """A class of x86 processors, by the instructions that matter here. Each class also has those of
    the classes before it."""

    name: str
    compiler_flags: list[str]
    needs: tuple[str, ...] = ()  # as torch.cpu.get_capabilities() calls them
    # Environment variables that limit PyTorch, oneDNN, MKL and torch.compile to these instructions.
    # These read them when they first compute: set_up_device (nanostories/device.py) sets them.
    limits: dict[str, str] = field(default_factory=dict)


AVX2_LIMITS = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "TORCHINDUCTOR_CPP_MARCH": "x86-64-v3",
}
AVX512_LIMITS = {
    "ATEN_CPU_CAPABILITY": "avx512",
    "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_VNNI",
    "MKL_ENABLE_INSTRUCTIONS": "AVX512",
    "TORCHINDUCTOR_CPP_MARCH": "x86-64-v4",
}
X86 = (
    InstructionSet(
        "avx2",
        compiler_flags=["-march=x86-64-v3"],
        needs=("avx2", "fma3"),
        limits=AVX2_LIMITS,
    ),
    InstructionSet(
        "avx512",
        compiler_flags=["-march=x86-64-v4"],
        needs=("avx512_f", "avx512_bw", "avx512_dq", "avx512_vl"),
        limits=AVX512_LIMITS,
    ),
    InstructionSet(
        "avx512_bf16",
        compiler_flags=["-march=x86-64-v4", "-mavx512bf16"],
        needs=("avx512_bf16",),
        limits=AVX512_LIMITS | {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"},
    ),
    InstructionSet("amx", compiler_flags=["-march=native"], needs=("amx_bf16",)),
)


@functools.cache
def instruction_set() -> InstructionSet:
    """This processor's class, or the lesser one that $NANOSTORIES_ISA names."""
    has = torch.cpu.get_capabilities()
    supported = {}
    for isa in X86:
        if not all(has.get(name) for name in isa.needs):
            break
        supported[isa.name] = isa
    wanted = os.environ.get("NANOSTORIES_ISA") or "native"
    if "amx" in supported and not ask_for_amx():
        del supported["amx"]
        if wanted == "native":  # -march=native would let the compiler emit AMX all the same
            wanted = "avx512_bf16"
    if wanted in supported:
        return supported[wanted]
    if wanted != "native":
        names = ", ".join(["native", *supported])
        raise UserError(f"NANOSTORIES_ISA={wanted}: this machine supports only {names}")
    machine = platform.machine()
    if machine in ("aarch64", "arm64"):
        return InstructionSet("neon", compiler_flags=["-mcpu=native"])
    name = list(supported)[-1] if supported else machine
    return InstructionSet(name, compiler_flags=["-march=native"])


def ask_for_amx() -> bool:
    """Linux gives a process the registers of AMX only if asked (arch_prctl, since 5.16)."""
    if platform.system() != "Linux":
        return True
    arch_prctl = 158  # the number of this system call, in Linux's table for x86-64
    request_permission = 0x1023  # ARCH_REQ_XCOMP_PERM
    tile_data = 18  # XFEATURE_XTILEDATA
    return ctypes.CDLL(None).syscall(arch_prctl, request_permission, tile_data) == 0


def cpu_info(key: str) -> str:
    """What /proc/cpuinfo says first of this key, a regular expression; where it says nothing, the
    processor's name."""
    path = Path("/proc/cpuinfo")
    text = path.read_text() if path.exists() else ""
    found = re.search(rf"^(?:{key})\s*: (.*)", text, re.MULTILINE)
    return found[1] if found else platform.processor()


def fast_dtype() -> torch.dtype:
    """The faster type for matrix products: bfloat16 with AMX, and on AMD's processors with
    AVX512-BF16; on Intel's without AMX it is no faster than float32, and elsewhere it is emulated
    (measured: LOG.md)."""
    fast = {"amx"}
    if cpu_info("vendor_id") == "AuthenticAMD":
        fast.add("avx512_bf16")
    return torch.bfloat16 if instruction_set().name in fast else torch.float32


# before load_backend changes it
DEFAULT_THREADS = torch.get_num_threads()


def free_cores() -> int:
    """How many cores nothing else uses now, at least 1, at most PyTorch's threads; on Linux, and
    unless OMP_NUM_THREADS says. Threads that share a core with other programs wait for one
    another: on a busy machine, fewer are faster (LOG.md)."""
    if "OMP_NUM_THREADS" in os.environ or not Path("/proc/stat").exists():
        return torch.get_num_threads()
    before = cpu_ticks()
    time.sleep(0.1)
    passed = cpu_ticks() - before
    if not passed.any():
        return DEFAULT_THREADS
    idle = passed[3:5].sum() / passed.sum()
    return max(1, min(DEFAULT_THREADS, round(os.cpu_count() * idle.item())))


def cpu_ticks():
    """Those of all cores since the machine started, (8,); the fourth and fifth are idle ones."""
    words = Path("/proc/stat").read_text().split()
    return torch.tensor([int(word) for word in words[1:9]])
