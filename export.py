"""
Export a model: as a page that tells stories, one HTML file that anyone can open, or for
transformers.

$ python export.py out/demo                                   # -> out/demo/story.html, 2 MB
$ python export.py hf:roneneldan/TinyStories-8M --html tales.html
$ python export.py out/demo --hf exported/  # config.json, weights and tokenizer, for transformers

The page holds weights, tokenizer and an engine in JavaScript; it needs no network, no server and no
Python.
"""

from pathlib import Path

from nanostories.checkpoints.checkpoint import (
    checkpoint_path,
    directory_of,
    find_training_corpus,
    load_checkpoint,
    newest_run,
)
from nanostories.cli import Parser, UserError, one_line_errors
from nanostories.corpus.token_files import load_meta
from nanostories.corpus.tokenizer import END_OF_TEXT
from nanostories.files import write_bytes
from nanostories.generation.prompts import openings


def export_page(name: str, backend, path: Path) -> None:
    """backend: a LocalBackend"""
    from nanostories.pages.story_page import OPENINGS, story_page  # imports torch

    config, has_headers, examples = backend.model.config, False, OPENINGS
    shape = f"{config.n_layer} layers, {config.n_head} heads, width {config.n_embd}"
    about = [
        ("parameters", f"{backend.model.num_params():,}: {shape}"),
        ("context", f"{config.block_size:,} tokens"),
    ]
    if not name.startswith("hf:"):
        training = load_checkpoint(name)
        if corpus := find_training_corpus(training):
            has_headers, examples = "headers" in load_meta(corpus), openings(corpus, 4)
        about.append(
            ("trained on", f"{training['train_config']['data']}, {training['step']:,} steps")
        )
        about.append(
            (
                "validation loss",
                f"{training['best_val_loss']:.3f} nats per token, before rounding to 8 bits",
            )
        )
    about.append(
        ("license", "page: MIT; weights: as whoever trained them, and their stories, allow")
    )
    title = directory_of(name).resolve().name.replace("--", "/")
    content = story_page(title, backend, about, has_headers, examples)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, content)
    print(
        f"wrote {path} ({len(content) / 1e6:.1f} MB); next: open it in a browser, or email it to"
        " someone"
    )


def main():
    parser = Parser(__doc__)
    parser.add_argument(
        "model",
        nargs="?",
        help="a run or checkpoint, or hf:ID-or-directory (default: the newest run)",
    )
    parser.add_shared("checkpoint")
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="the page (default: story.html in the run)"
    )
    parser.add_argument(
        "--hf",
        type=Path,
        metavar="DIR",
        help="write files for transformers here, instead of a page",
    )
    args = parser.parse_args()
    if args.hf and args.html:
        parser.error("--hf writes files for transformers, not a page: leave out --html")
    with one_line_errors("export.py", interrupted="nothing was written"):
        from nanostories.checkpoints.huggingface import save_hf  # these import torch
        from nanostories.checkpoints.models import open_model
        from nanostories.generation.backends import load_backend
        from nanostories.pages.story_page import check_exportable

        name = checkpoint_path(args.model or str(newest_run()), args.checkpoint)
        if name.startswith("api:"):
            raise UserError(
                f"{name}: a model behind an API has no weights to export; use a run or"
                " hf:ID-or-directory"
            )
        backend = load_backend(open_model(name))
        check_exportable(name, backend.model)
        if args.hf:
            save_hf(
                backend.model, args.hf, backend.tokenizer, END_OF_TEXT if backend.prefix else ""
            )
            print(
                f"wrote {args.hf}; load it with"
                f" transformers.AutoModelForCausalLM.from_pretrained('{args.hf}')"
            )
        else:
            export_page(name, backend, args.html or directory_of(name) / "story.html")


if __name__ == "__main__":
    main()
