"""
Compiles nanostories/kernels/*.cpp for this processor on first use (a second or two), and keeps the
libraries in a cache.

$ CXX="ccache g++" python train.py   # another compiler
$ CXX=none python train.py           # no kernels: PyTorch does everything, only slower
"""

import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch

from nanostories import files
from nanostories.kernels import cpu_features

SOURCES = Path(__file__).parent


@functools.cache
def library(name: str, **constants: int) -> ctypes.CDLL | None:
    """nanostories/kernels/<name>.cpp, compiled for this machine with these constants; None if that
    is not possible."""
    compiler = shlex.split(
        os.environ.get("CXX") or ("clang++" if platform.system() == "Darwin" else "g++")
    )
    if platform.system() not in ("Linux", "Darwin") or not shutil.which(compiler[0]):
        return None
    flags = [
        *cpu_features.compiler_flags(),
        *(f"-D{key}={value}" for key, value in constants.items()),
    ]
    try:
        return ctypes.CDLL(
            str(build(compiler, SOURCES / f"{name}.cpp", flags, files.cache_directory()))
        )
    except (
        OSError,
        subprocess.CalledProcessError,
    ):  # the cache cannot be written, or the compiler fails
        return None


def build(compiler: list[str], source: Path, flags: list[str], cache: Path) -> Path:
    """Compile `source` to a library in `cache`, once for each version of it, of the compiler and of
    the processor."""
    version = subprocess.run(
        [*compiler, "--version"], capture_output=True, text=True, check=True
    ).stdout
    text = "".join(
        path.read_text(encoding="utf-8") for path in [source, *sorted(source.parent.glob("*.h"))]
    )
    key = hashlib.sha256(
        repr((text, version, flags, cpu_features.cpu_flags())).encode()
    ).hexdigest()[:16]
    built = cache / f"{source.stem}-{key}.so"
    if not built.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as directory:
            compiled, linked = Path(directory, "compiled.o"), Path(directory, "linked.so")
            openmp = ["-Xclang", "-fopenmp"] if "Apple" in version else ["-fopenmp"]
            # No contraction: only fma() fuses, so every copy of a loop that the compiler makes
            # rounds its sums alike.
            flags = ["-O3", "-ffp-contract=off", *flags, "-std=c++17", "-fPIC", *openmp]
            subprocess.run(
                [*compiler, *flags, "-c", source, "-o", compiled], capture_output=True, check=True
            )
            # Linked without OpenMP, to use the threads that PyTorch has loaded, not a second team
            # beside them.
            unresolved = ["-undefined", "dynamic_lookup"] if platform.system() == "Darwin" else []
            subprocess.run(
                [*compiler, "-shared", *unresolved, compiled, "-o", linked],
                capture_output=True,
                check=True,
            )
            linked.replace(built)
    return built


def keep_freed_memory():
    """Tell glibc to keep freed memory. By default it returns large blocks to the system at once,
    and every step would fault in a gigabyte of fresh pages: 15% of its time, on two cores."""
    if platform.system() == "Linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
        libc.mallopt(M_MMAP_MAX, 0)
        libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def dtype_name(dtype: torch.dtype) -> str:
    """torch.bfloat16 -> "bfloat16", as in the names of the kernels' functions."""
    return str(dtype).removeprefix("torch.")


def pointer(x: torch.Tensor) -> ctypes.c_void_p:
    """Valid as long as x is alive: keep a name for it until the call is over."""
    return ctypes.c_void_p(x.data_ptr())
