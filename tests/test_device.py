"""What this machine can do, and what a run does without a compiler or on another processor."""

import pytest
import torch
from torch._inductor import config as inductor_config

from nanostories.device import choose_dtype, no_compile_reason
from nanostories.kernels import cpu_features


def test_a_compiler_without_openmp_is_named_and_done_without(tmp_path, monkeypatch):
    """As Apple's: inductor finds it, and fails at the first step."""
    if no_compile_reason(torch.device("cpu")):
        pytest.skip("needs a compiler that can, to take from it what it can")
    compiler = tmp_path / "g++"
    refuse = 'case "$*" in *fopenmp*) echo "error: unsupported option -fopenmp" >&2; exit 1;; esac'
    compiler.write_text(f'#!/bin/sh\n{refuse}\nexec g++ "$@"\n')
    compiler.chmod(0o755)
    torch.compiler.reset()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    with inductor_config.patch({"cpp.cxx": (str(compiler),)}):
        reason = no_compile_reason(torch.device("cpu"))
    assert reason and "\n" not in reason and "error: unsupported option -fopenmp" in reason
    torch.compiler.reset()


def test_the_dtype_is_the_fast_one(monkeypatch):
    for capability, dtype in (((9, 0), torch.bfloat16), ((7, 5), torch.float16)):
        monkeypatch.setattr(
            torch.cuda, "get_device_capability", lambda device, capability=capability: capability
        )
        assert choose_dtype("auto", torch.device("cuda")) == dtype
    assert choose_dtype("auto", torch.device("cpu")) == cpu_features.fast_dtype()
    assert choose_dtype("float32", torch.device("cpu")) == torch.float32
