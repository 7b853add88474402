"""judge_questions.py: what a judge is shown, in each of the three forms, and what becomes of its replies."""

import json

import pytest
from grade_fixtures import KEY, graded, records, table, write_samples

from grading.judge_questions import PROTOCOLS
from grading.judge_replies import read_reply
from grading.rubrics import SCORES
from grading.story import Story, key_of

OURS = PROTOCOLS["ours"]
STORY = Story("Once upon a time, a cat", " saw a dog. The end.")
TOLD = Story(STORY.prompt, STORY.completion, "Words: cat, dog, sing\nFeatures: BadEnding")
WHOLE = Story("", "\n\nA cat saw a dog. The end.", TOLD.instruction)


def question(story: Story) -> str:
    (text,) = OURS.questions(story)
    return text


def test_the_judge_sees_the_story_and_the_scores_it_is_asked_for():
    text = question(STORY)
    assert "\nOnce upon a time, a cat *** saw a dog. The end.\n" in text
    assert "Once upon a time, a cat ***s ran." in question(Story("Once upon a time, a cat", "s ran."))
    assert "instructions" not in text and "told" not in text
    assert all(f'"{name}"' in text for name in ("assessment", *SCORES, "age_group"))
    schema = OURS.response_format(STORY)["json_schema"]["schema"]
    assert schema["required"] == ["assessment", *SCORES, "age_group"]


def test_grades_of_earlier_versions_are_found_again():
    """By keys that the version before protocols made of the same stories."""
    keys = [
        key_of("j", "u", None, OURS.text(story), 0)
        for story in (STORY, Story(*list(vars(STORY).values())[:2], "Words: cat, dog, sing"))
    ]
    assert keys == [
        "1346c3e9f1074b5b1892d5702a67608faf5f4a4357eb63794e89582cdd21c5c7",
        "2d74bd9f72a922b2ae7a22212d15bb4a3085b78d49a7ef592c4d7ae706c82919",
    ]  # fmt: skip


@pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=PROTOCOLS)
def test_an_instruction_is_shown_and_graded_and_no_beginning_where_there_was_none(protocol):
    first, whole, without = (protocol.questions(story)[0] for story in (TOLD, WHOLE, Story("", "A cat.")))
    assert first.index("Features: BadEnding") < first.index("Once upon a time, a cat *** saw")
    assert whole.index("Features: BadEnding") < whole.index("\n----\nA cat saw a dog. The end.\n----\n")
    for text in (whole, without):
        assert "***" not in text and "beginning" not in text and "continuation" not in text
    assert "told" not in without
    said = "\n".join(protocol.questions(TOLD)).lower()
    assert "instructions" in said and "instructions" not in "\n".join(protocol.questions(STORY)).lower()
    assert protocol.names(TOLD) == [*protocol.names(STORY), "instructions"]


def test_the_forms_of_the_replies():
    assert (
        "Grammar: NUMBER/10, Creativity: NUMBER/10, Consistency: NUMBER/10, Plot"
        in PROTOCOLS["paper"].questions(STORY)[1]
    )
    assert PROTOCOLS["scores"].questions(STORY)[0].endswith("[GRAMMAR, CREATIVITY, CONSISTENCY]")
    names = PROTOCOLS["scores"].names(STORY)
    assert read_reply("[8, 7, 9]", names, has_age=False) == dict(grammar=8.0, creativity=7.0, consistency=9.0)
    with pytest.raises(ValueError, match="an array of 4, not of 3"):
        read_reply("[8, 7, 9, 6]", names, has_age=False)
    reply = "Grammar: 8/10, Creativity: 7/10, Consistency: 9/10, Plot: 6/10, Instructions: 3/10, Age group: E (10-12)"
    read = dict(grammar=8.0, creativity=7.0, consistency=9.0, plot=6.0, instructions=3.0, age=11.0)
    assert read_reply(reply, PROTOCOLS["paper"].names(TOLD)) == read
    with pytest.raises(ValueError, match="no instructions in it"):
        read_reply(reply.replace("Instructions: 3/10, ", ""), PROTOCOLS["paper"].names(TOLD))


def test_the_conversation():
    first, second = PROTOCOLS["paper"].questions(STORY)
    assert PROTOCOLS["paper"].messages(STORY, []) == [dict(role="user", content=first)]
    said = [("user", first), ("assistant", "Good."), ("user", second)]
    assert [(each["role"], each["content"]) for each in PROTOCOLS["paper"].messages(STORY, ["Good."])] == said


# In grade.py


def test_protocols_are_asked_apart(grade_py, api, tmp_path, tables_only):
    code, printed = grade_py("--protocol", "scores", "paper", "ours", "--controls")
    assert code == 0 and len(api.requests) == 40 * (1 + 2 + 1)
    forms = ["response_format" in request for request in api.requests]
    assert forms.count(True) == 40
    second = [request["messages"] for request in api.requests if len(request["messages"]) == 3]
    assert len(second) == 40 and all(
        messages[1]["role"] == "assistant" and messages[1]["content"] for messages in second
    )
    means = {
        (row["judge"], row["subject"], row["figure"]): row["value"] for row in table(tmp_path) if row["kind"] == "mean"
    }
    names = {judge: {figure for j, _, figure in means if j == judge} for judge in {judge for judge, *_ in means} - {""}}
    everything = {*SCORES, "age"}
    assert names == {
        "rules (protocol ours)": everything,
        "rules (protocol paper)": everything,
        "rules (protocol scores)": {"grammar", "creativity", "consistency"},
    }
    for figure in ("grammar", "consistency"):  # the judge grades the text, whatever the form
        assert len({means[f"rules (protocol {name})", "a", figure] for name in PROTOCOLS}) == 1
    asked = len(api.requests)
    code, printed = grade_py("--protocol", "paper", "--controls")
    assert (
        code == 0
        and len(api.requests) == asked
        and "rules (protocol scores): 40 of 40 gradings, as recorded earlier" in printed.out
    )
    assert grade_py("--no_judge", judge=None)[0] == 0 and len(api.requests) == asked


def test_a_conversation_that_was_interrupted_goes_on(grade_py, api, tmp_path):
    """The assessment was paid for; only the grades are asked for."""
    refused = ("status", 401, {}, "no such key")
    api.fault = lambda number, request: refused if len(request["messages"]) > 1 else None
    code, _ = grade_py("out/a", "--protocol", "paper", "--concurrency", "1")
    assert "no such key" in code
    kept = records(tmp_path / "out" / "a")
    assert kept and all(record["scores"] is None and record["turn"] == 0 for record in kept)
    api.fault, before = lambda number, request: None, len(api.requests)
    assert grade_py("out/a", "--protocol", "paper")[0] == 0
    assert len(api.requests) - before == 20 - len(kept)
    assert len(graded(tmp_path)) == 10
    said = {record["key"]: record["text"] for record in kept}
    for record in records(tmp_path / "out" / "a"):
        assert "turn" not in record or record["key"] not in said or record["text"] == said[record["key"]]


def test_grades_that_are_none_are_asked_for_again_but_not_the_assessment(grade_py, api, tmp_path):
    def fault(number, request):
        if len(request["messages"]) == 1:
            return ("say", "<think>Hm.</think>") if number == 1 else ("say", "<think>Hm.</think> Good.")
        return ("say", "I cannot say.") if not any(map(bool, later)) and not later.append(number) else None

    later = []
    api.fault = fault
    code, printed = grade_py("out/a", "--protocol", "paper", "--concurrency", "1")
    assert code == 0 and "rules (protocol paper): 10 of 10 gradings\n" in printed.out
    assert len(api.requests) == 22  # one empty assessment, one reply without grades
    assert {messages[1]["content"] for r in api.requests if len(messages := r["messages"]) == 3} == {"Good."}
    failures = [record["failure"] for record in records(tmp_path / "out" / "a") if record["failure"]]
    assert failures == ["its assessment is empty", "no grammar, creativity, consistency, plot in it"]


def test_a_dry_run_shows_every_question_and_its_cost(grade_py, api):
    prices = ("--price_in", "1000", "--price_out", "1000")
    code, printed = grade_py("--protocol", "ours", "paper", "scores", "--dry_run", *prices)
    assert code == 0 and api.requests == []
    lines = [line for line in printed.out.splitlines() if " requests to " in line]
    assert [line.partition(" requests to")[0] for line in lines] == [
        "20",
        "20 gradings by --protocol paper, 40",
        "20 gradings by --protocol scores, 20",
    ]
    assert printed.out.count("\n----\n\nAssess it") == printed.out.count("Now grade it") == 1
    assert '"content": "(its reply)"' in printed.out and KEY not in printed.out
    costs = [float(line.partition("about $")[2].partition(",")[0]) for line in lines]
    assert costs[1] > costs[0] > costs[2] > 0


THINGS = "drum bird cake kite lamp frog moon ship tree ring door shoe fish coat bell".split()


def test_instructions_are_judged_and_a_story_of_another_instruction_is_found_out(grade_py, api, tmp_path, tables_only):
    rows = []
    for i, thing in enumerate(THINGS):
        story = f"\n\nTom had a {thing}. He liked the {thing} all day. Then he slept."
        asked = dict(prompt=f"Words: {thing}\nStory:", instruction=dict(words=[thing]), reference=story)
        rows.append(dict(prompt_index=i, sample_index=0, completion=f"{story} It was late.", finished=True) | asked)
    for name in "ab":
        write_samples(tmp_path / "out" / name, 1, 1)
        (tmp_path / "out" / name / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, printed = grade_py("--controls")
    wins = {
        (row["subject"], row["figure"]): float(row["value"]) for row in table(tmp_path) if row["kind"] == "paired_wins"
    }
    assert code == 0 and wins["(another story)", "instructions"] == 1
    assert ("(another story)", "grammar") in wins
    assert "its scores of the models' instructions mean nothing" not in printed.out
    assert not any("***" in request["messages"][0]["content"] for request in api.requests)
