"""grade.py: from samples to the table, nothing paid twice, and its command line."""

import json

import pytest
from grade_fixtures import means, records, rows_of, wins, write_samples

from nanostories.grading.chat_judge import read_question
from nanostories.grading.groups import group_runs
from nanostories.grading.scores import TRUE_ENDING
from nanostories.grading.stories import read_runs
from nanostories.results import load, to_text


def test_runs_are_graded_and_compared(grade_py, api, tmp_path):
    out = tmp_path / "out"
    code, printed = grade_py("--controls", "--price_in", "1", "--price_out", "2")
    # completions of both runs, and of each prompt four controls
    assert code == 0 and len(api.requests) == 2 * 5 * 2 + 4 * 5
    assert "WARNING consistency: rules cannot tell" in printed.out and "$0.0" in printed.err
    a, b, truth = [row for row in rows_of(out, "scores") if row["judge"] == "rules"]
    assert (a["run"], a["stories"], a["ungraded"]) == ("a", 10, 0)
    assert a["grammar"][1] <= a["grammar"][0] <= a["grammar"][2]
    assert truth["run"] == TRUE_ENDING and truth["stories"] == 5
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
    rest = [{k: v for k, v in x.items() if k not in ("messages", "at")} for x in api.requests]
    assert all(each == rest[0] for each in rest)
    (group,) = group_runs(read_runs([tmp_path / "out"])[0])
    stories = [story for kind in group.controls.values() for story in kind]
    spoiled = {read_question("ours").texts(story)[0] for story in stories}
    is_control = [text in spoiled for text in texts]
    assert sum(is_control) == 20 and sum(a != b for a, b in zip(is_control, is_control[1:])) > 10


@pytest.mark.parametrize("finished, words", [(True, 8), (False, 3)])
def test_where_completions_were_cut_long_true_endings_are_too(tmp_path, finished, words):
    write_samples(tmp_path / "a", 3, 1, reference=" one two three four five six seven eight")
    path = tmp_path / "a" / "samples/eval.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for i, row in enumerate(rows):
        row |= {"completion": " x y z"[: 4 + 2 * i], "finished": finished or i > 0}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (group,) = group_runs(read_runs([tmp_path])[0])
    assert [len(x.completion.split()) for x in group.controls[TRUE_ENDING]] == [words] * 3


def test_nothing_is_asked_twice(grade_py, api, tmp_path):
    assert grade_py("--controls")[0] == 0
    asked = len(api.requests)
    before = means(tmp_path / "out")
    code, printed = grade_py("--controls")
    assert code == 0 and len(api.requests) == asked
    assert means(tmp_path / "out") == before
    assert (
        grade_py("out/b", "--controls")[0] == 0 and len(api.requests) == asked
    )  # nor with one run alone
    (tmp_path / "out" / "grades.jsonl").replace(tmp_path / "out" / "a" / "grades.jsonl")
    assert (
        grade_py("out/b", "--controls")[0] == 0 and len(api.requests) == asked
    )  # nor where another has it
    write_samples(tmp_path / "out" / "c", 5, 2)
    assert grade_py("out/c", "--controls")[0] == 0 and len(api.requests) == asked + 10
    assert grade_py("--controls")[0] == 0 and len(api.requests) == asked + 10


def test_only_the_first_prompts_are_graded(grade_py, api, tmp_path):
    assert grade_py("--prompts", "2")[0] == 0 and len(api.requests) == 2 * 2 * 2
    assert all(row["stories"] <= 4 for row in rows_of(tmp_path / "out", "scores"))


@pytest.mark.parametrize("finished, compared", [(True, True), (False, False)])
def test_a_limit_that_cut_no_story_makes_no_difference(grade_py, tmp_path, finished, compared):
    write_samples(tmp_path / "out" / "b", 12, 1, max_new_tokens=200, finished=finished)
    write_samples(tmp_path / "out" / "a", 12, 1, finished=True)
    grade_py("--no_judge", judge="")
    pairs = {row["run"] for row in rows_of(tmp_path / "out", "differences")}
    assert ("a minus b" in pairs) == compared


def test_controls_that_were_graded_are_kept(grade_py, api, tmp_path):
    grade_py("--controls")
    tests = rows_of(tmp_path / "out", "controls")
    asked = len(api.requests)
    grade_py()
    assert rows_of(tmp_path / "out", "controls") == tests and len(api.requests) == asked


def test_another_set_has_grades_of_its_own(grade_py, tmp_path):
    """Its stories never mix with those of the evaluation."""
    out = tmp_path / "out"
    assert grade_py("--no_judge", judge=None)[0] == 0
    before = (out / "grades.json").read_bytes()
    write_samples(out / "a", 3, 1, before="Now ", name="beginnings")
    code, printed = grade_py("--set", "beginnings", "--no_judge", judge=None)
    assert code == 0 and "the set beginnings (runs: 1)" in printed.out
    result = load(out / "grades-beginnings.json")
    assert set(result.sources) == {"a/samples/beginnings.jsonl"}
    assert result.tables[0].rows[0]["stories"] == 3
    assert (out / "grades.json").read_bytes() == before
    code, _ = grade_py("--set", "train", "--no_judge", judge=None)
    assert "there: beginnings, eval" in code


def test_what_changed_is_graded_again_and_no_more(grade_py, api, tmp_path):
    assert grade_py()[0] == 0
    assert len(api.requests) == 20
    rows = (tmp_path / "out" / "a" / "samples/eval.jsonl").read_text().splitlines()
    changed = json.loads(rows[3]) | dict(completion=" was another one.")
    (tmp_path / "out" / "a" / "samples/eval.jsonl").write_text(
        "\n".join([*rows[:3], json.dumps(changed), *rows[4:]]) + "\n"
    )
    assert grade_py()[0] == 0 and len(api.requests) == 21
    assert grade_py("--repeats", "2")[0] == 0 and len(api.requests) == 41
    assert grade_py(judge="other")[0] == 0 and len(api.requests) == 61
    assert grade_py("--extra", '{"temperature": 0}')[0] == 0 and len(api.requests) == 81
    assert api.requests[-1]["temperature"] == 0 and "temperature" not in api.requests[0]


def test_the_mean_is_that_of_the_replies(grade_py, api, tmp_path):
    code, printed = grade_py("out/a", "--judge", "first", judge="second")
    assert code == 0 and len(api.requests) == 20
    by_hand = [
        json.loads(r["text"])["grammar"]
        for r in records(tmp_path / "out" / "a")
        if r["judge"] == "first"
    ]
    assert means(tmp_path / "out" / "a")["first", "a", "grammar"] == pytest.approx(
        sum(by_hand) / 10
    )


def test_how_instructions_were_followed_is_graded(grade_py, tmp_path):
    things = "drum bird cake kite lamp frog moon ship tree ring door shoe fish coat".split()
    rows = []
    for i, thing in enumerate(things):
        story = f"\n\nTom sat. He liked the {thing} all day."
        row = {"prompt_index": i, "sample_index": 0, "finished": True, "reference": story}
        row |= {"completion": f"{story} It was late.", "instruction": {"words": [thing]}}
        rows.append(json.dumps(row | {"prompt": f"Words: {thing}\nStory:"}) + "\n")
    (tmp_path / "out" / "a" / "samples/eval.jsonl").write_text("".join(rows))
    code, printed = grade_py("out/a", "--controls")
    assert code == 0 and "instructions: rules cannot tell" not in printed.out
    assert wins(tmp_path / "out" / "a")["rules", "(another ending)", "instructions"] == 1


def test_a_chat_judge_is_not_compared_by_its_own_grades(grade_py, tmp_path):
    path = tmp_path / "out" / "a" / "samples/eval.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(row | {"model": "api:rules"}) + "\n" for row in rows))
    code, printed = grade_py("--controls")
    assert code == 0 and "rules wrote the stories of a" in printed.out
    differences = rows_of(tmp_path / "out", "differences")
    assert "a minus b" not in [row["run"] for row in differences if row["judge"] == "rules"]


def test_only_the_named_runs_are_graded_wherever_the_result_goes(grade_py, api, tmp_path):
    assert grade_py("out/a", "--out", "out")[0] == 0
    assert len(api.requests) == 10
    runs = {row["run"] for row in rows_of(tmp_path / "out", "scores")}
    assert "a" in runs and "b" not in runs


def test_questions_are_judges_of_their_own(grade_py, api, tmp_path):
    code, printed = grade_py("out/a", "--question", "scores", "paper", "ours")
    assert code == 0 and len(api.requests) == 10 * (1 + 2 + 1)
    second = [request["messages"] for request in api.requests if len(request["messages"]) == 3]
    assert len(second) == 10
    assert all(m[1]["role"] == "assistant" and m[1]["content"] for m in second)
    found = means(tmp_path / "out" / "a")
    names = {}
    for judge, _, name in found:
        names.setdefault(judge, set()).add(name)
    graded = {"grammar", "creativity", "consistency"}
    assert names["rules"] == graded | {"plot", "age"}
    assert names["rules (paper)"] == graded | {"age"}
    assert names["rules (scores)"] == graded
    # the judge grades the text, whatever the form
    assert len({found[judge, "a", "grammar"] for judge in names if judge}) == 1


def test_a_question_of_ones_own_and_its_scores(grade_py, api, tmp_path):
    """The same scores as another question's are a judge's of its own; what is asked already costs
    nothing."""
    mine = "Below.\n----\n{beginning} ***{completion}\n----\nAn array: [GRAMMAR, PLOT]"
    (tmp_path / "mine.txt").write_text(f"scores: grammar, how it moves\n{mine}")
    (tmp_path / "bare.txt").write_text(mine)
    questions = ("--question", "ours", "mine.txt", "bare.txt")
    code, printed = grade_py(*questions, "--controls")
    assert code == 0 and len(api.requests) == 80  # mine and bare ask the same
    found = means(tmp_path / "out")
    assert found["rules (mine.txt)", "a", "grammar"] == found["rules", "a", "grammar"]
    own = found["rules (mine.txt)", "a", "how it moves"]
    assert own == found["rules (bare.txt)", "a", "score 2"]
    assert ("rules (mine.txt)", "(cut off)", "grammar") in wins(tmp_path / "out")
    (tmp_path / "mine.txt").write_text("Well? " + mine)
    assert grade_py("--question", "mine.txt")[0] == 0 and len(api.requests) == 100


def test_runs_that_continue_other_prompts_are_not_compared(grade_py, tmp_path):
    write_samples(tmp_path / "out" / "z", 5, 2, before="Now ")
    assert grade_py("--no_judge", judge=None)[0] == 0
    truths = [row for row in rows_of(tmp_path / "out", "scores") if row["run"] == TRUE_ENDING]
    assert len(truths) == 2
    assert {row["run"] for row in rows_of(tmp_path / "out", "differences")} == {"a minus b"}


def test_runs_of_the_same_name_are_told_apart(grade_py, tmp_path):
    for name in "ab":
        write_samples(tmp_path / "out" / name / "step-9", 5, 2)
    code, _ = grade_py("out/a/step-9", "out/b/step-9", "--no_judge", judge=None)
    runs = [row["run"] for row in rows_of(tmp_path / "out", "scores")]
    assert code == 0 and runs == ["a/step-9", "b/step-9", TRUE_ENDING]


# The command line


def test_a_dry_run_asks_nothing_and_needs_no_key(grade_py, api, tmp_path, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY")
    prices = ("--price_in", "1", "--price_out", "2")
    code, printed = grade_py("--controls", "--dry_run", "--question", "ours", "paper", *prices)
    assert code == 0 and api.requests == [] and not (tmp_path / "out" / "grades.json").exists()
    assert "40 requests to http://127.0.0.1" in printed.out and "80 requests to" in printed.out
    assert printed.out.count("in all about $0.0") == 1
    flags = ("--dry_run", "--max_cost", "0.0001", *prices)
    assert "is too little: --prompts N" in grade_py(*flags)[1].out
    assert grade_py("--controls", "--concurrency", "1")[0] == 0
    assert api.requests[0]["messages"][0]["content"] in printed.out
    assert "nothing to ask" in grade_py("--controls", "--dry_run")[1].out


@pytest.mark.parametrize(
    "arguments, word",
    [
        (("out", "--judge", "x", "--no_judge"), "not allowed with"),
        (("out", "--judge", "out/a"), "--judge lm:out/a"),
        (("out", "--judge", "lm:api:x"), "--judge x"),
        (("out", "--judge", "x", "--question", "none.txt"), "none.txt"),
        (("out", "--judge", "x", "--max_cost", "1"), "--price_in"),
        (("nowhere", "--no_judge"), "nowhere"),
        (("odd", "--no_judge"), "odd/samples/eval.jsonl"),
        (("plain", "--judge", "x", "--controls"), "--controls"),
        (("out", "--judge", "x"), "set OPENAI_API_KEY"),
    ],
)
def test_mistakes_are_named_in_one_line(grade_py, tmp_path, monkeypatch, arguments, word):
    monkeypatch.delenv("OPENAI_API_KEY")
    (tmp_path / "odd" / "samples").mkdir(parents=True)
    (tmp_path / "odd" / "samples/eval.jsonl").write_text('{"prompt_index": 0, "sample_index": 0}\n')
    write_samples(tmp_path / "plain", 2, 1, reference=None)
    code, printed = grade_py(*arguments, judge=None)
    complaint = code if isinstance(code, str) else printed.err.splitlines()[-1]
    assert code and word in complaint and "\n" not in complaint


def test_without_a_judge(grade_py, api, tmp_path):
    """An empty completion has no repetition, and leaves the others their figures."""
    write_samples(tmp_path / "out" / "b", 5, 2, completion="")
    code, printed = grade_py("--no_judge", judge=None)
    found = means(tmp_path / "out")
    assert code == 0 and api.requests == []
    assert {judge for judge, *_ in found} == {""} and found["", "b", "words"] == 0
    assert ("", "a", "repeated") in found and ("", "b", "repeated") not in found
