"""The examples in docstrings give what they say, where they need no model."""

import doctest
import importlib

import pytest

MODULES = ["text", "results", "files", "tables", "corpus.word_forms"]


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name, tmp_path, monkeypatch):
    (tmp_path / "out" / "demo" / "samples").mkdir(parents=True)
    (tmp_path / "out" / "demo" / "samples" / "eval.jsonl").touch()
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(f"nanostories.{name}")
    found = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert found.attempted > 0 and found.failed == 0  # what differs is printed
