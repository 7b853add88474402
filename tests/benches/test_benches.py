"""Every bench runs, at a size that takes a second or two, and its last line tells all that is
kept."""

import json
import os
import re
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import settings
from planted import write_corpus

import bench
import probe
import train
from benches import gpu, loss, measure, models, rouge, sample
from benches import train as train_bench
from model import GPTNeoConfig
from nanostories.corpus import builtin_stories
from nanostories.files import append_json
from nanostories.grading.pairs import read_pairs

SHAPE = GPTNeoConfig(vocab_size=300, block_size=128, n_layer=2, n_head=2, n_embd=16)
PEERS = {"sample": "transformers", "train": "transformers", "rouge": "rouge_score_rs"}
N_RATIOS = {"train": 3, "sample": 6, "loss": 1, "track": 1, "rouge": 2, "gpu": 10}


def in_this_process(makes: dict, rounds: int) -> dict[str, float]:
    """alternating_processes without the seconds that each process takes to start."""
    return measure.alternating_medians({name: make() for name, make in makes.items()}, rounds)


def make_stories(data_dir: Path) -> None:
    stories = [story.text for story in builtin_stories.stories(130)]
    write_corpus(Path(data_dir, "builtin"), stories[30:], stories[:30])


@pytest.fixture
def toys(monkeypatch, tmp_path):
    """Toy sizes for all benches, in this process, nothing compiled."""
    toy_run = settings(tmp_path, tmp_path) | {
        "data": "builtin",
        "max_minutes": 0.0,
        "keep_checkpoints": 1,
    }
    for name in ("name", "out_dir", "learning_rate"):  # which benches set themselves
        del toy_run[name]

    def run_here(command: list, **_):
        argv = [str(argument) for argument in command[1:]]
        script = {"train": train, "probe": probe}[Path(argv[0]).stem]
        if script is train:
            argv += [f"--{name}={value}" for name, value in toy_run.items()]
        monkeypatch.setattr(sys, "argv", argv)
        try:
            script.main()
        except SystemExit as end:  # train.py ends with one
            assert end.code == 0

    make_stories(tmp_path)
    replacements = {
        models: {"SHAPE": SHAPE},
        sample: {"SHAPE": SHAPE, "NEW_TOKENS": 8, "PLAIN_NEW_TOKENS": 2},
        train_bench: {"SHAPE": SHAPE, "alternating_processes": in_this_process},
        rouge: {"N_TEXTS": 5, "N_PEER_STORIES": 10, "make_stories": make_stories},
        gpu: {
            "CHECKS": ["true"],
            "SHAPE": SHAPE,
            "STEPS": 1,
            "measured_flops": lambda *_: 1e9,
        },
        loss: {"SETTINGS": toy_run, "LEARNING_RATES": [1e-3], "SHARES": [0.5, 1]},
        measure: {"subprocess": SimpleNamespace(run=run_here), "OUT": tmp_path / "out"},
        measure.gc: {"collect": lambda: None},  # tenths of a second before each measurement
        torch: {"compile": lambda model, **_: model},
        train: {"plot_run": lambda *_: None},
        probe: {"read_pairs": lambda path: read_pairs(path)[::40]},
        bench: {"RESULTS": tmp_path / "results.jsonl"},
    }
    for module, values in replacements.items():
        for name, value in values.items():
            monkeypatch.setattr(module, name, value)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # which a bench may change


@pytest.mark.parametrize("name", N_RATIOS)
def test_every_bench_runs(name, toys, command_line, tmp_path):
    if name in PEERS:
        pytest.importorskip(PEERS[name])
    flags = ["--rounds", 2 if name == "track" else 1, "--save"]
    if name == "gpu":
        flags.append("--device=cpu")
    if name == "track":
        record = tmp_path / "record.py"
        mine = tmp_path / "mine.py"
        record.write_text("learning_rate = 1e-3")
        mine.write_text("learning_rate = 2e-3")
        flags += ["--config", record, mine]
    code, printed = command_line(bench, tmp_path)(name, *flags)
    assert code == 0
    *lines, last = printed.out.splitlines()
    result = json.loads(last)
    assert result["bench"] == name and result["hardware"] and result["versions"]
    assert len(result["ratios"]) == N_RATIOS[name]
    assert result["figures"] and min(result["ratios"].values()) >= 0
    for label, value in result["figures"].items():
        assert value >= 0
        assert any(label in line and f"{value:,.3f}" in line for line in lines), label
    assert json.loads((tmp_path / "results.jsonl").read_text()) == result


def test_the_gpu_bench_names_the_promises_that_are_not_kept(
    toys, monkeypatch, command_line, tmp_path
):
    monkeypatch.setattr(gpu, "CHECKS", ["false"])
    monkeypatch.setattr(gpu, "COUNTED", {"ts_8m": (1e-9, 1.0)})
    monkeypatch.setattr(gpu, "measured_flops", lambda *_: 1e18)
    _, printed = command_line(bench, tmp_path)("gpu", "--device=cpu", "--rounds=1")
    broken = [line for line in printed.out.splitlines() if line.startswith("NOT KEPT: ")]
    assert [line.split(" (")[0][10:] for line in broken] == ["checks", "ts_8m: 0.5 of the bound"]


@pytest.mark.slow
def test_contestants_alternate_in_processes_of_their_own(tmp_path):
    path = tmp_path / "turns.txt"
    makes = {}
    for name in ("ours", "peer"):
        write_turn = f"echo {name} $PPID >> {path}"
        makes[name] = partial(partial, os.system, write_turn)
    assert set(measure.alternating_processes(makes, rounds=2)) == {"ours", "peer"}
    turns = path.read_text().splitlines()
    assert turns == turns[:2] * 3  # a warm-up, and two rounds
    (ours, pid), (peer, other_pid) = [turn.split() for turn in turns[:2]]
    assert (ours, peer) == ("ours", "peer")
    assert len({pid, other_pid, str(os.getpid())}) == 3


def test_the_time_to_the_loss_of_the_peer():
    losses = [4.0, 3.0, 2.0, 1.5, 1.25]  # after 1/16, 1/12, ... of its time
    ratios = [loss.speedup(losses, peer) for peer in (5.0, 3.0, 1.75, 1.25, 1.2)]
    assert ratios == pytest.approx([16, 12, 54**0.5, 4, 0])


def test_saved_results_have_every_row(tmp_path, monkeypatch, command_line):
    """Where the first machine lacks some, too; only the newest of a machine."""
    monkeypatch.setattr(bench, "RESULTS", tmp_path / "results.jsonl")
    for machine, ratio, figures in (("A", 4.0, {"old": 1}), ("A", 5.0, {}), ("B", 3.0, {"m": 7})):
        result = {"bench": "train", "ratios": {"peer": ratio}, "figures": figures}
        append_json(bench.RESULTS, result | {"hardware": machine})
    _, printed = command_line(bench, tmp_path)("train", "--saved")
    assert "4.000" not in printed.out and "old" not in printed.out
    assert re.search(r"ratio: peer \| +5.000 \| +3.000", printed.out)
    assert re.search(r"m +\| +– \| +7.000", printed.out)
