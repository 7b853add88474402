"""
The words of a training set as a stream of ids, for novelty/search.py. Made once (seconds for 100,000 stories, by numba)
and kept in ~/.cache/nanostories/words, under the checksum of its train.bin.

Words are those of rouge-score: runs of letters a to z and digits, lowercased.

>>> corpus = open_corpus("data/sample")
>>> len(corpus), [*corpus.vocabulary][:4]
(6756, ['once', 'upon', 'a', 'time'])
"""

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numba
import numpy as np
from tqdm import tqdm

from common.files import cache_directory, write_atomically
from corpus.character_names import names_among
from corpus.token_files import load_meta_and_tokens
from corpus.tokenizer import Tokenizer
from novelty.search import MIX, Stream, size_of_table

TOKENS_PER_BLOCK = 500_000
WORD = re.compile("[A-Za-z0-9]+")
# The only two non-ASCII characters whose lower case contains a letter from a to z: the Kelvin sign, I with a dot.
SPELLED_OUT = str.maketrans({"\u212a": "K", "\u0130": "I\u0307"})
LOWER = np.array([ord(chr(c).lower()) if WORD.match(chr(c)) else 0 for c in range(256)], dtype=np.uint8)
END = b"\xff"  # after every story, in a stream of bytes: no byte of UTF-8


def words_of(text: str) -> list[str]:
    """The words of a text, as rouge-score splits it without a stemmer."""
    return WORD.findall(text.translate(SPELLED_OUT).lower())


@dataclass
class Corpus:
    """The stories of a training set, as words or as tokens."""

    stream: Stream
    tokens: np.ndarray  # (tokens,) uint16, train.bin
    token_ends: np.ndarray  # (stories,) int64, the index in `tokens` of the <|endoftext|> of each story
    held_out: np.ndarray  # (tokens,) uint16, val.bin
    tokenizer: Tokenizer
    n_ids: int  # of different words; ids from n_ids on are of words that the training set lacks
    vocabulary: dict[str, int] | None = None  # word -> id, grows with `encode`; None if the ids are tokens
    names: frozenset[str] = frozenset()  # lowercased: corpus/character_names.py

    def __len__(self) -> int:
        return len(self.token_ends)

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """(words,) int64 for each text; words missing from the training set get new ids."""
        if self.vocabulary is None:
            return [np.array(self.tokenizer.encode(text), dtype=np.int64) for text in texts]
        ids = self.vocabulary
        return [np.array([ids.setdefault(w, len(ids)) for w in words_of(text)], dtype=np.int64) for text in texts]

    def story_at(self, place: int) -> int:
        """The story that stream.ids[place] belongs to."""
        return int(np.searchsorted(self.stream.starts, place, side="right")) - 1

    def text(self, story: int) -> str:
        start = self.token_ends[story - 1] + 1 if story else 0
        return self.tokenizer.decode(self.tokens[start : self.token_ends[story]])

    def excerpt(self, text: str, first: int, n: int) -> str:
        """n words (or tokens) of a text from number `first` on, as they are written."""
        if self.vocabulary is None:
            return self.tokenizer.decode(self.tokenizer.encode(text)[first : first + n])
        text = text.translate(SPELLED_OUT)
        words = list(WORD.finditer(text))[first : first + n]
        return text[words[0].start() : words[-1].end()] if words else ""


def open_corpus(directory: str | Path, by_tokens: bool = False) -> Corpus:
    """The training set of data/<name>/. by_tokens: its tokens take the place of words."""
    meta, tokens, held_out = load_meta_and_tokens(directory, "train", "val")
    tokenizer = Tokenizer(meta["gpt2_ids"])
    token_ends = np.flatnonzero(tokens == tokenizer.end_of_text)
    if by_tokens:
        stream = Stream(tokens, np.append(0, token_ends[:-1] + 1), token_ends)
        return Corpus(stream, tokens, token_ends, held_out, tokenizer, tokenizer.vocab_size)
    path = cache_directory() / "words" / f"{meta['splits']['train']['sha256'][:32]}.npz"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with write_atomically(path) as temporary, temporary.open("wb") as file:
            np.savez(file, **read_words(tokens, token_ends, tokenizer, f"reading words of {directory}"))
    with np.load(path) as kept:
        ids, ends = kept["ids"], kept["ends"]
        vocabulary, names = (kept[name].tobytes().decode().split() for name in ("vocabulary", "names"))
    if not vocabulary:
        raise ValueError(f"{directory}: it has no words of letters a to z or digits; use --tokens")
    stream, numbers = Stream(ids, np.append(0, ends[:-1]), ends), {word: i for i, word in enumerate(vocabulary)}
    return Corpus(stream, tokens, token_ends, held_out, tokenizer, len(numbers), numbers, frozenset(names))


def read_words(tokens: np.ndarray, token_ends: np.ndarray, tokenizer: Tokenizer, label: str) -> dict[str, np.ndarray]:
    """ids (words,) uint32, numbered as they first occur; ends (stories,), the number of words before the end of each
    story; vocabulary and names, one word on each line."""
    spelling = np.frombuffer(b"".join([*tokenizer.ranks, END]), np.uint8)
    offsets = np.cumsum([0, *map(len, tokenizer.ranks), 1])
    block = token_ends // TOKENS_PER_BLOCK  # (stories,)
    starts = np.append(0, token_ends[np.flatnonzero(np.diff(block))] + 1)
    blocks = [tokens[start:end] for start, end in zip(starts, [*starts[1:], len(tokens)])]
    vocabulary, in_mid_sentence, ids, ends = {}, [], [], [0]

    def split_block(block: np.ndarray) -> tuple:
        text = spell(block, spelling, offsets).tobytes()
        for character, letters in SPELLED_OUT.items():
            text = text.replace(chr(character).encode(), letters.encode())
        text = np.frombuffer(text, np.uint8)
        letters = LOWER[text]
        return letters.tobytes(), *split(text, letters)

    bar = tqdm(desc=label, total=len(tokens), unit="token", unit_scale=True, disable=None, delay=1)
    with ThreadPoolExecutor(numba.config.NUMBA_NUM_THREADS) as pool, bar:
        for letters, found, found_ends, words, capitals in pool.map(split_block, blocks):
            spelled = (letters[start : start + n].decode() for start, n in words)
            numbers = [vocabulary.setdefault(word, len(vocabulary)) for word in spelled]
            in_mid_sentence += [[0, 0] for _ in range(len(vocabulary) - len(in_mid_sentence))]
            for number, counts in zip(numbers, capitals.tolist()):
                in_mid_sentence[number] = [a + b for a, b in zip(in_mid_sentence[number], counts)]
            ids.append(np.array(numbers, dtype=np.uint32)[found])
            ends.extend(ends[-1] + found_ends)
            bar.update(len(blocks[len(ids) - 1]))
    words = dict(vocabulary=vocabulary, names=names_among(zip(vocabulary, in_mid_sentence)))
    lines = {name: np.frombuffer("\n".join(some).encode(), np.uint8) for name, some in words.items()}
    return dict(ids=np.concatenate(ids), ends=np.array(ends[1:], dtype=np.int64), **lines)


@numba.njit(nogil=True, cache=True)
def spell(tokens, spelling, offsets):
    """The bytes of these tokens; token t is spelling[offsets[t] : offsets[t + 1]]."""
    text, n = np.empty((offsets[tokens + 1] - offsets[tokens]).sum(), np.uint8), 0
    for token in tokens:
        for letter in spelling[offsets[token] : offsets[token + 1]]:
            text[n] = letter
            n += 1
    return text


@numba.njit(nogil=True, cache=True)
def split(text, letters):
    """Splits whole stories, bytes of UTF-8 with END after each. letters: the same in lower case, 0 between words.

    -> ids (words,); (stories,) how many words there are before the end of each; (different words, 2) where each first
    occurs, and its length; (different words, 2) how often it occurs in mid-sentence (after a lowercase word or a comma,
    where a capital means a name), lowercase and capitalized.
    """
    slots = np.full(size_of_table(len(text) // 2), -1, np.int32)  # hash table of words: their ids
    mask = len(slots) - 1
    ids, ends = np.empty(len(text) // 2 + 1, np.int32), np.empty((text == END[0]).sum(), np.int64)
    words, capitals = np.empty((len(ids), 2), np.int64), np.zeros((len(ids), 2), np.int64)
    n_ids, n_stories, n_words, i = 0, 0, 0, 0
    while i < len(text):
        if letters[i] == 0:
            if text[i] == END[0]:
                ends[n_stories] = n_ids
                n_stories += 1
            i += 1
            continue
        start, key = i, np.int64(0)
        while letters[i]:  # an END stands after every word
            key = (key + letters[i]) * MIX
            i += 1
        slot, same = key >> 20 & mask, False
        while slots[slot] >= 0 and not same:
            other, length = words[slots[slot]]
            n_same = 0
            while n_same < length and letters[other + n_same] == letters[start + n_same]:
                n_same += 1
            same = n_same == length == i - start
            slot = slot if same else slot + 1 & mask
        if not same:
            slots[slot] = n_words
            words[n_words] = start, i - start
            n_words += 1
        ids[n_ids] = word = slots[slot]
        n_ids += 1
        if start > 1 and text[start] > ord("9") and text[start - 1] == ord(" "):
            before = text[start - 2]
            if ord("a") <= before <= ord("z") or before == ord(","):
                capitals[word, int(text[start] <= ord("Z"))] += 1
    return ids[:n_ids], ends, words[:n_words], capitals[:n_words]
