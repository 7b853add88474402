"""
A chat judge is a model behind an API. Here: its questions (GPT-Eval, the paper's section 3), and
reading its replies.

A question is a text file with {beginning} and {completion} where those of the story go:
prompts/question_*.txt, which have the forms of the documents in our own words, or --question FILE.
Also filled in, where a file has them:

{instruction}  the story's; a paragraph that has it is left out where there is none
{rubric}       a line for each score: its sentence in scores.py
{names}, {array}, {numbers}  the scores: grammar and plot, GRAMMAR, PLOT, "grammar": NUMBER, "plot":
NUMBER

A first line `scores: grammar, plot` names the scores. A line `--- next turn ---` stands between
questions of which each is asked after the reply to the one before. A JSON object that is shown as
{"plot": NUMBER} is sent as a schema, too.

>>> read_reply("[8, 7, 9]", ["grammar", "creativity", "consistency"])
{'grammar': 8.0, 'creativity': 7.0, 'consistency': 9.0}
"""

import hashlib
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import Field, StrictFloat, TypeAdapter
from pydantic_core import from_json

from nanostories.cli import UserError
from nanostories.corpus.tokenizer import gpt2
from nanostories.grading.scores import AGES, CHAT, checked
from nanostories.grading.stories import Story

PROTOCOLS = {
    path.stem.removeprefix("question_"): path
    for path in sorted((Path(__file__).parents[2] / "prompts").glob("question_*.txt"))
}


# ---- Questions ----
class Question(NamedTuple):
    name: str  # in tables
    scores: tuple[str, ...]  # (): the reply names them, or they are "score 1", "score 2", ...
    turns: tuple[str, ...]

    def names(self, story: Story) -> list[str]:
        return [name for name in self.scores if name != "instructions" or story.instruction]

    def texts(self, story: Story) -> list[str]:
        """The messages to the judge, turn by turn. They never say who wrote the completion."""
        names, shows_instruction = (
            self.names(story),
            any("{instruction}" in turn for turn in self.turns),
        )
        values = dict(
            beginning=story.prompt if shows_instruction else story.beginning,
            completion=story.completion,
            instruction=story.instruction,
            rubric="\n".join(f"- {name}: {CHAT[name].about}" for name in names if name in CHAT),
            names=" and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]])),
            numbers=", ".join(f'"{name}": NUMBER' for name in names),
            array=", ".join(name.upper() for name in names),
        )
        texts = []
        for turn in self.turns:
            shown = [
                part
                for part in turn.split("\n\n")
                if story.instruction or "{instruction}" not in part
            ]
            texts.append(
                re.sub(
                    rf"{{({'|'.join(values)})}}", lambda found: values[found[1]], "\n\n".join(shown)
                )
            )
        return texts


def read_question(name: str) -> Question:
    """One of ours, or a file; ValueError if that is no question about a story."""
    text = PROTOCOLS.get(name, Path(name)).read_text(encoding="utf-8-sig", errors="replace").strip()
    if missing := [field for field in ("{beginning}", "{completion}") if field not in text]:
        raise UserError(
            f"{name}: a question needs {' and '.join(missing)}, where the judge is shown the"
            " story's"
        )
    named = re.match(r"scores:(.*)\n", text)
    turns = re.split(
        r"\s*^--- next turn ---\s*", text[named.end() if named else 0 :], flags=re.MULTILINE
    )
    scores = named[1].split(",") if named else re.findall(r'"([^"\n]+)": NUMBER\b', turns[-1])
    return Question(name, tuple(map(str.strip, scores)), tuple(turns))


TYPES = dict(
    TEXT=dict(type="string"), NUMBER=dict(type="number"), LETTER=dict(type="string", enum=[*AGES])
)


def response_format(question: str) -> dict:
    """The setting of the API that holds a reply to the JSON object that a question shows; {} if it
    shows none."""
    shown = re.findall(r'"([^"\n]+)": (TEXT|NUMBER|LETTER)\b', question)
    if not shown:
        return {}
    properties = {name: TYPES[kind] for name, kind in shown}
    schema = dict(
        type="object", properties=properties, required=[*properties], additionalProperties=False
    )
    return dict(
        response_format=dict(
            type="json_schema", json_schema=dict(name="grades", schema=schema, strict=True)
        )
    )


# ---- Replies ----

NUMBERS = TypeAdapter(Annotated[dict[str, StrictFloat], Field(min_length=1)])


def read_reply(text: str, names: Sequence[str] = ()) -> dict[str, float]:
    """{name: number, ..., "age": years} from a JSON object (its keys in any case), or from an array
    in the order of `names`; prose may surround it. ValueError if a score is missing, out of range
    or in words. An age that is missing or unclear is left out: the scores are paid for, and good
    without it."""
    age = None
    arrays = set(re.findall(r"\[\s*-?[\d.]+(?:\s*,\s*-?[\d.]+)*\s*\]", text))
    try:
        if "{" in text:
            found = from_json(text[text.index("{") : text.rfind("}") + 1])
            named = names or [name for name, value in found.items() if type(value) in (int, float)]
            by_lower_name = {name.lower(): value for name, value in found.items()}
            age = AGES.get(str(by_lower_name.get("age_group", ""))[:1].upper())
            values = {name: by_lower_name[name.lower()] for name in named}
        else:
            (array,) = map(from_json, arrays)
            values = dict(
                zip(names or [f"score {i + 1}" for i in range(len(array))], array, strict=True)
            )
        scores = {
            name: checked(name, value) for name, value in NUMBERS.validate_python(values).items()
        }
    except (ValueError, KeyError) as error:
        raise UserError(f"no number for each score ({' '.join(str(error).split())[:60]})") from None
    return scores | ({} if age is None else dict(age=age))


# ---- A judge ----

TRIES = 3  # unusable replies to a question, before a grading counts as failed
REPLY_TOKENS = 60  # a guess, for --dry_run


class Cached(NamedTuple):
    """What the cache has of a grading."""

    grades: dict | None
    messages: list[dict]  # if there are no grades: to send next
    problem: str  # why the last reply to these is unusable


@dataclass(frozen=True)
class ChatJudge:
    """A model, its question and settings. `cache` is grade.py's: {key of a question: the last reply
    to it}."""

    model: str
    url: str  # public: without a password
    question: Question
    temperature: float | None = None  # None: the API's default
    max_tokens: int = 2000
    schema: bool = True  # whether to send the JSON schema of the reply

    @property
    def name(self) -> str:
        """In tables."""
        return (
            self.model if self.question.name == "ours" else f"{self.model} ({self.question.name})"
        )

    def key(self, messages: Sequence[dict], repeat: int) -> str:
        """Equal for the same question to the same judge, and only then."""
        asked = json.dumps([self.model, self.url, self.temperature, messages, repeat])
        return hashlib.sha256(asked.encode()).hexdigest()

    def look_up(self, story: Story, repeat: int, cache: Mapping[str, dict]) -> Cached:
        """The grades, if the cache has usable replies to every question."""
        messages = []
        for question in self.question.texts(story):
            messages += [dict(role="user", content=question)]
            reply = cache.get(self.key(messages, repeat))
            if reply is None:
                return Cached(None, messages, "not asked yet")
            text = reply["text"].strip()
            messages += [dict(role="assistant", content=text)]
        try:
            return Cached(read_reply(text, self.question.names(story)), messages, "")
        except ValueError as problem:
            return Cached(None, messages[:-1], str(problem))

    async def grade(self, story: Story, repeat: int, client, cache) -> None:
        """Asks an ApiClient until the cache has usable replies, or too many were unusable; each
        goes to the cache at once, so that a killed call loses nothing that was paid for. Raises
        BadReply if the last one was empty or cut off."""
        from nanostories.generation.api_client import BadReply

        asked = dict(judge=self.model, url=self.url, temperature=self.temperature, repeat=repeat)
        asked["question"] = self.question.name
        n_tries = TRIES + len(self.question.turns) - 1
        for i in range(n_tries):
            grades, messages, _ = self.look_up(story, repeat, cache)
            if grades:
                return
            settings = response_format(messages[-1]["content"]) if self.schema else {}
            request = dict(
                model=self.model,
                messages=messages,
                max_tokens=self.max_tokens,
                temperature=self.temperature,
            )
            try:
                reply = await client.chat(**request, **settings)
                cache.add(self.key(messages, repeat), asked | vars(reply))
            except BadReply:
                if i + 1 == n_tries:
                    raise


def show_requests(
    judge: ChatJudge, stories: Sequence[Story], price_in: float | None, price_out: float | None
) -> str:
    """For --dry_run: the questions about the first story, the number of requests, and their
    approximate cost."""
    if not stories:
        return "nothing to ask: everything has been graded"
    asked, encode = [judge.question.texts(story) for story in stories], gpt2().encode
    n = sum(map(len, asked))
    tokens_in = sum(
        len(encode(text)) for texts in asked for text in itertools.accumulate(texts)
    )  # with earlier turns
    cost = "give --price_in and --price_out to see the cost"
    if price_in is not None:
        dollars = (tokens_in * price_in + n * REPLY_TOKENS * price_out) / 1e6
        cost = f"about ${dollars:.4f}, at {REPLY_TOKENS} tokens a reply"
    shown = "\n\nand after its reply:\n\n".join(asked[0])
    return f"{shown}\n\n{n:,} requests to {judge.url}, about {tokens_in:,} tokens in; {cost}"
