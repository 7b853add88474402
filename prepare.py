"""
prepare
"""

import argparse
import functools
import itertools
import os
import re
import sys
from pathlib import Path

from common.downloads import download, endpoint
from corpus import instruct_headers
from corpus.instruct_headers import ANY
from corpus.preparation import CORES, prepare, prepare_builtin
from corpus.sources import BUILTIN, DOWNLOADS, HEADERS, PUBLISHED, read_stories
from corpus.token_files import load_meta


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
                raise ValueError(f"{', '.join(missing)}: no such file; check what --input and --val name")
            read = functools.partial(read_stories, errors="replace" if args.corpus else "strict")  # theirs has slips
            texts = [itertools.chain.from_iterable(map(read, paths)) if paths else None for paths in files]
            if args.headers:
                texts = [map(instruct_headers.derived, split) if split else None for split in texts]
            kind = ANY if args.headers else HEADERS.get(args.corpus)
            prepare(args.data_dir / name, sources, *texts, kind=kind, **settings)
        report(args.data_dir / name)
    except ValueError as error:
        sys.exit(f"prepare.py: {error}")
    except KeyboardInterrupt:
        sys.exit("prepare.py: stopped; what was there before still is")


if __name__ == "__main__":
    main()
