"""
The words of a training set as a stream of ids, for nanostories/novelty/search.py. Made once
(seconds for 100,000 stories) and kept in ~/.cache/nanostories/words, under the checksum of its
train.bin.

Words are those of rouge-score: runs of letters a to z and digits, lowercased.

>>> corpus = open_corpus("data/sample")
>>> len(corpus), [*corpus.vocabulary][:4]
(6756, ['once', 'upon', 'a', 'time'])
"""

import collections
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numba
import numpy as np
from tqdm import tqdm

from nanostories.cli import UserError
from nanostories.corpus.token_files import load_meta_and_tokens, stories_of
from nanostories.corpus.tokenizer import Tokenizer
from nanostories.files import cache_directory, write_atomically
from nanostories.novelty.search import Stream
from nanostories.text import MID_SENTENCE_WORD, names_among

TOKENS_PER_BLOCK = 1_000_000
RULES = 1  # a number in the names of kept files: count up whenever other words or names are read
WORD = re.compile("[a-z0-9]+")


def words_of(text: str) -> list[str]:
    """The words of a text, as rouge-score splits it without a stemmer."""
    return WORD.findall(text.lower())


@dataclass
class WordCorpus:
    """The stories of a training set, as words or as tokens."""

    stream: Stream
    tokens: np.ndarray  # (tokens,) uint16, train.bin
    token_ends: (
        np.ndarray
    )  # (stories,) int64, the index in `tokens` of the <|endoftext|> of each story
    held_out: np.ndarray  # (tokens,) uint16, val.bin
    tokenizer: Tokenizer
    n_ids: int  # different words; ids from n_ids on are words that the training set lacks
    vocabulary: dict[str, int] | None = (
        None  # word -> id, grows with `encode`; None if the ids are tokens
    )
    names: frozenset[str] = frozenset()  # lowercased: nanostories/text.py

    def __len__(self) -> int:
        return len(self.token_ends)

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """(words,) int64 for each text; words missing from the training set get new ids."""
        if self.vocabulary is None:
            return [np.array(self.tokenizer.encode(text), dtype=np.int64) for text in texts]
        ids = self.vocabulary
        return [
            np.array([ids.setdefault(w, len(ids)) for w in words_of(text)], dtype=np.int64)
            for text in texts
        ]

    def text(self, story: int) -> str:
        start = self.token_ends[story - 1] + 1 if story else 0
        return self.tokenizer.decode(self.tokens[start : self.token_ends[story]])

    def excerpt(self, text: str, first: int, n: int) -> str:
        """n words (or tokens) of a text from number `first` on, as they are written."""
        if self.vocabulary is None:
            return self.tokenizer.decode(self.tokenizer.encode(text)[first : first + n])
        words = list(WORD.finditer(text.lower()))[first : first + n]
        return text[words[0].start() : words[-1].end()] if words else ""


def open_corpus(directory: str | Path, by_tokens: bool = False) -> WordCorpus:
    """The training set of data/<name>/. by_tokens: its tokens take the place of words."""
    meta, tokens, held_out = load_meta_and_tokens(directory, "train", "val")
    tokenizer = Tokenizer(**meta["vocabulary"])
    token_ends = np.flatnonzero(tokens == tokenizer.end_of_text)
    if by_tokens:
        stream = Stream(tokens, np.append(0, token_ends[:-1] + 1), token_ends)
        return WordCorpus(stream, tokens, token_ends, held_out, tokenizer, tokenizer.vocab_size)
    path = cache_directory() / "words" / f"{meta['splits']['train']['sha256'][:32]}-{RULES}.npz"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with write_atomically(path) as temporary, temporary.open("wb") as file:
            np.savez(
                file, **read_words(tokens, token_ends, tokenizer, f"reading words of {directory}")
            )
    with np.load(path) as kept:
        ids, ends = kept["ids"], kept["ends"]
        vocabulary, names = (
            kept[name].tobytes().decode().split() for name in ("vocabulary", "names")
        )
    if not vocabulary:
        raise UserError(f"{directory}: it has no words of letters a to z or digits; use --tokens")
    stream, numbers = (
        Stream(ids, np.append(0, ends[:-1]), ends),
        {word: i for i, word in enumerate(vocabulary)},
    )
    return WordCorpus(
        stream, tokens, token_ends, held_out, tokenizer, len(numbers), numbers, frozenset(names)
    )


def draw_excerpts(
    corpus: WordCorpus, texts: list[np.ndarray], begins: list[int], at_least: int
) -> tuple[list[np.ndarray], np.ndarray]:
    """An excerpt of a validation story for each text, as long as it and, if the story is long
    enough, from the same offset; several for each if there are fewer than `at_least`. Also returns
    the indices of their stories."""
    n = max(len(texts), at_least)
    held_out = corpus.encode(
        list(itertools.islice(stories_of(corpus.held_out, corpus.tokenizer), max(n, 1000)))
    )
    held_out = list({story.tobytes(): story for story in held_out}.values())  # each once
    longest, story, excerpts, excerpt_story = max(map(len, held_out)), -1, [], []
    for text, begin in itertools.islice(itertools.cycle(zip(texts, begins)), n):
        length, story = min(len(text), longest), story + 1
        while len(held_out[story % len(held_out)]) < length:
            story += 1
        excerpt_story.append(story % len(held_out))
        whole = held_out[excerpt_story[-1]]
        begin = min(begin, len(whole) - length)
        excerpts.append(whole[begin : begin + length])
    return excerpts, np.array(excerpt_story)


def read_words(
    tokens: np.ndarray, token_ends: np.ndarray, tokenizer: Tokenizer, label: str
) -> dict[str, np.ndarray]:
    """ids (words,) uint32, numbered as they first occur; ends (stories,), the number of words
    before the end of each story; vocabulary and names, one word on each line.

    Stories are cut into pieces before each space, where no word goes on. Python reads each
    different piece once.
    """
    spelling = [*tokenizer.ranks, b""]
    spaced = np.array([letters.startswith(b" ") for letters in spelling])
    nodes, numbers = (
        numba.typed.Dict.empty(numba.int64, numba.int64),
        np.full(1 << 16, -1, np.int32),
    )
    vocabulary, ids, ends, n_ids = {}, [], [], 0
    texts, goes_on, words, first_word = (
        [],
        [],
        [],
        [0],
    )  # piece i has words[first_word[i] : first_word[i + 1]]
    in_mid_sentence = np.zeros(0, int)  # how often each piece is there
    last = np.flatnonzero(
        np.diff(token_ends // TOKENS_PER_BLOCK, append=-1)
    )  # stories of their blocks
    for block in tqdm(
        np.split(tokens, token_ends[last[:-1]] + 1), label, leave=False, disable=None, delay=1
    ):
        block = np.asarray(block)  # slices of a memory map are slow
        numbers = np.append(numbers[: (1 << 16) + len(nodes)], np.full(len(block), -1, np.int32))
        is_end = block == tokenizer.end_of_text
        begins = np.flatnonzero(spaced[block] | is_end | np.append(True, is_end[:-1]))
        pieces, new = number_pieces(block, begins, nodes, numbers, len(texts))
        for start, end in zip(
            begins[new].tolist(), np.append(begins, len(block))[new + 1].tolist()
        ):
            texts.append(
                b"".join([spelling[token] for token in block[start:end].tolist()]).decode(
                    errors="replace"
                )
            )
            goes_on.append(bool(MID_SENTENCE_WORD.match(texts[-1] + " a", len(texts[-1]) + 1)))
            words += [vocabulary.setdefault(word, len(vocabulary)) for word in words_of(texts[-1])]
            first_word.append(len(words))
        n_words, first = np.diff(first_word)[pieces], np.array(first_word)[pieces]
        stop = np.cumsum(n_words)
        ids.append(
            np.array(words, np.uint32)[
                np.repeat(first - stop + n_words, n_words) + np.arange(stop[-1])
            ]
        )
        ends.append(n_ids + stop[is_end[begins]])
        n_ids += stop[-1]
        in_mid_sentence = np.append(in_mid_sentence, np.zeros(len(new), int))
        in_mid_sentence += np.bincount(
            pieces[1:][np.array(goes_on)[pieces[:-1]]], minlength=len(texts)
        )
    counts = collections.Counter()
    for text, n in zip(texts, in_mid_sentence.tolist()):
        if n and (word := MID_SENTENCE_WORD.match("a" + text, 2)):
            counts[word[0]] += n
    spelled = dict(vocabulary=vocabulary, names=names_among(counts))
    lines = {
        name: np.frombuffer("\n".join(some).encode(), np.uint8) for name, some in spelled.items()
    }
    return dict(ids=np.concatenate(ids), ends=np.concatenate(ends), **lines)


@numba.njit(cache=True)
def number_pieces(tokens, begins, nodes, numbers, n):
    """-> (pieces,) a number for each piece, in the order in which they first occur in any block,
    and the indices of those that are new. nodes: a trie, node << 32 | token -> node, where a
    token's own node is the first; it grows. numbers: (nodes,) those of the n pieces so far, and -1;
    changed in place."""
    pieces, new = np.empty(len(begins), np.int32), np.zeros(len(begins), np.bool_)
    for i in range(len(begins)):
        node = np.int64(tokens[begins[i]])
        for place in range(begins[i] + 1, begins[i + 1] if i + 1 < len(begins) else len(tokens)):
            node = nodes.setdefault(node << 32 | tokens[place], (1 << 16) + len(nodes))
        if numbers[node] < 0:
            numbers[node], new[i] = n, True
            n += 1
        pieces[i] = numbers[node]
    return pieces, np.flatnonzero(new)
