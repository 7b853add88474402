"""
Export a model, either as a storyteller in one HTML file that anyone can open, or for transformers.

$ python export.py out/demo                                   # -> out/demo/story.html, 2 MB
$ python export.py hf:roneneldan/TinyStories-8M --html tales.html --data data/tinystories
$ python export.py out/demo --dtype float16                   # twice as large, but rounded less
$ python export.py out/demo --hf exported/                    # config.json, weights and tokenizer, for transformers

The page holds weights, tokenizer and an engine in JavaScript; it needs no network, no server and no Python.
"""

import argparse
from pathlib import Path

from browser.pack_model import (
    check_size,
    corpus_directory,
    load_storyteller,
    pack_storyteller,
    title_of,
    validation_texts,
)
from browser.quantize import DTYPES
from checkpoints.checkpoint import at_checkpoint, directory_of, newest_run
from checkpoints.huggingface import save_hf
from common.cli import Parser, one_line_errors
from common.files import write_bytes
from common.tables import table_text
from corpus.tokenizer import END_OF_TEXT
from generation.backends import LocalBackend
from pages.story_page import story_page


def export_html(name: str, backend: LocalBackend, args: argparse.Namespace) -> None:
    model, path = backend.model, args.html or directory_of(name) / "story.html"
    check_size(name, model, args.dtype)
    path.parent.mkdir(parents=True, exist_ok=True)
    corpus = corpus_directory(name, args.data)
    texts = validation_texts(backend, corpus) if corpus else []
    facts, weights = pack_storyteller(name, backend, args.dtype, texts)
    subtitle = f"A language model of {model.num_params() / 1e6:.1f} million parameters, all of them in this page. "
    content = story_page(
        title_of(name), subtitle + "It needs no network, and what you type stays here.", facts, weights
    )
    write_bytes(path, content)
    rows = [
        [row["dtype"], f"{row['megabytes']:.1f}", f"{row['bpb']:.4f}", f"{row['kl']:.1e}" if row["kl"] else ""]
        for row in facts["quality"]
    ]
    if rows:
        print(f"{len(texts)} validation stories of {corpus}:")
        print(table_text(["weights", "MB", "bits per byte", "KL divergence of the next token, nats"], rows))
    else:
        print("The cost of rounding was not measured: found no validation stories; pass a corpus with --data")
    print(
        f"wrote {path} ({len(content) / 1e6:.1f} MB, {args.dtype}); next: open it in a browser, or email it to someone"
    )


def export_hf(backend: LocalBackend, directory: Path) -> None:
    save_hf(backend.model, directory, backend.tokenizer, END_OF_TEXT if backend.prefix else "")
    print(f"wrote {directory}; load it with transformers.AutoModelForCausalLM.from_pretrained('{directory}')")


def main():
    parser = Parser(__doc__)
    parser.add_argument(
        "model", nargs="?", help="a run (or checkpoint), or hf:ID-or-directory (default: the newest run)"
    )
    parser.add_shared("checkpoint")
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="the page (default: story.html in the run's directory)"
    )
    parser.add_argument("--dtype", choices=DTYPES, default="int8", help="of the weights in the page (default: int8)")
    parser.add_shared("data")
    parser.add_argument("--hf", type=Path, metavar="DIR", help="write files for transformers here, instead of a page")
    args = parser.parse_args()
    if args.hf and (args.html or args.data or args.dtype != "int8"):
        parser.error("--hf writes float32 files for transformers, not a page: leave out --html, --dtype and --data")
    with one_line_errors("export.py", interrupted="nothing was written"):
        name = at_checkpoint(args.model or str(newest_run()), args.checkpoint)
        backend = load_storyteller(name)
        if args.hf:
            export_hf(backend, args.hf)
        else:
            export_html(name, backend, args)


if __name__ == "__main__":
    main()
