"""Every bench runs, at a size that takes a second or two, and its last line tells all that is
kept."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import settings
from planted import write_corpus

import bench
import train
from benches import gpu, loss, measure, models, rouge, sample
from benches import train as train_bench
from model import GPTNeoConfig
from nanostories.corpus import builtin_stories
from nanostories.files import append_json

pytest.importorskip("transformers")
pytest.importorskip("rouge_score_rs")
SHAPE = GPTNeoConfig(vocab_size=300, block_size=128, n_layer=2, n_head=2, n_embd=16)
TOY_CONFIG = dict(n_layer=2, n_head=2, n_embd=16, batch_size=2, compile=False)
N_RATIOS = {"train": 3, "sample": 6, "loss": 1, "track": 1, "rouge": 2, "gpu": 10}


def make_stories(data_dir: Path) -> None:
    stories = [story.text for story in builtin_stories.stories(130)]
    write_corpus(Path(data_dir, "builtin"), stories[30:], stories[:30])


@pytest.fixture
def toys(monkeypatch, command_line, tmp_path):
    """Toy sizes for all benches, in this process, nothing compiled."""
    toy_run = settings(tmp_path, tmp_path)
    for name in ("name", "out_dir", "learning_rate"):  # which benches set themselves
        del toy_run[name]
    toy_run |= {"data": "builtin", "max_minutes": 0.0, "keep_checkpoints": 1}

    def run_here(command: list, **_):
        _, path, *flags = command
        assert path.name == "train.py"
        flags += [f"--{name}={value}" for name, value in toy_run.items()]
        code, _ = command_line(train, tmp_path)(*flags)
        assert code == 0

    make_stories(tmp_path)
    replacements = {
        models: {"SHAPE": SHAPE},
        sample: {"SHAPE": SHAPE, "NEW_TOKENS": 8, "PLAIN_NEW_TOKENS": 2},
        train_bench: {"SHAPE": SHAPE},
        rouge: {"N_TEXTS": 5, "N_PEER_STORIES": 10, "make_stories": make_stories},
        gpu: {
            "DEVICE": "cpu",
            "CHECKS": ["false"],
            "SHAPE": SHAPE,
            "STEPS": 1,
            "STORIES": 10,
            "NUMBERS": 2**20,
            "measured_flops": lambda *_: 1e18,
            "read_config": lambda _: TOY_CONFIG,
        },
        torch.cuda: {"reset_peak_memory_stats": lambda: None, "max_memory_allocated": lambda: 1},
        loss: {"SETTINGS": toy_run, "LEARNING_RATES": [1e-3], "SHARES": [0.5, 1]},
        measure: {"subprocess": SimpleNamespace(run=run_here), "OUT": tmp_path / "out"},
        measure.gc: {"collect": lambda: None},  # tenths of a second before each measurement
        torch: {"compile": lambda model, **_: model},
        train: {"plot_run": lambda *_: None},
        bench: {"RESULTS": tmp_path / "results.jsonl"},
    }
    for module, values in replacements.items():
        for name, value in values.items():
            monkeypatch.setattr(module, name, value)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # which a bench may change


@pytest.mark.parametrize("name", N_RATIOS)
def test_every_bench_runs(name, toys, command_line, tmp_path, monkeypatch):
    flags = ["--rounds", 2 if name == "track" else 1, "--save"]
    if name == "gpu":
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    if name == "track":
        configs = [tmp_path / "record.py", tmp_path / "mine.py"]
        for path in configs:
            path.touch()
        flags += ["--config", *configs]
    code, printed = command_line(bench, tmp_path)(name, *flags)
    assert code == 0
    *lines, last = printed.out.splitlines()
    result = json.loads(last)
    broken = [line for line in lines if "NOT KEPT" in line and "stories in time" not in line]
    assert broken == (["NOT KEPT: checks (0.00 of it)"] if name == "gpu" else [])
    assert result["bench"] == name and result["hardware"] and result["versions"]
    assert len(result["ratios"]) == N_RATIOS[name] and result["figures"]
    assert json.loads((tmp_path / "results.jsonl").read_text()) == result


def test_the_time_to_the_loss_of_the_peer():
    losses = [4.0, 3.0, 2.0, 1.5, 1.25]  # after 1/16, 1/12, ... of its time
    ratios = [loss.speedup(losses, peer) for peer in (5.0, 3.0, 1.75, 1.25, 1.2)]
    assert ratios == pytest.approx([16, 12, 54**0.5, 4, 0])


def test_saved_results_have_every_row(tmp_path, monkeypatch, command_line):
    """Where the first machine lacks some, too; only the newest of a machine."""
    monkeypatch.setattr(bench, "RESULTS", tmp_path / "results.jsonl")
    for machine, ratio, figures in (("A", 4.0, {"old": 1}), ("A", 5.0, {}), ("B", 3.0, {"m": 7})):
        result = dict(bench="train", hardware=machine, ratios={"peer": ratio}, figures=figures)
        append_json(bench.RESULTS, result)
    _, printed = command_line(bench, tmp_path)("train", "--saved")
    assert "old" not in printed.out
    assert "ratio: peer | 5 | 3" in printed.out and "7 " in printed.out
