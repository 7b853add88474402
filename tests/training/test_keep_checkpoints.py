"""Weights kept on the way: which ones, that they are those of their steps and survive kills, and who reads them."""

import itertools
import time

import pytest
from conftest import STATEFUL, arguments, assert_same_run, log_of, settings, weights
from forks import fork

import probe
import sample
from checkpoints.checkpoint import at_checkpoint, kept_checkpoints, load_checkpoint, load_run, runs_below
from train import train
from training.config import ConfigError, TrainConfig

KEEPING = STATEFUL | dict(keep_checkpoints="3", max_steps=30)


def run_of(config: dict, **changes):
    return train(TrainConfig(**config | changes), resume=False)[0]


@pytest.mark.parametrize(
    "wanted, steps",
    [("1", [20]), ("4", [5, 10, 15, 20]), ("3", [7, 14, 20]), ("50", range(1, 21)), ("3,12,99", [3, 12]), ("7,", [7])],
)
def test_evenly_spread_or_as_listed(config, wanted, steps):
    run = run_of(config, keep_checkpoints=wanted)
    assert list(kept_checkpoints(run)) == list(steps)
    for step, directory in kept_checkpoints(run).items():
        (row,) = [row for row in log_of(run) if int(row["step"]) == step]
        assert log_of(directory) == [row] and row["val_loss"]
        assert load_checkpoint(directory)["step"] == step


def test_kept_weights_are_those_of_a_run_that_ended_there(config):
    run = run_of(config, **STATEFUL, keep_checkpoints="7,20")
    plain = run_of(config, **STATEFUL, name="plain")
    ended = run_of(config, **STATEFUL, name="ended", max_steps=7)
    for directory, other in ((run / "step-7", ended), (run / "step-20", plain), (run, plain)):
        assert all(weight.equal(weights(directory)[key]) for key, weight in weights(other).items())
    kept, whole = (path.stat().st_size for path in (run / "step-7" / "ckpt.pt", run / "ckpt.pt"))
    assert kept < 0.6 * whole  # without the optimizers


def test_under_the_clock_they_are_spread_over_its_time(config, monkeypatch):
    ticks = itertools.count()
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(ticks)))  # a second goes by at every look
    run = run_of(config, max_steps=10**6, max_minutes=0.5, keep_checkpoints="3")
    steps, end = list(kept_checkpoints(run)), load_checkpoint(run / "ckpt.pt")["step"]
    assert len(steps) == 3 and steps[-1] == end
    assert steps[:2] == pytest.approx([end / 3, 2 * end / 3], abs=2)


@pytest.fixture(scope="module")
def reference(data_dir, tmp_path_factory):
    """Never stopped, in a process as the killed ones are."""
    directory = tmp_path_factory.mktemp("reference")
    finish(settings(data_dir, directory) | KEEPING, directory / "said")
    return directory / "out" / "run"


def finish(config, said, *flags):
    process = fork(arguments(config, *flags), said)
    process.join()
    assert process.exitcode == 0, said.read_text()


@pytest.mark.parametrize("moment", ["within ckpt.pt", "behind best.pt", "before the plot"])
def test_a_killed_run_keeps_the_same(config, reference, tmp_path, moment):
    process = fork(arguments(config | KEEPING), tmp_path / "said", moment, step=20)
    process.join()
    assert process.exitcode == -9
    finish(config | KEEPING, tmp_path / "said", "--resume")
    run = tmp_path / "out" / "run"
    assert_same_run(run, reference)
    assert list(kept_checkpoints(run)) == [10, 20, 30]
    for step, directory in kept_checkpoints(reference).items():
        assert all(weight.equal(weights(run / f"step-{step}")[key]) for key, weight in weights(directory).items())
    assert not list(run.rglob(".*.tmp"))


def test_what_was_kept_beyond_the_checkpoint_is_kept_anew(config):
    """As by the clock: after a kill, the same share of it may end at another step."""
    run = run_of(config, max_steps=10, keep_checkpoints="6,")
    (run / "step-6").rename(run / "step-12")
    train(TrainConfig(**config, keep_checkpoints="15,"), resume=True)  # and a resumed run may keep others
    assert list(kept_checkpoints(run)) == [15]


@pytest.mark.parametrize("wanted", ["0", "-1", "ten", "5;6", "1.5", "3,,4"])
def test_what_cannot_be_kept_is_named(config, wanted):
    with pytest.raises(ConfigError, match=f"keep_checkpoints must be a number, such as 5, or steps.*not '{wanted}'"):
        TrainConfig(**config | dict(keep_checkpoints=wanted))


# ---- Who reads them ----


def test_a_step_is_named_like_any_checkpoint(config):
    run = run_of(config, keep_checkpoints="5,")
    assert at_checkpoint(str(run), "5") == str(run / "step-5") and load_run(run / "step-5")
    assert at_checkpoint("hf:gpt2", "5") == "hf:gpt2"
    with pytest.raises(ValueError, match=r"run: --checkpoint 6 is not best, last or one of the kept steps \(5\)"):
        at_checkpoint(str(run), "6")


def test_what_was_kept_is_a_run_only_where_it_is_named(config):
    run = run_of(config, keep_checkpoints="5,")
    other = run_of(config, name="step-7")  # which is no part of another run
    assert runs_below(run.parent) == [run, other] and runs_below(run) == [run]
    assert runs_below(run / "step-5") == [run / "step-5"]


def test_samples_and_probes_of_a_step_lie_beside_its_weights(config, command_line, tmp_path):
    run = run_of(config, block_size=64, keep_checkpoints="5,")
    code, said = command_line(sample, tmp_path)("--model", run, "--checkpoint", 5, "--eval", 3, "--n", 1)
    assert code == 0, code
    assert len((run / "step-5" / "samples.jsonl").read_text().splitlines()) == 3
    assert not (run / "samples.jsonl").exists()
    (tmp_path / "prompts.txt").write_text("Tom had a\n")
    code, said = command_line(probe, tmp_path)(run / "step-5", "--prompts", "prompts.txt")
    assert code == 0 and (run / "step-5" / "probe-prompts.csv").exists()
    code, said = command_line(sample, tmp_path)("--model", run, "--checkpoint", "all", "--eval", 2, "--n", 1)
    assert code == 0 and "samples-1.jsonl" in said.out  # those of other settings are kept
    code, said = command_line(probe, tmp_path)("out", "--checkpoint", "all", "--prompts", "prompts.txt")
    assert code == 0 and not (tmp_path / "out" / "probe-prompts.csv").exists()
    code, said = command_line(sample, tmp_path)("--model", run, "--checkpoint", "five")
    assert code == 2 and "must be best, last, all or a step number, not five" in said.err
