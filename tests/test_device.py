"""What this machine can do, and what a run does without a compiler or on another processor."""

import pytest
import torch
from torch._inductor import config as inductor_config

from nanostories.cli import UserError
from nanostories.device import (
    choose_dtype,
    environment,
    measured_flops,
    no_compile_reason,
    peak_flops,
    set_up_device,
)
from nanostories.kernels import cpu_features

CPU = torch.device("cpu")
GPU = torch.device("cuda")


@pytest.mark.parametrize(
    "name, local_rank",
    [("xla", None), ("gpu", None), ("cuda:x", None), ("mps", 0), ("cuda:1", 0), ("meta", None)],
)
def test_a_device_that_is_not_allowed_is_named(name, local_rank):
    with pytest.raises(UserError, match=f"device={name}: must be cpu or cuda"):
        set_up_device(name, local_rank)


def test_a_device_that_is_not_there_is_named():
    with pytest.raises(UserError, match="device 'cuda:99' cannot be used here"):
        set_up_device("cuda:99")


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
    assert reason
    assert "\n" not in reason
    assert "error: unsupported option -fopenmp" in reason
    torch.compiler.reset()


def test_the_dtype_is_the_fast_one(monkeypatch):
    for capability, dtype in (((9, 0), torch.bfloat16), ((7, 5), torch.float16)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, is_=capability: is_)
        assert choose_dtype("auto", GPU) == dtype
    assert choose_dtype("auto", CPU) == cpu_features.fast_dtype()
    assert choose_dtype("float32", CPU) == torch.float32


@pytest.mark.parametrize(
    "name, dtype, peak",
    [
        ("NVIDIA A100-SXM4-80GB", torch.bfloat16, 312e12),
        ("NVIDIA A100-SXM4-80GB", torch.float32, 156e12),  # TF32
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", torch.bfloat16, None),  # a slice of one
        ("NVIDIA GeForce RTX 4090", torch.float16, 165e12),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", torch.float16, None),
        ("Tesla T4", torch.float16, 65e12),
        ("Tesla T4", torch.float32, None),  # it has no TF32
        ("a GPU of tomorrow", torch.bfloat16, None),
    ],
)
def test_mfu_is_measured_against_the_data_sheet(monkeypatch, name, dtype, peak):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: name)
    assert peak_flops(GPU, dtype) == peak


def test_a_cpu_has_no_data_sheet_but_can_be_measured():
    assert peak_flops(CPU, torch.float32) is None
    assert 1e9 < measured_flops(CPU, torch.float32) < 1e14


def test_the_environment_of_a_run():
    facts = environment(CPU, torch.float16, 16, dropout=0.0, n_processes=2, no_compile="no g++")
    assert facts["device"].startswith("cpu (")
    assert facts["dtype"] == "float16"
    assert facts["attention"] == "scaled_dot_product_attention"
    assert facts["compiled"] == "no (no g++)"
    assert facts["processes"] == "2"
    assert all(isinstance(value, str) for value in facts.values())
