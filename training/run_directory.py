"""
A run's directory: its log, loss curve and checkpoints; locking and resuming it. All but the log is written atomically.
"""

import contextlib
import csv
import dataclasses
import io
import itertools
import json
from pathlib import Path

import torch
from matplotlib.figure import Figure

from checkpoints.checkpoint import kept_checkpoints, load_checkpoint
from common.files import fcntl, lock, write_atomically
from training.config import ConfigError, TrainConfig

BUSY = "another train.py is running there; choose another --name, or wait"


class TrainingError(ValueError):
    """The run cannot go on; the message says where it stands and what to try."""


@contextlib.contextmanager
def write_run_file(path: Path, previous: Path | None = None):
    """common.files.write_atomically, with a TrainingError that says what to do."""
    try:
        with write_atomically(path, previous) as temporary:
            yield temporary
    except OSError as error:
        reason = f"{path}: cannot be written ({error.strerror}); the old file is unchanged"
        raise TrainingError(f"{reason}. Free some space, then --resume") from error


def write_config(path: Path, config: TrainConfig) -> None:
    with write_run_file(path) as temporary:
        temporary.write_text(json.dumps(dataclasses.asdict(config), indent=2) + "\n")


# ---- The log ----

LOG_COLUMNS = ["step", "tokens", "train_loss", "val_loss", "bpb", "learning_rate", "grad_norm", "tokens_per_s", "mfu"]


class Log:
    """log.csv: one row per log interval, appended, readable during the run."""

    def __init__(self, path: Path, last_step: int):
        """Continues after `last_step`: rows beyond it were written by a run that stopped before its next checkpoint."""
        self.path = path
        self.rows = []
        if last_step and path.exists():
            self.rows = [row for row in read_log(path) if int(row["step"]) <= last_step]
        with write_run_file(path) as temporary, temporary.open("w", newline="") as file:
            writer = csv.DictWriter(file, LOG_COLUMNS)
            writer.writeheader()
            writer.writerows(self.rows)

    @property
    def last_step(self) -> int:
        return int(self.rows[-1]["step"]) if self.rows else 0

    def append(self, **row):
        self.rows.append(dict.fromkeys(LOG_COLUMNS, "") | row)
        try:
            with self.path.open("a", newline="") as file:
                csv.DictWriter(file, LOG_COLUMNS).writerow(row)
        except OSError as error:
            reason = f"{self.path}: cannot be written ({error.strerror})"
            raise TrainingError(f"{reason}; the checkpoints are intact. Free some space, then --resume") from error


def read_log(path: Path) -> list[dict]:
    """The complete rows: the last one may have been cut short with its run."""
    with path.open(newline="") as file:
        return list(csv.DictReader(line for line in file if line.endswith("\n")))


def training_seconds(rows: list[dict]) -> list[float]:
    """Seconds of training up to each row, without compiling, validation and saving."""
    seconds, tokens = [0.0], 0
    for row in rows:
        # a row that ends with the step that compiles has no speed
        more = (int(row["tokens"]) - tokens) / float(row["tokens_per_s"]) if row["tokens_per_s"] else 0.0
        seconds.append(seconds[-1] + more)
        tokens = int(row["tokens"])
    return seconds[1:]


def plot_loss(path: Path, logs: dict[str, list[dict]]):
    """Training and validation loss over tokens, of one run or of several: {label: rows}."""
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    draw_losses(axes, logs)
    axes.legend(title="pale: training, dots: validation")
    with write_run_file(path) as temporary:
        figure.savefig(temporary, dpi=120, format="png")


def draw_losses(axes, logs: dict[str, list[dict]]) -> None:
    for i, (label, rows) in enumerate(logs.items()):
        styles = dict(train_loss=dict(alpha=0.4, linewidth=1), val_loss=dict(marker=".", label=label))
        for column, style in styles.items():
            points = [(int(row["tokens"]) / 1e6, float(row[column])) for row in rows if row[column]]
            axes.plot([x for x, _ in points], [y for _, y in points], color=f"C{i}", **style)
    axes.set(xlabel="tokens seen (millions)", ylabel="loss (nats per token)")
    axes.grid(alpha=0.3)


# ---- Checkpoints ----

PREVIOUS, REFUSED = "ckpt-previous.pt", "ckpt-refused.pt"


def save_checkpoint(path: Path, state: dict, previous: Path | None = None) -> None:
    """previous: the name under which the checkpoint before this one is kept."""
    buffer = io.BytesIO()  # on a full disk, writing bytes fails with a clear error; torch.save does not
    torch.save(state, buffer)
    with write_run_file(path, previous) as temporary:
        temporary.write_bytes(buffer.getbuffer())


def keep_weights(run: Path, weights: dict, config: TrainConfig, row: dict) -> None:
    """run/step-1000, in the form of a run, with one row of the log. ckpt.pt comes last: it makes the run complete."""
    directory = run / f"step-{row['step']}"
    directory.mkdir(exist_ok=True)
    write_config(directory / "config.json", config)
    Log(directory / "log.csv", 0).append(**row)
    save_checkpoint(directory / "ckpt.pt", weights)


# What may change when a run is resumed; everything else would make it another run.
RESUME_MAY_CHANGE = {
    "recipe", "out_dir", "data_dir", "max_steps", "min_steps", "max_minutes", "log_interval", "eval_interval", "device",
    "compile", "keep_checkpoints",
}  # fmt: skip


def load_resumable(run: Path, config: TrainConfig) -> tuple[dict, Path]:
    """The run's last readable checkpoint, and its path. ConfigError if the config asks for another run.

    If the last checkpoint is damaged, of a newer format or missing, the one before it is used: its steps are repeated,
    with the same result. Rows of the log beyond it are dropped; best.pt may be of a later step, which will be repeated.
    """
    paths = [path for path in (run / "ckpt.pt", run / PREVIOUS) if path.exists()]
    if not paths:
        raise ConfigError(f"{run / 'ckpt.pt'}: no checkpoint to resume; leave out --resume to start the run")
    refusals = []
    for path in paths:
        try:
            checkpoint = load_checkpoint(path)
            break
        except ValueError as error:
            refusals.append(str(error))
    else:
        raise ConfigError("; ".join(refusals))
    before = dataclasses.asdict(TrainConfig()) | checkpoint["train_config"]  # newer settings: their defaults
    may_change = set(RESUME_MAY_CHANGE)
    if before["batch_size"] * before["grad_accum_steps"] == config.sequences_per_step:
        may_change |= {"batch_size", "grad_accum_steps"}  # the same step, divided differently
    for key, value in dataclasses.asdict(config).items():
        if value != before[key] and key not in may_change:
            raise ConfigError(f"{path}: trained with {key}={before[key]!r}; it cannot be resumed with {key}={value!r}")
    for refusal in refusals:
        print(f"{refusal}; resuming from {path}, step {checkpoint['step']}", flush=True)
    return checkpoint, path


def keep_old_run(run: Path):
    """Renames an older run of the same name, so that starting again loses nothing."""
    if any((run / name).exists() for name in ("ckpt.pt", PREVIOUS, "best.pt")):
        number = next(i for i in itertools.count(1) if not run.with_name(f"{run.name}-{i}").exists())
        with lock(run, busy=BUSY):
            run.rename(run.with_name(f"{run.name}-{number}"))
        print(f"{run} existed: renamed to {run.with_name(f'{run.name}-{number}')} (--resume would have continued it)")


@contextlib.contextmanager
def claim(run: Path, config: TrainConfig, last_step: int, resumed_from: Path | None):
    """Locks the run's directory for this process, with any older run moved away, or made ready to resume after
    `last_step`. Yields its log."""
    if fcntl is None:
        print("this system has no file locks: do not start two runs with the same name", flush=True)
    if not resumed_from:
        keep_old_run(run)
    with lock(run, busy=BUSY):
        if resumed_from and resumed_from.name == PREVIOUS and (run / "ckpt.pt").exists():
            (run / "ckpt.pt").replace(run / REFUSED)  # otherwise the next save would make it the previous one
        write_config(run / "config.json", config)
        log = Log(run / "log.csv", last_step)
        for step, directory in kept_checkpoints(run).items():
            if step > last_step:  # the run will keep these again, perhaps at other steps if by the clock
                (directory / "ckpt.pt").unlink()
        yield log
