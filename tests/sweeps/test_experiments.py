"""Lists of runs: what they cost, that nothing is lost or done twice when they are killed, and what is made of them."""

import csv
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import ROOT, assert_same_run, log_of
from torch.utils.flop_counter import FlopCounterMode

import experiments
from common.statistics import wilson
from experiments import PUBLISHED, SMALL, VARIANTS, count, plan, show_results, table
from model import GPTNeo, GPTNeoConfig
from sweeps.scaling_law import best_of_budgets, fit_power_law, points
from train import TrainConfig, train
from training.muon import Muon
from training.run_directory import LOG_COLUMNS, training_seconds

META = dict(vocab_size=10_000, splits=dict(train=dict(tokens=1_400_000, sha256="-")))


def planned(experiment: str, scale=SMALL, n_seeds: int = 1, out_dir: str = "out/x") -> list[experiments.Run]:
    return plan(experiment, scale, n_seeds, dict(data="sample", out_dir=out_dir), META)


# ---- What is run ----


def test_muons_flops_are_those_that_pytorch_counts():
    weights = [torch.nn.Parameter(torch.randn(shape)) for shape in [(48, 16)] * 3 + [(16, 16), (16, 64)]]
    for weight in weights:
        weight.grad = torch.randn_like(weight)
    optimizer = Muon([dict(params=weights[:3]), dict(params=weights[3:4]), dict(params=weights[4:])], 0.1, 0.9, 0.1)
    with FlopCounterMode(display=False) as counter:
        optimizer.step()
    assert optimizer.flops_per_step() == counter.get_total_flops()


def test_a_step_costs_the_model_the_objective_and_muon():
    shape = dict(block_size=64, n_layer=2, n_head=2, n_embd=32)
    plain = TrainConfig(**shape, batch_size=8, grad_accum_steps=3)
    model = GPTNeo(GPTNeoConfig(vocab_size=500, **shape))
    parameters, flops = count(plain, 500)
    assert parameters == model.num_params()
    assert flops == 3 * 8 * 64 * model.flops_per_token(64)
    # a quarter of every batch of 8 goes through the model a second time
    contrasted = dataclasses.replace(plain, contrast="margin", contrast_share=0.25)
    assert count(contrasted, 500)[1] == flops * 10 / 8
    blocks = [3 * 32 * 32, 32 * 32, 2 * 4 * 32 * 32]
    assert sum(blocks) == 12 * 32 * 32
    muon = 2 * 5 * sum(n * (4 * 32 * 32 * long + 2 * 32**3) for n, long in ((1, 96), (1, 32), (2, 128)))
    assert count(dataclasses.replace(plain, optimizer="muon"), 500)[1] == flops + muon


@pytest.mark.parametrize("scale", [SMALL, PUBLISHED])
@pytest.mark.parametrize("experiment", VARIANTS)
def test_every_list_is_of_runs_that_can_be(experiment, scale):
    meta = dict(META, splits=dict(train=dict(tokens=470_000_000)))
    runs = plan(experiment, scale, 2, dict(data="sample", out_dir="out/x"), meta)
    assert len({run.config.name for run in runs}) == len(runs) >= 8
    for run in runs:
        assert run.config.out_dir == "out/x"
        assert run.config.warmup_steps == pytest.approx(scale.warmup * run.config.max_steps, abs=1)
        assert run.config.eval_interval <= 250
        assert run.flops == run.config.max_steps * count(run.config, 10_000)[1]
    assert {run.config.seed for run in runs} == {0, 1}


def test_the_published_grid_is_in_the_list():
    shapes = {(run.config.n_embd, run.config.n_layer, run.config.n_head) for run in planned("grid")}
    assert {(128, 8, 4), (128, 12, 4), (256, 8, 2), (256, 8, 4), (256, 8, 8), (256, 12, 4)} <= shapes
    assert {(512, 8, 4), (512, 12, 4)} <= shapes
    assert {n_layer for _, n_layer, _ in shapes} == {1, 2, 8, 12}


@pytest.mark.parametrize("experiment", ["contrast", "compressor"])
def test_equal_compute_is_equal_to_a_step(experiment):
    runs = {run.variant: run for run in planned(experiment)}
    n_equal = 0
    for variant, settings in VARIANTS[experiment].items():
        if "flops_of" in settings:
            run, other = runs[variant], runs[settings["flops_of"]]
            assert abs(run.flops - other.flops) <= run.flops / run.config.max_steps / 2
            assert run.tokens != other.tokens
            n_equal += 1
    assert n_equal >= 3


def test_scaling_takes_what_fits_the_budget():
    runs = planned("scaling")
    assert {run.budget for run in runs} == set(SMALL.budgets)
    for run in runs:
        assert run.flops == pytest.approx(run.budget, rel=0.5 / SMALL.least_steps)
        assert run.config.max_steps >= SMALL.least_steps and run.tokens <= SMALL.most_epochs * 1_400_000
    widths, depths = ({getattr(run.config, key) for run in runs} for key in ("n_embd", "n_layer"))
    assert {64, 1024} <= widths and {2, 12} <= depths
    for budget in SMALL.budgets:
        assert len({run.variant for run in runs if run.budget == budget}) >= 3


# ---- The law ----


def test_a_power_law_is_found_again():
    flops = np.array([1e12, 3e12, 1e13, 1e14])
    law = fit_power_law(flops, 40 * flops**-0.08)
    assert law == pytest.approx((40, 0.08, 0.08, 0.08))
    assert law(flops) == pytest.approx(40 * flops**-0.08)
    with pytest.raises(ValueError, match="four budgets"):
        fit_power_law(flops[:3], flops[:3])


@pytest.mark.parametrize("n", [4, 5, 9])
def test_its_interval_holds_the_exponent_95_times_in_100(n):
    rng, flops, trials = np.random.default_rng(n), np.geomspace(1e12, 1e14, n), 4000
    losses = 40 * flops**-0.08 * np.exp(rng.normal(0, 0.02, (trials, n)))
    laws = [fit_power_law(flops, row) for row in losses]
    covered = np.mean([law.low <= 0.08 <= law.high for law in laws])
    assert covered == pytest.approx(0.95, abs=0.012)  # 3.5 standard errors of 4,000 trials
    assert np.mean([law.b for law in laws]) == pytest.approx(0.08, abs=0.002)


def test_the_best_of_every_budget():
    rows = [
        dict(budget=budget, flops=budget, parameters=parameters, variant=f"m{parameters}", val_loss=loss)
        for budget, parameters, loss in [(2e12, 5, 3.0), (1e12, 9, 4.2), (1e12, 5, 3.5), (1e12, 9, 2.9), (2e12, 9, 2.9)]
    ]
    of_all = points(rows)
    assert len(of_all) == 4
    best = best_of_budgets(of_all)
    assert [(p.budget, p.variant, p.loss) for p in best] == [
        (1e12, "m5", 3.5),
        (2e12, "m9", 2.9),
    ]  # not the 2.9 of a seed


# ---- The table ----


def fake(run: experiments.Run, val_loss: float):
    """What a run leaves, as far as the table reads it: 100 tokens/s over the first half, 50 over the second."""
    run.directory.mkdir(parents=True)
    halves = ((run.config.max_steps // 2, 9.0, 100), (run.config.max_steps, val_loss, 50))
    with (run.directory / "log.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, LOG_COLUMNS)
        writer.writeheader()
        for steps, loss, speed in halves:
            tokens = steps * run.tokens // run.config.max_steps
            row = dict(step=steps, tokens=tokens, train_loss=loss, val_loss=loss, bpb=loss / 3, tokens_per_s=speed)
            writer.writerow(row)


def test_the_table_is_of_the_logs(tmp_path, capsys):
    runs = planned("contrast", n_seeds=2, out_dir=str(tmp_path))
    for i, run in enumerate(runs):
        fake(run, 3 + i / 10)
        told = {order: dict(share=0.5 + i / 100, low=0.4, high=0.8) for order in ("shuffled", "swapped")}
        (run.directory / "orders.json").write_text(json.dumps(told))
    with (tmp_path / "probe.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["set", "prompt", *(f"{run.directory} verdict" for run in runs)])
        writer.writerows([["facts", "-", *["right"] * len(runs)], *[["context", "-", *["right"] * len(runs)]] * 3])
        writer.writerow(["context", "-", *["nearly"] * len(runs)])
    rows = table(runs, tmp_path)
    show_results("contrast", tmp_path, rows)
    with (tmp_path / "experiment.csv").open(newline="") as file:
        read = list(csv.DictReader(file))
    assert [row["run"] for row in read] == [run.config.name for run in runs]
    run, row = runs[8], read[8]
    assert (row["variant"], row["seed"], row["contrast"], row["val_loss"]) == ("reciprocal", "1", "reciprocal", "3.8")
    assert (row["shuffled"], row["swapped_low"], row["context"]) == ("0.58", "0.4", "0.75")
    assert (float(row["context_low"]), float(row["context_high"])) == pytest.approx(wilson(3 / 4, 4))
    first, whole = (int(log["tokens"]) for log in log_of(run.directory))
    assert float(row["seconds"]) == pytest.approx(first / 100 + (whole - first) / 50, abs=0.1)
    assert int(row["flops"]) == run.flops and "n_layer" not in row  # what does not differ is no column
    printed = capsys.readouterr().out
    assert "3.450 [3.100, 3.800]" in printed  # reciprocal, both seeds
    assert (tmp_path / "experiment.png").read_bytes()[:4] == b"\x89PNG"


def test_scaling_ends_with_the_law(tmp_path, capsys):
    runs = planned("scaling", out_dir=str(tmp_path))
    for run in runs:
        distance = 0.03 * np.log(run.parameters / (run.budget / 1e12) ** 0.5 / 4e5) ** 2
        fake(run, 40 * run.flops**-0.08 + distance)
    show_results("scaling", tmp_path, table(runs, tmp_path))
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("loss = ")]
    words = line.replace(",", "").replace("[", "").replace("]", "").split()
    low, high = map(float, words[-2:])
    assert low < 0.08 < high and high - low < 0.08
    assert (tmp_path / "experiment.png").stat().st_size > 10_000


def test_seconds_leave_out_what_was_not_timed():
    rows = [
        dict(tokens="10", tokens_per_s=""),
        dict(tokens="30", tokens_per_s="10"),
        dict(tokens="40", tokens_per_s="2"),
    ]
    assert training_seconds(rows)[-1] == 2 + 5


# ---- Killed and started again ----


@pytest.fixture
def tiny(config, tmp_path) -> Path:
    """The config file of runs that take seconds."""
    of_the_list = ("name", "out_dir", "data_dir", "max_steps", "eval_interval")
    path = tmp_path / "tiny.py"
    path.write_text("".join(f"{key} = {value!r}\n" for key, value in config.items() if key not in of_the_list))
    return path


def small_list(tiny: Path, steps: int, **b) -> dict:
    """experiments.py's globals for a list of two such runs."""
    scale = dataclasses.replace(SMALL, config=str(tiny), steps=dict(grid=steps), learning_rate=None)
    return dict(SMALL=scale, EVAL_INTERVALS=(10, 10), VARIANTS=VARIANTS | dict(grid=dict(a={}, b=b)))


def in_process(monkeypatch, data_dir: Path, tiny: Path, steps: int, *flags: str, **b) -> str | None:
    """experiments.py grid, in tiny's directory; what it exits with."""
    monkeypatch.chdir(tiny.parent)
    monkeypatch.setattr(sys, "argv", ["experiments.py", "grid", f"--data_dir={data_dir}", *flags])
    for name, value in small_list(tiny, steps, **b).items():
        monkeypatch.setattr(experiments, name, value)
    try:
        experiments.main()
    except SystemExit as exit:
        return exit.code


def wait_for(condition, process: subprocess.Popen):
    while not condition():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


def child_of(process: subprocess.Popen) -> int:
    return int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0])


def last_step(run: Path) -> int:
    """That a checkpoint holds, at least."""
    return int(log_of(run)[-1]["step"]) if (run / "ckpt.pt").exists() else 0


@pytest.mark.skipif(not Path(f"/proc/self/task/{os.getpid()}/children").exists(), reason="needs Linux's /proc")
def test_stopped_and_killed_nothing_is_lost_or_done_twice(tiny, config, data_dir, tmp_path, monkeypatch):
    directory = tmp_path / "out" / "grid"
    driver = tmp_path / "driver.py"
    driver.write_text(
        f"import sys\nfrom pathlib import Path\nsys.path[:0] = [{str(ROOT)!r}, {str(ROOT / 'tests')!r}, {str(Path(__file__).parent)!r}]\n"
        f"import experiments, test_experiments\n"
        f"vars(experiments).update(test_experiments.small_list(Path({str(tiny)!r}), 100, n_layer=1))\n"
        f"experiments.main()\n"
    )

    def call() -> subprocess.Popen:
        command = [sys.executable, driver, "grid", "--data_dir", data_dir]
        return subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    process = call()
    wait_for(lambda: last_step(directory / "a_0") >= 10, process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 1
    assert errors.splitlines()[-1] == "experiments.py: stopped; the same command goes on"
    assert "Stopped; saved." in (directory / "experiment.log").read_text()
    stopped_at = last_step(directory / "a_0")

    process = call()
    wait_for(lambda: last_step(directory / "a_0") >= stopped_at + 20, process)
    child = child_of(process)
    process.kill()
    os.kill(child, signal.SIGKILL)  # as when the machine fails
    process.communicate()
    assert last_step(directory / "a_0") < 100

    process = call()
    wait_for(lambda: last_step(directory / "b_0") >= 20, process)
    child = child_of(process)
    os.kill(child, signal.SIGSTOP)
    process.kill()  # alone: the run in hand goes on
    process.communicate()
    process = call()
    assert "is at work; waiting" in process.stdout.readline()
    os.kill(child, signal.SIGCONT)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors

    commands = [line for line in (directory / "experiment.log").read_text().splitlines() if line.startswith("$ ")]
    started = [("--name=a_0" in command, "--name=b_0" in command, "--resume" in command) for command in commands]
    assert started == [(True, False, False), (True, False, True), (True, False, True), (False, True, False)]
    for run in ("a_0", "b_0"):
        assert [int(row["step"]) for row in log_of(directory / run)] == list(range(5, 101, 5))
    with (directory / "experiment.csv").open(newline="") as file:
        assert [row["run"] for row in csv.DictReader(file)] == ["a_0", "b_0"]
    settings = dict(name="reference", out_dir=str(tmp_path), max_steps=100, warmup_steps=5, eval_interval=10)
    assert_same_run(directory / "a_0", train(TrainConfig(**config | settings), resume=False)[0])

    # what stands is not trained again, and what would be another run now is not touched
    before = {path: path.stat().st_mtime_ns for path in directory.rglob("*.pt")}
    message = in_process(monkeypatch, data_dir, tiny, 100, n_layer=2, dropout=0.5)
    assert message.startswith("experiments.py: out/grid/b_0: trained with n_layer=1, now n_layer=2; move it away")
    assert in_process(monkeypatch, data_dir, tiny, 100, n_layer=1) is None
    assert before == {path: path.stat().st_mtime_ns for path in directory.rglob("*.pt")}


def test_the_table_is_of_all_that_is_finished(tiny, data_dir, tmp_path, monkeypatch):
    def tabulated() -> list[str]:
        with (tmp_path / "out" / "grid" / "experiment.csv").open(newline="") as file:
            return [row["run"] for row in csv.DictReader(file)]

    assert in_process(monkeypatch, data_dir, tiny, 10, "--only=a", "--seeds=2", n_layer=1) is None
    assert tabulated() == ["a_0", "a_1"]
    assert in_process(monkeypatch, data_dir, tiny, 10, "--only=b", n_layer=1) is None
    assert tabulated() == ["a_0", "b_0", "a_1"]
    assert in_process(monkeypatch, data_dir, tiny, 10, "--only=a", n_layer=3) is None  # b_0 is now of other settings
    assert tabulated() == ["a_0", "a_1"]


def test_wide_models_learn_more_slowly():
    rates = {run.variant: run.config.learning_rate for run in planned("grid")}
    assert rates["128-8-4"] == 1 / 128 and rates["512-8-4"] == 1 / 512
    assert {run.config.learning_rate for run in planned("contrast")} == {8e-3}
    assert {run.config.learning_rate for run in planned("grid", PUBLISHED)} == {5e-4}


def test_a_run_that_fails_is_named_and_the_others_go_on(tiny, data_dir, tmp_path, monkeypatch, capsys):
    (tmp_path / "out" / "grid").mkdir(parents=True)
    (tmp_path / "out" / "grid" / "a_0").write_text("in the way")
    message = in_process(monkeypatch, data_dir, tiny, 10)
    assert message.startswith("experiments.py: 1 of 2 runs failed (a_0), see out/grid/experiment.log")
    said = capsys.readouterr().out
    assert "a_0: train.py: " in said
    (row,) = [line for line in said.splitlines() if line.startswith("b  ")]
    assert f"{float(log_of(tmp_path / 'out' / 'grid' / 'b_0')[-1]['val_loss']):.3f}" in row


@pytest.mark.parametrize(
    "args, message",
    [
        (["grid", "--data=nowhere"], "nowhere/meta.json: cannot be read"),
        (["grid", "--data=tiny", "--only", "900-*"], "--only 900-*: "),
        (["grid", "--data=tiny", "--seeds=0"], "--seeds must be at least 1"),
        (["gird"], "invalid choice: 'gird'"),
        (["dropout", "--data=tiny"], "is a run of train.py"),
    ],
)
def test_mistakes_get_one_line(args, message, data_dir, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("out", "dropout").mkdir(parents=True)
    Path("out", "dropout", "ckpt.pt").touch()
    monkeypatch.setattr(sys, "argv", ["experiments.py", *args, f"--data_dir={data_dir}"])
    with pytest.raises(SystemExit) as caught:
        experiments.main()
    said = caught.value.code if isinstance(caught.value.code, str) else capsys.readouterr().err
    assert message in said and said.strip().count("\n") <= 8  # argparse adds its usage
    assert list(Path("out").iterdir()) == [Path("out", "dropout")]


def test_show_prints_commands_that_run(data_dir, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["experiments.py", "contrast", "--data=tiny", f"--data_dir={data_dir}", "--show"])
    experiments.main()
    lines = capsys.readouterr().out.splitlines()
    commands = [line.split() for line in lines if line.startswith("python train.py configs/experiment.py ")]
    assert len(commands) == SMALL.seeds["contrast"] * len(VARIANTS["contrast"])
    for command in commands:
        experiments.parse_command_line([str(ROOT / command[2]), *command[3:]])
    assert not Path("out").exists()
