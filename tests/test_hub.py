"""Files of the hub: huggingface_hub is asked for the right ones, uses its cache without a network,
and what goes wrong is one line. (Its downloads are its own.)"""

import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import huggingface_hub
import pytest
from conftest import ROOT

from nanostories.hub import from_hub

CODE = """import sys
from nanostories.cli import UserError
from nanostories.hub import from_hub
try:
    print(from_hub(sys.argv[1], ["config.json"], "dataset"))
except UserError as error:
    print("UserError", error)
"""


class Refusal(BaseHTTPRequestHandler):
    """404 for a repository of someone else, 500 for any other."""

    def do_GET(self):
        is_unknown = "someone/else" in self.path
        self.send_response(404 if is_unknown else 500)
        if is_unknown:
            self.send_header("X-Error-Code", "RepoNotFound")
        self.end_headers()

    do_HEAD = do_GET

    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def address():
    """Of a hub that refuses everything."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Refusal) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


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


def test_what_is_asked_for(monkeypatch, tmp_path):
    asked = []

    def download(*arguments, **settings):
        asked.append((arguments, settings))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert from_hub("someone/tiny", ["config.json", "*.bin"]) == tmp_path
    settings = {"repo_type": "model", "allow_patterns": ["config.json", "*.bin"]}
    assert asked == [(("someone/tiny",), settings)]


@pytest.mark.parametrize("offline", ["0", "1"])
def test_what_is_in_the_cache_needs_no_network(tmp_path, offline):
    repository = tmp_path / "hub" / "datasets--someone--tiny"
    directory = repository / "snapshots" / ("1" * 40)
    directory.mkdir(parents=True)
    (directory / "config.json").write_text("{}")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("1" * 40)
    said = fetch("someone/tiny", "http://127.0.0.1:9", tmp_path, HF_HUB_OFFLINE=offline)
    assert said == str(directory)


@pytest.mark.parametrize(
    "repository, environment, word",
    [
        ("someone/else", {}, "private"),
        ("someone/tiny", {}, "500"),
        ("someone/tiny", {"HF_ENDPOINT": "http://127.0.0.1:9"}, "network"),
        ("someone/tiny", {"HF_HUB_OFFLINE": "1"}, "Offline"),
        ("someone/tiny", {"HF_TOKEN": "hf_sécret"}, "HF_TOKEN"),
        ("out/demo/x", {}, "neither a directory"),
    ],
)
def test_one_line_for_errors(address, tmp_path, repository, environment, word):
    said = fetch(repository, address, tmp_path, **{"HF_TOKEN": "hf_secret"} | environment)
    assert said.startswith("UserError") and repository in said and word in said
