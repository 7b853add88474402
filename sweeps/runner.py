"""
Trains the runs of a list one by one, each as a process of train.py, and runs the commands that measure them.

>>> failed = train_all(runs, corpora, directory / "experiment.log")
"""

import contextlib
import dataclasses
import os
import shlex
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from tqdm import tqdm

from checkpoints.checkpoint import load_checkpoint
from common.files import read_json, write_json
from sweeps.plan import ROOT, Run
from training.config import ConfigError
from training.run_directory import read_log

# Settings that do not make it another run.
MAY_DIFFER = {"recipe", "out_dir", "data_dir", "log_interval", "eval_interval", "device", "compile", "keep_checkpoints"}


def train_all(runs: list[Run], sha256: dict[Path, str], log: Path) -> list[str]:
    """Trains those of the runs that are not finished. sha256: {corpus: checksum of its training split}. Returns the
    names of those that failed."""
    failed, unfinished = [], [run for run in runs if not is_finished(run, sha256)]
    n_finished = len(runs) - len(unfinished)
    with tqdm(initial=n_finished, total=len(runs), unit="run", disable=None) as bar:
        for i, run in enumerate(unfinished, n_finished + 1):
            bar.set_description(run.config.name)
            if error := train_one(run, log, bar):
                failed.append(run.config.name)
            bar.update(1)
            outcome = error or f"validation loss {float(log_of(run)[-1]['val_loss']):.3f}"
            bar.write(f"{i}/{len(runs)}  {run.config.name}: {outcome}")
    return failed


def train_one(run: Run, log: Path, bar: tqdm) -> str:
    """Starts or resumes a run; train.py's output is appended to `log`. Returns its error message, "" if it has none."""
    resume = ["--resume"] * any(run.directory.glob("ckpt*.pt"))
    command = [sys.executable, str(ROOT / "train.py"), *run.args, *resume]
    with log.open("a") as output:
        print("$", shlex.join(command), file=output, flush=True)
        # In its own session, so that Ctrl-C reaches only us, and train.py gets just one signal: a second would kill it.
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


def is_finished(run: Run, sha256: dict[Path, str]) -> bool:
    """Whether its log has its last step; ConfigError if its directory holds a run of other settings or data."""
    if not (run.directory / "ckpt.pt").exists():
        return False
    before, now = read_json(run.directory / "config.json"), dataclasses.asdict(run.config)
    may_differ = MAY_DIFFER | {*run.config.model_shape()} if now.get("start_from") else MAY_DIFFER  # the source's shape
    other = next((key for key in now if key not in may_differ and before.get(key) != now[key]), None)
    remedy = "move it away, or choose another --out_dir"
    if other:
        was = f"trained with {other}={before.get(other)!r}, now {other}={now[other]!r}"
        raise ConfigError(f"{run.directory}: {was}; {remedy}")
    steps = max((int(row["step"]) for row in log_of(run)), default=0)
    if steps < run.config.max_steps:
        return False
    if load_checkpoint(run.directory / "ckpt.pt")["data_sha256"] != sha256[run.data]:
        raise ConfigError(f"{run.directory}: trained on other data than is now in {run.config.data}; {remedy}")
    return True


def finished(runs: Iterable[Run], sha256: dict[Path, str]) -> list[Run]:
    """Those that were trained to the end with these settings and data."""
    complete = []
    for run in runs:
        with contextlib.suppress(ConfigError):
            complete += [run] * is_finished(run, sha256)
    return complete


def count_seeds(directory: Path) -> int:
    """From seed 0 to the highest that has a run in the directory."""
    seeds = (path.parent.name.rpartition("_")[2] for path in directory.glob("*/ckpt.pt"))
    return 1 + max((int(seed) for seed in seeds if seed.isdigit()), default=-1)


def log_of(run: Run) -> list[dict]:
    path = run.directory / "log.csv"
    return read_log(path) if path.exists() else []


# ---- More than the loss ----


def run_missing(commands: Iterable[tuple[list[str], Sequence[str]]], directory: Path) -> None:
    """Runs the commands that have not run since their models were trained, and from the first of them on all that
    summarize several models. commands: (script or module and arguments, models). Done ones are in measured.json."""
    path, log, ran = directory / "measured.json", directory / "experiment.log", False
    done = read_json(path) if path.exists() else {}
    for command, models in tqdm(list(commands), "measuring", unit="command", disable=None):
        line, stamp = shlex.join(command), max(map(time_trained, models))
        if done.get(line) == stamp and not (ran and len(models) > 1):
            continue
        ran = True
        call(command, log)
        write_json(path, done := done | {line: stamp})


def time_trained(model: str) -> int:
    path = Path(model, "ckpt.pt")
    return path.stat().st_mtime_ns if path.exists() else 0


def call(command: Sequence[str], log: Path) -> None:
    """script.py or a module, and its arguments. What it prints goes to the log; its progress and errors are shown."""
    name, *arguments = command
    program = [str(ROOT / name)] if name.endswith(".py") else ["-m", name]
    with log.open("a") as output:
        print("$ python", shlex.join(command), file=output, flush=True)
        paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        environment = os.environ | dict(PYTHONPATH=paths)
        result = subprocess.run([sys.executable, *program, *arguments], stdout=output, env=environment)
    if result.returncode:
        raise ConfigError(f"{name} failed; run the same command to retry it ({log} has its command line)")
