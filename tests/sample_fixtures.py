"""Shared by tests of sample.py: the command, a small corpus, an API that writes what a test tells it to."""

import json
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT
from faulty_endpoint import serve

import sample
from generation import samples_file

STORIES = [f"Story {i} is about a very small dog. It ran. The end." for i in range(40)]


@pytest.fixture
def sample_py(command_line, tmp_path):
    return command_line(sample, tmp_path)


def prepare_corpus(directory, name: str, training: list[str], validation: list[str]):
    """data/<name> in this directory, by prepare.py."""
    for split, stories in (("train", training), ("val", validation)):
        (directory / f"{name}-{split}.jsonl").write_text("".join(json.dumps(dict(text=s)) + "\n" for s in stories))
    files = ["--input", f"{name}-train.jsonl", "--val", f"{name}-val.jsonl", "--name", name, "--vocab_size", "300"]
    subprocess.run([sys.executable, ROOT / "prepare.py", *files], cwd=directory, check=True, capture_output=True)


@pytest.fixture(scope="session")
def prepared(tmp_path_factory):
    directory = tmp_path_factory.mktemp("prepared")
    prepare_corpus(directory, "tiny", STORIES, STORIES[:12])
    return directory / "data"


@pytest.fixture
def corpus(prepared, tmp_path):
    """data/tiny: 12 validation stories and the other 28 of these stories for training."""
    shutil.copytree(prepared, tmp_path / "data")
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


def rows_of_part(run) -> list[dict]:
    return list(samples_file.read_rows(run / "samples.jsonl.part").values())
