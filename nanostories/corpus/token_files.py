"""
data/<name>/{train.bin, val.bin, meta.json}, checked and read. meta.json has the source, the
vocabulary, and for each split the number of stories, tokens and bytes and the SHA-256 of its .bin.

>>> meta, tokens = load_meta_and_tokens("data/builtin", "train")
"""

from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np

from nanostories.cli import UserError
from nanostories.corpus.sources import CORPORA
from nanostories.corpus.tokenizer import Tokenizer
from nanostories.files import read_json, sha256_of

FORMAT = 2
BLOCK = 1_000_000  # tokens


def load_meta_and_tokens(directory: str | Path, *splits: str) -> tuple:
    """(meta.json, tokens of a split, …). UserError names the missing or damaged file, and the
    command that makes it.

    Tokens are (tokens,) uint16, memory-mapped: the stories one after another, each followed by
    <|endoftext|>. The size of every .bin is checked, and the checksum of those that are read.
    """
    directory = Path(directory)
    try:
        meta = read_meta(directory)
        check_tokens(directory, meta, splits)
    except UserError as error:
        is_known = directory.name in CORPORA
        source = directory.name if is_known else f"--input FILE --name {directory.name}"
        command = f"python prepare.py {source} --data_dir {directory.parent}"
        raise UserError(f"{error}; to make it: {command}") from None
    paths = [directory / f"{split}.bin" for split in splits]
    return meta, *(np.memmap(path, dtype="<u2", mode="r") for path in paths)


def read_meta(directory: Path) -> dict:
    """UserError if the directory is not a corpus."""
    path = directory / "meta.json"
    if not path.exists():
        others = sorted(path.parent.name for path in directory.parent.glob("*/meta.json"))
        names = ", ".join(others) or "none"
        raise UserError(f"{directory}: not a corpus (in {directory.parent}: {names})")
    meta = read_json(path)
    if meta.get("format") != FORMAT or "splits" not in meta:
        raise UserError(f"{path}: not in format {FORMAT} of prepare.py")
    return meta


def check_tokens(directory: Path, meta: dict, to_read: Collection[str]) -> None:
    for split, expected in meta["splits"].items():
        path = directory / f"{split}.bin"
        n_bytes = 2 * expected["tokens"]
        if not path.exists() or path.stat().st_size != n_bytes:
            raise UserError(f"{path}: missing, or not {n_bytes:,} bytes long")
        if split in to_read and sha256_of(path) != expected["sha256"]:
            raise UserError(f"{path}: does not have the checksum that meta.json gives")


def load_meta(directory: str | Path) -> dict:
    return load_meta_and_tokens(directory)[0]


def load_stories(directory: str | Path, split: str) -> tuple[dict, Iterator[str]]:
    """(meta.json, the texts of a split's stories)"""
    meta, tokens = load_meta_and_tokens(directory, split)
    return meta, stories_of(tokens, Tokenizer(**meta["vocabulary"]))


def stories_of(tokens: np.ndarray, tokenizer: Tokenizer) -> Iterator[str]:
    """Reads in blocks: a training split may have a billion tokens, and only the first few stories
    may be needed."""
    begin = 0  # of the story
    for offset in range(0, len(tokens), BLOCK):
        block = tokens[offset : offset + BLOCK]
        for end in offset + np.flatnonzero(block == tokenizer.end_of_text):
            yield tokenizer.decode(tokens[begin:end])
            begin = end + 1


def text_identity(directory: Path) -> tuple | Path:
    """Equal for corpora of the same stories and splits, whatever their vocabularies. If there is
    none: the path."""
    if not (directory / "meta.json").exists():
        return directory
    meta = read_json(directory / "meta.json")
    counts = [(split["stories"], split["bytes"]) for split in meta["splits"].values()]
    return *meta["source"], *counts
