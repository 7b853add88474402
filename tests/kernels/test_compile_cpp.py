"""compile_cpp.py: a library is built once, never half, and only where that is possible."""

import subprocess

import pytest

from kernels import compile_cpp

needs_compiler = pytest.mark.skipif(
    compile_cpp.library("cpu_cross_entropy") is None, reason="no C++ compiler that builds it"
)


def test_without_a_compiler_there_is_no_library(monkeypatch, tmp_path):
    build = compile_cpp.library.__wrapped__  # past the cache
    monkeypatch.setattr(compile_cpp.shutil, "which", lambda name: None)
    assert build("loss") is None
    monkeypatch.undo()
    broken = tmp_path / "broken.sh"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    assert build("loss") is None


@needs_compiler
def test_it_is_built_once_and_never_half(tmp_path):
    source, cache = compile_cpp.SOURCES / "split_words.cpp", tmp_path / "cache"
    built = compile_cpp.build("g++", source, [], cache)
    assert list(cache.iterdir()) == [built]
    stamp = built.stat().st_mtime_ns
    assert compile_cpp.build("g++", source, [], cache).stat().st_mtime_ns == stamp
    wrong = tmp_path / "wrong.cpp"
    wrong.write_text("not C++")
    with pytest.raises(subprocess.CalledProcessError):
        compile_cpp.build("g++", wrong, [], cache)
    assert list(cache.iterdir()) == [built]


@needs_compiler
def test_a_header_that_changed_builds_anew(tmp_path):
    source = tmp_path / "tiny.cpp"
    source.write_text('#include "tiny.h"\nextern "C" int answer() { return ANSWER; }\n')
    (tmp_path / "tiny.h").write_text("#define ANSWER 1\n")
    first = compile_cpp.build("g++", source, [], tmp_path / "cache")
    (tmp_path / "tiny.h").write_text("#define ANSWER 2\n")
    second = compile_cpp.build("g++", source, [], tmp_path / "cache")
    assert [compile_cpp.ctypes.CDLL(str(built)).answer() for built in (first, second)] == [1, 2]
