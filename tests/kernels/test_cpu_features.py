"""nanostories/kernels/cpu_features.py: a processor that passes for a lesser one does so
everywhere."""

import json
import os
import subprocess
import sys

import pytest
from conftest import ROOT

from nanostories.kernels import cpu_features

REPORT = """
import json, sys, torch
from nanostories.kernels import cpu_features
from torch._inductor.cpu_vec_isa import pick_vec_isa
a = torch.ones(64, 64)
a @ a  # MKL says what it runs on
torch.nn.functional.linear(a.bfloat16(), a.bfloat16())  # and so does oneDNN
facts = cpu_features.isa(), torch.backends.cpu.get_cpu_capability(), str(pick_vec_isa()), str(cpu_features.fast_dtype())
print(json.dumps(facts), file=sys.stderr)
"""  # noqa: E501


def test_threads_are_as_many_as_cores_are_free(monkeypatch):
    for used, n in (
        ([0, 0, 0, 40, 0], 4),
        ([19, 0, 1, 15, 5], 2),
        ([40, 0, 0, 0, 0], 1),
        ([0] * 5, 4),
    ):
        ticks = iter(([1] * 5, [1 + ticks for ticks in used]))
        monkeypatch.setattr(cpu_features, "_ticks", lambda ticks=ticks: next(ticks))
        monkeypatch.setattr(cpu_features.os, "cpu_count", lambda: 4)
        monkeypatch.setattr(cpu_features, "THREADS", 4)
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        assert cpu_features.free_cores() == n


def test_a_processor_passes_for_a_lesser_one_everywhere():
    """In our kernels, PyTorch, torch.compile, MKL and oneDNN. (On AMD MKL does not say which
    instructions it takes.)"""
    names = [known.name for known in cpu_features.X86]
    if not (here := cpu_features.detected()) or names.index(here.name) < names.index("avx2"):
        pytest.skip("this processor has no AVX2")
    environment = os.environ | dict(NANOSTORIES_ISA="avx2", MKL_VERBOSE="1", ONEDNN_VERBOSE="1")
    done = subprocess.run(
        [sys.executable, "-c", REPORT], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stderr.splitlines()[-1])
    assert (*facts[:2], facts[2].split()[0], facts[3]) == ("avx2", "AVX2", "avx2", "torch.float32")
    said = [
        line
        for line in done.stdout.lower().splitlines()
        if line.startswith(("mkl_verbose onemkl", "onednn"))
    ]
    assert said and not [line for line in said for name in ("avx-512", "avx512") if name in line]
