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

from nanostories.corpus.builtin_stories import draw_words
from nanostories.corpus.tokenizer import Tokenizer
from nanostories.corpus.word_forms import SPEECH
from nanostories.text import split_sentences

FIELDS = {
    "words": "Words",
    "features": "Features",
    "summary": "Summary",
    "sentence": "Random sentence",
}
LIST_FIELDS = {"words", "features"}
MARKER = "Story:"
FIELD_OF_TITLE = {title: name for name, title in FIELDS.items()}
FIELD = re.compile(rf"^({'|'.join(FIELD_OF_TITLE)}):", re.M)
# Fields below the story, searched from its end (?r): from its beginning, many such lines would take
# forever.
BELOW = regex.compile(rf"(?r)(?:\n+(?:{'|'.join(FIELD_OF_TITLE)}):[^\n]*)+\s*\Z")


@dataclass(frozen=True)
class StoryWithHeader:
    fields: Mapping[str, str]  # in the header's order: name, as in FIELDS -> text
    story: str

    @property
    def header(self) -> str:
        """Including "Story:"."""
        lines = [f"{FIELDS[name]}: {text}\n" for name, text in self.fields.items()]
        return "".join(lines) + MARKER

    @property
    def instruction(self) -> dict:
        """The fields, with words and features as lists."""
        return {
            name: split_list(text) if name in LIST_FIELDS else text
            for name, text in self.fields.items()
        }

    def only(self, names: Collection[str]) -> "StoryWithHeader":
        fields = {name: text for name, text in self.fields.items() if name in names}
        return StoryWithHeader(fields, self.story)

    def without_words_or_summary(self) -> "StoryWithHeader":
        """The story with its words or its summary, never both (instruct-ood); a hash of the story
        decides which."""
        dropped = "words" if zlib.crc32(self.story.encode()) % 2 == 0 else "summary"
        if {"words", "summary"} <= self.fields.keys():
            return self.only(self.fields.keys() - {dropped})
        return self

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
    header = text[: marker.start()]
    story = text[marker.end() :]
    below = BELOW.search(story)
    if below:
        header += below[0]
        story = story[: below.start()]
    above, *pieces = FIELD.split(header)
    fields = {}
    for title, value in zip(pieces[::2], pieces[1::2]):
        if value.strip():
            fields[FIELD_OF_TITLE[title]] = " ".join(value.split())
    if above.strip() or not fields:
        return None
    return StoryWithHeader(fields, story.strip())


def split_list(text: str) -> list[str]:
    """ "jump, frog" -> ["jump", "frog"]"""
    return [part.strip() for part in text.split(",") if part.strip()]


def format_header(fields: Mapping[str, str]) -> str:
    """A header with these fields, each on one line."""
    tidy = {}
    for name, text in fields.items():
        if name in LIST_FIELDS:
            text = ", ".join(split_list(text))
        tidy[name] = " ".join(text.split())
    return StoryWithHeader(tidy, "").header


# ---- Headers for stories that have none ----
def add_header(text: str) -> str:
    """Any story under a header with some of what its text shows: three words, a sentence, whether
    somebody speaks. One that has a header keeps it."""
    if read(text):
        return text
    rng = random.Random(text)
    first_line = text.partition("\n")[0]
    fields = {
        "words": ", ".join(draw_words(text, rng)),
        "features": "Dialogue" if SPEECH.search(text) else "",
        "sentence": rng.choice(split_sentences(text) or [first_line]),
    }
    return add_random_fields(text, fields, rng)


def add_header_of_row(text: str, row: Mapping, always: Collection[str] = ()) -> str:
    """A story under a header with some of the fields of its row, which are lists or texts."""
    fields = {}
    for name in FIELDS:
        value = row.get(name) or ""
        if isinstance(value, (list, tuple)):
            value = ", ".join(str(item) for item in value if item)
        fields[name] = str(value)
    return add_random_fields(text, fields, random.Random(text), always)


def add_random_fields(
    text: str, fields: Mapping[str, str], rng: random.Random, always: Collection[str] = ()
) -> str:
    """The story under some of these fields that are not empty, in random order: any subset is
    equally likely, but those in `always` are added to it. Without fields, the story alone."""
    names = [name for name, value in fields.items() if value.strip()]
    if not names:
        return text
    subset = rng.randrange(1, 2 ** len(names))
    names = [name for i, name in enumerate(names) if subset >> i & 1 or name in always]
    rng.shuffle(names)
    header = format_header({name: fields[name] for name in names})
    return f"{header}\n\n{text.strip()}"


# ---- Among tokens ----
def story_tokens(tokens: np.ndarray, tokenizer: Tokenizer) -> np.ndarray:
    """(number of tokens,) bool: which tokens follow a header, up to and including the
    <|endoftext|>.

    "Story:" at the beginning of a line has the same ids in any context, as BPE never merges across
    words or lines.
    """
    marker = tokenizer.encode("\n" + MARKER)
    n_places = max(0, len(tokens) - len(marker) + 1)
    is_marker = np.ones(n_places, dtype=bool)
    for i, token in enumerate(marker):
        is_marker &= tokens[i : i + n_places] == token
    starts = np.flatnonzero(is_marker) + len(marker)
    ends = np.append(np.flatnonzero(tokens == tokenizer.end_of_text), len(tokens))
    is_story = np.zeros(len(tokens), dtype=bool)
    # A second "Story:" marks a part of the story once more.
    for start, end in zip(starts, ends[np.searchsorted(ends, starts)]):
        is_story[start : end + 1] = True
    return is_story
