"""
Prompts (lines of a file, beginnings of a corpus's stories, or headers), and the settings of
sampling.

>>> evaluation_prompts(Path("data/tinystories"), 50, cut=0.5)[0].text
'Once upon a time, there was'
"""

import itertools
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import regex
from tqdm import tqdm

from nanostories.cli import UserError
from nanostories.corpus import instruct_headers
from nanostories.corpus.sources import split_file
from nanostories.corpus.token_files import load_meta_and_tokens, load_stories
from nanostories.corpus.tokenizer import Tokenizer
from nanostories.files import PROMPTS
from nanostories.text import SENTENCE_END, SPACELESS

UNSEEN_WORDS = PROMPTS / "unseen_words.txt"

# A story is cut between these: words with all that stands against them or, in scripts without
# spaces, characters with the punctuation behind them.
PIECE = regex.compile(rf"[{SPACELESS}]\p{{M}}*[\p{{Po}}\p{{Pe}}\p{{Pf}}]*|[^\s{SPACELESS}]+")

Key = tuple[int, int]  # number of the prompt, number of the completion
Continuation = tuple[Key, str, bool]  # the text, and whether it ended by itself


@dataclass(frozen=True)
class Sampling:
    temperature: float = 1.0  # 0: greedy
    top_k: int | None = None
    beams: int = 1  # above 1: beam search, without sampling
    max_new_tokens: int | None = None  # None: up to the end of the context
    seed: int = 0
    best_of: int = 1  # draws from which sample.py keeps one (best_of.py)


@dataclass
class Prompt:
    text: str
    reference: str | None = None  # the story's true ending

    def row(self) -> dict:
        """Its fields in a set; for one that is only a header, with the fields of that."""
        row = dict(prompt=self.text, reference=self.reference)
        headed = instruct_headers.read(self.text)
        if headed and not headed.story:
            row["instruction"] = headed.instruction
        return row


def read_prompts(path: Path) -> list[Prompt]:
    """One prompt per line."""
    lines = split_file(path, "\n")
    prompts = [Prompt(line.rstrip()) for line in lines if line.strip()]
    if not prompts or path.suffix.startswith(".json"):
        raise UserError(f"{path}: no prompts in it; it must be plain text, one prompt per line")
    return prompts


def first_words(text: str, n: int) -> str:
    end = 0
    for word in itertools.islice(PIECE.finditer(text), n):
        end = word.end()
    return text[:end]


def openings(directory: Path, n: int) -> list[str]:
    """The first seven words of n validation stories whose first words differ: examples of prompts
    in any language."""
    found = {}
    for text in itertools.islice(load_stories(directory, "val")[1], 200):
        headed = instruct_headers.read(text)
        story = headed.story if headed else text
        found.setdefault(first_words(story, 1), first_words(story, 7))
    found.pop("", None)
    return list(found.values())[:n]


def header_words(directory: Path, n: int) -> list[str]:
    """What the headers of n validation stories ask for, such as "hide, fox, little"."""
    texts = itertools.islice(load_stories(directory, "val")[1], 200)
    fields = [headed.fields for headed in map(instruct_headers.read, texts) if headed]
    return [names["words"] for names in fields if "words" in names][:n]


def evaluation_prompts(
    directory: Path,
    n: int,
    cut: float,
    ask: Sequence[str] = (),
    split: str = "val",
    seed: int = 0,
) -> list[Prompt]:
    """Stories 2 to n + 1 of a split (1 and 2 of TinyStories' validation split begin alike); of the
    training split n random ones, which a larger n adds to. Each is cut after a share `cut` of its
    words; in a corpus with headers, the header is the prompt and the whole story the reference.

    ask: such as ["words", "words,summary"], for two prompts from each story whose header has all
    these fields: one with only the words, and one with both. UserError if the split has too few
    stories.
    """
    meta, tokens = load_meta_and_tokens(directory, split)
    tokenizer = Tokenizer(**meta["vocabulary"])
    ends = np.flatnonzero(tokens == tokenizer.end_of_text)
    places = np.arange(1, len(ends))
    if split == "train":
        np.random.default_rng(seed).shuffle(places)
    prompts = []
    n_stories = 0
    for place in places:
        text = tokenizer.decode(tokens[ends[place - 1] + 1 : ends[place]])
        if ask or "headers" in meta:
            found = header_prompts(text, ask)
        else:
            found = [cut_story(text, cut)]
        prompts += found
        n_stories += bool(found)
        if n_stories == n:
            return prompts
    few = f"{n_stories} stories"
    if ask:
        few += f" whose header has {', '.join(ask)}"
    raise UserError(f"{directory}: after the first, its {split} split has {few}, not {n}")


def header_prompts(text: str, ask: Sequence[str]) -> list[Prompt]:
    """None of them if the header lacks one of the fields."""
    story = instruct_headers.read(text)
    asked = [fields.split(",") for fields in ask]
    if not story or not story.fields.keys() >= set(itertools.chain(*asked)):
        return []
    headers = [story.only(fields) for fields in asked] or [story]
    return [Prompt(headed.header, f"\n\n{story.story}") for headed in headers]


def cut_story(story: str, share: float) -> Prompt:
    """Cut after a share of its words; where a sentence would end there, or speech begin with a
    dash, before the last word, so that the beginning breaks off in mid-sentence, as the paper's
    do."""
    n = max(1, int(share * len(PIECE.findall(story))))
    ends = {match.end() for match in SENTENCE_END.finditer(story)}
    beginning = first_words(story, n)
    while n > 1 and (len(beginning) in ends or beginning.endswith(("–", "—", "-"))):
        n -= 1
        beginning = first_words(story, n)
    return Prompt(beginning, story.removeprefix(beginning))


def unseen_word_prompts(directory: Path, n: int, seed: int) -> list[Prompt]:
    """n headers, or as many as there are words for, of one noun, one verb and one adjective each:
    words of prompts/unseen_words.txt that the training stories (and their headers) have in no
    inflected form. Each word is in one header. UserError if there are none.

    One of the paper's tests of memorization: does the model use words that it never saw? There are
    no true stories.
    """
    from nanostories.corpus.word_forms import inflections  # here, as it takes a tenth of a second

    meta, stories = load_stories(directory, "train")
    total = meta["splits"]["train"]["stories"]
    seen = set()
    for story in tqdm(stories, "reading training words", total, disable=None, delay=1, leave=False):
        seen.update(re.findall("[a-z]+", story.lower()))
    rng = random.Random(seed)
    unseen = []  # nouns, verbs, adjectives
    for paragraph in UNSEEN_WORDS.read_text(encoding="utf-8").split("\n\n"):
        _, *words = paragraph.split()
        words = [word for word in words if seen.isdisjoint(inflections(word))]
        rng.shuffle(words)
        unseen.append(words)
    headers = [dict(words=", ".join(words)) for words in zip(*unseen)][:n]
    remedy = f"{UNSEEN_WORDS} needs rarer ones"
    if not headers:
        raise UserError(f"{directory}: its training stories have all words; {remedy}")
    if len(headers) < n:
        print(f"{len(headers)} prompts, not {n}, as most words are in training stories; {remedy}")
    return [Prompt(instruct_headers.format_header(header)) for header in headers]
