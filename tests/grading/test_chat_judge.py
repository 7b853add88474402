"""chat_judge.py: what a judge is shown, in each of the three forms, and nothing is read into a
reply that it lacks."""

import json
import re

import pytest

from nanostories.grading.chat_judge import (
    PROTOCOLS,
    ChatJudge,
    read_question,
    read_reply,
    response_format,
)
from nanostories.grading.scores import AGES, CHAT
from nanostories.grading.stories import Story

NAMES = ["grammar", "creativity", "consistency", "plot"]
STORY = Story("Once upon a time, a cat", " saw a dog. The end.")
TOLD = Story(STORY.prompt, STORY.completion, "Words: cat, dog, sing\nFeatures: BadEnding")
WHOLE = Story("", "\n\nA cat saw a dog. The end.", TOLD.instruction)
GOOD = dict(grammar=8, creativity=7, consistency=9, plot=6, age_group="C")
READ = dict(grammar=8.0, creativity=7.0, consistency=9.0, plot=6.0, age=6.5)


QUESTIONS = {name: read_question(name) for name in PROTOCOLS}
OURS = QUESTIONS["ours"]


def test_the_judge_sees_the_story_and_the_scores_it_is_asked_for():
    (text,) = OURS.texts(STORY)
    assert "\nOnce upon a time, a cat *** saw a dog. The end.\n" in text
    assert "instructions" not in text and "told" not in text and not re.search(r"\{[a-z]+\}", text)
    assert all(f'"{name}"' in text for name in ("assessment", *NAMES, "age_group"))
    assert all(CHAT[name].about in text for name in NAMES)


@pytest.mark.parametrize("question", QUESTIONS.values(), ids=QUESTIONS)
def test_an_instruction_is_shown_and_graded(question):
    first, whole = (question.texts(story)[0] for story in (TOLD, WHOLE))
    assert first.index("Features: BadEnding") < first.index("Once upon a time, a cat *** saw")
    assert whole.index("Features: BadEnding") < whole.index(
        "\n----\n ***\n\nA cat saw a dog. The end.\n----\n"
    )
    said = "\n".join(question.texts(TOLD)).lower()
    assert "instructions" in said and "instructions" not in "\n".join(question.texts(STORY)).lower()
    assert question.names(TOLD) == [*question.names(STORY), "instructions"]


def test_a_question_of_ones_own(tmp_path):
    def asked(text: str):
        (tmp_path / "mine.txt").write_text(text)
        return read_question(str(tmp_path / "mine.txt"))

    question = asked(
        "scores: plot, fear of dogs\n{beginning}|{completion} Reply {as you like}: [1, 2]"
    )
    assert question.names(STORY) == ["plot", "fear of dogs"]
    assert question.texts(STORY) == [
        "Once upon a time, a cat| saw a dog. The end. Reply {as you like}: [1, 2]"
    ]
    text = question.texts(TOLD)[0]  # told in no other way
    assert text.startswith("Words: cat, dog, sing\nFeatures: BadEnding\nStory:")
    assert asked("{beginning}{completion} [1, 2]").scores == ()
    named = asked('{beginning}{completion} {"fear": NUMBER, "age_group": LETTER}')
    schema = response_format(named.texts(STORY)[0])["response_format"]["json_schema"]["schema"]
    assert named.scores == ("fear",) and schema["required"] == ["fear", "age_group"]
    injected = Story("{completion} {names}", "{beginning}")
    assert asked("{beginning}|{completion}").texts(injected) == ["{completion} {names}|{beginning}"]
    for text, missing in (
        ("{beginning}", "{completion}"),
        ("{completion}", "{beginning}"),
        ("", "{beginning} and"),
    ):
        with pytest.raises(ValueError, match=missing) as error:
            asked(text)
        assert "mine.txt" in str(error.value) and "\n" not in str(error.value)


def test_the_schema_is_of_the_object_that_the_question_shows():
    schema = response_format(OURS.texts(STORY)[0])["response_format"]["json_schema"]["schema"]
    assert (
        schema["required"] == ["assessment", *NAMES, "age_group"]
        and not schema["additionalProperties"]
    )
    schema = response_format(OURS.texts(TOLD)[0])["response_format"]["json_schema"]["schema"]
    assert "instructions" in schema["required"]
    assessment, grades = (response_format(text) for text in QUESTIONS["paper"].texts(STORY))
    assert (
        assessment == {} and grades and response_format(QUESTIONS["scores"].texts(STORY)[0]) == {}
    )


def test_the_key_is_the_whole_question():
    def keys(judge: ChatJudge) -> list[str]:
        story_and_repeat = ((STORY, 0), (STORY, 1), (TOLD, 0))
        return [
            judge.key(judge.look_up(story, repeat, {}).messages, repeat)
            for story, repeat in story_and_repeat
        ]

    facts = (("j", "u", OURS), ("k", "u", OURS), ("j", "v", OURS), ("j", "u", OURS, 0.0))
    judges = [ChatJudge(*each) for each in facts]
    every = [
        key for judge in [*judges, ChatJudge("j", "u", QUESTIONS["paper"])] for key in keys(judge)
    ]
    assert len(set(every)) == len(every)
    assert keys(ChatJudge("j", "u", OURS, max_tokens=7, schema=False)) == keys(
        judges[0]
    )  # the question is the same


def test_a_conversation_is_looked_up_turn_by_turn():
    judge, cache = ChatJudge("j", "u", QUESTIONS["paper"]), {}
    first, second = QUESTIONS["paper"].texts(STORY)
    grades, messages, _ = judge.look_up(STORY, 0, cache)
    assert grades is None and [m["content"] for m in messages] == [first]
    cache[judge.key(messages, 0)] = dict(text=" Good.")
    grades, messages, _ = judge.look_up(STORY, 0, cache)
    assert grades is None and [m["content"] for m in messages] == [first, "Good.", second]
    cache[judge.key(messages, 0)] = dict(text="Well.")
    assert "no number" in judge.look_up(STORY, 0, cache).problem
    cache[judge.key(messages, 0)] = dict(text=json.dumps(GOOD))
    assert judge.look_up(STORY, 0, cache).grades == READ


@pytest.mark.parametrize(
    "text",
    [
        "```json\n" + json.dumps(GOOD) + "\n```",
        "Here you are: " + json.dumps(GOOD) + " I hope that helps.",
        json.dumps({name.title(): value for name, value in GOOD.items()}),
        json.dumps(GOOD | dict(assessment="Good.", other=[1], creativity=7.0)),
        json.dumps(GOOD | dict(age_group="C: 6-7")),
    ],
)
def test_objects_are_read(text):
    assert read_reply(text, NAMES) == READ


def test_arrays_are_read():
    without_age = {name: READ[name] for name in NAMES}
    for text in ("I say [8, 7, 9, 6].", "[8.0,7,9,6]"):
        assert read_reply(text, NAMES) == without_age
    assert read_reply("[8, 7, 9]", NAMES[:3]) == dict(grammar=8.0, creativity=7.0, consistency=9.0)


def test_scores_that_the_question_does_not_name():
    assert read_reply("So: [8, 70]") == {"score 1": 8.0, "score 2": 70.0}
    assert read_reply('{"why": "x", "plot": 6, "fear": 70.5, "good": true}') == dict(
        plot=6.0, fear=70.5
    )
    for text in (
        '{"why": "x"}',
        "[]",
        "[8, -3, 9] then [1]",
        "Of [1-10]: none",
        '{"plot": 11}',
        '{"fear": 1e999}',
    ):
        with pytest.raises(ValueError):
            read_reply(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        # neither form was asked for
        "Grammar: 8/10, Creativity: 7/10, Consistency: 9/10, Plot: 6/10",
        "[8, 7, 9]",
        "[8, 7, 9, 6, 5]",
        "[8, 7, 9, 6] or [8, 7, 9, 5]",
        "{" * 100_000,
        json.dumps(GOOD)[:-8],
        json.dumps({key: value for key, value in GOOD.items() if key != "plot"}),
        *(
            json.dumps(GOOD | dict(plot=value))
            for value in (11, -1, None, "six", "6", [6], 1e999, True)
        ),
    ],
)
def test_what_is_no_grade_is_refused(text):
    with pytest.raises(ValueError) as error:
        read_reply(text, NAMES)
    assert str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("age", [None, ["C"], "", "young", "6-7"])
def test_scores_are_kept_without_an_age(age):
    assert read_reply(json.dumps(GOOD | dict(age_group=age)), NAMES) == {
        name: READ[name] for name in NAMES
    }


@pytest.mark.parametrize("protocol", ("ours", "paper"))
def test_the_papers_age_groups(protocol):
    groups = re.findall(r"([A-F]): ([\d]+)(?:-(\d+))?", QUESTIONS[protocol].texts(STORY)[-1])
    assert {letter: (int(low) + int(high or low)) / 2 for letter, low, high in groups} == AGES
