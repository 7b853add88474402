"""The training loop: what it computes, that it can be stopped and goes on exactly, and what it says to mistakes."""

import itertools
import json
import math
import os
import resource
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import ROOT, STATEFUL, arguments, assert_same_run, log_of, weights

import train as train_module
from checkpoints.checkpoint import from_checkpoint, load_checkpoint, load_run
from corpus.preparation import prepare
from corpus.token_files import load_meta_and_tokens
from corpus.tokenizer import Tokenizer
from model import GPTNeo
from train import train
from training.config import ConfigError, TrainConfig
from training.data_order import batch_starts, flat_windows, story_windows
from training.device_and_dtype import no_compile_reason
from training.optimizers_and_schedule import learning_rate
from training.run_directory import LOG_COLUMNS, TrainingError

# ---- What it computes ----


def test_a_run_learns_and_leaves_what_the_design_says(config):
    run, ended = train(TrainConfig(**config, warmup_steps=2, warmdown=0.5), resume=False)
    assert ended
    rows = log_of(run)
    assert list(rows[0]) == LOG_COLUMNS
    assert [int(row["step"]) for row in rows] == [5, 10, 15, 20]
    assert [int(row["tokens"]) for row in rows] == [step * 8 * 16 for step in (5, 10, 15, 20)]
    assert [bool(row["val_loss"]) for row in rows] == [False, True, False, True]
    assert float(rows[0]["train_loss"]) == pytest.approx(math.log(300), rel=0.1)  # at first every id is as likely
    assert float(rows[-1]["train_loss"]) < float(rows[0]["train_loss"]) - 1
    assert json.loads((run / "config.json").read_text())["n_embd"] == 16
    assert (run / "loss.png").read_bytes()[:4] == b"\x89PNG"
    files = ["best.pt", "ckpt-previous.pt", "ckpt.pt", "config.json", "log.csv", "loss.png"]
    assert sorted(path.name for path in run.glob("[!.]*")) == files
    model, tokenizer = load_run(run)
    assert isinstance(tokenizer, Tokenizer) and model.config.n_embd == 16


def test_validation_loss_and_bpb_are_what_they_say(config, data_dir):
    """Every story of the validation split on its own, one by one, through the plain model."""
    run, _ = train(TrainConfig(**config | dict(block_size=24)), resume=False)
    model = from_checkpoint(load_checkpoint(run / "ckpt.pt"))
    tokenizer = Tokenizer(load_checkpoint(run / "ckpt.pt")["gpt2_ids"])
    tokens = torch.from_numpy(load_meta_and_tokens(data_dir / "tiny", "val")[1][:400].astype(np.int64))
    windows = story_windows(tokens.numpy(), 24, tokenizer.end_of_text)
    nats, n_tokens, n_bytes = 0.0, 0, 0
    counted_up_to = 0
    for start, following in zip(windows, [*windows[1:], windows[-1] + 24]):
        text = tokens[start : start + 25]
        losses = F.cross_entropy(model(text[None, :-1])[0][0], text[1:], reduction="none")
        assert start == counted_up_to  # no token is left out, none is counted twice
        counted_up_to = following
        nats += losses[: following - start].sum().item()
        n_tokens += following - start
        n_bytes += len(tokenizer.decode(text[1 : following - start + 1].tolist()).replace("<|endoftext|>", "").encode())
    last = log_of(run)[-1]
    assert float(last["val_loss"]) == pytest.approx(nats / n_tokens, abs=1e-4)
    assert float(last["bpb"]) == pytest.approx(nats / math.log(2) / n_bytes, abs=1e-4)


def test_micro_batches_add_up_to_the_batch(config):
    losses = []
    for batch_size, grad_accum_steps in ((8, 1), (4, 2), (1, 8)):
        settings = config | dict(batch_size=batch_size, grad_accum_steps=grad_accum_steps, name=f"b{batch_size}")
        run, _ = train(TrainConfig(**settings), resume=False)
        losses.append([float(row["train_loss"]) for row in log_of(run)])
    assert losses[1] == pytest.approx(losses[0], abs=1e-3)
    assert losses[2] == pytest.approx(losses[0], abs=1e-3)


def test_the_first_step_is_that_of_plain_pytorch(config, data_dir):
    """One step of the loop beside one written out with nothing but torch."""
    settings = TrainConfig(**config | dict(max_steps=1, weight_decay=0.3, grad_clip=0.5))
    run, _ = train(settings, resume=False)
    shape = from_checkpoint(load_checkpoint(run / "ckpt.pt")).config
    torch.manual_seed(settings.seed)
    model = GPTNeo(shape)
    tokens = load_meta_and_tokens(data_dir / "tiny", "train")[1].astype(np.int64)
    starts = batch_starts(flat_windows(tokens, 16), 16, 8, settings.seed, step=0)
    text = torch.from_numpy(np.stack([tokens[start : start + 17] for start in starts]))
    model(text[:, :-1], text[:, 1:])[1].backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    for parameter in model.parameters():
        # AdamW's first step: the moments cancel to the sign of the gradient; only matrices decay
        decay = 1 - settings.learning_rate * (0.3 if parameter.dim() > 1 else 0.0)
        step = parameter.grad / (parameter.grad.abs() + 1e-8)
        parameter.data = parameter.data * decay - settings.learning_rate * step
    for name, weight in model.state_dict().items():
        torch.testing.assert_close(weights(run)[name], weight, atol=1e-5, rtol=1e-4)


def test_bfloat16_and_the_compiled_step_come_to_the_same(config):
    plain = log_of(train(TrainConfig(**config | dict(name="plain")), resume=False)[0])
    mixed = log_of(train(TrainConfig(**config | dict(name="mixed", dtype="bfloat16")), resume=False)[0])
    for ours, theirs in zip(mixed, plain):
        assert float(ours["train_loss"]) == pytest.approx(float(theirs["train_loss"]), rel=0.02)
    if reason := no_compile_reason(torch.device("cpu")):
        pytest.skip(reason)
    compiled = log_of(train(TrainConfig(**config | dict(name="compiled", compile=True)), resume=False)[0])
    for ours, theirs in zip(compiled, plain):
        assert float(ours["train_loss"]) == pytest.approx(float(theirs["train_loss"]), abs=1e-3)


# ---- Stopped and resumed ----


@pytest.fixture
def reference(config):
    """A run that was never stopped; dropout makes it depend on the random state, Muon on two optimizers."""
    return train(TrainConfig(**config | dict(name="reference") | STATEFUL), resume=False)[0]


def test_a_run_that_is_made_longer_equals_one_in_a_piece(config, reference):
    config |= STATEFUL
    train(TrainConfig(**config | dict(max_steps=10)), resume=False)
    run, _ = train(TrainConfig(**config), resume=True)
    assert_same_run(run, reference)


def test_a_stopped_run_saves_first_and_goes_on_exactly(config, reference, monkeypatch):
    config |= STATEFUL
    steps = []

    def stop_at_seven(*args):
        steps.append(1)
        if len(steps) == 7:
            os.kill(os.getpid(), signal.SIGINT)
        return learning_rate(*args)

    monkeypatch.setattr(train_module, "learning_rate", stop_at_seven)
    run, ended = train(TrainConfig(**config), resume=False)
    assert not ended
    assert load_checkpoint(run / "ckpt.pt")["step"] == 7
    run, ended = train(TrainConfig(**config), resume=True)
    assert ended
    assert_same_run(run, reference)


def test_a_killed_run_goes_on_exactly(config, reference, tmp_path):
    config |= STATEFUL
    del config["name"], config["out_dir"]
    (tmp_path / "run.py").write_text("".join(f"{key} = {value!r}\n" for key, value in config.items()))
    command = [sys.executable, ROOT / "train.py", "run.py"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not (tmp_path / "out" / "run" / "ckpt.pt").exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    done = subprocess.run([*command, "--resume"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Next: python sample.py --model out/run" in done.stdout
    assert done.stdout.rstrip().endswith("python export.py out/run")
    assert_same_run(tmp_path / "out" / "run", reference)


@pytest.mark.parametrize("dtypes", [("bfloat16", "float16"), ("float16", "float32"), ("float32", "float16")])
def test_a_run_goes_on_in_another_type(config, dtypes, monkeypatch):
    """As on another GPU: where one type needs a scale for its gradients and the other has none."""
    config |= dict(optimizer="muon", dtype="auto")
    for n_steps, dtype in zip((10, 20), dtypes):
        chosen = getattr(torch, dtype), torch.float32
        monkeypatch.setattr(train_module, "choose_dtypes", lambda *args, chosen=chosen: chosen)
        run, ended = train(TrainConfig(**config | dict(max_steps=n_steps)), resume=n_steps > 10)
    assert ended
    losses = [float(row["train_loss"]) for row in log_of(run)]
    assert losses == sorted(losses, reverse=True) and losses[-1] < losses[0] - 1


@pytest.mark.parametrize("gpu_dtype", ["bfloat16", "float16", "float32"])
def test_what_a_gpu_trained_goes_on_on_a_cpu_with_what_is_fast_there(config, gpu_dtype):
    """One of these types is never the one that is fast here."""
    config |= dict(optimizer="muon", dtype="auto")
    run, _ = train(TrainConfig(**config | dict(max_steps=10)), resume=False)
    checkpoint = load_checkpoint(run / "ckpt.pt")
    scaler = torch.amp.GradScaler("cpu").state_dict() if gpu_dtype == "float16" else {}
    torch.save(checkpoint | dict(device="cuda", fast_dtype=gpu_dtype, scaler=scaler), run / "ckpt.pt")
    train(TrainConfig(**config), resume=True)
    before, after = checkpoint["fast_dtype"], load_checkpoint(run / "ckpt.pt")
    assert (after["fast_dtype"], after["device"], after["step"]) == (before, "cpu", 20)


@pytest.mark.parametrize("changes, same", [({}, True), (dict(contrast="margin"), False), (dict(dropout=0.1), False)])
def test_out_of_memory_promises_the_same_run_only_where_it_is_the_same(config, monkeypatch, capsys, changes, same):
    def run_out_of_memory(*args):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(train_module, "train", run_out_of_memory)
    monkeypatch.setattr(sys, "argv", ["train.py", *arguments(config | changes)])
    with pytest.raises(SystemExit) as end:
        train_module.main()
    assert "halve batch_size and double grad_accum_steps" in end.value.code
    assert end.value.code.endswith(", which gives the same run") == same


def test_a_run_of_the_same_name_is_kept(config):
    run, _ = train(TrainConfig(**config), resume=False)
    before = weights(run)
    train(TrainConfig(**config | dict(seed=1)), resume=False)
    assert all(torch.equal(weights(run.with_name("run-1"))[key], before[key]) for key in before)
    assert not torch.equal(weights(run)["wte.weight"], before["wte.weight"])


def test_the_clock_can_end_a_run(config, monkeypatch):
    ticks = itertools.count()
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(ticks)))  # a second goes by at every look
    run, ended = train(TrainConfig(**config | dict(max_steps=10**6, max_minutes=0.5, warmdown=1.0)), resume=False)
    assert ended
    last = log_of(run)[-1]
    assert 10 < int(last["step"]) <= 31
    assert last["val_loss"]
    assert float(last["learning_rate"]) < 1e-3  # the schedule came to its end, too


def test_a_slow_machine_takes_its_least_number_of_steps(config, monkeypatch):
    """The clock alone would end this run after some 30 steps."""
    ticks = itertools.count()
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(ticks)))
    config |= dict(max_steps=10**6, max_minutes=0.5, min_steps=60, warmdown=1.0)
    run, ended = train(TrainConfig(**config), resume=False)
    last = log_of(run)[-1]
    assert ended and int(last["step"]) == 60 and float(last["learning_rate"]) < 1e-3


@pytest.mark.parametrize("limit", range(3, 9))
def test_wherever_the_time_runs_out_the_run_is_evaluated_and_saved(config, monkeypatch, limit):
    """Also while the losses of a log interval are waited for."""
    ticks = itertools.count()
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(ticks)))  # a second at each look
    config |= dict(max_steps=10**6, max_minutes=limit / 60, log_interval=1, eval_interval=10**6)
    run, ended = train(TrainConfig(**config), resume=False)
    assert ended and load_checkpoint(run / "ckpt.pt")["step"] == int(log_of(run)[-1]["step"])
    assert log_of(run)[-1]["val_loss"]


def test_a_loss_that_explodes_ends_the_run_and_spares_the_checkpoint(config):
    run, _ = train(TrainConfig(**config), resume=False)
    good = load_checkpoint(run / "ckpt.pt")
    good["model"]["wte.weight"][:] = math.inf
    torch.save(good, run / "ckpt.pt")
    before = (run / "ckpt.pt").read_bytes()
    with pytest.raises(
        TrainingError, match="at step 21 the loss or its gradient became infinite or NaN; the checkpoints"
    ):
        train(TrainConfig(**config | dict(max_steps=40)), resume=True)
    assert (run / "ckpt.pt").read_bytes() == before


def test_a_full_disk_ends_the_run_and_spares_the_checkpoint(config):
    """A limit on the size of files stands in for the disk: writing beyond it fails just so."""
    run, _ = train(TrainConfig(**config | dict(max_steps=10)), resume=False)
    before = (run / "ckpt.pt").read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 4, limits[1]))
    try:
        with pytest.raises(TrainingError, match=r"\.pt: cannot be written \(File too large\); the old file is unch"):
            train(TrainConfig(**config), resume=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (run / "ckpt.pt").read_bytes() == before
    assert not list(run.glob(".*.tmp"))
    assert train(TrainConfig(**config), resume=True) == (run, True)


# ---- Mistakes ----


@pytest.mark.parametrize(
    "changes, resume, message",
    [
        (dict(data="tinystories"), False, "python prepare.py tinystories"),
        (dict(n_head=3), False, "n_embd (16) must be a multiple of n_head (3)"),
        (dict(device="meta"), False, "device must be auto, cpu"),
        (dict(block_size=100_000, eval_tokens=200_000), False, "are too few for block_size=100000"),
        (dict(device="cuda:7"), False, "device 'cuda:7' cannot be used here"),
        (dict(name="never"), True, "no checkpoint to resume"),
        (dict(n_layer=3), True, "trained with n_layer=2; it cannot be resumed with n_layer=3"),
        (dict(learning_rate=0.5), True, "trained with learning_rate=0.01; it cannot be resumed with learning_rate=0.5"),
        (dict(block_size=1000, eval_tokens=5000), False, "tokens of val are too few for block_size=1000"),
    ],
)
def test_mistakes_get_one_line_and_lose_nothing(config, tmp_path, monkeypatch, changes, resume, message):
    run, _ = train(TrainConfig(**config), resume=False)
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    (tmp_path / "empty.py").write_text("")
    settings = [f"--{key}={value}" for key, value in (config | changes).items()]
    monkeypatch.setattr(sys, "argv", ["train.py", str(tmp_path / "empty.py"), *settings, *["--resume"] * resume])
    with pytest.raises(SystemExit) as caught:
        train_module.main()
    assert message in caught.value.code
    assert "\n" not in caught.value.code
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before
    assert list(run.parent.iterdir()) == [run]


def test_a_run_does_not_go_on_with_other_data(config, data_dir, tmp_path):
    texts = [f"A story of {i} words." for i in range(500)]
    prepare(tmp_path / "data" / "tiny", ["made for the tests"], texts, texts[:100], vocab_size=300)
    train(TrainConfig(**config), resume=False)
    with pytest.raises(ConfigError, match="was trained on other data"):
        train(TrainConfig(**config | dict(data_dir=str(tmp_path / "data"))), resume=True)


def test_a_checkpoint_older_than_a_setting_goes_on_with_its_default(config):
    run, _ = train(TrainConfig(**config), resume=False)
    checkpoint = load_checkpoint(run / "ckpt.pt")
    del checkpoint["train_config"]["copy_init"]
    torch.save(checkpoint, run / "ckpt.pt")
    assert train(TrainConfig(**config | dict(max_steps=21)), resume=True) == (run, True)
