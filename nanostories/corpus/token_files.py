"""
data/<name>/{train.bin, val.bin, meta.json}, checked and read. meta.json has the source, the
vocabulary, and for each split the number of stories, tokens and bytes and the SHA-256 of its .bin.

>>> meta, tokens = load_meta_and_tokens("data/builtin", "train")
"""

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from nanostories.cli import UserError
from nanostories.corpus.sources import CORPORA
from nanostories.corpus.tokenizer import Tokenizer
from nanostories.files import read_json, sha256_of

FORMAT = 2
BLOCK = 1_000_000  # tokens


def load_meta_and_tokens(directory: str | Path, *splits: str) -> tuple:
    """(meta.json, tokens of a split, …). ValueError names the missing or damaged file, and the
    command that makes it.

    Tokens are (tokens,) uint16, memory-mapped: the stories one after another, each followed by
    <|endoftext|>. The size of every .bin is checked, and the checksum of those that are read.
    """
    directory = Path(directory)
    try:
        meta = read_meta(directory)
        for split in splits:
            if sha256_of(directory / f"{split}.bin") != meta["splits"][split]["sha256"]:
                raise UserError(
                    f"{directory / split}.bin: does not have the checksum that meta.json gives"
                )
        return meta, *(
            np.memmap(directory / f"{split}.bin", dtype="<u2", mode="r") for split in splits
        )
    except ValueError as error:
        source = (
            directory.name if directory.name in CORPORA else f"--input FILE --name {directory.name}"
        )
        command = f"python prepare.py {source} --data_dir {directory.parent}"
        raise UserError(f"{error}; to make it: {command}") from None


def read_meta(directory: Path) -> dict:
    if not (directory / "meta.json").exists():
        others = (
            ", ".join(sorted(path.parent.name for path in directory.parent.glob("*/meta.json")))
            or "none"
        )
        raise UserError(f"{directory}: no corpus (in {directory.parent}: {others})")
    meta = read_json(directory / "meta.json")
    if meta.get("format") != FORMAT:
        raise UserError(f"{directory / 'meta.json'}: not in format {FORMAT}")
    for split, expected in meta["splits"].items():
        path = directory / f"{split}.bin"
        if not path.exists() or path.stat().st_size != 2 * expected["tokens"]:
            raise UserError(f"{path}: missing, or not {2 * expected['tokens']:,} bytes long")
    return meta


def load_meta(directory: str | Path) -> dict:
    return load_meta_and_tokens(directory)[0]


def load_stories(directory: str | Path, split: str) -> tuple[dict, Iterator[str]]:
    """(meta.json, the texts of a split's stories)"""
    meta, tokens = load_meta_and_tokens(directory, split)
    return meta, stories_of(tokens, Tokenizer(**meta["vocabulary"]))


def stories_of(tokens: np.ndarray, tokenizer: Tokenizer) -> Iterator[str]:
    """Reads in blocks: a training split may have a billion tokens, and only the first few stories
    may be needed."""
    blocks = ((start, tokens[start : start + BLOCK]) for start in range(0, len(tokens), BLOCK))
    ends = (
        start + i for start, block in blocks for i in np.flatnonzero(block == tokenizer.end_of_text)
    )
    for before, end in itertools.pairwise(itertools.chain([-1], ends)):
        yield tokenizer.decode(tokens[before + 1 : end])


def text_identity(directory: Path) -> tuple | Path:
    """Equal for corpora of the same stories and splits, whatever their vocabularies. If there is
    none: the path."""
    if not (directory / "meta.json").exists():
        return directory
    meta = read_json(directory / "meta.json")
    return (
        *meta["source"],
        *((split["stories"], split["bytes"]) for split in meta["splits"].values()),
    )
