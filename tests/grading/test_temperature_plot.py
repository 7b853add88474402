"""Several temperatures: graded each for itself, and their figures in one picture."""

import csv
import json

import pytest
from grade_fixtures import records, write_samples

from grading import judge_choice
from grading.compare_models import Finding
from grading.judge_controls import TRUE
from grading.ledger import read_runs
from grading.temperature_plot import collect, temperature_figure


def mean(subject: str, figure: str, value: float, judge: str = "") -> Finding:
    return Finding("mean", judge, subject, figure, value, value - 0.1, value + 0.2, 5)


def test_what_is_collected_is_what_was_found(tmp_path):
    findings = [mean(f"a/temperature-{x}", "repeated", y) for x, y in (("1", 0.4), ("0", 0.1), ("0.3", 0.2))]
    findings += [mean(f"a/temperature-{x}", "plot", y, "j") for x, y in (("1", 4.0), ("0", 6.0))]
    findings += [mean("b/temperature-0.5", "repeated", 0.9), mean("a", "repeated", 0.7), mean(TRUE, "plot", 9.0, "j")]
    for x, span in (("0", 9.0), ("1", 5.0)):
        place = tmp_path / "a" / f"temperature-{x}"
        place.mkdir(parents=True)
        figure = dict(completions=dict(mean=span, low=4.0, high=None), beside=dict(mean=7.0, low=6.0, high=8.0))
        (place / "rouge.json").write_text(json.dumps(dict(figures=dict(span=figure))))
    repeated, plot, span = collect(findings, tmp_path)
    points = [(0.0, 10.0, 0.0, 30.0), (0.3, 20.0, 10.0, 40.0), (1.0, 40.0, 30.0, 60.0)]
    assert list(repeated.curves) == ["a"]  # b was sampled at one alone
    assert [pytest.approx(point) for point in points] == repeated.curves["a"]
    assert (plot.row, plot.title) == ("j", "plot\n(untested)") and [x for x, *_ in plot.curves["a"]] == [0.0, 1.0]
    assert plot.beside == {"": [(0.0, 9.0), (1.0, 9.0)]}
    assert span.curves == {"a": [(0.0, 9.0, 4.0, 9.0), (1.0, 5.0, 4.0, 5.0)]}
    assert span.beside == {"a": [(0.0, 7.0), (1.0, 7.0)]}
    figure = temperature_figure([repeated, plot, span])
    drawn = figure.axes[0].lines[0].get_xydata().tolist()
    assert drawn == [[x, pytest.approx(y)] for x, y, *_ in points]
    assert collect(findings[:1] + findings[-3:], tmp_path) == []


def test_temperatures_are_graded_apart(grade_py, tmp_path):
    for x in ("0", "0.7"):
        write_samples(tmp_path / "out" / "a" / f"temperature-{x}", 5, 1, temperature=float(x))
    (tmp_path / "out" / "a" / "log.csv").write_text("step,val_loss,bpb\n10,2.5,0.9\n")
    code, printed = grade_py()
    assert code == 0 and "grades.png, temperature.png; next" in printed.out
    assert (tmp_path / "out" / "temperature.png").read_bytes()[:4] == b"\x89PNG"
    with (tmp_path / "out" / "grades.csv").open(newline="") as file:
        rows = {(row["subject"], row["judge"], row["figure"]): row for row in csv.DictReader(file)}
    for name in ("a", "a/temperature-0", "a/temperature-0.7"):
        kept = [record["scores"]["plot"] for record in records(tmp_path / "out" / name)]
        assert float(rows[name, "rules", "plot"]["value"]) == pytest.approx(sum(kept) / len(kept))
        assert rows[name, "", "loss"]["value"] == "2.5"  # that of the run
    assert grade_py("out/b")[0] == 0 and not (tmp_path / "out" / "b" / "temperature.png").exists()


def test_no_run_judges_what_it_wrote_at_another_temperature(tmp_path):
    out = tmp_path / "out"
    for name, bpb in (("a", 0.9), ("b", 1.0)):
        write_samples(out / name / "temperature-0", 3, 1)
        write_samples(out / name / "temperature-1", 3, 1)
        (out / name / "config.json").write_text(json.dumps(dict(data_dir="data", data="tiny")))
        (out / name / "log.csv").write_text(f"step,val_loss,bpb\n10,2.5,{bpb}\n")
    trained = [out / "a", out / "b"]
    judge_choice.write_missing_samples(trained)  # neither has a checkpoint to write any
    chosen = judge_choice.choose_judges(trained, read_runs([out])[0])
    graded = {judge.rpartition("/")[2]: [run.name for run in runs] for judge, runs in chosen.items()}
    assert graded == {
        "a": ["b/temperature-0", "b/temperature-1"],
        "b": ["a/temperature-0", "a/temperature-1"],
    }
