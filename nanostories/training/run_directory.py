"""A run's directory: its log and checkpoints; locking and resuming it. All but the log is written
atomically."""

import contextlib
import csv
import io
from pathlib import Path

import torch

from nanostories.checkpoints.checkpoint import load_checkpoint
from nanostories.cli import UserError
from nanostories.files import lock, set_aside, write_bytes, write_json
from nanostories.tables import write_table
from nanostories.training.config import TrainConfig
from nanostories.training.start_from import with_shape

# done: fraction of the run. seconds: of training, without compiling, validation and saving. mfu: on
# GPUs whose peak is known.
LOG_COLUMNS = (
    "step tokens done train_loss val_loss bpb learning_rate grad_norm tokens_per_s seconds mfu"
).split()
# Settings that may change when a run is resumed; any other would make it another run. A lower
# learning_rate and another dtype are the remedies for a loss that became infinite, smaller batches
# for too little memory.
RESUME_MAY_CHANGE = set(
    "name out_dir data data_dir max_steps epochs max_minutes learning_rate dtype batch_size"
    " grad_accum_steps log_interval eval_interval keep_checkpoints device compile".split()
)


# ---- The directory and its log ----
@contextlib.contextmanager
def open_run_directory(run: Path, config: TrainConfig, last_step: int | None):
    """Locks the run's directory, and writes config.json and the beginning of log.csv.

    last_step: that of the run that is resumed; its log keeps the rows up to there. None: a new run;
    an older one in the directory is renamed."""
    busy = f"another train.py trains {run.name}; choose another --name, or wait"
    with lock(run.parent, f".{run.name}.lock", busy):
        rows = []
        if last_step is not None:
            rows = [row for row in read_log(run / "log.csv") if int(row["step"]) <= last_step]
        elif any(run.glob("*.pt")):
            print(f"{run} existed: renamed to {set_aside(run)} (--resume would have continued it)")
        run.mkdir(exist_ok=True)
        write_json(run / "config.json", vars(config))
        write_table(run / "log.csv", rows, LOG_COLUMNS)
        yield


def append_row(path: Path, row: dict) -> None:
    with path.open("a", newline="") as file:
        csv.DictWriter(file, LOG_COLUMNS).writerow(row)


def read_log(path: Path) -> list[dict]:
    """The complete rows: the last one may have been cut short with its run."""
    with path.open(newline="") as file:
        return list(csv.DictReader(line for line in file if line.endswith("\n")))


def partly_trained(run: Path) -> str:
    """ " (12% trained)", a note on a run that was stopped or goes on; "" for a finished one, or a
    kept checkpoint."""
    if run.match("step-[0-9]*") or not (run / "log.csv").exists():
        return ""
    rows = read_log(run / "log.csv")
    done = float(rows[-1]["done"]) if rows else 0.0
    return f" ({done:.0%} trained)" if done < 1 else ""


# ---- Checkpoints ----
def checkpoint_due(n: int, before: float, after: float) -> bool:
    """Whether to keep the weights after a step: has it passed 1/n, 2/n, … of the run?

    before, after: the fraction that was done before and after the step."""
    # 1e-9: so that ten steps of 0.1 are 1
    return int(n * after + 1e-9) > int(n * before + 1e-9)


def save_checkpoint(path: Path, state: dict) -> None:
    # On a full disk, writing bytes fails with a clear error; torch.save to a file does not.
    buffer = io.BytesIO()
    torch.save(state, buffer)
    write_bytes(path, buffer.getbuffer())


def keep_weights(run: Path, weights: dict, config: TrainConfig, row: dict) -> None:
    """run/step-1000, in the form of a run, with one row of the log. ckpt.pt comes last: it makes
    the run complete."""
    directory = run / f"step-{row['step']}"
    directory.mkdir(exist_ok=True)
    write_json(directory / "config.json", vars(config))
    write_table(directory / "log.csv", [row], LOG_COLUMNS)
    save_checkpoint(directory / "ckpt.pt", weights)


def load_resumable(run: Path, config: TrainConfig) -> tuple[dict, TrainConfig]:
    """The run's last checkpoint, and the config, with the shape that start_from gave the run.
    UserError if the config asks for another run."""
    path = run / "ckpt.pt"
    checkpoint = load_checkpoint(path)
    trained = TrainConfig(**checkpoint["train_config"])
    if config.start_from:
        config = with_shape(config, vars(trained))
    for name in ["sequences_per_step", *vars(config)]:
        before = getattr(trained, name)
        now = getattr(config, name)
        if now != before and name not in RESUME_MAY_CHANGE:
            problem = f"trained with {name}={before!r}"
            raise UserError(f"{path}: {problem}; it cannot be resumed with {name}={now!r}")
    return checkpoint, config
