"""grade.py: from samples to the table, nothing paid twice, and its command line."""

import json

import pytest
from grade_fixtures import means, records, table, write_samples

from nanostories.grading.chat_judge import read_question
from nanostories.grading.controls import make_controls
from nanostories.grading.stories import endings_by_text, read_runs


def test_runs_are_graded_and_compared(grade_py, api, tmp_path, monkeypatch):
    out = tmp_path / "out"
    drawn = []
    monkeypatch.setattr(
        "nanostories.figures.save_figure", lambda figure, path: drawn.append(path.name)
    )
    code, printed = grade_py("--controls", "--price_in", "1", "--price_out", "2")
    assert code == 0 and drawn == ["grades.png"]
    assert (
        len(api.requests) == 2 * 5 * 2 + 4 * 5
    )  # completions of both runs, and of each prompt four controls
    assert (
        "40 of 40 gradings" in printed.out
        and "WARNING consistency: rules cannot tell" in printed.out
    )
    assert "$0.0" in printed.err
    rows = {(row["kind"], row["judge"], row["subject"], row["figure"]): row for row in table(out)}
    mean = rows["mean", "rules", "a", "grammar"]
    assert (
        float(mean["low"]) <= float(mean["value"]) <= float(mean["high"]) and mean["prompts"] == "5"
    )
    assert ("difference", "rules", "a - b", "plot") in rows and (
        "paired_wins",
        "rules",
        "(cut off)",
        "grammar",
    ) in rows
    assert rows["mean", "", "a", "ended"]["value"] == "0.5"
    said = printed.out.partition("\nwrote")[0]
    assert (out / "grades.md").read_text().startswith(said) and "## Summary" in said


def test_the_judge_is_blind(grade_py, api, tmp_path):
    """No request says who wrote the completion, or whether it is a control; their order says
    nothing either."""
    grade_py("--controls", "--concurrency", "1")
    texts = [request["messages"][0]["content"] for request in api.requests]
    assert len(set(texts)) == 40
    telling = ("out/a", "out/b", "(true", "shuffled", "control", "model")
    assert not any(word in text for text in texts for word in telling)
    others = ("messages", "at")
    assert (
        len({json.dumps({k: v for k, v in r.items() if k not in others}) for r in api.requests})
        == 1
    )
    endings = endings_by_text(read_runs([tmp_path / "out"])[0])
    stories = [story for kind in make_controls(*endings).values() for story in kind]
    spoiled = {read_question("ours").texts(story)[0] for story in stories}
    is_control = [text in spoiled for text in texts]
    assert sum(is_control) == 20 and sum(a != b for a, b in zip(is_control, is_control[1:])) > 10


@pytest.mark.parametrize("finished, words", [(True, 8), (False, 3)])
def test_where_completions_were_cut_long_true_endings_are_too(tmp_path, finished, words):
    write_samples(tmp_path / "out" / "a", 3, 1)
    rows = [
        json.loads(line) for line in (tmp_path / "out/a/samples.jsonl").read_text().splitlines()
    ]
    rows = [
        row | dict(completion=" x y z"[: 4 + 2 * i], finished=finished or i > 0)
        for i, row in enumerate(rows)
    ]
    rows = [row | dict(reference=" one two three four five six seven eight") for row in rows]
    (tmp_path / "out/a/samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (endings,) = endings_by_text(read_runs([tmp_path / "out"])[0])
    assert [len(ending.completion.split()) for ending in endings] == [words] * 3


def test_a_run_with_a_shorter_context_is_named(grade_py, tmp_path):
    path = tmp_path / "out" / "a" / "samples.jsonl"
    rows = [
        json.loads(line) | dict(completion=" x", finished=False)
        for line in path.read_text().splitlines()
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "stories of a (at most 1 words)" in grade_py()[1].out


def test_nothing_is_asked_twice(grade_py, api, tmp_path):
    assert grade_py("--controls")[0] == 0
    asked, before = len(api.requests), table(tmp_path / "out")
    code, printed = grade_py("--controls")
    assert code == 0 and len(api.requests) == asked and "40 of 40" in printed.out
    assert table(tmp_path / "out") == before
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


def test_what_changed_is_graded_again_and_no_more(grade_py, api, tmp_path):
    assert grade_py()[0] == 0
    assert len(api.requests) == 20
    rows = (tmp_path / "out" / "a" / "samples.jsonl").read_text().splitlines()
    changed = json.loads(rows[3]) | dict(completion=" was another one.")
    (tmp_path / "out" / "a" / "samples.jsonl").write_text(
        "\n".join([*rows[:3], json.dumps(changed), *rows[4:]]) + "\n"
    )
    assert grade_py()[0] == 0 and len(api.requests) == 21
    assert grade_py("--repeats", "2")[0] == 0 and len(api.requests) == 41
    assert grade_py(judge="other")[0] == 0 and len(api.requests) == 61
    assert grade_py("--temperature", "0")[0] == 0 and len(api.requests) == 81
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
    rows = []
    for i, thing in enumerate(
        "drum bird cake kite lamp frog moon ship tree ring door shoe fish coat".split()
    ):
        story = f"\n\nTom sat. He liked the {thing} all day."
        asked = dict(
            prompt=f"Words: {thing}\nStory:", instruction=dict(words=[thing]), reference=story
        )
        rows.append(
            dict(prompt_index=i, sample_index=0, completion=f"{story} It was late.", finished=True)
            | asked
        )
    (tmp_path / "out" / "a" / "samples.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in rows)
    )
    code, printed = grade_py("out/a", "--controls")
    assert code == 0 and "instructions: rules cannot tell" not in printed.out
    assert (
        means(tmp_path / "out" / "a", "paired_wins")["rules", "(another ending)", "instructions"]
        == 1
    )


def test_protocols_are_judges_of_their_own(grade_py, api, tmp_path):
    code, printed = grade_py("out/a", "--protocol", "scores", "paper", "ours")
    assert code == 0 and len(api.requests) == 10 * (1 + 2 + 1)
    second = [request["messages"] for request in api.requests if len(request["messages"]) == 3]
    assert len(second) == 10 and all(
        m[1]["role"] == "assistant" and m[1]["content"] for m in second
    )
    found = means(tmp_path / "out" / "a")
    names = {
        judge: {f for j, _, f in found if j == judge}
        for judge in ("rules", "rules (paper)", "rules (scores)")
    }
    assert (
        names["rules"]
        == names["rules (paper)"]
        == {"grammar", "creativity", "consistency", "plot", "age"}
    )
    assert names["rules (scores)"] == {"grammar", "creativity", "consistency"}
    assert (
        len({found[judge, "a", "grammar"] for judge in names}) == 1
    )  # the judge grades the text, whatever the form


def test_a_question_of_ones_own_and_its_scores(grade_py, api, tmp_path):
    """The same scores as another question's are a judge's of its own; what is asked already costs
    nothing."""
    mine = "Below.\n----\n{beginning} ***{completion}\n----\nAn array: [GRAMMAR, PLOT]"
    (tmp_path / "mine.txt").write_text(f"scores: grammar, how it moves\n{mine}")
    (tmp_path / "bare.txt").write_text(mine)
    code, printed = grade_py(
        "--protocol", "ours", "--question", "mine.txt", "bare.txt", "--controls"
    )
    assert code == 0 and len(api.requests) == 80  # mine and bare ask the same
    found = means(tmp_path / "out")
    assert found["rules (mine.txt)", "a", "grammar"] == found["rules", "a", "grammar"]
    assert (
        found["rules (mine.txt)", "a", "how it moves"] == found["rules (bare.txt)", "a", "score 2"]
    )
    assert ("rules (mine.txt)", "(cut off)", "grammar") in means(tmp_path / "out", "paired_wins")
    schemas = ["response_format" in request for request in api.requests]
    assert sum(schemas) == 40  # an array has none
    assert grade_py("--controls", "--no_schema")[0] == 0 and len(api.requests) == 80
    (tmp_path / "mine.txt").write_text("Well? " + mine)
    assert grade_py("--question", "mine.txt")[0] == 0 and len(api.requests) == 100
    (tmp_path / "mine.txt").write_text("{completion}")
    code, _ = grade_py("--question", "mine.txt")
    assert (
        "mine.txt" in code
        and "{beginning}" in code
        and "\n" not in code
        and len(api.requests) == 100
    )


def test_runs_that_continue_other_prompts_are_not_compared(grade_py, tmp_path):
    write_samples(tmp_path / "out" / "z", 5, 2, before="Now ")
    assert "(true ending) for z" in grade_py("--no_judge", judge=None)[1].out
    assert {subject for _, subject, _ in means(tmp_path / "out", "difference")} == {"a - b"}


# Grades made elsewhere


def test_imported_gradings_are_a_judge_of_their_own(grade_py, api, tmp_path):
    lines = [
        f"{run},{i},{j},a teacher,{(i + j) % 11},{7.5 if run == 'a' else ''},C"
        for run in "ab"
        for i in range(5)
        for j in range(2)
    ]
    (tmp_path / "teacher.csv").write_text(
        "\n".join(["run,prompt,sample,judge,grammar,plot,age", *lines])
    )
    (tmp_path / "means.csv").write_text("run;judge;grammar\na;GPT-4;8.2\nb;GPT-4;6.2\n")
    code, printed = grade_py("--import", "teacher.csv", "means.csv", judge=None)
    assert code == 0 and api.requests == [] and "no controls came with its grades" in printed.out
    rows = [row for row in table(tmp_path / "out") if row["kind"] == "mean"]
    rows = {(row["judge"], row["subject"], row["figure"]): row for row in rows}
    mean = rows["a teacher (imported)", "a", "grammar"]
    assert float(mean["value"]) == pytest.approx(
        sum(i + j for i in range(5) for j in range(2)) / 10
    )
    assert (
        float(mean["low"]) < float(mean["value"]) < float(mean["high"]) and mean["prompts"] == "5"
    )
    assert rows["a teacher (imported)", "a", "age"]["value"] == "6.5"
    assert ("a teacher (imported)", "b", "plot") not in rows  # empty cells
    row = rows["GPT-4 (imported)", "a", "grammar"]
    assert (row["value"], row["low"], row["prompts"]) == ("8.2", "", "0")
    assert means(tmp_path / "out", "difference")["a teacher (imported)", "a - b", "grammar"] == 0


GOOD = "run,prompt,sample,judge,grammar\na,0,0,x,5\n"


@pytest.mark.parametrize(
    "text, message",
    [
        (GOOD + "c,0,0,x,5\n", "line 3"),
        (GOOD + "a,1,,x,5\n", "line 3"),
        (GOOD + "a,1,0,x,nan\n", "grammar is 'nan'"),
        (GOOD.replace("grammar", "gramar"), "gramar"),
    ],
)
def test_a_bad_line_of_an_import_is_named(grade_py, tmp_path, text, message):
    (tmp_path / "bad.csv").write_text(text)
    code, _ = grade_py("--import", "bad.csv", judge=None)
    assert code.startswith("grade.py: bad.csv") and message in code and "\n" not in code
    assert not (tmp_path / "out" / "grades.csv").exists()


# The command line


def test_a_dry_run_asks_nothing_and_needs_no_key(grade_py, api, tmp_path, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY")
    prices = ("--price_in", "1", "--price_out", "2")
    code, printed = grade_py("--controls", "--dry_run", "--protocol", "ours", "paper", *prices)
    assert code == 0 and api.requests == [] and not (tmp_path / "out" / "grades.csv").exists()
    assert "40 requests to http://127.0.0.1" in printed.out and "80 requests to" in printed.out
    assert printed.out.count("about $0.0") == 2
    assert grade_py("--controls", "--concurrency", "1")[0] == 0
    assert api.requests[0]["messages"][0]["content"] in printed.out
    assert "nothing to ask" in grade_py("--controls", "--dry_run")[1].out


@pytest.mark.parametrize(
    "arguments, word",
    [
        (("out", "--judge", "x", "--no_judge"), "not allowed with"),
        (("out", "--judge", "out/a"), "--judge lm:out/a"),
        (("out", "--judge", "lm:api:x"), "--judge x"),
        (("out", "--judge", "x", "--max_cost", "1"), "--price_in"),
        (("nowhere", "--no_judge"), "nowhere"),
        (("odd", "--no_judge"), "odd/samples.jsonl"),
        (("plain", "--judge", "x", "--controls"), "--controls"),
        (("out", "--judge", "x"), "OPENAI_API_KEY"),
    ],
)
def test_mistakes_are_named_in_one_line(grade_py, tmp_path, monkeypatch, arguments, word):
    monkeypatch.delenv("OPENAI_API_KEY")
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "samples.jsonl").write_text('{"prompt_index": 0, "sample_index": 0}\n')
    write_samples(tmp_path / "plain", 2, 1, reference=None)
    code, printed = grade_py(*arguments, judge=None)
    complaint = code if isinstance(code, str) else printed.err.splitlines()[-1]
    assert code and word in complaint and "\n" not in complaint


def test_without_a_judge(grade_py, api, tmp_path):
    """An empty completion has no repetition, and leaves the others their figures."""
    (tmp_path / "out" / "a" / "log.csv").write_text(
        "step,val_loss,bpb,tokens,seconds,done\n10,2.5,0.9,9,9,1.0\n"
    )
    write_samples(tmp_path / "out" / "b", 5, 2, completion="")
    code, printed = grade_py("--no_judge", judge=None)
    found = means(tmp_path / "out")
    assert code == 0 and api.requests == [] and "(true ending)" in printed.out
    assert (
        {judge for judge, *_ in found} == {""}
        and found["", "a", "bpb"] == 0.9
        and found["", "b", "words"] == 0
    )
    assert ("", "a", "repeated") in found and ("", "b", "repeated") not in found
