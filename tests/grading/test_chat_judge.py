"""chat_judge.py: what a judge is shown, in each of the three forms, and nothing is read into a
reply that it lacks."""

import json
import re

import pytest

from nanostories.cli import UserError
from nanostories.grading.chat_judge import QUESTIONS, ChatJudge, read_question, read_reply
from nanostories.grading.scores import AGES, CHAT
from nanostories.grading.stories import Story

NAMES = ["grammar", "creativity", "consistency", "plot"]
STORY = Story("Once upon a time, a cat", " saw a dog. The end.")
TOLD = Story(STORY.prompt, STORY.completion, "Words: cat, dog, sing\nFeatures: BadEnding")
WHOLE = Story("", "\n\nA cat saw a dog. The end.", TOLD.instruction)
GOOD = dict(grammar=8, creativity=7, consistency=9, plot=6, age_group="C")
READ = dict(grammar=8.0, creativity=7.0, consistency=9.0, plot=6.0, age=6.5)


ALL = {name: read_question(name) for name in QUESTIONS}
OURS = ALL["ours"]


class Client:
    """As much of an ApiClient as a key needs."""

    def __init__(self, url: str = "u", **extra):
        self.public_url = url
        self.extra = extra


def test_the_judge_sees_the_story_and_the_scores_it_is_asked_for():
    (text,) = OURS.texts(STORY)
    assert "\nOnce upon a time, a cat *** saw a dog. The end.\n" in text
    assert "instructions" not in text and "told" not in text and not re.search(r"\{[a-z]+\}", text)
    assert all(f'"{name}"' in text for name in ("assessment", *NAMES, "age_group"))
    assert all(CHAT[name].about in text for name in NAMES)


@pytest.mark.parametrize("question", ALL.values(), ids=ALL)
def test_an_instruction_is_shown_and_graded(question):
    first, whole = (question.texts(story)[0] for story in (TOLD, WHOLE))
    assert first.index("Features: BadEnding") < first.index("Once upon a time, a cat *** saw")
    written = "\n----\n ***\n\nA cat saw a dog. The end.\n----\n"
    assert whole.index("Features: BadEnding") < whole.index(written)
    said = "\n".join(question.texts(TOLD))
    untold = "\n".join(question.texts(STORY))
    assert "(if told)" not in said + untold and "instructions" not in untold
    if question.name != "scores":  # three numbers, as the document's
        assert CHAT["instructions"].about in said and '"instructions": NUMBER' in said
        assert question.names(TOLD) == [*NAMES, "instructions"]


def test_the_two_turns_ask_for_plot_only_with_instructions():
    paper = ALL["paper"]
    assert paper.names(STORY) == NAMES[:3] and "plot" not in "\n".join(paper.texts(STORY))
    assert '"plot": NUMBER' in paper.texts(TOLD)[1] and "- plot: " in paper.texts(TOLD)[0]
    assert OURS.names(STORY) == NAMES


def test_a_question_of_ones_own(tmp_path):
    def asked(text: str):
        (tmp_path / "mine.txt").write_text(text)
        return read_question(str(tmp_path / "mine.txt"))

    text = "scores: plot, fear of dogs\n{beginning}|{completion} Reply {as you like}: [1, 2]"
    question = asked(text)
    assert question.names(STORY) == ["plot", "fear of dogs"]
    shown = "Once upon a time, a cat| saw a dog. The end. Reply {as you like}: [1, 2]"
    assert question.texts(STORY) == [shown]
    # told in no other way
    assert question.texts(TOLD)[0].startswith("Words: cat, dog, sing\nFeatures: BadEnding\nStory:")
    injected = Story("{completion}", "{beginning}")
    assert asked("{beginning}|{completion}").texts(injected) == ["{completion}|{beginning}"]
    for text in ("{beginning}", "{completion}", ""):
        with pytest.raises(ValueError, match="mine.txt.*{beginning} and {completion}"):
            asked(text)
    with pytest.raises(ValueError, match="nowhere.txt.*ours, paper, scores"):
        read_question("nowhere.txt")


def test_the_key_is_the_whole_question():
    keys = []
    paper = ALL["paper"]
    for model, question, client in (
        ("j", OURS, Client()),
        ("k", OURS, Client()),
        ("j", paper, Client()),
        ("j", OURS, Client("v")),
        ("j", OURS, Client(temperature=0)),
    ):
        judge = ChatJudge(model, question, client)
        for story, repeat in ((STORY, 0), (STORY, 1), (TOLD, 0)):
            keys.append(judge.key(judge.look_up(story, repeat, {})[1], repeat))
    assert len(set(keys)) == len(keys)


def test_a_conversation_is_looked_up_turn_by_turn():
    judge = ChatJudge("j", ALL["paper"], Client())
    cache = {}
    first, second = ALL["paper"].texts(STORY)
    scores, messages = judge.look_up(STORY, 0, cache)
    assert scores is None and [m["content"] for m in messages] == [first]
    cache[judge.key(messages, 0)] = {"text": " Good."}
    scores, messages = judge.look_up(STORY, 0, cache)
    assert scores is None and [m["content"] for m in messages] == [first, "Good.", second]
    cache[judge.key(messages, 0)] = {"text": json.dumps(GOOD)}
    found = judge.scores(STORY, cache)
    assert judge.look_up(STORY, 0, cache)[0] == found
    assert found == {name: value for name, value in READ.items() if name != "plot"}


def test_a_reply_that_lacks_a_score_which_was_named_later_is_asked_for_again():
    judge = ChatJudge("m", OURS, Client())
    _, messages = judge.look_up(STORY, 0, {})
    cache = {judge.key(messages, 0): {"text": '{"grammar": 7}'}}
    assert judge.look_up(STORY, 0, cache) == (None, messages)


def test_repeated_gradings_are_averaged():
    judge = ChatJudge("j", OURS, Client(), repeats=2)
    cache = {}
    for repeat, changes in enumerate(({}, {"plot": 9, "age_group": "?"})):
        assert judge.scores(STORY, cache) is None
        _, messages = judge.look_up(STORY, repeat, cache)
        cache[judge.key(messages, repeat)] = {"text": json.dumps(GOOD | changes)}
    expected = {name: READ[name] for name in NAMES} | {"plot": 7.5}
    assert judge.scores(STORY, cache) == expected  # without an age, which one of them lacks


@pytest.mark.parametrize(
    "text",
    [
        "```json\n" + json.dumps(GOOD) + "\n```",
        "Here you are: " + json.dumps(GOOD) + " I hope that helps.",
        json.dumps({name.title(): value for name, value in GOOD.items()}),
        json.dumps(GOOD | dict(assessment="Good.", other=[1], creativity=7.0)),
        json.dumps(GOOD | dict(age_group="C: 6-7")),
        json.dumps({name: str(value) for name, value in GOOD.items()}),
    ],
)
def test_objects_are_read(text):
    assert read_reply(text, NAMES) == READ


def test_arrays_are_read():
    without_age = {name: READ[name] for name in NAMES}
    for text in ("I say [8, 7, 9, 6].", "[8.0,7,9,6]"):
        assert read_reply(text, NAMES) == without_age
    assert read_reply("[8, 7, 9]", NAMES[:3]) == dict(grammar=8.0, creativity=7.0, consistency=9.0)
    with pytest.raises(UserError, match="2 numbers for 3 scores"):
        read_reply("[8, 7]", NAMES[:3])


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
            for value in (11, -1, None, "six", "11", [6], 1e999, True)
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
    groups = re.findall(r"([A-F]): ([\d]+)(?:-(\d+))?", ALL[protocol].texts(STORY)[-1])
    assert {letter: (int(low) + int(high or low)) / 2 for letter, low, high in groups} == AGES
