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
from conftest import ROOT, STATEFUL, assert_same_run, log_of, weights

import train as train_module
from checkpoints.checkpoint import from_checkpoint, load_checkpoint, load_run
from corpus.preparation import prepare
from corpus.token_files import load_tokens
from corpus.tokenizer import Tokenizer
from train import (
    ConfigError,
    TokenStream,
    TrainConfig,
    batch_starts,
    flat_windows,
    learning_rate,
    make_optimizers,
    parse_command_line,
    story_windows,
    train,
)
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
    tokens = torch.from_numpy(load_tokens(data_dir / "tiny", "val")[:400].astype(np.int64))
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
    model = train_module.GPTNeo(shape)
    tokens = load_tokens(data_dir / "tiny", "train").astype(np.int64)
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
    if obstacle := train_module.why_not_compile(torch.device("cpu")):
        pytest.skip(obstacle)
    compiled = log_of(train(TrainConfig(**config | dict(name="compiled", compile=True)), resume=False)[0])
    for ours, theirs in zip(compiled, plain):
        assert float(ours["train_loss"]) == pytest.approx(float(theirs["train_loss"]), abs=1e-3)


@pytest.mark.parametrize("n_tokens, block_size", [(1000, 16), (193, 64), (33, 16)])
def test_an_epoch_sees_every_window_once(n_tokens, block_size):
    windows = flat_windows(np.zeros(n_tokens), block_size)
    n = len(windows)
    assert (n + 1) * block_size <= n_tokens < (n + 2) * block_size
    epochs = []
    for epoch in range(3):
        steps = range(epoch * n, (epoch + 1) * n)
        starts = np.concatenate([batch_starts(windows, block_size, 1, 7, step) for step in steps])
        assert len(set(starts)) == n
        assert starts.min() >= 0 and starts.max() + block_size + 1 <= n_tokens
        assert len({start % block_size for start in starts}) == 1  # windows side by side, none over another
        epochs.append(starts.tolist())
    # the same whatever the batch: a step is a place in one long list
    assert batch_starts(windows, block_size, 3 * n, 7, 0).tolist() == epochs[0] + epochs[1] + epochs[2]
    assert epochs[0] != epochs[1]
    assert batch_starts(windows, block_size, n, 8, 0).tolist() != epochs[0]


def test_story_windows_hold_every_story_whole():
    rng = np.random.default_rng(0)
    stories = [rng.integers(1, 100, size) for size in rng.integers(1, 31, 200)]
    stories[50] = rng.integers(1, 100, 100)  # too long for any window
    tokens = np.concatenate([np.append(story, 0) for story in stories])
    starts = story_windows(tokens, 32, end_of_text=0)
    assert starts[0] == 0 and (np.diff(starts) > 0).all() and (np.diff(starts) <= 32).all()
    assert starts[-1] + 32 < len(tokens) <= starts[-1] + 2 * 32 + 1
    windows = [tokens[start : start + 33].tolist() for start in starts]
    for story in stories[1:-5]:
        whole = [0, *story.tolist()]  # with the end of text before it
        if len(whole) <= 32:
            assert any(window[i : i + len(whole)] == whole for window in windows for i in range(len(window)))
    begins = [window[0] == 0 for window in windows[1:]]
    assert sum(begins) >= len(begins) - 4 and not all(begins)  # all but where the long ones go on


def test_aligned_windows_are_trained_on(config):
    flat = log_of(train(TrainConfig(**config), resume=False)[0])
    aligned = log_of(train(TrainConfig(**config | dict(align_stories=True)), resume=False)[0])
    assert flat[0]["train_loss"] != aligned[0]["train_loss"]
    assert float(aligned[-1]["train_loss"]) < float(aligned[0]["train_loss"]) - 1


def test_windows_hold_the_text_and_its_successors():
    tokens = np.arange(40_000, 40_100).astype("<u2")  # ids that int16 cannot hold
    inputs, targets = TokenStream(tokens, 10, torch.device("cpu")).read(np.array([0, 89]))
    assert inputs.tolist() == [list(range(40_000, 40_010)), list(range(40_089, 40_099))]
    assert targets.tolist() == [list(range(40_001, 40_011)), list(range(40_090, 40_100))]


def test_learning_rate_warms_up_stays_and_falls():
    config = TrainConfig(learning_rate=1.0, warmup_steps=4, warmdown=0.5)
    assert [learning_rate(step, 0.0, config) for step in range(6)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0])
    assert [learning_rate(100, done, config) for done in (0.5, 0.75, 1.0)] == pytest.approx([1.0, 0.5, 0.0])
    assert learning_rate(10**6, 1.0, TrainConfig(learning_rate=1.0)) == 1.0  # constant, as published


def test_biases_and_layer_norms_do_not_decay():
    model = train_module.GPTNeo(train_module.GPTNeoConfig(vocab_size=50, n_layer=1, n_head=2, n_embd=8))
    (adamw,) = make_optimizers(model, TrainConfig())
    for group in adamw.param_groups:
        for parameter in group["params"]:
            assert group["weight_decay"] == (0.1 if parameter.dim() == 2 else 0.0)
    assert sum(p.numel() for group in adamw.param_groups for p in group["params"]) == model.num_params()


def test_muon_has_the_matrices_of_the_blocks_and_adamw_the_rest():
    model = train_module.GPTNeo(train_module.GPTNeoConfig(vocab_size=50, n_layer=2, n_head=2, n_embd=8))
    muon, adamw = make_optimizers(model, TrainConfig(optimizer="muon"))
    ids = [{id(p) for group in optimizer.param_groups for p in group["params"]} for optimizer in (muon, adamw)]
    assert ids[0] == {id(p) for p in model.blocks.parameters() if p.dim() == 2}
    assert ids[0] | ids[1] == {id(p) for p in model.parameters()} and not ids[0] & ids[1]


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
    assert_same_run(tmp_path / "out" / "run", reference)


def test_a_run_of_the_same_name_is_kept(config):
    run, _ = train(TrainConfig(**config), resume=False)
    before = weights(run)
    train(TrainConfig(**config | dict(seed=1)), resume=False)
    assert all(torch.equal(weights(run.with_name("run-1"))[key], before[key]) for key in before)
    assert not torch.equal(weights(run)["wte.weight"], before["wte.weight"])


def test_the_clock_can_end_a_run(config, monkeypatch):
    ticks = itertools.count()
    monkeypatch.setattr(train_module.time, "perf_counter", lambda: float(next(ticks)))  # a second goes by at every look
    run, ended = train(TrainConfig(**config | dict(max_steps=10**6, max_minutes=0.5, warmdown=1.0)), resume=False)
    assert ended
    last = log_of(run)[-1]
    assert 10 < int(last["step"]) <= 31
    assert last["val_loss"]
    assert float(last["learning_rate"]) < 1e-3  # the schedule came to its end, too


def test_a_slow_machine_takes_its_least_number_of_steps(config, monkeypatch):
    """The clock alone would end this run after some 30 steps."""
    ticks = itertools.count()
    monkeypatch.setattr(train_module.time, "perf_counter", lambda: float(next(ticks)))
    config |= dict(max_steps=10**6, max_minutes=0.5, min_steps=60, warmdown=1.0)
    run, ended = train(TrainConfig(**config), resume=False)
    last = log_of(run)[-1]
    assert ended and int(last["step"]) == 60 and float(last["learning_rate"]) < 1e-3


def test_a_compiler_that_cannot_is_named_and_done_without(tmp_path):
    """As Apple's, which has no OpenMP: inductor finds it, and fails at the first step."""
    if train_module.why_not_compile(torch.device("cpu")):
        pytest.skip("needs a compiler that can, to take from it what it can")
    compiler = tmp_path / "g++"
    refuse = 'case "$*" in *fopenmp*) echo "error: unsupported option -fopenmp" >&2; exit 1;; esac'
    compiler.write_text(f'#!/bin/sh\n{refuse}\nexec g++ "$@"\n')
    compiler.chmod(0o755)
    code = "import torch, train; print(train.why_not_compile(torch.device('cpu')))"
    environment = os.environ | dict(CXX=str(compiler), TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "cache"))
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.stdout.count("\n") == 1 and "error: unsupported option -fopenmp" in done.stdout


@pytest.mark.parametrize("limit", range(3, 9))
def test_wherever_the_time_runs_out_the_run_is_evaluated_and_saved(config, monkeypatch, limit):
    """Also while the losses of a log interval are waited for."""
    ticks = itertools.count()
    monkeypatch.setattr(train_module.time, "perf_counter", lambda: float(next(ticks)))  # a second at each look
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
    with pytest.raises(TrainingError, match="at step 21 the loss or its gradient became infinite or NaN; what"):
        train(TrainConfig(**config | dict(max_steps=40)), resume=True)
    assert (run / "ckpt.pt").read_bytes() == before


def test_a_full_disk_ends_the_run_and_spares_the_checkpoint(config):
    """A limit on the size of files stands in for the disk: writing beyond it fails just so."""
    run, _ = train(TrainConfig(**config | dict(max_steps=10)), resume=False)
    before = (run / "ckpt.pt").read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 4, limits[1]))
    try:
        with pytest.raises(TrainingError, match=r"\.pt: cannot be written \(File too large\); what stood there before"):
            train(TrainConfig(**config), resume=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (run / "ckpt.pt").read_bytes() == before
    assert not list(run.glob(".*.tmp"))
    assert train(TrainConfig(**config), resume=True) == (run, True)


# ---- Config and mistakes ----


def test_settings_come_from_the_file_then_from_the_command_line(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text('"""What it is for."""\n\nn_layer = 3  # why\nlearning_rate = 1\ndata = "tiny"\n')
    config, resume = parse_command_line([str(path), "--n_layer=5", "--data=007", "--compile=False"])
    assert not resume
    assert (config.name, config.n_layer, config.learning_rate, config.data) == ("mine", 5, 1.0, "007")
    assert config.compile is False
    assert type(config.learning_rate) is float
    assert parse_command_line([])[0].name == "demo"
    assert parse_command_line(["--resume", str(path), "--name=other"]) == (
        TrainConfig(name="other", n_layer=3, learning_rate=1.0, data="tiny"),
        True,
    )


def test_a_recipe_sets_what_nothing_else_sets(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text('recipe = "fast"\nbeta2 = 0.9\n')
    config, _ = parse_command_line([str(path), "--warmup_steps=7"])
    assert (config.optimizer, config.align_stories, config.beta2, config.warmup_steps) == ("muon", True, 0.9, 7)
    paper, _ = parse_command_line([str(path), "--recipe=paper"])
    assert paper == TrainConfig(name="mine", beta2=0.9)
    with pytest.raises(ConfigError, match="recipe must be one of paper, fast, not 'quick'"):
        parse_command_line([str(path), "--recipe=quick"])


def test_every_config_that_comes_with_us_is_good():
    for path in sorted((ROOT / "configs").glob("*.py")):
        config, _ = parse_command_line([str(path)])
        if path.stem.startswith("ts_"):
            published = dict(learning_rate=5e-4, weight_decay=0.1, beta1=0.9, beta2=0.95, block_size=512)
            assert published.items() <= vars(config).items()
    assert len(list((ROOT / "configs").glob("ts_*.py"))) == 7  # tests/test_model.py holds their sizes


@pytest.mark.parametrize(
    "args, message",
    [
        (["--learning_rat=1"], "unknown setting 'learning_rat'; did you mean 'learning_rate'?"),
        (["--n_layer=two"], "n_layer must be int, not 'two'"),
        (["--n_layer=2.5"], "n_layer must be int, not 2.5"),
        (["--compile=1"], "compile must be True or False, not 1"),
        (["--foo=1"], "unknown setting 'foo'; --help lists them"),
        (["--block_size=0"], "block_size must be at least 1, not 0"),
        (["--name=.."], "name must be a plain directory name"),
        (["--seed=99999999999999999999"], "seed must be below"),
        (["--n_layer", "3"], "settings are written --key=value"),
        (["--resum"], "--resum: settings are written --key=value"),
        (["-n_layer=3"], "unknown setting"),
        (["nowhere.py"], "nowhere.py: cannot be read (No such file or directory)"),
        (["--batch_size=0"], "batch_size must be at least 1, not 0"),
        (["--dtype=int8"], "dtype must be"),
        (["--name=../x"], "name must be a plain directory name"),
        (["--warmdown=2"], "warmdown must be between 0 and 1"),
    ],
)
def test_a_wrong_setting_is_named(args, message):
    with pytest.raises(ConfigError) as caught:
        parse_command_line(args)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_help_shows_every_setting(capsys):
    with pytest.raises(SystemExit):
        parse_command_line(["--help"], train_module.__doc__)
    shown = capsys.readouterr().out
    assert all(f"    {key}: " in shown for key in vars(TrainConfig()))
    assert "python train.py configs/ts_8m.py" in shown


@pytest.mark.parametrize(
    "text, message",
    [
        ("n_layer = 3\nn_heads = 4\n", ":2: unknown setting 'n_heads'; did you mean 'n_head'?"),
        ("n_layer = 3\nimport os\n", ":2: expected `key = value`"),
        ("n_layer = 2 * 3\n", ":1: expected `key = value`"),
        ("n_layer = open('x')\n", ":1: expected `key = value`"),
        ("n_layer = = 3\n", "not a config file"),
        ("a = b = 3\n", ":1: expected `key = value`"),
    ],
)
def test_a_wrong_line_of_a_config_file_is_named_and_nothing_is_executed(tmp_path, text, message):
    path = tmp_path / "wrong.py"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        parse_command_line([str(path)])
    assert str(caught.value).startswith(str(path)) and message in str(caught.value)


@pytest.mark.parametrize(
    "changes, resume, message",
    [
        (dict(data="tinystories"), False, "python prepare.py tinystories"),
        (dict(n_head=3), False, "n_embd (16) must be a multiple of n_head (3)"),
        (dict(device="meta"), False, "device must be auto, cpu"),
        (dict(block_size=100_000, eval_tokens=200_000), False, "are too few for block_size=100000"),
        (dict(device="cuda:7"), False, "device 'cuda:7' cannot be used here"),
        (dict(name="never"), True, "no checkpoint to resume"),
        (dict(n_layer=3), True, "trained with n_layer=2, so it cannot go on with n_layer=3"),
        (dict(learning_rate=0.5), True, "trained with learning_rate=0.01, so it cannot go on with learning_rate=0.5"),
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


def test_a_run_goes_on_in_the_type_that_was_measured_when_it_began(config, monkeypatch, capsys):
    config |= dict(dtype="auto", optimizer="muon")
    for n_steps, measured in ((10, torch.bfloat16), (20, torch.float32)):
        monkeypatch.setattr(train_module.autotune, "fast_dtype", lambda measured=measured: measured)
        run, _ = train(TrainConfig(**config | dict(max_steps=n_steps)), resume=n_steps > 10)
        assert ", bfloat16; " in capsys.readouterr().out
        assert load_checkpoint(run / "ckpt.pt")["fast_dtype"] == "bfloat16"


def test_a_checkpoint_older_than_a_setting_goes_on_with_its_default(config):
    run, _ = train(TrainConfig(**config), resume=False)
    checkpoint = load_checkpoint(run / "ckpt.pt")
    del checkpoint["train_config"]["copy_init"]
    torch.save(checkpoint, run / "ckpt.pt")
    assert train(TrainConfig(**config | dict(max_steps=21)), resume=True) == (run, True)


def test_what_the_machine_is_asked(monkeypatch):
    cpu = torch.device("cpu")
    for dtype in (torch.bfloat16, torch.float32):
        monkeypatch.setattr(train_module.autotune, "fast_dtype", lambda dtype=dtype: dtype)
        assert train_module.choose_dtype("auto", cpu) == dtype
    assert train_module.choose_dtype("float32", cpu) == torch.float32
    for capability, dtype in (((9, 0), torch.bfloat16), ((7, 5), torch.float16)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, capability=capability: capability)
        assert train_module.choose_dtype("auto", torch.device("cuda")) == dtype
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100 80GB HBM3")
    assert train_module.peak_flops(torch.device("cuda"), torch.bfloat16) == 989e12
    assert 1e8 < train_module.peak_flops(cpu, torch.float32) < 1e14
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert train_module.why_not_compile(cpu) == "no C++ compiler (no-such-compiler) found"
