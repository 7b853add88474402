"""A run's directory: its log and checkpoints; locking and resuming it. All but the log is written
atomically."""

import contextlib
import csv
import io
from pathlib import Path

import torch

from nanostories.checkpoints.checkpoint import load_checkpoint
from nanostories.cli import UserError
from nanostories.files import lock, set_aside, write_atomically, write_json
from nanostories.tables import write_table
from nanostories.training.config import TrainConfig
from nanostories.training.start_from import with_shape

# done: fraction of the run. seconds: of training, without compiling, validation and saving. A log
# also has the column mfu where the GPU's peak is known.
LOG_COLUMNS = (
    "step tokens done train_loss val_loss bpb learning_rate grad_norm tokens_per_s seconds".split()
)
PREVIOUS = "ckpt-previous.pt"  # the checkpoint before ckpt.pt
# Settings that may change when a run is resumed; any other would make it another run. A lower
# learning_rate and another dtype are the remedies for a loss that became infinite.
RESUME_MAY_CHANGE = set(
    "name out_dir data data_dir max_steps epochs max_minutes learning_rate dtype"
    " log_interval eval_interval keep_checkpoints device compile".split()
)


# ---- The directory and its log ----
@contextlib.contextmanager
def prepare(run: Path, config: TrainConfig, columns: list[str], last_step: int | None):
    """Locks the run's directory, and writes config.json and the beginning of log.csv.

    last_step: that of the run that is resumed; its log keeps the rows up to there. None: a new run;
    an older one in the directory is renamed."""
    busy = "another train.py is running there; choose another --name, or wait"
    with lock(run, busy=busy):
        rows = read_log(run / "log.csv") if last_step is not None else []
    checkpoints = [run / name for name in ("ckpt.pt", PREVIOUS, "best.pt")]
    if last_step is None and any(path.exists() for path in checkpoints):
        print(f"{run} existed: renamed to {set_aside(run)} (--resume would have continued it)")
    with lock(run, busy=busy):
        write_json(run / "config.json", vars(config))
        rows = [row for row in rows if int(row["step"]) <= last_step]
        for row in rows:
            row["mfu"] = row.get("mfu", "")
        rows = [{name: row[name] for name in columns} for row in rows]
        write_table(run / "log.csv", rows, columns)
        yield


def append_row(path: Path, row: dict) -> None:
    """Adds a row under the columns that the log's first line names."""
    with path.open("r+", newline="") as file:
        columns = file.readline().strip().split(",")
        file.seek(0, io.SEEK_END)
        csv.DictWriter(file, columns).writerow(row)


def read_log(path: Path) -> list[dict]:
    """The complete rows: the last one may have been cut short with its run."""
    with path.open(newline="") as file:
        return list(csv.DictReader(line for line in file if line.endswith("\n")))


# ---- How far it is, and how it went ----
def checkpoint_due(config: TrainConfig, before: float, after: float) -> bool:
    """Whether to keep the weights after a step: has it passed 1/N, 2/N, … of the run?

    before, after: the fraction that was done before and after the step."""
    # 1e-9: so that ten steps of 0.1 are 1
    kept_before = int(config.keep_checkpoints * before + 1e-9)
    kept_after = int(config.keep_checkpoints * after + 1e-9)
    return kept_after > kept_before


def partly_trained(run: Path) -> str:
    """ " (12% trained)", a note on a run that was stopped or goes on; "" for a finished one, or a
    kept checkpoint."""
    if run.match("step-[0-9]*") or not (run / "log.csv").exists():
        return ""
    rows = read_log(run / "log.csv")
    done = float(rows[-1]["done"]) if rows else 0.0
    return f" ({done:.0%} trained)" if done < 1 else ""


def overfitting_warning(run: Path) -> str:
    """A line of warning, if the validation loss rose by more than a percent after its minimum."""
    rows = [row for row in read_log(run / "log.csv") if row["val_loss"]]
    best = min(rows, key=lambda row: float(row["val_loss"]))
    if float(rows[-1]["val_loss"]) <= 1.01 * float(best["val_loss"]):
        return ""
    return (
        f"WARNING the validation loss was lowest at step {best['step']}, whose weights are used,"
        " and rose since: train for fewer steps (max_steps, epochs)\n"
    )


# ---- Checkpoints ----
def save_checkpoint(path: Path, state: dict, previous: Path | None = None) -> None:
    """previous: the name under which the checkpoint before this one is kept."""
    # On a full disk, writing bytes fails with a clear error; torch.save to a file does not.
    buffer = io.BytesIO()
    torch.save(state, buffer)
    with write_atomically(path, previous) as temporary:
        temporary.write_bytes(buffer.getbuffer())


def keep_weights(run: Path, weights: dict, config: TrainConfig, row: dict) -> None:
    """run/step-1000, in the form of a run, with one row of the log. ckpt.pt comes last: it makes
    the run complete."""
    directory = run / f"step-{row['step']}"
    directory.mkdir(exist_ok=True)
    write_json(directory / "config.json", vars(config))
    columns = [*LOG_COLUMNS, "mfu"] if "mfu" in row else LOG_COLUMNS
    write_table(directory / "log.csv", [row], columns)
    save_checkpoint(directory / "ckpt.pt", weights)


def load_resumable(run: Path, config: TrainConfig) -> tuple[dict, TrainConfig]:
    """The run's last checkpoint, and the config, with the shape that start_from gave the run.
    UserError if the config asks for another run."""
    path = run / "ckpt.pt"
    if not path.exists():
        path = run / PREVIOUS  # the run was killed between the two renames
    if not path.exists():
        raise UserError(f"{run}: no checkpoint to resume; leave out --resume to start the run")
    checkpoint = load_checkpoint(path)
    trained = checkpoint["train_config"]
    if config.start_from:
        config = with_shape(config, trained)
    may_change = set(RESUME_MAY_CHANGE)
    if trained["batch_size"] * trained["grad_accum_steps"] == config.sequences_per_step:
        may_change |= {"batch_size", "grad_accum_steps"}
    for name, value in vars(config).items():
        if value != trained[name] and name not in may_change:
            problem = f"trained with {name}={trained[name]!r}"
            raise UserError(f"{path}: {problem}; it cannot be resumed with {name}={value!r}")
    return checkpoint, config
