"""The scaling law, and the table and plot of an experiment."""

import csv
import re
from dataclasses import replace

import numpy as np
import pytest
from test_plan import planned

from nanostories.sweeps import results
from nanostories.sweeps.lists import EXPERIMENTS
from nanostories.sweeps.measures import Subject, figures_of
from nanostories.sweeps.plan import Run
from nanostories.sweeps.scaling_law import best_of_budgets, fit_laws, fit_power_law
from nanostories.tables import read_table, write_table
from nanostories.training.run_directory import LOG_COLUMNS


# ---- The law ----
def test_a_power_law_is_found_again():
    flops = np.array([1e12, 3e12, 1e13, 1e14])
    law = fit_power_law(flops, 40 * flops**-0.08)
    assert law == pytest.approx((40, -0.08, -0.08, -0.08))


@pytest.mark.parametrize("n", [4, 9])
def test_its_interval_holds_the_exponent_95_times_in_100(n):
    rng, flops, trials = np.random.default_rng(n), np.geomspace(1e12, 1e14, n), 1500
    losses = 40 * flops**-0.08 * np.exp(rng.normal(0, 0.02, (trials, n)))
    laws = [fit_power_law(flops, row) for row in losses]
    covered = np.mean([law.low <= -0.08 <= law.high for law in laws])
    assert covered == pytest.approx(0.95, abs=0.02)  # 3.5 standard errors of 1,500 trials


def test_the_best_of_every_budget_and_its_size():
    def at(budget: float, losses: dict[int, float]) -> list[dict]:
        own = [
            dict(parameters=size, variant=f"m{size}", val_loss=loss)
            for size, loss in losses.items()
        ]
        return [row | dict(budget=budget, flops=budget) for row in own]

    parabola = {10**i: 3 + 0.1 * (i - 5.3) ** 2 for i in (4, 5, 6, 7)}
    rows = at(2.0, {10: 3.0, 20: 3.1}) + at(1.0, parabola) + at(3.0, {10: 4.0, 20: 3.5, 40: 3.0})
    rows += at(2.0, {20: 3.4})  # a second seed
    best = best_of_budgets(rows)
    first, *ends = best
    assert first.size == pytest.approx(10**5.3) and not first.bound
    assert [(own.variant, own.size, own.bound) for own in ends] == [
        ("m10", 10, "at most"),
        ("m40", 40, "at least"),
    ]
    assert fit_laws(best) == {}  # three budgets are too few


# ---- The table ----
def fake(run: Run, val_loss: float):
    """What a run leaves, as far as the table reads it."""
    run.directory.mkdir(parents=True)
    halves = ((run.config.max_steps // 2, 9.0, 10), (run.config.max_steps, val_loss, 30))
    with (run.directory / "log.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, LOG_COLUMNS)
        writer.writeheader()
        for steps, loss, seconds in halves:
            tokens = steps * run.tokens // run.config.max_steps
            row = dict(
                step=steps,
                tokens=tokens,
                train_loss=loss,
                val_loss=loss,
                bpb=loss / 3,
                seconds=seconds,
            )
            writer.writerow(row)


def subject_of(run: Run) -> Subject:
    return Subject(run.config.name, str(run.directory), run.directory, run.data, run)


def show(name: str, directory, runs: list[Run], **changes):
    subjects, experiment = [subject_of(run) for run in runs], replace(EXPERIMENTS[name], **changes)
    results.show(
        name, experiment, directory, subjects, figures_of(experiment.measures, subjects, directory)
    )


def test_the_table_has_logs_probes_and_judges(tmp_path, capsys):
    runs = planned("contrast", n_seeds=2, out=str(tmp_path))
    for i, run in enumerate(runs):
        fake(run, 3 + i / 10)
    answers = [("facts", "right"), *[("context", "right")] * 3, ("context", "nearly")]
    verdicts = [{f"{run.directory} verdict": verdict for run in runs} for _, verdict in answers]
    rows = [
        dict(set=name, prompt="-", right=" a", wrong=" b") | own
        for (name, _), own in zip(answers, verdicts)
    ]
    write_table(tmp_path / "probe.csv", rows)
    graded = dict(
        kind="mean", judge="qwen", figure="grammar", value=6.5, low=6.0, high=7.0, prompts=9
    )
    grades = [graded | dict(subject=runs[5].config.name), graded | dict(subject="(true ending)")]
    grades += [
        graded | dict(subject=f"{runs[5].config.name}/beginning-2", value=3),
        graded | dict(kind="difference"),
    ]
    grades += [graded | dict(kind="paired_wins", subject="(cut off)", value=0.5, low=0.4, high=0.6)]
    write_table(tmp_path / "grades.csv", [dict(subject="-") | row for row in grades])
    (tmp_path / "grades.md").write_text("Means\n\nWARNING qwen guesses\n")

    show("contrast", tmp_path, runs, measures=("probes", "scores"))
    run, row = runs[5], read_table(tmp_path / "experiment.csv")[5]
    assert "WARNING qwen guesses" in (tmp_path / "experiment.md").read_text()
    assert (row["run"], row["label"], row["seed"], row["val_loss"]) == (
        "128-4-4_1",
        "128-4-4",
        "1",
        "3.5",
    )
    assert (row["context right (%)"], row["facts right (%)"]) == ("75", "100")
    assert float(row["context right (%)_low"]) < 75 < float(row["context right (%)_high"])
    assert [row[f"grammar by qwen (controls failed){end}"] for end in ("", "_low", "_high")] == [
        "6.5",
        "6",
        "7",
    ]
    assert row["grammar by qwen (controls failed), beginning 2"] == "3"
    assert float(row["seconds"]) == 30
    assert int(float(row["flops"])) == pytest.approx(run.flops, rel=1e-5)
    printed = capsys.readouterr().out
    assert "3.300 [3.100, 3.500]" in printed  # 128-4-4, both seeds
    assert (tmp_path / "experiment.md").read_text() == printed
    assert (tmp_path / "experiment.png").read_bytes()[:4] == b"\x89PNG"


def test_scaling_ends_with_the_law(tmp_path, capsys):
    runs = planned("scaling", out=str(tmp_path))
    for run in runs:  # the best size is 6e5 * √(C / 1e12)
        distance = 0.03 * np.log(run.parameters / (run.budget / 1e12) ** 0.5 / 6e5) ** 2
        fake(run, 40 * run.budget**-0.08 + distance)
    show("scaling", tmp_path, runs)
    lines = [line for line in capsys.readouterr().out.splitlines() if "[" in line]
    intervals = {
        line.split()[0]: [float(x) for x in re.findall(r"-?[\d.]+", line.split("[")[1])]
        for line in lines
    }
    low, high = intervals["loss"]
    assert low < -0.08 < high and high - low < 0.08
    assert intervals["size"] == pytest.approx([0.5, 0.5], abs=0.01)
    assert "svg" in (tmp_path / "experiment.svg").read_text()[:300]


def test_seeds_of_a_variant_share_a_point_and_models_of_one_size_do_not():
    rows = [
        dict(run=f"a_{seed}", label="a", variant="a", parameters=100, bpb=1 + seed)
        for seed in (0, 1)
    ]
    rows += [
        dict(run=name, label=name, parameters=200, bpb=bpb) for name, bpb in (("b", 3), ("c", 5))
    ]
    axes = results.draw(rows, ["bpb"], ["parameters"], []).axes[0]
    assert {text.get_text(): text.xy for text in axes.texts} == {
        "a": (100, 1.5),
        "b": (200, 3),
        "c": (200, 5),
    }
