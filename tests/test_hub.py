"""Files of the hub: downloaded once, used without a network afterwards; one line for what goes
wrong."""

import random
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

FILES = {
    "config.json": b"{}",
    "weights.bin": random.Random(0).randbytes(300_000),
    "other.bin": b"not asked for",
}
CODE = """import sys
from nanostories.cli import UserError
from nanostories.hub import from_hub
try:
    print(from_hub(sys.argv[1], ["config.json", "weights.bin", "absent.json"]))
except UserError as error:
    print("UserError", error)
"""


@pytest.fixture
def fetch(hub, tmp_path):
    """fetch(repository, environment variables) in a process of its own, as huggingface_hub reads
    these at its import; -> the directory, or the message."""
    hub.repositories = {"someone/tiny": FILES}

    def call(repository: str = "someone/tiny", **environment: str) -> str:
        hub.requests.clear()
        environment = hub.environment(tmp_path / "cache", HF_TOKEN="hf_secret") | environment
        command = [sys.executable, "-c", CODE, repository]
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
        )
        assert "secret" not in done.stdout + done.stderr and done.stdout.count("\n") == 1
        return done.stdout[:-1]

    return call


def downloads(hub) -> list[str]:
    return [
        request["path"].rsplit("/", 1)[1]
        for request in hub.requests
        if request["method"] == "GET" and "/resolve/" in request["path"]
    ]


def test_downloaded_once_then_without_a_network(fetch, hub):
    directory = Path(fetch())
    expected = {name: FILES[name] for name in ("config.json", "weights.bin")}
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == expected
    tokens = {
        request.get("authorization", request.get("Authorization")) for request in hub.requests
    }
    assert tokens - {None} == {"Bearer hf_secret"} and sorted(downloads(hub)) == sorted(expected)
    assert fetch() == str(directory) and not downloads(hub)
    assert fetch(HF_ENDPOINT="http://127.0.0.1:9") == fetch(HF_HUB_OFFLINE="1") == str(directory)


@pytest.mark.parametrize(
    ("repository", "status", "environment", "word"),
    [
        ("someone/else", 0, {}, "private"),
        ("someone/tiny", 500, {}, "500"),
        ("someone/tiny", 0, dict(HF_ENDPOINT="http://127.0.0.1:9"), "network"),
        ("someone/tiny", 0, dict(HF_HUB_OFFLINE="1"), "Offline"),
        ("someone/tiny", 0, dict(HF_TOKEN="hf_sécret"), "HF_TOKEN"),
        ("out/demo/x", 0, {}, "neither a directory"),
    ],
)
def test_one_line_for_errors(fetch, hub, repository, status, environment, word):
    hub.status = status
    said = fetch(repository, **environment)
    assert said.startswith("UserError") and repository in said and word in said
