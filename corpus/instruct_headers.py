"""
The header over a story, which says what the story is to contain, as in TinyStories-Instruct (section 2.1):

    Words: jump, frog, red
    Features: Dialogue, BadEnding
    Summary: A frog jumps too far and is lost.
    Random sentence: The pond was cold and deep.
    Story:

    Once upon a time …

Any of the fields, in any order. Here headers are read, written, drawn, and found among tokens.
"""

import random
import re
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from corpus.builtin_stories import FEATURES, Story, sentences, three_words
from corpus.tokenizer import Tokenizer

FIELDS = {"words": "Words", "features": "Features", "summary": "Summary", "sentence": "Random sentence"}
LISTS = ("words", "features")
MARKER = "Story:"
NAMES = {title: name for name, title in FIELDS.items()}
FIELD = re.compile(rf"^({'|'.join(NAMES)}):", re.M)
BEHIND = re.compile(rf"(?:\n+(?:{'|'.join(NAMES)}):[^\n]*)+\s*\Z")  # fields that stand below the story

# What meta.json says of a corpus with headers
ANY = "any fields together"
OOD = "in train never words and summary together"


@dataclass(frozen=True)
class Headed:
    """A story under its header."""

    fields: Mapping[str, str]  # name, as in FIELDS -> what the header says there, in its order
    story: str

    @property
    def header(self) -> str:
        """Up to and with "Story:"."""
        return "".join(f"{FIELDS[name]}: {text}\n" for name, text in self.fields.items()) + MARKER

    @property
    def instruction(self) -> dict:
        """What is asked for, by the names in FIELDS: words and features as lists, summary and sentence as texts."""
        return {name: parts(text) if name in LISTS else text for name, text in self.fields.items()}

    def only(self, names: Collection[str]) -> "Headed":
        """Under a header that has no other fields than these."""
        return Headed({name: text for name, text in self.fields.items() if name in names}, self.story)

    def __str__(self) -> str:
        return f"{self.header}\n\n{self.story}"


def read(text: str) -> Headed | None:
    """None where no header stands above a "Story:"; so the published validation file begins, in the middle of a story.

    In many published texts the summary stands below the story. It is moved up: what follows a story cannot instruct
    its writer.
    """
    marker = re.search(rf"^{MARKER}", text, re.M)
    if not marker:
        return None
    story = text[marker.end() :]
    behind = BEHIND.search(story)
    above, *fields = FIELD.split(text[: marker.start()])
    if behind:
        story = story[: behind.start()]
        fields += FIELD.split(behind[0])[1:]
    fields = {NAMES[title]: " ".join(value.split()) for title, value in zip(fields[::2], fields[1::2])}
    fields = {name: value for name, value in fields.items() if value}
    return Headed(fields, story.strip()) if fields and not above.strip() else None


def parts(text: str) -> list[str]:
    """ "jump, frog" -> ["jump", "frog"]"""
    return [part.strip() for part in text.split(",") if part.strip()]


def write(fields: Mapping[str, str]) -> str:
    """A header that asks for this. ValueError for a feature that there is none of."""
    fields = {name: " ".join(text.split()) for name, text in fields.items()}
    fields |= {name: ", ".join(parts(fields[name])) for name in LISTS if name in fields}
    if unknown := [feature for feature in parts(fields.get("features", "")) if feature not in FEATURES]:
        raise ValueError(f"no such feature: {', '.join(unknown)}; known are {', '.join(FEATURES)}")
    return Headed(fields, "").header


# ---- Headers for stories that have none ----


def draw(fields: Mapping[str, str], rng: random.Random, always: Collection[str] = ()) -> dict[str, str]:
    """Some of the fields and those of `always`, in any order; every choice of at least one is equally likely."""
    choice = rng.randrange(1, 2 ** len(fields))
    names = [name for i, name in enumerate(fields) if choice >> i & 1 or name in always]
    rng.shuffle(names)
    return {name: fields[name] for name in names}


def of_builtin(story: Story, always: Collection[str] = ()) -> str:
    """A built-in story under a header that has some of what is known of it."""
    fields = dict(words=", ".join(story.words), features=", ".join(story.features))
    fields |= dict(summary=story.summary, sentence=story.sentence)
    fields = {name: text for name, text in fields.items() if text}
    return str(Headed(draw(fields, random.Random(story.text), always), story.text))


def derived(text: str) -> str:
    """Any story under a header with some of what can be read off it: words of three kinds, whether somebody speaks, a
    sentence. Not the summary, nor the other features: these take understanding. One that has a header keeps it."""
    if read(text):
        return text
    rng = random.Random(text)
    found = sentences(text)
    fields = dict(
        words=", ".join(three_words(text, rng)),
        features="Dialogue" if re.search('["“]', text) else "",
        sentence=rng.choice(found).strip() if found else "",
    )
    fields = {name: value for name, value in fields.items() if value}
    return str(Headed(draw(fields, rng) if fields else {}, text.strip()))


# ---- Out of distribution ----


def apart(headed: Headed) -> Headed:
    """With its words or its summary, never both; which one, its story decides, as by a coin."""
    if not {"words", "summary"} <= headed.fields.keys():
        return headed
    loses = ("words", "summary")[zlib.crc32(headed.story.encode()) % 2]
    return headed.only(headed.fields.keys() - {loses})


# ---- Among tokens ----


def story_tokens(tokens: np.ndarray, tokenizer: Tokenizer) -> np.ndarray:
    """(number of tokens,) bool: which ones follow a header, up to and with the <|endoftext|>.

    "Story:" at the beginning of a line has the same ids whatever stands around it: BPE never merges across the edge of
    a word or of a line.
    """
    marker = tokenizer.encode("\n" + MARKER)
    found = np.ones(max(0, len(tokens) - len(marker) + 1), dtype=bool)
    for i, token in enumerate(marker):
        found &= tokens[i : i + len(found)] == token
    begins = np.flatnonzero(found) + len(marker)
    ends = np.append(np.flatnonzero(tokens == tokenizer.end_of_text), len(tokens))
    story, first = np.unique(np.searchsorted(ends, begins), return_index=True)  # what says "Story:" again is told
    edges = np.zeros(len(tokens) + 2, dtype=np.int8)
    edges[begins[first]] = 1
    edges[ends[story] + 1] = -1
    return np.cumsum(edges, dtype=np.int8)[: len(tokens)].view(bool)
