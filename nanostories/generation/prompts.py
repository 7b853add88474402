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
from nanostories.corpus.token_files import load_meta_and_tokens, load_stories
from nanostories.corpus.tokenizer import Tokenizer

UNSEEN_WORDS = Path(__file__).parents[2] / "prompts" / "unseen_words.txt"
SPLITS = dict(val="validation", train="training")

# Chinese and Japanese have no space between words: there, each character.
WORD = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}]|[^\s\p{Han}\p{Hiragana}\p{Katakana}]+")

Key = tuple[int, int]  # number of the prompt, number of the completion
Continuation = tuple[int, str, bool]  # index of the prompt, the text, whether it ended by itself


@dataclass(frozen=True)
class Sampling:
    temperature: float = 1.0  # 0: greedy
    top_k: int | None = None
    beams: int = 1  # above 1: beam search, without sampling
    max_new_tokens: int | None = None  # None: up to the end of the context
    seed: int = 0


@dataclass
class Prompt:
    text: str
    reference: str | None = None  # the story's true ending

    def row(self) -> dict:
        """Its fields in samples.jsonl; for one that is only a header, with the fields of that."""
        headed = instruct_headers.read(self.text)
        instruction = dict(instruction=headed.instruction) if headed and not headed.story else {}
        return dict(prompt=self.text, reference=self.reference) | instruction


def read_prompts(path: Path) -> list[Prompt]:
    """One prompt per line."""
    lines = path.read_text(encoding="utf-8-sig").split("\n")
    prompts = [Prompt(line.rstrip()) for line in lines if line.strip()]
    if not prompts or path.suffix.startswith(".json"):
        raise UserError(f"{path}: no prompts in it; it must be plain text, one prompt per line")
    return prompts


def first_words(text: str, n: int) -> str:
    return text[: max((word.end() for word in itertools.islice(WORD.finditer(text), n)), default=0)]


def openings(directory: Path, n: int) -> list[str]:
    """The first seven words of n validation stories whose first words differ: examples of prompts
    in any language."""
    found = {}
    for text in itertools.islice(load_stories(directory, "val")[1], 200):
        headed = instruct_headers.read(text)
        opening = first_words(headed.story if headed else text, 7)
        found.setdefault(first_words(opening, 1), opening)
    return [text for text in found.values() if text][:n]


def evaluation_prompts(
    directory: Path,
    n: int,
    cut: float,
    ask: Sequence[str] = (),
    split: str = "val",
    seed: int | None = None,
) -> list[Prompt]:
    """Stories 2 to n + 1 of a split (1 and 2 of TinyStories' validation split begin alike), or with
    a seed n random ones of these, which a larger n adds to. Each is cut after a share `cut` of its
    words; in a corpus with headers, the header is the prompt and the whole story the reference.

    ask: such as ["words", "words,summary"], for two prompts from each story whose header has all
    these fields: one with only the words, and one with both. ValueError if the split has too few
    stories.
    """
    meta, tokens = load_meta_and_tokens(directory, split)
    tokenizer = Tokenizer(**meta["vocabulary"])
    ends = np.flatnonzero(tokens == tokenizer.end_of_text)
    places = np.arange(1, len(ends))
    if seed is not None:
        np.random.default_rng(seed).shuffle(places)
    texts = (tokenizer.decode(tokens[ends[place - 1] + 1 : ends[place]]) for place in places)
    kinds = [kind.split(",") for kind in ask]
    if kinds or "headers" in meta:
        needed = {field for kind in kinds for field in kind}
        stories = (
            story
            for story in map(instruct_headers.read, texts)
            if story and needed <= story.fields.keys()
        )
        headed = (story.only(kind) for story in stories for kind in kinds or [story.fields])
        prompts = (Prompt(story.header, f"\n\n{story.story}") for story in headed)
    else:
        prompts = (cut_story(text, cut) for text in texts)
    n_each = len(kinds) or 1  # prompts from each story
    chosen = list(itertools.islice(prompts, n * n_each))
    if len(chosen) < n * n_each:
        few = f"{len(chosen) // n_each} stories" + f" whose header has {', '.join(ask)}" * bool(ask)
        raise UserError(f"{directory}: after the first, its {split} split has {few}, not {n}")
    return chosen


def cut_story(story: str, share: float) -> Prompt:
    words = list(WORD.finditer(story))
    end = words[max(1, int(share * len(words))) - 1].end()
    return Prompt(story[:end], story[end:])


def unseen_word_prompts(directory: Path, n: int, seed: int) -> list[Prompt]:
    """n headers of one noun, one verb and one adjective each, words of prompts/unseen_words.txt
    that the training stories (and their headers) have in no inflected form. Each word is in one
    header. ValueError if there are too few.

    One of the paper's tests of memorization: does the model use words that it never saw? There are
    no true stories.
    """
    from nanostories.corpus.word_forms import inflections  # here, as it takes a tenth of a second

    meta, stories = load_stories(directory, "train")
    total = meta["splits"]["train"]["stories"]
    bar = tqdm(
        stories,
        "reading training words",
        total,
        unit=" stories",
        disable=None,
        delay=1,
        leave=False,
    )
    seen = {word for story in bar for word in re.findall("[a-z]+", story.lower())}
    rng, unseen = random.Random(seed), []
    for line in UNSEEN_WORDS.read_text(encoding="utf-8").split("\n\n"):
        kind, *words = line.split()
        unseen.append([word for word in words if seen.isdisjoint(inflections(word))])
        rng.shuffle(unseen[-1])
        if len(unseen[-1]) < n:
            few = (
                f"its training stories lack {len(unseen[-1])} of the {kind[:-1]} in"
                f" {UNSEEN_WORDS.name}, not {n}"
            )
            raise UserError(f"{directory}: {few}; add rarer ones, or ask for fewer prompts")
    return [
        Prompt(instruct_headers.format_header(dict(words=", ".join(words))))
        for words in itertools.islice(zip(*unseen), n)
    ]
