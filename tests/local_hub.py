"""
A hub on this machine, which huggingface_hub downloads from as from huggingface.co, and models of
random weights in the files of the published ones.

FOLDER/models/OWNER/NAME and FOLDER/datasets/OWNER/NAME are its repositories. Whatever is asked of
OWNER/broken fails.
"""

import contextlib
import json
import re
import shutil
import threading
from functools import partial
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
    def __init__(self, folder: Path, *args):
        self.folder = folder
        super().__init__(*args)

    def do_GET(self):
        kind, name, asked, file = REQUEST.fullmatch(urlsplit(self.path).path).groups()
        repository = self.folder / (kind or "models") / name
        if repository.name == "broken":
            self.begin(500, 0, {})
        elif not repository.is_dir():
            self.begin(404, 0, {"X-Error-Code": "RepoNotFound"})
        elif asked == "resolve":
            self.send_file(repository / file)
        elif asked == "revision":
            self.send_json({"id": name, "sha": COMMIT})
        else:
            files = []
            for path in repository.iterdir():
                size = path.stat().st_size
                oid = f"{size}-{path.name}"
                files.append(dict(type="file", path=path.name, size=size, oid=oid))
            self.send_json(files)

    do_HEAD = do_GET

    def begin(self, status: int, length: int, headers: dict) -> None:
        self.send_response(status)
        for name, value in (headers | {"Content-Length": length}).items():
            self.send_header(name, str(value))
        self.end_headers()

    def send_json(self, content) -> None:
        body = json.dumps(content).encode()
        self.begin(200, len(body), {"Content-Type": "application/json"})
        self.wfile.write(body)

    def send_file(self, path: Path) -> None:
        if not path.exists():
            self.begin(404, 0, {"X-Error-Code": "EntryNotFound"})
            return
        size = path.stat().st_size
        headers = {"ETag": f'"{size}-{path.name}"', "X-Repo-Commit": COMMIT}
        self.begin(200, size, headers)
        if self.command == "GET":
            with path.open("rb") as file:
                shutil.copyfileobj(file, self.wfile)

    def log_message(self, *args):
        pass


@contextlib.contextmanager
def serve(folder: Path):
    """Yields its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Hub, folder)) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


# ---- Published models, but for their weights ----
def write_gpt_neo(repository: Path, width: int, n_layer: int, n_head: int, context: int) -> None:
    """As the TinyStories models are published: a pickle with masks and head, no tokenizer."""
    tensors = {}
    for name, tensor in write_config(repository, context, n_layer, n_head, width).items():
        tensors[f"transformer.{name}"] = tensor
    mask = torch.ones(1, 1, context, context, dtype=torch.bool).tril()
    for layer in range(n_layer):
        tensors[f"transformer.h.{layer}.attn.attention.bias"] = mask
        tensors[f"transformer.h.{layer}.attn.attention.masked_bias"] = torch.tensor(-1e9)
    tensors["lm_head.weight"] = tensors["transformer.wte.weight"]
    torch.save(tensors, repository / "pytorch_model.bin")


def write_gpt2(repository: Path, width: int, n_layer: int, n_head: int, context: int) -> None:
    """As GPT-2 is: safetensors with masks, without prefix and head; and a tokenizer.json."""
    gpt2_settings = dict(window_size=context, scale_attention=True, qkv_bias=True)
    tensors = write_config(repository, context, n_layer, n_head, width, **gpt2_settings)
    for layer in range(n_layer):
        tensors[f"h.{layer}.attn.bias"] = torch.ones(1, 1, context, context).tril()
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
