"""A run killed at any moment, and resumed, ends as one that was never stopped; what is damaged or taken is refused."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from conftest import STATEFUL, arguments, assert_same_run, log_of, settings
from forks import KILLED, fork

import train as train_module
from checkpoints.checkpoint import load_checkpoint
from common.files import Busy, lock
from train import train
from training import data_order, state
from training.config import ConfigError, TrainConfig
from training.run_directory import Log, TrainingError, training_seconds

LONGER = STATEFUL | dict(max_steps=30)


@pytest.fixture(scope="module")
def reference(data_dir, tmp_path_factory):
    """A run that was never stopped, in a process as the killed ones are."""
    directory = tmp_path_factory.mktemp("reference")
    process = fork(arguments(settings(data_dir, directory) | LONGER), directory / "said")
    process.join()
    assert process.exitcode == 0, (directory / "said").read_text()
    return directory / "out" / "run"


def finish(config: dict, said: Path):
    process = fork(arguments(config, "--resume"), said)
    process.join()
    assert process.exitcode == 0, said.read_text()


@pytest.mark.parametrize("moment", KILLED)
def test_a_run_killed_at_any_moment_goes_on_exactly(config, reference, tmp_path, moment):
    process = fork(arguments(config | LONGER), tmp_path / "said", moment, step=20)
    process.join()
    assert process.exitcode == -9
    finish(config | LONGER, tmp_path / "said")
    assert_same_run(tmp_path / "out" / "run", reference)
    assert not list((tmp_path / "out" / "run").glob(".*.tmp"))


def test_a_run_killed_again_and_again_goes_on_exactly(config, reference, tmp_path):
    rng, run = random.Random(0), tmp_path / "out" / "run"
    for kill in range(8):
        process = fork(arguments(config | LONGER, *["--resume"] * (kill > 0)), tmp_path / "said")
        while not (run / "ckpt.pt").exists() and process.is_alive():  # the first one, however busy the machine is
            time.sleep(0.01)
        process.join(rng.uniform(0.0, 0.4))
        process.kill()
        process.join()
    finish(config | LONGER, tmp_path / "said")
    assert_same_run(run, reference)


# ---- Checkpoints that are refused ----


def cut_short(path):
    with path.open("rb+") as file:
        file.truncate(path.stat().st_size // 2)


def made_by_a_newer_version(path):
    torch.save(load_checkpoint(path) | dict(format=99), path)


@pytest.mark.parametrize(
    "damage, message",
    [(cut_short, "not a readable checkpoint"), (made_by_a_newer_version, "format 99, but this version reads")],
)
def test_the_checkpoint_before_the_last_stands_in(config, capsys, damage, message):
    reference, _ = train(TrainConfig(**config | LONGER | dict(name="reference")), resume=False)
    run, _ = train(TrainConfig(**config | STATEFUL), resume=False)
    damage(run / "ckpt.pt")
    refused = (run / "ckpt.pt").read_bytes()
    assert train(TrainConfig(**config | LONGER), resume=True) == (run, True)
    said = capsys.readouterr().out
    assert f"{run / 'ckpt.pt'}: {message}" in said and f"resuming from {run / 'ckpt-previous.pt'}, step 10" in said
    assert_same_run(run, reference)
    assert (run / "ckpt-refused.pt").read_bytes() == refused
    assert load_checkpoint(run / "ckpt-previous.pt")["step"] == 20


def test_checkpoints_that_are_all_damaged_are_named_and_left_alone(config):
    run, _ = train(TrainConfig(**config), resume=False)
    for name in ("ckpt.pt", "ckpt-previous.pt"):
        cut_short(run / name)
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    with pytest.raises(ConfigError, match=r"/ckpt.pt: not a readable checkpoint.*/ckpt-previous.pt: not a readable"):
        train(TrainConfig(**config), resume=True)
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before


def test_a_step_may_be_divided_otherwise_when_a_run_goes_on(config):
    run, _ = train(TrainConfig(**config), resume=False)
    half = dict(batch_size=2, grad_accum_steps=4, max_steps=21)
    assert train(TrainConfig(**config | half), resume=True) == (run, True)
    with pytest.raises(ConfigError, match="trained with batch_size=2; it cannot be resumed with batch_size=3"):
        train(TrainConfig(**config | dict(batch_size=3, max_steps=21)), resume=True)


# ---- Losses that are not finite, disks that are full, runs that are taken ----


@pytest.mark.parametrize("victim", ["loss", "gradient"])
def test_the_step_is_named_at_which_a_run_diverged(config, monkeypatch, victim):
    def spoil_step_13(starts, *args):
        if args[-1] == 12:
            model = models[0]
            if victim == "loss":
                model.ln_f.weight.data[:] = torch.nan
            else:
                model.ln_f.weight.register_hook(lambda gradient: gradient * torch.inf)
        return batch_starts(starts, *args)

    models, batch_starts, make_optimizers = [], data_order.batch_starts, state.make_optimizers
    monkeypatch.setattr(data_order, "batch_starts", spoil_step_13)
    monkeypatch.setattr(state, "make_optimizers", lambda *args: models.append(args[0]) or make_optimizers(*args))
    with pytest.raises(
        TrainingError, match="at step 13 the loss or its gradient became infinite or NaN; the checkpoints"
    ):
        train(TrainConfig(**config), resume=False)
    run = Path(config["out_dir"]) / "run"
    for name in ("ckpt.pt", "best.pt"):
        checkpoint = load_checkpoint(run / name)
        assert checkpoint["step"] == 10
        assert all(weight.isfinite().all() for weight in checkpoint["model"].values())
    assert [row["step"] for row in log_of(run)] == ["5", "10"]


def test_a_run_that_is_stopped_after_it_diverged_does_not_save(config, monkeypatch):
    def spoil_and_stop(starts, *args):
        if args[-1] == 11:
            signal.raise_signal(signal.SIGTERM)
        return batch_starts(starts, *args)

    run, _ = train(TrainConfig(**config | dict(max_steps=10)), resume=False)
    batch_starts = data_order.batch_starts
    monkeypatch.setattr(data_order, "batch_starts", spoil_and_stop)
    spoilt = load_checkpoint(run / "ckpt.pt")
    spoilt["model"]["ln_f.bias"][:] = torch.nan
    torch.save(spoilt, run / "ckpt.pt")
    before = (run / "ckpt.pt").read_bytes()
    with pytest.raises(TrainingError, match="at step 11 the loss"):
        train(TrainConfig(**config), resume=True)
    assert (run / "ckpt.pt").read_bytes() == before


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MB."""
    path = tmp_path / "disk"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(path)]
    mounted = subprocess.run(command, capture_output=True, text=True) if shutil.which("mount") else None
    if not mounted or mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted here ({mounted.stderr.strip() if mounted else 'no mount'})")
    yield path
    subprocess.run(["umount", str(path)], check=True)


@pytest.mark.parametrize("room", [0, 40_000])  # too little for config.json, for best.pt
def test_a_disk_that_is_really_full_loses_nothing(config, small_disk, room):
    reference, _ = train(TrainConfig(**config), resume=False)
    config |= dict(out_dir=str(small_disk))
    run, _ = train(TrainConfig(**config | dict(max_steps=10)), resume=False)
    before = (run / "ckpt.pt").read_bytes()
    with pytest.raises(OSError, match="No space left"), (small_disk / "fat").open("wb", buffering=0) as fat:
        while True:
            fat.write(bytes(4096))
    os.truncate(small_disk / "fat", (small_disk / "fat").stat().st_size - room)
    with pytest.raises(TrainingError, match=r"cannot be written \(No space left on device\).* Free some space"):
        train(TrainConfig(**config), resume=True)
    assert (run / "ckpt.pt").read_bytes() == before
    assert not list(run.glob(".*.tmp"))
    (small_disk / "fat").unlink()
    assert train(TrainConfig(**config), resume=True) == (run, True)
    assert_same_run(run, reference)


def test_two_runs_do_not_share_a_directory(config, tmp_path):
    run, _ = train(TrainConfig(**config), resume=False)
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    with lock(run):
        for resume in (False, True):
            with pytest.raises(Busy, match="out/run: another train.py is running there; choose another --name"):
                train(TrainConfig(**config | dict(max_steps=30)), resume)
        process = fork(arguments(config, "--resume"), tmp_path / "said")
        process.join()
        assert process.exitcode == 1
        assert (tmp_path / "said").read_text().count("\n") == 1
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before
    assert list(run.parent.iterdir()) == [run]
    assert train(TrainConfig(**config), resume=True) == (run, True)


# ---- The log and the curves ----


def test_a_log_goes_on_behind_the_checkpoint(tmp_path):
    log = Log(tmp_path / "log.csv", 0)
    for step in (10, 20, 30):
        log.append(step=step, tokens=step, train_loss="1.0")
    again = Log(tmp_path / "log.csv", 20)
    again.append(step=30, tokens=30, train_loss="2.0")
    rows = [(row["step"], row["train_loss"]) for row in log_of(tmp_path)]
    assert rows == [("10", "1.0"), ("20", "1.0"), ("30", "2.0")]


def test_losses_after_a_lost_log_are_right(config):
    """The log of a stopped run is deleted: the first row after it is that of the run that was never stopped."""
    reference, _ = train(TrainConfig(**config | dict(name="reference")), resume=False)
    run, _ = train(TrainConfig(**config | dict(max_steps=10)), resume=False)
    (run / "log.csv").unlink()
    train(TrainConfig(**config), resume=True)
    assert [row["train_loss"] for row in log_of(run)] == [row["train_loss"] for row in log_of(reference)][2:]


def test_a_row_cut_short_is_dropped(tmp_path):
    log = Log(tmp_path / "log.csv", 0)
    for step in (10, 20):
        log.append(step=step, tokens=step, train_loss="1.0")
    with log.path.open("a") as file:
        file.write("1")
    assert [row["step"] for row in Log(tmp_path / "log.csv", 20).rows] == ["10", "20"]


def test_several_runs_in_one_picture(config, monkeypatch, capsys, tmp_path):
    runs = [train(TrainConfig(**config | dict(name=name, seed=i)), resume=False)[0] for i, name in enumerate("ab")]
    monkeypatch.setattr(sys, "argv", ["train.py", "--plot", *map(str, runs)])
    train_module.main()
    assert capsys.readouterr().out.endswith(f"wrote {tmp_path / 'out' / 'plot.png'}\n")
    assert (tmp_path / "out" / "plot.png").read_bytes()[:4] == b"\x89PNG"
    monkeypatch.setattr(sys, "argv", ["train.py", "--plot", str(tmp_path / "nothing")])
    with pytest.raises(SystemExit, match="nothing/log.csv: not found; --plot takes directories of runs"):
        train_module.main()


def test_seconds_leave_out_what_was_not_timed():
    rows = [
        dict(tokens="10", tokens_per_s=""),
        dict(tokens="30", tokens_per_s="10"),
        dict(tokens="40", tokens_per_s="2"),
    ]
    assert training_seconds(rows)[-1] == 2 + 5
