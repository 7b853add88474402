"""grade.py: from samples to the table, nothing paid twice, and its command line."""

import collections
import json

import pytest
from grade_fixtures import means, records, rows_of, wins, write_samples

from nanostories.generation.prompts import PIECE
from nanostories.generation.samples_file import read_rows, write_rows
from nanostories.grading.chat_judge import read_question
from nanostories.grading.comparisons import OWN_WORDS
from nanostories.grading.groups import group_runs
from nanostories.grading.scores import TRUE_ENDING
from nanostories.grading.stories import read_runs
from nanostories.results import load, to_text


def test_runs_are_graded_and_compared(grade_py, api, tmp_path):
    out = tmp_path / "out"
    code, printed = grade_py("--controls")
    # completions of both runs, and of each prompt four controls
    assert code == 0 and len(api.requests) == 2 * 5 * 2 + 4 * 5
    assert "WARNING consistency: rules cannot tell" in printed.out
    rows = [row for row in rows_of(out, "scores") if row["judge"] == "rules"]
    n_stories = {row["run"]: (row["stories"], row["ungraded"]) for row in rows}
    assert n_stories == {"a": (10, 0), "b": (10, 0), TRUE_ENDING: (5, 0)}
    pairs = {(row["run"], row["score"]) for row in rows_of(out, "differences")}
    assert ("a minus b", "plot") in pairs and ("rules", "(cut off)", "grammar") in wins(out)
    assert means(out)["", "a", "ended"] == 0.5
    result = load(out / "grades.json")
    assert to_text(result) in printed.out
    assert set(result.sources) == {"a/samples/eval.jsonl", "b/samples/eval.jsonl"}


def test_the_judge_is_blind(grade_py, api, tmp_path):
    """No request says who wrote the completion, or whether it is a control; their order says
    nothing either."""
    grade_py("--controls", "--concurrency", "1")
    texts = [request["messages"][0]["content"] for request in api.requests]
    assert len(set(texts)) == 40
    telling = ("out/a", "out/b", "(true", "shuffled", "control", "model")
    assert not any(word in text for text in texts for word in telling)
    assert len({str(x | {"messages": 0, "at": 0}) for x in api.requests}) == 1
    (group,) = group_runs(read_runs([tmp_path / "out"])[0])
    stories = [story for kind in group.controls.values() for story in kind]
    spoiled = {read_question("ours").texts(story)[0] for story in stories}
    is_control = [text in spoiled for text in texts]
    assert sum(is_control) == 20 and sum(a != b for a, b in zip(is_control, is_control[1:])) > 10


@pytest.mark.parametrize("facts, are_cut", [({"finished": True}, False), ({}, True)])
def test_where_completions_were_cut_long_true_endings_are_too(tmp_path, facts, are_cut):
    write_samples(tmp_path / "a", 3, 2, reference=" word" * 500, **facts)
    (group,) = group_runs(read_runs([tmp_path])[0])
    longest = max(len(PIECE.findall(story.completion)) for story in group.runs[0].stories)
    n_words = {len(story.completion.split()) for story in group.controls[TRUE_ENDING]}
    assert n_words == {longest if are_cut else 500}


def test_nothing_is_asked_twice(grade_py, api, tmp_path):
    out = tmp_path / "out"
    grade_py("--controls")
    asked = len(api.requests)
    before = means(out) | wins(out)
    # nor by the name that sample.py has for it
    assert grade_py("--controls", judge="api:rules")[0] == 0 and len(api.requests) == asked
    assert means(out) | wins(out) == before
    # nor with one run alone
    assert grade_py("out/b", "--controls")[0] == 0 and len(api.requests) == asked
    (out / "grades.jsonl").replace(out / "a" / "grades.jsonl")
    # nor where another has it
    assert grade_py("out/b", "--controls")[0] == 0 and len(api.requests) == asked
    write_samples(out / "c", 5, 2)
    assert grade_py("out/c", "--controls")[0] == 0 and len(api.requests) == asked + 10
    assert grade_py("--controls")[0] == 0 and len(api.requests) == asked + 10


@pytest.mark.parametrize("facts, compared", [({"finished": True}, True), ({}, False)])
def test_a_limit_that_cut_no_story_makes_no_difference(grade_py, tmp_path, facts, compared):
    write_samples(tmp_path / "out" / "b", 12, 2, max_new_tokens=200, **facts)
    write_samples(tmp_path / "out" / "a", 12, 2, finished=True)
    grade_py("--no_judge", judge="")
    pairs = {row["run"] for row in rows_of(tmp_path / "out", "differences")}
    assert ("a minus b" in pairs) == compared


def test_another_set_has_grades_of_its_own(grade_py, tmp_path):
    """Its stories never mix with those of the evaluation."""
    out = tmp_path / "out"
    write_samples(out / "a", 3, 1, before="Now ", name="beginnings")
    assert grade_py("--set", "beginnings", "--no_judge", judge=None)[0] == 0
    result = load(out / "grades-beginnings.json")
    assert set(result.sources) == {"a/samples/beginnings.jsonl"}
    assert result.tables[0].rows[0]["stories"] == 3 and not (out / "grades.json").exists()
    code, _ = grade_py("--set", "train", "--no_judge", judge=None)
    assert "there: beginnings, eval" in code


def test_what_changed_is_graded_again_and_no_more(grade_py, api, tmp_path):
    grade_py()
    path = tmp_path / "out" / "a" / "samples/eval.jsonl"
    rows = list(read_rows(path).values())
    rows[3]["completion"] = " was another one."
    write_rows(path, rows)
    assert grade_py()[0] == 0 and len(api.requests) == 21
    assert grade_py("--repeats", "2")[0] == 0 and len(api.requests) == 41
    assert grade_py("--extra", '{"temperature": 0}')[0] == 0 and len(api.requests) == 61
    assert api.requests[-1]["temperature"] == 0


def test_how_instructions_were_followed_is_graded(grade_py, tmp_path):
    rows = []
    for i, thing in enumerate("drum bird cake kite lamp frog moon ship".split()):
        story = f"\n\nTom sat. He liked the {thing} all day."
        row = {"prompt_index": i, "sample_index": 0, "finished": True, "reference": story}
        row |= {"completion": f"{story} It was late.", "instruction": {"words": [thing]}}
        rows.append(row | {"prompt": f"Words: {thing}\nStory:"})
    write_rows(tmp_path / "out" / "a" / "samples/eval.jsonl", rows)
    assert grade_py("out/a", "--controls")[0] == 0
    assert wins(tmp_path / "out" / "a")["rules", "(another ending)", "instructions"] == 1


def test_a_chat_judge_is_not_compared_by_its_own_grades(grade_py, tmp_path):
    write_samples(tmp_path / "out" / "a", 5, 2, model="api:rules")
    code, printed = grade_py()
    assert code == 0 and OWN_WORDS in printed.out
    differences = rows_of(tmp_path / "out", "differences")
    assert "a minus b" not in [row["run"] for row in differences if row["judge"] == "rules"]


def test_only_the_named_runs_and_first_prompts_are_graded(grade_py, tmp_path):
    """Wherever the result goes."""
    assert grade_py("out/a", "--out", "out", "--prompts", "2", "--no_judge", judge=None)[0] == 0
    a, truth = rows_of(tmp_path / "out", "scores")
    assert a["run"] == "a" and a["stories"] == 4 and truth["stories"] == 2


def test_questions_are_judges_of_their_own(grade_py, api, tmp_path):
    mine = "Below.\n----\n{beginning} ***{completion}\n----\nAn array: [GRAMMAR, PLOT]"
    (tmp_path / "mine.txt").write_text(f"scores: grammar, how it moves\n{mine}")
    (tmp_path / "bare.txt").write_text(mine)
    questions = ("scores", "paper", "ours", "mine.txt", "bare.txt")
    assert grade_py("out/a", "--question", *questions)[0] == 0
    n_messages = collections.Counter(len(request["messages"]) for request in api.requests)
    assert n_messages == {1: 40, 3: 10}  # mine and bare ask the same
    found = means(tmp_path / "out/a")
    names = collections.defaultdict(set)
    for judge, _, name in found:
        names[judge].add(name)
    graded = {"grammar", "creativity", "consistency"}
    assert names["rules"] == graded | {"plot", "age"}
    assert names["rules (paper)"] == graded | {"age"}
    assert names["rules (scores)"] == graded
    assert names["rules (mine.txt)"] == {"grammar", "how it moves"}
    replies = [json.loads(x["text"]) for x in records(tmp_path / "out/a") if x["judge"] == "rules"]
    by_hand = sum(reply["grammar"] for reply in replies) / 10
    assert found["rules", "a", "grammar"] == pytest.approx(by_hand)
    # the judge grades the text, whatever the form
    assert len({found[key] for key in found if key[2] in ("grammar", "score 1")}) == 1
    assert len({found[key] for key in found if key[2] in ("how it moves", "score 2")}) == 1


# The command line


def test_a_dry_run_asks_nothing_and_needs_no_key(grade_py, api, tmp_path, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY")
    prices = ("--price_in", "1", "--price_out", "2")
    code, printed = grade_py("--controls", "--dry_run", "--question", "ours", "paper", *prices)
    assert code == 0 and api.requests == [] and not (tmp_path / "out" / "grades.json").exists()
    assert "40 requests to http://127.0.0.1" in printed.out and "80 requests to" in printed.out
    assert printed.out.count("in all about $0.0") == 1
    (tmp_path / "spent").write_text('{"reserved": 0, "dollars": 0.9999}\n')
    flags = ("--dry_run", "--max_cost", "1", "--spending", "spent", *prices)
    assert "$0.0001 of --max_cost is left" in grade_py(*flags)[1].out
    grade_py("--controls")
    assert any(x["messages"][0]["content"] in printed.out for x in api.requests)
    assert "nothing to ask" in grade_py("--controls", "--dry_run")[1].out


@pytest.mark.parametrize(
    "arguments, word",
    [
        (("out", "--judge", "out/a"), "--judge lm:out/a"),
        (("out", "--judge", "lm:api:x"), "no log-likelihoods"),
        (("out", "--judge", "human:Mia"), "--judge human makes the page"),
        (("out", "--judge", "x", "--question", "none.txt"), "none.txt"),
        (("nowhere", "--no_judge"), "nowhere"),
        (("odd", "--no_judge"), "odd/samples/eval.jsonl"),
        (("plain", "--judge", "x", "--controls"), "--controls"),
        (("out", "--judge", "x"), "set JUDGE_API_KEY"),
    ],
)
def test_mistakes_are_named(grade_py, tmp_path, monkeypatch, arguments, word):
    monkeypatch.delenv("OPENAI_API_KEY")
    (tmp_path / "odd" / "samples").mkdir(parents=True)
    (tmp_path / "odd" / "samples/eval.jsonl").write_text('{"prompt_index": 0, "sample_index": 0}\n')
    write_samples(tmp_path / "plain", 2, 1, reference=None)
    assert word in grade_py(*arguments, judge=None)[0]


def test_without_a_judge(grade_py, api, tmp_path):
    """An empty completion has no repetition, and leaves the others their figures."""
    write_samples(tmp_path / "out" / "b", 5, 2, completion="")
    code, printed = grade_py("--no_judge", judge=None)
    found = means(tmp_path / "out")
    assert code == 0 and api.requests == []
    assert found["", "b", "words"] == 0
    assert ("", "a", "repeated") in found and ("", "b", "repeated") not in found
