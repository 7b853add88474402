"""Every bench runs, at a size that takes a second or two, and its last line tells all that is
kept."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from planted import write_corpus

import bench
import train
from benches import loss, measure, models, rouge, sample
from benches import train as train_bench
from nanostories.corpus import builtin_stories

SHAPE = dict(vocab_size=300, block_size=128, n_layer=2, n_head=2, n_embd=16)
TOY_RUN = dict(
    data="builtin", block_size=32, n_layer=1, n_head=2, n_embd=16, max_steps=20, eval_tokens=2000
)
TOY_RUN |= dict(
    max_minutes=0, min_steps=0, warmup_steps=2, log_interval=5, compile=False, device="cpu"
)
PEERS = dict(sample="transformers", train="transformers", rouge="rouge_score_rs")
RATIOS = dict(train=3, sample=6, loss=1, rouge=2)


def in_this_process(makes: dict, argument, rounds: int) -> dict:
    """alternating_processes without the seconds that each process takes to start."""
    return measure.alternating_medians(
        {name: partial(make(), argument) for name, make in makes.items()}, rounds
    )


def make_stories(directory: Path, n: int) -> None:
    stories = [story.text for story in builtin_stories.stories(n + 30)]
    write_corpus(directory, stories[30:], stories[:30])


@pytest.fixture
def toys(monkeypatch, tmp_path):
    """Toy sizes for all benches, in this process, nothing compiled."""

    def train_here(command: list, **_):
        toy = (f"--{key}={value}" for key, value in (TOY_RUN | dict(data_dir=tmp_path)).items())
        monkeypatch.setattr(sys, "argv", [*map(str, command[1:]), *toy])
        train.main()

    make_stories(tmp_path / "builtin", 100)
    loss_run = TOY_RUN | dict(
        max_minutes=0.002, data_dir=tmp_path, batch_size=2, grad_accum_steps=1
    )
    settings = {
        models: dict(SHAPE=SHAPE),
        sample: dict(SHAPE=SHAPE, NEW_TOKENS=8, PLAIN_NEW_TOKENS=2),
        train_bench: dict(SHAPE=SHAPE),
        rouge: dict(N_TEXTS=5, N_STORIES=420, make_stories=make_stories),
        loss: dict(
            SETTINGS=loss_run,
            LEARNING_RATES=[1e-3],
            SHARES=[0.5, 1],
            ProcessPoolExecutor=ThreadPoolExecutor,
        ),
    }
    for module, constants in settings.items():
        for name, value in constants.items():
            monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(train_bench, "alternating_processes", in_this_process)
    monkeypatch.setattr(measure, "subprocess", SimpleNamespace(run=train_here))
    monkeypatch.setattr(
        measure.gc, "collect", lambda: None
    )  # tenths of a second before each measurement
    monkeypatch.setattr(torch, "compile", lambda model, **_: model)
    monkeypatch.setattr(bench, "RESULTS", tmp_path / "results.jsonl")


@pytest.mark.parametrize("name", RATIOS)
def test_every_bench_runs(name, toys, command_line, tmp_path):
    if name in PEERS:
        pytest.importorskip(PEERS[name])
    code, printed = command_line(bench, tmp_path)(name, "--rounds", 1, "--save")
    assert code == 0
    *lines, last = printed.out.splitlines()
    result = json.loads(last)
    assert (
        set(result) == {"bench", "ratios", "figures", "hardware", "versions"}
        and result["bench"] == name
    )
    assert len(result["ratios"]) == RATIOS[name] and result["figures"]
    assert all(value >= 0 for value in [*result["ratios"].values(), *result["figures"].values()])
    for figure, value in result["figures"].items():
        assert any(figure in line and bench.number(value) in line for line in lines), figure
    assert json.loads((tmp_path / "results.jsonl").read_text()) == result


def test_the_time_to_the_loss_of_the_peer():
    losses = [4.0, 3.0, 2.0, 1.5, 1.25]  # after 1/16, 1/12, ... of its time
    ratios = [loss.speedup(losses, peer) for peer in (5.0, 3.0, 1.75, 1.25, 1.2)]
    assert ratios == pytest.approx([16, 12, 54**0.5, 4, 0])


def test_saved_results_have_every_row(tmp_path, monkeypatch, command_line):
    """Where the first machine lacks some, too; only the newest of a machine, none of an older
    version."""
    saved = [
        ("A", "old", 1.0, {}),
        ("A", "peer", 4.0, {}),
        ("A", "peer", 5.0, {}),
        ("B", "peer", 3.0, dict(memory=7)),
    ]
    results = [
        dict(bench="train", hardware=who, ratios={of: x}, figures=more)
        for who, of, x, more in saved
    ]
    monkeypatch.setattr(bench, "RESULTS", tmp_path / "results.jsonl")
    bench.RESULTS.write_text("".join(json.dumps(result) + "\n" for result in results))
    _, printed = command_line(bench, tmp_path)("--saved")
    lines = [line for line in printed.out.splitlines() if line.startswith("|")]
    head, _, *rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in lines)
    assert head[1:] == ["A", "B"] and rows == [
        ["ratio: peer", "5.000", "3.000"],
        ["memory", "", "7.000"],
    ]
    assert "rouge --save" in printed.out  # how to make those that are missing
