"""
The words of a training set as a stream of ids, for nanostories/novelty/search.py. Made once
(seconds for 100,000 stories) and kept in ~/.cache/nanostories/words, under the checksum of its
train.bin.

>>> corpus = open_corpus("data/sample")
>>> len(corpus)
6756
"""

import collections
import itertools
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from nanostories.corpus.instruct_headers import story_tokens
from nanostories.corpus.token_files import load_meta_and_tokens, stories_of
from nanostories.corpus.tokenizer import Tokenizer
from nanostories.files import cache_directory, write_atomically
from nanostories.novelty.search import Stream
from nanostories.text import MID_SENTENCE_WORD, WORD, names_among, words_of

RULES = 3  # in the names of kept files: count up whenever other words or names are read


@dataclass
class WordCorpus:
    """The stories of a training set, as words."""

    directory: Path  # data/<name>/
    stream: Stream
    tokens: np.ndarray  # (tokens,) uint16, train.bin without headers
    token_ends: np.ndarray  # (stories,) int64, where in `tokens` the <|endoftext|> of each story is
    held_out: np.ndarray  # (tokens,) uint16, val.bin without headers
    tokenizer: Tokenizer
    vocabulary: dict[str, int]  # word -> id; grows with `encode`
    names: frozenset[str]  # in lower case: nanostories/text.py

    def __post_init__(self):
        self.n_training_words = len(self.vocabulary)  # later ids are of words in no training story

    def __len__(self) -> int:
        return len(self.token_ends)

    def encode(self, text: str) -> np.ndarray:
        """(words,) int64; words that are in no training story get new ids."""
        ids = [self.vocabulary.setdefault(word, len(self.vocabulary)) for word in words_of(text)]
        return np.array(ids, dtype=np.int64)

    def text(self, story: int) -> str:
        start = self.token_ends[story - 1] + 1 if story else 0
        return self.tokenizer.decode(self.tokens[start : self.token_ends[story]])


def passage(text: str, first: int, n: int) -> str:
    """n words of a text from number `first` on, as they are written."""
    words = list(WORD.finditer(text))[first : first + n]
    return text[words[0].start() : words[-1].end()] if words else ""


def open_corpus(directory: str | Path) -> WordCorpus:
    """The training set of data/<name>/, without headers."""
    meta, tokens, held_out = load_meta_and_tokens(directory, "train", "val")
    tokenizer = Tokenizer(**meta["vocabulary"])
    if "headers" in meta:  # instructions are no stories
        tokens = tokens[story_tokens(tokens, tokenizer)]
        held_out = held_out[story_tokens(held_out, tokenizer)]
    token_ends = np.flatnonzero(tokens == tokenizer.end_of_text)
    path = cache_directory() / "words" / f"{meta['splits']['train']['sha256'][:32]}-{RULES}.npz"
    if not path.exists():
        label = f"reading words of {directory}"
        words = read_words(tokens, tokenizer, label, len(token_ends))
        with write_atomically(path) as temporary, temporary.open("wb") as file:
            np.savez(file, **words)
    with np.load(path) as kept:
        stream = Stream(kept["ids"], kept["bounds"])
        words = str(kept["vocabulary"]).split()
        names = frozenset(str(kept["names"]).split())
    vocabulary = {word: i for i, word in enumerate(words)}
    return WordCorpus(
        Path(directory), stream, tokens, token_ends, held_out, tokenizer, vocabulary, names
    )


def draw_excerpts(
    corpus: WordCorpus, texts: Sequence[np.ndarray], begins: Sequence[int], at_least: int
) -> tuple[list[np.ndarray], np.ndarray]:
    """An excerpt of a validation story for each text, as long as it and, if the story is long
    enough, from the same word on; several for each if there are fewer than `at_least`. Also returns
    the numbers of their stories."""
    n = max(len(texts), at_least)
    read = itertools.islice(stories_of(corpus.held_out, corpus.tokenizer), max(n, 1000))
    stories = [corpus.encode(story) for story in dict.fromkeys(read)]
    longest = max(map(len, stories))
    excerpts = []
    numbers = []
    for i in range(n):
        text = i % len(texts)
        length = min(len(texts[text]), longest)
        fitting = [number for number, story in enumerate(stories) if len(story) >= length]
        number = fitting[i % len(fitting)]
        first = min(begins[text], len(stories[number]) - length)
        excerpts.append(stories[number][first : first + length])
        numbers.append(number)
    return excerpts, np.array(numbers)


# ---- Reading all words of a training set ----
class Piece(NamedTuple):
    """What stands between two spaces, where no word goes on."""

    ids: array  # of its words
    first_word: str  # as it is spelled; "" if it does not begin with one
    is_unfinished: bool  # whether its sentence goes on in the next piece


def read_words(
    tokens: np.ndarray, tokenizer: Tokenizer, label: str, n_stories: int
) -> dict[str, np.ndarray]:
    """ids, bounds: as in search.Stream. vocabulary, names: texts, one word a line.

    Each different piece is read once: there are 100,000, of millions of words."""
    vocabulary = {}  # word -> id
    pieces = {}  # by their text
    ids = array("I")
    bounds = [0]
    mid_sentence = collections.Counter()  # how often each word occurs mid-sentence
    stories = stories_of(tokens, tokenizer)
    for story in tqdm(stories, label, n_stories, leave=False, disable=None, delay=1):
        goes_on = False
        for text in story.split(" "):
            piece = pieces.get(text)
            if piece is None:
                piece = pieces[text] = read_piece(text, vocabulary)
            ids.extend(piece.ids)
            if goes_on and piece.first_word:
                mid_sentence[piece.first_word] += 1
            goes_on = piece.is_unfinished
        bounds.append(len(ids))
    return {
        "ids": np.array(ids, np.uint32),
        "bounds": np.array(bounds),
        "vocabulary": np.array("\n".join(vocabulary)),
        "names": np.array("\n".join(names_among(mid_sentence))),
    }


def read_piece(text: str, vocabulary: dict[str, int]) -> Piece:
    """Words that are not in the vocabulary yet get the next ids."""
    ids = array("I", [vocabulary.setdefault(word, len(vocabulary)) for word in words_of(text)])
    # The pattern needs a lower-case letter or a comma, and a space, before the word.
    first_word = MID_SENTENCE_WORD.match(f"a {text}", 2)
    next_word = MID_SENTENCE_WORD.match(f"{text} a", len(text) + 1)
    return Piece(ids, first_word[0] if first_word else "", bool(next_word))
