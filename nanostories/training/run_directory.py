"""A run's directory: its log and checkpoints; locking and resuming it. All but the log is written
atomically."""

import contextlib
import csv
import io
from pathlib import Path
from types import SimpleNamespace

import torch

from nanostories.checkpoints.checkpoint import load_checkpoint
from nanostories.cli import UserError
from nanostories.files import lock, read_json, set_aside, write_atomically, write_json
from nanostories.tables import write_table
from nanostories.training.config import TrainConfig
from nanostories.training.start_from import with_shape

# seconds: of training alone, without compiling, validation and saving
LOG_COLUMNS = (
    "step tokens train_loss val_loss bpb learning_rate grad_norm tokens_per_s mfu seconds".split()
)
PREVIOUS = "ckpt-previous.pt"  # the checkpoint before ckpt.pt
# Settings that may change when a run is resumed; any other would make it another run.
RESUME_MAY_CHANGE = set(
    "recipe name out_dir data data_dir max_steps epochs min_steps max_minutes".split()
)
RESUME_MAY_CHANGE |= {"device", "compile", "log_interval", "eval_interval", "keep_checkpoints"}


@contextlib.contextmanager
def lock_and_prepare(run: Path, config: TrainConfig, last_step: int, resume: bool):
    """Locks the run's directory, with any older run renamed, or the rows of its log after
    `last_step` removed: these steps will be repeated."""
    busy = "another train.py is running there; choose another --name, or wait"
    if not resume and any((run / name).exists() for name in ("ckpt.pt", PREVIOUS, "best.pt")):
        with lock(run, busy=busy):
            print(f"{run} existed: renamed to {set_aside(run)} (--resume would have continued it)")
    with lock(run, busy=busy):
        write_json(run / "config.json", vars(config))
        rows = read_log(run / "log.csv") if (run / "log.csv").exists() else []
        write_table(
            run / "log.csv", [row for row in rows if int(row["step"]) <= last_step], LOG_COLUMNS
        )
        yield


def append_row(path: Path, row: dict) -> None:
    with path.open("a", newline="") as file:
        csv.DictWriter(file, LOG_COLUMNS).writerow(row)


def read_log(path: Path) -> list[dict]:
    """The complete rows: the last one may have been cut short with its run."""
    with path.open(newline="") as file:
        return list(csv.DictReader(line for line in file if line.endswith("\n")))


def progress(config: TrainConfig | SimpleNamespace, step: int, seconds: float) -> float:
    """The fraction of the run that is done, by steps or by the clock; the clock cannot end it
    before min_steps."""
    clock = seconds / (60 * config.max_minutes) if config.max_minutes else 0.0
    return min(1.0, max(step / config.max_steps, min(clock, step / max(1, config.min_steps))))


def checkpoint_due(config: TrainConfig, before: float, after: float) -> bool:
    """Whether to keep the weights after a step: has it passed 1/N, 2/N, … of the run? before,
    after: of progress()."""
    return int(config.keep_checkpoints * after + 1e-9) > int(
        config.keep_checkpoints * before + 1e-9
    )


def partly_trained(run: Path) -> str:
    """ " (12% trained)", a note on a run that was stopped or goes on; "" for a finished one, or a
    kept checkpoint."""
    if run.match("step-[0-9]*") or not all(
        (run / name).exists() for name in ("log.csv", "config.json")
    ):
        return ""
    last, config = dict(step=0, seconds=0), SimpleNamespace(**read_json(run / "config.json"))
    last |= next(reversed(read_log(run / "log.csv")), {})
    fraction_done = progress(config, int(last["step"]), float(last["seconds"] or 0))
    return (
        f" ({fraction_done:.0%} trained)" if fraction_done < 0.99 else ""
    )  # 0.99: the log's seconds are rounded


def busy_machine_warning(run: Path) -> str:
    """A line of warning, if the machine became slower while the clock ran: then the run has seen
    fewer tokens."""
    rows = [row for row in read_log(run / "log.csv") if row["tokens_per_s"]]
    config = SimpleNamespace(**read_json(run / "config.json"))
    seconds, step = (float(rows[-1][name]) for name in ("seconds", "step")) if rows else (0, 0)
    if (
        not 0 < 59 * config.max_minutes < seconds or step <= config.min_steps
    ):  # steps ended it, not the clock
        return ""
    best = sorted(float(row["tokens_per_s"]) for row in rows)[
        -1 - len(rows) // 10
    ]  # one row may be off
    mean = float(rows[-1]["tokens"]) / max(float(rows[-1]["seconds"]), 0.01)
    warning = (
        f"WARNING {mean:,.0f} tokens/s on average, {best:,.0f} at best: other programs slowed this"
        " run,"
    )
    return (
        f"{warning} so it saw fewer tokens than max_minutes can buy\n" if mean < 0.7 * best else ""
    )


def overfitting_warning(run: Path) -> str:
    """A line of warning, if the validation loss rose by more than a percent after its minimum."""
    losses = {
        row["step"]: float(row["val_loss"]) for row in read_log(run / "log.csv") if row["val_loss"]
    }
    best, last = min(losses, key=losses.get), list(losses)[-1]
    warning = (
        f"WARNING the validation loss was lowest at step {best}, whose weights are used, and rose"
        " since"
    )
    return (
        f"{warning}: train for fewer steps (max_steps, epochs)\n"
        if losses[last] > 1.01 * losses[best]
        else ""
    )


def save_checkpoint(path: Path, state: dict, previous: Path | None = None) -> None:
    """previous: the name under which the checkpoint before this one is kept."""
    buffer = (
        io.BytesIO()
    )  # on a full disk, writing bytes fails with a clear error; torch.save does not
    torch.save(state, buffer)
    with write_atomically(path, previous) as temporary:
        temporary.write_bytes(buffer.getbuffer())


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
    path = path if path.exists() else run / PREVIOUS  # killed between the two renames
    if not path.exists():
        raise UserError(f"{run}: no checkpoint to resume; leave out --resume to start the run")
    checkpoint = load_checkpoint(path)
    trained = (
        vars(TrainConfig()) | checkpoint["train_config"]
    )  # which may lack settings that are new
    if config.start_from:
        config = with_shape(config, trained)
    same_step = (
        trained["batch_size"] * trained["grad_accum_steps"] == config.sequences_per_step
    )  # divided otherwise
    may_change = RESUME_MAY_CHANGE | ({"batch_size", "grad_accum_steps"} if same_step else set())
    for key, value in vars(config).items():
        if value != trained[key] and key not in may_change:
            raise UserError(
                f"{path}: trained with {key}={trained[key]!r}; it cannot be resumed with"
                f" {key}={value!r}"
            )
    return checkpoint, config
