"""
Trains the runs of a list one by one, each as a process of train.py, and runs the commands that
measure them. done.json in the list's directory has the finished ones, by command line.

>>> failed, finished = train_all(runs, planned, corpora, directory)
"""

import contextlib
import os
import shlex
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from tqdm import tqdm

from nanostories.cli import UserError
from nanostories.files import read_json, write_json
from nanostories.sweeps.plan import ROOT, Run
from nanostories.training.run_directory import read_log


def train_all(
    runs: Sequence[Run], planned: Sequence[Run], sha256: dict[Path, str], directory: Path
) -> tuple:
    """Trains those of the runs that are not finished. sha256: {corpus: checksum of its training
    split}. Returns the names of those that failed, and which of the planned runs are finished, also
    by earlier calls."""
    failed, done = [], read_done(directory)
    unfinished = [run for run in runs if not is_finished(run, done, sha256)]
    n_finished = len(runs) - len(unfinished)
    with tqdm(initial=n_finished, total=len(runs), unit="run", disable=None) as bar:
        for i, run in enumerate(unfinished, n_finished + 1):
            bar.set_description(run.config.name)
            error = train_one(run, directory / "experiment.log", bar)
            if error:
                failed.append(run.config.name)
            else:
                done = mark_done(directory, run.command, sha256[run.data])
            bar.update(1)
            result = error or f"validation loss {log_of(run)[-1]['val_loss']}"
            bar.write(f"{i}/{len(runs)}  {run.config.name}: {result}")
    return failed, [run for run in planned if is_finished(run, done, sha256)]


def is_finished(run: Run, done: dict, sha256: dict[Path, str]) -> bool:
    """Whether it was trained to its end, and is still there."""
    return done.get(run.command) == sha256[run.data] and (run.directory / "ckpt.pt").exists()


def read_done(directory: Path) -> dict:
    """{command line: the checksum of a training's data, or when the models of a measure were
    trained}"""
    path = directory / "done.json"
    return read_json(path) if path.exists() else {}


def mark_done(directory: Path, line: str, stamp: str | int) -> dict:
    write_json(directory / "done.json", done := read_done(directory) | {line: stamp})
    return done


def train_one(run: Run, log: Path, bar: tqdm) -> str:
    """Starts or resumes a run; train.py's output is appended to `log`. Returns its error message,
    "" if it has none."""
    resume = ["--resume"] * any(
        run.directory.glob("ckpt*.pt")
    )  # which also refuses other settings and data
    command = [sys.executable, str(ROOT / "train.py"), *run.args, *resume]
    with log.open("a") as output:
        print("$", shlex.join(command), file=output, flush=True)
        # In its own session, so that Ctrl-C reaches only us, and train.py gets just one signal: a
        # second would kill it.
        silent = dict(stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        process = subprocess.Popen(command, **silent, start_new_session=True)
    try:
        while process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.5)
            bar.set_postfix_str(f"step {max((int(row['step']) for row in log_of(run)), default=0)}")
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
    if process.returncode < 0:
        return f"killed by signal {-process.returncode}"
    return log.read_text(errors="replace").splitlines()[-1] if process.returncode else ""


def log_of(run: Run) -> list[dict]:
    path = run.directory / "log.csv"
    return read_log(path) if path.exists() else []


# ---- More than the loss ----
def run_missing(commands: Iterable[tuple[list[str], Sequence[str]]], directory: Path) -> None:
    """Runs the commands that have not run since their models were trained, and from the first of
    them on all that summarize several models. commands: (script or module and arguments,
    models)."""
    done, ran = read_done(directory), False
    for command, models in tqdm(list(commands), "measuring", unit="command", disable=None):
        line, stamp = shlex.join(command), max(map(time_trained, models))
        if done.get(line) != stamp or ran and len(models) > 1:
            ran = True
            call(command)
            mark_done(directory, line, stamp)


def time_trained(model: str) -> int:
    path = Path(model, "ckpt.pt")
    return path.stat().st_mtime_ns if path.exists() else 0


def call(command: Sequence[str]) -> None:
    """script.py or a module, and its arguments. Only its progress and errors are shown."""
    name, *arguments = command
    program = [str(ROOT / name)] if name.endswith(".py") else ["-m", name]
    environment = os.environ | dict(PYTHONPATH=str(ROOT))
    if subprocess.run(
        [sys.executable, *program, *arguments], stdout=subprocess.DEVNULL, env=environment
    ).returncode:
        raise UserError(
            f"python {shlex.join(command)} failed: see above; run the same command to retry it"
        )
