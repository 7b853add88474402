"""
The header above a story, which says what the story must contain, as in TinyStories-Instruct
(section 2.1):

    Words: jump, frog, red
    Features: Dialogue, BadEnding
    Summary: A frog jumps too far and is lost.
    Random sentence: The pond was cold and deep.
    Story:

    Once upon a time …

It has any of these fields, in any order. Headers are read, written, made, and found among tokens.
"""

import random
import re
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import regex

from nanostories.corpus.builtin_stories import Story, draw_words, split_sentences
from nanostories.corpus.tokenizer import Tokenizer
from nanostories.corpus.word_forms import SPEECH

FIELDS = {
    "words": "Words",
    "features": "Features",
    "summary": "Summary",
    "sentence": "Random sentence",
}
LISTS = ("words", "features")
MARKER = "Story:"
NAMES = {title: name for name, title in FIELDS.items()}
FIELD = re.compile(rf"^({'|'.join(NAMES)}):", re.M)
# Fields below the story, searched from its end (?r): from its beginning, many such lines would take
# forever.
BELOW = regex.compile(rf"(?r)(?:\n+(?:{'|'.join(NAMES)}):[^\n]*)+\s*\Z")


@dataclass(frozen=True)
class StoryWithHeader:
    fields: Mapping[str, str]  # in the header's order: name, as in FIELDS -> text
    story: str

    @property
    def header(self) -> str:
        """Including "Story:"."""
        return "".join(f"{FIELDS[name]}: {text}\n" for name, text in self.fields.items()) + MARKER

    @property
    def instruction(self) -> dict:
        """What is asked for, by the names in FIELDS: words and features as lists, summary and
        sentence as texts."""
        return {
            name: split_list(text) if name in LISTS else text for name, text in self.fields.items()
        }

    def only(self, names: Collection[str]) -> "StoryWithHeader":
        return StoryWithHeader(
            {name: text for name, text in self.fields.items() if name in names}, self.story
        )

    def without_words_or_summary(self) -> "StoryWithHeader":
        """The story with its words or its summary, never both (instruct-ood); a hash of the story
        decides which."""
        if not {"words", "summary"} <= self.fields.keys():
            return self
        return self.only(
            self.fields.keys() - {("words", "summary")[zlib.crc32(self.story.encode()) % 2]}
        )

    def __str__(self) -> str:
        return f"{self.header}\n\n{self.story}"


def read(text: str) -> StoryWithHeader | None:
    """The header and the story; None without a header.

    Many published texts have the summary below the story. It moves up: nothing below a story can
    instruct its writer.
    """
    marker = re.search(rf"^{MARKER}", text, re.M)
    if not marker:
        return None
    story = text[marker.end() :]
    below = BELOW.search(story)
    above, *fields = FIELD.split(text[: marker.start()])
    if below:
        story = story[: below.start()]
        fields += FIELD.split(below[0])[1:]
    fields = {
        NAMES[title]: " ".join(value.split()) for title, value in zip(fields[::2], fields[1::2])
    }
    fields = {name: value for name, value in fields.items() if value}
    return StoryWithHeader(fields, story.strip()) if fields and not above.strip() else None


def split_list(text: str) -> list[str]:
    """ "jump, frog" -> ["jump", "frog"]"""
    return [part.strip() for part in text.split(",") if part.strip()]


def format_header(fields: Mapping[str, str]) -> str:
    """A header with these fields."""
    fields = {name: " ".join(text.split()) for name, text in fields.items()}
    fields |= {name: ", ".join(split_list(fields[name])) for name in LISTS if name in fields}
    return StoryWithHeader(fields, "").header


# ---- Headers for stories that have none ----
def draw_fields(
    fields: Mapping[str, str], rng: random.Random, always: Collection[str] = ()
) -> dict[str, str]:
    """A random non-empty subset of the fields that have a text, all equally likely, plus `always`,
    in random order."""
    fields = {name: text for name, text in fields.items() if text}
    choice = rng.randrange(1, 2 ** len(fields)) if fields else 0
    names = [name for i, name in enumerate(fields) if choice >> i & 1 or name in always]
    rng.shuffle(names)
    return {name: fields[name] for name in names}


def add_builtin_header(story: Story, always: Collection[str] = ()) -> str:
    """A built-in story under a header with some of what is known about it."""
    fields = dict(words=", ".join(story.words), features=", ".join(story.features))
    fields |= dict(summary=story.summary, sentence=story.sentence)
    return str(StoryWithHeader(draw_fields(fields, random.Random(story.text), always), story.text))


def add_own_header(text: str, row: Mapping) -> str:
    """A story under a header with some of the fields of its row, as synthesize.py writes them:
    lists or texts."""
    given = {name: row.get(name) or "" for name in FIELDS}
    fields = {
        name: ", ".join(str(y) for y in x if y) if isinstance(x, list) else str(x)
        for name, x in given.items()
    }
    fields = draw_fields(
        {name: " ".join(text.split()) for name, text in fields.items()}, random.Random(text)
    )
    return str(StoryWithHeader(fields, text.strip())) if fields else text


def add_header(text: str) -> str:
    """Any story under a header with some of what its text shows: three words, a sentence, whether
    somebody speaks. One that has a header keeps it."""
    if read(text):
        return text
    rng = random.Random(text)
    sentences = split_sentences(text) or [text.partition("\n")[0]]
    fields = dict(
        words=", ".join(draw_words(text, rng)), features="Dialogue" * bool(SPEECH.search(text))
    )
    fields["sentence"] = rng.choice(sentences).strip()
    return str(StoryWithHeader(draw_fields(fields, rng), text.strip()))


# ---- Among tokens ----
def story_tokens(tokens: np.ndarray, tokenizer: Tokenizer) -> np.ndarray:
    """(number of tokens,) bool: which tokens follow a header, up to and including the
    <|endoftext|>.

    "Story:" at the beginning of a line has the same ids in any context, as BPE never merges across
    words or lines.
    """
    marker = tokenizer.encode("\n" + MARKER)
    is_marker = np.ones(max(0, len(tokens) - len(marker) + 1), dtype=bool)
    for i, token in enumerate(marker):
        is_marker &= tokens[i : i + len(is_marker)] == token
    begins = np.flatnonzero(is_marker) + len(marker)
    ends = np.append(np.flatnonzero(tokens == tokenizer.end_of_text), len(tokens))
    story, first = np.unique(
        np.searchsorted(ends, begins), return_index=True
    )  # a second "Story:" is part of the story
    edges = np.zeros(len(tokens) + 2, dtype=np.int8)
    edges[begins[first]] = 1
    edges[ends[story] + 1] = -1
    return np.cumsum(edges, dtype=np.int8)[: len(tokens)].view(bool)
