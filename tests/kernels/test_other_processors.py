"""kernels/*.cpp on other processors than this one: the same numbers come out of every width of registers."""

import platform
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from kernels import compile_cpp, cpu_features

KERNELS = {
    "cpu_attention": ["-DATTENTION", "-DHEAD_WIDTH=6"],
    "cpu_cross_entropy": ["-DLOSS"],
    "decode_step": ["-DDECODE"],
}
AARCH64_COMPILER, AARCH64_EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
needs_x86 = pytest.mark.skipif(platform.machine() != "x86_64" or not shutil.which("g++"), reason="needs g++ on x86")


def outputs(directory: Path, compiler: str, flags: list[str], kernel: str, dtype: str, run=()) -> np.ndarray:
    """What kernel_outputs.cpp prints, compiled so."""
    program = directory / f"{kernel}-{abs(hash(tuple(flags)))}"
    if not program.exists():
        source = Path(__file__).parent / "kernel_outputs.cpp"
        command = [
            compiler,
            "-O3",
            "-ffp-contract=off",
            "-std=c++17",
            *flags,
            *KERNELS[kernel],
            "-I",
            compile_cpp.SOURCES,
            source,
            "-o",
            program,
        ]
        subprocess.run(command, check=True)
    arguments = ["bfloat16"] if dtype == "bfloat16" else []
    printed = subprocess.run([*run, program, *arguments], capture_output=True, text=True, check=True).stdout
    return np.array(printed.split(), dtype=np.float64)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("kernels")


def assert_same(ours: np.ndarray, reference: np.ndarray, dtype: str):
    """Up to the order of sums; in bfloat16 to its rounding."""
    assert np.isfinite(reference).all() and len(reference) > 500
    error = np.linalg.norm(ours - reference) / np.linalg.norm(reference)
    assert error < (1e-5 if dtype == "float32" else 1e-2)


@needs_x86
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("isa", ["avx2", "avx512", "avx512_bf16"])
def test_every_class_of_x86_computes_the_same(directory, isa, kernel, dtype):
    """Beside plain x86-64, whose registers hold four floats."""
    known = {isa.name: isa for isa in cpu_features.X86}
    here = cpu_features.detected()
    if here is None or cpu_features.X86.index(known[isa]) > cpu_features.X86.index(here):
        pytest.skip(f"this processor has no {isa}")
    reference = outputs(directory, "g++", ["-march=x86-64"], kernel, dtype)
    assert_same(outputs(directory, "g++", list(known[isa].compiler_flags), kernel, dtype), reference, dtype)


@needs_x86
@pytest.mark.skipif(
    not (shutil.which(AARCH64_COMPILER) and shutil.which(AARCH64_EMULATOR)),
    reason=f"needs {AARCH64_COMPILER} and {AARCH64_EMULATOR} (Debian: g++-aarch64-linux-gnu, qemu-user)",
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_arm_computes_the_same(directory, kernel, dtype):
    """NEON, as Macs, Raspberry Pis and many servers have it, emulated."""
    ours = outputs(directory, AARCH64_COMPILER, ["-static"], kernel, dtype, run=[AARCH64_EMULATOR])
    assert_same(ours, outputs(directory, "g++", ["-march=x86-64"], kernel, dtype), dtype)
