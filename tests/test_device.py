"""What this machine can do, and what a run does without a compiler or on another processor."""

import pytest
import torch
from torch._inductor import config as inductor_config

from nanostories.cli import UserError
from nanostories.device import choose_dtype, no_compile_reason, peak_flops, set_up_device

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    "name, local_rank, word",
    [("cuda:x", None, "cannot"), ("cuda:1", 0, "must be"), ("cuda:99", None, "cannot")],
)
def test_a_device_that_cannot_be_used_is_named(name, local_rank, word):
    with pytest.raises(UserError, match=f"device.{{1,2}}{name}.*{word}"):
        set_up_device(name, local_rank)


def test_a_compiler_without_openmp_is_named_and_done_without(tmp_path, monkeypatch):
    """As Apple's: inductor finds it, and fails at the first step."""
    if no_compile_reason(CPU):
        pytest.skip("needs a compiler that can, to take from it what it can")
    compiler = tmp_path / "g++"
    refuse = 'case "$*" in *fopenmp*) echo "error: unsupported option -fopenmp" >&2; exit 1;; esac'
    compiler.write_text(f'#!/bin/sh\n{refuse}\nexec g++ "$@"\n')
    compiler.chmod(0o755)
    torch.compiler.reset()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    with inductor_config.patch({"cpp.cxx": (str(compiler),)}):
        reason = no_compile_reason(CPU)
    assert "error: unsupported option -fopenmp" in reason and "\n" not in reason
    torch.compiler.reset()


def test_a_gpu_without_bfloat16_takes_float16(monkeypatch):
    capabilities = iter([(8, 0), (7, 5)])
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: next(capabilities))
    assert choose_dtype("auto", torch.device("cuda")) == torch.bfloat16
    assert choose_dtype("auto", torch.device("cuda")) == torch.float16


@pytest.mark.parametrize(
    "name, dtype, peak",
    [
        ("NVIDIA A100-SXM4-80GB", torch.bfloat16, 312e12),
        ("NVIDIA A100-SXM4-80GB", torch.float32, None),  # half precision's would not be its peak
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", torch.bfloat16, None),  # a slice of one
        ("Tesla T4", torch.float16, 65e12),
    ],
)
def test_mfu_is_measured_against_the_data_sheet(monkeypatch, name, dtype, peak):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: name)
    assert peak_flops(torch.device("cuda"), dtype) == peak
