"""nanostories/kernels/cpu_features.py: a processor that passes for a lesser one does so
everywhere."""

import json
import os
import subprocess
import sys

import pytest
import torch
from conftest import ROOT

from nanostories.cli import UserError
from nanostories.kernels import compile_cpp, cpu_features

REPORT = """
import json, sys, torch
from nanostories.device import set_up_device
from nanostories.kernels import cpu_features
set_up_device("cpu")
from torch._inductor.cpu_vec_isa import pick_vec_isa
a = torch.ones(64, 64)
a @ a  # MKL says what it runs on
torch.nn.functional.linear(a.bfloat16(), a.bfloat16())  # and so does oneDNN
facts = [
    cpu_features.instruction_set().name,
    torch.backends.cpu.get_cpu_capability(),
    str(pick_vec_isa()).split()[0],
    str(cpu_features.fast_dtype()),
]
print(json.dumps(facts), file=sys.stderr)
"""


@pytest.fixture(autouse=True)
def forget_the_processor():
    cpu_features.instruction_set.cache_clear()
    yield
    cpu_features.instruction_set.cache_clear()


@pytest.mark.parametrize("used, n", [([9, 0, 1, 10, 20], 3), ([40] + [0] * 4, 1), ([0] * 5, 4)])
def test_threads_are_as_many_as_cores_are_free(monkeypatch, used, n):
    ticks = iter([torch.ones(5), torch.ones(5) + torch.tensor(used)])
    monkeypatch.setattr(cpu_features, "cpu_ticks", lambda: next(ticks))
    monkeypatch.setattr(cpu_features.os, "cpu_count", lambda: 4)
    monkeypatch.setattr(cpu_features, "DEFAULT_THREADS", 4)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert cpu_features.free_cores() == n


AVX2 = ["avx2", "fma3"]
ALL = [name for isa in cpu_features.X86 for name in isa.needs]
NATIVE = ["-march=native"]


@pytest.mark.parametrize(
    "has, name, flags",
    [
        ([], "x86_64", NATIVE),
        (AVX2, "avx2", NATIVE),
        ([*AVX2, "amx_bf16"], "avx2", NATIVE),  # a class needs all classes below it
        # The system refuses AMX: then kernels are not compiled for it, as by -march=native.
        (ALL, "avx512_bf16", cpu_features.X86[-2].compiler_flags),
    ],
)
def test_the_class_of_a_processor(monkeypatch, has, name, flags):
    monkeypatch.delenv("NANOSTORIES_ISA", raising=False)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: dict.fromkeys(has, True))
    monkeypatch.setattr(cpu_features.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(cpu_features, "ask_for_amx", lambda: False)
    isa = cpu_features.instruction_set()
    assert (isa.name, isa.compiler_flags) == (name, flags)


def test_a_processor_cannot_pass_for_a_better_one(monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: dict.fromkeys(AVX2, True))
    monkeypatch.setenv("NANOSTORIES_ISA", "amx")
    with pytest.raises(UserError, match="NANOSTORIES_ISA=amx: .* only native, avx2"):
        cpu_features.instruction_set()


def test_a_processor_passes_for_a_lesser_one_everywhere():
    """In our kernels, PyTorch, torch.compile, MKL and oneDNN. (On AMD MKL does not say which
    instructions it takes.)"""
    if cpu_features.instruction_set().name not in ("avx512", "avx512_bf16", "amx"):
        pytest.skip("this processor has nothing above AVX2")
    if compile_cpp.library("cpu_cross_entropy") is None:
        pytest.skip("no C++ compiler, without which torch.compile does not tell")
    environment = os.environ | dict(NANOSTORIES_ISA="avx2", MKL_VERBOSE="1", ONEDNN_VERBOSE="1")
    done = subprocess.run(
        [sys.executable, "-c", REPORT], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stderr.splitlines()[-1])
    assert facts == ["avx2", "AVX2", "avx2", "torch.float32"]
    said = done.stdout.lower()
    assert "_verbose" in said and "avx-512" not in said and "avx512" not in said
