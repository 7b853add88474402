"""A run that was stopped or killed at any moment, and resumed, ends as one that was never
stopped."""

import resource
import signal
from pathlib import Path

import pytest
import torch
from conftest import STATEFUL, arguments, assert_same_run, log_of, settings, weights
from forks import KILLED, fork

import train as train_module
from nanostories.checkpoints.checkpoint import kept_checkpoints, load_checkpoint
from nanostories.cli import UserError
from nanostories.files import lock
from nanostories.kernels import cpu_features
from nanostories.tables import write_table
from nanostories.training.config import TrainConfig
from nanostories.training.run_directory import (
    overfitting_warning,
    partly_trained,
)
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
        assert all(
            weight.equal(weights(run / f"step-{step}")[key])
            for key, weight in weights(directory).items()
        )
    assert not list(run.rglob(".*.tmp"))


def test_a_stopped_run_ends_its_step_saves_and_goes_on_exactly(config, reference, monkeypatch):
    for_step = train_module.Batches.for_step

    def read_and_stop(self, step):
        if step == 7:
            signal.raise_signal(signal.SIGINT)
        return for_step(self, step)

    monkeypatch.setattr(train_module.Batches, "for_step", read_and_stop)
    run, ended = train(TrainConfig(**config | LONGER), resume=False)
    assert not ended
    assert load_checkpoint(run / "ckpt.pt")["step"] == 8
    assert partly_trained(run) == " (17% trained)"  # 5 of 30 are in the log
    monkeypatch.undo()
    assert train(TrainConfig(**config | LONGER), resume=True) == (run, True)
    assert partly_trained(run) == ""
    assert_same_run(run, reference)


@pytest.mark.parametrize(
    "changes",
    [
        dict(contrast="published"),
        STATEFUL | dict(batch_size=2, grad_accum_steps=4, attend_within_story=True),
    ]
    + [STATEFUL | dict(architecture=name, n_layer=3) for name in ("gpt2", "compressor")],
    ids=str,
)
def test_a_run_that_is_made_longer_equals_one_in_a_piece(config, changes):
    whole, _ = train(TrainConfig(**config | changes | dict(name="whole")), resume=False)
    for n_steps in (10, 20):
        run, _ = train(
            TrainConfig(**config | changes | dict(max_steps=n_steps)), resume=n_steps == 20
        )
    assert_same_run(run, whole)


@pytest.mark.parametrize(
    "dtypes", [("bfloat16", "float16"), ("float16", "float32"), ("float32", "float16")]
)
def test_a_run_goes_on_on_other_hardware_and_says_what_differs(config, dtypes, monkeypatch, capsys):
    """Where one type needs a scale for its gradients and the other has none."""
    config |= dict(optimizer="muon", dtype="auto")
    for n_steps, dtype in zip((10, 20), dtypes):
        monkeypatch.setattr(cpu_features, "fast_dtype", lambda dtype=dtype: getattr(torch, dtype))
        run, ended = train(TrainConfig(**config | dict(max_steps=n_steps)), resume=n_steps > 10)
    assert ended and f"dtype={dtypes[1]} (was {dtypes[0]})" in capsys.readouterr().out
    losses = [float(row["train_loss"]) for row in log_of(run)]
    assert losses == sorted(losses, reverse=True) and losses[-1] < losses[0] - 1


def test_a_run_cannot_be_resumed_to_an_end_that_lies_behind_it(config):
    train(TrainConfig(**config | dict(max_steps=20)), resume=False)
    run = Path(config["out_dir"]) / "run"
    checkpoint = load_checkpoint(run / "ckpt-previous.pt")  # of step 10
    torch.save(checkpoint, run / "ckpt.pt")
    with pytest.raises(UserError, match="has already taken 10 steps: give it more"):
        train(TrainConfig(**config | dict(max_steps=7)), resume=True)
    assert load_checkpoint(run / "ckpt.pt")["step"] == 10
    assert train(TrainConfig(**config | dict(max_steps=20)), resume=True) == (run, True)
    assert train(TrainConfig(**config | dict(max_steps=20)), resume=True) == (run, True)


def test_in_float16_a_run_whose_gradients_always_overflow_ends(config, monkeypatch):
    """Its loss stays finite, and its weights stay as they are."""
    train_step = train_module.train_step

    def spoil_gradients(state, *args):
        if state.step == 0:
            state.model.ln_f.weight.register_hook(lambda gradient: gradient * torch.inf)
        return train_step(state, *args)

    monkeypatch.setattr(train_module, "train_step", spoil_gradients)
    changes = dict(dtype="float16", max_steps=100, log_interval=50, eval_interval=100)
    with pytest.raises(UserError, match="infinite or NaN by step 50"):
        train(TrainConfig(**config | changes), resume=False)


def test_a_run_of_the_same_name_is_kept(config):
    run, _ = train(TrainConfig(**config), resume=False)
    before = weights(run)
    train(TrainConfig(**config | dict(seed=1)), resume=False)
    assert weights(run.with_name("run-1"))["wte.weight"].equal(before["wte.weight"])
    assert not weights(run)["wte.weight"].equal(before["wte.weight"])


def test_a_run_does_not_go_on_with_other_data(config):
    run, _ = train(TrainConfig(**config), resume=False)
    torch.save(load_checkpoint(run / "ckpt.pt") | dict(data_sha256="0"), run / "ckpt.pt")
    with pytest.raises(UserError, match="different data"):
        train(TrainConfig(**config), resume=True)


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_takes_its_place(config, reference):
    run, _ = train(
        TrainConfig(**config | LONGER | dict(max_steps=20, keep_checkpoints=2)), resume=False
    )
    with (run / "ckpt.pt").open("rb+") as file:
        file.truncate(1000)
    with pytest.raises(ValueError, match="ckpt.pt: not a readable"):
        train(TrainConfig(**config | LONGER), resume=True)
    (run / "ckpt-previous.pt").rename(run / "ckpt.pt")
    train(TrainConfig(**config | LONGER), resume=True)
    assert_same_run(run, reference)


def test_a_run_that_diverges_ends_and_spares_its_checkpoints(config, monkeypatch):
    def spoil_step_13(state, *args):
        if state.step == 12:
            state.model.ln_f.weight.register_hook(lambda gradient: gradient * torch.inf)
        if state.step == 13:  # what it saves when it is told to stop is checked, too
            signal.raise_signal(signal.SIGTERM)
        return train_step(state, *args)

    train_step = train_module.train_step
    monkeypatch.setattr(train_module, "train_step", spoil_step_13)
    with pytest.raises(ValueError, match="became infinite or NaN.*lower --learning_rate"):
        train(TrainConfig(**config), resume=False)
    run = Path(config["out_dir"]) / "run"
    for name in ("ckpt.pt", "best.pt"):
        assert load_checkpoint(run / name)["step"] == 10
    assert [row["step"] for row in log_of(run)] == ["5", "10"]
    monkeypatch.setattr(
        train_module, "evaluate", lambda *_: dict(val_loss=torch.nan, bpb=torch.nan)
    )
    with pytest.raises(ValueError, match="validation loss became"):
        train(TrainConfig(**config | dict(name="other")), resume=False)
    assert not (run.parent / "other" / "ckpt.pt").exists()


def test_what_the_message_of_a_diverged_run_advises_is_allowed(config, capsys):
    train(TrainConfig(**config | dict(max_steps=10)), resume=False)
    remedy = dict(learning_rate=1e-3, dtype="bfloat16")
    run, ended = train(TrainConfig(**config | remedy), resume=True)
    assert ended and log_of(run)[-1]["learning_rate"] == "0.001"
    assert "learning_rate=0.001 (was 0.01)" in capsys.readouterr().out


def test_a_full_disk_ends_the_run_and_spares_the_checkpoint(config, capsys):
    run, _ = train(TrainConfig(**config | dict(max_steps=10)), resume=False)
    before = (run / "ckpt.pt").read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(
        resource.RLIMIT_FSIZE, (len(before) // 4, limits[1])
    )  # writing beyond it fails just so
    try:
        with pytest.raises(OSError, match="File too large"):
            train(TrainConfig(**config), resume=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (run / "ckpt.pt").read_bytes() == before and not list(run.glob(".*.tmp"))
    assert train(TrainConfig(**config), resume=True) == (run, True)
    assert "changed since the checkpoint: max_steps=20 (was 10)" in capsys.readouterr().out


def test_two_runs_do_not_share_a_directory(config):
    run, _ = train(TrainConfig(**config), resume=False)
    before = {path: path.read_bytes() for path in run.iterdir()}
    with lock(run):
        for resume in (False, True):
            with pytest.raises(ValueError, match="another train.py"):
                train(TrainConfig(**config | dict(max_steps=30)), resume)
    assert {path: path.read_bytes() for path in run.iterdir()} == before and list(
        run.parent.iterdir()
    ) == [run]


@pytest.mark.parametrize("losses, warned", [((3, 2, 2.01), False), ((3, 2, 2.1), True)])
def test_a_loss_that_rose_is_noted(tmp_path, losses, warned):
    write_table(
        tmp_path / "log.csv", [dict(step=10 * i, val_loss=loss) for i, loss in enumerate(losses, 1)]
    )
    assert ("at step 20," in overfitting_warning(tmp_path)) == warned
