"""Every bench runs, at a size that takes a second or two, and tells all that bench.py prints and keeps."""

import json
import shutil
import sys
from functools import partial
from types import SimpleNamespace

import pytest
import torch

import bench
import train
from benches import compressor, demo, export, grade, interpret, loss, measure, models, rouge, sample
from benches import train as train_bench
from benches.chromium import PROGRAMS

SHAPE = dict(vocab_size=300, block_size=128, n_layer=2, n_head=2, n_embd=16)
TOY_RUN = dict(data="builtin", block_size=32, n_layer=1, n_head=2, n_embd=16, max_steps=20, eval_tokens=2000)
TOY_RUN |= dict(max_minutes=0, min_steps=0, warmup_steps=2, log_interval=5, compile=False, device="cpu")
RATIOS = {
    "sample": 6, "train": 4, "demo": 3, "compressor": 5, "loss": 1, "grade": 0, "rouge": 2, "interpret": 2, "export": 1
}  # fmt: skip


def in_this_process(makes: dict, argument, rounds: int) -> tuple[dict, dict]:
    """alternating_processes without the seconds that each process takes to start."""
    contestants = {name: partial(make(), argument) for name, make in makes.items()}
    return measure.alternating_medians(contestants, rounds), dict.fromkeys(makes, measure.peak_mib())


@pytest.fixture
def toys(monkeypatch, instruct_data_dir, tmp_path):
    """Toy sizes for all benches, in this process, nothing compiled."""

    def train_here(command: list, **_):
        given = [arg.removeprefix("--data_dir=") for arg in map(str, command) if arg.startswith("--data_dir=")]
        if given:  # where the demo would make its corpus, which takes long
            shutil.copytree(instruct_data_dir / "builtin", f"{given[0]}/builtin")
        toy = TOY_RUN if given else TOY_RUN | dict(data_dir=instruct_data_dir)
        flags = [f"--{key}={value}" for key, value in toy.items()]
        monkeypatch.setattr(sys, "argv", [*map(str, command[1:]), *flags])
        train.main()

    settings = {
        models: dict(SHAPE=SHAPE),
        compressor: dict(
            SHAPE=SHAPE | dict(n_layer=3), WIDTHS=(16,), BATCH_SIZES=(2, 8), alternating_processes=in_this_process
        ),
        sample: dict(SHAPE=SHAPE, NEW_TOKENS=8, PLAIN_NEW_TOKENS=2),
        train_bench: dict(SHAPE=SHAPE, WIDE=dict(n_layer=2, n_embd=32), alternating_processes=in_this_process),
        grade: dict(RUNS=2, PROMPTS=4, COMPLETIONS=2),
        rouge: dict(N_TEXTS=5, N_STORIES=420, GROWTH=(400, 420)),
        interpret: dict(SHAPE=dict(block_size=64, n_layer=2, n_head=2, n_embd=16), ROOT=tmp_path),
        export: dict(SHAPES=dict(toy=SHAPE), NEW_TOKENS=20),
        loss: dict(STEPS=20, RUNS={name: run | dict(eval_interval=10) for name, run in loss.RUNS.items()}),
    }
    for module, constants in settings.items():
        for name, value in constants.items():
            monkeypatch.setattr(module, name, value)
    for module in (sample, train_bench, grade, rouge, interpret):
        monkeypatch.setattr(module, "alone", lambda function, *args: function(*args))
    monkeypatch.setattr(measure.gc, "collect", lambda: None)  # tenths of a second before each measurement
    monkeypatch.setattr(torch, "compile", lambda model, **_: model)
    for module in (demo, loss):
        monkeypatch.setattr(module, "subprocess", SimpleNamespace(run=train_here))
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "sample").symlink_to(instruct_data_dir / "builtin")


SLOW = ("sample", "train", "rouge", "interpret")
ALL = [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in RATIOS]  # gpu: tests/test_gpu.py


@pytest.mark.parametrize("name", ALL)
def test_every_bench_runs(name, toys, command_line, tmp_path):
    for peer in dict(sample=["transformers"], train=["transformers"], rouge=["rouge_score_rs"]).get(name, []):
        pytest.importorskip(peer)
    if name == "export" and not any(map(shutil.which, PROGRAMS)):
        pytest.skip("no Chromium on this machine")
    code, printed = command_line(bench, tmp_path)(name, "--rounds", 1)
    assert code == 0
    *lines, last = printed.out.splitlines()
    result = json.loads(last)
    assert set(result) == {"bench", "ratios", "figures", "hardware", "versions"} and result["bench"] == name
    assert len(result["ratios"]) == RATIOS[name] and result["figures"]
    assert all(value >= 0 for value in [*result["ratios"].values(), *result["figures"].values()])
    for figure, value in result["figures"].items():
        assert any(line.startswith(figure) and line.endswith(bench.number(value)) for line in lines), figure


def make_contestant():
    return print


@pytest.mark.slow
def test_contestants_in_processes_of_their_own():
    seconds, peaks = measure.alternating_processes(dict(a=make_contestant), "", 1)
    assert seconds["a"] > 0 and peaks["a"] > 1
    assert measure.alone(abs, -2) == 2
