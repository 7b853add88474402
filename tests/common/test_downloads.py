"""Downloads from a server that fails in every way we could think of; models of a hub, with and without a network."""

import hashlib
import os
import re
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import ROOT
from safetensors.torch import load_file
from test_prepare import END, STORIES, write

from checkpoints.huggingface import WEIGHTS, load_hf, load_hf_tokenizer, model_directory, save_hf
from common.downloads import HubError, download
from common.files import write_bytes, write_json
from corpus.token_files import load_meta
from corpus.tokenizer import gpt2
from model import GPTNeo, GPTNeoConfig

CONTENT = np.random.default_rng(0).bytes(300_000)


class Server(ThreadingHTTPServer):
    """Serves `content` with ranges, as the hub does. `plan` holds a fault for each of the next requests."""

    def __init__(self, host="127.0.0.1", handler=None):
        super().__init__((host, 0), handler or Handler)
        self.content, self.etag, self.plan, self.requests = CONTENT, '"v1"', [], []
        self.url = f"http://{host}:{self.server_port}"

    def handle_error(self, request, client_address):
        pass  # that clients hang up is part of the tests


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *args):
        pass

    def do_GET(self):
        server, content = self.server, self.server.content
        fault = server.plan.pop(0) if server.plan else None
        server.requests.append(dict(self.headers) | {"path": self.path})
        if isinstance(fault, int):
            return self.send_error(fault)
        if isinstance(fault, str) and fault.startswith("http"):
            self.send_response(302)
            self.send_header("Location", fault + self.path)
            return self.end_headers()
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        same = self.headers.get("If-Range") in (None, server.etag)
        ranges = "no ranges" not in str(fault) and (same or fault == "ignores If-Range")
        start = int(asked[1]) if asked and ranges else None
        if start is not None and start >= len(content):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(content)}")
            self.send_header("Content-Length", "0")
            return self.end_headers()
        start = start - 7 if start and fault == "wrong range" else start
        body = content[start or 0 :][: 50_000 if fault == "half the range" else None]
        self.send_response(200 if start is None else 206)
        if start is not None:
            self.send_header("Content-Range", f"bytes {start}-{start + len(body) - 1}/{len(content)}")
        if server.etag:
            self.send_header("ETag", server.etag)
        if fault != "no length":
            self.send_header("Content-Length", str(len(body) + (5000 if fault == "promises too much" else 0)))
        self.end_headers()
        if fault == "hangs":
            time.sleep(1)
        elif fault == "trickles":
            for i in range(0, len(body), 50_000):
                self.wfile.write(body[i : i + 50_000])
                time.sleep(0.1)
        else:
            self.wfile.write(body[: 100_000 if "breaks off" in str(fault) or fault == "changes" else None])
        if fault == "changes":
            server.content, server.etag = CONTENT[::-1], '"v2"'


@pytest.fixture
def server():
    with Server() as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


def get(server, folder: Path, **settings) -> bytes:
    """Download within a short time; what lies there must be the file and nothing else."""
    path = folder / "models" / "file.txt"
    settings = {"tries": 4, "pause": 0.01, "timeout": 5} | settings
    assert download(f"{server.url}/file.txt", path, **settings) == path
    assert os.listdir(path.parent) == ["file.txt"]
    return path.read_bytes()


def ranges(server) -> list:
    return [request.get("Range") for request in server.requests]


def test_download_and_not_again(server, tmp_path):
    assert get(server, tmp_path) == CONTENT
    assert get(server, tmp_path) == CONTENT
    assert len(server.requests) == 1
    assert server.requests[0]["Accept-Encoding"] == "identity"  # sizes and ranges are of the file itself


def test_download_goes_on_after_breaks(server, tmp_path):
    server.plan = ["breaks off", "breaks off", 503, 429, 500]
    assert get(server, tmp_path) == CONTENT
    starts = [int(asked[6:-1]) for asked in ranges(server)[1:]]
    assert 0 < starts[0] <= 100_000 < starts[1] <= 200_000 and starts[1:] == [starts[1]] * 4
    assert server.requests[1]["If-Range"] == '"v1"'


def test_download_goes_on_in_a_later_run(server, tmp_path):
    server.plan = ["breaks off", 503, 503, 503, 503]
    with pytest.raises(HubError, match="HTTP status 503 .* 4 times in a row"):
        get(server, tmp_path)
    part = (tmp_path / "models" / "file.txt.part").read_bytes()
    assert len(part) > 30_000 and CONTENT.startswith(part)
    assert not (tmp_path / "models" / "file.txt").exists()
    assert get(server, tmp_path) == CONTENT
    assert ranges(server)[-1] == f"bytes={len(part)}-"


@pytest.mark.parametrize(
    ("plan", "expected"),
    {
        "a server without ranges": (["breaks off", "no ranges"], CONTENT),
        "a server without ranges, which breaks off again": (["breaks off", "no ranges, breaks off"], CONTENT),
        "a wrong range": (["breaks off", "wrong range"], CONTENT),
        "less than was asked for": (["breaks off", "half the range", "half the range"], CONTENT),
        "a file that changed": (["changes"], CONTENT[::-1]),
        "a file that changed, where If-Range is ignored": (["changes", "ignores If-Range"], CONTENT[::-1]),
        "a size too large": (["promises too much"], CONTENT),
        "no size": (["no length"], CONTENT),
        "a slow server": (["trickles"], CONTENT),
        "a server that hangs": (["hangs"], CONTENT),
        "a break before the first byte": ([503, 408, 500], CONTENT),
    }.values(),
)
def test_download_is_whole_or_tried_again(server, tmp_path, plan, expected):
    server.plan = plan
    assert get(server, tmp_path, timeout=0.3) == expected
    assert not server.plan


def test_download_without_an_etag_starts_anew(server, tmp_path):
    """Nothing would tell whether the rest belongs to the same file."""
    server.etag, server.plan = "", ["breaks off"]
    assert get(server, tmp_path) == CONTENT
    assert ranges(server) == [None, None]


def test_download_killed_before_the_rename(server, tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "file.txt.part").write_bytes(CONTENT)
    (tmp_path / "models" / "file.txt.part.etag").write_text('"v1"')
    assert get(server, tmp_path) == CONTENT
    assert ranges(server) == [f"bytes={len(CONTENT)}-"]


def test_download_of_a_size_that_never_comes(server, tmp_path):
    server.plan = ["promises too much"] * 10
    server.etag = ""
    with pytest.raises(HubError, match="file.txt: .* in a row"):
        get(server, tmp_path)
    assert not (tmp_path / "models" / "file.txt").exists()
    assert 4 <= len(server.requests) <= 5


def test_download_from_nowhere(tmp_path):
    with Server() as server:
        url = server.url
    with pytest.raises(HubError, match=f"{url}/x: ConnectionError, 2 times in a row"):
        download(f"{url}/x", tmp_path / "x", tries=2, pause=0.01)
    with pytest.raises(HubError, match="mend that"):
        download("no-scheme/x", tmp_path / "x", tries=2, pause=0.01)


@pytest.mark.parametrize(("status", "hint"), [(401, "HF_TOKEN"), (403, "HF_TOKEN"), (404, "HF_ENDPOINT"), (400, "400")])
def test_download_refused(server, tmp_path, monkeypatch, status, hint):
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    server.plan = [status]
    with pytest.raises(HubError) as error:
        get(server, tmp_path)
    text = str(error.value)
    assert f"{server.url}/file.txt: HTTP status {status} " in text and hint in text and "\n" not in text
    assert "hf_secret" not in text
    assert len(server.requests) == 1 and list(tmp_path.glob("*/*")) == []


def test_token_goes_to_the_hub_alone(server, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert get(server, tmp_path / "not the hub") == CONTENT
    assert "Authorization" not in server.requests[0]
    with Server("localhost") as hub:  # another host name, so that a redirect crosses hosts
        threading.Thread(target=hub.serve_forever, args=(0.01,), daemon=True).start()
        monkeypatch.setenv("HF_ENDPOINT", hub.url + "/")
        hub.plan = ["breaks off", server.url]
        assert get(hub, tmp_path / "the hub") == CONTENT
        hub.shutdown()
    assert [request.get("Authorization") for request in hub.requests] == ["Bearer hf_secret"] * 2
    assert "Authorization" not in server.requests[1]
    assert server.requests[1]["Range"] == hub.requests[1]["Range"]  # which does cross


def test_tinystories_from_a_mirror(server, tmp_path):
    """The whole way, by command line: HF_ENDPOINT, the addresses, the files kept for next time."""
    server.content = "".join(f"{story}\n{END}\n" for story in STORIES).encode()
    command = [sys.executable, ROOT / "prepare.py", "tinystories-v2", "--vocab_size", "300"]
    environment = os.environ | {"HF_ENDPOINT": server.url + "/", "HF_TOKEN": "hf_secret"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    address = "/datasets/roneneldan/TinyStories/resolve/main/TinyStoriesV2-GPT4-"
    assert sorted(request["path"] for request in server.requests) == [address + "train.txt", address + "valid.txt"]
    assert {request["Authorization"] for request in server.requests} == {"Bearer hf_secret"}
    # Here both files are the same, so that all of train is dropped: they would leak.
    assert done.returncode == 1 and "no story left for train" in done.stderr and "hf_secret" not in done.stderr
    write(tmp_path / "data" / "download" / "TinyStoriesV2-GPT4-train.txt", [f"{story} Bye." for story in STORIES])
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert len(server.requests) == 2
    assert "next: python train.py configs/cpu_1m.py --data=tinystories-v2" in done.stdout
    meta = load_meta(tmp_path / "data" / "tinystories-v2")
    assert meta["source"] == [f"{server.url}{address}train.txt", f"{server.url}{address}valid.txt"]
    assert meta["splits"]["train"]["stories"] == meta["splits"]["val"]["stories"] == len(STORIES)


# ---- Models ----
ID = "someone/tiny-model_1.0"


class HubHandler(Handler):
    """A hub with one model: `server.files`. The weights lie on another host, to which it redirects."""

    def do_GET(self):
        server, name = self.server, self.path.rsplit("/", 1)[-1]
        found = f"/{ID}/resolve/main/" in self.path and name in server.files
        if found and (name not in WEIGHTS or self.path.startswith("/cdn/")):
            server.content = server.files[name]
            return super().do_GET()
        server.requests.append(dict(self.headers) | {"path": self.path})
        if not found:
            return self.send_error(404)
        self.send_response(302)
        self.send_header("Location", f"http://localhost:{server.server_port}/cdn{self.path}")
        self.send_header("X-Linked-Etag", f'"{server.sums.get(name, hashlib.sha256(server.files[name]).hexdigest())}"')
        self.send_header("Content-Length", "0")
        self.end_headers()


@pytest.fixture
def hub(monkeypatch):
    with Server(handler=HubHandler) as server:
        server.files = {"config.json": b"{}", "tokenizer.json": b'{"version": "1.0"}', "model.safetensors": CONTENT}
        server.sums = {}  # wrong ones
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


def asked(hub) -> list[str]:
    """The files that were asked for, those of the other host in brackets."""
    names = [(request["path"].startswith("/cdn"), request["path"].rsplit("/", 1)[1]) for request in hub.requests]
    return [f"({name})" if elsewhere else name for elsewhere, name in names]


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_a_model_is_downloaded_once(hub, tmp_path):
    directory = model_directory(ID, tmp_path)
    assert directory == tmp_path / "someone--tiny-model_1.0"
    assert contents(directory) == hub.files
    assert asked(hub) == ["config.json", "tokenizer.json", "model.safetensors", "(model.safetensors)"]
    assert model_directory(ID, tmp_path) == directory
    assert len(hub.requests) == 4


def test_a_model_without_safetensors_and_without_a_tokenizer(hub, tmp_path, monkeypatch):
    hub.files = {"config.json": b"{}", "pytorch_model.bin": CONTENT}
    assert contents(model_directory(ID, tmp_path)) == hub.files
    optional = ["tokenizer.json", "model.safetensors"]
    assert asked(hub) == ["config.json", *optional, "pytorch_model.bin", "(pytorch_model.bin)"]
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # no network: what is not there is not asked for again
    assert contents(model_directory(ID, tmp_path)) == hub.files


def test_the_cache_is_where_the_user_keeps_caches(hub, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert model_directory(ID) == tmp_path / "nanostories" / "hub" / "someone--tiny-model_1.0"


def test_a_model_goes_on_after_a_break_by_way_of_the_redirect(hub, tmp_path, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    hub.plan = [None, None, "breaks off", 503]
    assert contents(model_directory(ID, tmp_path)) == hub.files
    assert asked(hub)[2:] == ["model.safetensors", "(model.safetensors)"] * 3
    assert re.fullmatch(r"bytes=\d+-", hub.requests[-1]["Range"]) and hub.requests[-1]["If-Range"] == '"v1"'


def test_a_model_goes_on_in_a_later_run(hub, tmp_path, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    hub.plan = [None, None, "breaks off"] + [503] * 6
    with pytest.raises(HubError, match="model.safetensors: HTTP status 503 .* 6 times in a row"):
        model_directory(ID, tmp_path)
    hub.requests.clear()
    assert contents(model_directory(ID, tmp_path)) == hub.files
    assert asked(hub) == ["model.safetensors", "(model.safetensors)"] and "Range" in hub.requests[1]


def test_a_wrong_checksum(hub, tmp_path):
    hub.sums["model.safetensors"] = "0" * 64
    with pytest.raises(
        HubError, match=f"{ID}/resolve/main/model.safetensors: .* SHA-256 .* dropped; run again"
    ) as error:
        model_directory(ID, tmp_path)
    assert "\n" not in str(error.value)
    directory = tmp_path / "someone--tiny-model_1.0"
    assert sorted(contents(directory)) == ["config.json", "tokenizer.json"]
    hub.sums = {}
    assert contents(model_directory(ID, tmp_path)) == hub.files


def test_a_wrong_checksum_of_a_file_that_does_not_redirect(server, tmp_path):
    server.etag = f'"{hashlib.sha256(CONTENT).hexdigest()}"'
    assert get(server, tmp_path / "right") == CONTENT
    server.content = CONTENT[::-1]
    with pytest.raises(HubError, match="SHA-256"):
        get(server, tmp_path / "wrong")
    server.etag = '"' + "0" * 40 + '"'  # SHA-1 of a git blob, which is not of the bytes alone
    assert get(server, tmp_path / "git") == CONTENT[::-1]


def test_the_etag_of_another_host_is_not_taken_for_a_checksum(hub, tmp_path):
    """The hub's storage names files by hashes of its own, of 64 hex digits too."""
    hub.etag = f'"{"0" * 64}"'
    hub.files = {"config.json": b"{}", "model.safetensors": CONTENT}
    (tmp_path / "someone--tiny-model_1.0").mkdir()
    (tmp_path / "someone--tiny-model_1.0" / "config.json").write_bytes(b"{}")
    assert contents(model_directory(ID, tmp_path)) == hub.files


def test_the_token_of_a_model_goes_to_the_hub_alone(hub, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    model_directory(ID, tmp_path)
    tokens = [request.get("Authorization") for request in hub.requests]
    assert tokens == ["Bearer hf_secret"] * 3 + [None]


def test_a_directory_is_used_as_it_stands(hub, tmp_path):
    assert model_directory(tmp_path) == model_directory(str(tmp_path)) == tmp_path
    assert not hub.requests


@pytest.mark.parametrize("wrong", ["a/b/c", "/nowhere/at/all", "../x/y", "./x", "a b", "x/", "~/model", "a\nb", "ü/x"])
def test_neither_a_directory_nor_an_id(hub, tmp_path, monkeypatch, wrong):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(HubError, match="no such directory, nor can it be a model of the hub") as error:
        model_directory(wrong, tmp_path)
    assert "\n" not in str(error.value) and not hub.requests


def test_a_model_that_the_hub_does_not_have(hub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where there is no out/demo
    with pytest.raises(HubError, match="out/demo: no such directory here, and from the hub: .* status 404") as error:
        model_directory("out/demo", tmp_path)
    assert "\n" not in str(error.value) and asked(hub) == ["config.json"]


def test_no_network_and_nothing_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(HubError, match="gpt2: no such directory here, and from the hub: .* ConnectionError"):
        model_directory("gpt2", tmp_path)


@torch.no_grad()
def test_a_model_as_published_by_its_id_alone(hub, tmp_path, monkeypatch):
    """Weights as a pickle, no tokenizer beside them; the second time without a network."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    model = GPTNeo(GPTNeoConfig(vocab_size=50257, block_size=16, n_layer=2, n_head=2, n_embd=8, window_size=4)).eval()
    save_hf(model, tmp_path / "model", gpt2())
    torch.save(load_file(tmp_path / "model" / "model.safetensors"), tmp_path / "pytorch_model.bin")
    hub.files = {path.name: path.read_bytes() for path in (tmp_path / "model" / "config.json", tmp_path / WEIGHTS[1])}
    tokens = torch.randint(50257, (1, 16))
    for _ in range(2):
        torch.testing.assert_close(load_hf(ID)(tokens)[0], model(tokens)[0])
        assert load_hf_tokenizer(ID).gpt2_ids == gpt2().gpt2_ids
        monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")


def test_a_file_takes_its_name_when_it_is_on_the_disk(tmp_path, monkeypatch):
    path = tmp_path / "facts.json"
    write_json(path, dict(old=1))

    def refuse(_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", refuse)  # what was written was only in memory, and is lost
    with pytest.raises(OSError, match="Input/output"):
        write_bytes(path, b"new")
    assert path.read_text() == '{\n  "old": 1\n}\n' and list(tmp_path.iterdir()) == [path]
