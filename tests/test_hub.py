"""Files of the hub: the right ones are downloaded, the cache needs no network, and what goes wrong
is one line. (Against a hub on this machine.)"""

import json
import os
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest
from conftest import ROOT

NO_HUB = "http://127.0.0.1:9"
COMMIT = "1" * 40
FILES = ("config.json", "a.bin", "README.md")  # of someone/tiny, all empty
REQUEST = re.compile(r"/(?:api/)?datasets/(.+?)/(revision|tree|resolve)/[^/]+/?(.*)")
CODE = """import sys
from nanostories.cli import UserError
from nanostories.hub import from_hub
try:
    print(from_hub(sys.argv[1], ["config.json", "*.bin"], "dataset"))
except UserError as error:
    print("UserError", error)
"""


class Hub(BaseHTTPRequestHandler):
    """With one data set; whatever is asked of someone/broken fails."""

    def do_GET(self):
        name, asked, file = REQUEST.fullmatch(urlsplit(self.path).path).groups()
        if name == "someone/broken":
            self.answer(500, {})
        elif name != "someone/tiny":
            self.answer(404, {"X-Error-Code": "RepoNotFound"})
        elif asked == "revision":
            self.answer(200, {}, {"id": name, "sha": COMMIT})
        elif asked == "tree":
            self.answer(200, {}, [dict(type="file", path=path, size=0, oid="1") for path in FILES])
        else:  # the cache keeps files by their ETags
            self.answer(200, {"ETag": f'"{file}"', "X-Repo-Commit": COMMIT})

    do_HEAD = do_GET

    def answer(self, status: int, headers: dict, facts=None):
        body = json.dumps(facts).encode() if facts else b""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def address():
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


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
