"""python grade.py out/, without a judge: samples are written, the best run judges, and the API within its budget."""

import json

import pytest
from grade_fixtures import KEY, records, table, write_samples
from models_to_probe import random_model, save_run

import sample
from corpus.preparation import prepare
from grading.judge_choice import choose_judges, trained_runs
from grading.ledger import read_runs


@pytest.fixture
def out(tmp_path, monkeypatch, grade_py):
    """No key, no pictures, and out/ is empty."""
    monkeypatch.delenv("OPENAI_API_KEY")
    monkeypatch.setattr("grading.scores_plot.plot", lambda *args: None)
    for run in "ab":
        (tmp_path / "out" / run / "samples.jsonl").unlink()
        (tmp_path / "out" / run).rmdir()
    return tmp_path / "out"


@pytest.fixture
def train(out, data_dir):
    """What train.py leaves of a run; with other shapes, its weights are others."""

    def train(name: str, bpb: float, data: str = "tiny", **shape):
        where = dict(data_dir=str(data_dir), data=data)
        save_run(out / name, random_model(**shape), train_config=where)
        (out / name / "config.json").write_text(json.dumps(where))
        (out / name / "log.csv").write_text(f"step,val_loss,bpb\n10,{3 * bpb},{bpb}\n20,{9 * bpb},{3 * bpb}\n")

    return train


def graded_by(tmp_path) -> dict[str, set[str]]:
    """judge -> the runs that it grades."""
    rows = [row for row in table(tmp_path) if row["judge"] and row["kind"] == "mean" and row["subject"][0] != "("]
    return {judge: {row["subject"] for row in rows if row["judge"] == judge} for judge in {r["judge"] for r in rows}}


def test_two_runs_judge_each_other(out, train, grade_py, command_line, tmp_path):
    train("poor", 2.0)
    train("good", 1.0, n_layer=3)
    code, printed = grade_py(judge=None)
    assert code == 0 and graded_by(tmp_path) == {"lm:out/good": {"poor"}, "lm:out/poor": {"good"}}
    said = "out/good: no samples yet; it gets those of `python sample.py --model out/good --eval 50 --n 1`"
    assert printed.out.splitlines()[0] == said
    assert "out/good judges all but itself (the lowest bits per byte, 1.000), and out/poor (2.000)" in printed.out
    assert "WARNING" in printed.out and "wrote the stories of" not in printed.out
    written = (out / "good" / "samples.jsonl").read_bytes()
    code, printed = grade_py(judge=None)
    assert code == 0 and "no samples yet" not in printed.out
    sample_py = command_line(sample, tmp_path)
    assert sample_py("--model", "out/good", "--eval", 50, "--n", 1)[0] == 0  # finds nothing to do
    assert (out / "good" / "samples.jsonl").read_bytes() == written
    assert [path.name for path in out.glob("good/samples*")] == ["samples.jsonl"]


def test_one_run_judges_itself_and_is_told_what_that_is_worth(out, train, grade_py, tmp_path):
    train("alone", 1.0)
    code, printed = grade_py(judge=None)
    assert code == 0 and graded_by(tmp_path) == {"lm:out/alone": {"alone"}}
    assert "judges itself: its scores then say how sure it is of its own words, not how good they are" in printed.out
    assert "WARNING lm:out/alone wrote the stories of alone itself" in printed.out


def test_each_corpus_has_judges_of_its_own(out, train, data_dir, capsys):
    """Bits per byte of other texts do not compare; a model from elsewhere may have continued either corpus."""
    for name, bpb, data in (("a", 1.1, "x"), ("b", 0.9, "x"), ("c", 1.0, "x"), ("d", 0.1, "y")):
        train(name, bpb, data)
        write_samples(out / name, 2, 1)
    write_samples(out / "published", 2, 1)
    train("b/step-100", 0.01, "x")  # kept on the way: no run of its own
    runs, _ = read_runs([out])
    chosen = choose_judges(trained_runs([out]), runs)
    assert {judge.rpartition("/")[2]: {run.name for run in graded} for judge, graded in chosen.items()} == {
        "b": {"a", "c", "published"},
        "c": {"a", "b", "published"},
        "d": {"d", "published"},
    }
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_a_run_whose_corpus_is_gone_is_left_out(out, train, grade_py, tmp_path):
    train("gone", 0.5, data="gone")
    train("a", 1.0)
    train("b", 2.0, n_layer=3)
    code, printed = grade_py(judge=None)
    assert code == 0 and graded_by(tmp_path)["lm:out/a"] == {"b"}
    assert "out/gone: left out, as it has no samples and its corpus " in printed.out
    assert not (out / "gone" / "samples.jsonl").exists()


def test_small_corpora_and_other_data(out, train, grade_py, tmp_path):
    texts = [f"Tom had {i} balls. Then it was night." for i in range(60)]
    prepare(tmp_path / "data" / "few", ["tests"], texts[9:], texts[:9], vocab_size=300)
    train("a", 1.0, data="gone")
    code, printed = grade_py("--data", "data/few", judge=None)
    assert code == 0 and "--eval 8 --n 1" in printed.out
    assert len((out / "a" / "samples.jsonl").read_text().splitlines()) == 8


def test_a_dry_run_writes_nothing(out, train, grade_py):
    train("a", 1.0)
    train("b", 2.0)
    write_samples(out / "b", 3, 1)
    code, printed = grade_py("--dry_run", judge=None)
    assert code == 0 and "out/a: no samples yet" in printed.out and "stories to read" in printed.out
    assert not (out / "a" / "samples.jsonl").exists() and not (out / "b" / "grades.jsonl").exists()


def test_where_nothing_was_trained(out, grade_py, tmp_path):
    write_samples(out / "published", 3, 1)
    code, printed = grade_py(judge=None)
    assert code == 0 and "no run of train.py here that could judge by likelihood" in printed.out
    assert (tmp_path / "out" / "grades.csv").exists() and graded_by(tmp_path) == {}


@pytest.mark.parametrize("flags", ["--repeats=2", "--temperature=0", "--max_cost=1"])
def test_flags_of_a_judge_that_is_not_asked(out, grade_py, flags):
    code, printed = grade_py(flags, judge=None)
    assert code == 2 and "is for chat judges" in printed.err.splitlines()[-1]


# With an API


def test_an_endpoint_is_asked_too(out, train, grade_py, tmp_path, monkeypatch, api):
    monkeypatch.setenv("OPENAI_BASE_URL", api.url)
    train("a", 1.0)
    write_samples(out / "a", 3, 1)
    code, printed = grade_py(judge=None)
    assert code == 0 and graded_by(tmp_path) == {"lm:out/a": {"a"}, "gpt-4o-mini": {"a"}}
    said = f"also asks gpt-4o-mini at {api.url}, for at most $1, at $0.15 and $0.6 per million tokens in"
    assert printed.out.startswith(said)
    assert len(api.requests) == 3 + len({r["key"] for r in records(out / "a") if r["kind"][0] == "(" and r["base_url"]})
    assert "this call: $0.0" in printed.err


def test_its_budget_is_kept(out, train, grade_py, tmp_path, monkeypatch, api):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    write_samples(out / "a", 3, 1)
    code, printed = grade_py("--base_url", api.url, "--max_cost", "0.000001", judge=None)
    assert "for at most $1e-06" in printed.out and "stopped before --max_cost 1e-06" in code and api.requests == []
    assert (out / "grades.csv").exists()


def test_an_endpoint_that_fails_keeps_nobody_from_the_tables(out, train, grade_py, tmp_path, monkeypatch, api):
    monkeypatch.setenv("OPENAI_BASE_URL", api.url)
    api.fault = lambda number, request: ("status", 401)
    train("a", 1.0)
    write_samples(out / "a", 3, 1)
    code, printed = grade_py(judge=None)
    assert code.startswith("grade.py: gpt-4o-mini at ") and "\n" not in code
    assert graded_by(tmp_path) == {"lm:out/a": {"a"}}
