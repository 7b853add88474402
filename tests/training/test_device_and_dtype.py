"""What this machine can do, and what a run does without a compiler or on another processor."""

import os
import subprocess
import sys

import pytest
import torch
from conftest import ROOT

from checkpoints.checkpoint import load_checkpoint
from kernels import autotune
from train import train
from training.config import TrainConfig
from training.device_and_dtype import choose_dtype, no_compile_reason, peak_flops


def test_a_compiler_that_cannot_is_named_and_done_without(tmp_path):
    """As Apple's, which has no OpenMP: inductor finds it, and fails at the first step."""
    if no_compile_reason(torch.device("cpu")):
        pytest.skip("needs a compiler that can, to take from it what it can")
    compiler = tmp_path / "g++"
    refuse = 'case "$*" in *fopenmp*) echo "error: unsupported option -fopenmp" >&2; exit 1;; esac'
    compiler.write_text(f'#!/bin/sh\n{refuse}\nexec g++ "$@"\n')
    compiler.chmod(0o755)
    code = "import torch\nfrom training.device_and_dtype import no_compile_reason\n"
    code += "print(no_compile_reason(torch.device('cpu')))"
    environment = os.environ | dict(CXX=str(compiler), TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "cache"))
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.stdout.count("\n") == 1 and "error: unsupported option -fopenmp" in done.stdout


def test_a_run_goes_on_in_the_type_that_was_measured_when_it_began(config, monkeypatch, capsys):
    config |= dict(dtype="auto", optimizer="muon")
    for n_steps, measured in ((10, torch.bfloat16), (20, torch.float32)):
        monkeypatch.setattr(autotune, "fast_dtype", lambda measured=measured: measured)
        run, _ = train(TrainConfig(**config | dict(max_steps=n_steps)), resume=n_steps > 10)
        assert ", bfloat16; " in capsys.readouterr().out
        assert load_checkpoint(run / "ckpt.pt")["fast_dtype"] == "bfloat16"


def test_what_the_machine_is_asked(monkeypatch):
    cpu = torch.device("cpu")
    for dtype in (torch.bfloat16, torch.float32):
        monkeypatch.setattr(autotune, "fast_dtype", lambda dtype=dtype: dtype)
        assert choose_dtype("auto", cpu) == dtype
    assert choose_dtype("float32", cpu) == torch.float32
    for capability, dtype in (((9, 0), torch.bfloat16), ((7, 5), torch.float16)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, capability=capability: capability)
        assert choose_dtype("auto", torch.device("cuda")) == dtype
    assert 1e8 < peak_flops(cpu, torch.float32) < 1e14
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert no_compile_reason(cpu) == "no C++ compiler (no-such-compiler) found"


@pytest.mark.parametrize(
    "name, teraflops",
    [
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA A100-SXM4-40GB", 312),
        ("NVIDIA A100 80GB PCIe", 312),
        ("NVIDIA A10", 125),
        ("NVIDIA A10G", 70),
        ("Tesla T4", 65),
        ("Tesla V100-SXM2-16GB", 125),
        ("NVIDIA GeForce RTX 4090", 165),
    ],
)
def test_peaks_of_known_gpus(monkeypatch, name, teraflops):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    assert peak_flops(torch.device("cuda"), torch.bfloat16) == teraflops * 1e12


@pytest.mark.parametrize("name", ["NVIDIA RTX A1000", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA L400", "RTX 4090 D"])
def test_a_gpu_that_is_only_called_alike_is_measured(monkeypatch, name):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    monkeypatch.setattr(torch, "randn", lambda *shape, device: 1 / 0)  # where measuring begins
    with pytest.raises(ZeroDivisionError):
        peak_flops(torch.device("cuda"), torch.bfloat16)
