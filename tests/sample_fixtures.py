"""Shared by tests of sample.py: the command, a small corpus, an API that writes what a test tells it to."""

import json
import subprocess
import sys

import pytest
from conftest import ROOT
from faulty_endpoint import serve

import sample

STORIES = [f"Story {i} is about a very small dog. It ran. The end." for i in range(40)]


@pytest.fixture
def sample_py(command_line, tmp_path):
    return command_line(sample, tmp_path)


@pytest.fixture
def corpus(tmp_path):
    """data/tiny: 12 validation stories and the other 28 of these stories for training."""
    from planted import write_corpus  # here, as it takes a while to import

    write_corpus(tmp_path / "data" / "tiny", STORIES[12:], STORIES[:12])
    return STORIES


@pytest.fixture
def endpoint(monkeypatch):
    """endpoint.fault = lambda number, request: ("say", text) makes it write `text`."""
    with serve() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "secret")
        yield server


def heavy_imports(cwd, command: str, *args: str) -> set[str]:
    """Which packages that take long to import a command loads."""
    code = f"""import runpy, sys
sys.argv = {[command, *args]!r}
sys.path.insert(0, {str(ROOT)!r})
try:
    runpy.run_path({str(ROOT / command)!r}, run_name="__main__")
finally:
    print("loaded:", *{{"torch", "openai"}} & set(sys.modules))"""
    done = subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split()[1:])


def rows_of(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]
