"""
A hub on this machine, which huggingface_hub downloads from as from huggingface.co, and models of
random weights in the files of the published ones.

$ python tests/local_hub.py FOLDER 8000  # real shapes, 15 GB; then HF_ENDPOINT=http://127.0.0.1:8000

FOLDER/models/OWNER/NAME and FOLDER/datasets/OWNER/NAME are its repositories.
"""

import contextlib
import json
import re
import shutil
import sys
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

COMMIT = "1" * 40
REQUEST = re.compile(r"/(?:api/)?(?:(models|datasets)/)?(.+?)/(revision|tree|resolve)/[^/]+/?(.*)")


class Hub(BaseHTTPRequestHandler):
    def __init__(self, folder: Path, *args):
        self.folder = folder
        super().__init__(*args)

    def do_GET(self):
        kind, name, asked, file = REQUEST.fullmatch(urlsplit(self.path).path).groups()
        repository = self.folder / (kind or "models") / name
        if not repository.is_dir():
            self.begin(404, 0, {"X-Error-Code": "RepoNotFound"})
        elif asked == "resolve":
            self.send_file(repository / file)
        elif asked == "revision":
            self.send_json({"id": name, "sha": COMMIT})
        else:
            files = []
            for path in repository.rglob("*"):
                if path.is_file():
                    name = path.relative_to(repository).as_posix()
                    size = path.stat().st_size
                    files.append(dict(type="file", path=name, size=size, oid=f"{size}-{name}"))
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
def serve(folder: Path, port: int = 0):
    """Yields its address."""
    with ThreadingHTTPServer(("127.0.0.1", port), partial(Hub, folder)) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


# ---- Published models, but for their weights ----
# name: width, layers, heads
GPT_NEO = {
    "roneneldan/TinyStories-1M": (64, 8, 16),
    "roneneldan/TinyStories-3M": (128, 8, 16),
    "roneneldan/TinyStories-8M": (256, 8, 16),
    "roneneldan/TinyStories-28M": (512, 8, 16),
    "roneneldan/TinyStories-33M": (768, 4, 16),
    "roneneldan/TinyStories-1Layer-21M": (1024, 1, 16),
    "roneneldan/TinyStories-2Layers-33M": (1024, 2, 16),
}
GPT2 = {
    "gpt2": (768, 12, 12),
    "gpt2-medium": (1024, 24, 16),
    "gpt2-large": (1280, 36, 20),
    "gpt2-xl": (1600, 48, 25),
}


def write_gpt_neo(repository: Path, width: int, n_layer: int, n_head: int, context=2048) -> None:
    """As the TinyStories models are published: a pickle with masks and head, no tokenizer."""
    import torch

    from nanostories.checkpoints.huggingface import hf_tensors

    config = dict(
        model_type="gpt_neo",
        architectures=["GPTNeoForCausalLM"],
        activation_function="gelu_new",
        attention_types=[[["global", "local"], n_layer // 2], [["global"], n_layer % 2]],
        hidden_size=width,
        intermediate_size=None,
        layer_norm_epsilon=1e-05,
        max_position_embeddings=context,
        num_heads=n_head,
        num_layers=n_layer,
        vocab_size=50257,
        window_size=256,
    )
    model = make(repository, config)
    tensors = {f"transformer.{name}": tensor for name, tensor in hf_tensors(model).items()}
    mask = torch.ones(1, 1, context, context, dtype=torch.bool).tril()
    for layer in range(n_layer):
        tensors[f"transformer.h.{layer}.attn.attention.bias"] = mask
        tensors[f"transformer.h.{layer}.attn.attention.masked_bias"] = torch.tensor(-1e9)
    tensors["lm_head.weight"] = model.wte.weight
    torch.save(tensors, repository / "pytorch_model.bin")


def write_gpt2(repository: Path, width: int, n_layer: int, n_head: int, context=1024) -> None:
    """As GPT-2 is: safetensors with masks, without prefix and head; and a tokenizer.json."""
    import safetensors.torch
    import torch

    from nanostories.checkpoints.huggingface import hf_tensors, save_hf_tokenizer
    from nanostories.corpus.tokenizer import gpt2

    config = dict(
        model_type="gpt2",
        architectures=["GPT2LMHeadModel"],
        activation_function="gelu_new",
        attn_pdrop=0.1,
        embd_pdrop=0.1,
        resid_pdrop=0.1,
        layer_norm_epsilon=1e-05,
        n_ctx=context,
        n_embd=width,
        n_head=n_head,
        n_layer=n_layer,
        n_positions=context,
        vocab_size=50257,
    )
    model = make(repository, config)
    tensors = {name: tensor.contiguous() for name, tensor in hf_tensors(model).items()}
    for layer in range(n_layer):
        tensors[f"h.{layer}.attn.bias"] = torch.ones(1, 1, context, context).tril()
    safetensors.torch.save_file(tensors, repository / "model.safetensors")
    save_hf_tokenizer(gpt2(), repository)


def make(repository: Path, config: dict):
    """Writes config.json; returns a random model of that shape."""
    import torch

    from model import GPTNeo
    from nanostories.checkpoints.huggingface import config_from_hf
    from nanostories.files import write_json

    repository.mkdir(parents=True, exist_ok=True)
    write_json(repository / "config.json", config)
    torch.manual_seed(0)
    return GPTNeo(config_from_hf(config)).requires_grad_(False)


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parents[1]))
    folder = Path(sys.argv[1])
    for shapes, write in ((GPT_NEO, write_gpt_neo), (GPT2, write_gpt2)):
        for name, shape in shapes.items():
            if not (folder / "models" / name / "config.json").exists():
                print(f"writing {name}", flush=True)
                write(folder / "models" / name, *shape)
    with serve(folder, int(sys.argv[2])) as address:
        print(f"serving {folder} at {address}", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
