"""
Runs the commands of a list: train.py for each run that is not finished, and then the commands that
measure them.

>>> failed, finished = train_all(runs, sha256, Path("out/heads"))
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from nanostories.checkpoints.checkpoint import load_checkpoint
from nanostories.cli import UserError
from nanostories.results import load, outdated
from nanostories.sweeps.measures import Command
from nanostories.sweeps.plan import ROOT, PlannedRun
from nanostories.training.config import SHAPE
from nanostories.training.run_directory import read_log


# ---- Training ----
def train_all(
    runs: Sequence[PlannedRun], sha256: dict[Path, str], directory: Path
) -> tuple[list[str], list[PlannedRun]]:
    """Trains those of the runs that are not finished; what train.py says goes to experiment.log.
    sha256: {corpus: checksum of its training split}. Returns (the names of those that failed, the
    finished ones)."""
    failed = []
    finished = [run for run in runs if is_finished(run, sha256)]
    with tqdm(initial=len(finished), total=len(runs), unit="run", disable=None) as bar:
        for run in [run for run in runs if run not in finished]:
            bar.set_description(run.config.name)
            error = train_one(run, directory / "experiment.log")
            if error:
                failed.append(run.config.name)
            else:
                finished.append(run)
            bar.update()
            result = error or f"validation loss {log_of(run)[-1]['val_loss']}"
            bar.write(f"{run.config.name}: {result}")
    return failed, [run for run in runs if run in finished]


def is_finished(run: PlannedRun, sha256: dict[Path, str]) -> bool:
    """Whether it was trained to its end. UserError if its directory has a run with other settings,
    or of another corpus."""
    path = run.directory / "ckpt.pt"
    if not path.exists():
        return False
    checkpoint = load_checkpoint(path)
    remedy = "take another --out_dir, or move it away"
    for name, value in vars(run.config).items():
        trained = checkpoint["train_config"][name]
        # start_from brings a shape
        if trained != value and not (run.config.start_from and name in SHAPE):
            problem = f"was trained with {name}={trained}, and now it would be {value}"
            raise UserError(f"{run.directory} {problem}: {remedy}")
    if checkpoint["data_sha256"] != sha256[run.data]:
        raise UserError(f"{run.directory} was trained on other stories than {run.data}: {remedy}")
    log = log_of(run)
    return bool(log) and float(log[-1]["done"]) >= 1


def train_one(run: PlannedRun, log: Path) -> str:
    """Starts or resumes a run. Returns its error message, "" if it has none."""
    command = [sys.executable, str(ROOT / "train.py"), *run.args]
    if any(run.directory.glob("ckpt*.pt")):
        command.append("--resume")
    with log.open("a") as output:
        print("$", shlex.join(command), file=output, flush=True)
        # In its own session, so that Ctrl-C reaches only us, and train.py gets just one signal: a
        # second would kill it.
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            process.wait()
        except KeyboardInterrupt:
            process.terminate()  # it saves, and ends
            process.wait()
            raise
    if process.returncode < 0:
        return f"killed by signal {-process.returncode}"
    if process.returncode > 0:
        return log.read_text(errors="replace").splitlines()[-1]
    return ""


def log_of(run: PlannedRun) -> list[dict]:
    path = run.directory / "log.csv"
    return read_log(path) if path.exists() else []


# ---- Measuring ----
def is_current(command: Command) -> bool:
    """Whether its result is there, by this command, of files that have not changed since."""
    result = command.result
    if result is None or not result.exists():
        return False
    found = load(result)
    if found.arguments != command.arguments[1:] or outdated(found, result.parent):
        return False
    read = {(result.parent / source).resolve() for source in found.sources}
    return read.issuperset(path.resolve() for path in command.stories)


def call(command: Sequence[str]) -> None:
    """script.py or a module, and its arguments. Only its progress and errors are shown."""
    name, *arguments = command
    program = [str(ROOT / name)] if name.endswith(".py") else ["-m", name]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command_line = [sys.executable, *program, *arguments]
    done = subprocess.run(command_line, stdout=subprocess.DEVNULL, env=environment)
    if done.returncode:
        raise UserError(
            f"python {shlex.join(command)} failed: see above; run the same command to retry it"
        )
