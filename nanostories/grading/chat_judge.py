"""
A chat judge is a model behind an API. Here: its questions (GPT-Eval, the paper's section 3), asking
them, and reading the replies.

A question is a text file: prompts/question_*.txt, worded by us in the forms of the paper and its
reproductions, or one of your own. {beginning} and {completion} stand where those of the story go,
and {instruction}, if the file has it, where the story's goes. Where a story has none, lines that
begin with "(if told)" are left out.

A first line `scores: grammar, (if told) plot` names the scores. A line `--- next turn ---` stands
between questions of which each is asked after the reply to the one before.

>>> read_reply("[8, 7, 9]", ["grammar", "creativity", "consistency"])
{'grammar': 8.0, 'creativity': 7.0, 'consistency': 9.0}
"""

import hashlib
import itertools
import json
import random
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean

from tqdm import tqdm

from nanostories.cli import UserError
from nanostories.corpus.tokenizer import gpt2
from nanostories.files import PROMPTS
from nanostories.grading.scores import AGES, CHAT, OWN
from nanostories.grading.stories import Run, Story

QUESTIONS = {
    path.stem.removeprefix("question_"): path for path in sorted(PROMPTS.glob("question_*.txt"))
}
MAX_TOKENS = 2000  # of a reply, with the model's thoughts; --extra can change it
TRIES = 3  # unusable replies, to all questions together, before a grading counts as failed
REPLY_TOKENS = 60  # a guess, for the cost in --dry_run, until there are replies
IF_TOLD = "(if told)"  # before what is asked only of stories with an instruction


# ---- Questions ----
@dataclass(frozen=True)
class Question:
    name: str  # in tables
    scores: list[str]  # []: the reply names them, or they are "score 1", "score 2", …
    turns: list[str]

    def names(self, story: Story) -> list[str]:
        """The scores that are asked for."""
        names = []
        for name in self.scores:
            if story.instruction or not name.startswith(IF_TOLD):
                names.append(name.removeprefix(IF_TOLD).strip())
        return names

    def texts(self, story: Story) -> list[str]:
        """The messages to the judge, turn by turn. They never say who wrote the completion."""
        values = {
            "{beginning}": story.opening,
            "{completion}": story.completion,
            "{instruction}": story.instruction,
        }
        if "{instruction}" not in "".join(self.turns):
            values["{beginning}"] = story.prompt  # so the instruction is shown there
        fields = "|".join(map(re.escape, values))
        left_out = f"(?m)^{re.escape(IF_TOLD)} ?"
        if not story.instruction:
            left_out += ".*\n?"  # the whole line
        texts = []
        for turn in self.turns:
            asked = re.sub(left_out, "", turn)
            texts.append(re.sub(fields, lambda field: values[field[0]], asked))
        return texts


def read_question(name: str) -> Question:
    """One of ours, or a file."""
    path = QUESTIONS.get(name, Path(name))
    if not path.is_file():
        raise UserError(f"--question {name}: neither a file nor one of {', '.join(QUESTIONS)}")
    text = path.read_text(encoding="utf-8-sig", errors="replace").strip()
    if "{beginning}" not in text or "{completion}" not in text:
        raise UserError(
            f"{name}: a question needs {{beginning}} and {{completion}}, where the judge is shown"
            " the story's"
        )
    scores = []
    first_line, _, others = text.partition("\n")
    first_line = first_line.lower()
    if first_line.startswith("scores:"):
        named = first_line.removeprefix("scores:").split(",")
        scores = [score.strip() for score in named if score.strip()]
        text = others
    turns = re.split(r"(?m)\s*^--- next turn ---\s*", text)
    return Question(name, scores, turns)


# ---- Replies ----
def read_reply(text: str, names: Sequence[str]) -> dict[str, float]:
    """{name: number, …, "age": years} from a JSON object (its keys in any case), or from an array
    in the order of `names`; prose may surround it. Without names, all numbers of the object, or
    "score 1", "score 2", … UserError if a score is missing, out of range or in words. An age that
    is missing or unclear is left out: the scores are paid for, and good without it."""
    found = json_in(text)
    if not found:
        raise UserError(
            "no single JSON object or array of scores (--question scores asks for numbers alone)"
        )
    if isinstance(found, list):
        names = names or [f"score {i + 1}" for i in range(len(found))]
        if len(names) != len(found):
            raise UserError(f"{len(found)} numbers for {len(names)} scores")
        found = dict(zip(names, found))
    by_lower_name = {name.lower(): value for name, value in found.items()}
    if not names:
        names = [name for name, value in found.items() if type(value) in (int, float)]
    scores = {name: checked(name, by_lower_name.get(name.lower())) for name in names}
    if not scores:
        raise UserError("no number in it")
    # "C", "C (6-7)", but not "A child of 7"
    group = re.match(r"\W*([A-F])\b(?!\s+[A-Z])", str(by_lower_name.get("age_group", "")).upper())
    if group:
        scores["age"] = AGES[group[1]]
    return scores


def json_in(text: str) -> dict | list:
    """The object in a text, or the array, if it has just one."""
    try:
        if "{" in text:
            return json.loads(text[text.index("{") : text.rfind("}") + 1])
        arrays = set(re.findall(r"\[\s*-?[\d.]+(?:\s*,\s*-?[\d.]+)*\s*\]", text))
        return json.loads(arrays.pop()) if len(arrays) == 1 else {}
    except (ValueError, RecursionError):
        return {}


def checked(name: str, value) -> float:
    """A person's or a chat judge's score; UserError if it is not a number on its scale."""
    low, high = CHAT.get(name, OWN).scale
    # a cell of a person's file; and small models quote numbers
    if isinstance(value, str) and re.fullmatch(r"\d+(\.\d+)?", value):
        value = float(value)
    if type(value) not in (int, float) or not low <= value <= high:
        wanted = f"a number from {low:g} to {high:g}" if name in CHAT else "a number"
        raise UserError(f"{name} is {value!r}, not {wanted}")
    return float(value)


# ---- A judge ----
@dataclass(frozen=True)
class ChatJudge:
    """A model and its question."""

    model: str
    question: Question
    client: object  # an ApiClient
    cache: object  # grade.py's Cache: {key of a question: the usable reply}
    repeats: int  # gradings of each story

    @property
    def name(self) -> str:
        """In tables."""
        if self.question.name == "ours":
            return self.model
        return f"{self.model} ({self.question.name})"

    def wrote(self, run: Run) -> bool:
        return run.rows[0].get("model") == f"api:{self.model}"

    def grade(self, stories: Sequence[Story]) -> None:
        """Asks for what the cache lacks. StopAsking if asking must stop; all replies that were paid
        for are in the cache then, too."""
        missing = self.missing(stories)
        # A budget that runs out favors no run, and leaves whole prompts graded.
        random.Random(0).shuffle(missing)
        missing.sort(key=lambda job: hashlib.sha256(job[0].prompt.encode()).digest())
        graded = self.client.map(lambda job: self.ask(*job), missing)
        graded = tqdm(graded, f"{self.name} grades", len(missing), disable=None, delay=1)
        problems = [problem for _, problem in graded if problem]
        if problems:
            print(f"{self.name}: {len(problems)} gradings failed: {problems[0]}", file=sys.stderr)

    def missing(self, stories: Sequence[Story]) -> list[tuple[Story, int]]:
        jobs = itertools.product(dict.fromkeys(stories), range(self.repeats))
        return [job for job in jobs if not self.look_up(*job)[0]]

    def scores(self, story: Story) -> dict[str, float] | None:
        """Means over the repeats, if the cache has all of them."""
        gradings = [self.look_up(story, repeat)[0] for repeat in range(self.repeats)]
        if None in gradings:
            return None
        means = {}
        for name in gradings[0]:
            values = [grading.get(name) for grading in gradings]
            if None not in values:  # an age may be missing from some
                means[name] = fmean(values)
        return means

    def key(self, messages: Sequence[dict], repeat: int) -> str:
        """Equal for the same question to the same judge, and only then."""
        asked = [self.model, self.client.public_url, self.client.extra, messages, repeat]
        return hashlib.sha256(json.dumps(asked).encode()).hexdigest()

    def look_up(self, story: Story, repeat: int) -> tuple[dict[str, float] | None, list[dict]]:
        """(the scores, or None if the cache lacks a reply; the messages to send next)"""
        messages = []
        for question in self.question.texts(story):
            messages.append({"role": "user", "content": question})
            reply = self.cache.get(self.key(messages, repeat))
            if reply is None:
                return None, messages
            text = reply["text"].strip()
            messages.append({"role": "assistant", "content": text})
        try:
            return read_reply(text, self.question.names(story)), messages
        except UserError:  # usable when it came, as the file's first line named other scores then
            return None, messages[:-1]

    async def ask(self, story: Story, repeat: int) -> None:
        """Asks until the cache has usable replies to all questions. Each goes to the cache at once,
        so that a killed call loses none. BadReply after too many unusable ones."""
        from nanostories.generation.api_client import BadReply

        n_turns = len(self.question.turns)
        n_unusable = 0
        while True:
            scores, messages = self.look_up(story, repeat)
            if scores:
                return
            check = None
            if len(messages) == 2 * n_turns - 1:  # the last turn: each earlier one has a reply
                check = partial(read_reply, names=self.question.names(story))
            request = dict(model=self.model, messages=messages, max_tokens=MAX_TOKENS)
            try:
                reply = await self.client.chat(check=check, **request)
            except BadReply:
                n_unusable += 1
                if n_unusable == TRIES:
                    raise
            else:
                asked = {"judge": self.name, "url": self.client.public_url, "repeat": repeat}
                self.cache.add(self.key(messages, repeat), asked | vars(reply))

    def preview(self, stories: Sequence[Story]) -> tuple[str, float]:
        """For --dry_run: the questions about the first story and the number of requests; their
        approximate cost in dollars."""
        jobs = self.missing(stories)
        if not jobs:
            return "nothing to ask: everything has been graded", 0.0
        texts = []  # of the requests, each with those of earlier turns
        for story, _ in jobs:
            texts += itertools.accumulate(self.question.texts(story))
        replies = [reply for reply in self.cache.values() if reply.get("judge") == self.name]
        lengths = [reply["tokens_out"] for reply in replies if reply["tokens_out"]]
        length = fmean(lengths or [REPLY_TOKENS])
        tokens_in = sum(len(gpt2().encode(text)) for text in texts)
        n_turns = len(self.question.turns)
        n_repeated = len(jobs) * n_turns * (n_turns - 1) / 2  # replies that later turns send again
        tokens_in += round(n_repeated * length)
        dollars = self.client.cost(tokens_in, len(texts) * length)
        shown = "\n\nand after its reply:\n\n".join(self.question.texts(jobs[0][0]))
        requests = f"{len(texts):,} requests to {self.client.public_url}"
        why = "a guess, as there are no replies yet; a reasoning model's are several times longer"
        if lengths:
            why = "mean of the replies so far"
        tokens = f"about {tokens_in:,} input tokens in all, {length:.0f} in a reply ({why})"
        return f"{shown}\n\n{requests}, {tokens}", dollars
