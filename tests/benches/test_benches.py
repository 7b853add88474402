"""Every bench runs, at a size that takes a second or two, and its last line tells all that is kept."""

import json
import platform
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from planted import write_corpus

import bench
import train
from benches import compressor, export, loss, measure, models, rouge, sample
from benches import train as train_bench
from corpus import builtin_stories

SHAPE = dict(vocab_size=300, block_size=128, n_layer=2, n_head=2, n_embd=16)
TOY_RUN = dict(data="builtin", block_size=32, n_layer=1, n_head=2, n_embd=16, max_steps=20, eval_tokens=2000)
TOY_RUN |= dict(max_minutes=0, min_steps=0, warmup_steps=2, log_interval=5, compile=False, device="cpu")
PEERS = dict(sample="transformers", train="transformers", rouge="rouge_score_rs", export="playwright")
RATIOS = dict(train=3, sample=6, loss=1, demo=2, rouge=2, compressor=5, export=1)


def in_this_process(makes: dict, argument, rounds: int) -> tuple[dict, dict]:
    """alternating_processes without the seconds that each process takes to start."""
    contestants = {name: partial(make(), argument) for name, make in makes.items()}
    return measure.alternating_medians(contestants, rounds), dict.fromkeys(makes, measure.peak_mib())


def make_stories(directory: Path, n: int) -> None:
    stories = [story.text for story in builtin_stories.stories(n + 30)]
    write_corpus(directory, stories[30:], stories[:30])


@pytest.fixture
def toys(monkeypatch, tmp_path):
    """Toy sizes for all benches, in this process, nothing compiled."""

    def train_here(command: list, **_):
        flags = [str(arg) for arg in command if "data_dir" in str(arg)] or [f"--data_dir={tmp_path}"]
        if not (corpus := Path(flags[0].partition("=")[2], "builtin")).exists():
            make_stories(corpus, 100)
        toy = (f"--{key}={value}" for key, value in TOY_RUN.items())
        monkeypatch.setattr(sys, "argv", [*map(str, command[1:]), *flags, *toy])
        train.main()

    settings = {
        models: dict(SHAPE=SHAPE),
        compressor: dict(SHAPE=SHAPE | dict(n_layer=3), WIDTHS=(16,), BATCH_SIZES=(2, 8)),
        sample: dict(SHAPE=SHAPE, NEW_TOKENS=8, PLAIN_NEW_TOKENS=2),
        train_bench: dict(SHAPE=SHAPE, WIDE=dict(n_layer=2, n_embd=32)),
        rouge: dict(N_TEXTS=5, N_STORIES=420, make_stories=make_stories),
        export: dict(SHAPES=dict(toy=SHAPE), NEW_TOKENS=20),
        loss: dict(RUNS={name: run | dict(eval_interval=10) for name, run in loss.RUNS.items()}),
    }
    for module, constants in settings.items():
        for name, value in constants.items():
            monkeypatch.setattr(module, name, value)
    for module in (compressor, train_bench):
        monkeypatch.setattr(module, "alternating_processes", in_this_process)
    for module in (sample, train_bench):
        monkeypatch.setattr(module, "alone", lambda function, *args: function(*args))
    monkeypatch.setattr(measure, "subprocess", SimpleNamespace(run=train_here))
    monkeypatch.setattr(measure.gc, "collect", lambda: None)  # tenths of a second before each measurement
    monkeypatch.setattr(torch, "compile", lambda model, **_: model)
    monkeypatch.setattr(bench, "RESULTS", tmp_path / "results.jsonl")


@pytest.mark.parametrize("name", RATIOS)
def test_every_bench_runs(name, toys, command_line, tmp_path):
    if name in PEERS:
        pytest.importorskip(PEERS[name])
    if name == "export" and not any(map(shutil.which, export.PROGRAMS)):
        pytest.skip("no Chromium on this machine")
    code, printed = command_line(bench, tmp_path)(name, "--rounds", 1, "--save")
    assert code == 0
    *lines, last = printed.out.splitlines()
    result = json.loads(last)
    assert set(result) == {"bench", "ratios", "figures", "hardware", "versions"} and result["bench"] == name
    assert len(result["ratios"]) == RATIOS[name] and result["figures"]
    assert all(value >= 0 for value in [*result["ratios"].values(), *result["figures"].values()])
    for figure, value in result["figures"].items():
        assert any(figure in line and bench.number(value) in line for line in lines), figure
    assert json.loads((tmp_path / "results.jsonl").read_text()) == result


def test_the_table_of_all_machines_has_every_row(tmp_path, monkeypatch, command_line):
    """Where the first machine has no result of some bench, too."""
    saved = [("train", "B", 2.0), ("sample", "B", 3.0), ("sample", "A", 4.0), ("sample", "A", 5.0), ("gone", "A", 6.0)]
    results = [dict(bench=name, ratios=dict(peer=x), figures={}, hardware=machine) for name, machine, x in saved]
    monkeypatch.setattr(bench, "RESULTS", tmp_path / "results.jsonl")
    bench.RESULTS.write_text("".join(json.dumps(result) + "\n" for result in results))
    _, printed = command_line(bench, tmp_path)("--saved")
    head, _, *rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in printed.out.splitlines())
    table = {(row[0], machine): cell for row in rows for machine, cell in zip(head[1:], row[1:])}
    peers = {("sample: peer", "A"): "5.000", ("sample: peer", "B"): "3.000", ("train: peer", "B"): "2.000"}
    assert table == peers | {("train: peer", "A"): ""}
    assert command_line(bench, tmp_path)("rouge", "--saved")[0].count("\n") == 0  # none saved: one line


def resident_mib() -> float:
    return int(re.search(r"VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) / 2**10


def make_contestant():
    """Dies where its process gives freed memory back: then a peer would lack what train.py sets for itself."""
    before = resident_mib()

    def turn(size: int):
        assert len(b"x" * size) == size  # freed at once
        assert resident_mib() > before + 0.9 * size / 2**20

    return turn


@pytest.mark.skipif(platform.system() != "Linux", reason="glibc's malloc alone is told to keep freed memory")
def test_contestants_in_processes_of_their_own_keep_freed_memory():
    seconds, peaks = measure.alternating_processes(dict(a=make_contestant), 2**27, 1)
    assert seconds["a"] > 0 and peaks["a"] > 1
    assert measure.alone(abs, -2) == 2


def test_help_names_every_bench():
    done = subprocess.run([sys.executable, bench.__file__, "--help"], capture_output=True, text=True)
    assert all(f"== {name} ==" in done.stdout for name in RATIOS)
