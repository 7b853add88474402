"""chat_judge.py: what a judge is shown, in each of the three forms, and nothing is read into a
reply that it lacks."""

import json
import re

import pytest
from grade_fixtures import GOOD

from nanostories.cli import UserError
from nanostories.generation.api_client import ApiClient
from nanostories.grading.chat_judge import QUESTIONS, ChatJudge, read_question, read_reply
from nanostories.grading.scores import AGES, CHAT
from nanostories.grading.stories import Story

NAMES = ["grammar", "creativity", "consistency", "plot"]
STORY = Story("Once upon a time, a cat", " saw a dog. The end.")
TOLD = Story(STORY.prompt, STORY.completion, "Words: cat, dog, sing\nFeatures: BadEnding")
WHOLE = Story("", "\n\nA cat saw a dog. The end.", TOLD.instruction)
WITHOUT_AGE = dict(grammar=8.0, creativity=7.0, consistency=9.0, plot=6.0)
READ = WITHOUT_AGE | dict(age=6.5)
ALL = {name: read_question(name) for name in QUESTIONS}
OURS = ALL["ours"]


def judge_of(model: str = "j", repeats: int = 1, **settings) -> ChatJudge:
    return ChatJudge(model, OURS, ApiClient(**settings), {}, repeats)


def keep(judge: ChatJudge, repeat: int, grades: dict) -> None:
    _, messages = judge.look_up(STORY, repeat)
    judge.cache[judge.key(messages, repeat)] = {"text": json.dumps(grades)}


def test_the_judge_sees_the_story_and_the_scores_it_is_asked_for():
    (text,) = OURS.texts(STORY)
    assert "\nOnce upon a time, a cat *** saw a dog. The end.\n" in text
    assert not re.search(r"\{[a-z]+\}", text) and '"age_group"' in text
    assert all(f'"{name}"' in text and CHAT[name].about in text for name in NAMES)


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
        assert CHAT["instructions"].about in said
        assert question.names(TOLD) == [*NAMES, "instructions"]


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
    for text in ("{beginning}", "{completion}"):
        with pytest.raises(ValueError, match="mine.txt.*{beginning} and {completion}"):
            asked(text)
    with pytest.raises(ValueError, match="nowhere.txt.*ours, paper, scores"):
        read_question("nowhere.txt")


def test_the_key_is_the_whole_question():
    judges = [judge_of(), judge_of("k"), judge_of(base_url="v"), judge_of(extra={"top_p": 0})]
    keys = [judge.key([], 0) for judge in judges]
    keys += [judges[0].key([{"content": "x"}], 0), judges[0].key([], 1)]
    assert len(set(keys)) == 6


def test_a_reply_that_lacks_a_score_which_was_named_later_is_asked_for_again():
    judge = judge_of()
    keep(judge, 0, {"grammar": 7})
    scores, messages = judge.look_up(STORY, 0)
    assert scores is None and len(messages) == 1


def test_repeated_gradings_are_averaged():
    judge = judge_of(repeats=2)
    for repeat, changes in enumerate(({}, {"plot": 9, "age_group": "?"})):
        assert judge.scores(STORY) is None
        keep(judge, repeat, GOOD | changes)
    # without an age, which one of them lacks
    assert judge.scores(STORY) == WITHOUT_AGE | {"plot": 7.5}


@pytest.mark.parametrize(
    "text, names, expected",
    [
        (f"```json\n{json.dumps(GOOD | dict(assessment='Good.', other=[1]))}\n```", NAMES, READ),
        (json.dumps({name.title(): str(value) for name, value in GOOD.items()}), NAMES, READ),
        (json.dumps(GOOD | dict(age_group="C: 6-7", creativity=7.0)), NAMES, READ),
        ("I say [8.0,7, 9, 6].", NAMES, WITHOUT_AGE),
        # of a question that names none
        ("So: [8, 70]", [], {"score 1": 8.0, "score 2": 70.0}),
        ('{"why": "x", "plot": 6, "fear": 70.5, "good": true}', [], dict(plot=6.0, fear=70.5)),
    ],
)
def test_replies_are_read(text, names, expected):
    assert read_reply(text, names) == expected


REFUSED_BY_NAMES = [
    "",
    # neither form was asked for
    "Grammar: 8/10, Creativity: 7/10, Consistency: 9/10, Plot: 6/10",
    "[8, 7, 9, 6] or [8, 7, 9, 5]",
    "[8, 7, 9]",
    "{" * 100_000,
    json.dumps(GOOD)[:-8],
    json.dumps({key: value for key, value in GOOD.items() if key != "plot"}),
    *(json.dumps(GOOD | dict(plot=value)) for value in (11, -1, "six", "11", [6], True)),
]
REFUSED_WITHOUT = ['{"why": "x"}', "[]", "[8, -3, 9] then [1]", "[1-10]", '{"fear": 1e999}']


@pytest.mark.parametrize("names, texts", [(NAMES, REFUSED_BY_NAMES), ([], REFUSED_WITHOUT)])
def test_what_is_no_grade_is_refused(names, texts):
    for text in texts:
        with pytest.raises(UserError, match=r"\A.+\Z"):  # one line
            read_reply(text, names)


def test_the_papers_age_groups():
    groups = re.findall(r"([A-F]): ([\d]+)(?:-(\d+))?", OURS.texts(STORY)[0])
    assert {letter: (int(low) + int(high or low)) / 2 for letter, low, high in groups} == AGES
