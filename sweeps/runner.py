"""
Trains the runs of an experiment one by one, each as a process of train.py, and resumes those that were stopped or
killed. Then probe.py and grade.py measure more than their losses.

>>> with lock_when_free(directory) as lock_file:
...     failures = train_all(runs, unfinished, directory / "experiment.log", lock_file)
"""

import contextlib
import dataclasses
import io
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from tqdm import tqdm

from checkpoints.checkpoint import load_checkpoint
from common.files import lock
from sweeps.plans import ROOT, Run
from training.config import ConfigError, TrainConfig
from training.run_directory import PREVIOUS, RESUME_MAY_CHANGE, TrainingError, read_log

MAY_DIFFER = RESUME_MAY_CHANGE - {"max_steps", "min_steps", "max_minutes"}
STORIES = 50  # validation stories that --grade lets every run without samples continue, once each


def is_finished(run: Run, data_sha256: str) -> bool:
    """Whether nothing is left to train; ConfigError if its directory holds a different run."""
    try:
        checkpoint = load_checkpoint(run.directory / "ckpt.pt")
    except ValueError:  # none yet, or a damaged one: train.py handles both
        return False
    before = dataclasses.asdict(TrainConfig()) | checkpoint["train_config"]
    remedy = "move it away, or choose another --out_dir"
    for key, value in dataclasses.asdict(run.config).items():
        if value != before[key] and key not in MAY_DIFFER:
            raise ConfigError(f"{run.directory}: trained with {key}={before[key]!r}, now {key}={value!r}; {remedy}")
    if checkpoint["data_sha256"] != data_sha256:
        raise ConfigError(f"{run.directory}: trained on other data than is now in {run.config.data}; {remedy}")
    return checkpoint["step"] >= run.config.max_steps


def finished(runs: Iterable[Run], data_sha256: str) -> Iterator[Run]:
    """Those that were trained to the end with these settings and data."""
    for run in runs:
        with contextlib.suppress(ConfigError):
            if is_finished(run, data_sha256):
                yield run


def count_seeds_on_disk(directory: Path) -> int:
    """From seed 0 to the highest with a checkpoint."""
    seeds = (path.parent.name.rpartition("_")[2] for path in directory.glob("*/ckpt.pt"))
    return 1 + max((int(seed) for seed in seeds if seed.isdigit()), default=-1)


def lock_when_free(directory: Path):
    """Keeps other calls out. Every train.py inherits the lock: if only experiments.py was killed, its last run trains
    to the end, and the next call waits for that.
    """
    return lock(directory, busy="in use by another experiments.py, or by a train.py that it left running", wait=True)


def train_all(runs: list[Run], unfinished: list[Run], log: Path, lock_file: io.IOBase | None) -> dict[str, str]:
    """Trains the `unfinished` among `runs`. Returns {name of a run that failed: why}."""
    failures, start = {}, time.monotonic()
    total = sum(run.flops for run in runs)
    first = done = total - sum(run.flops for run in unfinished)
    with tqdm(initial=first, total=total, unit="FLOP", unit_scale=True, disable=None) as bar:
        for trained, run in enumerate(unfinished, 1):
            bar.set_description(run.config.name)
            failure = train_one(run, log, lock_file, bar)
            done += run.flops
            bar.n = done
            if failure:
                failures[run.config.name] = failure
            what = failure or f"validation loss {float(log_of(run)[-1]['val_loss']):.3f}"
            # Short runs mostly start up and compile, long ones mostly compute: the truth lies in between.
            left = ((len(unfinished) - trained) / trained, (total - done) / (done - first))
            least, most = sorted(round((time.monotonic() - start) / 60 * share) for share in left)
            number = len(runs) - len(unfinished) + trained
            bar.write(f"{number}/{len(runs)}  {run.config.name}: {what}; {least} to {most} min left")
    return failures


def train_one(run: Run, log: Path, lock_file: io.IOBase | None, bar: tqdm) -> str | None:
    """Starts or resumes a run. Returns what went wrong, in one line. train.py's output is appended to `log`."""
    resume = ["--resume"] * any((run.directory / name).exists() for name in ("ckpt.pt", PREVIOUS))
    command, before = [sys.executable, str(ROOT / "train.py"), *run.args, *resume], bar.n
    with log.open("a") as output:
        print("$", shlex.join(command), file=output, flush=True)
        # In its own session, so that Ctrl-C reaches only us, and train.py gets just one signal: a second would kill it.
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            pass_fds=[lock_file.fileno()] if lock_file else [],
        )  # fmt: skip
    try:
        while process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.5)
            steps = max((int(row["step"]) for row in log_of(run)), default=0)
            bar.n = before + run.flops * steps // run.config.max_steps
            bar.refresh()
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
    if process.returncode < 0:
        return f"killed by signal {-process.returncode}" + " (out of memory?)" * (process.returncode == -signal.SIGKILL)
    return log.read_text(errors="replace").splitlines()[-1] if process.returncode else None


def log_of(run: Run) -> list[dict]:
    path = run.directory / "log.csv"
    return read_log(path) if path.exists() else []


# ---- More than the loss ----


def probe_runs(directory: Path, runs: list[Run], *flags: str) -> None:
    """Writes probe.csv for all runs below the directory, unless it was written after all of them had finished. With
    flags, first calls probe.py with these, too."""
    if not all(is_newer(directory / "probe.csv", run) for run in runs):
        for own in [flags, ()] if flags else [()]:
            call("probe.py", directory, *own)


def grade_runs(directory: Path, runs: list[Run], judge_flags: list[str]) -> None:
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
        raise TrainingError(f"{script} failed; run the same command to retry it")
