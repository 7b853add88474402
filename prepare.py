"""
From stories to tokens: downloads or reads a corpus, cleans, deduplicates, splits and tokenises it, and writes
data/<name>/{train.bin, val.bin, meta.json}. Input streams through: 2 GB of it take well under 1 GB of memory.

$ python prepare.py builtin                                        # 20,000 stories of our own, nothing to download
$ python prepare.py tinystories-v2                                 # the GPT-4 stories of TinyStories (2 GB)
$ python prepare.py instruct                                       # stories under headers that say what is in them
$ python prepare.py --input mine.txt more.jsonl.gz --name mine     # your own: <|endoftext|> stands between stories
"""

import argparse
import collections
import functools
import gzip
import hashlib
import io
import itertools
import json
import os
import pickle
import re
import shutil
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from tqdm import tqdm

import headers
import stories
from files import sha256_of
from headers import ANY, OOD
from hub import HubError, download, endpoint
from tokenizer import END_OF_TEXT, GPT2_VOCAB_SIZE, Tokenizer, cut

FORMAT = 1
PUBLISHED = "datasets/roneneldan"  # on the hub, of the paper, arXiv:2305.07759
INSTRUCT = "TinyStoriesInstruct/resolve/main/TinyStories-Instruct"
DOWNLOADS = {  # corpus -> its files, up to -train.txt and -valid.txt
    "tinystories": "TinyStories/resolve/main/TinyStories",
    "tinystories-v2": "TinyStories/resolve/main/TinyStoriesV2-GPT4",
    "instruct": INSTRUCT,
    "instruct-ood": INSTRUCT,
}
BUILTIN = ("builtin", "builtin-instruct", "builtin-instruct-ood")
HEADERS = {"instruct": ANY, "instruct-ood": OOD, "builtin-instruct": ANY, "builtin-instruct-ood": OOD}
LONGEST_STORY = 50_000  # characters: a .txt that is longer and holds no <|endoftext|> is no list of stories
CLEANING = ("stories read", "mojibake mended", "empty dropped", "truncated dropped", "duplicates dropped",
            "validation stories dropped from train")
STORIES_PER_CHUNK = 128  # tokenised in one call: enough that threads seldom meet, few enough to hold many chunks
CORES = os.cpu_count() or 1
SAMPLE_BYTES = 100_000_000  # of training text, from which the vocabulary is learned


class DataError(Exception):
    """Data that cannot be used. The message is one line for the user: what is wrong, where, what to do."""


# ---- Read ----
def read_stories(path: Path, errors: str = "strict") -> Iterator[str]:
    """The text of every story in a .txt, .jsonl or .json file, perhaps with .gz behind, as it stands there.

    errors: what becomes of bytes in a .txt that are no UTF-8: "strict" refuses them, "replace" makes them U+FFFD.
    """
    kind = path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
    if kind not in (".txt", ".jsonl", ".json"):
        raise DataError(f"{path}: what is this? Its name must end in .txt, .jsonl or .json, or in one of these and .gz")
    return pieces(path, END_OF_TEXT, LONGEST_STORY, errors) if kind == ".txt" else json_stories(path)


def pieces(path: Path, separator: str, longest: float = float("inf"), errors: str = "strict") -> Iterator[str]:
    """The file's text, cut at each separator; the last piece only if there is something in it."""
    rest = ""
    bar = tqdm(desc=f"reading {path.name}", total=path.stat().st_size, unit="B", unit_scale=True, disable=None)
    with path.open("rb") as raw, bar:
        data = gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw
        text = io.TextIOWrapper(data, encoding="utf-8-sig", errors=errors, newline="")
        try:
            while block := text.read(1 << 20):
                *whole, rest = (rest + block).split(separator)
                longest = float("inf") if whole else longest
                if len(rest) > longest:
                    raise DataError(f"{path}: no {separator} in {len(rest):,} characters; put one after each story")
                yield from whole
                bar.update(raw.tell() - bar.n)
        except UnicodeDecodeError:
            raise DataError(f"{path}: not UTF-8 text, somewhere before byte {data.tell():,}; convert it") from None
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise DataError(f"{path}: broken gzip ({error}); fetch or compress it anew") from None
    if rest.strip():
        yield rest


def json_stories(path: Path) -> Iterator[str]:
    """Stories from one JSON object a line, or from one array of them (which is read as a whole)."""
    hint = 'a story must be an object such as {"text": "Once upon a time…"}, one a line or all in one array'
    lines = pieces(path, "\n")
    for number, line in enumerate(lines, 1):
        is_array = line.lstrip().startswith("[")
        try:
            rows = json.loads("\n".join([line, *lines])) if is_array else [json.loads(line)] if line.strip() else []
        except json.JSONDecodeError as error:
            raise DataError(f"{path}: line {number + error.lineno - 1} is not JSON ({error.msg}); {hint}") from None
        except RecursionError:
            raise DataError(f"{path}: line {number} is nested too deeply; {hint}") from None
        for i, row in enumerate(rows, 1):
            place = f"object {i}" if is_array else f"line {number}"
            story = row.get("text", row.get("story")) if isinstance(row, dict) else None
            if not isinstance(story, str) or not story.isascii() and re.search("[\ud800-\udfff]", story):
                raise DataError(f'{path}: {place} has no "text" or "story" with a string of whole characters; {hint}')
            yield story


# ---- Clean ----
# UTF-8 that was once read as cp1252: ’ (bytes E2 80 99) became â€™. Bytes that cp1252 leaves undefined came through as
# control characters, or were lost (â€ alone was ”). What true text may hold, such as “CAFÉ” or “MANHÃ”, stays.
CP1252 = bytes(range(0x80, 0xA0)).decode("cp1252", errors="ignore")
TO_LATIN1 = {ord(character): character.encode("cp1252")[0] for character in CP1252}
LOW, HIGH = f"[{CP1252}\x80-\x9f]", "[\xa0-\xbf]"  # what the bytes 80–9F and A0–BF were read as
MOJIBAKE = re.compile(
    rf"(?<![^\W\d_])Ã{LOW}"  # À to ß: capitals, so only where a word begins
    rf"|(?<![A-ZÀ-Þ][A-ZÀ-Þ])[ÂÃ]{HIGH}"  # à to ÿ, ½, °, ¡: not in a word of capitals
    rf"|â[€\x80‚\x82„\x84˜\x98™\x99œ\x9c\x9d](?:{LOW}|{HIGH})"  # quotes, dashes, €, ™, ★, ♥, ✨, ❤
    rf"|ð[Ÿ\x9f](?:{LOW}|{HIGH}){{2}}"  # emoji
    rf"|â€\ufffd?"  # ”, the last byte lost
)
# A whole story ends a sentence, or says that it ends. Of the real stories 0.5 % do neither: they were cut off.
COMPLETE = re.compile(r"""(?:[.!?…。！？]["'”’»)\]*」』]*|\b(?i:the end))$""")


def mend(match: re.Match) -> str:
    """What a piece of mojibake was, by way of the bytes that it was read from."""
    return "”" if match[0] in ("â€", "â€\ufffd") else match[0].translate(TO_LATIN1).encode("latin-1").decode("utf-8")


def clean(text: str) -> tuple[str, bool]:
    """The story without mojibake, spaces at line ends, \\r and blanks around it, all else as it stands; if mended."""
    n_mended = 0
    if not text.isascii():  # which costs nothing: a str knows this of itself
        text, n_mended = MOJIBAKE.subn(mend, text)
    text = text.strip().replace("\r\n", "\n").replace("\r", "\n")
    if " \n" in text or "\t\n" in text:
        text = "\n".join(line.rstrip(" \t") for line in text.split("\n"))
    return text, n_mended > 0


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
    spools: dict[str, Spool], train: Iterable[str], val: Iterable[str] | None, val_share: float, seed: int,
    kind: str | None = None
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
            headed = (headers.read(text) or headers.Headed({}, "")) if kind else None
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
                    text = str(headers.apart(headed) if kind == OOD and split == "train" else headed)
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
    directory: Path, sources: list[str], train: Iterable[str], val: Iterable[str] | None, vocab_size: int = 10000,
    val_share: float = 0.01, seed: int = 0, threads: int = CORES, kind: str | None = None
) -> None:
    """Make `directory` from stories, which stand under headers of this kind (ANY, OOD) or none.

    If anything fails, what was there before still is.
    """
    if not 257 <= vocab_size <= GPT2_VOCAB_SIZE:
        raise DataError(f"vocab_size {vocab_size}: must be 257 (bytes and end of text) to {GPT2_VOCAB_SIZE} (GPT-2's)")
    if not 0 < val_share < 1:
        raise DataError(f"val_share {val_share}: must be above 0 and below 1")
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        restore(directory)
        remove_leftovers(directory)
        if directory.exists() and not (directory / "meta.json").exists():
            raise DataError(f"{directory}: holds something else, which would be lost; choose another --name")
        with tempfile.TemporaryDirectory(prefix=f".{directory.name}.tmp-", dir=directory.parent) as temporary:
            spools = {split: Spool(Path(temporary, split)) for split in ("train", "val")}
            cleaning = fill_spools(spools, train, val, val_share, seed, kind)
            for split, spool in spools.items():
                if not spool.stories:
                    reason = f"no story left for {split} of {cleaning['stories read']} read"
                    raise DataError(f"{', '.join(sources)}: {reason}; give more, or --val FILE, or mend --val_share")
            gpt2_ids = learn_vocabulary(spools["train"], vocab_size, threads)
            (new := Path(temporary, "new")).mkdir()
            meta = {
                "format": FORMAT, "name": directory.name, "source": sources, "seed": seed, "vocab_size": vocab_size,
                "gpt2_ids": "",
                "splits": {split: write_tokens(spool, new, gpt2_ids, threads) for split, spool in spools.items()},
                "cleaning": cleaning,
            } | ({"headers": kind} if kind else {})
            text = json.dumps(meta, indent=2)
            text = text.replace('"gpt2_ids": ""', f'"gpt2_ids": {json.dumps(gpt2_ids)}')  # all on one line
            (new / "meta.json").write_text(text + "\n", encoding="utf-8")
            install(new, directory)
    except OSError as error:
        raise DataError(f"{error.filename or directory}: {error.strerror}; make room or change --data_dir") from None


def remove_leftovers(directory: Path) -> None:
    """Removes what killed runs had begun to write for `directory`, but not what one at work does."""
    for leftover in directory.parent.glob(f".{directory.name}.tmp-*"):
        if time.time() - max(path.stat().st_mtime for path in [leftover, *leftover.rglob("*")]) > 3600:
            shutil.rmtree(leftover, ignore_errors=True)


def install(new: Path, directory: Path) -> None:
    """Put `new` in the place of `directory`. Should the run be killed between the renames, `restore` mends it."""
    old = directory.with_name(f".{directory.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if directory.exists():
        directory.rename(old)
    new.rename(directory)
    shutil.rmtree(old, ignore_errors=True)


def restore(directory: Path) -> None:
    """Put back what a run that was killed had moved away."""
    old = directory.with_name(f".{directory.name}.old")
    if old.exists() and not directory.exists():
        old.rename(directory)


def load_meta(directory: str | Path) -> dict:
    """meta.json, after a check that it and the .bin files beside it are whole and belong together."""
    directory = Path(directory)
    restore(directory)
    source = directory.name if directory.name in (*DOWNLOADS, *BUILTIN) else f"--input FILE --name {directory.name}"
    remedy = f"make it anew: python prepare.py {source} --data_dir {directory.parent}"
    try:
        meta = json.loads((directory / "meta.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", error)
        raise DataError(f"{directory / 'meta.json'}: cannot be read ({reason}); {remedy}") from None
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        raise DataError(f"{directory / 'meta.json'}: is not of format {FORMAT}; {remedy}")
    for split, facts in meta["splits"].items():
        path = directory / f"{split}.bin"
        if not path.exists() or path.stat().st_size != 2 * facts["tokens"]:
            raise DataError(f"{path}: missing, or not {2 * facts['tokens']:,} bytes long; {remedy}")
        if sha256_of(path) != facts["sha256"]:
            raise DataError(f"{path}: does not have the checksum that meta.json gives; {remedy}")
    return meta


def load_tokens(directory: str | Path, split: str) -> np.ndarray:
    """(tokens,) uint16, memory-mapped: the stories of a split in a row, each followed by <|endoftext|>."""
    return np.memmap(Path(directory, f"{split}.bin"), dtype="<u2", mode="r")


# ---- The three kinds of corpus, and the command line ----
def prepare_builtin(
    data_dir: str | Path = "data", n_stories: int = 20000, vocab_size: int = 4096, seed: int = 0,
    val_share: float = 0.01, threads: int = CORES, corpus: str = "builtin", name: str | None = None
) -> Path:
    """Our own stories; a larger share of few, as validation wants 200 at least."""
    val_share, directory = max(val_share, min(250 / max(n_stories, 1), 0.5)), Path(data_dir, name or corpus)
    told, kind = stories.stories(n_stories, seed), HEADERS.get(corpus)
    always = ("words", "summary") if kind == OOD else ()  # and one of them is taken away again, for training
    texts = (headers.of_builtin(story, always) if kind else story.text for story in told)
    texts = tqdm(texts, "telling", n_stories, disable=None)
    prepare(directory, [corpus], texts, None, vocab_size, val_share, seed, threads, kind)
    return directory


def report(directory: Path) -> None:
    """A table of what was made, read back, and what to do with it."""
    meta = load_meta(directory)
    print("split      stories        tokens        MB  bytes/token")
    for split, facts in meta["splits"].items():
        count, tokens, n_bytes = facts["stories"], facts["tokens"], facts["bytes"]
        print(f"{split:5}{count:13,}{tokens:14,}{n_bytes / 1e6:10.1f}{n_bytes / tokens:13.3f}")
    print(", ".join(f"{step}: {n:,}" for step, n in meta["cleaning"].items()))
    few, builtin = meta["splits"]["train"]["tokens"] < 20e6, meta["source"][0].startswith("builtin")
    if "headers" in meta:
        config = "builtin_instruct" if builtin else "instruct"
    else:
        config = "demo" if builtin else "cpu_1m" if few else "ts_8m"
    print(f"wrote {directory}; next: python train.py configs/{config}.py --data={meta['name']}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Prepare a corpus: data/<name>/{train.bin, val.bin, meta.json}.")
    parser.add_argument("corpus", nargs="?", choices=[*DOWNLOADS, *BUILTIN], help="or else --input and --name")
    parser.add_argument("--input", nargs="+", type=Path, default=[], metavar="FILE", help=".txt .jsonl .json, or + .gz")
    parser.add_argument("--val", nargs="+", type=Path, default=[], metavar="FILE", help="default: a share of the input")
    parser.add_argument("--headers", action="store_true", help="with --input: a header of what can be read off a story")
    parser.add_argument("--name", help="the directory under data_dir; default: the corpus")
    parser.add_argument("--vocab_size", type=int, default=argparse.SUPPRESS, help="default: 10000, for builtin 4096")
    parser.add_argument("--val_share", type=float, default=0.01, help="of the stories, where no --val is given")
    parser.add_argument("--stories", type=int, default=20000, help="how many to tell (builtin only)")
    parser.add_argument("--seed", type=int, default=0, help="of the split, and of builtin's stories")
    parser.add_argument("--data_dir", type=Path, default=Path("data"))
    parser.add_argument("--threads", type=int, default=CORES)
    args = parser.parse_args()
    name = args.name or args.corpus
    if bool(args.corpus) == bool(args.input) or ((args.val or args.headers) and not args.input):
        parser.error(f"give {', '.join([*DOWNLOADS, *BUILTIN])}, or else --input FILE (with it, --val FILE, --headers)")
    if not name or not re.fullmatch(r"\w[\w.-]*", name) or args.threads < 1:
        parser.error("--input needs a --name of letters, digits, - _ and . only; --threads must be 1 or more")
    settings = {key: getattr(args, key) for key in ("vocab_size", "val_share", "seed", "threads") if key in args}
    try:
        if args.corpus in BUILTIN:
            prepare_builtin(args.data_dir, args.stories, corpus=args.corpus, name=name, **settings)
        else:
            sources, files = [str(path) for path in args.input + args.val], [args.input, args.val]
            if args.corpus:
                published = f"{endpoint()}/{PUBLISHED}/{DOWNLOADS[args.corpus]}"
                sources = [f"{published}-{split}.txt" for split in ("train", "valid")]
                files = [map(download, [url], [args.data_dir / "download" / Path(url).name]) for url in sources]
            elif missing := [path for path in sources if not (os.path.isfile(path) and os.access(path, os.R_OK))]:
                raise DataError(f"{', '.join(missing)}: no such file; check what --input and --val name")
            read = functools.partial(read_stories, errors="replace" if args.corpus else "strict")  # theirs has slips
            texts = [itertools.chain.from_iterable(map(read, paths)) if paths else None for paths in files]
            if args.headers:
                texts = [map(headers.derived, split) if split else None for split in texts]
            kind = ANY if args.headers else HEADERS.get(args.corpus)
            prepare(args.data_dir / name, sources, *texts, kind=kind, **settings)
        report(args.data_dir / name)
    except (DataError, HubError) as error:
        sys.exit(f"prepare.py: {error}")
    except KeyboardInterrupt:
        sys.exit("prepare.py: stopped; what was there before still is")


if __name__ == "__main__":
    main()
