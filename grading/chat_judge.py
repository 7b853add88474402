"""
A chat judge, a model behind an API: what it is asked (GPT-Eval, the paper's section 3), and how its replies are read.

Published forms, in our own words; each question is a judge of its own in tables:

ours    one question, one reply: a JSON object of an assessment, the scores and an age group
paper   two questions, as in the paper: first an assessment in prose, then the scores and the age group
scores  one question, with a reply of only three numbers in an array, as in one reproduction: no plot, no age

>>> read_reply("[8, 7, 9]", ["grammar", "creativity", "consistency"])
{'grammar': 8.0, 'creativity': 7.0, 'consistency': 9.0}
"""

import functools
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from corpus.tokenizer import gpt2
from grading.scores import AGE_GROUPS, AGES, CHAT
from grading.stories import Story

# ---- What is asked ----

AFTER_A_BEGINNING = """\
A pupil was given the beginning of a story and wrote the rest. Below, the beginning comes before the mark *** and what \
the pupil wrote comes after it. The beginning may break off in mid-sentence; then the pupil had to finish that \
sentence first. Judge what the pupil wrote, as a continuation of that beginning.
{instruction}
----
{prompt} ***{completion}
----
"""
FROM_THE_FIRST_WORD = """\
A pupil wrote the story below, from its first word to its last. Judge it.
{instruction}
----
{completion}
----
"""
INSTRUCTION = "\nThe pupil had been told:\n----\n{instruction}\n----\n"

OURS = """\
{story}
First say in one or two sentences what is good and what is wrong. Then give a whole number from 0 (worst) to 10 (best) \
for each of these:
{rubric}
Last, age_group: how old would you guess the pupil is? A letter: {ages}.

Answer with one JSON object and nothing else: {{"assessment": TEXT, {numbers}, "age_group": LETTER}}"""
ASSESS = """\
{story}
Assess it in a few sentences, without grades yet:
{rubric}"""
THEN_GRADE = """\
Now grade it, with a whole number from 0 (worst) to 10 (best) for each of {names}; and guess how old the pupil is, by \
a letter: {ages}. Answer with one JSON object and nothing else: {{{numbers}, "age_group": LETTER}}"""
THREE_NUMBERS = """\
{story}
Give it a whole number from 0 (worst) to 10 (best) for each of {names}, in this order.

Answer with an array of the numbers and nothing else: [{array}]"""


class Protocol(NamedTuple):
    turns: tuple[str, ...]  # the questions, each asked after the reply to the one before
    reply_tokens: int  # a guess, for --dry_run
    scores: tuple[str, ...] = ("grammar", "creativity", "consistency", "plot")


PROTOCOLS = {
    "ours": Protocol((OURS,), 100),
    "paper": Protocol((ASSESS, THEN_GRADE), 60),
    "scores": Protocol((THREE_NUMBERS,), 10, ("grammar", "creativity", "consistency")),
}


def names_asked(protocol: Protocol, story: Story) -> list[str]:
    """The scores that are asked for, apart from the age."""
    return [*protocol.scores, *(["instructions"] if story.instruction else [])]


def questions(protocol: Protocol, story: Story) -> list[str]:
    """What the judge sees, turn by turn. It never says who wrote the completion."""
    names = names_asked(protocol, story)
    rubric = {name: CHAT[name].about for name in names}
    if not story.prompt:
        rubric["consistency"] = rubric["consistency"].replace("fit the beginning and itself", "fit itself")
    told = INSTRUCTION.format(instruction=story.instruction) if story.instruction else ""
    frame = AFTER_A_BEGINNING if story.prompt else FROM_THE_FIRST_WORD
    completion = story.completion if story.prompt else story.completion.strip()
    fields = dict(
        story=frame.format(instruction=told, prompt=story.prompt, completion=completion),
        rubric="\n".join(f"- {name}: {meaning}" for name, meaning in rubric.items()),
        ages=", ".join(f"{letter}: {ages}" for letter, ages in AGE_GROUPS.items()),
        names=f"{', '.join(names[:-1])} and {names[-1]}",
        numbers=", ".join(f'"{name}": NUMBER' for name in names),
        array=", ".join(name.upper() for name in names),
    )
    return [turn.format(**fields) for turn in protocol.turns]


# ---- What is replied ----


class BadReply(ValueError):
    """A reply without the scores asked for. The message says why."""


ARRAY = re.compile(r"\[[\d\s.,]*\d[\d\s.,]*\]")


def schema(names: Sequence[str], has_assessment: bool) -> dict:
    """The reply's form as a response_format. Not every API accepts ranges in it, so read_reply checks those."""
    properties = dict(assessment=dict(type="string")) if has_assessment else {}
    properties |= {name: dict(type="integer") for name in names}
    properties["age_group"] = dict(type="string", enum=list(AGE_GROUPS))
    form = dict(type="object", properties=properties, required=list(properties), additionalProperties=False)
    return dict(type="json_schema", json_schema=dict(name="grades", strict=True, schema=form))


@functools.cache
def form_of(names: tuple[str, ...]):
    """The pydantic model of a reply: a number from 0 to 10, perhaps as "8/10", for each name."""
    import pydantic  # here, so that --help need not wait for it

    without_ten = pydantic.BeforeValidator(lambda value: re.sub(r"\s*/\s*10$", "", str(value)))
    number = Annotated[float, without_ten, pydantic.Field(ge=0, le=10, allow_inf_nan=False)]
    return pydantic.create_model("Grades", **{name: (number, ...) for name in names})


def read_reply(text: str, names: Sequence[str]) -> dict[str, float]:
    """{name: 0 to 10, ..., "age": years} from a JSON object, or from an array in the order of `names`; prose and
    reasoning (before `</think>`) may surround it. BadReply if a score is missing, out of range or in words. An age that
    is missing or unclear is left out: the scores are paid for, and good without it."""
    text = without_reasoning(text)
    arrays = set(ARRAY.findall(text))
    try:
        if "{" in text:
            found = json.loads(text[text.index("{") : text.rfind("}") + 1], strict=False)
            values = {name.strip().lower().replace(" ", "_"): value for name, value in found.items()}
        elif len(arrays) == 1:
            values = dict(zip(names, json.loads(arrays.pop()), strict=True))
        else:
            raise BadReply(f"{len(arrays) or 'no'} arrays in it, and no object")
        scores = form_of(tuple(names))(**{name: values[name] for name in names}).model_dump()
    except KeyError as missing:
        raise BadReply(f"no {missing.args[0]} in it") from None
    except (ValueError, RecursionError) as error:  # also pydantic's ValidationError, of several lines
        raise BadReply(" ".join(str(error).split()[:20])) from None
    age = AGES.get(str(values.get("age_group", ""))[:1].upper())
    return scores | ({} if age is None else dict(age=age))


def without_reasoning(text: str) -> str:
    return text.rpartition("</think>")[2].strip()


# ---- A judge ----

TRIES = 3  # unusable replies to a question, before a grading counts as failed


@dataclass(frozen=True)
class ChatJudge:
    """A model that is asked in one way. `cache` is grade.py's: {key of a question: the last reply to it}."""

    model: str
    url: str  # public: without a password
    protocol: str = "ours"
    temperature: float | None = None  # None: the API's default
    max_tokens: int = 2000
    has_schema: bool = True  # whether the endpoint takes a JSON schema

    @property
    def name(self) -> str:
        """In tables."""
        return self.model if self.protocol == "ours" else f"{self.model} ({self.protocol})"

    def key(self, messages: Sequence[dict], repeat: int) -> str:
        """Equal for the same question to the same judge, and only then."""
        asked = json.dumps([self.model, self.url, self.temperature, messages, repeat])
        return hashlib.sha256(asked.encode()).hexdigest()

    def settings(self, story: Story, messages: Sequence[dict]) -> dict:
        """The fields of a request besides the model and the messages."""
        settings = {} if self.temperature is None else dict(temperature=self.temperature)
        last = PROTOCOLS[self.protocol].turns[len(messages) // 2]
        if self.has_schema and "JSON" in last:
            names = names_asked(PROTOCOLS[self.protocol], story)
            settings["response_format"] = schema(names, has_assessment="assessment" in last)
        return settings

    def look_up(self, story: Story, repeat: int, cache: Mapping[str, dict]) -> tuple[dict | None, list[dict], str]:
        """(grades, ...) if the cache has usable replies to every question; else (None, the messages to send next, why
        the last reply to them is unusable)."""
        protocol, messages = PROTOCOLS[self.protocol], []
        for turn, question in enumerate(questions(protocol, story)):
            messages.append(dict(role="user", content=question))
            reply = cache.get(self.key(messages, repeat))
            if reply is None:
                return None, messages, "not asked yet"
            try:
                if reply["finish_reason"] == "length":
                    raise BadReply("cut off: raise --max_tokens")
                if turn + 1 == len(protocol.turns):
                    return read_reply(reply["text"], names_asked(protocol, story)), messages, ""
                if not without_reasoning(reply["text"]):
                    raise BadReply("an empty assessment")
            except BadReply as problem:
                return None, messages, str(problem)
            messages.append(dict(role="assistant", content=without_reasoning(reply["text"])))

    async def grade(self, story: Story, repeat: int, client, cache) -> None:
        """Asks an ApiClient until the cache has usable replies, or too many were unusable; each goes to the cache at
        once, so that a killed call loses nothing that was paid for."""
        for _ in range(TRIES + len(PROTOCOLS[self.protocol].turns) - 1):
            grades, messages, _ = self.look_up(story, repeat, cache)
            if grades:
                return
            reply = await client.chat(messages, self.max_tokens, **self.settings(story, messages))
            asked = dict(judge=self.model, url=self.url, temperature=self.temperature, repeat=repeat)
            cache.add(self.key(messages, repeat), asked | dict(protocol=self.protocol) | vars(reply))


def show_request(judge: ChatJudge, jobs: Sequence[tuple[Story, int]], price_in, price_out) -> str:
    """For --dry_run: the first request as the API would get it, the number of requests, and about what they cost."""
    if not jobs:
        return "nothing to ask: everything has been graded"
    protocol, tokenizer = PROTOCOLS[judge.protocol], gpt2()
    asked, turns = questions(protocol, jobs[0][0]), len(protocol.turns)
    settings = judge.settings(jobs[0][0], [dict(role="user", content=asked[0])])
    # Every later turn reads all earlier questions and replies again.
    lengths = [[len(tokenizer.encode(text)) for text in questions(protocol, story)] for story, _ in jobs]
    tokens_in = sum(n * (turns - i) for texts in lengths for i, n in enumerate(texts))
    tokens_in += protocol.reply_tokens * len(jobs) * turns * (turns - 1) // 2
    tokens_out = protocol.reply_tokens * len(jobs) * turns
    cost = "give --price_in and --price_out to see the cost"
    if price_in is not None:
        cost = f"about ${(tokens_in * price_in + tokens_out * price_out) / 1e6:.4f}"
    how = f"{len(jobs) * turns:,} requests to {judge.url}: about {tokens_in:,} tokens in, {tokens_out:,} out"
    asked = "\n\nand after its reply:\n\n".join(asked)
    return f"{asked}\n\n{json.dumps(dict(model=judge.model) | settings)}\n\n{how} (if replies are short); {cost}"
