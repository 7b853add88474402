"""
data/<name>/{train.bin, val.bin, meta.json}, checked and read. meta.json has the source, the
vocabulary, and for each split the number of stories, tokens and bytes and the SHA-256 of its .bin.

>>> meta, tokens = load_meta_and_tokens("data/builtin", "train")
"""

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
    """(meta.json, tokens of a split, …). UserError names the missing or damaged file.

    Tokens are (tokens,) uint16, memory-mapped: the stories one after another, each followed by
    <|endoftext|>.
    """
    directory = Path(directory)
    meta = load_meta(directory)
    tokens = []
    for split in splits:
        path = directory / f"{split}.bin"
        if not path.exists() or sha256_of(path) != meta["splits"][split]["sha256"]:
            problem = "missing, or without the checksum that meta.json gives"
            raise UserError(f"{path}: {problem}; {how_to_make(directory)}")
        tokens.append(np.memmap(path, dtype="<u2", mode="r"))
    return meta, *tokens


def load_meta(directory: str | Path) -> dict:
    """UserError if the directory is not a corpus."""
    directory = Path(directory)
    path = directory / "meta.json"
    if not path.exists():
        others = sorted(path.parent.name for path in directory.parent.glob("*/meta.json"))
        names = ", ".join(others) or "none"
        problem = f"not a corpus (in {directory.parent}: {names})"
        raise UserError(f"{directory}: {problem}; {how_to_make(directory)}")
    meta = read_json(path)
    if meta.get("format") != FORMAT:
        raise UserError(f"{path}: not in format {FORMAT} of prepare.py; {how_to_make(directory)}")
    return meta


def how_to_make(directory: Path) -> str:
    is_known = directory.name in CORPORA
    source = directory.name if is_known else f"--input FILE --name {directory.name}"
    return f"to make it: python prepare.py {source} --data_dir {directory.parent}"


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
            yield tokenizer.decode(tokens[begin:end].tolist())  # NumPy's own integers are slow
            begin = end + 1


def text_identity(directory: Path) -> tuple | Path:
    """Equal for corpora of the same stories and splits, whatever their vocabularies, as far as
    counts tell. If there is none: the path."""
    if not (directory / "meta.json").exists():
        return directory
    meta = read_json(directory / "meta.json")
    return tuple((split["stories"], split["bytes"]) for split in meta["splits"].values())
