"""Files of the hub: the right ones are downloaded, the cache needs no network, and what goes wrong
is one line. (Against local_hub.py.)"""

import os
import re
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
        (repository / name).touch()
    with local_hub.serve(folder) as address:
        yield address


def fetch(repository: str, cache, **environment: str) -> str:
    """In a process of its own, as huggingface_hub reads these variables at its import; -> the
    directory, or the message."""
    environment = os.environ | {"HF_HOME": str(cache)} | environment
    command = [sys.executable, "-c", CODE, repository]
    said = subprocess.check_output(command, cwd=ROOT, env=environment, stderr=subprocess.STDOUT)
    assert b"secret" not in said
    return said.decode().splitlines()[-1]


def test_what_matches_is_downloaded_and_then_needs_no_network(address, tmp_path):
    directory = fetch("someone/tiny", tmp_path, HF_ENDPOINT=address)
    assert sorted(os.listdir(directory)) == ["a.bin", "config.json"]
    assert fetch("someone/tiny", tmp_path, HF_ENDPOINT=NO_HUB) == directory


@pytest.mark.parametrize(
    "repository, environment, word",
    [
        ("someone/else", {}, "private"),
        ("someone/broken", {}, "500"),
        ("someone/tiny", {"HF_ENDPOINT": NO_HUB}, "Connect|refused"),
        ("someone/tiny", {"HF_HUB_OFFLINE": "1"}, "Offline"),
        ("someone/tiny", {"HF_TOKEN": "hf_sécret"}, "Encode"),
        ("out/demo/x", {}, "neither a directory"),
    ],
)
def test_one_line_for_errors(address, tmp_path, repository, environment, word):
    usual = {"HF_ENDPOINT": address, "HF_TOKEN": "hf_secret", "HF_HUB_OFFLINE": "0"}
    said = fetch(repository, tmp_path, **usual | environment)
    assert re.match(f"UserError.*{repository}.*({word})", said)
