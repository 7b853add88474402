"""nanostories/kernels/compile_cpp.py: a library is built once, never half, and only where that is
possible."""

import ctypes
import subprocess
from functools import partial

import pytest

from nanostories.kernels import compile_cpp
from nanostories.kernels.compile_cpp import FLAGS

needs_compiler = pytest.mark.skipif(
    compile_cpp.library("cpu_cross_entropy") is None, reason="no C++ compiler that builds it"
)


@pytest.fixture(params=[pytest.param("C++", marks=needs_compiler), "PyTorch"])
def implementation(request, monkeypatch):
    if request.param == "PyTorch":
        monkeypatch.setattr(compile_cpp, "library", lambda *_: None)


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """compiler("env g++") -> cpu_cross_entropy.cpp built with CXX so, in an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    build = compile_cpp.library.__wrapped__  # not the function's own cache

    def built_by(CXX: str):
        monkeypatch.setenv("CXX", CXX)
        return build("cpu_cross_entropy")

    return built_by


@pytest.mark.parametrize("CXX", ["none", "false"])
def test_without_a_compiler_there_is_no_library(compiler, CXX):
    assert compiler(CXX) is None


@needs_compiler
def test_it_is_built_once_for_each_source_and_header_and_never_half(compiler, tmp_path):
    assert compiler("env DEBUG=1 g++ -DUNUSED='a b'").cross_entropy_float32  # a launcher and flags
    cache = tmp_path / "cache"
    source = tmp_path / "tiny.cpp"
    header = tmp_path / "tiny.h"
    source.write_text('#include "tiny.h"\nextern "C" int answer() { return ANSWER; }\n')
    build = partial(compile_cpp.build, ["g++"], source, FLAGS, cache)
    for answer in (1, 2):
        header.write_text(f"#define ANSWER {answer}\n")
        built = build()
        stamp = built.stat().st_mtime_ns
        assert build().stat().st_mtime_ns == stamp
        assert ctypes.CDLL(str(built)).answer() == len(list(cache.iterdir())) == answer
    header.write_text("not C++")
    with pytest.raises(subprocess.CalledProcessError):
        build()
    assert len(list(cache.iterdir())) == 2
