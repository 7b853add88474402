"""Models of a hub: downloaded once, used without a network afterwards."""

import hashlib
import re
import time
from pathlib import Path

import pytest
import torch
from file_server import CONTENT, Handler, serve
from safetensors.torch import load_file

from checkpoints.huggingface import WEIGHTS, load_hf, load_hf_tokenizer, model_directory, save_hf
from common.downloads import HubError
from corpus.tokenizer import gpt2
from model import GPTNeo, GPTNeoConfig

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
    with serve(handler=HubHandler) as server:
        server.files = {"config.json": b"{}", "tokenizer.json": b'{"version": "1.0"}', "model.safetensors": CONTENT}
        server.sums = {}  # wrong ones
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield server


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
    with pytest.raises(HubError, match=r"model.safetensors: 6 consecutive attempts failed \(HTTP status 503 "):
        model_directory(ID, tmp_path)
    hub.requests.clear()
    assert contents(model_directory(ID, tmp_path)) == hub.files
    assert asked(hub) == ["model.safetensors", "(model.safetensors)"] and "Range" in hub.requests[1]


def test_a_wrong_checksum(hub, tmp_path):
    hub.sums["model.safetensors"] = "0" * 64
    with pytest.raises(
        HubError, match=f"{ID}/resolve/main/model.safetensors: .* SHA-256 .* deleted; run again"
    ) as error:
        model_directory(ID, tmp_path)
    assert "\n" not in str(error.value)
    directory = tmp_path / "someone--tiny-model_1.0"
    assert sorted(contents(directory)) == ["config.json", "tokenizer.json"]
    hub.sums = {}
    assert contents(model_directory(ID, tmp_path)) == hub.files


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
    with pytest.raises(HubError, match="neither a directory nor a valid hub ID") as error:
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
    with pytest.raises(HubError, match="gpt2: no such directory here, and from the hub: .*ConnectionError"):
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
