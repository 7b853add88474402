"""
A model by its name: a run or one of its checkpoints, hf:ID-or-directory, or api:MODEL. A command
opens the names on its command line once, and passes each Model on.

>>> model = open_model("out/demo")
>>> model.directory, model.corpus, model.checkpoint["step"]
(PosixPath('out/demo'), PosixPath('data/builtin'), 1400)
"""

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from nanostories.checkpoints.checkpoint import (
    checkpoint_file,
    find_training_corpus,
    kept_checkpoints,
    load_checkpoint,
    named_corpus,
    newest_run,
)
from nanostories.cli import UserError


@dataclass(eq=False)
class Model:
    name: str  # as in --model

    @property
    def kind(self) -> str:
        """One of "run", "hf" and "api"."""
        for kind in ("hf", "api"):
            if self.name.startswith(f"{kind}:"):
                return kind
        return "run"

    @property
    def reference(self) -> str:
        """The name without hf: or api:."""
        return self.name if self.kind == "run" else self.name.partition(":")[2]

    @property
    def directory(self) -> Path:
        """Where its samples and results go."""
        path = Path(self.reference)
        if self.kind == "run":
            return path if path.is_dir() else path.parent
        name = self.reference.replace("/", "--")
        if self.kind == "api":
            name = f"api--{name}"
        elif path.is_dir():
            name = path.resolve().name
        return Path("out", name)

    @property
    def files(self) -> list[Path]:
        """Of a run: its checkpoint, for the sources of results."""
        if self.kind != "run":
            return []
        return [checkpoint_file(self.name)]

    @cached_property
    def checkpoint(self) -> dict:
        """Of a run: its weights, settings and vocabulary (checkpoint.py)."""
        return load_checkpoint(self.name)

    @cached_property
    def corpus(self) -> Path | None:
        """The corpus that a run was trained on; None if it is gone, or for any other model."""
        if self.kind != "run":
            return None
        return find_training_corpus(self.checkpoint)

    def evaluation_corpus(self) -> Path:
        """The run's own corpus, or where it was if it is gone. UserError if another one has its
        name now: the run may have learned its validation stories."""
        if self.kind != "run":
            raise UserError(
                f"{self.name} needs --data, a corpus that prepare.py made, such as data/tinystories"
            )
        named = named_corpus(self.checkpoint)
        if not self.corpus and (named / "meta.json").exists():
            raise UserError(
                f"{self.name} was trained on other stories than {named} holds now, and may have"
                " learned some of its validation stories; train it again, or name --data"
            )
        return self.corpus or named

    def label(self, base: Path) -> str:
        """Its name in tables: its path from the directory of the results, if it is below it."""
        if self.kind != "run":
            return self.name
        return label_of(Path(self.name), base)


def label_of(path: Path, base: Path) -> str:
    """The path from `base`, if it is below it; else the path as given."""
    # also resolved: out/, or a run in it, may be a symbolic link
    places = (os.path.relpath(path, base), os.path.relpath(path.resolve(), base.resolve()))
    for place in places:
        if place == ".":
            return path.resolve().name
        if not place.startswith(".."):
            return place
    return str(path)


def open_model(name: str = "", checkpoint: str = "best") -> Model:
    """name: "" for the newest run in out/. checkpoint: as in --checkpoint, of a run: "best",
    "last" or a step that it kept."""
    if checkpoint == "all":
        raise UserError("--checkpoint all: this command takes one checkpoint")
    (model,) = open_models(name, checkpoint)
    return model


def open_models(name: str = "", checkpoint: str = "best") -> list[Model]:
    """As open_model; checkpoint "all" gives each step that a run kept."""
    model = Model(name or str(newest_run()))
    if model.kind != "run":
        return [model]
    run = Path(model.name)
    if checkpoint != "best" and not run.is_dir():
        raise UserError(f"--checkpoint {checkpoint}: {run} is not the directory of a run")
    kept = kept_checkpoints(run)
    paths = {str(step): [path] for step, path in kept.items()}
    paths |= {"best": [run], "last": [run / "ckpt.pt"], "all": list(kept.values())}
    if not paths.get(checkpoint):
        steps = ", ".join(map(str, kept)) or "none: train with --keep_checkpoints=10"
        raise UserError(
            f"{run}: --checkpoint {checkpoint} is not best, last or one of the kept steps ({steps})"
        )
    return [Model(str(path)) for path in paths[checkpoint]]
