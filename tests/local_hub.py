"""
A hub on this machine, which huggingface_hub downloads from as from huggingface.co, and models of
random weights in the files of the published ones.

FOLDER/models/OWNER/NAME and FOLDER/datasets/OWNER/NAME are its repositories. Whatever is asked of
OWNER/broken fails.
"""

import contextlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import safetensors.torch
import torch

from model import GPTNeo, GPTNeoConfig
from nanostories.checkpoints.huggingface import config_to_hf, hf_tensors, save_hf_tokenizer
from nanostories.corpus.tokenizer import gpt2
from nanostories.files import write_json

COMMIT = "1" * 40
REQUEST = re.compile(r"/(?:api/)?(?:(models|datasets)/)?(.+?)/(revision|tree|resolve)/[^/]+/?(.*)")


class Hub(BaseHTTPRequestHandler):
    def do_GET(self):
        kind, name, asked, file = REQUEST.fullmatch(urlsplit(self.path).path).groups()
        repository = self.server.folder / (kind or "models") / name
        path = repository / file
        if repository.name == "broken":
            self.answer(500, {})
        elif not repository.is_dir():
            self.answer(404, {"X-Error-Code": "RepoNotFound"})
        elif asked == "revision":
            self.answer(200, {}, json.dumps({"id": name, "sha": COMMIT}).encode())
        elif asked == "tree":
            files = []
            for path in repository.iterdir():
                files.append(dict(type="file", path=path.name, size=path.stat().st_size, oid="1"))
            self.answer(200, {}, json.dumps(files).encode())
        elif path.exists():
            # the cache keeps files by their ETags
            headers = {"ETag": f'"{path.name}"', "X-Repo-Commit": COMMIT}
            self.answer(200, headers, path.read_bytes())
        else:
            self.answer(404, {"X-Error-Code": "EntryNotFound"})

    do_HEAD = do_GET

    def answer(self, status: int, headers: dict, body: bytes = b""):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *args):
        pass


@contextlib.contextmanager
def serve(folder: Path):
    """Yields its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        server.folder = folder
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


# ---- Published models, but for their weights (and masks: tests/checkpoints) ----
def write_gpt_neo(repository: Path, width: int, n_layer: int, n_head: int, context: int) -> None:
    """As the TinyStories models are published: a pickle, no tokenizer."""
    tensors = write_config(repository, context, n_layer, n_head, width)
    torch.save(tensors, repository / "pytorch_model.bin")


def write_gpt2(repository: Path, width: int, n_layer: int, n_head: int, context: int) -> None:
    """As GPT-2 is: safetensors and a tokenizer.json."""
    gpt2_settings = dict(window_size=context, scale_attention=True, qkv_bias=True)
    tensors = write_config(repository, context, n_layer, n_head, width, **gpt2_settings)
    safetensors.torch.save_file(tensors, repository / "model.safetensors")
    save_hf_tokenizer(gpt2(), repository)


def write_config(repository: Path, *shape: int, **settings) -> dict[str, torch.Tensor]:
    """Writes config.json; returns random weights of that shape, by their names in transformers."""
    config = GPTNeoConfig(gpt2().vocab_size, *shape, **settings)
    repository.mkdir(parents=True)
    write_json(repository / "config.json", config_to_hf(config))
    torch.manual_seed(0)
    model = GPTNeo(config).requires_grad_(False)
    return {name: tensor.contiguous() for name, tensor in hf_tensors(model).items()}
