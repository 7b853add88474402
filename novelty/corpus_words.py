"""
The words of a training set, as a stream of word ids in data/<name>/words/, built once and memory-mapped afterwards.

Words are those of rouge-score: runs of letters a to z and digits, lowercased. ngram_search.py indexes the few texts to
compare and reads this stream from end to end. So nothing here has to be sorted, and building it needs only the
memory for a block of tokens and the vocabulary.

>>> stories = open_stories("data/sample")
>>> len(stories), stories.spell(stories.stream.ids[:4])
(6756, 'once upon a time')
"""

import contextlib
import ctypes
import hashlib
import json
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

from common.files import has_sha256, lock, sha256_of
from corpus.character_names import Counts, count_capitals, names_among
from corpus.token_files import current, install, load_meta_and_tokens, remove_leftovers
from corpus.tokenizer import Tokenizer
from kernels import compile_cpp
from novelty.ngram_search import Stream

FORMAT = 1
TOKENS_PER_BLOCK = 2_000_000
WORD = re.compile("[A-Za-z0-9]+")
# The only two non-ASCII characters whose lower case contains a letter from a to z: the Kelvin sign, I with a dot.
SPELLED_OUT = str.maketrans({"\u212a": "K", "\u0130": "I\u0307"})


def words_of(text: str) -> list[str]:
    """The words of a text, as rouge-score splits it without a stemmer."""
    return WORD.findall(text.translate(SPELLED_OUT).lower())


@dataclass
class Stories:
    """The stories of a training set, as words or as tokens."""

    stream: Stream
    tokens: np.ndarray  # (tokens,) uint16, train.bin
    token_ends: np.ndarray  # (stories,) int64, where in `tokens` the <|endoftext|> of each story is
    held_out: np.ndarray  # (tokens,) uint16, val.bin
    tokenizer: Tokenizer
    vocabulary: dict[str, int] | None = None  # word -> id, grows with `encode`; None if the ids are tokens
    names: frozenset[str] = frozenset()  # in lower case: corpus/character_names.py

    def __len__(self) -> int:
        return len(self.token_ends)

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """(words,) int64 for each text; words missing from the training set get ids of stream.n_ids and above."""
        if self.vocabulary is None:
            return [np.array(self.tokenizer.encode(text), dtype=np.int64) for text in texts]
        ids = self.vocabulary
        return [np.array([ids.setdefault(w, len(ids)) for w in words_of(text)], dtype=np.int64) for text in texts]

    def spell(self, ids: np.ndarray) -> str:
        if self.vocabulary is None:
            return self.tokenizer.decode(ids)
        words = list(self.vocabulary)
        return " ".join(words[i] for i in ids)

    def story_at(self, place: int) -> int:
        """The story that ids[place] belongs to."""
        return int(np.searchsorted(self.stream.starts, place, side="right")) - 1

    def text(self, story: int) -> str:
        start = self.token_ends[story - 1] + 1 if story else 0
        return self.tokenizer.decode(self.tokens[start : self.token_ends[story]])


# ---- Open ----


def open_stories(directory: str | Path, by_tokens: bool = False) -> Stories:
    """The training set of data/<name>/; its words are built if they are missing, stale or damaged."""
    directory = Path(directory)
    meta, tokens, held_out = load_meta_and_tokens(directory, "train", "val")
    tokenizer = Tokenizer(meta["gpt2_ids"])
    if by_tokens:
        ends = np.flatnonzero(tokens == tokenizer.end_of_text)
        stream = Stream(tokens, np.append(0, ends[:-1] + 1), ends, tokenizer.vocab_size)
        return Stories(stream, tokens, ends, held_out, tokenizer)
    place, train_sha256 = current(directory)[0] / "words", meta["splits"]["train"]["sha256"]
    if rebuild_reason(place, train_sha256):
        build(place, tokens, tokenizer, train_sha256)
    words_meta = json.loads((place / "meta.json").read_text(encoding="utf-8"))
    word_ends, token_ends = np.fromfile(place / "ends.bin", dtype="<i8").reshape(-1, 2).T.copy()
    ids = np.memmap(place / "words.bin", dtype="<u4", mode="r")
    vocabulary = {word: i for i, word in enumerate(words_meta["vocabulary"])}
    stream = Stream(ids, np.append(0, word_ends[:-1]), word_ends, len(vocabulary))
    return Stories(stream, tokens, token_ends, held_out, tokenizer, vocabulary, frozenset(words_meta["names"]))


def rebuild_reason(place: Path, train_sha256: str) -> str | None:
    """What is wrong with the words in `place`; None if they are complete and belong to this train.bin."""
    try:
        meta = json.loads((place / "meta.json").read_text(encoding="utf-8"))
        if meta["format"] != FORMAT:
            return f"format {meta['format']}, not {FORMAT}"
        if meta["train_sha256"] != train_sha256:
            return "made from another train.bin"
        if meta["vocabulary_sha256"] != sha256_of_words(meta):
            return "meta.json damaged"
        damaged = [name for name, sha256 in meta["sha256"].items() if not has_sha256(place / name, sha256)]
        return f"{', '.join(damaged)} damaged" if damaged else None
    except (OSError, ValueError, TypeError, KeyError) as error:
        return f"incomplete ({error})"


def sha256_of_words(meta: dict) -> str:
    return hashlib.sha256(json.dumps([meta["vocabulary"], meta["names"]]).encode()).hexdigest()


# ---- Build ----


def build(place: Path, tokens: np.ndarray, tokenizer: Tokenizer, train_sha256: str) -> None:
    """Writes words.bin, ends.bin and meta.json to `place` atomically: a killed build leaves the old files unchanged.

    If another process is already building it, waits for that and uses its result.
    """
    busy = f"another process is building {place.name} there"
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(lock(place.parent, f".{place.name}.lock", busy, wait=True, keep=False))
            reason = rebuild_reason(place, train_sha256)
            if not reason:
                return
            if place.exists():
                print(f"{place}: {reason}; rebuilding it", file=sys.stderr)
            remove_leftovers(place)
            prefix = f".{place.name}.tmp-"
            temporary = stack.enter_context(tempfile.TemporaryDirectory(prefix=prefix, dir=place.parent))
            (new := Path(temporary, "new")).mkdir()
            meta = write_words(new, tokens, tokenizer)
            if not meta["vocabulary"]:
                raise ValueError(f"{place.parent}: it has no words of letters a to z or digits; use --tokens")
            meta |= dict(vocabulary_sha256=sha256_of_words(meta))
            sha256 = {name: sha256_of(new / name) for name in ("words.bin", "ends.bin")}
            meta = dict(format=FORMAT, train_sha256=train_sha256, sha256=sha256) | meta
            (new / "meta.json").write_text(json.dumps(meta), encoding="utf-8")
            install(new, place)
    except OSError as error:
        raise ValueError(
            f"{place}: cannot be written ({error.strerror}); free some space, or check its permissions"
        ) from None


def write_words(new: Path, tokens: np.ndarray, tokenizer: Tokenizer) -> dict:
    """words.bin: uint32, the ids of all words. ends.bin: int64, two numbers for each story: how many words there are up
    to its end, and how many tokens before its <|endoftext|>.
    -> {"vocabulary": words in the order of their ids, "names": [...]}"""
    reader = (NativeReader if compile_cpp.library("split_words") else PythonReader)(tokenizer)
    n_words = start = 0
    label = f"reading words of {new.parent.parent}"
    bar = tqdm(desc=label, total=len(tokens), unit="token", unit_scale=True, disable=None)
    with (new / "words.bin").open("wb") as words_file, (new / "ends.bin").open("wb") as ends_file, bar:
        for block, token_ends in blocks_of_stories(tokens, tokenizer.end_of_text):
            ids, ends = reader.read(block, token_ends)
            words_file.write(ids.astype("<u4", copy=False))
            ends_file.write(np.stack([n_words + ends, start + token_ends], axis=1).astype("<i8", copy=False))
            n_words, start = n_words + len(ids), start + len(block)
            bar.update(len(block))
    vocabulary, in_mid_sentence = reader.vocabulary()
    return dict(vocabulary=vocabulary, names=names_among(zip(vocabulary, in_mid_sentence)))


def blocks_of_stories(tokens: np.ndarray, end_of_text: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Complete stories, about TOKENS_PER_BLOCK at a time, and where in the block they end."""
    start, size = 0, TOKENS_PER_BLOCK
    while start < len(tokens):
        ends = np.flatnonzero(tokens[start : start + size] == end_of_text)
        if not len(ends):  # a story longer than a block
            size *= 2
            continue
        yield tokens[start : start + ends[-1] + 1], ends
        start, size = start + int(ends[-1]) + 1, TOKENS_PER_BLOCK


class PythonReader:
    """Tokens -> word ids, numbered in the order in which words first occur."""

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer, self.ids, self.in_mid_sentence = tokenizer, {}, Counts()

    def read(self, tokens: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Complete stories and where they end -> word ids (words,) uint32, and where in them stories end, int64."""
        ids, word_ends = [], []
        for start, end in zip(np.append(0, ends + 1), ends):
            text = self.tokenizer.decode(tokens[start:end]).translate(SPELLED_OUT)
            ids += [self.ids.setdefault(word, len(self.ids)) for word in words_of(text)]
            word_ends.append(len(ids))
            count_capitals(text, self.in_mid_sentence)
        return np.array(ids, dtype=np.uint32), np.array(word_ends, dtype=np.int64)

    def vocabulary(self) -> tuple[list[str], np.ndarray]:
        """Words in the order of their ids; (words, 2): counts in mid-sentence, lowercase and capitalized."""
        return list(self.ids), np.array([self.in_mid_sentence[word] for word in self.ids]).reshape(-1, 2)


class NativeReader:
    """Does the same in C++, thirty times as fast."""

    def __init__(self, tokenizer: Tokenizer):
        self.library = compile_cpp.library("split_words")
        self.library.new_reader.restype = ctypes.c_void_p
        for name in ("read_stories", "vocabulary_size", "vocabulary_bytes"):
            getattr(self.library, name).restype = ctypes.c_long
        self.lengths = tokenizer.byte_lengths()
        self.bytes = np.frombuffer(b"".join(tokenizer.ranks), dtype=np.uint8)
        self.offsets = np.append(0, np.cumsum(self.lengths))
        token_bytes = compile_cpp.pointer(self.bytes), compile_cpp.pointer(self.offsets)
        self.reader = ctypes.c_void_p(self.library.new_reader(*token_bytes, ctypes.c_long(tokenizer.end_of_text)))

    def __del__(self):
        self.library.delete_reader(self.reader)

    def read(self, tokens: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        max_words = self.lengths[tokens].sum() // 2 + len(ends)  # words are at least one byte apart
        ids, word_ends = np.empty(max_words, dtype=np.uint32), np.empty(len(ends), dtype=np.int64)
        tokens = np.ascontiguousarray(tokens)
        arguments = (compile_cpp.pointer(x) for x in (ids, word_ends))
        n = self.library.read_stories(self.reader, compile_cpp.pointer(tokens), ctypes.c_long(len(tokens)), *arguments)
        return ids[:n], word_ends

    def vocabulary(self) -> tuple[list[str], np.ndarray]:
        letters = np.empty(self.library.vocabulary_bytes(self.reader), dtype=np.uint8)
        counts = np.empty((self.library.vocabulary_size(self.reader), 2), dtype=np.int64)
        self.library.vocabulary(self.reader, compile_cpp.pointer(letters), compile_cpp.pointer(counts))
        return letters.tobytes().decode().split("\n")[:-1], counts
