"""
Reads what the commands have written below a directory: its runs, its experiments, and their files.

>>> results = Results(Path("out"))
>>> results.of_runs("log.csv", read_curve)  # {name of a run: rows}; results.damaged says what could not be read
"""

import csv
import itertools
import json
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import torch

from checkpoints.checkpoint import is_kept, kept_checkpoints, load_checkpoint
from common.files import read_json
from common.tables import read_table
from generation.samples_file import run_of
from model import GPTNeoConfig
from novelty.rouge_analysis import FORMAT as ROUGE_FORMAT
from training.run_directory import read_log, training_seconds
from variants.compressor import MODELS

# Errors from reading a file that was cut short, or written by another version.
DAMAGED = (OSError, ValueError, KeyError, TypeError, EOFError, csv.Error, zlib.error, zipfile.BadZipFile)


class Results:
    """The runs and experiments below a directory, and their files, each of which may be absent or damaged."""

    def __init__(self, directory: Path):
        self.directory = directory
        self.experiments = sorted(path.parent for path in directory.rglob("experiment.csv"))
        logs = itertools.chain(directory.rglob("log.csv"), directory.rglob("samples.jsonl"))
        inside = {experiment for experiment in self.experiments if experiment != directory}
        runs = sorted({path.parent for path in logs if not inside & set(path.parents)})
        self.runs = {self.name(run): run for run in runs if run == directory or not is_kept(run)}
        self.kept = {}  # {name of a checkpoint kept during training: (name of its run, step)}
        for name, run in self.runs.items():
            self.kept |= {self.name(path): (name, step) for step, path in kept_checkpoints(run).items()}
        self.is_one_run = directory in runs  # then tables of several runs may be in the parent directory
        self.damaged = []

    def name(self, run: str | Path) -> str:
        """Its name on the page: the part of its path below the directory."""
        run, top = Path(run).resolve(), self.directory.resolve()
        return run.relative_to(top).as_posix() if top in run.parents else run.name

    def shared(self, name: str) -> Path:
        """The path of a file about several runs."""
        below = self.directory / name
        return self.directory.resolve().parent / name if self.is_one_run and not below.exists() else below

    def is_shown(self, run: str) -> bool:
        """A page of one run shows only that run, at any temperature it was sampled at."""
        is_own = run_of(Path(run)).name == self.directory.resolve().name or run in self.runs
        return is_own or not self.is_one_run

    def link(self, path: Path) -> str:
        """Its address in links from a page in the directory."""
        return quote(path.relative_to(self.directory).as_posix())

    def read(self, path: Path, parse: Callable):
        """parse(path); None if there is no such file, or if it is damaged, which the page then mentions."""
        if not path.is_file():
            return None
        try:
            return parse(path)
        except DAMAGED as error:
            reason = str(error).removeprefix(f"{path}: ")
            line = f"{path}: left out because it cannot be read ({reason})"
            self.damaged += [line] * (line not in self.damaged)  # several sections may read it
            return None

    def of_runs(self, name: str, parse: Callable) -> dict:
        """{name of a run: the content of this file of it}, of the runs that have it."""
        contents = {run: self.read(path / name, parse) for run, path in self.runs.items()}
        return {run: content for run, content in contents.items() if content}


# ---- Files ----


def numbers(*columns: str, read: Callable = read_table) -> Callable[[Path], list[dict]]:
    """A function that reads a table, with numbers in these columns, or None where a cell is empty."""

    def parse(path: Path) -> list[dict]:
        return [row | {name: float(row[name]) if row[name] else None for name in columns} for row in read(path)]

    return parse


def read_curve(path: Path) -> list[dict]:
    """The complete rows of log.csv as numbers, with the seconds of training until each."""
    rows = numbers("tokens", "train_loss", "val_loss", "bpb", "tokens_per_s", read=read_log)(path)
    return [row | dict(seconds=seconds) for row, seconds in zip(rows, training_seconds(rows))]


def size_and_shape(run: Path) -> tuple[int, str]:
    """Parameters; width-layers-heads."""
    checkpoint = load_checkpoint(run)
    config = GPTNeoConfig(**checkpoint["model_config"])
    with torch.device("meta"):  # nothing is computed
        model = MODELS[checkpoint.get("model_class", "gptneo")](config)
    return model.num_params(), f"{config.n_embd}-{config.n_layer}-{config.n_head}"


def read_rouge(path: Path) -> dict:
    analysis = read_json(path)
    if analysis.get("format") != ROUGE_FORMAT:
        raise ValueError("written by another version of rouge.py; run it again")
    return analysis


def read_records(path: Path) -> list[dict]:
    """Infinity, of a loss that was never reached, becomes None."""
    return [json.loads(line, parse_constant=lambda _: None) for line in path.read_text().splitlines()]
