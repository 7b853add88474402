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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numba
import numpy as np
from tqdm import tqdm

from nanostories.corpus.instruct_headers import story_tokens
from nanostories.corpus.token_files import load_meta_and_tokens, stories_of
from nanostories.corpus.tokenizer import Tokenizer
from nanostories.files import cache_directory, write_atomically
from nanostories.novelty.search import Stream
from nanostories.text import MID_SENTENCE_WORD, WORD, names_among, words_of

STORIES_PER_BLOCK = 5000
RULES = 3  # in the names of kept files: count up whenever other words or names are read
MOST_TOKENS = 1 << 16  # different ones, as they are uint16


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
        words = read_words(tokens, token_ends, tokenizer, f"reading words of {directory}")
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
def read_words(
    tokens: np.ndarray, token_ends: np.ndarray, tokenizer: Tokenizer, label: str
) -> dict[str, np.ndarray]:
    """ids, bounds: as in search.Stream. vocabulary, names: texts, one word a line."""
    reader = PieceReader(tokenizer)
    ids = []
    lengths = []
    last_stories = slice(STORIES_PER_BLOCK - 1, -1, STORIES_PER_BLOCK)  # but of the last block
    blocks = np.split(tokens, token_ends[last_stories] + 1)
    for block in tqdm(blocks, label, leave=False, disable=None, delay=1):
        block_ids, block_lengths = reader.read(np.asarray(block))  # slices of a file are slow
        ids.append(block_ids)
        lengths.append(block_lengths)
    return {
        "ids": np.concatenate(ids),
        "bounds": np.cumsum(np.concatenate([[0], *lengths])),
        "vocabulary": np.array("\n".join(reader.vocabulary)),
        "names": np.array("\n".join(names_among(reader.mid_sentence))),
    }


class Piece(NamedTuple):
    ids: list[int]  # of its words
    first_word: str  # as it is spelled; "" if it does not begin with one
    is_unfinished: bool  # whether its sentence goes on in the next piece


class PieceReader:
    """Reads words. Stories are cut into pieces before each space, where no word goes on, and each
    different piece is read once: Python sees 100,000 pieces instead of millions of words."""

    def __init__(self, tokenizer: Tokenizer):
        self.end_of_text = tokenizer.end_of_text
        self.spelling = [*tokenizer.ranks, b""]  # <|endoftext|> is no text
        self.has_space = np.array([letters.startswith(b" ") for letters in self.spelling])
        self.vocabulary = {}  # word -> id
        self.pieces = {}  # by their tokens
        self.mid_sentence = collections.Counter()  # how often each word occurs mid-sentence

    def read(self, block: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """block: (tokens,) of whole stories. Returns (words,) ids, and (stories,) how many each
        has."""
        is_end = block == self.end_of_text
        follows_end = np.roll(is_end, 1)  # so does the first: the last is an end
        begins = np.flatnonzero(self.has_space[block] | is_end | follows_end)
        ends = np.append(begins[1:], len(block))
        examples, kinds = group_equal(block, begins, ends)
        pieces = [self.piece(block[begins[i] : ends[i]]) for i in examples]
        self.count_mid_sentence(pieces, kinds)
        ids = np.array([word for piece in pieces for word in piece.ids], np.uint32)
        bounds = np.cumsum([0, *(len(piece.ids) for piece in pieces)])
        n_words = np.cumsum(np.diff(bounds)[kinds])  # of the block, to the end of each piece
        words = words_of_pieces(ids, bounds, kinds, n_words[-1])
        return words, np.diff(n_words[is_end[begins]], prepend=0)

    def piece(self, tokens: np.ndarray) -> Piece:
        key = tokens.tobytes()
        if key not in self.pieces:
            text = b"".join([self.spelling[token] for token in tokens]).decode(errors="replace")
            numbers = self.vocabulary
            ids = [numbers.setdefault(word, len(numbers)) for word in words_of(text)]
            # The pattern needs a lower-case letter or a comma, and a space, before the word: "a"
            # stands for what comes before the piece, then for the word that comes after it.
            first_word = MID_SENTENCE_WORD.match(f"a{text}", 2)
            next_word = MID_SENTENCE_WORD.match(f"{text} a", len(text) + 1)
            self.pieces[key] = Piece(ids, first_word[0] if first_word else "", bool(next_word))
        return self.pieces[key]

    def count_mid_sentence(self, pieces: list[Piece], kinds: np.ndarray) -> None:
        is_before = np.array([piece.is_unfinished for piece in pieces])[kinds[:-1]]
        counts = np.bincount(kinds[1:][is_before])
        for piece, count in zip(pieces, counts.tolist()):
            if count and piece.first_word:
                self.mid_sentence[piece.first_word] += count


@numba.njit(cache=True)
def words_of_pieces(ids, bounds, kinds, n_words):
    """Words of pieces one after another: those of kind i are ids[bounds[i] : bounds[i + 1]]."""
    words = np.empty(n_words, ids.dtype)
    n = 0
    for kind in kinds:
        for word in ids[bounds[kind] : bounds[kind + 1]]:
            words[n] = word
            n += 1
    return words


def group_equal(
    block: np.ndarray, begins: np.ndarray, ends: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Gives equal pieces the same number, their kind. Returns an example of each kind, (kinds,)
    indices of pieces; and the kind of each piece, (pieces,).

    Pieces are grouped by their first tokens; those that go on, by this group and their second
    tokens; and so on."""
    lengths = ends - begins
    groups = block[begins].astype(np.int64)
    n_groups = MOST_TOKENS
    longer = np.flatnonzero(lengths > 1)
    length = 1
    while len(longer):
        pairs = groups[longer] * MOST_TOKENS + block[begins[longer] + length]
        distinct, which = np.unique(pairs, return_inverse=True)
        groups[longer] = n_groups + which
        n_groups += len(distinct)
        length += 1
        longer = longer[lengths[longer] > length]
    example = np.full(n_groups, -1)
    example[groups] = np.arange(len(groups))
    is_used = example >= 0
    kinds = np.cumsum(is_used) - 1
    return example[is_used], kinds[groups]
