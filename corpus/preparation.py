"""
From stories to tokens, in two passes over a corpus: clean, deduplicate and split; learn the vocabulary and tokenize.
Stories stream through: 2 GB of them take well under 1 GB of memory.

>>> prepare_builtin(Path("data/builtin"))  # 20,000 stories: data/builtin/{train.bin, val.bin, meta.json}
>>> prepare_download(Path("data/tinystories-v2"), "tinystories-v2")
>>> prepare(Path("data/mine"), ["where they are from"], train=["One story.", "Another."], val=None)
"""

import collections
import hashlib
import itertools
import json
import os
import pickle
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from tqdm import tqdm

from corpus import builtin_stories, instruct_headers
from corpus.cleaning import CLEANING, COMPLETE, clean
from corpus.sources import ANY, HEADERS, OOD, download_stories, download_urls, read_stories
from corpus.token_files import FORMAT, replacing
from corpus.tokenizer import GPT2_VOCAB_SIZE, Tokenizer, cut

STORIES_PER_CHUNK = 128  # tokenized in one call: enough to keep threads busy, few enough to hold many chunks in memory
CORES = os.cpu_count() or 1
SAMPLE_BYTES = 100_000_000  # of training text, from which the vocabulary is learned


# ---- Pass 1: clean, deduplicate and split the stories into a spool for each split ----
class Spool:
    """The stories of a split on disk, in chunks, until the vocabulary is known."""

    def __init__(self, path: Path):
        self.path, self.chunk, self.stories, self.bytes = path, [], 0, 0
        path.touch()

    def add(self, story: str, n_bytes: int) -> None:
        self.chunk.append(story)
        self.stories += 1
        self.bytes += n_bytes
        if len(self.chunk) == STORIES_PER_CHUNK:
            with self.path.open("ab") as file:
                pickle.dump(self.chunk, file)  # unlike a separator, this works whatever a story contains
            self.chunk = []

    def chunks(self) -> Iterator[list[str]]:
        with self.path.open("rb") as file:
            for _ in range(self.stories // STORIES_PER_CHUNK):
                yield pickle.load(file)
        yield self.chunk


def clean_and_split(
    spools: dict[str, Spool],
    train: Iterable[str],
    val: Iterable[str] | None,
    val_share: float,
    seed: int,
    headers: str | None = None,
    add_headers: bool = False,
) -> dict[str, int]:
    """Clean the stories and add them to the spool of their split; return the counts of CLEANING.

    headers: ANY or OOD if the stories have headers, which do not count when two stories are compared.
    add_headers: whether those that have none get one, made from the cleaned text.
    """
    counts = collections.Counter()
    seen = {split: set() for split in spools}  # 100 bytes a story. 64 bits: of 3 million, two collide in 1 of 4e6 runs
    salt = (seed % 2**64).to_bytes(8, "big")
    val_below = int(val_share * 2**64).to_bytes(8, "big")
    for given_split, texts in (("val", val or ()), (None if val is None else "train", train)):
        for text in texts:
            text, was_repaired = clean(text)
            text = instruct_headers.add_header(text) if add_headers else text
            headed = (instruct_headers.read(text) or instruct_headers.Headed({}, "")) if headers else None
            story = headed.story if headed else text
            data = story.encode()
            digest = hashlib.blake2b(data, digest_size=8, salt=salt).digest()
            # Without validation texts a story's hash decides, so that copies always end up in the same split.
            split = given_split or ("val" if digest < val_below else "train")
            counts["stories read"] += 1
            counts["mojibake repaired"] += was_repaired
            if not story:
                counts["empty dropped"] += 1
            elif not COMPLETE.search(story[-16:]):
                counts["truncated dropped"] += 1
            elif digest in seen[split]:
                counts["duplicates dropped"] += 1
            elif split == "train" and digest in seen["val"]:
                counts["validation stories dropped from train"] += 1
            else:
                seen[split].add(digest)
                if headed:
                    text = str(headed.without_words_or_summary() if headers == OOD and split == "train" else headed)
                    data = text.encode()
                spools[split].add(text, len(data))
    return {step: counts[step] for step in CLEANING}


# ---- Pass 2: learn the vocabulary, tokenize ----
def encode_chunks(spool: Spool, gpt2_ids: Sequence[int], threads: int, doing: str, every: int = 1) -> Iterator:
    """The ids of every `every`-th chunk, in order; threads work only a few chunks ahead."""
    chunks = itertools.islice(spool.chunks(), 0, None, every)
    n_chunks = spool.stories // STORIES_PER_CHUNK // every + 1
    own = threading.local()  # a tokenizer for each thread: threads that share one wait for its regex
    with ThreadPoolExecutor(threads, initializer=lambda: setattr(own, "tokenizer", Tokenizer(gpt2_ids))) as pool:
        futures = collections.deque()
        for chunk in tqdm(chunks, doing, n_chunks, unit="stories", unit_scale=STORIES_PER_CHUNK, disable=None):
            futures.append(pool.submit(lambda chunk: own.tokenizer.encode_stories(chunk), chunk))
            if len(futures) > 4 * threads:
                yield futures.popleft().result()
        while futures:
            yield futures.popleft().result()


def learn_vocabulary(spool: Spool, vocab_size: int, threads: int) -> list[int]:
    """The GPT-2 ids that are kept: those that a uniform sample of the stories needs most."""
    every = -(-spool.bytes // SAMPLE_BYTES)
    sample = encode_chunks(spool, range(GPT2_VOCAB_SIZE - 1), threads, "learning the vocabulary", every)
    return cut(sum(np.bincount(ids, minlength=GPT2_VOCAB_SIZE) for ids in sample), vocab_size).gpt2_ids


def write_tokens(spool: Spool, directory: Path, gpt2_ids: list[int], threads: int) -> dict:
    """Tokenize a split into a flat file of uint16; return its entry in meta.json."""
    tokens, sha256 = 0, hashlib.sha256()
    with (directory / f"{spool.path.name}.bin").open("wb") as file:
        for ids in encode_chunks(spool, gpt2_ids, threads, f"tokenizing {spool.path.name}"):
            data = ids.astype("<u2", copy=False).tobytes()
            file.write(data)
            sha256.update(data)
            tokens += len(ids)
    return {"stories": spool.stories, "tokens": tokens, "bytes": spool.bytes, "sha256": sha256.hexdigest()}


# ---- Both passes ----
def no_story_left(split: str, cleaning: dict[str, int], n_train: int) -> str:
    """What became of the stories, and what to do. A larger share for validation helps only if some are left."""
    reasons = ", ".join(f"{n:,} {step}" for step, n in cleaning.items() if n and "dropped" in step) or "none dropped"
    remedy = "add more"
    if cleaning["truncated dropped"]:
        remedy += " that end with a sentence"
    if split == "val" and n_train:
        remedy += ", or give --val FILE, or raise --val_share"
    return f"no stories left for {split} of {cleaning['stories read']:,} read ({reasons}); {remedy}"


def prepare(
    directory: Path,
    sources: list[str],
    train: Iterable[str],
    val: Iterable[str] | None,
    vocab_size: int = 10000,
    val_share: float = 0.01,
    seed: int = 0,
    threads: int = CORES,
    headers: str | None = None,
    add_headers: bool = False,
) -> None:
    """Make or replace `directory`; if anything fails, it stays as it was, and ValueError says why in one line.

    sources: where the stories are from, for meta.json. val: validation stories; None to hold out a share of `train`.
    headers: ANY or OOD if the stories have headers (corpus/instruct_headers.py), or are given some (add_headers).
    """
    if not 257 <= vocab_size <= GPT2_VOCAB_SIZE:
        raise ValueError(f"vocab_size {vocab_size}: must be 257 (bytes and end of text) to {GPT2_VOCAB_SIZE} (GPT-2's)")
    if not 0 < val_share < 1:
        raise ValueError(f"val_share {val_share}: must be above 0 and below 1")
    try:
        with replacing(directory) as temporary:
            spools = {split: Spool(temporary / split) for split in ("train", "val")}
            cleaning = clean_and_split(spools, train, val, val_share, seed, headers, add_headers)
            for split, spool in spools.items():
                if not spool.stories:
                    raise ValueError(f"{', '.join(sources)}: {no_story_left(split, cleaning, spools['train'].stories)}")
            gpt2_ids = learn_vocabulary(spools["train"], vocab_size, threads)
            (new := temporary / "new").mkdir()
            meta = {
                "format": FORMAT,
                "name": directory.name,
                "source": sources,
                "seed": seed,
                "vocab_size": vocab_size,
                "gpt2_ids": "",
                "splits": {split: write_tokens(spool, new, gpt2_ids, threads) for split, spool in spools.items()},
                "cleaning": cleaning,
            } | ({"headers": headers} if headers else {})
            text = json.dumps(meta, indent=2)
            text = text.replace('"gpt2_ids": ""', f'"gpt2_ids": {json.dumps(gpt2_ids)}')  # all on one line
            (new / "meta.json").write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{error.filename or directory}: {error.strerror}; make room or change --data_dir") from None


# ---- The three kinds of corpus ----
def prepare_builtin(
    directory: Path, corpus: str = "builtin", n_stories: int = 20000, seed: int = 0, val_share: float = 0.01, **settings
) -> None:
    """A corpus of BUILTIN, from stories of our own. If they are few, a larger share is held out: about 250 stories."""
    val_share = max(val_share, min(250 / max(n_stories, 1), 0.5))
    stories, headers = builtin_stories.stories(n_stories, seed), HEADERS.get(corpus)
    always = ("words", "summary") if headers == OOD else ()  # for validation; training stories lose one of them
    texts = (instruct_headers.add_builtin_header(story, always) if headers else story.text for story in stories)
    texts = tqdm(texts, "telling stories", n_stories, disable=None)
    settings = dict(vocab_size=4096) | settings
    prepare(directory, [corpus], texts, None, val_share=val_share, seed=seed, headers=headers, **settings)


def prepare_download(directory: Path, corpus: str, **settings) -> None:
    """A corpus of DOWNLOADS. Its files are kept in download/ beside the directory and fetched only once."""
    urls = download_urls(corpus)
    splits = (download_stories(url, directory.parent / "download") for url in urls)
    prepare(directory, urls, *splits, headers=HEADERS.get(corpus), **settings)


def prepare_files(directory: Path, train: list[Path], val: list[Path], add_headers: bool = False, **settings) -> None:
    """A corpus from files; without `val`, a share of the stories is held out. ValueError names missing files."""
    if missing := [str(path) for path in [*train, *val] if not (path.is_file() and os.access(path, os.R_OK))]:
        raise ValueError(f"{', '.join(missing)}: no such file, or it cannot be read; check --input and --val")
    splits = [itertools.chain.from_iterable(map(read_stories, paths)) if paths else None for paths in (train, val)]
    headers = dict(headers=ANY, add_headers=True) if add_headers else {}
    prepare(directory, list(map(str, [*train, *val])), *splits, **headers, **settings)
