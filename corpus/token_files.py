"""
data/<name>/{train.bin, val.bin, meta.json}: checked, read, and replaced as a whole.

A .bin is one flat stream of little-endian uint16 token ids, every story followed by <|endoftext|>. meta.json has the
source, the vocabulary, and for each split the number of stories, tokens and bytes and the SHA-256 of its .bin.

>>> meta, tokens = load_meta_and_tokens("data/builtin", "train")
>>> meta["vocab_size"], tokens.shape
(4096, (4434217,))
"""

import contextlib
import glob
import itertools
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from common.files import has_sha256, lock, read_json
from corpus.sources import BUILTIN, DOWNLOADS
from corpus.tokenizer import Tokenizer

FORMAT = 1
BLOCK = 1_000_000  # tokens
OURS = {"train.bin", "val.bin", "meta.json", "words", "words/words.bin", "words/ends.bin", "words/meta.json"}


# ---- Write ----
@contextlib.contextmanager
def replacing(directory: Path) -> Iterator[Path]:
    """Yields a temporary directory; at the end, its subdirectory "new" takes the place of `directory`.

    A symbolic link stays, and what it points to is replaced. ValueError, before anything is changed, if another
    process is writing there, or if it holds anything that prepare.py did not write.
    """
    directory = Path(os.path.realpath(directory))
    busy = f"another prepare.py is writing {directory.name} there; wait for it, or choose another --name"
    with lock(directory.parent, f".{directory.name}.lock", busy, keep=False):
        old = old_name(directory)
        if old.exists() and not directory.exists():  # a killed run had moved it away
            old.rename(directory)
        if reason := refusal(directory):
            raise ValueError(reason)
        remove_leftovers(directory)
        with tempfile.TemporaryDirectory(prefix=f".{directory.name}.tmp-", dir=directory.parent) as temporary:
            yield Path(temporary)
            install(Path(temporary, "new"), directory)


def refusal(directory: Path) -> str | None:
    """Why `directory` may not be replaced; None if it is absent, empty, or a corpus without other files."""
    directory = Path(os.path.realpath(directory))  # still a link only if it leads to itself
    if not os.path.lexists(directory) or directory.is_dir() and not any(directory.iterdir()):
        return None
    names = [path.relative_to(directory).as_posix() for path in directory.rglob("*")] if directory.is_dir() else ["."]
    remedy = "so it is not replaced; choose another --name, or move it away"
    if others := sorted(name for name in names if name not in OURS and not name.startswith(".words.")):
        return f"{directory / others[0]}: not written by prepare.py, {remedy}"
    with contextlib.suppress(ValueError):
        if read_json(directory / "meta.json").get("format") == FORMAT:
            return None
    return f"{directory / 'meta.json'}: missing, or not that of a corpus (format {FORMAT}), {remedy}"


def remove_leftovers(directory: Path) -> None:
    """Remove temporary directories that killed runs left beside `directory`; not those of a run in progress."""
    for leftover in directory.parent.glob(f".{glob.escape(directory.name)}.tmp-*"):
        if time.time() - max(path.stat().st_mtime for path in [leftover, *leftover.rglob("*")]) > 3600:
            shutil.rmtree(leftover, ignore_errors=True)


def install(new: Path, directory: Path) -> None:
    """Replace `directory` with `new`. If the process is killed between the two renames, the next writer puts the old
    directory back, and readers read it where it is."""
    old = old_name(directory)
    if old.is_symlink():
        old.unlink()
    shutil.rmtree(old, ignore_errors=True)
    if directory.exists():
        directory.rename(old)
    new.rename(directory)
    shutil.rmtree(old, ignore_errors=True)


def old_name(directory: Path) -> Path:
    """What `directory`, or the directory that it links to, is called while a new one takes its place."""
    directory = Path(os.path.realpath(directory))
    return directory.with_name(f".{directory.name}.old")


# ---- Read ----
def current(directory: Path) -> tuple[Path, tuple | None]:
    """(where the corpus is now, even while it is being replaced; what tells it from any other that was there)"""
    moved = not os.path.exists(directory) and os.path.exists(old_name(directory))
    place = old_name(directory) if moved else directory
    try:
        stat = os.stat(place / "meta.json")  # not of the directory, which changes when rouge.py adds words/
        return place, (stat.st_ino, stat.st_ctime_ns)
    except OSError:
        return place, None


def load_meta_and_tokens(directory: str | Path, *splits: str) -> tuple:
    """(meta.json, tokens of a split, …): all from one corpus, even while prepare.py replaces it with another.

    The .bin files are checked to be complete and those that meta.json describes; ValueError says what is damaged, and
    the command that rebuilds it. Tokens are (tokens,) uint16, memory-mapped: the stories of a split one after another,
    each followed by <|endoftext|>.
    """
    directory = Path(directory)
    source = directory.name if directory.name in (*DOWNLOADS, *BUILTIN) else f"--input FILE --name {directory.name}"
    command = f"rebuild it: python prepare.py {source} --data_dir {directory.parent}"
    while True:  # retry if prepare.py replaced the corpus in the meantime
        place, version = current(directory)
        try:
            loaded = read_meta(place), *(np.memmap(place / f"{split}.bin", dtype="<u2", mode="r") for split in splits)
            if current(directory) == (place, version):
                return loaded
        except (OSError, ValueError) as error:
            if current(directory) == (place, version):
                remedy = f"move it away, then {command}" if refusal(directory) else command
                raise ValueError(f"{error}; {remedy}") from None


def read_meta(place: Path) -> dict:
    meta = read_json(place / "meta.json")
    if meta.get("format") != FORMAT or not isinstance(meta.get("splits"), dict):
        raise ValueError(f"{place / 'meta.json'}: not in format {FORMAT}")
    for split, expected in meta["splits"].items():
        path = place / f"{split}.bin"
        if not path.exists() or path.stat().st_size != 2 * expected["tokens"]:
            raise ValueError(f"{path}: missing, or not {2 * expected['tokens']:,} bytes long")
        if not has_sha256(path, expected["sha256"]):
            raise ValueError(f"{path}: does not have the checksum that meta.json gives")
    return meta


def load_stories(directory: str | Path, split: str) -> tuple[dict, Iterator[str]]:
    """(meta.json, the texts of a split's stories)"""
    meta, tokens = load_meta_and_tokens(directory, split)
    return meta, stories_of(tokens, Tokenizer(meta["gpt2_ids"]))


def stories_of(tokens: np.ndarray, tokenizer: Tokenizer) -> Iterator[str]:
    """Reads in blocks: a training split may have a billion tokens, and only the first few stories may be needed."""
    blocks = ((start, tokens[start : start + BLOCK]) for start in range(0, len(tokens), BLOCK))
    ends = (start + i for start, block in blocks for i in np.flatnonzero(block == tokenizer.end_of_text))
    for before, end in itertools.pairwise(itertools.chain([-1], ends)):
        yield tokenizer.decode(tokens[before + 1 : end])


def load_meta(directory: str | Path) -> dict:
    return load_meta_and_tokens(directory)[0]
