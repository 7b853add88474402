"""
The checkpoints that train.py writes: best.pt and ckpt.pt in a run's directory, and
step-1000/ckpt.pt along the way.

>>> model, tokenizer = load_run("out/demo")   # the best model so far, and its tokenizer
"""

import pickle
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from nanostories.cli import UserError
from nanostories.corpus.tokenizer import Tokenizer
from nanostories.files import read_json

if TYPE_CHECKING:  # just listing runs should not import torch
    from model import GPTNeo

CHECKPOINT_FORMAT = 4


def load_torch(path: Path) -> dict:
    """A dict of plain tensors and types that torch.save wrote; ValueError for anything else. No
    pickled code runs."""
    import torch

    try:
        with zipfile.ZipFile(path) as file:
            if file.testzip():  # compares checksums, as torch.load does not
                raise zipfile.BadZipFile
        return dict(torch.load(path, map_location="cpu", weights_only=True))
    except (
        OSError,
        TypeError,
        ValueError,
        RuntimeError,
        zipfile.BadZipFile,
        pickle.UnpicklingError,
    ) as error:
        reason = "cut short, damaged, of a torch before 1.6, or with code in it"
        raise UserError(f"{path}: not a readable weights file ({reason})") from error


def load_checkpoint(path: str | Path) -> dict:
    """A checkpoint of train.py. path: the file, or a run's directory (its best.pt). ValueError
    names the fault."""
    path = Path(path)
    if path.is_dir():
        path = path / ("best.pt" if (path / "best.pt").exists() else "ckpt.pt")
    if not path.is_file():
        runs = ", ".join(map(str, runs_below("out"))) or "none"
        raise UserError(
            f"{path}: no such checkpoint (train.py writes it at its first evaluation); in out/:"
            f" {runs}"
        )
    checkpoint = load_torch(path)
    if checkpoint.get("format") != CHECKPOINT_FORMAT:
        raise UserError(
            f"{path}: not of format {CHECKPOINT_FORMAT}, which this version reads; train it again"
        )
    return checkpoint


def from_checkpoint(checkpoint: dict) -> "GPTNeo":
    """The model, in eval mode. ValueError if the checkpoint does not fit this version's model."""
    from model import GPTNeoConfig
    from nanostories.variants import MODELS

    try:
        model = MODELS[checkpoint.get("architecture", "gptneo")](
            GPTNeoConfig(**checkpoint["model_config"])
        )
        model.load_state_dict(checkpoint["model"])
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise UserError(
            "the checkpoint's settings or weights do not fit this version's model"
        ) from error
    return model.eval()


def load_run(run: str | Path) -> tuple["GPTNeo", Tokenizer]:
    checkpoint = load_checkpoint(run)
    return from_checkpoint(checkpoint), Tokenizer(**checkpoint["vocabulary"])


# ---- Runs, by their directories ----
def newest_run(out_dir: str | Path = "out") -> Path:
    checkpoints = sorted(Path(out_dir).glob("*/ckpt.pt"), key=lambda path: path.stat().st_mtime)
    if not checkpoints:
        raise UserError(
            f"no run under {out_dir}/ yet: train one with `python train.py`, or name one"
        )
    return checkpoints[-1].parent


def kept_checkpoints(run: str | Path) -> dict[int, Path]:
    """{step: directory}, in order, of the weights that train.py --keep_checkpoints kept along the
    way."""
    kept = {
        path.parent.name.removeprefix("step-"): path.parent
        for path in Path(run).glob("step-*/ckpt.pt")
    }
    return dict(
        sorted((int(step), directory) for step, directory in kept.items() if step.isdecimal())
    )


def runs_below(directory: str | Path) -> list[Path]:
    """The runs at or below `directory`, by name, without the weights that they kept (except
    `directory` itself)."""
    runs = sorted(path.parent for path in Path(directory).rglob("ckpt.pt"))
    return [run for run in runs if run == Path(directory) or not run.match("step-[0-9]*")]


def checkpoint_paths(model: str, which: str) -> list[str]:
    """The paths that --model and --checkpoint (best, last, all or a step) name: out/demo, whose
    best.pt will be read, out/demo/ckpt.pt, and kept weights such as out/demo/step-1000. A model
    that is not a run is returned as is."""
    if which == "best" or not Path(model).is_dir():
        return [model]
    if which == "last":
        return [str(Path(model, "ckpt.pt"))]
    kept = kept_checkpoints(model)
    if chosen := [
        str(directory) for step, directory in kept.items() if which in ("all", str(step))
    ]:
        return chosen
    steps = ", ".join(map(str, kept)) or "none: train with --keep_checkpoints=10"
    raise UserError(
        f"{model}: --checkpoint {which} is not best, last or one of the kept steps ({steps})"
    )


def checkpoint_path(model: str, which: str) -> str:
    """The one path of checkpoint_paths."""
    if which == "all":
        raise UserError("--checkpoint all: this command takes one checkpoint")
    return checkpoint_paths(model, which)[0]


def directory_of(model: str) -> Path:
    """Where a model's samples go: the run itself, out/roneneldan--TinyStories-8M, or
    out/api--gpt-3.5-turbo."""
    kind, _, rest = model.partition(":")
    if kind == "api":
        return Path("out", f"api--{rest.replace('/', '--')}")
    if kind == "hf":
        return Path(
            "out", Path(rest).resolve().name if Path(rest).is_dir() else rest.replace("/", "--")
        )
    return Path(model) if Path(model).is_dir() else Path(model).parent


def find_training_corpus(checkpoint: dict) -> Path | None:
    """The corpus that a run was trained on, told by the checksum of its training stories: when
    another one takes its name, prepare.py renames it. None if it is gone."""
    if "train_config" not in checkpoint:  # not of train.py
        return None
    named = Path(checkpoint["train_config"]["data_dir"], checkpoint["train_config"]["data"])
    for path in (named / "meta.json", *named.parent.glob(f"{named.name}-*/meta.json")):
        splits = read_json(path).get("splits", {}) if path.exists() else {}
        if splits.get("train", {}).get("sha256") == checkpoint["data_sha256"]:
            return path.parent
    return None


def corpus_of(model: str) -> Path:
    """That of a run, or where it was. ValueError if another one is there now: no command pairs that
    with the run."""
    if model.startswith(("hf:", "api:")):
        raise UserError(
            f"--eval with {model} needs --data, a corpus that prepare.py made, such as"
            " data/tinystories"
        )
    checkpoint = load_checkpoint(model)
    named = Path(checkpoint["train_config"]["data_dir"], checkpoint["train_config"]["data"])
    found = find_training_corpus(checkpoint)
    if not found and (named / "meta.json").exists():
        leak = "the run may have learned some of its validation stories"
        raise UserError(
            f"{model} was trained on other stories than {named} holds now: {leak}; train it again"
        )
    return found or named
