"""grade.py: from samples to the table, nothing paid twice, and its command line."""

import collections
import itertools
import json
import operator
import re

import pytest
from grade_fixtures import means, records, rows_of, wins, write_samples

from nanostories.corpus.tokenizer import gpt2
from nanostories.generation.samples_file import read_rows, write_rows
from nanostories.grading.chat_judge import read_question
from nanostories.grading.comparisons import OWN_WORDS
from nanostories.grading.groups import group_runs
from nanostories.grading.scores import TRUE_ENDING
from nanostories.grading.stories import read_runs
from nanostories.results import load, to_text


def test_runs_are_graded_and_compared(graded, api, out):
    printed = graded("--controls")
    # completions of both runs, and of each prompt four controls
    assert len(api.requests) == 2 * 5 * 2 + 4 * 5
    assert "WARNING consistency: rules cannot tell" in printed
    rows = [row for row in rows_of(out, "scores") if row["judge"] == "rules"]
    n_stories = {row["run"]: (row["stories"], row["ungraded"]) for row in rows}
    assert n_stories == {"a": (10, 0), "b": (10, 0), TRUE_ENDING: (5, 0)}
    pairs = {(row["run"], row["score"]) for row in rows_of(out, "differences")}
    assert ("a minus b", "plot") in pairs and ("rules", "(cut off)", "grammar") in wins(out)
    assert means(out)["", "a", "ended"] == 0.5
    result = load(out / "grades.json")
    assert to_text(result) in printed
    assert set(result.sources) == {"a/samples/eval.jsonl", "b/samples/eval.jsonl"}


def test_the_judge_is_blind(graded, api, out):
    """No request says who wrote the completion, or whether it is a control; their order says
    nothing either."""
    graded("--controls", "--concurrency", "1")
    texts = [request["messages"][0]["content"] for request in api.requests]
    assert len(set(texts)) == 40
    telling = re.compile(r"out/[ab]|\(true|shuffled|control|model")
    assert not any(map(telling.search, texts))
    assert len({str(x | {"messages": 0, "at": 0}) for x in api.requests}) == 1
    (group,) = group_runs(read_runs([out])[0])
    controls = itertools.chain(*group.controls.values())
    spoiled = {read_question("ours").texts(story)[0] for story in controls}
    is_control = [text in spoiled for text in texts]
    assert sum(is_control) == 20 and sum(map(operator.ne, is_control, is_control[1:])) > 10


def test_nothing_is_asked_twice(graded, api, out):
    def n_asked(*arguments, **judge) -> int:
        api.requests.clear()
        graded(*arguments, "--controls", **judge)
        return len(api.requests)

    assert n_asked() == 40
    before = means(out) | wins(out)
    assert n_asked(judge="api:rules") == 0  # the name that sample.py has for it
    assert means(out) | wins(out) == before
    assert n_asked("out/b") == 0
    (out / "grades.jsonl").replace(out / "a" / "grades.jsonl")
    assert n_asked("out/b") == 0  # where another has it
    write_samples(out / "c", 5, 2)
    assert n_asked("out/c") == 10 and n_asked() == 0


def test_only_the_named_set_runs_and_first_prompts_are_graded(graded, grade_py, out):
    """Wherever the result goes."""
    write_samples(out / "a", 3, 1, before="Now ", name="beginnings")
    graded("--set", "beginnings", "--no_judge")
    result = load(out / "grades-beginnings.json")
    assert set(result.sources) == {"a/samples/beginnings.jsonl"}
    assert result.tables[0].rows[0]["stories"] == 3 and not (out / "grades.json").exists()
    assert "there: beginnings, eval" in grade_py("--set", "train", "--no_judge")[0]
    graded("out/a", "--out", "out", "--prompts", "2", "--no_judge")
    a, truth = rows_of(out, "scores")
    assert a["run"] == "a" and a["stories"] == 4 and truth["stories"] == 2


def test_what_changed_is_graded_again_and_no_more(graded, api, out):
    graded()
    path = out / "a" / "samples/eval.jsonl"
    rows = list(read_rows(path).values())
    rows[3]["completion"] = " was another one."
    write_rows(path, rows)
    for n, flags in ((21, ()), (41, ("--repeats", "2")), (61, ("--extra", '{"temperature": 0}'))):
        graded(*flags)
        assert len(api.requests) == n
    assert api.requests[-1]["temperature"] == 0


def test_how_instructions_were_followed_is_graded(graded, out):
    rows = []
    for i, thing in enumerate("drum bird cake kite lamp frog moon ship".split()):
        story = f"\n\nTom sat. He liked the {thing} all day."
        row = {"prompt_index": i, "sample_index": 0, "prompt": f"Words: {thing}\nStory:"}
        rows.append(row | {"completion": f"{story} It was late.", "reference": story})
    write_rows(out / "a" / "samples/eval.jsonl", rows)
    graded("out/a", "--controls")
    assert wins(out / "a")["rules", "(another ending)", "instructions"] == 1


def test_a_chat_judge_is_not_compared_by_its_own_grades(graded, out):
    write_samples(out / "a", 5, 2, model="api:rules")
    assert OWN_WORDS in graded()
    differences = rows_of(out, "differences")
    assert "a minus b" not in [row["run"] for row in differences if row["judge"] == "rules"]


def test_questions_are_judges_of_their_own(graded, api, out):
    mine = "Below.\n----\n{beginning} ***{completion}\n----\nAn array: [GRAMMAR, PLOT]"
    (out.parent / "mine.txt").write_text(f"scores: grammar, how it moves\n{mine}")
    (out.parent / "bare.txt").write_text(mine)
    graded("out/a", "--question", "scores", "paper", "ours", "mine.txt", "bare.txt")
    n_messages = collections.Counter(len(request["messages"]) for request in api.requests)
    assert n_messages == {1: 40, 3: 10}  # mine and bare ask the same
    found = means(out / "a")
    three = {"grammar", "creativity", "consistency"}
    for judge, names in (
        ("rules", three | {"plot", "age"}),
        ("rules (paper)", three | {"age"}),
        ("rules (scores)", three),
        ("rules (mine.txt)", {"grammar", "how it moves"}),
    ):
        assert {name for graded_by, _, name in found if graded_by == judge} == names
    replies = [json.loads(x["text"]) for x in records(out / "a") if x["judge"] == "rules"]
    by_hand = sum(reply["grammar"] for reply in replies) / 10
    assert found["rules", "a", "grammar"] == pytest.approx(by_hand)
    # the judge grades the text, whatever the form
    for form in ({"grammar", "score 1"}, {"how it moves", "score 2"}):
        assert len({found[key] for key in found if key[2] in form}) == 1


# The command line


def test_a_dry_run_asks_nothing_and_needs_no_key(graded, api, out, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY")
    prices = ("--dry_run", "--price_in", "1", "--price_out", "2")
    printed = graded("--controls", "--question", "ours", "paper", *prices)
    assert api.requests == [] and not (out / "grades.json").exists()
    assert "40 requests to http://127.0.0.1" in printed and "80 requests to" in printed
    assert printed.count("in all about $0.0") == 1
    (out.parent / "spent").write_text('{"reserved": 0, "dollars": 0.9999}\n')
    of_budget = graded("--max_cost", "1", "--spending", "spent", *prices)
    assert "$0.0001 of --max_cost is left" in of_budget
    graded("--controls")
    assert any(x["messages"][0]["content"] in printed for x in api.requests)
    assert "nothing to ask" in graded("--controls", "--dry_run")
    api.requests.clear()
    graded("--controls", "--question", "paper")
    tokens = 40 * 60  # a guess: the first replies, which the second turns send again
    for request in api.requests:
        for message in request["messages"]:
            if message["role"] != "assistant":
                tokens += len(gpt2().encode(message["content"]))
    assert f"80 requests to {api.url}, about {tokens:,} input tokens" in printed


@pytest.mark.parametrize(
    "line, word",
    [
        ("out --judge out/a", "--judge lm:out/a"),
        ("out --judge lm:api:x", "no log-likelihoods"),
        ("out --judge human:Mia", "--judge human makes the page"),
        ("out --judge x --question none.txt", "none.txt"),
        ("nowhere --no_judge", "nowhere"),
        ("odd --no_judge", "odd/samples/eval.jsonl"),
        ("plain --judge x --controls", "--controls"),
        ("out --judge x", "set JUDGE_API_KEY"),
    ],
)
def test_mistakes_are_named(grade_py, tmp_path, monkeypatch, line, word):
    monkeypatch.delenv("OPENAI_API_KEY")
    write_rows(tmp_path / "odd" / "samples/eval.jsonl", [{"prompt_index": 0}])
    write_samples(tmp_path / "plain", 2, 1, reference=None)
    assert word in grade_py(*line.split(), judge=None)[0]
