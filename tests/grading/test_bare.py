"""python grade.py out/, without a judge: samples are written, the best run judges, and the API within its budget."""

import json
import shutil
import subprocess
from types import SimpleNamespace

import pytest
from grade_fixtures import means, write_samples
from models_to_probe import random_model, save_run

from grading import judge_choice
from grading.judge_choice import choose_judges, trained_runs
from grading.stories import read_runs


@pytest.fixture
def out(tmp_path, monkeypatch, grade_py):
    """No key, and out/ is empty."""
    monkeypatch.delenv("OPENAI_API_KEY")
    shutil.rmtree(tmp_path / "out")
    return tmp_path / "out"


@pytest.fixture
def train(out, data_dir):
    """What train.py leaves of a run; with other shapes, its weights are others."""

    def train(name: str, bpb: float, data: str = "tiny", n: int = 3, **shape):
        where = dict(data_dir=str(data_dir), data=data)
        save_run(out / name, random_model(block_size=400, **shape), train_config=where)
        schedule = dict(max_steps=20, max_minutes=0, min_steps=0)
        (out / name / "config.json").write_text(json.dumps(where | schedule))
        rows = [f"10,{3 * bpb},{bpb},9,9", f"20,{9 * bpb},{3 * bpb},18,9"]
        (out / name / "log.csv").write_text("\n".join(["step,val_loss,bpb,tokens,tokens_per_s", *rows, ""]))
        if n:
            write_samples(out / name, n, 1)

    return train


def graded_by(out) -> dict[str, set[str]]:
    """judge -> the runs that it grades."""
    found = [(judge, run) for judge, run, _ in means(out) if judge and run[0] != "("]
    return {judge: {run for other, run in found if other == judge} for judge, _ in found}


def test_missing_samples_are_written_and_two_runs_judge_each_other(out, train, grade_py, monkeypatch):
    train("poor", 2.0)
    train("good", 1.0, n=0, n_layer=3)
    commands = []

    def sample(command):
        commands.append(command[2:])
        write_samples(out / "good", 3, 1)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(judge_choice, "subprocess", SimpleNamespace(run=sample))
    assert grade_py("--dry_run", judge=None)[0] == 0 and commands == []
    code, printed = grade_py(judge=None)
    assert code == 0 and commands == [["--model", "out/good", "--eval", "50", "--n", "1"]]
    assert graded_by(out) == {"lm:out/good": {"poor"}, "lm:out/poor": {"good"}}
    assert "1.000 bits per byte" in printed.out and "WARNING" in printed.out
    assert grade_py(judge=None)[0] == 0 and len(commands) == 1
    fails = SimpleNamespace(run=lambda command: subprocess.CompletedProcess([], 1))
    monkeypatch.setattr(judge_choice, "subprocess", fails)
    (out / "good" / "samples.jsonl").unlink()
    assert "sample.py" in grade_py(judge=None)[0]


def test_one_run_judges_itself_and_is_told_what_that_is_worth(out, train, grade_py):
    train("alone", 1.0)
    code, printed = grade_py(judge=None)
    assert code == 0 and graded_by(out) == {"lm:out/alone": {"alone"}}
    assert "out/alone judges itself" in printed.out


def test_each_corpus_has_judges_of_its_own(out, train, capsys):
    """Bits per byte of other texts do not compare; a model from elsewhere may have continued either corpus."""
    for name, bpb, data in (("a", 1.1, "x"), ("b", 0.9, "x"), ("c", 1.0, "x"), ("d", 0.1, "y")):
        train(name, bpb, data)
    write_samples(out / "c" / "temperature-0", 3, 1, seed=1)
    write_samples(out / "published", 2, 1)
    train("b/step-100", 0.01, "x", n=0)  # kept on the way: no run of its own
    chosen = choose_judges(trained_runs([out]), read_runs([out])[0])
    assert {judge.rpartition("/")[2]: {run.name for run in graded} for judge, graded in chosen.items()} == {
        "b": {"a", "c", "c/temperature-0", "published"},
        "c": {"a", "b", "published"},  # nor what it wrote at another temperature
        "d": {"d", "published"},
    }


def test_a_judge_reads_the_controls_of_the_runs_that_it_grades_alone(out, train, grade_py):
    train("a", 1.0)
    train("b", 1.0, data="other", n_layer=3)
    write_samples(out / "b", 3, 1, before="Now ")
    assert grade_py(judge=None)[0] == 0
    read = {(judge, subject) for judge, subject, _ in means(out) if judge and "true" in subject}
    assert read == {("lm:out/a", "(true ending) a"), ("lm:out/b", "(true ending) b")}


def test_a_run_whose_corpus_is_gone_is_left_out(out, train, grade_py):
    train("gone", 0.5, data="gone", n=0)
    train("a", 1.0)
    train("b", 2.0, n_layer=3)
    code, printed = grade_py(judge=None)
    assert code == 0 and graded_by(out)["lm:out/a"] == {"b"} and "out/gone: left out" in printed.out


def test_where_nothing_was_trained_no_api_is_asked(out, grade_py, api, monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", api.url)
    write_samples(out / "published", 3, 1)
    code, printed = grade_py(judge=None)
    assert code == 0 and "no run of train.py" in printed.out and graded_by(out) == {} and api.requests == []
