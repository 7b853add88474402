"""
A chat judge is a model behind an API. Here: its questions (GPT-Eval, the paper's section 3), and reading its replies.

Published forms, in our own words; each is a judge of its own in tables:

ours    one question, one reply: a JSON object of an assessment, the scores and an age group
paper   two questions, as in the paper: first an assessment in prose, then the scores and the age group
scores  one question, with a reply of only three numbers in an array, as in one reproduction: no plot, no age

>>> read_reply("[8, 7, 9]", ["grammar", "creativity", "consistency"])
{'grammar': 8.0, 'creativity': 7.0, 'consistency': 9.0}
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from corpus.tokenizer import gpt2
from grading.scores import AGE_GROUPS, AGES, CHAT
from grading.stories import Story

# ---- Questions ----

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

    def names(self, story: Story) -> list[str]:
        """The scores that are asked for, apart from the age."""
        return [*self.scores, *["instructions"] * bool(story.instruction)]


PROTOCOLS = {
    "ours": Protocol((OURS,), 100),
    "paper": Protocol((ASSESS, THEN_GRADE), 60),
    "scores": Protocol((THREE_NUMBERS,), 10, ("grammar", "creativity", "consistency")),
}


def questions(protocol: Protocol, story: Story) -> list[str]:
    """What the judge sees, turn by turn. It never says who wrote the completion."""
    names = protocol.names(story)
    rubric = {name: CHAT[name].about for name in names}
    told = INSTRUCTION.format(instruction=story.instruction) if story.instruction else ""
    frame, completion = AFTER_A_BEGINNING, story.completion
    if not story.prompt:
        frame, completion = FROM_THE_FIRST_WORD, completion.strip()
        rubric["consistency"] = rubric["consistency"].replace("fit the beginning and itself", "fit itself")
    fields = dict(
        story=frame.format(instruction=told, prompt=story.prompt, completion=completion),
        rubric="\n".join(f"- {name}: {meaning}" for name, meaning in rubric.items()),
        ages=", ".join(f"{letter}: {ages}" for letter, ages in AGE_GROUPS.items()),
        names=f"{', '.join(names[:-1])} and {names[-1]}",
        numbers=", ".join(f'"{name}": NUMBER' for name in names),
        array=", ".join(name.upper() for name in names),
    )
    return [turn.format(**fields) for turn in protocol.turns]


# ---- Replies ----


def read_reply(text: str, names: Sequence[str]) -> dict[str, float]:
    """{name: 0 to 10, ..., "age": years} from a JSON object, or from an array in the order of `names`; prose and
    reasoning (before `</think>`) may surround it. ValueError if a score is missing, out of range or in words. An age
    that is missing or unclear is left out: the scores are paid for, and good without it."""
    text = without_reasoning(text)
    arrays = set(re.findall(r"\[[\d\s.,]*\]", text))
    try:
        if "{" in text:
            found = json.loads(text[text.index("{") : text.rfind("}") + 1], strict=False)
            values = {name.strip().lower().replace(" ", "_"): value for name, value in found.items()}
        else:
            (array,) = arrays
            values = dict(zip(names, json.loads(array), strict=True))
        scores = {name: float(re.sub(r"\s*/\s*10$", "", str(values[name]))) for name in names}  # "8/10", too
    except (ValueError, KeyError, RecursionError) as error:
        raise ValueError(f"no number for each score ({str(error)[:60]})") from None
    if not all(0 <= score <= 10 for score in scores.values()):
        raise ValueError("a score that is not from 0 to 10")
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

    @property
    def name(self) -> str:
        """In tables."""
        return self.model if self.protocol == "ours" else f"{self.model} ({self.protocol})"

    def key(self, messages: Sequence[dict], repeat: int) -> str:
        """Equal for the same question to the same judge, and only then."""
        asked = json.dumps([self.model, self.url, self.temperature, messages, repeat])
        return hashlib.sha256(asked.encode()).hexdigest()

    def look_up(self, story: Story, repeat: int, cache: Mapping[str, dict]) -> tuple[dict | None, list[dict], str]:
        """(grades, ...) if the cache has usable replies to every question; else (None, the messages to send next, why
        the last reply to them is unusable)."""
        protocol, messages = PROTOCOLS[self.protocol], []
        for question in questions(protocol, story):
            messages += [dict(role="user", content=question)]
            reply = cache.get(self.key(messages, repeat))
            if reply is None:
                return None, messages, "not asked yet"
            text = without_reasoning(reply["text"])
            if reply["finish_reason"] == "length" or not text:
                return None, messages, "cut off: raise --max_tokens" if text else "an empty reply"
            messages += [dict(role="assistant", content=text)]
        try:
            return read_reply(text, protocol.names(story)), messages, ""
        except ValueError as problem:
            return None, messages[:-1], str(problem)

    async def grade(self, story: Story, repeat: int, client, cache) -> None:
        """Asks an ApiClient until the cache has usable replies, or too many were unusable; each goes to the cache at
        once, so that a killed call loses nothing that was paid for."""
        settings = {} if self.temperature is None else dict(temperature=self.temperature)
        for _ in range(TRIES + len(PROTOCOLS[self.protocol].turns) - 1):
            grades, messages, _ = self.look_up(story, repeat, cache)
            if grades:
                return
            reply = await client.chat(messages, self.max_tokens, **settings)
            asked = dict(judge=self.model, url=self.url, temperature=self.temperature, repeat=repeat)
            cache.add(self.key(messages, repeat), asked | dict(protocol=self.protocol) | vars(reply))


def show_requests(judge: ChatJudge, stories: Sequence[Story], price_in: float | None, price_out: float | None) -> str:
    """For --dry_run: the questions about the first story, the number of requests, and about what they cost."""
    if not stories:
        return "nothing to ask: everything has been graded"
    protocol, encode = PROTOCOLS[judge.protocol], gpt2().encode
    asked = [questions(protocol, story) for story in stories]
    n, n_turns = len(stories) * len(protocol.turns), len(protocol.turns)  # every turn reads all that came before it
    tokens_in = sum(len(encode(text)) * (n_turns - i) for texts in asked for i, text in enumerate(texts))
    tokens_in, tokens_out = tokens_in + protocol.reply_tokens * (n_turns - 1) * len(stories), protocol.reply_tokens * n
    cost = "give --price_in and --price_out to see the cost"
    if price_in is not None:
        cost = f"about ${(tokens_in * price_in + tokens_out * price_out) / 1e6:.4f}"
    how = f"{n:,} requests to {judge.url}: about {tokens_in:,} tokens in, {tokens_out:,} out (if replies are short)"
    return "\n\nand after its reply:\n\n".join(asked[0]) + f"\n\n{how}; {cost}"
