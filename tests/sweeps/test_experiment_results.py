"""The scaling law, and the table and plot of an experiment."""

from dataclasses import replace

import numpy as np
import pytest
from test_plan import planned

from nanostories.checkpoints.models import open_model
from nanostories.results import Table, load, save, to_text
from nanostories.sweeps import results
from nanostories.sweeps.lists import EXPERIMENTS
from nanostories.sweeps.measures import Settings, Subject, commands
from nanostories.sweeps.plan import PlannedRun
from nanostories.sweeps.scaling_law import best_of_budgets, fit_laws, fit_power_law
from nanostories.tables import read_table, write_table


# ---- The law ----
@pytest.mark.parametrize("n", [4, 9])
def test_a_power_law_is_found_again_and_its_interval_holds_95_times_in_100(n):
    rng = np.random.default_rng(n)
    flops = np.geomspace(1e12, 1e14, n)
    law = 40 * flops**-0.08
    assert fit_power_law(flops, law) == pytest.approx((40, -0.08, -0.08, -0.08))
    noise = np.exp(rng.normal(0, 0.02, (1500, n)))
    laws = [fit_power_law(flops, row) for row in law * noise]
    covered = np.mean([law.low <= -0.08 <= law.high for law in laws])
    assert covered == pytest.approx(0.95, abs=0.02)  # 3.5 standard errors of 1,500 trials


def test_the_best_of_every_budget_and_its_size():
    """Fitted among models of one depth: one of another depth in between changes nothing."""

    def at(budget: float, losses: dict[int, float], n_layer: int = 2) -> list[dict]:
        rows = []
        for size, loss in losses.items():
            row = {"parameters": size, "variant": f"m{size}", "validation loss": loss}
            rows.append(row | {"budget": budget, "training FLOPs": budget, "n_layer": n_layer})
        return rows

    parabola = {10**i: 3 + 0.1 * (i - 5.3) ** 2 for i in (4, 5, 6, 7)}
    rows = at(1.0, parabola) + at(1.0, {3 * 10**5: 4.0, 5 * 10**4: 3.9}, n_layer=4)
    rows += at(2.0, {10: 3.0, 20: 3.1}) + at(3.0, {10: 4.0, 20: 3.5, 40: 3.0})
    rows += at(2.0, {10: 3.3, 20: 3.4})  # a second seed
    best = best_of_budgets(rows)
    first, *ends = best
    assert first["size"] == pytest.approx(10**5.3) and not first["bound"] and first["n_layer"] == 2
    found = [(row["variant"], row["size"], row["loss"], row["bound"]) for row in ends]
    assert found == [("m10", 10, 3.15, "at most"), ("m40", 40, 3.0, "at least")]
    assert fit_laws(best) == {}  # three budgets are too few


# ---- The table ----
def trained(run: PlannedRun, val_loss: float) -> Subject:
    """With what a run leaves, as far as the table reads it."""
    run.directory.mkdir(parents=True)
    (run.directory / "ckpt.pt").touch()
    steps = run.config.max_steps
    rows = []
    for step, loss, seconds in ((steps // 2, 9.0, 10), (steps, val_loss, 30)):
        row = dict(step=step, tokens=step * run.tokens // steps, train_loss=loss + 1)
        rows.append(row | dict(val_loss=loss, bpb=loss / 3, seconds=seconds))
    write_table(run.directory / "log.csv", rows)
    model = open_model(str(run.directory))
    return Subject(run.config.name, model, run.directory, run.data, run)


def show(name: str, directory, subjects: list[Subject], **changes) -> list[Table]:
    results.show(name, replace(EXPERIMENTS[name], **changes), subjects, Settings(directory))
    assert (directory / "experiment.png").stat().st_size > 5000
    return load(directory / "experiment.json").tables


def test_the_table_has_logs_probes_and_judges(tmp_path, capsys):
    runs = planned("contrast", n_seeds=2, out=str(tmp_path))
    subjects = [trained(run, 3 + i / 10) for i, run in enumerate(runs)]
    # which is not probed
    subjects.append(Subject("api:x", open_model("api:x"), tmp_path / "api:x", runs[0].data))
    shares = []
    pairs = {"phenomenon": "all"}
    for run in runs:
        shares.append({"run": run.config.name, "facts": 1.0, "context": [0.75, 0.5, 0.9]})
        pairs[run.config.name] = [0.8, 0.7, 0.9]
    shares.append({"run": "(chance)", "facts": 0.1})
    last = runs[5].config.name
    graded = []
    for name, grammar in ((last, 6.5), (f"{last}/mine-2", 3), ("(true ending)", 9)):
        row = {"run": name, "stories": 9, "ungraded": 0}
        graded.append(row | {"grammar": [grammar, grammar - 1, grammar + 1]})
    facts = {"kind": "scores", "judge": "qwen"}
    tables = {
        "probe": Table("Right", shares, facts={"kind": "shares"}),
        "grammar": Table("Pairs", [pairs, {"phenomenon": "some"}], facts={"kind": "pairs"}),
        "grades": Table("Scores", graded, notes={"grammar": "fails"}, facts=facts),
    }
    for name, table in tables.items():
        save(tmp_path / f"{name}.json", "probe.py", [table])
    capsys.readouterr()

    (table,) = show("contrast", tmp_path, subjects, measures=("probes", "scores"))
    assert to_text(load(tmp_path / "experiment.json")) == capsys.readouterr().out.strip()
    row = read_table(tmp_path / "experiment.csv")[5]
    expected = {
        "run": last,
        "label": "128-4-4",
        "validation loss": "3.5",
        "seconds": "30",
        "context right": "0.75",
        "context right low": "0.5",
        "facts right": "1",
        "grammar pairs right": "0.8",
        "grammar by qwen": "6.5",
        "grammar by qwen low": "5.5",
        "grammar by qwen high": "7.5",
        "grammar by qwen, mine-2": "3",
    }
    assert expected.items() <= row.items()
    assert float(row["training FLOPs"]) == pytest.approx(runs[5].flops, rel=1e-5)
    assert table.notes["grammar by qwen"] == "fails"
    by_label = {row["run"]: row for row in table.rows}
    value, low, high = by_label["128-4-4"]["validation loss"]  # both seeds
    assert value == pytest.approx(3.3) and low < 3.1 < 3.5 < high


def test_scaling_ends_with_the_law(tmp_path):
    subjects = []
    for run in planned("scaling", out=str(tmp_path)):  # the best size is 6e5 * √(C / 1e12)
        distance = 0.03 * np.log(run.parameters / (run.budget / 1e12) ** 0.5 / 6e5) ** 2
        subjects.append(trained(run, 40 * run.budget**-0.08 + distance))
    *_, models, laws = show("scaling", tmp_path, subjects)
    exponents = {row["law of"]: row["exponent of FLOPs"] for row in laws.rows}
    _, low, high = exponents["loss"]
    assert low < -0.08 < high and high - low < 0.08
    assert all(row["fitted among"].endswith("layers") for row in models.rows)


def test_seeds_share_a_point_and_a_model_without_a_size_is_a_level_across_the_panel():
    rows = []
    for run, label, size, bpb in (("a0", "a", 1, 1), ("a1", "a", 1, 2), ("b", "b", 2, 3)):
        row = {"run": run, "label": label, "variant": label, "bpb": bpb}
        rows.append(row | {"parameters": size, "n_embd": size})
    rows.append({"run": "c", "label": "c", "parameters": 2, "bpb": [5, 4, 6]})
    by_size, by_width = results.draw(rows, ["bpb"], ["parameters", "n_embd"], []).axes
    places = {text.get_text(): text.xy for text in by_size.texts}
    assert places == {"a": (1, 1.5), "b": (2, 3), "c": (2, 5)}
    dotted = [line for line in by_width.lines if line.get_linestyle() == ":"]
    assert [line.get_ydata()[0] for line in dotted] == [5]
    assert [text.get_text() for text in by_width.texts] == ["c"]
    # It has no settings, in which the runs would differ from it.
    assert results.series_of(rows[0], rows, "n_embd") == []


def test_the_losses_of_all_runs_are_in_one_picture(tmp_path):
    runs = planned("shapes", out=str(tmp_path))
    rows = [results.facts_of(trained(run, 3 + i / 10)) for i, run in enumerate(runs)]
    axes = results.draw(rows, [], ["n_embd"], [run.directory for run in runs]).axes[-1]
    lowest = [min(line.get_ydata()) for line in axes.lines]
    expected = [[4 + i / 10, 3 + i / 10] for i in range(len(runs))]  # of training, of validation
    assert lowest == sum(expected, [])


def test_a_single_run_has_its_facts_and_stories_of_a_file_of_beginnings(tmp_path):
    """Those are graded without controls, as they have no true endings."""
    (run,) = planned("from_zero", out=str(tmp_path))
    subject = trained(run, 2.5)
    (table,) = show("from_zero", tmp_path, [subject])
    assert table.rows[0]["validation loss"] == 2.5 and table.rows[0]["tokens"] == run.tokens
    mine = tmp_path / "mine.txt"
    mine.write_text("Tom had\nMia ran to the\n")
    flags = ["--judge", "a", "--controls"]
    settings = Settings(tmp_path, grade=flags, prompts=[mine], sample=["--n", "3"])
    story, grade = [x.arguments for x in commands(["scores"], [subject], settings)]
    assert story[-4:] == ["--prompts", str(mine), "--n", "3"] and "--eval" not in story
    places = ["grade.py", str(run.directory), "--out", str(tmp_path)]
    assert grade == [*places, "--set", "mine", "--judge", "a"]
    # and one by one, in place of our three
    *stories, grade = [x.arguments for x in commands(["beginnings"], [subject], settings)]
    begun = [x[x.index("--prompt") + 1] for x in stories]
    assert begun == ["Tom had", "Mia ran to the"] and "--controls" not in grade


def test_a_list_without_a_picture_keeps_its_table(tmp_path):
    """Such as instructions to a model whose corpus has no headers."""
    results.show("instruct", EXPERIMENTS["instruct"], [], Settings(tmp_path))
    assert (tmp_path / "experiment.json").exists()
