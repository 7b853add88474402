"""
From stories to tokens: downloads or reads a corpus, cleans, deduplicates, splits and tokenises it, and writes
data/<name>/{train.bin, val.bin, meta.json}. Input streams through: 2 GB of it take well under 1 GB of memory.

$ python prepare.py builtin                                        # 20,000 stories of our own, nothing to download
$ python prepare.py tinystories-v2                                 # the GPT-4 stories of TinyStories (2 GB)
$ python prepare.py instruct                                       # stories under headers that say what is in them
$ python prepare.py --input mine.txt more.jsonl.gz --name mine     # your own: <|endoftext|> stands between stories
"""

import collections
import hashlib
import itertools
import json
import os
import pickle
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from tqdm import tqdm

from corpus import builtin_stories, instruct_headers
from corpus.cleaning import CLEANING, COMPLETE, clean
from corpus.instruct_headers import OOD
from corpus.sources import HEADERS
from corpus.token_files import FORMAT, install, remove_leftovers, restore
from corpus.tokenizer import GPT2_VOCAB_SIZE, Tokenizer, cut

STORIES_PER_CHUNK = 128  # tokenised in one call: enough that threads seldom meet, few enough to hold many chunks
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
                pickle.dump(self.chunk, file)  # unlike a separator it leaves a story free to hold anything
            self.chunk = []

    def chunks(self) -> Iterator[list[str]]:
        with self.path.open("rb") as file:
            for _ in range(self.stories // STORIES_PER_CHUNK):
                yield pickle.load(file)
        yield self.chunk


def fill_spools(
    spools: dict[str, Spool],
    train: Iterable[str],
    val: Iterable[str] | None,
    val_share: float,
    seed: int,
    kind: str | None = None,
) -> dict[str, int]:
    """Clean the stories and sort them into the spools; return what was done to how many.

    kind: of the headers above them (ANY, OOD), which make no other story of the same; None: there are none.
    """
    counts = collections.Counter()
    seen = {split: set() for split in spools}  # 100 bytes a story. 64 bits: a false match in 3 million once in 1e7 runs
    salt = (seed % 2**64).to_bytes(8, "big")
    val_below = int(val_share * 2**64).to_bytes(8, "big")
    for given_split, texts in (("val", val or ()), (None if val is None else "train", train)):
        for text in texts:
            text, was_mended = clean(text)
            headed = (instruct_headers.read(text) or instruct_headers.Headed({}, "")) if kind else None
            story = headed.story if headed else text
            data = story.encode()
            digest = hashlib.blake2b(data, digest_size=8, salt=salt).digest()
            # Where no validation texts are given, a story's hash decides: so copies always meet in one split.
            split = given_split or ("val" if digest < val_below else "train")
            counts["stories read"] += 1
            counts["mojibake mended"] += was_mended
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
                    text = str(instruct_headers.apart(headed) if kind == OOD and split == "train" else headed)
                    data = text.encode()
                spools[split].add(text, len(data))
    return {step: counts[step] for step in CLEANING}


# ---- Pass 2: learn the vocabulary, tokenise ----
def encode_chunks(spool: Spool, gpt2_ids: Sequence[int], threads: int, doing: str, every: int = 1) -> Iterator:
    """The ids of every n-th chunk, in order, from threads that work only a few chunks ahead."""
    chunks = itertools.islice(spool.chunks(), 0, None, every)
    n_chunks = spool.stories // STORIES_PER_CHUNK // every + 1
    own = threading.local()  # a tokenizer for each thread: threads that share one wait for its regular expressions
    with ThreadPoolExecutor(threads, initializer=lambda: setattr(own, "tokenizer", Tokenizer(gpt2_ids))) as pool:
        futures = collections.deque()
        for chunk in tqdm(chunks, doing, n_chunks, unit="stories", unit_scale=STORIES_PER_CHUNK, disable=None):
            futures.append(pool.submit(lambda chunk: own.tokenizer.encode_stories(chunk), chunk))
            if len(futures) > 4 * threads:
                yield futures.popleft().result()
        while futures:
            yield futures.popleft().result()


def learn_vocabulary(spool: Spool, vocab_size: int, threads: int) -> list[int]:
    """The GPT-2 ids to which the vocabulary is cut: those that a uniform sample of the stories needs most."""
    every = -(-spool.bytes // SAMPLE_BYTES)
    sample = encode_chunks(spool, range(GPT2_VOCAB_SIZE - 1), threads, "learning the vocabulary", every)
    return cut(sum(np.bincount(ids, minlength=GPT2_VOCAB_SIZE) for ids in sample), vocab_size).gpt2_ids


def write_tokens(spool: Spool, directory: Path, gpt2_ids: list[int], threads: int) -> dict:
    """Tokenise a split into a flat file of uint16; return what meta.json says of it."""
    tokens, sha256 = 0, hashlib.sha256()
    with (directory / f"{spool.path.name}.bin").open("wb") as file:
        for ids in encode_chunks(spool, gpt2_ids, threads, f"tokenising {spool.path.name}"):
            data = ids.astype("<u2", copy=False).tobytes()
            file.write(data)
            sha256.update(data)
            tokens += len(ids)
    return {"stories": spool.stories, "tokens": tokens, "bytes": spool.bytes, "sha256": sha256.hexdigest()}


# ---- All of it, and the files it leaves ----
def prepare(
    directory: Path,
    sources: list[str],
    train: Iterable[str],
    val: Iterable[str] | None,
    vocab_size: int = 10000,
    val_share: float = 0.01,
    seed: int = 0,
    threads: int = CORES,
    kind: str | None = None,
) -> None:
    """Make `directory` from stories, which stand under headers of this kind (ANY, OOD) or none.

    If anything fails, what was there before still is.
    """
    if not 257 <= vocab_size <= GPT2_VOCAB_SIZE:
        raise ValueError(f"vocab_size {vocab_size}: must be 257 (bytes and end of text) to {GPT2_VOCAB_SIZE} (GPT-2's)")
    if not 0 < val_share < 1:
        raise ValueError(f"val_share {val_share}: must be above 0 and below 1")
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        restore(directory)
        remove_leftovers(directory)
        if directory.exists() and not (directory / "meta.json").exists():
            raise ValueError(f"{directory}: holds something else, which would be lost; choose another --name")
        with tempfile.TemporaryDirectory(prefix=f".{directory.name}.tmp-", dir=directory.parent) as temporary:
            spools = {split: Spool(Path(temporary, split)) for split in ("train", "val")}
            cleaning = fill_spools(spools, train, val, val_share, seed, kind)
            for split, spool in spools.items():
                if not spool.stories:
                    reason = f"no story left for {split} of {cleaning['stories read']} read"
                    raise ValueError(f"{', '.join(sources)}: {reason}; give more, or --val FILE, or mend --val_share")
            gpt2_ids = learn_vocabulary(spools["train"], vocab_size, threads)
            (new := Path(temporary, "new")).mkdir()
            meta = {
                "format": FORMAT,
                "name": directory.name,
                "source": sources,
                "seed": seed,
                "vocab_size": vocab_size,
                "gpt2_ids": "",
                "splits": {split: write_tokens(spool, new, gpt2_ids, threads) for split, spool in spools.items()},
                "cleaning": cleaning,
            } | ({"headers": kind} if kind else {})
            text = json.dumps(meta, indent=2)
            text = text.replace('"gpt2_ids": ""', f'"gpt2_ids": {json.dumps(gpt2_ids)}')  # all on one line
            (new / "meta.json").write_text(text + "\n", encoding="utf-8")
            install(new, directory)
    except OSError as error:
        raise ValueError(f"{error.filename or directory}: {error.strerror}; make room or change --data_dir") from None


# ---- The three kinds of corpus, and the command line ----
def prepare_builtin(
    data_dir: str | Path = "data",
    n_stories: int = 20000,
    vocab_size: int = 4096,
    seed: int = 0,
    val_share: float = 0.01,
    threads: int = CORES,
    corpus: str = "builtin",
    name: str | None = None,
) -> Path:
    """Our own stories; a larger share of few, as validation wants 200 at least."""
    val_share, directory = max(val_share, min(250 / max(n_stories, 1), 0.5)), Path(data_dir, name or corpus)
    told, kind = builtin_stories.stories(n_stories, seed), HEADERS.get(corpus)
    always = ("words", "summary") if kind == OOD else ()  # and one of them is taken away again, for training
    texts = (instruct_headers.of_builtin(story, always) if kind else story.text for story in told)
    texts = tqdm(texts, "telling", n_stories, disable=None)
    prepare(directory, [corpus], texts, None, vocab_size, val_share, seed, threads, kind)
    return directory
