"""chat_judge.py: what a judge is shown, in each of the three forms, and nothing is read into a reply that it lacks."""

import json

import pytest

from grading.chat_judge import PROTOCOLS, ChatJudge, questions, read_reply
from grading.scores import AGE_GROUPS, AGES, CHAT
from grading.stories import Story

NAMES = ["grammar", "creativity", "consistency", "plot"]
STORY = Story("Once upon a time, a cat", " saw a dog. The end.")
TOLD = Story(STORY.prompt, STORY.completion, "Words: cat, dog, sing\nFeatures: BadEnding")
WHOLE = Story("", "\n\nA cat saw a dog. The end.", TOLD.instruction)
GOOD = dict(grammar=8, creativity=7, consistency=9, plot=6, age_group="C")
READ = dict(grammar=8.0, creativity=7.0, consistency=9.0, plot=6.0, age=6.5)


def test_the_judge_sees_the_story_and_the_scores_it_is_asked_for():
    (text,) = questions(PROTOCOLS["ours"], STORY)
    assert "\nOnce upon a time, a cat *** saw a dog. The end.\n" in text
    assert "instructions" not in text and "told" not in text
    assert all(f'"{name}"' in text for name in ("assessment", *NAMES, "age_group"))
    assert all(CHAT[name].about in text for name in NAMES)


@pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=PROTOCOLS)
def test_an_instruction_is_shown_and_graded_and_no_beginning_where_there_was_none(protocol):
    first, whole, without = (questions(protocol, story)[0] for story in (TOLD, WHOLE, Story("", "A cat.")))
    assert first.index("Features: BadEnding") < first.index("Once upon a time, a cat *** saw")
    assert whole.index("Features: BadEnding") < whole.index("\n----\nA cat saw a dog. The end.\n----\n")
    for text in (whole, without):
        assert "***" not in text and "beginning" not in text and "continuation" not in text
    said = "\n".join(questions(protocol, TOLD)).lower()
    assert "instructions" in said and "instructions" not in "\n".join(questions(protocol, STORY)).lower()
    assert protocol.names(TOLD) == [*protocol.names(STORY), "instructions"]


def test_the_key_is_the_whole_question():
    def keys(judge: ChatJudge) -> list[str]:
        story_and_repeat = ((STORY, 0), (STORY, 1), (TOLD, 0))
        return [judge.key(judge.look_up(story, repeat, {})[1], repeat) for story, repeat in story_and_repeat]

    judges = [ChatJudge("j", "u"), ChatJudge("k", "u"), ChatJudge("j", "v"), ChatJudge("j", "u", temperature=0.0)]
    every = [key for judge in [*judges, ChatJudge("j", "u", "paper")] for key in keys(judge)]
    assert len(set(every)) == len(every)
    assert keys(ChatJudge("j", "u", max_tokens=7)) == keys(judges[0])  # the question is the same


def test_a_conversation_is_looked_up_turn_by_turn():
    judge, cache = ChatJudge("j", "u", "paper"), {}
    first, second = questions(PROTOCOLS["paper"], STORY)
    grades, messages, _ = judge.look_up(STORY, 0, cache)
    assert grades is None and [m["content"] for m in messages] == [first]
    cache[judge.key(messages, 0)] = dict(text="<think>Hm.</think> Good.", finish_reason="stop")
    grades, messages, _ = judge.look_up(STORY, 0, cache)
    assert grades is None and [m["content"] for m in messages] == [first, "Good.", second]
    cache[judge.key(messages, 0)] = dict(text=json.dumps(GOOD), finish_reason="length")
    assert "--max_tokens" in judge.look_up(STORY, 0, cache)[2]
    cache[judge.key(messages, 0)] = dict(text=json.dumps(GOOD), finish_reason="stop")
    assert judge.look_up(STORY, 0, cache)[0] == READ


@pytest.mark.parametrize(
    "text",
    [
        "```json\n" + json.dumps(GOOD) + "\n```",
        "Here you are: " + json.dumps(GOOD) + " I hope that helps.",
        "<think>Grammar: 3/10? {no} [1, 2]</think>\n" + json.dumps(GOOD),
        json.dumps({key.title().replace("_", " "): str(value) for key, value in GOOD.items()}),
        json.dumps(GOOD | dict(grammar="8/10", plot="6 / 10", creativity=7.0)),
        json.dumps(GOOD | dict(assessment="Good,\nor\tso.", other=[1])).replace("\\n", "\n"),
        json.dumps(GOOD | dict(age_group="C: 6-7")),
    ],
)
def test_objects_are_read(text):
    assert read_reply(text, NAMES) == READ


def test_arrays_are_read():
    without_age = {name: READ[name] for name in NAMES}
    for text in ("I say [8, 7, 9, 6].", "<think>[1, 2]</think>[8.0,7,9,6]"):
        assert read_reply(text, NAMES) == without_age
    assert read_reply("[8, 7, 9]", NAMES[:3]) == dict(grammar=8.0, creativity=7.0, consistency=9.0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Grammar: 8/10, Creativity: 7/10, Consistency: 9/10, Plot: 6/10",  # neither form was asked for
        "[8, 7, 9]",
        "[8, 7, 9, 6, 5]",
        "[8, 7, 9, 6] or [8, 7, 9, 5]",
        "[8, 7, 9, 11]",
        "[8, 7, 9, .]",
        "{" * 100_000,
        json.dumps(GOOD)[:-8],
        json.dumps({key: value for key, value in GOOD.items() if key != "plot"}),
        *(json.dumps(GOOD | dict(plot=value)) for value in (11, -1, None, "six", "7 or 8", "6/5", [6], 1e999, True)),
    ],
)
def test_what_is_no_grade_is_refused(text):
    with pytest.raises(ValueError) as error:
        read_reply(text, NAMES)
    assert str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("age", [None, ["C"], "", "young", "6-7"])
def test_scores_are_kept_without_an_age(age):
    assert read_reply(json.dumps(GOOD | dict(age_group=age)), NAMES) == {name: READ[name] for name in NAMES}


def test_the_papers_age_groups():
    for letter, years in AGES.items():
        numbers = [float(word) for word in AGE_GROUPS[letter].replace("-", " ").split() if word.isdigit()]
        assert years == sum(numbers) / len(numbers)
        assert read_reply(json.dumps(GOOD | dict(age_group=letter)), NAMES)["age"] == years
