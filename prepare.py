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
    files_in,
    read_files,
)
from nanostories.corpus.spool import Spool, encode
from nanostories.corpus.token_files import FORMAT, load_meta, load_stories, read_meta
from nanostories.corpus.tokenizer import (
    END_OF_TEXT,
    GPT2_VOCAB_SIZE,
    Tokenizer,
    cut,
    gpt2,
    learn_bpe,
)
from nanostories.corpus.word_forms import language_warning
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
    held_out.add_argument(
        "--val", **files, help="validation stories (default: a share of the input)"
    )
    held_out.add_argument(
        "--val_share",
        type=share,
        help="share to hold out (default: 0.01, or more of few stories)",
    )
    split_help = "what stands between stories in a .txt, beside <|endoftext|>: "
    split_help += r"'\n\s*\n' is a blank line"
    parser.add_argument("--split_on", type=pattern, metavar="PATTERN", help=split_help)
    column_help = "of the stories in a table (default: text or story); of several"
    column_help += " names, the first that a file has"
    parser.add_argument("--column", nargs="+", default=COLUMNS, metavar="NAME", help=column_help)
    headers_help = "with --input: add headers (of the rows, if any)"
    parser.add_argument("--headers", action="store_true", help=headers_help)
    parser.add_argument("--name", help="of the new directory in data_dir (default: the corpus's)")
    sizes = f"257 (bytes and end of text) to {GPT2_VOCAB_SIZE}"
    size = number(int, lambda n: 257 <= n <= GPT2_VOCAB_SIZE, sizes)
    parser.add_argument("--vocab_size", type=size, help="default: 10000, or 4096 for builtin")
    kinds_help = "the most frequent tokens of GPT-2's (default, for English), or a BPE learned from"
    kinds_help += " the stories"
    parser.add_argument("--vocabulary", choices=("cut", "bpe"), help=kinds_help)
    model_help = "the one of a run, or of hf:ID-or-directory, instead"
    parser.add_argument("--vocabulary_of", metavar="MODEL", help=model_help)
    raw_help = "clean nothing, and drop nothing but empty stories; keep the order of the file"
    parser.add_argument("--raw", action="store_true", help=raw_help)
    parser.add_argument("--stories", type=positive, help="in a builtin corpus (default: 20000)")
    parser.add_shared("seed")
    parser.add_argument("--data_dir", type=Path, default=Path("data"), help="default: data")
    args = parser.parse_args()
    if args.corpus in BUILTIN and not args.stories:
        args.stories = 20_000
    args.name = args.name or args.corpus or ""
    for is_made, message in mistakes(args):
        if is_made:
            parser.error(message)
    return args


def mistakes(args: argparse.Namespace) -> list[tuple[object, str]]:
    """(whether it was made, what to say) of flags that contradict each other"""
    files = args.input + args.val
    has_text_files = any(
        path.is_dir() or path.name.lower().endswith((".txt", ".txt.gz")) for path in files
    )
    with_headers = args.headers or args.corpus in HEADERS
    name_rule = (
        "must begin with a letter, a digit or _, and have only these, - and . (with --input it is"
        " required)"
    )
    return [
        (
            args.corpus and (args.val or args.headers or args.split_on or args.column != COLUMNS),
            "--val, --headers, --split_on and --column are for --input",
        ),
        (args.split_on and not has_text_files, "--split_on is for .txt files"),
        (
            args.vocabulary_of and (args.vocabulary or args.vocab_size),
            "--vocabulary_of brings a whole vocabulary: leave out --vocabulary and --vocab_size",
        ),
        (args.stories and args.corpus not in BUILTIN, "--stories is for builtin corpora"),
        (args.raw and with_headers, "--raw is for stories without headers"),
        (
            args.val_share and args.corpus in DOWNLOADS,
            "--val_share is for corpora that have no validation stories",
        ),
        (not re.fullmatch(r"\w[\w.-]*", args.name), f"--name {name_rule}"),
    ]


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
    """The stories of all files. Prints how many each file has, how long they are, and how the first
    one begins, as it may be in another encoding; of many files, only the fewest and the most. Warns
    of a story that is far longer than most."""
    lengths = {}  # characters of each story, by file
    how = dict(split_on=args.split_on, headers=args.headers, columns=args.column)
    for path in paths:
        lengths[path] = array.array("Q")
        for story in read_files([path], **how):
            if not lengths[path]:
                beginning = " ".join(story.split())[:40]
            lengths[path].append(len(story))
            yield story
        if len(paths) > SHOWN_FILES:
            continue
        facts = ""
        if lengths[path]:
            median = int(np.median(lengths[path]))
            facts = f", median {median:,} characters, longest {max(lengths[path]):,}"
            facts += f"; first: {beginning} …"
        tqdm.write(f"{path}: {len(lengths[path]):,} stories{facts}")
    if len(paths) > SHOWN_FILES:
        fewest = min(paths, key=lambda path: len(lengths[path]))
        most = max(paths, key=lambda path: len(lengths[path]))
        between = f"from {len(lengths[fewest]):,} ({fewest}) to {len(lengths[most]):,} ({most})"
        tqdm.write(f"{len(paths)} files, with {between} stories each")
    if not any(lengths.values()):
        return
    median = np.median(np.concatenate(list(lengths.values())))
    long = [path for path in paths if max(lengths[path], default=0) > LONG_STORY * median]
    if long:
        others = f" and of {len(long) - 1} more files" if len(long) > 1 else ""
        question = f"is the longest story of {long[0]}{others} a single one?"
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
    # bytes of memory in its set: of 3 million stories, two collide in 1 of 4e6 runs.
    seen = {"train": set(), "val": set()}
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
        reason = reason_to_drop(story, digest, split, seen, options)
        if reason:
            counts[reason] += 1
            if reason == TRUNCATED and counts[reason] <= 3:
                tqdm.write(f"dropped, as it does not end with a whole sentence: …{story[-50:]!r}")
            continue
        seen[split].add(digest)
        if options.headers == OOD and split == "train":
            text = str(instruct_headers.read(text).without_words_or_summary())
        yield split, text


def with_val_mixed(texts: Iterable[tuple[str, str]], seed: int) -> Iterator[tuple[str, str]]:
    """(split, text) of the training stories, then of the validation stories in random order: they
    are of several files, and sample.py --eval takes the first."""
    held_out = []
    for split, text in texts:
        if split == "val":
            held_out.append(text)
        else:
            yield split, text
    random.Random(seed).shuffle(held_out)
    for text in held_out:
        yield "val", text


def clean_text(text: str, options: Options, counts: dict[str, int]) -> tuple[str, str]:
    """The cleaned text, and the story in it: "" if it has no header and should have one."""
    if options.raw:
        text = text.strip("\r\n")
    else:
        text, was_repaired = clean(text)
        counts["mojibake repaired"] += was_repaired
    if options.add_headers:
        text = instruct_headers.add_header(text)
    if not options.headers:
        return text, text
    parsed = instruct_headers.read(text)
    if not parsed:
        return text, ""
    return str(parsed), parsed.story


def reason_to_drop(
    story: str, digest: bytes, split: str, seen: dict[str, set], options: Options
) -> str | None:
    """One of CLEANING; None for a story that is kept. seen: the digests of each split."""
    if not story.strip():
        return NO_HEADER if options.headers else EMPTY
    if options.raw:
        return None
    if not COMPLETE.search(story[-16:]):  # the pattern looks at the end alone
        return TRUNCATED
    if split == "train" and digest in seen["val"]:
        return IN_VALIDATION
    if digest in seen["train"] or digest in seen["val"]:
        return DUPLICATE
    return None


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
    with (
        tempfile.TemporaryFile(dir=parent) as train_file,
        tempfile.TemporaryFile(dir=parent) as val_file,
    ):
        spools = {"train": Spool(train_file), "val": Spool(val_file)}
        counts = dict.fromkeys(CLEANING, 0)
        texts = clean_and_split(train, val, options, counts)
        if val is None and len(sources) > 1 and not options.raw:
            texts = with_val_mixed(texts, options.seed)
        for split, text in texts:
            spools[split].add(text)
        require_stories(spools, sources, counts)
        tokenizer = options.vocabulary
        if isinstance(tokenizer, str):
            tokenizer = learn_vocabulary(spools["train"], options)
            if tokenizer.vocab_size < options.vocab_size:
                print(f"vocabulary: {tokenizer.vocab_size:,} ids; the stories need no more")
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


def require_corpus(directory: Path) -> None:
    """UserError if something else has the name."""
    try:
        read_meta(directory)
    except UserError as error:
        raise UserError(f"{error}; choose another --name, or move it away") from None


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
    """Reads the corpus back; prints its size, what may be wrong with it, and the next command."""
    meta = load_meta(directory)
    for name, split in meta["splits"].items():
        sizes = [f"{split[unit]:,} {unit}" for unit in ("stories", "tokens", "bytes")]
        print(f"{name}: {', '.join(sizes)}")
    print(", ".join(f"{n:,} {outcome}" for outcome, n in meta["cleaning"].items() if n))
    first = next(load_stories(directory, "train")[1])
    print(f"the first story begins: {' '.join(first.split())[:80]}")
    for warning in warnings(meta):
        print(f"WARNING {warning}")
    print(f"wrote {directory}; next: {next_command(directory, meta)}")


def warnings(meta: dict) -> Iterator[str]:
    train = meta["splits"]["train"]
    val = meta["splits"]["val"]
    counts = meta["cleaning"]
    bytes_per_story = train["bytes"] / train["stories"]
    bytes_per_token = train["bytes"] / train["tokens"]
    if not 250 < bytes_per_story < 6000:
        question = "is each one a story? For .txt files, see --split_on"
        yield f"a story has {bytes_per_story:,.0f} bytes on average: {question}"
    if counts[TRUNCATED] > 0.03 * counts["stories read"]:
        reason = "as they do not end with a whole sentence; --raw keeps all"
        yield f"{counts[TRUNCATED]:,} stories were dropped, {reason}"
    n_stories = train["stories"] + val["stories"]
    if val["stories"] < min(60, n_stories / 4):  # sample.py --eval 50
        larger = min(0.5, 100 / n_stories)
        remedy = f"hold out more, by --val_share {larger:.2g} or (with --input) --val"
        yield f"only {val['stories']} validation stories: {remedy}"
    if bytes_per_token < 3 and meta["vocab_size"] >= 4096:
        remedy = "try --vocabulary bpe"
        yield f"a token holds {bytes_per_token:.1f} bytes on average (English: 4); {remedy}"


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
        if os.path.lexists(directory):
            require_corpus(directory)
        options = options_of(args)
        sources, train, val = read(args)
        prepare(directory, sources, train, val, options)
        print_summary(directory)
        if args.split_on and not args.val:
            remedy = "for the loss on unseen texts, give whole ones by --val"
            print(f"Pieces of one text may be in both splits; {remedy}")
        if args.headers:
            rows = 'rows without "words" of their own, if any,'
            consequence = f"{rows} get only those in English lists"
            warning = language_warning(load_stories(directory, "val")[1], consequence)
            if warning:
                print(f"WARNING {warning}")


if __name__ == "__main__":
    main()
