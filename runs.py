"""
The directory of a run: its log, its curve, its checkpoints. What is written takes its name when it is whole.
"""

import contextlib
import csv
import dataclasses
import itertools
import os
from pathlib import Path

from matplotlib.figure import Figure

from config import ConfigError, TrainConfig
from model import load_checkpoint


class TrainingError(Exception):
    """The run cannot go on; the message says where it stands and what to try."""


@contextlib.contextmanager
def write_atomically(path: Path):
    """Gives a temporary path to write to; it takes the name `path` when all is written, or goes if anything fails."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        reason = f"{path}: cannot be written ({error.strerror}); what stood there before still does"
        raise TrainingError(f"{reason}. Make room, then --resume") from error
    finally:
        temporary.unlink(missing_ok=True)


# ---- The log ----

LOG_COLUMNS = ["step", "tokens", "train_loss", "val_loss", "bpb", "learning_rate", "grad_norm", "tokens_per_s", "mfu"]


class Log:
    """log.csv: one row per log interval, appended, readable while the run goes on."""

    def __init__(self, path: Path, last_step: int):
        """Goes on behind `last_step`: rows beyond it were written by a run that stopped before its checkpoint."""
        self.path = path
        self.rows = []
        if last_step and path.exists():
            with path.open(newline="") as file:
                self.rows = [row for row in csv.DictReader(file) if int(row["step"]) <= last_step]
        with write_atomically(path) as temporary, temporary.open("w", newline="") as file:
            writer = csv.DictWriter(file, LOG_COLUMNS)
            writer.writeheader()
            writer.writerows(self.rows)

    @property
    def last_step(self) -> int:
        return int(self.rows[-1]["step"]) if self.rows else 0

    def append(self, **row):
        self.rows.append(row)
        with self.path.open("a", newline="") as file:
            csv.DictWriter(file, LOG_COLUMNS).writerow(row)

    def plot(self, path: Path):
        figure = Figure(figsize=(7, 4.5), layout="constrained")
        axes = figure.subplots()
        for column, style in (("train_loss", dict(color="C0", alpha=0.6)), ("val_loss", dict(color="C1", marker="o"))):
            points = [(int(row["tokens"]) / 1e6, float(row[column])) for row in self.rows if row.get(column)]
            axes.plot(*zip(*points), label=column.replace("_loss", ""), **style)
        axes.set(xlabel="tokens seen (millions)", ylabel="loss (nats per token)", title=path.parent.name)
        axes.legend()
        axes.grid(alpha=0.3)
        with write_atomically(path) as temporary:
            figure.savefig(temporary, dpi=120, format="png")


# ---- Checkpoints ----

# What may change when a run goes on; everything else would make it another run.
RESUME_MAY_CHANGE = {
    "out_dir", "data_dir", "max_steps", "max_minutes", "log_interval", "eval_interval", "device", "compile",
}  # fmt: skip


def load_resumable(run: Path, config: TrainConfig) -> dict:
    """The run's last checkpoint, if the config asks for the same run."""
    path = run / "ckpt.pt"
    if not path.exists():
        raise ConfigError(f"{path}: no checkpoint to resume; leave out --resume to start the run")
    checkpoint = load_checkpoint(path)
    for key, value in dataclasses.asdict(config).items():
        before = checkpoint["train_config"].get(key, getattr(TrainConfig, key))  # older than the setting: its default
        if value != before and key not in RESUME_MAY_CHANGE:
            raise ConfigError(f"{path}: trained with {key}={before!r}, so it cannot go on with {key}={value!r}")
    return checkpoint


def make_room(run: Path):
    """Moves a run of the same name out of the way, so that nothing is lost by starting it again."""
    if (run / "ckpt.pt").exists() or (run / "best.pt").exists():
        number = next(i for i in itertools.count(1) if not run.with_name(f"{run.name}-{i}").exists())
        run.rename(run.with_name(f"{run.name}-{number}"))
        print(f"{run} existed: kept as {run.with_name(f'{run.name}-{number}')} (--resume would have gone on with it)")
    run.mkdir(parents=True, exist_ok=True)
