"""A run's directory: its lock, its log, and the weights that it keeps. All but the log is written
atomically."""

import contextlib
import csv
import math
from collections.abc import Mapping
from pathlib import Path

from nanostories.checkpoints.checkpoint import save_checkpoint
from nanostories.files import lock, set_aside, write_json
from nanostories.tables import write_table

# done: fraction of the run. seconds: of training, without compiling, validation and saving. mfu: on
# GPUs whose peak is known.
LOG_COLUMNS = (
    "step tokens done train_loss val_loss bpb learning_rate grad_norm tokens_per_s seconds mfu"
).split()


# ---- The directory and its log ----
@contextlib.contextmanager
def open_run_directory(run: Path, settings: dict, last_step: int | None):
    """Locks the run's directory, and writes config.json and the beginning of log.csv.

    last_step: that of the run that is resumed; its log keeps the rows up to there. None: a new run;
    an older one in the directory is renamed."""
    busy = f"another train.py trains {run.name}; choose another --name, or wait"
    with lock(run.parent, f".{run.name}.lock", busy):
        rows = []
        if last_step is not None:
            rows = [row for row in read_log(run / "log.csv") if int(row["step"]) <= last_step]
        elif run.is_dir() and {path.name for path in run.iterdir()} - {"config.json", "log.csv"}:
            older = set_aside(run)  # it has more than a run that was killed before it saved
            print(f"{run} existed: renamed to {older} (--resume continues a run)")
        run.mkdir(exist_ok=True)
        write_json(run / "config.json", settings)
        write_table(run / "log.csv", rows, LOG_COLUMNS)
        yield


def append_row(path: Path, row: dict) -> None:
    with path.open("a", newline="") as file:
        csv.DictWriter(file, LOG_COLUMNS).writerow(row)


def read_log(path: Path) -> list[dict]:
    """The complete rows: the last one may have been cut short with its run."""
    with path.open(newline="") as file:
        return list(csv.DictReader(line for line in file if line.endswith("\n")))


def percent_trained(done: float) -> str:
    """ "12% trained", rounded down; "" for a finished run. done: a fraction"""
    return f"{math.floor(100 * done + 1e-6)}% trained" if done < 1 else ""


def partly_trained(run: Path) -> str:
    """A note on a run that was stopped or goes on; "" for a finished one, or a kept checkpoint."""
    if run.match("step-[0-9]*") or not (run / "log.csv").exists():
        return ""
    rows = read_log(run / "log.csv")
    return percent_trained(float(rows[-1]["done"]) if rows else 0.0)


def warn_of_partly_trained(runs: Mapping[str, Path]) -> list[str]:
    """runs: {name in tables: directory}"""
    warnings = []
    for name, directory in runs.items():
        note = partly_trained(directory)
        if note:
            warnings.append(f"{name} ({note}): stopped, or still being trained")
    return warnings


# ---- Weights on the way ----
def checkpoint_due(n: int, before: float, after: float) -> bool:
    """Whether to keep the weights after a step: has it passed 1/n, 2/n, … of the run?

    before, after: the fraction that was done before and after the step."""
    # 1e-9: so that ten steps of 0.1 are 1
    return int(n * after + 1e-9) > int(n * before + 1e-9)


def keep_weights(run: Path, weights: dict, row: dict) -> None:
    """run/step-1000, in the form of a run, with one row of the log. ckpt.pt comes last: it makes
    the run complete."""
    directory = run / f"step-{row['step']}"
    directory.mkdir(exist_ok=True)
    write_json(directory / "config.json", weights["train_config"])
    write_table(directory / "log.csv", [row], LOG_COLUMNS)
    save_checkpoint(directory / "ckpt.pt", weights)
