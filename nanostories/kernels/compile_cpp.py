"""
Compiles nanostories/kernels/*.cpp for this processor on first use (a second or two), and keeps the
libraries in a cache.

$ CXX=g++-13 python train.py   # another compiler
$ CXX=none python train.py     # no kernels: PyTorch does everything, only slower
"""

import ctypes
import functools
import hashlib
import os
import platform
import shlex
import subprocess
import tempfile
from pathlib import Path

import torch

from nanostories import files
from nanostories.kernels import cpu_features

SOURCES = Path(__file__).parent
IS_MAC = platform.system() == "Darwin"
# No contraction: only fma() fuses, so every copy of a loop that the compiler makes rounds its sums
# alike.
FLAGS = ["-std=c++17", "-O3", "-ffp-contract=off", "-fPIC"]


@functools.cache
def library(name: str, *flags: str) -> ctypes.CDLL | None:
    """nanostories/kernels/<name>.cpp, compiled for this machine with these further flags; None if
    that is not possible."""
    if os.name != "posix":
        return None
    compiler = shlex.split(os.environ.get("CXX") or ("clang++" if IS_MAC else "g++"))
    flags = [*FLAGS, *cpu_features.instruction_set().compiler_flags, *flags]
    try:
        built = build(compiler, SOURCES / f"{name}.cpp", flags, files.cache_directory())
        return ctypes.CDLL(str(built))
    except (OSError, subprocess.CalledProcessError):
        # there is no compiler, or it fails, or the cache cannot be written
        return None


def build(compiler: list[str], source: Path, flags: list[str], cache: Path) -> Path:
    """Compiles `source` to a library in `cache`, once for each version of it, of the compiler and
    of the processor, as other machines may share the cache in a home directory."""
    version = output_of([*compiler, "--version"])
    sources = [path.read_bytes() for path in [source, *sorted(source.parent.glob("*.h"))]]
    processor = cpu_features.cpu_info("flags|Features")
    facts = repr([sources, version, flags, processor])
    key = hashlib.sha256(facts.encode()).hexdigest()[:16]
    built = cache / f"{source.stem}-{key}.so"
    if built.exists():
        return built
    openmp = ["-Xclang", "-fopenmp"] if "Apple" in version else ["-fopenmp"]
    # Linked without OpenMP, to use the threads that PyTorch has loaded, not a second team beside
    # them.
    unresolved = ["-undefined", "dynamic_lookup"] if IS_MAC else []
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as directory:
        compiled = Path(directory, "compiled.o")
        linked = Path(directory, "linked.so")
        output_of([*compiler, *flags, *openmp, "-c", source, "-o", compiled])
        output_of([*compiler, "-shared", *unresolved, compiled, "-o", linked])
        linked.replace(built)
    return built


def output_of(command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def kernel(source, name, dtype):
    """The function of nanostories/kernels/<source>.cpp for tensors of this dtype, such as
    forward_bfloat16; None if it cannot be compiled, or does not take this dtype."""
    suffix = str(dtype).removeprefix("torch.")
    return getattr(library(source), f"{name}_{suffix}", None)


def has_kernel(source, name, dtype):
    return kernel(source, name, dtype) is not None


# torch.compile takes the answer as a constant: it cannot trace how kernels are built. (This is all
# that torch.compiler.assume_constant_result does, but that imports the compiler, which takes a
# second.)
has_kernel._dynamo_marked_constant = True


def call(function, *arguments):
    """Calls a kernel with long integers and with pointers to tensors."""
    function(*map(ctypes.c_int64, as_numbers(arguments)))


def struct(*fields):
    """A C++ struct of such fields. Its tensors must outlive it."""
    return torch.tensor(as_numbers(fields))


def as_numbers(values):
    return [x.data_ptr() if isinstance(x, torch.Tensor) else x for x in values]
