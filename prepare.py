"""
Prepare a corpus: clean, deduplicate, split and tokenize stories into data/<name>/{train.bin, val.bin, meta.json}.

$ python prepare.py builtin                                        # 20,000 stories of our own, nothing to download
$ python prepare.py tinystories-v2                                 # the GPT-4 stories of TinyStories (2 GB)
$ python prepare.py instruct                                       # stories with headers that say what is in them
$ python prepare.py --input mine.txt more.jsonl.gz --name mine     # your own: <|endoftext|> stands between stories
"""

import re
from pathlib import Path

from common.cli import Parser, one_line_errors
from common.tables import table_text
from corpus.preparation import CORES, prepare_builtin, prepare_download, prepare_files
from corpus.sources import BUILTIN, DOWNLOADS
from corpus.token_files import load_meta

SETTINGS = ("n_stories", "vocab_size", "val_share", "seed", "threads")


def parse_args():
    parser = Parser(__doc__)
    parser.add_argument("corpus", nargs="?", choices=[*DOWNLOADS, *BUILTIN], help="or give --input and --name")
    files = dict(nargs="+", action="extend", type=Path, default=[], metavar="FILE")  # extend: a flag may be repeated
    parser.add_argument("--input", **files, help="your stories: .txt, .jsonl or .json, or gzipped (.gz)")
    parser.add_argument("--val", **files, help="validation stories (default: a share of the input)")
    parser.add_argument("--headers", action="store_true", help="with --input: add headers made from the stories")
    parser.add_argument("--name", help="of the new directory in data_dir (default: that of the corpus)")
    parser.add_argument("--vocab_size", type=int, help="default: 10000, or 4096 for builtin")
    parser.add_argument("--val_share", type=float, help="share held out without --val (default: 0.01)")
    parser.add_argument("--stories", type=int, dest="n_stories", help="of a builtin corpus (default: 20000)")
    parser.add_shared("seed")
    parser.add_argument("--data_dir", type=Path, default=Path("data"), help="default: data")
    parser.add_argument("--threads", type=int, default=CORES, help="default: one per core")
    args = parser.parse_args()
    args.name = args.name or args.corpus
    if bool(args.corpus) == bool(args.input) or ((args.val or args.headers) and not args.input):
        parser.error(f"give one of {', '.join([*DOWNLOADS, *BUILTIN])}, or --input FILE (optional: --val, --headers)")
    if not args.name or not re.fullmatch(r"\w[\w.-]*", args.name):
        parser.error("--name must consist of letters, digits, - _ and . only (with --input it is required)")
    if args.n_stories is not None and args.corpus not in BUILTIN:
        parser.error(f"--stories is for {', '.join(BUILTIN)}: other corpora are prepared whole")
    if args.val_share is not None and (args.val or args.corpus in DOWNLOADS):
        parser.error("--val_share is for corpora that do not have validation stories already")
    parser.require(args, "threads", args.threads >= 1, "1 or more")
    return args


def print_summary(directory: Path) -> None:
    """Reads the corpus back, and prints what is in it and what to do next."""
    meta = load_meta(directory)
    rows = []
    for name, split in meta["splits"].items():
        n_bytes, tokens = split["bytes"], split["tokens"]
        rows.append([name, f"{split['stories']:,}", f"{tokens:,}", f"{n_bytes / 1e6:.1f}", f"{n_bytes / tokens:.3f}"])
    print(table_text(["split", "stories", "tokens", "MB", "bytes/token"], rows))
    print(", ".join(f"{n:,} {step}" for step, n in meta["cleaning"].items() if n))
    builtin = meta["source"][0].startswith("builtin")
    if "headers" in meta:
        config = "builtin_instruct" if builtin else "instruct"
    else:
        config = "demo" if builtin else "cpu_1m" if meta["splits"]["train"]["tokens"] < 20e6 else "ts_8m"
    print(f"wrote {directory}; next: python train.py configs/{config}.py --data={meta['name']}")


def main() -> None:
    args = parse_args()
    directory = args.data_dir / args.name
    settings = {key: getattr(args, key) for key in SETTINGS if getattr(args, key) is not None}
    with one_line_errors("prepare.py", interrupted=f"{directory} is unchanged; downloads will resume"):
        if args.corpus in BUILTIN:
            prepare_builtin(directory, args.corpus, **settings)
        elif args.corpus:
            prepare_download(directory, args.corpus, **settings)
        else:
            prepare_files(directory, args.input, args.val, args.headers, **settings)
        print_summary(directory)


if __name__ == "__main__":
    main()
