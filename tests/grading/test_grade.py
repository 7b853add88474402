"""grade.py: from samples to the table, and its command line."""

import csv
import json
from dataclasses import replace

import pytest
from grade_fixtures import KEY, graded, records, table, true_endings, write_samples
from sample_fixtures import heavy_imports

from grading import judge_questions
from grading.judge_controls import make_controls
from grading.judge_questions import PROTOCOLS
from grading.ledger import read_runs

# From samples to the table


def test_runs_are_graded_and_compared(grade_py, api, tmp_path):
    code, printed = grade_py("--controls", "--price_in", "1", "--price_out", "2", picture=True)
    assert code == 0
    assert len(api.requests) == 2 * 5 * 2 + 4 * 5  # completions of both runs, and of each prompt four controls
    assert "rules: 40 of 40 gradings" in printed.out and "WARNING consistency: rules cannot tell" in printed.out
    assert "this call: $0.0" in printed.err
    rows = {(row["kind"], row["judge"], row["subject"], row["figure"]): row for row in table(tmp_path)}
    mean = rows["mean", "rules", "a", "grammar"]
    assert float(mean["low"]) <= float(mean["value"]) <= float(mean["high"]) and mean["prompts"] == "5"
    by_hand = [r["scores"]["grammar"] for r in records(tmp_path / "out" / "a") if r["kind"] == "completion"]
    assert float(mean["value"]) == pytest.approx(sum(by_hand) / 10)
    assert ("difference", "rules", "a - b", "plot") in rows and ("paired_wins", "rules", "(cut off)", "grammar") in rows
    assert rows["mean", "", "a", "ended"]["value"] == "0.5"
    assert (tmp_path / "out" / "grades.png").stat().st_size > 1000
    record = records(tmp_path / "out" / "a")[0]
    assert json.loads(record["text"])["grammar"] == record["scores"]["grammar"] and record["tokens_in"] > 100
    assert sorted(path.name for path in (tmp_path / "out" / "a").iterdir()) == [
        ".grade.lock", "grades.jsonl", "samples.jsonl",
    ]  # fmt: skip


def test_the_judge_is_blind(grade_py, api):
    """No request says who wrote the completion, or whether it is a control; their order says nothing either."""
    grade_py("--controls", "--concurrency", "1")
    texts = [request["messages"][0]["content"] for request in api.requests]
    assert len(set(texts)) == 40
    for text in texts:
        assert not any(word in text for word in ("out/a", "out/b", "(true", "shuffled", "control", "model"))
    settings = {json.dumps({k: v for k, v in r.items() if k not in ("messages", "at")}) for r in api.requests}
    assert len(settings) == 1
    spoiled = {
        PROTOCOLS["ours"].text(story) for stories in make_controls(true_endings(5)).values() for story in stories
    }
    is_control = [text in spoiled for text in texts]
    assert sum(is_control) == 20 and sum(a != b for a, b in zip(is_control, is_control[1:])) > 10


def test_nothing_is_asked_twice(grade_py, api, tmp_path):
    assert grade_py("--controls")[0] == 0
    asked = len(api.requests)
    code, printed = grade_py("--controls")
    assert code == 0 and len(api.requests) == asked and "40 of 40" in printed.out
    assert grade_py("out/b", "--controls")[0] == 0 and len(api.requests) == asked  # nor with one run alone
    write_samples(tmp_path / "out" / "c", 5, 2)
    assert grade_py("--controls")[0] == 0 and len(api.requests) == asked + 10
    assert grade_py("out/c", "--controls")[0] == 0 and len(api.requests) == asked + 10  # its controls were shared
    assert grade_py("--no_judge", judge=None)[0] == 0
    assert set(graded(tmp_path).values()) == {1}


def test_what_changed_is_graded_again_and_no_more(grade_py, api, tmp_path, monkeypatch):
    assert grade_py()[0] == 0
    assert len(api.requests) == 20
    rows = (tmp_path / "out" / "a" / "samples.jsonl").read_text().splitlines()
    changed = json.loads(rows[3]) | dict(completion=" was another one.")
    (tmp_path / "out" / "a" / "samples.jsonl").write_text("\n".join([*rows[:3], json.dumps(changed), *rows[4:]]) + "\n")
    assert grade_py()[0] == 0 and len(api.requests) == 21
    assert grade_py("--repeats", "2")[0] == 0 and len(api.requests) == 41
    assert grade_py(judge="other")[0] == 0 and len(api.requests) == 61
    assert grade_py("--temperature", "0")[0] == 0 and len(api.requests) == 81
    assert api.requests[-1]["temperature"] == 0 and "temperature" not in api.requests[0]
    monkeypatch.setitem(PROTOCOLS, "ours", replace(PROTOCOLS["ours"], turns=("Well?\n" + judge_questions.OURS,)))
    assert grade_py()[0] == 0 and len(api.requests) == 101


def test_several_judges_and_their_agreement(grade_py, api, tmp_path):
    code, printed = grade_py("--judge", "first", judge="second")
    assert code == 0 and len(api.requests) == 40
    assert "Agreement of the judges: rank correlation" in printed.out
    rows = [row for row in table(tmp_path) if row["kind"] == "spearman"]
    assert {row["subject"] for row in rows} == {"first, second"} and float(rows[0]["value"]) == pytest.approx(1)


def test_instructions_are_graded_where_there_are_any(grade_py, api, tmp_path):
    write_samples(tmp_path / "out" / "b", 5, 2, instruction=dict(words=["cat"]))
    says = json.dumps(dict(grammar=8, creativity=7, consistency=9, plot=6, age_group="C", instructions=2))
    api.fault = lambda number, request: ("say", says)
    assert grade_py()[0] == 0
    rows = [row for row in table(tmp_path) if row["figure"] == "instructions" and row["kind"] == "mean"]
    assert [(row["subject"], float(row["value"])) for row in rows] == [("b", 2.0)]


# The command line


def test_without_a_judge(grade_py, api, tmp_path):
    code, printed = grade_py("--no_judge", judge=None, picture=True)
    assert code == 0 and api.requests == [] and (tmp_path / "out" / "grades.png").stat().st_size > 1000
    assert "(true ending)" in printed.out and "ended %" in printed.out
    assert {row["judge"] for row in table(tmp_path)} == {""}
    assert not (tmp_path / "out" / "a" / "grades.jsonl").exists()


@pytest.mark.parametrize("temperature", [(), ("--temperature", "0.7")])
def test_without_a_judge_what_was_paid_for_stays_in_the_table(grade_py, api, tmp_path, temperature):
    assert grade_py("--controls", "--repeats", "2", *temperature)[0] == 0
    before, asked = table(tmp_path), len(api.requests)
    code, printed = grade_py("--no_judge", judge=None)
    assert code == 0 and "rules: 80 of 80 gradings, as recorded earlier" in printed.out
    assert sorted(map(str, table(tmp_path))) == sorted(map(str, before)) and len(api.requests) == asked
    assert grade_py(judge="another")[0] == 0  # nor does another judge drop them
    assert all(row in table(tmp_path) for row in before)
    write_samples(tmp_path / "out" / "a", 5, 2, seed=1)  # other completions, which it has not seen
    assert grade_py("out/a", "--no_judge", judge=None)[0] == 0
    with (tmp_path / "out" / "a" / "grades.csv").open(newline="") as file:
        assert not any(row["subject"] == "a" and row["judge"] for row in csv.DictReader(file))


def test_runs_of_one_name_stay_apart(grade_py, tmp_path):
    for run in ("x", "x/x", "y/x"):
        write_samples(tmp_path / "out" / run, 3, 1)
    for directories, names in (
        (("out/x", "out/y/x"), {"x", "x/x", "y/x"}),
        (("out/x",), {".", "x"}),
        (("out/y/x",), {"x"}),
    ):
        runs, common = read_runs([tmp_path / directory for directory in directories])
        assert {run.name for run in runs} == names and len(runs) == len(names)
    assert grade_py("out/x", "--no_judge", judge=None)[0] == 0
    with (tmp_path / "out" / "x" / "grades.csv").open(newline="") as file:
        subjects = [row["subject"] for row in csv.DictReader(file) if row["figure"] == "loss"]
    assert sorted(subjects) == [".", "x"]


def test_words_unknown_to_the_corpus(grade_py, data_dir, tmp_path):
    (tmp_path / "out" / "a" / "config.json").write_text(json.dumps(dict(data_dir=str(data_dir), data="tiny")))
    (tmp_path / "out" / "b" / "config.json").write_text(json.dumps(dict(data_dir="data", data="gone")))
    (tmp_path / "out" / "a" / "log.csv").write_text("step,val_loss,bpb\n10,2.5,0.9\n")
    code, printed = grade_py("--no_judge", judge=None)
    assert code == 0 and "data/gone: no such corpus here" in printed.out
    found = {(row["subject"], row["figure"]): row["value"] for row in table(tmp_path)}
    assert float(found["a", "unknown"]) > 0.3 and ("b", "unknown") not in found
    assert found["a", "loss"] == "2.5" and found["b", "loss"] == ""
    assert grade_py("--no_judge", "--data", str(data_dir / "tiny"), judge=None)[0] == 0
    assert ("b", "unknown") in {(row["subject"], row["figure"]) for row in table(tmp_path)}


def test_a_corpus_that_is_none_is_noticed_before_the_judge_is_paid(grade_py, api):
    code, _ = grade_py("--data", "nowhere")
    assert code.startswith("grade.py: nowhere/meta.json: cannot be read") and api.requests == []


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("out", "--judge", "x", "--no_judge"), "give either --judge MODEL or --no_judge"),
        (("out", "--judge", "lm:x", "--repeats", "2"), "--repeats is for chat judges"),
        (("out", "--judge", "lm:x", "--temperature", "0"), "--temperature is for chat judges"),
        (("out", "--judge", "lm:x"), "grade.py: x: no such checkpoint"),
        (("out", "--judge", "lm:api:x"), "lm:api:x: an endpoint gives no likelihoods; name it as --judge x"),
        (("out", "--judge", "x", "--max_cost", "1"), "--max_cost needs --price_in and --price_out"),
        (("out", "--judge", "x", "--price_in", "1"), "--price_in and --price_out belong together"),
        (("out", "--judge", "x", "--repeats", "0"), "--repeats must be at least 1, not 0"),
        (("out", "--judge", "x", "--rate", "0"), "--rate must be above 0"),
        (("nowhere", "--no_judge"), "grade.py: nowhere: no such directory"),
        (("empty", "--no_judge"), "grade.py: empty: no samples.jsonl below; `python sample.py --eval 50` writes one"),
        (("odd", "--no_judge"), "odd/samples.jsonl: its lines are not the prompts and completions"),
        (("plain", "--judge", "x", "--controls"), "--controls needs true endings"),
        (("out", "--judge", "x"), "OPENAI_API_KEY is not set"),
    ],
)
def test_mistakes_are_named_in_one_line(grade_py, tmp_path, monkeypatch, arguments, message):
    monkeypatch.delenv("OPENAI_API_KEY")
    (tmp_path / "empty").mkdir()
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "samples.jsonl").write_text('{"prompt_index": 0, "sample_index": 0}\n')
    write_samples(tmp_path / "plain", 2, 1, reference=None)
    code, printed = grade_py(*arguments, judge=None)
    complaint = code if isinstance(code, str) else printed.err.splitlines()[-1]
    assert message in complaint and "\n" not in complaint


def test_a_key_that_is_none(grade_py, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-two words")
    assert "copy it again" in grade_py()[0]
    monkeypatch.setenv("OPENAI_API_KEY", KEY + "\n")
    assert grade_py()[0] == 0


def test_openai_is_imported_only_where_a_judge_is_asked(tmp_path):
    write_samples(tmp_path / "out" / "a", 2, 1)
    assert heavy_imports(tmp_path, "grade.py", "--help") == set()
    assert heavy_imports(tmp_path, "grade.py", "out", "--no_judge") <= {"torch"}
    assert (tmp_path / "out" / "grades.csv").exists()


def test_hyphens_in_flags_are_understood(grade_py):
    assert grade_py("--no-judge", judge=None)[0] == 0
    assert "--price_in and --price_out belong together" in grade_py("--price-in=1")[1].err


def test_tables_as_markdown(grade_py):
    code, printed = grade_py("--controls", "--markdown")
    tables = [part for part in printed.out.split("\n\n") if part.startswith("|")]
    assert code == 0 and len(tables) == 3 and all(part.splitlines()[1].startswith("| --- |") for part in tables)
