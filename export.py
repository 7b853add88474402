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

from nanostories.cli import Parser, UserError, one_line_errors
from nanostories.corpus.tokenizer import END_OF_TEXT
from nanostories.files import write_bytes


def main():
    parser = Parser(__doc__)
    parser.add_argument(
        "model",
        nargs="?",
        default="",
        help="a run or checkpoint, or hf:ID-or-directory (default: the newest run)",
    )
    parser.add_shared("checkpoint")
    target = parser.add_mutually_exclusive_group()
    target.add_argument(
        "--html", type=Path, metavar="FILE", help="the page (default: story.html in the run)"
    )
    target.add_argument(
        "--hf",
        type=Path,
        metavar="DIR",
        help="write files for transformers here, instead of a page",
    )
    parser.add_argument("--title", default="", help="of the page (default: NAME tells stories)")
    parser.add_argument("--about", default="", help="a sentence about the model, for the page")
    args = parser.parse_args()
    with one_line_errors("export.py", interrupted="no file is half written"):
        # These import torch.
        from nanostories.checkpoints.models import open_model
        from nanostories.generation.backends import load_gpt

        model = open_model(args.model, args.checkpoint)
        backend = load_gpt(model)
        if args.hf:
            export_files(backend, args.hf)
        else:
            path = args.html or model.directory / "story.html"
            export_page(model, backend, path, args.title, args.about)


def export_files(backend, directory: Path) -> None:
    """backend: a LocalBackend"""
    from nanostories.checkpoints.checkpoint import checkpoint_file
    from nanostories.checkpoints.huggingface import save_hf

    if (directory / "log.csv").exists() or checkpoint_file(directory).is_file():
        problem = "is a training run, whose config.json would be overwritten"
        raise UserError(f"{directory} {problem}; choose another directory")
    end = END_OF_TEXT if backend.prefix else ""
    save_hf(backend.model, directory, backend.tokenizer, end)
    loader = f"transformers.AutoModelForCausalLM.from_pretrained('{directory}')"
    print(f"wrote {directory}; load it with {loader}")


def export_page(model, backend, path: Path, title: str, introduction: str) -> None:
    """model: a Model, of models.py; backend: a LocalBackend; title, introduction: for the top of
    the page"""
    from nanostories.pages.story_page import story_page
    from nanostories.tables import table_text

    config = backend.model.config
    shape = f"{config.n_layer} layers, {config.n_head} heads, width {config.n_embd}"
    facts = {
        "parameters": f"{backend.model.num_params():,}: {shape}",
        "context": f"{config.block_size:,} tokens",
        "license": "page: MIT; weights: as whoever trained them, and their stories, allow",
    }
    if model.kind == "run":
        checkpoint = model.checkpoint
        loss = checkpoint["best_val_loss"]
        facts["trained on"] = f"{checkpoint['train_config']['data']}, {checkpoint['step']:,} steps"
        source = checkpoint["train_config"].get("start_from")
        if source:
            facts["began with the weights of"] = source
        if model.files[0].name == "best.pt":
            facts["validation loss"] = f"{loss:.3f} nats per token, before rounding to 8 bits"
    settings = corpus_settings(model.corpus) if model.corpus else {}
    name = model.directory.resolve().name.replace("--", "/")
    content, lessons = story_page(name, backend, facts, title, introduction, **settings)
    rows = []
    for lesson in lessons:
        for claim in lesson.claims:
            needed = f"{claim.low:.0%} to {claim.high:.0%}"
            verdict = "holds" if claim.holds else "fails here"
            rows.append([lesson.kind, claim.text, f"{claim.measured:.1%}", needed, verdict])
    if rows:
        print(table_text(["lesson", "claim", "measured", "needed", "result"], rows))
    else:
        print("no lessons: no name comes twice in the stories that this model told for them")
    write_bytes(path, content)
    size = f"{len(content) / 1e6:.1f} MB"
    print(f"wrote {path} ({size}); next: open it in a browser, or email it to someone")


def corpus_settings(corpus: Path) -> dict:
    """What story_page takes from the corpus of its model."""
    from nanostories.corpus.token_files import load_stories
    from nanostories.generation.prompts import openings
    from nanostories.pages.html import language_of

    meta, stories = load_stories(corpus, "val")
    return {
        "has_headers": "headers" in meta,
        "openings": openings(corpus, 4),
        "language": language_of(stories),
    }


if __name__ == "__main__":
    main()
