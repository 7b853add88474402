"""
data/<name>/{train.bin, val.bin, meta.json}: checked, read, and replaced as a whole.

A .bin is one flat stream of little-endian uint16 token ids, every story followed by <|endoftext|>. meta.json has the
source, the vocabulary, and for each split the number of stories, tokens and bytes and the SHA-256 of its .bin.

>>> load_meta("data/builtin")["vocab_size"], load_tokens("data/builtin", "train").shape
(4096, (4434217,))
"""

import shutil
import time
from pathlib import Path

import numpy as np

from common.files import read_json, sha256_of
from corpus.sources import BUILTIN, DOWNLOADS

FORMAT = 1


def remove_leftovers(directory: Path) -> None:
    """Remove temporary directories that killed runs left beside `directory`; not those of a run in progress."""
    for leftover in directory.parent.glob(f".{directory.name}.tmp-*"):
        if time.time() - max(path.stat().st_mtime for path in [leftover, *leftover.rglob("*")]) > 3600:
            shutil.rmtree(leftover, ignore_errors=True)


def install(new: Path, directory: Path) -> None:
    """Replace `directory` by `new`. If the process is killed between the two renames, `restore` repairs that."""
    old = directory.with_name(f".{directory.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if directory.exists():
        directory.rename(old)
    new.rename(directory)
    shutil.rmtree(old, ignore_errors=True)


def restore(directory: Path) -> None:
    """Put back the old directory if a killed run had moved it away."""
    old = directory.with_name(f".{directory.name}.old")
    if old.exists() and not directory.exists():
        old.rename(directory)


def load_meta(directory: str | Path) -> dict:
    """meta.json, after a check that the .bin files beside it are complete and are those that it describes.

    ValueError says what is damaged, and the command that makes it again.
    """
    directory = Path(directory)
    restore(directory)
    source = directory.name if directory.name in (*DOWNLOADS, *BUILTIN) else f"--input FILE --name {directory.name}"
    remedy = f"make it again: python prepare.py {source} --data_dir {directory.parent}"
    try:
        meta = read_json(directory / "meta.json")
    except ValueError as error:
        raise ValueError(f"{error}; {remedy}") from None
    if meta.get("format") != FORMAT:
        raise ValueError(f"{directory / 'meta.json'}: not of format {FORMAT}; {remedy}")
    for split, expected in meta["splits"].items():
        path = directory / f"{split}.bin"
        if not path.exists() or path.stat().st_size != 2 * expected["tokens"]:
            raise ValueError(f"{path}: missing, or not {2 * expected['tokens']:,} bytes long; {remedy}")
        if sha256_of(path) != expected["sha256"]:
            raise ValueError(f"{path}: does not have the checksum that meta.json gives; {remedy}")
    return meta


def load_tokens(directory: str | Path, split: str) -> np.ndarray:
    """(tokens,) uint16, memory-mapped: the stories of a split one after another, each followed by <|endoftext|>."""
    return np.memmap(Path(directory, f"{split}.bin"), dtype="<u2", mode="r")
