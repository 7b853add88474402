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


@pytest.mark.parametrize(
    "has, name",
    [
        ([], "x86_64"),
        (["avx2", "fma3"], "avx2"),
        (["avx2", "fma3", "avx512_f", "avx512_bw", "avx512_dq", "avx512_vl"], "avx512"),
        (["avx2", "fma3", "amx_bf16"], "avx2"),  # classes below amx are missing
    ],
)
def test_a_class_needs_all_classes_below_it(monkeypatch, has, name):
    monkeypatch.delenv("NANOSTORIES_ISA", raising=False)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: dict.fromkeys(has, True))
    monkeypatch.setattr(cpu_features.platform, "machine", lambda: "x86_64")
    assert cpu_features.instruction_set().name == name
    assert cpu_features.instruction_set().compiler_flags == ["-march=native"]


def test_a_system_that_refuses_amx_leaves_the_class_below(monkeypatch):
    """And kernels are not compiled for it, as `-march=native` would."""
    monkeypatch.delenv("NANOSTORIES_ISA", raising=False)
    needed = [name for isa in cpu_features.X86 for name in isa.needs]
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: dict.fromkeys(needed, True))
    monkeypatch.setattr(cpu_features, "ask_for_amx", lambda: False)
    assert cpu_features.instruction_set() == cpu_features.X86[-2]


def test_a_processor_cannot_pass_for_a_better_one(monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True, "fma3": True})
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
