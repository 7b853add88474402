"""
checkpoints.checkpoint
"""

import pickle
import struct
from pathlib import Path

import torch

from corpus.tokenizer import Tokenizer
from model import GPTNeo, GPTNeoConfig
from variants.compressor import MODELS

CHECKPOINT_FORMAT = 1


# What torch.load raises where bytes are missing or wrong, found by damaging files at random.
DAMAGE = (RuntimeError, EOFError, OSError, LookupError, ValueError, TypeError, AttributeError, AssertionError)
DAMAGE += (struct.error, pickle.UnpicklingError)


def load_torch(path: Path, otherwise: str) -> object:
    """What torch.save wrote, of plain tensors and types; code that hides in it is refused, never run."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except DAMAGE as error:
        raise ValueError(f"{path}: {otherwise}") from error


def load_checkpoint(path: str | Path) -> dict:
    """A checkpoint written by train.py, as a dict of plain tensors and types; of a run (a directory) its best.

    ValueError names what is wrong.
    """
    path = Path(path)
    if path.is_dir():
        path = path / ("best.pt" if (path / "best.pt").exists() else "ckpt.pt")
    if not path.is_file():
        raise ValueError(f"{path}: no such checkpoint (train.py writes it at its first evaluation)")
    checkpoint = load_torch(path, "not a readable checkpoint (cut short, or not written by train.py)")
    if not isinstance(checkpoint, dict) or "format" not in checkpoint:
        raise ValueError(f"{path}: not a checkpoint of this project")
    if checkpoint["format"] != CHECKPOINT_FORMAT:
        raise ValueError(f"{path}: format {checkpoint['format']}, but this version reads {CHECKPOINT_FORMAT}")
    return checkpoint


def from_checkpoint(checkpoint: dict, model_class: type[GPTNeo] = GPTNeo) -> GPTNeo:
    """ValueError if it is of a model with other parts."""
    try:
        model = model_class(GPTNeoConfig(**checkpoint["model_config"]))
        model.load_state_dict(checkpoint["model"])
    except (TypeError, RuntimeError) as error:
        raise ValueError("the checkpoint's settings or weights are not those of this version's model") from error
    return model.eval()


def newest_run(out_dir: str | Path = "out") -> Path:
    checkpoints = sorted(Path(out_dir).glob("*/ckpt.pt"), key=lambda path: path.stat().st_mtime)
    if not checkpoints:
        raise ValueError(f"no run under {out_dir}/ yet: train one with `python train.py`, or name one with --model")
    return checkpoints[-1].parent


def load_run(run: str | Path) -> tuple[GPTNeo, Tokenizer]:
    checkpoint = load_checkpoint(run)
    model_class = MODELS[checkpoint.get("model_class", "gptneo")]
    return from_checkpoint(checkpoint, model_class), Tokenizer(checkpoint["gpt2_ids"])


def directory_of(model: str) -> Path:
    """Where its samples belong: in the run itself, in out/roneneldan--TinyStories-8M, in out/api--gpt-3.5-turbo."""
    kind, _, rest = model.partition(":")
    if kind == "api":
        return Path("out", f"api--{rest.replace('/', '--')}")
    if kind == "hf":
        return Path("out", Path(rest).resolve().name if Path(rest).is_dir() else rest.replace("/", "--"))
    return Path(model) if Path(model).is_dir() else Path(model).parent


def corpus_of(model: str) -> Path:
    if model.startswith(("hf:", "api:")):
        raise ValueError(f"--eval with {model} needs --data, a corpus that prepare.py made, such as data/tinystories")
    config = load_checkpoint(model)["train_config"]
    return Path(config["data_dir"], config["data"])
