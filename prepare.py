"""
Prepare a corpus: clean, deduplicate, split and tokenize stories into data/<name>/{train.bin,
val.bin, meta.json}.

$ python prepare.py builtin  # 20,000 stories of our own, nothing to download
$ python prepare.py tinystories-v2  # the GPT-4 stories of TinyStories (2 GB)
$ python prepare.py simplestories  # 2 million stories by GPT-4o mini (1.7 GB)
$ python prepare.py instruct  # stories under headers (words, features, summary)
# your own: <|endoftext|> stands between stories
$ python prepare.py --input mine.txt more.jsonl.gz --name mine

Two passes over the stories, which stream through: 2 GB of them take well under 1 GB of memory.
"""

import argparse
import filecmp
import functools
import hashlib
import itertools
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from tqdm import tqdm

from nanostories.cli import (
    Parser,
    UserError,
    existing_file,
    number,
    one_line_errors,
    pattern,
    positive,
    share,
)
from nanostories.corpus import builtin_stories, instruct_headers
from nanostories.corpus.cleaning import CLEANING, COMPLETE, clean
from nanostories.corpus.sources import (
    ANY,
    BUILTIN,
    CORPORA,
    DOWNLOADS,
    HEADERS,
    OOD,
    download,
    read_stories,
)
from nanostories.corpus.spool import Spool
from nanostories.corpus.token_files import FORMAT, load_meta, load_stories
from nanostories.corpus.tokenizer import END_OF_TEXT, GPT2_VOCAB_SIZE, cut, gpt2, learn_bpe
from nanostories.corpus.word_forms import language_warning
from nanostories.files import set_aside, sha256_of
from nanostories.tables import table_text

SPLITS = ("train", "val")
SAMPLE_BYTES = 100_000_000  # training text from which the vocabulary is learned


def parse_args() -> argparse.Namespace:
    parser = Parser(__doc__)
    parser.add_argument("corpus", nargs="?", choices=CORPORA, help="or give --input and --name")
    files = dict(
        nargs="+", action="extend", type=existing_file, default=[], metavar="FILE"
    )  # extend: may be repeated
    parser.add_argument(
        "--input", **files, help="your stories: .txt or .jsonl, or gzipped (.gz), or .parquet"
    )
    parser.add_argument("--val", **files, help="validation stories (default: a share of the input)")
    between = (
        r"with --input: what stands between stories in a .txt, beside <|endoftext|>: '\n\s*\n' is a"
        r" blank line"
    )
    parser.add_argument("--split_on", type=pattern, metavar="PATTERN", help=between)
    parser.add_argument(
        "--headers", action="store_true", help="with --input: add headers (of the rows, if any)"
    )
    parser.add_argument(
        "--name", help="name of the new directory in data_dir (default: the corpus's)"
    )
    size = number(
        int,
        lambda n: 257 <= n <= GPT2_VOCAB_SIZE,
        f"257 (bytes and end of text) to {GPT2_VOCAB_SIZE}",
    )
    parser.add_argument("--vocab_size", type=size, help="default: 10000, or 4096 for builtin")
    kinds = (
        "the most frequent tokens of GPT-2's (default, for English), or a BPE learned from the"
        " stories"
    )
    parser.add_argument("--vocabulary", choices=("cut", "bpe"), help=kinds)
    parser.add_argument(
        "--vocabulary_of",
        metavar="MODEL",
        help="the one of a run, or of hf:ID-or-directory, instead",
    )
    raw = "keep every story that is not empty as it is, duplicates too, in the order of the file"
    parser.add_argument("--raw", action="store_true", help=raw)
    parser.add_argument(
        "--val_share", type=share, help="share held out without --val (default: 0.01)"
    )
    parser.add_argument(
        "--stories", type=positive, help="stories in a builtin corpus (default: 20000)"
    )
    parser.add_shared("seed")
    parser.add_argument("--data_dir", type=Path, default=Path("data"), help="default: data")
    args = parser.parse_args()
    if bool(args.corpus) == bool(args.input) or (
        (args.val or args.headers or args.split_on) and not args.input
    ):
        parser.error(
            f"give one of {', '.join(CORPORA)}, or --input FILE (optional: --val, --headers,"
            " --split_on)"
        )
    if args.vocabulary_of and (args.vocab_size or args.vocabulary):
        parser.error(
            "--vocabulary_of brings a whole vocabulary: leave out --vocabulary and --vocab_size"
        )
    if args.stories and args.corpus not in BUILTIN:
        parser.error(f"--stories is for {', '.join(BUILTIN)}")
    if args.split_on and not any(".txt" in path.suffixes for path in (*args.input, *args.val)):
        parser.error("--split_on is for .txt files")
    if args.raw and (args.headers or args.corpus in HEADERS):
        parser.error("--raw is for stories without headers")
    args.name = args.name or args.corpus or ""
    if not re.fullmatch(r"\w[\w.-]*", args.name):
        parser.error(
            "--name must consist of letters, digits, - _ and . only (with --input it is required)"
        )
    if args.val_share and (args.val or args.corpus in DOWNLOADS):
        parser.error("--val_share is for corpora that do not have validation stories already")
    args.stories = args.stories or 20_000
    return args


# ---- Read ----
def builtin_texts(corpus: str, n: int, seed: int) -> Iterable[str]:
    headers = HEADERS.get(corpus)
    always = (
        ("words", "summary") if headers == OOD else ()
    )  # for validation; training stories lose one of them
    for story in tqdm(builtin_stories.stories(n, seed), "writing stories", n, disable=None):
        yield instruct_headers.add_builtin_header(story, always) if headers else story.text


def read(args: argparse.Namespace) -> tuple[list[str], Iterable[str], Iterable[str] | None]:
    """(the sources, training stories, validation stories or None to hold out a share)"""
    if args.corpus in BUILTIN:
        return [args.corpus], builtin_texts(args.corpus, args.stories, args.seed), None
    if args.corpus:
        addresses, splits = download(args.corpus)
        return addresses, *splits
    read_file = functools.partial(read_stories, split_on=args.split_on, headers=args.headers)
    train, val = (
        itertools.chain.from_iterable(map(read_file, paths)) for paths in (args.input, args.val)
    )
    return list(map(str, [*args.input, *args.val])), train, val if args.val else None


# ---- Clean, drop duplicates, split ----
def clean_and_split(
    spools, train, val, val_share, seed, headers, add_headers, raw
) -> dict[str, int]:
    """Adds the cleaned stories to the spool of their split; returns the counts. Arguments: see
    prepare."""
    counts = dict.fromkeys(CLEANING, 0)
    seen = {
        split: set() for split in spools
    }  # 100 bytes a story. 64 bits: of 3 million, two collide in 1 of 4e6 runs
    salt = (seed % 2**64).to_bytes(8, "big")
    val_below = int(val_share * 2**64).to_bytes(8, "big")
    for given_split, texts in (("val", val or ()), (None if val is None else "train", train)):
        for text in texts:
            text, was_repaired = (text.strip("\r\n"), False) if raw else clean(text)
            text = instruct_headers.add_header(text) if add_headers else text
            parsed = instruct_headers.read(text) if headers else None
            story = (
                parsed.story if parsed else "" if headers else text
            )  # two stories are compared without headers
            digest = hashlib.blake2b(story.encode(), digest_size=8, salt=salt).digest()
            # Without validation texts a story's hash decides, so that copies always end up in the
            # same split.
            split = given_split or ("val" if digest < val_below else "train")
            counts["stories read"] += 1
            counts["mojibake repaired"] += was_repaired
            if not story or story.isspace():
                counts["empty dropped"] += 1
            elif raw:
                spools[split].add(text)
            elif not COMPLETE.search(story[-16:]):
                counts["truncated dropped"] += 1
                if counts["truncated dropped"] <= 3:
                    tqdm.write(
                        f"dropped, as it does not end with a whole sentence: …{story[-50:]!r}"
                    )
            elif digest in seen[split]:
                counts["duplicates dropped"] += 1
            elif split == "train" and digest in seen["val"]:
                counts["validation stories dropped from train"] += 1
            else:
                seen[split].add(digest)
                if headers == OOD and split == "train":
                    parsed = parsed.without_words_or_summary()
                spools[split].add(str(parsed or text))
    return counts


# ---- Learn the vocabulary, tokenize ----
def learn_vocabulary(spool: Spool, kind: str, vocab_size: int, threads: int) -> dict:
    """Those of GPT-2's tokens that a uniform sample of the stories needs most ("cut"), or a BPE of
    its own ("bpe")."""
    every, progress_label = -(-spool.bytes // SAMPLE_BYTES), "learning the vocabulary"
    if kind == "bpe":
        chunks = tqdm(
            itertools.islice(spool.chunks(), 0, None, every),
            progress_label,
            unit=" chunks",
            disable=None,
        )
        return learn_bpe(itertools.chain.from_iterable(chunks), vocab_size).vocabulary
    sample = spool.encode(gpt2().vocabulary, threads, progress_label, every)
    return cut(
        sum(np.bincount(ids, minlength=GPT2_VOCAB_SIZE) for ids in sample), vocab_size
    ).vocabulary


def write_tokens(spool: Spool, directory: Path, vocabulary: dict, threads: int) -> dict:
    """Tokenizes a split into a flat file of uint16; returns its entry in meta.json."""
    path = directory / f"{spool.path.name}.bin"
    with path.open("wb") as file:
        for ids in spool.encode(vocabulary, threads, f"tokenizing {spool.path.name}"):
            file.write(ids.astype("<u2", copy=False).tobytes())
    return dict(
        stories=spool.stories,
        tokens=path.stat().st_size // 2,
        bytes=spool.bytes,
        sha256=sha256_of(path),
    )


# ---- The whole pipeline ----
def prepare(
    directory: Path,
    sources: list[str],
    train: Iterable[str],
    val: Iterable[str] | None,
    vocab_size: int = 10_000,
    val_share: float = 0.01,
    seed: int = 0,
    headers: str | None = None,
    add_headers: bool = False,
    raw: bool = False,
    vocabulary: str | dict = "cut",
    threads: int = os.cpu_count() or 1,
) -> None:
    """Makes `directory`; if anything fails, nothing has changed, and ValueError says why in one
    line.

    sources: where the stories are from, for meta.json. val: validation stories; None to hold out a
    share of `train`. headers: ANY or OOD if the stories have headers
    (nanostories/corpus/instruct_headers.py), or are given some (add_headers). raw: drop nothing but
    empty stories, and clean nothing. vocabulary: a kind to learn, of vocab_size, or a known one.
    """
    if os.path.lexists(directory) and not (directory / "meta.json").exists():
        raise UserError(
            f"{directory}: not written by prepare.py; choose another --name, or move it away"
        )
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        prefix=f".{directory.name}.tmp-", dir=directory.parent
    ) as temporary:
        spools = {split: Spool(Path(temporary, split)) for split in SPLITS}
        cleaning = clean_and_split(spools, train, val, val_share, seed, headers, add_headers, raw)
        for split, spool in spools.items():
            if not spool.stories:
                counts = ", ".join(f"{n:,} {step}" for step, n in cleaning.items())
                remedy = "give more, or some with --val; each must end with a whole sentence, "
                remedy += f"and in a .txt {END_OF_TEXT} or --split_on must separate them"
                raise UserError(
                    f"{', '.join(sources)}: no stories left for {split} ({counts}); {remedy}"
                )
        if isinstance(vocabulary, str):
            vocabulary = learn_vocabulary(spools["train"], vocabulary, vocab_size, threads)
        (new := Path(temporary, "new")).mkdir()
        meta = dict(format=FORMAT, name=directory.name, source=sources, seed=seed)
        meta |= dict(vocab_size=len(vocabulary["tokens"]) + 1, vocabulary="", raw=raw)
        meta["splits"] = {
            split: write_tokens(spool, new, vocabulary, threads) for split, spool in spools.items()
        }
        meta |= dict(cleaning=cleaning) | (dict(headers=headers) if headers else {})
        one_line = json.dumps(vocabulary, ensure_ascii=False)
        text = json.dumps(meta, indent=2).replace('"vocabulary": ""', f'"vocabulary": {one_line}')
        (new / "meta.json").write_text(text + "\n", encoding="utf-8")
        install(new, directory)


def install(new: Path, directory: Path) -> None:
    """Gives the corpus its name. One with other tokens is kept under a new name: runs that were
    trained on it must not find some of their training stories among the validation stories."""
    tokens = [f"{split}.bin" for split in SPLITS]
    if filecmp.cmpfiles(new, directory, tokens, shallow=False)[0] == tokens:
        print(f"{directory}: the same tokens as before")
        (new / "meta.json").replace(directory / "meta.json")
        return
    if directory.exists():
        print(f"{directory} held another corpus, which is now {set_aside(directory)}")
    new.replace(directory)


def print_summary(directory: Path) -> None:
    """Reads the corpus back, and prints its size and the next command."""
    meta, columns = load_meta(directory), ["stories", "tokens", "bytes"]
    rows = [
        [name, *(f"{split[key]:,}" for key in columns)] for name, split in meta["splits"].items()
    ]
    print(table_text(["split", *columns], rows))
    print(", ".join(f"{n:,} {step}" for step, n in meta["cleaning"].items() if n))
    train, val = meta["splits"].values()
    if not 60 < (length := train["tokens"] / train["stories"]) < 1500:
        print(
            f"WARNING a story has {length:.0f} tokens on average: is each one a story? See"
            " --split_on"
        )
    if (dropped := meta["cleaning"]["truncated dropped"]) > 0.03 * meta["cleaning"]["stories read"]:
        print(
            f"WARNING {dropped:,} stories were dropped, as they do not end with a whole sentence;"
            " --raw keeps all"
        )
    if val["stories"] < 60:  # sample.py --eval 50
        larger = min(0.5, 100 / (train["stories"] + val["stories"]))
        print(
            f"WARNING only {val['stories']} validation stories: hold out more, by --val_share"
            f" {larger:.2g} or --val"
        )
    if train["bytes"] < 3 * train["tokens"] and meta["vocab_size"] >= 4096:
        n_bytes = train["bytes"] / train["tokens"]
        print(
            f"WARNING a token holds {n_bytes:.1f} bytes on average (English: 4); try"
            " --vocabulary bpe"
        )
    is_small = train["tokens"] < 20e6 or not shutil.which("nvidia-smi")  # a config for a CPU
    config = "demo" if meta["source"] == ["builtin"] else "cpu" if is_small else "ts_8m"
    if "headers" in meta:
        config = "builtin_instruct" if is_small else "instruct"
    flags = (
        " --epochs=5 --eval_interval=50" if train["tokens"] < 5e5 and config != "demo" else ""
    )  # more overfits
    if (
        is_small and length > 256
    ):  # else few stories fit in the context; with as many tokens in a step
        flags += (
            " --block_size=512 --batch_size=4"
            if length < 400
            else " --block_size=1024 --batch_size=2"
        )
    print(
        f"wrote {directory}; next: python train.py configs/{config}.py --data={meta['name']}{flags}"
    )


def main() -> None:
    args = parse_args()
    directory = args.data_dir / args.name
    vocab_size, val_share = 10_000, args.val_share or 0.01
    if args.corpus in BUILTIN:  # if they are few, a larger share is held out: about 250 stories
        vocab_size, val_share = 4096, max(val_share, min(250 / args.stories, 0.5))
    headers = ANY if args.headers else HEADERS.get(args.corpus)
    settings = (
        args.vocab_size or vocab_size,
        val_share,
        args.seed,
        headers,
        args.headers,
        args.raw,
    )
    with one_line_errors(
        "prepare.py", interrupted=f"{directory} is unchanged; downloads will resume"
    ):
        vocabulary = args.vocabulary or "cut"
        if args.vocabulary_of:
            from nanostories.checkpoints.huggingface import load_model  # here, as it imports torch

            vocabulary = load_model(args.vocabulary_of)[1].vocabulary
        prepare(directory, *read(args), *settings, vocabulary)
        print_summary(directory)
        if args.split_on and not args.val:
            print(
                "Pieces of one text may be in both splits; for the loss on unseen texts, give whole"
                " ones by --val"
            )
        what = 'rows without "words" of their own get only those that are in English lists'
        if args.headers and (warning := language_warning(load_stories(directory, "val")[1], what)):
            print(warning)


if __name__ == "__main__":
    main()
