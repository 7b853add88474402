"""Files of the hub: the right ones are downloaded, the cache needs no network, and what goes wrong
is one line. (Against local_hub.py.)"""

import os
import subprocess
import sys

import local_hub
import pytest
from conftest import ROOT

NO_HUB = "http://127.0.0.1:9"
CODE = """import sys
from nanostories.cli import UserError
from nanostories.hub import from_hub
try:
    print(from_hub(sys.argv[1], ["config.json", "*.bin"], "dataset"))
except UserError as error:
    print("UserError", error)
"""


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """Of a hub with one data set."""
    folder = tmp_path_factory.mktemp("hub")
    repository = folder / "datasets" / "someone" / "tiny"
    repository.mkdir(parents=True)
    for name in ("config.json", "a.bin", "README.md"):
        (repository / name).write_text("{}")
    with local_hub.serve(folder) as address:
        yield address


def fetch(repository: str, address: str, cache, **others: str) -> str:
    """In a process of its own, as huggingface_hub reads these variables at its import; -> the
    directory, or the message."""
    environment = os.environ | {"HF_ENDPOINT": address, "HF_HOME": str(cache)}
    command = [sys.executable, "-c", CODE, repository]
    said = subprocess.check_output(
        command, cwd=ROOT, env=environment | others, stderr=subprocess.STDOUT, text=True
    )
    assert "secret" not in said
    return said.splitlines()[-1]


def test_what_matches_is_downloaded_and_then_needs_no_network(address, tmp_path):
    directory = fetch("someone/tiny", address, tmp_path)
    assert sorted(os.listdir(directory)) == ["a.bin", "config.json"]
    assert fetch("someone/tiny", address, tmp_path, HF_HUB_OFFLINE="1") == directory
    assert fetch("someone/tiny", NO_HUB, tmp_path) == directory


@pytest.mark.parametrize(
    "repository, environment, word",
    [
        ("someone/else", {}, "private"),
        ("someone/broken", {}, "500"),
        ("someone/tiny", {"HF_ENDPOINT": NO_HUB}, "network"),
        ("someone/tiny", {"HF_HUB_OFFLINE": "1"}, "Offline"),
        ("someone/tiny", {"HF_TOKEN": "hf_sécret"}, "HF_TOKEN"),
        ("out/demo/x", {}, "neither a directory"),
    ],
)
def test_one_line_for_errors(address, tmp_path, repository, environment, word):
    said = fetch(repository, address, tmp_path, **{"HF_TOKEN": "hf_secret"} | environment)
    assert said.startswith("UserError") and repository in said and word in said
