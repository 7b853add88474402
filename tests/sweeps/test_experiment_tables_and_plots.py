"""The scaling law, and the table and plot of an experiment."""

import csv
import json
import re

import numpy as np
import pytest
from conftest import log_of
from matplotlib.image import imread as read_png

from common.statistics import wilson
from common.tables import read_table
from grading import compare_models
from grading.compare_models import Finding
from sweeps.experiment_tables_and_plots import show_results, tabulate
from sweeps.plans import SMALL, Run, plan_runs
from sweeps.scaling_law import Point, best_of_budgets, fit_laws, fit_power_law, optimal_sizes, points
from training.run_directory import LOG_COLUMNS

META = dict(vocab_size=10_000, splits=dict(train=dict(tokens=1_400_000, sha256="-")))


def planned(experiment: str, scale=SMALL, n_seeds: int = 1, out_dir: str = "out/x") -> list[Run]:
    return plan_runs(experiment, scale, n_seeds, dict(data="sample", out_dir=out_dir), META)


# ---- The law ----


def test_a_power_law_is_found_again():
    flops = np.array([1e12, 3e12, 1e13, 1e14])
    law = fit_power_law(flops, 40 * flops**-0.08)
    assert law == pytest.approx((40, -0.08, -0.08, -0.08))
    assert law(flops) == pytest.approx(40 * flops**-0.08)
    with pytest.raises(ValueError, match="four budgets"):
        fit_power_law(flops[:3], flops[:3])


@pytest.mark.parametrize("n", [4, 5, 9])
def test_its_interval_holds_the_exponent_95_times_in_100(n):
    rng, flops, trials = np.random.default_rng(n), np.geomspace(1e12, 1e14, n), 4000
    losses = 40 * flops**-0.08 * np.exp(rng.normal(0, 0.02, (trials, n)))
    laws = [fit_power_law(flops, row) for row in losses]
    covered = np.mean([law.low <= -0.08 <= law.high for law in laws])
    assert covered == pytest.approx(0.95, abs=0.012)  # 3.5 standard errors of 4,000 trials
    assert np.mean([law.b for law in laws]) == pytest.approx(-0.08, abs=0.002)


def test_the_best_of_every_budget():
    rows = [
        dict(budget=budget, flops=budget, parameters=parameters, variant=f"m{parameters}", val_loss=loss)
        for budget, parameters, loss in [(2e12, 5, 3.0), (1e12, 9, 4.2), (1e12, 5, 3.5), (1e12, 9, 2.9), (2e12, 9, 2.9)]
    ]
    all_points = points(rows)
    assert len(all_points) == 4
    best = best_of_budgets(all_points)
    assert [(p.budget, p.variant, p.loss) for p in best] == [
        (1e12, "m5", 3.5),
        (2e12, "m9", 2.9),
    ]  # not the 2.9 of a seed


# ---- The table ----


def fake(run: Run, val_loss: float):
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
        results = {order: dict(share=0.5 + i / 100, low=0.4, high=0.8) for order in ("shuffled", "swapped")}
        (run.directory / "orders.json").write_text(json.dumps(results))
    with (tmp_path / "probe.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["set", "prompt", "right", "wrong", *(f"{run.directory} verdict" for run in runs)])
        for name, verdict in [("facts", "right"), *[("context", "right")] * 3, ("context", "nearly")]:
            writer.writerow([name, "-", " a", " b", *[verdict] * len(runs)])
    rows = tabulate(runs, tmp_path)
    show_results("contrast", tmp_path, rows)
    with (tmp_path / "experiment.csv").open(newline="") as file:
        read = list(csv.DictReader(file))
    assert [row["run"] for row in read] == [run.config.name for run in runs]
    run, row = runs[8], read[8]
    assert (row["variant"], row["seed"], row["contrast"], row["val_loss"]) == ("reciprocal", "1", "reciprocal", "3.8")
    assert (row["shuffled"], row["swapped_low"], row["context"], row["facts"]) == ("0.58", "0.4", "0.75", "1")
    assert (float(row["context_low"]), float(row["context_high"])) == pytest.approx(wilson(3 / 4, 4))
    first, whole = (int(log["tokens"]) for log in log_of(run.directory))
    assert float(row["seconds"]) == pytest.approx(first / 100 + (whole - first) / 50, abs=0.1)
    assert int(row["flops"]) == run.flops and "n_layer" not in row  # what does not differ is no column
    printed = capsys.readouterr().out
    assert "3.450 [3.100, 3.800]" in printed  # reciprocal, both seeds
    assert (tmp_path / "experiment.png").read_bytes()[:4] == b"\x89PNG"


def test_scores_of_judges_are_columns_of_the_runs_that_have_them(tmp_path, capsys):
    runs = planned("dropout", out_dir=str(tmp_path))
    for i, run in enumerate(runs):
        fake(run, 3 + i / 10)
    graded, other, ungraded, _ = (run.config.name for run in runs)
    findings = [
        *(Finding("mean", "lm:out/a b", name, "fluency", value, value - 0.1, value + 0.2, 9)
          for name, value in ((graded, -0.51234), (other, -0.5), ("(true ending)", -0.4))),
        Finding("mean", "qwen", graded, "grammar", 6.5, 6.0, 7.0, 9),
        Finding("mean", "", graded, "words", 90.0, 80.0, 99.0, 9),
        Finding("difference", "qwen", f"{graded} - {other}", "grammar", 1.0, 0.0, 2.0, 9),
    ]  # fmt: skip
    compare_models.write_csv(tmp_path / "grades.csv", findings)
    show_results("dropout", tmp_path, tabulate(runs, tmp_path))
    first, _, third, _ = read_table(tmp_path / "experiment.csv")
    scores = [name for name in first if " by " in name]
    assert scores[:3] == ["fluency by lm:out/a b", "fluency by lm:out/a b_low", "fluency by lm:out/a b_high"]
    assert [first[name] for name in scores] == ["-0.51234", "-0.61234", "-0.31234", "6.5", "6", "7"]
    assert not any(third[name] for name in scores)
    lines = capsys.readouterr().out.splitlines()
    assert "fluency by lm:out/a b  grammar by qwen" in lines[1]
    assert [line.split()[-2:] for line in lines[2:5]] == [["-0.512", "6.500"], ["-0.500", "–"], ["–", "–"]]


def test_scaling_ends_with_the_law(tmp_path, capsys):
    runs = planned("scaling", out_dir=str(tmp_path))
    for run in runs:
        distance = 0.03 * np.log(run.parameters / (run.budget / 1e12) ** 0.5 / 4e5) ** 2
        fake(run, 40 * run.budget**-0.08 + distance)
    show_results("scaling", tmp_path, tabulate(runs, tmp_path))
    said = capsys.readouterr().out
    intervals = {
        line.split()[0]: re.findall(r"-?[\d.]+", line.split("[")[1]) for line in said.splitlines() if "[" in line
    }
    low, high = map(float, intervals["loss"])
    assert low < -0.08 < high and high - low < 0.08
    assert list(map(float, intervals["size"])) == pytest.approx(
        [0.5, 0.5], abs=0.01
    )  # the best size is 4e5 * √(C / 1e12)
    assert (tmp_path / "experiment.png").stat().st_size > 10_000


def test_the_best_size_is_a_bound_where_it_is_the_first_or_the_last_tried():
    def at(budget: float, losses: dict[int, float]) -> list[Point]:
        return [Point(budget, size, budget, loss, str(size)) for size, loss in losses.items()]

    parabola = {10**i: 3 + 0.1 * (i - 5.3) ** 2 for i in (4, 5, 6, 7)}
    all_points = at(1.0, parabola) + at(2.0, {10: 3.0, 20: 4.0}) + at(3.0, {10: 4.0, 20: 3.5, 40: 3.0})
    first, smallest, largest = optimal_sizes(all_points)
    assert first.parameters == pytest.approx(10**5.3) and not first.bound
    assert (smallest.parameters, smallest.bound) == (10, "at most")
    assert (largest.parameters, largest.bound) == (40, "at least")
    assert fit_laws(all_points) == {}  # three budgets are too few


def test_measures_are_in_the_plot_of_scaling_too(tmp_path, capsys):
    runs = planned("scaling", out_dir=str(tmp_path))
    for run in runs:
        fake(run, 40 * run.budget**-0.08)
    show_results("scaling", tmp_path, tabulate(runs, tmp_path))
    without = read_png(tmp_path / "experiment.png").shape
    name = runs[3].config.name
    compare_models.write_csv(tmp_path / "grades.csv", [Finding("mean", "qwen", name, "grammar", 6.5, 6.0, 7.0, 9)])
    show_results("scaling", tmp_path, tabulate(runs, tmp_path))
    assert read_png(tmp_path / "experiment.png").shape[0] == 2 * without[0]  # a second row
    assert "grammar by qwen" in capsys.readouterr().out
