"""
Trains the runs of an experiment one by one, each as a process of train.py; then probe.py and grade.py measure them.

>>> failed = train_all(runs, load_meta(Path("data/sample")), directory / "experiment.log")
"""

import contextlib
import dataclasses
import shlex
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from tqdm import tqdm

from checkpoints.checkpoint import load_checkpoint
from common.files import read_json
from sweeps.plan import ROOT, Run
from training.config import ConfigError
from training.run_directory import read_log

# Settings that do not make it another run.
MAY_DIFFER = {"recipe", "out_dir", "data_dir", "log_interval", "eval_interval", "device", "compile", "keep_checkpoints"}
STORIES = 50  # validation stories that --grade lets every run continue, once each


def train_all(runs: list[Run], meta: dict, log: Path) -> list[str]:
    """Trains those of the runs that are not finished. Returns the names of those that failed."""
    failed, unfinished = [], [run for run in runs if not is_finished(run, meta)]
    with tqdm(initial=len(runs) - len(unfinished), total=len(runs), unit="run", disable=None) as bar:
        for run in unfinished:
            bar.set_description(run.config.name)
            if error := train_one(run, log, bar):
                failed.append(run.config.name)
            bar.update(1)
            outcome = error or f"validation loss {float(log_of(run)[-1]['val_loss']):.3f}"
            bar.write(f"{bar.n:.0f}/{len(runs)}  {run.config.name}: {outcome}")
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


def is_finished(run: Run, meta: dict) -> bool:
    """Whether its log has its last step; ConfigError if its directory holds a run of other settings or data."""
    if not (run.directory / "ckpt.pt").exists():
        return False
    before, now = read_json(run.directory / "config.json"), dataclasses.asdict(run.config)
    other = next((key for key in now if key not in MAY_DIFFER and before.get(key) != now[key]), None)
    remedy = "move it away, or choose another --out_dir"
    if other:
        was = f"trained with {other}={before.get(other)!r}, now {other}={now[other]!r}"
        raise ConfigError(f"{run.directory}: {was}; {remedy}")
    steps = max((int(row["step"]) for row in log_of(run)), default=0)
    if steps < run.config.max_steps:
        return False
    if load_checkpoint(run.directory / "ckpt.pt")["data_sha256"] != meta["splits"]["train"]["sha256"]:
        raise ConfigError(f"{run.directory}: trained on other data than is now in {run.config.data}; {remedy}")
    return True


def finished(runs: Iterable[Run], meta: dict) -> list[Run]:
    """Those that were trained to the end with these settings and data."""
    complete = []
    for run in runs:
        with contextlib.suppress(ConfigError):
            complete += [run] * is_finished(run, meta)
    return complete


def count_seeds(directory: Path) -> int:
    """From seed 0 to the highest that has a run in the directory."""
    seeds = (path.parent.name.rpartition("_")[2] for path in directory.glob("*/ckpt.pt"))
    return 1 + max((int(seed) for seed in seeds if seed.isdigit()), default=-1)


def log_of(run: Run) -> list[dict]:
    path = run.directory / "log.csv"
    return read_log(path) if path.exists() else []


# ---- More than the loss ----


def probe(directory: Path, runs: list[Run], *flags: str) -> None:
    """Writes probe.csv for all runs below the directory, unless it is newer than all of them; first, with the flags."""
    if not all(is_newer(directory / "probe.csv", run) for run in runs):
        for own in [flags, ()] if flags else [()]:
            call("probe.py", directory, *own)


def grade(directory: Path, runs: list[Run], judge_flags: list[str]) -> None:
    """Samples from every run without samples of its final weights, then grades what has not been graded yet."""
    for run in tqdm(runs, "sampling", unit="run", disable=None):
        if not is_newer(run.directory / "samples.jsonl", run):
            call("sample.py", "--model", run.directory, "--eval", STORIES, "--n", 1)
    call("grade.py", directory, *judge_flags)


def is_newer(path: Path, run: Run) -> bool:
    """Whether it was written after the run had finished."""
    return path.exists() and path.stat().st_mtime > (run.directory / "ckpt.pt").stat().st_mtime


def call(script: str, *arguments) -> None:
    if subprocess.run([sys.executable, ROOT / script, *map(str, arguments)]).returncode:
        raise ConfigError(f"{script} failed; run the same command to retry it")
