"""
Runs the commands of a list: train.py for each run that is not finished, and then the commands that
measure them.

>>> failed = train_all(runs, Path("out/heads/experiment.log"))
"""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from nanostories.checkpoints.checkpoint import load_checkpoint
from nanostories.cli import UserError
from nanostories.corpus.token_files import load_meta
from nanostories.files import ROOT
from nanostories.results import load, outdated
from nanostories.sweeps.measures import Command
from nanostories.sweeps.plan import PlannedRun
from nanostories.training.config import SHAPE
from nanostories.training.run_directory import partly_trained, read_log


# ---- Training ----
def train_all(runs: Sequence[PlannedRun], log: Path) -> list[str]:
    """Trains those of the runs that are not finished; what train.py says goes to the log. Returns
    the names of those that failed."""
    failed = []
    unfinished = [run for run in runs if not is_finished(run)]
    n_finished = len(runs) - len(unfinished)
    bar = tqdm(unfinished, initial=n_finished, total=len(runs), unit="run", disable=None)
    for run in bar:
        bar.set_description(run.config.name)
        error = train_one(run, log)
        if error:
            failed.append(run.config.name)
            bar.write(f"{run.config.name}: {error}")
            continue
        val_loss = read_log(run.directory / "log.csv")[-1]["val_loss"]
        bar.write(f"{run.config.name}: validation loss {val_loss}")
    return failed


def is_finished(run: PlannedRun) -> bool:
    """Whether it was trained to its end. UserError if its directory has a run with other settings,
    or of another corpus."""
    path = run.directory / "ckpt.pt"
    if not path.exists():
        return False
    checkpoint = load_checkpoint(path)
    remedy = "take another --out_dir, or move it away"
    for name, value in vars(run.config).items():
        trained = checkpoint["train_config"].get(name)
        # start_from brings a shape
        if trained != value and not (run.config.start_from and name in SHAPE):
            problem = f"was trained with {name}={trained}, and now it would be {value}"
            raise UserError(f"{run.directory} {problem}: {remedy}")
    if checkpoint["data_sha256"] != load_meta(run.data)["splits"]["train"]["sha256"]:
        raise UserError(f"{run.directory} was trained on other stories than {run.data}: {remedy}")
    return not partly_trained(run.directory)


def train_one(run: PlannedRun, log: Path) -> str:
    """Starts or resumes a run. Returns its error message, "" if it has none."""
    command = [sys.executable, str(ROOT / "train.py"), *run.args]
    if (run.directory / "ckpt.pt").exists():
        command.append("--resume")
    with log.open("a") as output:
        print("$", shlex.join(command), file=output, flush=True)
        status = run_child(command, stdout=output, stderr=subprocess.STDOUT)
    if status == 0:
        return ""
    last_line = log.read_text(errors="replace").splitlines()[-1]
    return f"exit status {status}: {last_line}"


def run_child(command: Sequence[str], **settings) -> int:
    """Returns its exit status."""
    # In its own session, so that Ctrl-C reaches only us, and it gets just one signal: a second
    # would kill it.
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, start_new_session=True, **settings
    )
    try:
        return process.wait()
    except KeyboardInterrupt:
        if os.name == "posix":  # on Windows, Ctrl-C has reached it, too
            process.send_signal(signal.SIGINT)
        process.wait()  # it keeps what it has, and ends
        raise


# ---- Measuring ----
def is_current(command: Command) -> bool:
    """Whether its result is there, by this command, of files that have not changed since."""
    result = command.result
    if not result or not result.exists():
        return False
    samples = result.parent.rglob("samples/*.jsonl")
    if any(path.stat().st_mtime > result.stat().st_mtime for path in samples):
        return False
    try:
        found = load(result)
    except UserError:  # damaged, or of another version
        return False
    return found.arguments == command.arguments[1:] and not outdated(found, result.parent)


def call(command: Sequence[str]) -> int:
    """Runs script.py or a module with its arguments; shows only its progress and errors. Returns
    its exit status."""
    name, *arguments = command
    program = [str(ROOT / name)] if name.endswith(".py") else ["-m", name]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command_line = [sys.executable, *program, *arguments]
    return run_child(command_line, stdout=subprocess.DEVNULL, env=environment)
