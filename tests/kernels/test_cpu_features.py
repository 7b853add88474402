"""A processor that passes for a lesser one does so everywhere, and what is measured once is remembered."""

import json
import os
import subprocess
import sys
import time

import pytest
import torch
from conftest import ROOT

from kernels import autotune, cpu_features

REPORT = """
import json, sys, torch
from kernels import autotune, compile_cpp, cpu_features
from torch._inductor.cpu_vec_isa import pick_vec_isa
a = torch.ones(64, 64)
a @ a  # MKL says what it runs on
torch.nn.functional.linear(a.bfloat16(), a.bfloat16())  # and so does oneDNN
facts = dict(isa=cpu_features.isa(), aten=torch.backends.cpu.get_cpu_capability(), inductor=str(pick_vec_isa()))
facts |= dict(lanes=None, dtype=str(autotune.fast_dtype()))
if library := compile_cpp.library("decode_step"):
    facts["lanes"] = compile_cpp.ctypes.c_int.in_dll(library, "n_lanes").value
print(json.dumps(facts), file=sys.stderr)
"""


def report(isa: str) -> tuple[dict, str]:
    """What a process under NANOSTORIES_ISA says of itself, and what MKL and oneDNN say."""
    environment = os.environ | dict(NANOSTORIES_ISA=isa, MKL_VERBOSE="1", ONEDNN_VERBOSE="1")
    done = subprocess.run([sys.executable, "-c", REPORT], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stderr.splitlines()[-1]), done.stdout


@pytest.mark.skipif(cpu_features.detected() is None, reason="needs an x86 processor with AVX2")
def test_a_processor_passes_for_one_with_avx2_everywhere():
    facts, libraries = report("avx2")
    assert (facts["isa"], facts["aten"], facts["inductor"]) == ("avx2", "AVX2", "avx2")
    assert facts["dtype"] == "torch.float32"  # bfloat16 is emulated there
    assert facts["lanes"] in (8, None)
    for name, lines in (("MKL", "MKL_VERBOSE oneMKL"), ("oneDNN", "onednn_verbose")):
        # On AMD's processors MKL does not say which instructions it takes.
        said = [line for line in libraries.splitlines() if line.startswith(lines) and "AVX" in line]
        assert not said or any("AVX2" in line for line in said), name
        assert not any("AVX-512" in line or "avx512" in line for line in said), name


@pytest.mark.skipif(cpu_features.detected() in (None, cpu_features.X86[0]), reason="needs a processor with AVX-512")
def test_a_processor_passes_for_one_with_avx512_everywhere():
    facts, libraries = report("avx512")
    assert (facts["isa"], facts["aten"]) == ("avx512", "AVX512") and facts["lanes"] in (16, None)
    assert not any(name in libraries.lower() for name in ("amx", "avx512_core_bf16", "bfloat16 instruction"))


def test_what_a_processor_is_not_ends_in_one_line():
    environment = os.environ | dict(NANOSTORIES_ISA="avx1024")
    done = subprocess.run([sys.executable, "train.py"], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("NANOSTORIES_ISA=avx1024: this processor supports only native")


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "nanostories"


def slow_and_fast(calls: list) -> dict:
    return dict(slow=lambda: calls.append("slow") or time.sleep(0.005), fast=lambda: calls.append("fast"))


def test_the_faster_is_found_and_remembered(empty_cache):
    calls = []
    assert autotune.fastest("a question", slow_and_fast(calls)) == "fast"
    assert set(calls) == {"slow", "fast"}
    calls.clear()
    assert autotune.fastest("a question", slow_and_fast(calls)) == "fast" and not calls
    assert autotune.fastest("another question", slow_and_fast(calls)) == "fast" and calls
    (remembered, _) = empty_cache.glob("fastest-*.json")
    assert set(json.loads(remembered.read_text())["seconds"]) == {"slow", "fast"}


def test_what_is_hopeless_is_not_called_again(empty_cache):
    calls = []
    autotune.fastest("a question", slow_and_fast(calls))
    assert calls.count("slow") == 2  # once to set things up, once to be timed


def test_where_nothing_can_be_remembered_it_is_measured_each_time(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    for _ in range(2):
        calls = []
        assert autotune.fastest("a question", slow_and_fast(calls)) == "fast" and calls


def test_a_damaged_memory_is_measured_anew(empty_cache):
    autotune.fastest("a question", slow_and_fast([]))
    (remembered,) = empty_cache.glob("fastest-*.json")
    remembered.write_text("{")
    calls = []
    assert autotune.fastest("a question", slow_and_fast(calls)) == "fast" and calls


def test_two_processes_that_measure_at_once_take_the_same(monkeypatch, tmp_path):
    """What the other process found meanwhile counts, so that a run and its resumption choose alike."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    candidates = dict(a=lambda: None, b=lambda: None)

    def measure_second(candidates, seconds):
        with monkeypatch.context() as patch:
            patch.setattr(autotune, "measure", lambda *_: dict(a=2.0, b=1.0))
            assert autotune.fastest("x", candidates) == "b"
        return dict(a=1.0, b=2.0)

    monkeypatch.setattr(autotune, "measure", measure_second)
    assert autotune.fastest("x", candidates) == "b" == autotune.fastest("x", candidates)
    assert len(list((tmp_path / "nanostories").iterdir())) == 1


@pytest.mark.parametrize("winner", ["float32", "bfloat16"])
def test_the_type_that_multiplies_faster_is_taken(monkeypatch, winner):
    monkeypatch.setattr(autotune, "fastest", lambda question, products: winner)
    autotune.fast_dtype.cache_clear()
    assert autotune.fast_dtype() == getattr(torch, winner)
    autotune.fast_dtype.cache_clear()
