"""
Prepare a corpus: clean, deduplicate, split and tokenize stories into data/<name>/{train.bin,
val.bin, meta.json}.

$ python prepare.py builtin  # 20,000 stories of our own, nothing to download
$ python prepare.py tinystories-v2  # the GPT-4 stories of TinyStories (2 GB)
$ python prepare.py simplestories  # 2 million stories by GPT-4o mini (1.7 GB)
$ python prepare.py instruct  # stories under headers (words, features, summary)
# your own: <|endoftext|> stands between stories
$ python prepare.py --input mine.txt more.jsonl.gz --name mine
$ python prepare.py --input stories.csv --column body --name mine

The stories stream through: 2 GB of them take well under 1 GB of memory.
"""

import argparse
import array
import filecmp
import hashlib
import itertools
import json
import math
import os
import random
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

from nanostories.cli import (
    Parser,
    UserError,
    existing_path,
    number,
    one_line_errors,
    pattern,
    positive,
    share,
)
from nanostories.corpus import builtin_stories, instruct_headers
from nanostories.corpus.cleaning import (
    CLEANING,
    COMPLETE,
    DUPLICATE,
    EMPTY,
    IN_VALIDATION,
    NO_HEADER,
    TRUNCATED,
    clean,
)
from nanostories.corpus.sources import (
    ANY,
    BUILTIN,
    COLUMNS,
    CORPORA,
    DOWNLOADS,
    HEADERS,
    OOD,
    download,
    ending_of,
    files_in,
    read_files,
)
from nanostories.corpus.spool import Spool, encode
from nanostories.corpus.token_files import FORMAT, load_meta
from nanostories.corpus.tokenizer import (
    END_OF_TEXT,
    GPT2_VOCAB_SIZE,
    Tokenizer,
    cut,
    gpt2,
    learn_bpe,
)
from nanostories.files import set_aside, sha256_of

SAMPLE_BYTES = 100_000_000  # training text from which the vocabulary is learned
SHOWN_FILES = 20  # more would flood the screen
LONG_STORY = 20  # times as long as the median: probably several stories in one
VAL_STORIES = 250  # to hold out, if there are enough


def parse_args() -> argparse.Namespace:
    parser = Parser(__doc__)
    # extend: the flag may be repeated
    files = dict(nargs="+", action="extend", type=existing_path, default=[], metavar="FILE")
    corpus = parser.add_mutually_exclusive_group(required=True)
    corpus.add_argument("corpus", nargs="?", choices=CORPORA, help="or give --input and --name")
    corpus.add_argument(
        "--input",
        **files,
        help="your stories: .txt, .json, .jsonl, .csv, .tsv, .gz, .parquet, folders",
    )
    held_out = parser.add_mutually_exclusive_group()
    val_help = "validation stories (default: a share of the input)"
    held_out.add_argument("--val", **files, help=val_help)
    share_help = "fraction of the stories to hold out (default: 0.01; more of few stories)"
    held_out.add_argument("--val_share", type=share, help=share_help)
    split_help = (
        "what stands between stories in a .txt, beside <|endoftext|>: "
        r"'\n\s*\n' is a blank line"
    )
    parser.add_argument("--split_on", type=pattern, metavar="PATTERN", help=split_help)
    column_help = (
        "the one that holds the stories, in tables and JSON (default: text or story); of several"
        " names, the first that a file has"
    )
    parser.add_argument("--column", nargs="+", default=COLUMNS, metavar="NAME", help=column_help)
    headers_help = "with --input: put a header of instructions above each story"
    parser.add_argument("--headers", action="store_true", help=headers_help)
    parser.add_argument("--name", help="of the directory in --data_dir (default: the corpus's)")
    sizes = f"257 (bytes and end of text) to {GPT2_VOCAB_SIZE}"
    size = number(int, lambda n: 257 <= n <= GPT2_VOCAB_SIZE, sizes)
    parser.add_argument("--vocab_size", type=size, help="default: 10000, or 4096 for builtin")
    kinds_help = (
        "the most frequent tokens of GPT-2's (default, for English), or a BPE learned from the"
        " stories"
    )
    parser.add_argument("--vocabulary", choices=("cut", "bpe"), help=kinds_help)
    model_help = "take the vocabulary of a run, or of hf:ID-or-directory, instead of learning one"
    parser.add_argument("--vocabulary_of", metavar="MODEL", help=model_help)
    raw_help = "clean nothing, and drop nothing but empty stories; keep the order of the file"
    parser.add_argument("--raw", action="store_true", help=raw_help)
    parser.add_argument(
        "--stories", type=positive, help="how many stories a builtin corpus has (default: 20000)"
    )
    parser.add_shared("seed")
    parser.add_argument("--data_dir", type=Path, default=Path("data"), help="default: data")
    args = parser.parse_args()
    if args.corpus in BUILTIN and not args.stories:
        args.stories = 20_000
    args.name = args.name or args.corpus or ""
    refuse_contradictions(parser, args)
    return args


def refuse_contradictions(parser: Parser, args: argparse.Namespace) -> None:
    """Exits where flags do not go together, or name is not a plain one."""
    if args.corpus and (args.val or args.headers or args.split_on or args.column != COLUMNS):
        parser.error("--val, --headers, --split_on and --column are for --input")
    files = args.input + args.val
    has_text_files = any(path.is_dir() or ending_of(path) == ".txt" for path in files)
    if args.split_on and not has_text_files:
        parser.error("--split_on is for .txt files")
    if args.vocabulary_of and (args.vocabulary or args.vocab_size):
        remedy = "leave out --vocabulary and --vocab_size"
        parser.error(f"--vocabulary_of brings a whole vocabulary: {remedy}")
    if args.stories and args.corpus not in BUILTIN:
        parser.error("--stories is for builtin corpora")
    if args.raw and (args.headers or args.corpus in HEADERS):
        parser.error("--raw is for stories without headers")
    if args.val_share and args.corpus in DOWNLOADS:
        parser.error("--val_share is for corpora that have no validation stories")
    if not re.fullmatch(r"\w[\w.-]*", args.name):
        rule = "must begin with a letter, a digit or _, and have only these, - and ."
        parser.error(f"--name {rule} (with --input it is required)")


# ---- Read ----
def read(args: argparse.Namespace) -> tuple[list[str], Iterable[str], Iterable[str] | None]:
    """(the sources, training stories, validation stories or None to hold out a share)"""
    if args.corpus in BUILTIN:
        return [args.corpus], builtin_texts(args.corpus, args.stories, args.seed), None
    if args.corpus in DOWNLOADS:
        return download(args.corpus)
    sources = [str(path) for path in args.input + args.val]
    train = read_input(args.input, args)
    val = read_input(args.val, args) if args.val else None
    return sources, train, val


def read_input(paths: list[Path], args: argparse.Namespace) -> Iterator[str]:
    """The stories of all files. Prints how many each of the first files has, and how the first one
    begins, as it may be in another encoding. Warns of a story that is far longer than most."""
    lengths = array.array("Q")  # characters of each story
    longest = 0
    for i, path in enumerate(paths):
        n_before = len(lengths)
        beginning = ""
        stories = read_files(
            [path], split_on=args.split_on, headers=args.headers, columns=args.column
        )
        for story in stories:
            lengths.append(len(story))
            beginning = beginning or " ".join(story.split())[:40]
            if len(story) > longest:
                longest = len(story)
                longest_in = path
            yield story
        if i < SHOWN_FILES:
            tqdm.write(f"{path}: {len(lengths) - n_before:,} stories; first: {beginning} …")
    if lengths and longest > LONG_STORY * np.median(lengths):
        question = f"is the longest story of {longest_in} a single one?"
        tqdm.write(f"WARNING {question} For .txt files, see --split_on")


def builtin_texts(corpus: str, n: int, seed: int) -> Iterator[str]:
    always = ()
    if HEADERS.get(corpus) == OOD:
        always = ("words", "summary")  # clean_and_split takes one of them from training stories
    for story in builtin_stories.stories(n, seed):
        if corpus in HEADERS:
            yield instruct_headers.add_header_of_row(story.text, vars(story), always)
        else:
            yield story.text


def default_val_share(n: int) -> float:
    """To hold out, of n stories: a hundredth; of fewer, about 250 stories; of still fewer a fifth,
    but at least 20 stories, and never more than half."""
    n_held_out = max(20, min(VAL_STORIES, n // 5))
    return min(0.5, max(0.01, n_held_out / n))


# ---- Clean, drop duplicates, split ----
@dataclass
class Options:
    """What is done to the stories."""

    # "cut" or "bpe": to be learned from the stories; or one that is there
    vocabulary: str | Tokenizer = "cut"
    vocab_size: int = 10_000  # of one that is learned
    val_share: float = 0.01
    seed: int = 0
    headers: str | None = None  # ANY or OOD if they have headers (corpus/instruct_headers.py)
    add_headers: bool = False  # to those that have none
    raw: bool = False  # drop nothing but empty stories, and clean nothing


def clean_and_split(
    train: Iterable[str], val: Iterable[str] | None, options: Options, counts: dict[str, int]
) -> Iterator[tuple[str, str]]:
    """(split, text) of each story that is kept; counts those of CLEANING."""
    # Two stories are compared without their headers, by hashes of 64 bits, each of which takes 100
    # bytes of memory: of 3 million stories, two collide in 1 of 4e6 runs.
    seen = {}  # hash -> the split of the first story that has it
    salt = (options.seed % 2**64).to_bytes(8, "big")
    # Validation stories come first, as they are dropped from train.
    val_texts = (("val", text) for text in val or ())
    train_texts = (("train", text) for text in train)
    texts = itertools.chain(val_texts, train_texts)
    for split, text in tqdm(texts, "cleaning", unit=" stories", disable=None):
        counts["stories read"] += 1
        text, story = clean_text(text, options, counts)
        # Drawn by the exact text; compared without line breaks, which copies may have elsewhere
        draw = hashlib.blake2b(story.encode(), digest_size=8, salt=salt).digest()
        if val is None and int.from_bytes(draw, "big") < options.val_share * 2**64:
            split = "val"
        words = " ".join(story.split())
        digest = hashlib.blake2b(words.encode(), digest_size=8, salt=salt).digest()
        reason = reason_to_drop(story, split, seen.get(digest), options)
        if reason:
            counts[reason] += 1
            if reason == TRUNCATED and counts[reason] <= 3:
                problem = "as it does not end with a whole sentence (--raw keeps it)"
                tqdm.write(f"dropped, {problem}: …{story[-50:]!r}")
            continue
        seen[digest] = split
        if options.headers == OOD and split == "train":
            text = str(instruct_headers.read(text).without_words_or_summary())
        yield split, text


def clean_text(text: str, options: Options, counts: dict[str, int]) -> tuple[str, str]:
    """The cleaned text, and the story in it: "" if it has no header and should have one."""
    if options.raw:
        text = text.strip("\r\n")
    else:
        text, was_repaired = clean(text)
        counts["repaired (garbled characters, entities)"] += was_repaired
    if options.add_headers:
        text = instruct_headers.add_header(text)
    if not options.headers:
        return text, text
    parsed = instruct_headers.read(text)
    if not parsed:
        return text, ""
    return str(parsed), parsed.story


def reason_to_drop(
    story: str, split: str, split_of_copy: str | None, options: Options
) -> str | None:
    """One of CLEANING; None for a story that is kept. split_of_copy: of the same story before, if
    there was one."""
    if not story.strip():
        return NO_HEADER if options.headers else EMPTY
    if options.raw:
        return None
    if not COMPLETE.search(story[-16:]):  # the pattern looks at the end alone
        return TRUNCATED
    if split == "train" and split_of_copy == "val":
        return IN_VALIDATION
    return DUPLICATE if split_of_copy else None


# ---- Learn the vocabulary, tokenize ----
def learn_vocabulary(spool: Spool, options: Options) -> Tokenizer:
    """Those of GPT-2's tokens that a uniform sample of the stories needs most ("cut"), or a BPE of
    its own ("bpe")."""
    every = math.ceil(sum(spool.lengths) / SAMPLE_BYTES)
    sample = itertools.islice(spool.read("learning the vocabulary"), 0, None, every)
    if options.vocabulary == "bpe":
        return learn_bpe(sample, options.vocab_size)
    counts = np.zeros(GPT2_VOCAB_SIZE, dtype=np.int64)
    for ids in encode(sample, gpt2()):
        counts += np.bincount(ids, minlength=GPT2_VOCAB_SIZE)
    return cut(counts, options.vocab_size)


# ---- The whole pipeline ----
def prepare(
    directory: Path,
    sources: list[str],
    train: Iterable[str],
    val: Iterable[str] | None,
    options: Options,
) -> None:
    """Makes `directory`. If anything fails, nothing has changed.

    sources: where the stories are from, for meta.json. val: validation stories; None to hold out a
    share of `train`.
    """
    parent = directory.parent
    parent.mkdir(parents=True, exist_ok=True)
    spools = {"train": Spool(parent), "val": Spool(parent)}
    counts = dict.fromkeys(CLEANING, 0)
    held_out = []
    for split, text in clean_and_split(train, val, options, counts):
        if split == "val":
            held_out.append(text)
        else:
            spools["train"].add(text)
    if val is None and len(sources) > 1 and not options.raw:
        # They are of several files, and sample.py --eval takes the first
        random.Random(options.seed).shuffle(held_out)
    for text in held_out:
        spools["val"].add(text)
    require_stories(spools, sources, counts)
    tokenizer = options.vocabulary
    if isinstance(tokenizer, str):
        tokenizer = learn_vocabulary(spools["train"], options)
    meta = {
        "format": FORMAT,
        "name": directory.name,
        "source": sources,
        "seed": options.seed,
        "raw": options.raw,
        "cleaning": counts,
        "vocab_size": tokenizer.vocab_size,
        "vocabulary": tokenizer.vocabulary,
    }
    if options.headers:
        meta["headers"] = options.headers
    write_corpus(directory, meta, spools, tokenizer)


def require_stories(spools: dict[str, Spool], sources: list[str], counts: dict[str, int]) -> None:
    """UserError if a split has none."""
    outcomes = ", ".join(f"{n:,} {outcome}" for outcome, n in counts.items())
    for split, spool in spools.items():
        if not spool.lengths:
            raise UserError(
                f"{', '.join(sources)}: no stories left for {split} ({outcomes}); give more, or"
                " some with --val; each must end with a whole sentence, and in a .txt"
                f" {END_OF_TEXT} or --split_on must separate them"
            )


def write_corpus(
    directory: Path, meta: dict, spools: dict[str, Spool], tokenizer: Tokenizer
) -> None:
    """Tokenizes the splits into flat files of uint16, beside meta.json."""
    prefix = f".{directory.name}.tmp-"
    with tempfile.TemporaryDirectory(prefix=prefix, dir=directory.parent) as temporary:
        new = Path(temporary, "new")  # below it, as the temporary directory removes itself
        new.mkdir()
        meta["splits"] = {}
        for split, spool in spools.items():
            path = new / f"{split}.bin"
            with path.open("wb") as file:
                for ids in encode(spool.read(f"tokenizing {split}"), tokenizer):
                    file.write(ids.astype("<u2").tobytes())
            meta["splits"][split] = {
                "stories": len(spool.lengths),
                "tokens": path.stat().st_size // 2,
                "bytes": sum(spool.lengths),
                "sha256": sha256_of(path),
            }
        # One line a key, as the vocabulary has thousands of tokens
        lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in meta.items()]
        (new / "meta.json").write_text("{\n  " + ",\n  ".join(lines) + "\n}\n")
        install(new, directory)


def install(new: Path, directory: Path) -> None:
    """Gives the corpus its name. One with other tokens is kept under a new name: runs that were
    trained on it must not find some of their training stories among the validation stories."""
    files = ["train.bin", "val.bin"]
    same, _, _ = filecmp.cmpfiles(new, directory, files, shallow=False)
    if same == files:
        print(f"{directory}: the same tokens as before")
        (new / "meta.json").replace(directory / "meta.json")
        return
    if directory.exists():
        older = set_aside(directory)
        print(f"{directory} held another corpus, which is now {older}")
    new.replace(directory)


# ---- The summary ----
def print_summary(directory: Path) -> None:
    """Prints the size of a corpus, what may be wrong with it, and the next command."""
    meta = load_meta(directory)
    for name, split in meta["splits"].items():
        sizes = [f"{split[unit]:,} {unit}" for unit in ("stories", "tokens", "bytes")]
        print(f"{name}: {', '.join(sizes)}")
    print(", ".join(f"{n:,} {outcome}" for outcome, n in meta["cleaning"].items() if n))
    train = meta["splits"]["train"]
    per_story = train["bytes"] / train["stories"]
    if not 250 < per_story < 6000:
        question = "is each one a story? For .txt files, see --split_on"
        print(f"WARNING a story has {per_story:,.0f} bytes on average: {question}")
    per_token = train["bytes"] / train["tokens"]
    if per_token < 3 and meta["vocab_size"] >= 4096:
        remedy = "try --vocabulary bpe"
        print(f"WARNING a token holds {per_token:.1f} bytes on average (English: 4); {remedy}")
    print(f"wrote {directory}; next: {next_command(directory, meta)}")


def next_command(directory: Path, meta: dict) -> str:
    train = meta["splits"]["train"]
    tokens_per_story = train["tokens"] / train["stories"]
    for_cpu = train["tokens"] < 20e6 or not shutil.which("nvidia-smi")
    if "headers" in meta:
        config = "builtin_instruct" if for_cpu else "instruct"
    elif meta["source"] == ["builtin"]:
        config = "demo"
    else:
        config = "cpu" if for_cpu else "ts_8m"
    command = f"python train.py configs/{config}.py --data={meta['name']}"
    if train["tokens"] < 5e5 and config != "demo":
        command += " --epochs=5 --eval_interval=50"  # more overfits
    if directory.parent != Path("data"):
        command += f" --data_dir={shlex.quote(str(directory.parent))}"
    # Most stories should fit in the context; with about as many tokens in a step as before
    if for_cpu and tokens_per_story > 400:
        command += " --block_size=1024 --batch_size=2"
    elif for_cpu and tokens_per_story > 256:
        command += " --block_size=512 --batch_size=4"
    return command


def options_of(args: argparse.Namespace) -> Options:
    vocab_size = 10_000
    n_stories = 100 * VAL_STORIES  # enough to hold out a hundredth
    if args.corpus in BUILTIN:
        vocab_size = 4096
        n_stories = args.stories
    elif args.input and not args.val and not args.val_share:
        stories = read_files(args.input, split_on=args.split_on, columns=args.column)
        n_stories = sum(1 for _ in itertools.islice(stories, n_stories))
    vocabulary = args.vocabulary or "cut"
    if args.vocabulary_of:
        vocabulary = vocabulary_of(args.vocabulary_of)
    return Options(
        vocabulary=vocabulary,
        vocab_size=args.vocab_size or vocab_size,
        val_share=args.val_share or default_val_share(max(n_stories, 1)),
        seed=args.seed,
        headers=ANY if args.headers else HEADERS.get(args.corpus),
        add_headers=args.headers,
        raw=args.raw,
    )


def vocabulary_of(model: str) -> Tokenizer:
    from nanostories.checkpoints.huggingface import load_model  # here, as it imports torch

    _, tokenizer = load_model(model)
    if tokenizer.vocab_size > 2**16:
        raise UserError(f"{model}: more than {2**16:,} ids do not fit in uint16")
    return tokenizer


def main() -> None:
    args = parse_args()
    directory = args.data_dir / args.name
    interrupted = f"{directory} changes only once all of it is there; downloads will resume"
    with one_line_errors("prepare.py", interrupted):
        args.input = files_in(args.input)
        args.val = files_in(args.val)
        # First what may be refused, as a download takes long
        if os.path.lexists(directory) and not (directory / "meta.json").exists():
            raise UserError(f"{directory} is no corpus; choose another --name, or move it away")
        options = options_of(args)
        sources, train, val = read(args)
        prepare(directory, sources, train, val, options)
        print_summary(directory)


if __name__ == "__main__":
    main()
