"""The GPU path: on a GPU the checks of `python bench.py gpu`, one by one; on a CPU that the bench itself runs."""

import json

import pytest
import torch

import bench
import train
from benches import gpu_speed
from benches.gpu_checks import as_in_training, checks
from benches.gpu_setup import Error, Report, Setup

HAS_GPU = torch.cuda.is_available()


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_GPU, reason="no NVIDIA GPU that PyTorch can use")
@pytest.mark.parametrize("check", list(checks(Setup(dry_run=not HAS_GPU))), ids=lambda check: check[0])
def test_a_gpu_computes_what_a_cpu_does(check):
    error = check[1]()
    assert error.value <= error.limit


@pytest.mark.slow
def test_the_bench_goes_through_it_with_toys(command_line, tmp_path, monkeypatch):
    for module in (train, gpu_speed):  # what a slow CPU takes seconds for, many times, and says nothing of a GPU
        monkeypatch.setattr(module, "peak_flops", lambda *_: 1e12)
    monkeypatch.setattr(train, "plot_loss", lambda *_: None)
    code, said = command_line(bench, tmp_path)("gpu", "--dry-run", "--out", "results")
    lines = [json.loads(line) for line in (tmp_path / "results" / "results.jsonl").read_text().splitlines()]
    failed = [line for line in lines if line["passed"] is False]
    assert code == 0 and not failed, (failed, said.err)
    result = json.loads(said.out.splitlines()[-1])
    assert result["hardware"] == "dry run on a CPU" and result["figures"]["checks that failed"] == 0
    assert {line["section"] for line in lines} == {"correct", "training", "generation", "time to loss", "profile"}
    assert "| training: 8m: ours, tokens/s" in (tmp_path / "results" / "table.md").read_text()


def test_without_a_gpu_it_says_what_can_be_done(command_line, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="no NVIDIA GPU that PyTorch can use; --dry_run tries the bench"):
        command_line(bench, tmp_path)("gpu")


def test_a_run_that_is_cut_short_or_fails_in_one_place_still_tells(tmp_path):
    (tmp_path / "errors.txt").write_text("of an earlier run")
    report = Report(tmp_path, seconds=1000)

    def fail():
        raise RuntimeError("no kernel for this\nand more")

    report.run("a", [("broken", fail), ("off", lambda: Error(0.2, 0.1)), ("NaN", lambda: Error(float("nan"), 0.1))])
    report.run("b", [("fine", lambda: {"tokens/s": 12345.6})])
    report.run("c", [("late", fail)], until=0.0)
    lines = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [line["passed"] for line in lines] == [False, False, False, None, None]
    assert lines[0]["note"] == "RuntimeError: no kernel for this" and lines[4]["note"] == "skipped: out of time"
    assert lines[1]["note"] == "0.2 > 0.1"
    errors = (tmp_path / "errors.txt").read_text()
    assert "and more" in errors and "earlier" not in errors
    assert report.failed() == ["broken", "off", "NaN"] and "| b: fine: tokens/s | 12,346 |" in report.table()
    assert (tmp_path / "table.md").read_text() == report.table() + "\n"


def test_checks_of_float32_are_not_done_in_tf32():
    """Whatever ran before; and a check that trains, which turns TF32 on, leaves things as they were."""
    setup, seen = Setup(dry_run=True), []

    def check():
        seen.append(torch.get_float32_matmul_precision())
        torch.set_float32_matmul_precision("medium")

    torch.set_float32_matmul_precision("high")
    try:
        as_in_training(setup, check)
        assert seen == ["highest"] and torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")
