"""Shared by tests of sample.py: the command, a small corpus, an API that writes what a test tells
it to."""

import json

import pytest
from faulty_endpoint import serve

import sample

STORIES = [f"Story {i} is about a very small dog. It ran. The end." for i in range(40)]


@pytest.fixture
def sample_py(command_line, tmp_path):
    return command_line(sample, tmp_path)


@pytest.fixture
def sampled(sample_py):
    """As sample_py, which must succeed -> what it printed."""

    def call(flags: str) -> str:
        code, printed = sample_py(flags)
        assert code == 0, code
        return printed.out

    return call


@pytest.fixture
def corpus(tmp_path):
    """data/tiny: 12 validation stories and the other 28 of these stories for training."""
    from planted import write_corpus  # here, as it takes a while to import

    write_corpus(tmp_path / "data" / "tiny", STORIES[12:], STORIES[:12])
    return STORIES


@pytest.fixture
def endpoint(monkeypatch):
    """It writes "a time."; endpoint.fault = lambda number, request: ("say", text) makes it write
    `text`."""
    with serve(lambda number, request: ("say", "a time.")) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "secret")
        yield server


def rows_of(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]
