"""A run that was stopped or killed at any moment, and resumed, ends as one that was never
stopped."""

import resource
import signal
from pathlib import Path

import pytest
import torch
from conftest import (
    STATEFUL,
    arguments,
    assert_same_run,
    assert_same_weights,
    log_of,
    numbers_of,
    run_of,
    settings,
    weights,
)
from forks import KILLED, fork

import train as train_module
from nanostories.checkpoints.checkpoint import kept_checkpoints, load_checkpoint
from nanostories.cli import UserError
from nanostories.files import lock
from nanostories.kernels import cpu_features
from nanostories.training.config import TrainConfig
from nanostories.training.run_directory import partly_trained
from train import train

pytestmark = pytest.mark.usefixtures("quick")
LONGER = STATEFUL | dict(max_steps=30, keep_checkpoints=3)


@pytest.fixture(scope="module")
def reference(data_dir, tmp_path_factory):
    """A run that was never stopped, in a process as the killed ones are."""
    directory = tmp_path_factory.mktemp("reference")
    finish(settings(data_dir, directory) | LONGER, directory / "said")
    return directory / "out" / "run"


def finish(config: dict, said: Path, *flags: str):
    process = fork(arguments(config, *flags), said)
    process.join()
    assert process.exitcode == 0, said.read_text()


@pytest.mark.parametrize("moment", KILLED)
def test_a_run_killed_at_any_moment_goes_on_exactly(config, reference, tmp_path, moment):
    process = fork(arguments(config | LONGER), tmp_path / "said", moment, step=20)
    process.join()
    assert process.exitcode == -9
    finish(config | LONGER, tmp_path / "said", "--resume")
    run = tmp_path / "out" / "run"
    assert_same_run(run, reference)
    assert list(kept_checkpoints(run)) == [10, 20, 30]
    for step, directory in kept_checkpoints(reference).items():
        assert_same_weights(run / f"step-{step}", directory)
    assert not list(run.rglob(".*.tmp"))


@pytest.fixture
def stop_in(monkeypatch):
    """stop_in(step): a signal arrives while this step is done."""
    for_step = train_module.Batches.for_step

    def arrange(stopped_step: int, number=signal.SIGTERM):
        def read_and_stop(self, step):
            if step == stopped_step:
                signal.raise_signal(number)
            return for_step(self, step)

        monkeypatch.setattr(train_module.Batches, "for_step", read_and_stop)

    return arrange


def test_a_stopped_run_ends_its_step_saves_and_goes_on_exactly(config, reference, stop_in, capsys):
    stop_in(7, signal.SIGINT)
    run, ended = train(TrainConfig(**config | LONGER), resume=False)
    assert not ended
    assert load_checkpoint(run / "ckpt.pt")["step"] == 8
    assert partly_trained(run) == "16% trained"  # 5 of 30 are in the log
    for _ in range(2):  # a finished run has nothing left to do
        run_of(config, resume=True, **LONGER)
        assert partly_trained(run) == ""
        assert_same_run(run, reference)
    assert "already finished: 30 of 30 steps" in capsys.readouterr().out


def test_the_end_of_a_run_is_evaluated_whenever_it_comes(config, stop_in):
    stop_in(7)
    run, _ = train(TrainConfig(**config), resume=False)
    run_of(config, resume=True, max_steps=5)  # it has 8 already
    bigrams_alone = run_of(config, name="bigrams", bigram_init=0.1, max_minutes=1e-9)
    for path, step in ((run, "9"), (bigrams_alone, "1")):
        last = log_of(path)[-1]
        assert last["step"] == step and last["val_loss"] and partly_trained(path) == ""


def test_a_run_that_is_made_longer_equals_one_in_a_piece(config):
    """Also with variants, each of which draws at random. (GPT-2: test_start_from.py)"""
    config |= {"architecture": "compressor", "contrast": "published", "dropout": 0.1}
    whole = run_of(config, name="whole")
    run_of(config, max_steps=10)
    assert_same_run(run_of(config, resume=True), whole)


@pytest.mark.parametrize("dtypes", [("bfloat16", "float16"), ("float16", "float32")])
def test_a_run_goes_on_on_other_hardware(config, dtypes, monkeypatch):
    """Where one type needs a scale for its gradients and the other has none; and with smaller
    batches of the same step."""
    config |= {"optimizer": "muon", "dtype": "auto"}
    whole = run_of(config, name="whole", dtype="float32")
    before, after = (getattr(torch, name) for name in dtypes)
    monkeypatch.setattr(cpu_features, "fast_dtype", lambda: before)
    run_of(config, max_steps=10)
    monkeypatch.setattr(cpu_features, "fast_dtype", lambda: after)
    run = run_of(config, resume=True, batch_size=2, grad_accum_steps=4)
    for ours, theirs in zip(numbers_of(run), numbers_of(whole), strict=True):
        assert ours["train_loss"] == pytest.approx(theirs["train_loss"], abs=0.05)


def spoil_gradients_of(step: int, monkeypatch):
    """They are infinite from this step on, and the loss stays finite."""
    train_step = train_module.train_step

    def spoiled_step(state, *args):
        if state.step == step:
            state.model.ln_f.weight.register_hook(lambda gradient: gradient * torch.inf)
        return train_step(state, *args)

    monkeypatch.setattr(train_module, "train_step", spoiled_step)


def test_in_float16_a_run_whose_gradients_always_overflow_ends(config, monkeypatch):
    spoil_gradients_of(0, monkeypatch)
    changes = {"dtype": "float16", "max_steps": 100, "log_interval": 50, "eval_interval": 100}
    with pytest.raises(UserError, match="infinite or NaN by step 50"):
        run_of(config, **changes)


def test_a_run_that_diverges_spares_its_checkpoints_and_goes_on_as_advised(
    config, monkeypatch, stop_in
):
    run = Path(config["out_dir"]) / "run"
    with monkeypatch.context() as accident:
        spoil_gradients_of(12, accident)
        with pytest.raises(UserError, match="NaN.*lower --learning_rate, or with --dtype=float32"):
            run_of(config, dtype="bfloat16")
        stop_in(13)  # nor does a run that is stopped then save such weights
        with pytest.raises(UserError, match="infinite or NaN by step 14"):
            run_of(config, resume=True)
    for name in ("ckpt.pt", "best.pt"):
        assert load_checkpoint(run / name)["step"] == 10
    assert [row["step"] for row in log_of(run)] == ["5", "10"]
    stop_in(-1)
    run_of(config, resume=True, learning_rate=1e-3, dtype="float32")
    assert log_of(run)[-1]["learning_rate"] == "0.001"


def test_a_validation_loss_that_is_not_finite_ends_the_run(config, monkeypatch):
    monkeypatch.setattr(train_module, "evaluate", lambda *_: {"val_loss": torch.nan})
    with pytest.raises(UserError, match="validation loss became"):
        run_of(config)
    assert not Path(config["out_dir"], "run", "ckpt.pt").exists()


def test_a_full_disk_ends_the_run_and_spares_the_checkpoint(config):
    run = run_of(config, max_steps=10)
    before = (run / "ckpt.pt").read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 4, hard))  # writing beyond it fails
    try:
        with pytest.raises(OSError, match="File too large"):
            run_of(config, resume=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (run / "ckpt.pt").read_bytes() == before and not list(run.glob(".*.tmp"))
    run_of(config, resume=True)


def test_a_run_of_the_same_name_or_of_other_data_is_spared(config):
    run = run_of(config)
    before = weights(run)["wte.weight"]
    with lock(run.parent, ".run.lock"):
        for resume in (False, True):
            with pytest.raises(UserError, match="another train.py trains run"):
                run_of(config, resume, max_steps=30)
    assert weights(run)["wte.weight"].equal(before) and list(run.parent.glob("[!.]*")) == [run]
    run_of(config, seed=1)
    assert weights(run.with_name("run-1"))["wte.weight"].equal(before)
    checkpoint = load_checkpoint(run / "ckpt.pt")
    for path in run.glob("*.pt"):
        path.unlink()
    (run / "loss.png").touch()
    run_of(config)  # what is left of it is spared, too
    assert len(log_of(run.with_name("run-2"))) == 4
    torch.save(checkpoint | {"data_sha256": "0"}, run / "ckpt.pt")
    with pytest.raises(UserError, match="different data"):
        run_of(config, resume=True, seed=1)
