"""The scaling law, and the table and plot of an experiment."""

import csv
from dataclasses import replace

import numpy as np
import pytest
from test_plan import planned

from nanostories.checkpoints.models import open_model
from nanostories.results import Table, load, save, to_text
from nanostories.sweeps import results
from nanostories.sweeps.lists import EXPERIMENTS
from nanostories.sweeps.measures import Settings, Subject, commands, texts_to_begin
from nanostories.sweeps.plan import Run
from nanostories.sweeps.scaling_law import best_of_budgets, fit_laws, fit_power_law
from nanostories.tables import read_table
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
    """Fitted among models of one depth: one of another depth in between changes nothing."""

    def at(budget: float, losses: dict[int, float], n_layer: int = 2) -> list[dict]:
        return [
            {
                "parameters": size,
                "variant": f"m{size}",
                "validation loss": loss,
                "budget": budget,
                "training FLOPs": budget,
                "n_layer": n_layer,
            }
            for size, loss in losses.items()
        ]

    parabola = {10**i: 3 + 0.1 * (i - 5.3) ** 2 for i in (4, 5, 6, 7)}
    rows = at(1.0, parabola) + at(1.0, {3 * 10**5: 4.0, 5 * 10**4: 3.9}, n_layer=4)
    rows += at(2.0, {10: 3.0, 20: 3.1}) + at(3.0, {10: 4.0, 20: 3.5, 40: 3.0})
    rows += at(2.0, {20: 3.4})  # a second seed
    best = best_of_budgets(rows)
    first, *ends = best
    assert first.size == pytest.approx(10**5.3) and not first.bound and first.n_layer == 2
    found = [(own.variant, own.size, own.bound) for own in ends]
    assert found == [("m10", 10, "at most"), ("m40", 40, "at least")]
    assert fit_laws(best) == {}  # three budgets are too few


# ---- The table ----
def fake(run: Run, val_loss: float):
    """What a run leaves, as far as the table reads it."""
    run.directory.mkdir(parents=True)
    (run.directory / "ckpt.pt").touch()
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
    model = open_model(str(run.directory))
    return Subject(run.config.name, model, run.directory, run.data, run)


def show(name: str, directory, runs: list[Run], **changes):
    subjects = [subject_of(run) for run in runs]
    results.show(name, replace(EXPERIMENTS[name], **changes), subjects, Settings(directory))


def test_the_table_has_logs_probes_and_judges(tmp_path, capsys):
    runs = planned("contrast", n_seeds=2, out=str(tmp_path))
    for i, run in enumerate(runs):
        fake(run, 3 + i / 10)
    shares = [{"run": run.config.name, "facts": 1.0, "context": [0.75, 0.5, 0.9]} for run in runs]
    shares.append({"run": "(chance)", "facts": 0.1})
    probe = Table("Right", shares, facts={"kind": "shares"})
    save(tmp_path / "probe.json", "probe.py", [probe])
    pairs = [{"phenomenon": "all"} | {run.config.name: [0.8, 0.7, 0.9] for run in runs}]
    save(tmp_path / "grammar.json", "probe.py", [Table("Pairs", pairs, facts={"kind": "pairs"})])
    last = runs[5].config.name
    graded = [
        {"run": last, "stories": 9, "ungraded": 0, "grammar": [6.5, 6.0, 7.0]},
        {"run": f"{last}/mine-2", "stories": 9, "ungraded": 0, "grammar": [3, 2, 4]},
        {"run": "(true ending)", "stories": 9, "ungraded": 0, "grammar": [9, 8, 10]},
    ]
    facts = {"kind": "scores", "judge": "qwen"}
    scores = Table("Scores", graded, notes={"grammar": "fails"}, facts=facts)
    save(tmp_path / "grades.json", "grade.py", [scores])
    capsys.readouterr()

    show("contrast", tmp_path, runs, measures=("probes", "scores"))
    row = read_table(tmp_path / "experiment.csv")[5]
    assert (row["run"], row["label"], row["validation loss"]) == (last, "128-4-4", "3.5")
    assert (row["context right"], row["context right low"], row["facts right"]) == (
        "0.75",
        "0.5",
        "1",
    )
    assert row["grammar pairs right"] == "0.8"
    ends = ("", " low", " high")
    assert [row[f"grammar by qwen{end}"] for end in ends] == ["6.5", "6", "7"]
    assert row["grammar by qwen, mine-2"] == "3"
    assert float(row["seconds"]) == 30
    assert int(float(row["training FLOPs"])) == pytest.approx(runs[5].flops, rel=1e-5)
    found = load(tmp_path / "experiment.json")
    assert to_text(found) == capsys.readouterr().out.strip()
    (table,) = found.tables
    assert table.notes["grammar by qwen"] == "fails"
    by_label = {row["run"]: row for row in table.rows}
    value, low, high = by_label["128-4-4"]["validation loss"]  # both seeds
    assert value == pytest.approx(3.3) and low < 3.1 < 3.5 < high
    assert (tmp_path / "experiment.png").read_bytes()[:4] == b"\x89PNG"


def test_scaling_ends_with_the_law(tmp_path):
    runs = planned("scaling", out=str(tmp_path))
    for run in runs:  # the best size is 6e5 * √(C / 1e12)
        distance = 0.03 * np.log(run.parameters / (run.budget / 1e12) ** 0.5 / 6e5) ** 2
        fake(run, 40 * run.budget**-0.08 + distance)
    show("scaling", tmp_path, runs)
    *_, models, laws = load(tmp_path / "experiment.json").tables
    exponents = {row["law of"]: row["exponent of FLOPs"] for row in laws.rows}
    _, low, high = exponents["loss"]
    assert low < -0.08 < high and high - low < 0.08
    assert all(row["fitted among"].endswith("layers") for row in models.rows)
    assert "svg" in (tmp_path / "experiment.svg").read_text()[:300]


def test_seeds_of_a_variant_share_a_point_and_models_of_one_size_do_not():
    rows = []
    for run, label, size, bpb in (("a0", "a", 1, 1), ("a1", "a", 1, 2), ("b", "b", 2, 3)):
        rows.append({"run": run, "label": label, "variant": label, "parameters": size, "bpb": bpb})
    rows.append({"run": "c", "label": "c", "parameters": 2, "bpb": [5, 4, 6]})
    axes = results.draw(rows, ["bpb"], ["parameters"], []).axes[0]
    places = {text.get_text(): text.xy for text in axes.texts}
    assert places == {"a": (1, 1.5), "b": (2, 3), "c": (2, 5)}


def test_a_model_without_a_width_is_a_level_across_the_panel():
    rows = [
        {"run": "a", "label": "a", "variant": "a", "n_embd": 64, "n_head": 4, "bpb": 1.0},
        {"run": "gpt2", "label": "gpt2", "bpb": [0.5, 0.4, 0.6]},
    ]
    axes = results.draw(rows, ["bpb"], ["n_embd"], []).axes[0]
    dotted = [line for line in axes.lines if line.get_linestyle() == ":"]
    assert [line.get_ydata()[0] for line in dotted] == [0.5]
    assert [text.get_text() for text in axes.texts] == ["gpt2"]
    # It has no settings, in which the runs would differ from it.
    assert results.series_of(rows[0], rows, "n_embd") == ()


def test_the_losses_of_all_runs_are_in_one_picture(tmp_path):
    runs = planned("shapes", out=str(tmp_path))
    for i, run in enumerate(runs):
        fake(run, 3 + i / 10)
    rows = [results.facts_of(subject_of(run)) for run in runs]
    axes = results.draw(rows, [], ["n_embd"], [run.directory for run in runs]).axes[-1]
    lowest = [min(line.get_ydata()) for line in axes.lines]
    assert lowest == [3 + i / 10 for i in range(len(runs)) for _ in ("train_loss", "val_loss")]


def test_a_single_run_has_its_facts_in_the_table(tmp_path):
    (run,) = planned("from_zero", out=str(tmp_path))
    fake(run, 2.5)
    show("from_zero", tmp_path, [run])
    (table,) = load(tmp_path / "experiment.json").tables
    assert table.rows[0]["validation loss"] == 2.5 and table.rows[0]["tokens"] == run.tokens
    assert (tmp_path / "experiment.png").stat().st_size > 5000


def test_stories_of_a_file_of_beginnings_are_a_set_of_their_own(tmp_path):
    """Graded without controls, as they have no true endings."""
    (run,) = planned("from_zero", out=str(tmp_path))
    fake(run, 2.5)
    subject = subject_of(run)
    flags = ["--judge", "a", "--controls"]
    mine = tmp_path / "mine.txt"
    mine.write_text("Tom had\nMia ran to the\n")
    settings = Settings(tmp_path, grade=flags, prompts=[mine], sample=["--n", "3"])
    story, grade = [x.arguments for x in commands(["scores"], [subject], settings)]
    assert story[-4:] == ["--prompts", str(mine), "--n", "3"] and "--eval" not in story
    assert grade == ["grade.py", str(tmp_path), "--set", "mine", "--judge", "a"]
    # and one by one, in place of our three
    *stories, grade = [x.arguments for x in commands(["beginnings"], [subject], settings)]
    begun = [x[x.index("--prompt") + 1] for x in stories]
    assert begun == ["Tom had", "Mia ran to the"] and "--controls" not in grade
    assert list(texts_to_begin([])) == [f"three_beginnings-{i}" for i in (1, 2, 3)]
