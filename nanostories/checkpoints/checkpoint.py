"""
The checkpoints that train.py writes: best.pt and ckpt.pt in a run's directory, and
step-1000/ckpt.pt along the way.

>>> model = from_checkpoint(load_checkpoint("out/demo"))   # the best one so far
"""

import io
import pickle
import zipfile
import zlib
from pathlib import Path

from safetensors import SafetensorError

from nanostories.cli import UserError
from nanostories.files import read_json, write_bytes

# torch takes seconds to import, and listing runs needs none of it: only functions import it.
CHECKPOINT_FORMAT = 6
# What readers raise for files that are damaged, or hold anything but plain tensors.
UNREADABLE = (
    OSError,
    TypeError,
    ValueError,
    RuntimeError,
    zipfile.BadZipFile,
    zlib.error,
    pickle.UnpicklingError,
    SafetensorError,
)


# ---- Files ----
def load_tensors(path: Path) -> dict:
    """The dict in a file of torch.save or safetensors. UserError if the file is damaged, or holds
    anything but tensors and plain types: no code in it runs."""
    import torch
    from safetensors.torch import load_file

    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        # torch.load compares no checksums: it would load many damaged files, with other weights.
        with zipfile.ZipFile(path) as file:
            if file.testzip():
                raise zipfile.BadZipFile
        return dict(torch.load(path, map_location="cpu", weights_only=True))
    except UNREADABLE as error:
        reason = "cut short, damaged, of a torch before 1.6, with code in it, or not yours to read"
        raise UserError(f"{path}: not a readable weights file ({reason})") from error


def checkpoint_file(path: str | Path) -> Path:
    """path: the file, or a run's directory, whose best.pt is read, or ckpt.pt where
    there is none."""
    path = Path(path)
    if path.is_dir():
        name = "best.pt" if (path / "best.pt").exists() else "ckpt.pt"
        return path / name
    return path


def load_checkpoint(path: str | Path) -> dict:
    """A checkpoint of train.py, as `checkpoint_file` finds it."""
    run = Path(path)
    path = checkpoint_file(run)
    if not path.is_file():
        directory = run.parent if run.suffix == ".pt" else run
        problem = "no such run"
        if directory.is_dir():
            problem = "no checkpoint there (train.py writes one at its first evaluation)"
        runs = ", ".join(map(str, runs_below("out"))) or "none"
        raise UserError(f"{run}: {problem}; runs in out/: {runs}")
    checkpoint = load_tensors(path)
    if checkpoint.get("format") != CHECKPOINT_FORMAT:
        raise UserError(
            f"{path}: not of format {CHECKPOINT_FORMAT}, which this version reads; train it again"
        )
    return checkpoint


def save_checkpoint(path: Path, checkpoint: dict) -> None:
    import torch

    # On a full disk, writing bytes fails with a clear error; torch.save to a file does not.
    buffer = io.BytesIO()
    torch.save(checkpoint, buffer)
    write_bytes(path, buffer.getbuffer())


def weights_identity(model) -> str:
    """Tells the weights of a GPTNeo from others of the same name."""
    # on the CPU, as Macs' GPUs have no float64; nine digits, as threads may sum in another order
    weights = [weight.detach().cpu().double() for weight in model.parameters()]
    return f"{sum(weight.abs().sum().item() for weight in weights):.9e}"


def identity_of_checkpoint(path: str | Path) -> str:
    return weights_identity(from_checkpoint(load_checkpoint(path)))


def from_checkpoint(checkpoint: dict):
    """The model of a checkpoint, in eval mode."""
    from model import GPTNeoConfig
    from nanostories.variants import MODELS

    model_class = MODELS[checkpoint["architecture"]]
    model = model_class(GPTNeoConfig(**checkpoint["model_config"]))
    model.load_state_dict(checkpoint["model"])
    return model.eval()


# ---- Finding runs ----
def newest_run() -> Path:
    checkpoints = list(Path("out").glob("*/ckpt.pt"))
    if not checkpoints:
        raise UserError("no run under out/ yet: train one with `python train.py`, or name one")
    return max(checkpoints, key=lambda path: path.stat().st_mtime).parent


def runs_below(directory: str | Path) -> list[Path]:
    """The runs at or below a directory, sorted by path. The checkpoints that a run kept along the
    way are no runs of their own, but `directory` may be one."""
    runs = sorted(path.parent for path in Path(directory).rglob("ckpt.pt"))
    return [run for run in runs if run == Path(directory) or not run.match("step-[0-9]*")]


def kept_checkpoints(run: str | Path) -> dict[int, Path]:
    """{step: directory} of the weights that train.py --keep_checkpoints kept, in order of steps."""
    kept = {}
    for path in Path(run).glob("step-*/ckpt.pt"):
        step = path.parent.name.removeprefix("step-")
        if step.isdecimal():
            kept[int(step)] = path.parent
    return dict(sorted(kept.items()))


# ---- The corpus of a run ----
def named_corpus(checkpoint: dict) -> Path:
    """Where the corpus of a run was when it was trained."""
    config = checkpoint["train_config"]
    return Path(config["data_dir"], config["data"])


def find_training_corpus(checkpoint: dict) -> Path | None:
    """The corpus that a run was trained on; None if it is gone.

    It is told by the checksum of its training stories, as prepare.py renames it (data/x becomes
    data/x-1) when another one takes its name.
    """
    named = named_corpus(checkpoint)
    renamed = named.parent.glob(f"{named.name}-*")
    for directory in (named, *renamed):
        path = directory / "meta.json"
        if path.exists():
            splits = read_json(path).get("splits", {})  # others' meta.json may have none
            if splits.get("train", {}).get("sha256") == checkpoint["data_sha256"]:
                return directory
    return None
