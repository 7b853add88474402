"""The scaling law, and the table and plot of an experiment."""

from dataclasses import replace

import numpy as np
import pytest
from test_plan import planned

from nanostories.checkpoints.models import open_model
from nanostories.results import Table, load, save
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
    rows = []

    def add(budget: float, size: int, loss: float, n_layer: int = 2) -> None:
        row = {"parameters": size, "variant": f"m{size}", "validation loss": loss}
        rows.append(row | {"budget": budget, "training FLOPs": budget, "n_layer": n_layer})

    for i in (4, 5, 6, 7):
        add(1.0, 10**i, 3 + 0.1 * (i - 5.3) ** 2)
    add(1.0, 3 * 10**5, 4.0, n_layer=4)
    for size, loss in ((10, 3.0), (20, 3.4), (10, 3.3)):  # two seeds of one size
        add(2.0, size, loss)
    for budget in (3.0, 4.0):
        add(budget, 10, 4.0)
        add(budget, 20, 3.0)
    best = best_of_budgets(rows)
    first, *ends, _ = best
    assert first["size"] == pytest.approx(10**5.3) and not first["bound"] and first["n_layer"] == 2
    found = [(row["size"], row["loss"], row["bound"]) for row in ends]
    assert found == [(10, 3.15, "at most"), (20, 3.0, "at least")]
    # three budgets are too few, and so is one whose optimum is known
    assert fit_laws(best[:3]) == {} and fit_laws(best).keys() == {"loss"}


# ---- The table ----
def trained(run: PlannedRun, val_loss: float) -> Subject:
    """With what a run leaves, as far as the table reads it."""
    run.directory.mkdir(parents=True)
    (run.directory / "ckpt.pt").touch()
    last = dict(step=run.config.max_steps, tokens=run.tokens, done=1, seconds=30, tokens_per_s=9)
    last |= dict(train_loss=val_loss + 1, val_loss=val_loss, bpb=val_loss / 3)
    write_table(run.directory / "log.csv", [last | dict(step=1, val_loss=9.0, seconds=10), last])
    model = open_model(str(run.directory))
    return Subject(run.config.name, model, run.directory, run.data, run)


def show(name: str, directory, subjects: list[Subject], **changes) -> list[Table]:
    results.show(name, replace(EXPERIMENTS[name], **changes), subjects, Settings(directory))
    return load(directory / "experiment.json").tables


def test_the_table_has_logs_probes_and_judges(tmp_path):
    runs = planned("contrast", n_seeds=2, out=str(tmp_path))
    subjects = [trained(run, 3 + i / 10) for i, run in enumerate(runs)]
    # which is not probed
    subjects.append(Subject("api:x", open_model("api:x"), tmp_path / "api:x", runs[0].data))
    last = runs[5].config.name
    shares = [{"run": last, "facts": [0.75, 0.5, 0.9]}]
    shares.append({"run": f"{last}/step-9", "facts": 0.2})  # not its own
    pairs = [{"phenomenon": "some", last: 0.1}, {"phenomenon": "all", last: [0.8, 0.7, 0.9]}]
    graded = []
    for name, grammar in ((last, 6.5), (f"{last}/mine-2", 3), ("(true ending)", 9)):
        graded.append({"run": name, "grammar": [grammar, 5.5, 7.5], "plot": None})
    facts = {"kind": "scores", "judge": "qwen"}
    tables = {
        "probe": Table("Right", shares, {"facts": ".1%"}, facts={"kind": "shares"}),
        "grammar": Table("Pairs", pairs, facts={"kind": "pairs"}),
        "grades": Table("Scores", graded, notes={"grammar": "fails", last: "own"}, facts=facts),
    }
    for name, table in tables.items():
        save(tmp_path / f"{name}.json", "probe.py", [table])
    (table,) = show("contrast", tmp_path, subjects, measures=("probes", "scores"))
    row = read_table(tmp_path / "experiment.csv")[5]
    expected = {
        "run": last,
        "label": "128-4-4",
        "validation loss": "3.5",
        "seconds": "30",
        "facts right": "0.75",
        "facts right low": "0.5",
        "grammar pairs right": "0.8",
        "grammar by qwen": "6.5",
        "grammar by qwen high": "7.5",
        "grammar by qwen, mine-2": "3",
    }
    assert expected.items() <= row.items()
    assert float(row["training FLOPs"]) == pytest.approx(runs[5].flops, rel=1e-5)
    assert table.formats["facts right"] == ".1%"  # that of the measure
    assert table.notes["grammar by qwen"] == "fails"
    assert table.notes["plot by qwen"] == f"{last}: own"
    assert table.rows[1]["run"] == "128-4-4"
    value, low, high = table.rows[1]["validation loss"]  # both seeds
    assert value == pytest.approx(3.3) and low < 3.1 < 3.5 < high


def test_seeds_share_a_point_and_a_model_without_a_size_is_a_level_across_the_panel():
    rows = []
    for run, label, size, bpb in (("a0", "a", 1, 1), ("a1", "a", 1, 2), ("b", "b", 2, 3)):
        row = {"run": run, "label": label, "variant": label, "bpb": bpb}
        rows.append(row | {"parameters": size, "n_embd": size})
    rows.append({"run": "c", "label": "c", "parameters": 2, "bpb": [5, 4, 6]})
    by_size, by_width = results.draw(rows, ["bpb"], ["parameters", "n_embd"], []).axes
    places = {text.get_text(): text.xy for text in by_size.texts}
    assert places == {"a": (1, 1.5), "b": (2, 3), "c": (2, 5)}
    assert [(text.get_text(), text.xy) for text in by_width.texts] == [("c", (0, 5))]
    # It has no settings, in which the runs would differ from it.
    assert results.series_of(rows[0], rows, "n_embd") == []
    # Nor has a run that was there before: it is named, and apart from the others
    assert results.series_of({"run": "demo", "n_embd": 3}, rows, "n_embd") == ["demo"]


def test_seeds_with_equal_values_have_no_interval():
    """Not that of the first one over its prompts."""
    assert results.mean_cell([[0.5, 0.3, 0.7], [0.5, 0.2, 0.8]]) == [0.5, None, None]
    assert results.mean_cell([7, 7]) == 7 and results.mean_cell([[0.5, 0.3, 0.7]])[1] == 0.3


def test_a_single_run_has_its_facts_and_losses(tmp_path):
    (run,) = planned("from_zero", out=str(tmp_path))
    (table,) = show("from_zero", tmp_path, [trained(run, 2.5)])
    assert table.rows[0]["validation loss"] == 2.5 and table.rows[0]["tokens"] == run.tokens
    (axes,) = results.draw([], [], [], [run.directory]).axes
    assert [min(line.get_ydata()) for line in axes.lines] == [3.5, 2.5]  # training, validation


def test_beginnings_of_a_file_take_the_place_of_stories_and_of_our_three(tmp_path):
    """They are graded without controls, as they have no true endings."""
    subject = Subject("api:x", open_model("api:x"), tmp_path / "x", tmp_path)
    mine = tmp_path / "mine.txt"
    mine.write_text("Tom had\nMia ran to the\n")
    settings = Settings(tmp_path, grade=["--judge", "a", "--controls"], prompts=mine)
    story, grade = [x.arguments for x in commands(["scores"], [subject], settings)]
    assert str(mine) in story and "--eval" not in story
    assert grade[-4:] == ["--set", "mine", "--judge", "a"]
    *stories, grade = [x.arguments for x in commands(["beginnings"], [subject], settings)]
    begun = [x[x.index("--prompt") + 1] for x in stories]
    assert begun == ["Tom had", "Mia ran to the"] and "--controls" not in grade


def test_neurons_that_could_not_be_measured_have_a_table_and_no_picture(tmp_path):
    """As where interpret.py failed."""
    subject = Subject("hf:x", open_model("hf:x"), tmp_path / "x", tmp_path)
    (table,) = show("neurons", tmp_path, [subject])
    assert table.rows == [{"run": "hf:x"}] and not (tmp_path / "experiment.png").exists()
