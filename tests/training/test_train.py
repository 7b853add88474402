"""The training loop: what it computes and keeps, when it ends, and what it says to mistakes."""

import math
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import (
    STATEFUL,
    arguments,
    assert_same_weights,
    log_of,
    numbers_of,
    run_of,
    weights,
)
from story_files import snapshot

import train as train_module
from model import GPTNeo
from nanostories.checkpoints.checkpoint import (
    from_checkpoint,
    kept_checkpoints,
    load_checkpoint,
)
from nanostories.checkpoints.huggingface import load_model
from nanostories.corpus.instruct_headers import story_tokens
from nanostories.corpus.token_files import load_meta_and_tokens
from nanostories.device import no_compile_reason
from nanostories.kernels.attention import story_starts
from nanostories.training import log
from nanostories.training.config import TrainConfig
from nanostories.training.data_order import Windows, load_corpus, story_windows
from nanostories.training.state import TrainingState

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture(params=["cpu", "gpu"])
def slow_steps(request, monkeypatch):
    """A step takes a second: of the host, or of a GPU, for which only check_finite waits."""
    now = [0.0]
    unfinished = [0.0]  # seconds of work
    train_step = train_module.train_step
    check_finite = TrainingState.check_finite

    def slow_step(state, *args):
        unfinished[0] += 1
        train_step(state, *args)
        if request.param == "cpu":
            state.check_finite()

    def wait(state):
        now[0] += unfinished[0]
        unfinished[0] = 0.0
        check_finite(state)

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(train_module, "train_step", slow_step)
    monkeypatch.setattr(TrainingState, "check_finite", wait)
    return request.param


# ---- What it computes ----
def test_a_run_learns_and_leaves_what_the_design_says(config, quick):
    quick.undo()
    run = run_of(config, warmup_steps=2, warmdown=0.5)
    rows = numbers_of(run)
    assert [row["tokens"] for row in rows] == [step * 8 * 16 for step in (5, 10, 15, 20)]
    assert ["val_loss" in row for row in rows] == [False, True, False, True]
    first = rows[0]["train_loss"]
    assert first == pytest.approx(math.log(300), rel=0.1)  # every id is as likely
    assert rows[-1]["train_loss"] < first - 1
    files = ["best.pt", "ckpt.pt", "config.json", "log.csv", "loss.png", "loss.svg"]
    assert sorted(path.name for path in run.iterdir()) == files
    run = run_of(config, name="one_step", epochs=1e-6)
    assert (run / "loss.png").exists()
    assert load_checkpoint(run)["train_config"]["max_steps"] == 1 == len(log_of(run))


def test_the_clock_and_the_time_to_go(config, slow_steps, capsys, monkeypatch):
    """Steps that compile are not in the speed: the first one, and the first one that reads windows
    of another length. MFU may be above 1, where the peak is wrong: then somebody sees it."""
    monkeypatch.setattr(log, "peak_flops", lambda *_: 1000.0)
    run = run_of(config, max_steps=15, short_window_steps=7)
    rows = log_of(run)
    assert [float(row["seconds"]) for row in rows] == [4, 8, 13]
    assert {row["tokens_per_s"] for row in rows} == {"128"}
    mfu = 128 * load_model(str(run))[0].flops_per_token(16) / 1000
    # none for short windows, which take fewer FLOPs
    assert [row["mfu"] for row in rows] == ["", f"{mfu:.4f}", f"{mfu:.4f}"]
    assert " 00:10 to go" in capsys.readouterr().out  # 10 steps of a second
    # also in the rows of kept checkpoints
    run = run_of(config, name="keeps", max_steps=12, keep_checkpoints=3)
    assert [row["seconds"] for row in log_of(run)] == ["3.00", "4.00", "7.00", "9.00", "11.00"]


@torch.no_grad()
def expected_validation(run: Path, tokens: np.ndarray) -> tuple[float, float]:
    """Loss and bpb of a run's last weights, window by window, from plain logits. Every token of a
    story counts once."""
    model, tokenizer = load_model(str(run / "ckpt.pt"))
    config = TrainConfig(**load_checkpoint(run / "ckpt.pt")["train_config"])
    text = torch.from_numpy(tokens.astype(np.int64))
    losses = torch.full((len(text),), torch.nan)
    for start in story_windows(tokens, config.block_size, tokenizer.end_of_text):
        window = text[start : start + config.block_size + 1][None]
        starts = None
        if config.attend_within_story:
            starts = story_starts(window[:, :-1], tokenizer.end_of_text)
        logits, _ = model(window[:, :-1], story_starts=starts)
        # where windows overlap, the later one counts
        of_window = F.cross_entropy(logits[0], window[0, 1:], reduction="none")
        losses[start + 1 :][: len(of_window)] = of_window
    assert not losses[1:].isnan().any()
    counted = np.ones(len(tokens), dtype=bool)
    if config.data == "builtin-instruct":
        counted = story_tokens(tokens, tokenizer)
    counted[0] = False
    is_end = tokens == tokenizer.end_of_text
    n_bytes = len(tokenizer.decode_bytes(tokens[counted & ~is_end]))
    return losses[counted].mean().item(), losses[counted].sum().item() / math.log(2) / n_bytes


def test_validation_loss_and_bpb_are_what_they_say(config, data_dir, instruct_data_dir):
    """Headers never count."""
    for data, changes in {
        data_dir / "tiny": {"block_size": 24, "attend_within_story": True},
        instruct_data_dir / "builtin-instruct": {"block_size": 200, "max_steps": 4},
    }.items():
        config |= {"data": data.name, "data_dir": str(data.parent)}
        run = run_of(config, **changes, learning_rate=3e-2, eval_tokens=1000)
        tokens = load_meta_and_tokens(data, "val")[1][:1000]
        last = numbers_of(run)[-1]
        measured = (last["val_loss"], last["bpb"])
        assert measured == pytest.approx(expected_validation(run, tokens), abs=1e-4)


def test_the_first_step_is_that_of_plain_pytorch(config, data_dir):
    """One step of the loop beside one written out with nothing but torch."""
    changes = {"max_steps": 1, "weight_decay": 0.3, "grad_clip": 0.5}
    run = run_of(config, **changes)
    config = TrainConfig(**config | changes)
    shape = from_checkpoint(load_checkpoint(run / "ckpt.pt")).config
    torch.manual_seed(config.seed)
    model = GPTNeo(shape)
    tokens = load_meta_and_tokens(data_dir / "tiny", "train")[1].astype(np.int64)
    starts = Windows(load_corpus(config, torch.device("cpu")), config).for_step(0)
    text = torch.from_numpy(np.stack([tokens[start : start + 17] for start in starts]))
    model(text[:, :-1], text[:, 1:])[1].backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    for parameter in model.parameters():
        # AdamW's first step: the moments cancel to the sign of the gradient; only matrices decay
        decay = 1 - config.learning_rate * (0.3 if parameter.dim() > 1 else 0.0)
        step = parameter.grad / (parameter.grad.abs() + 1e-8)
        parameter.data = parameter.data * decay - config.learning_rate * step
    torch.testing.assert_close(weights(run), dict(model.state_dict()), atol=1e-5, rtol=1e-4)


@pytest.mark.slow
def test_the_compiled_step_comes_to_the_same_and_twice_to_the_same_bits(config, two_threads):
    """On two threads, where atomic additions would come in any order."""
    if reason := no_compile_reason(torch.device("cpu")):
        pytest.skip(reason)
    config |= {"attend_within_story": True, "batch_size": 16, "block_size": 64, "n_layer": 1}
    config |= {"eval_tokens": 1000}
    plain = run_of(config, name="plain", compile=False)
    first = run_of(config, name="first", compile=True)
    second = run_of(config, name="second", compile=True)
    for ours, theirs in zip(numbers_of(first), numbers_of(plain)):
        assert ours["train_loss"] == pytest.approx(theirs["train_loss"], abs=1e-3)
    assert_same_weights(second, first)


# ---- When it ends, what it keeps ----
def test_the_clock_can_end_a_run_and_spreads_what_it_keeps(config, slow_steps):
    changes = {"max_steps": 10**6, "max_minutes": 0.5, "warmdown": 1.0, "keep_checkpoints": 3}
    run = run_of(config, **changes, log_interval=1 if slow_steps == "gpu" else 5)
    last = log_of(run)[-1]
    assert last["val_loss"] and float(last["learning_rate"]) < 4e-3  # the schedule ended, too
    late = slow_steps == "gpu"  # a step's work is seen after the next one
    assert list(kept_checkpoints(run)) == [11 + late, 21 + late, 31 + late]


@pytest.mark.parametrize("wanted, steps", [(3, [7, 14, 20]), (50, range(1, 21))])
def test_weights_are_kept_evenly_spread(config, wanted, steps):
    run = run_of(config, **STATEFUL, keep_checkpoints=wanted)
    assert list(kept_checkpoints(run)) == list(steps)
    rows = {int(row["step"]): row for row in log_of(run)}
    for step, directory in kept_checkpoints(run).items():
        assert log_of(directory) == [rows[step]] and rows[step]["val_loss"]
        kept = load_checkpoint(directory)
        assert kept["step"] == step and "optimizers" not in kept
    # as of a run that ended there
    ended = run_of(config, **STATEFUL, name="ended", max_steps=7)
    assert_same_weights(run / "step-7", ended)


MISTAKES = {  # flags of a run whose name is there, and the message
    "--data=tinystories": "python prepare.py tinystories",
    "--block_size=100000 --eval_tokens=200000": "block_size=100000 needs more",
    "--name=never --resume": "no such run",
    "--name=begun --resume": "out/begun/ckpt.pt: no checkpoint there",
    "--n_layer=3 --resume": "n_layer=2; it cannot be resumed with n_layer=3",
    "--window_size=9 --resume": "window_size=8; it cannot be resumed with window_size=9",
    "--batch_size=1 --resume": "it cannot be resumed with batch_size * grad_accum_steps=2",
}


def test_mistakes_get_one_line_and_lose_nothing(config, tmp_path, command_line):
    run = run_of(config)
    run.with_name("begun").mkdir()
    before = snapshot(run.parent)
    for flags, message in MISTAKES.items():
        said, _ = command_line(train_module, tmp_path)(*arguments(config, *flags.split()))
        assert message in said
        assert snapshot(run.parent) == before
