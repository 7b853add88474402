"""
Look inside a model: what its heads attend to, what its neurons fire on, and whether any of it matters.

$ python interpret.py                                     # the newest run -> out/<run>/interpret/
$ python interpret.py out/demo --text "Lily saw a cat. Lily was happy." --layer 2 --head 3
$ python interpret.py out/demo --patch "Mia had a red ball. It was red" "Mia had a blue ball. It was blue"
$ python interpret.py hf:roneneldan/TinyStories-33M --data data/tinystories
$ python interpret.py --compare out/a out/b               # heads and neurons side by side -> out/compare.html

Writes attention.html, attention.png, attention.npz ([layer, head, query, key] and the tokens), heads.csv, neurons.html,
neurons.csv and summary.json; --patch writes only patching.html, patching.png and patching.csv. In a notebook:

>>> from interpretation.hooks import run_with_cache
>>> logits, cache = run_with_cache(model, tokens)         # tokens (B, T)
>>> cache["blocks.2.pattern"]                             # (B, H, T, T)
"""

import argparse
import contextlib
import io
import itertools
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np
import torch

from checkpoints.checkpoint import at_checkpoint, corpus_of, directory_of, load_checkpoint, newest_run
from common.cli import Parser, one_line_errors
from common.files import write_bytes, write_json
from common.tables import table_text, write_table
from corpus.token_files import load_stories
from corpus.tokenizer import END_OF_TEXT
from generation.backends import LocalBackend, load_backend
from interpretation.ablation import FEWEST_STORIES, measure_effects
from interpretation.activation_patching import check_prompts, patch
from interpretation.activation_statistics import ActivationStatistics, untrained_copy
from interpretation.compare_runs import clearest_parts, compare, printed_cells
from interpretation.head_roles import induction
from interpretation.hooks import run_with_cache
from interpretation.logit_attribution import lens_table, what_heads_write
from interpretation.neuron_preferences import contexts, neuron_cards, preferences, tabulate
from interpretation.summary import FORMAT, count_heads, describe_heads, describe_neurons
from interpretation.word_classes import KINDS, START, TaggedCorpus, pieces_of
from kernels import compile_cpp
from pages import interpretation_pages
from training.device_and_dtype import choose_dtype
from variants.compressor import Compressor

SHOWN_HEADS = 5  # printed by --patch
DEFAULT_TOKENS = 32  # without --text, attention is drawn for this many tokens of the first story


class Stopwatch:
    """Measures the seconds that each stage takes."""

    def __init__(self):
        self.seconds = {}

    @contextlib.contextmanager
    def __call__(self, stage: str):
        start = time.perf_counter()
        yield
        self.seconds[stage] = self.seconds.get(stage, 0) + round(time.perf_counter() - start, 1)


def interpret(
    out: Path,
    name: str,
    backend: LocalBackend,
    texts: Sequence[str],
    args: argparse.Namespace,
    stage: Stopwatch,
    copy_init: float = 0.0,
) -> None:
    """Runs the model over the texts and writes all files to `out`. copy_init: the setting of its training run."""
    model, tokenizer = backend.model, backend.tokenizer
    device = model.wte.weight.device
    corpus = TaggedCorpus.from_texts(texts, tokenizer, backend.prefix, model.config.block_size)
    dtype = choose_dtype("auto", device)
    autocast = partial(torch.autocast, device.type, dtype, enabled=dtype != torch.float32)
    with stage("reading"), autocast():
        activations = ActivationStatistics(model, corpus)
        rows = activations.heads.rows(induction(model, corpus, backend.prefix))
    with stage("preferences of neurons"):
        trained = preferences(activations.neurons)
        del activations.neurons.word_sums  # large
    with stage("reading at random initialization"), autocast():
        untrained = ActivationStatistics(untrained_copy(model, copy_init), corpus, with_heads=False)
    with stage("preferences of neurons"):
        table, counts = tabulate(trained, preferences(untrained.neurons), activations.neurons, corpus, tokenizer)
        del untrained.neurons
    with stage("what heads write"):
        for row, written in zip(rows, what_heads_write(model, corpus, tokenizer)):
            row |= written
    with stage("ablation"), autocast():
        effects = measure_effects(activations, untrained, table, args.ablate, args.layer)
    with stage("contexts of neurons"), autocast():
        pieces, neuron_contexts = contexts(model, corpus, tokenizer, activations.neurons, effects.shown)
    for row, rise in zip(rows, effects.heads):
        row |= dict(zip(("rise", "rise_low", "rise_high"), rise))
    summary = dict(format=FORMAT, name=name, parameters=model.num_params(), shape=asdict(model.config))
    summary |= dict(stories=len(corpus.stories), tokens=sum(len(story.tokens) for story in corpus.stories))
    summary |= dict(heads=count_heads(rows, effects.heads_at_random_init), ablation=effects.summary)
    summary |= dict(neurons=counts | dict(all=table.auc.size(1)))
    with stage("pages and tables"):
        write_table(out / "heads.csv", rows)
        write_table(out / "neurons.csv", table.rows(effects.neurons))
        cards = neuron_cards(table, effects.shown, neuron_contexts, effects.neurons)
        about = f"{len(cards)} of {table.auc.size(1):,} neurons (neurons.csv has all), {len(texts)} validation stories"
        sentences = describe_neurons(summary)
        page = interpretation_pages.neurons_page(name, about, sentences, KINDS, pieces, cards)
        write_bytes(out / "neurons.html", page)
        ids = backend.encode(args.text) if args.text else corpus.stories[0].tokens[:DEFAULT_TOKENS].tolist()
        draw_attention(out, name, backend, ids, args, rows)
    write_json(out / "summary.json", summary | dict(seconds=stage.seconds))
    print("\n".join([*describe_heads(summary, rows), *sentences]))


def draw_attention(out: Path, name: str, backend: LocalBackend, ids: list[int], args, rows: list[dict]) -> None:
    """Writes attention.npz, .png and .html (with the logit lens) of the tokens `ids`. rows: those of heads.csv."""
    model = backend.model
    n_layer, n_head = model.config.n_layer, model.config.n_head
    _, cache = run_with_cache(model, torch.tensor([ids], device=model.wte.weight.device))
    attention = torch.cat([cache[f"blocks.{layer}.pattern"] for layer in range(n_layer)]).cpu().numpy()
    pieces = pieces_of(backend.tokenizer, ids)
    tokens = [END_OF_TEXT if piece == START else piece for piece in pieces]
    file = io.BytesIO()
    np.savez_compressed(file, format=FORMAT, attention=attention, tokens=np.array(tokens), ids=np.array(ids))
    write_bytes(out / "attention.npz", file.getvalue())
    roles = {(row["layer"], row["head"]): row["role"] for row in rows}
    heads = [
        dict(layer=layer, head=head, role=roles.get((layer, head), ""))
        for layer in range(n_layer)
        for head in range(n_head)
        if args.layer in (None, layer) and args.head in (None, head)
    ]
    maps = np.stack([attention[each["layer"], each["head"]] for each in heads])
    picture = interpretation_pages.attention_picture(f"Attention in {name}", maps, pieces, heads)
    write_bytes(out / "attention.png", picture)
    lens = [
        [[(pieces_of(backend.tokenizer, [i])[0], round(p, 3)) for i, p in top] for top in layer]
        for layer in lens_table(model, cache)
    ]
    write_bytes(out / "attention.html", interpretation_pages.attention_page(name, maps, pieces, heads, rows, lens))


def draw_patching(out: Path, name: str, backend: LocalBackend, texts: Sequence[str], markdown: bool) -> None:
    """Writes patching.html, .png and .csv: which activations carry the answers in which the texts differ."""
    prompts = [backend.encode(text) for text in texts]
    pieces = [pieces_of(backend.tokenizer, ids) for ids in prompts]
    check_prompts(*prompts, pieces)
    patching = patch(backend.model, *torch.tensor(prompts, device=backend.model.wte.weight.device))
    rows = patching.rows(pieces[0], lambda i: pieces_of(backend.tokenizer, [i])[0])
    write_table(out / "patching.csv", rows)
    write_bytes(out / "patching.png", interpretation_pages.patching_picture(name, patching, pieces))
    sentences = patching.describe(pieces)
    write_bytes(out / "patching.html", interpretation_pages.patching_page(name, patching, pieces, rows, sentences))
    print("\n".join(sentences))
    best = sorted(rows, key=lambda row: -row["brought_back"])[:SHOWN_HEADS]
    cells = [
        [f"{row['layer']}.{row['head']}", *(f"{row[key]:.2f}" for key in ("brought_back", "lost_without", "direct"))]
        + [f"{row['looks_at']!r} ({row['attention']:.2f})", row["writes"]]
        for row in best
    ]
    print(
        table_text(["head", "brought back", "lost without it", "adds (logits)", "looks at", "writes"], cells, markdown)
    )


def draw_comparison(runs: Sequence[str], markdown: bool) -> Path:
    """Writes compare.csv, .png and .html beside the first of the runs. Prints the counts; returns the page's path."""
    rows = compare(runs)
    counts = [printed_cells(row) for row in rows]
    path = directory_of(runs[0]).parent / "compare.html"
    write_bytes(path, interpretation_pages.compare_page(counts, [clearest_parts(row["run"]) for row in rows]))
    print(table_text(list(counts[0]), [list(row.values()) for row in counts], markdown))
    return path


# ---- Loading ----


def load_model(name: str, args: argparse.Namespace) -> LocalBackend:
    """ValueError if the model cannot be inspected, or does not have what the flags ask for."""
    if name.startswith("api:"):
        raise ValueError(f"{name}: a model behind an API cannot be inspected; use a run or hf:ID-or-directory")
    if name.startswith("hf:") and args.stories and not args.data and not args.patch:
        raise ValueError(f"{name} needs --data, a corpus that prepare.py made; or --stories 0 to draw only --text")
    backend = load_backend(name)
    config = backend.model.config
    if isinstance(backend.model, Compressor):
        raise ValueError(f"{name} is a compressor, whose heads attend to pairs of tokens; interpret.py needs a GPTNeo")
    for flag, value, n in (("layer", args.layer, config.n_layer), ("head", args.head, config.n_head)):
        if value is not None and value >= n:
            raise ValueError(f"--{flag} must be at most {n - 1} for {name}, not {value}")
    for flag, text in (("text", args.text), *(("patch", text) for text in args.patch or ())):
        if text and (n_tokens := len(backend.encode(text))) > config.block_size:
            raise ValueError(f"--{flag} has {n_tokens} tokens, but {name} reads only {config.block_size}; shorten it")
    return backend


def validation_texts(directory: Path, n: int, ablate: int = 0) -> list[str]:
    """The first n validation stories of a corpus, as text, so that a model with any tokenizer can read them.

    ValueError if there are too few, for any statistics or for an ablation on `ablate` stories.
    """
    stories = list(itertools.islice(load_stories(directory, "val")[1], n))
    if len(stories) < FEWEST_STORIES:
        raise ValueError(
            f"{directory}: it has {len(stories)} validation stories, but at least {FEWEST_STORIES} are needed"
        )
    if 2 * ablate > len(stories):
        more = f"--stories {2 * ablate}, or " if len(stories) == n else ""
        raise ValueError(
            f"--ablate {ablate} needs {2 * ablate} stories (means come from the other half), but {len(stories)} "
            f"of {directory} are read: use {more}--ablate {len(stories) // 2} at most"
        )
    return stories


# ---- The command line ----


def parse_arguments() -> argparse.Namespace:
    parser = Parser(__doc__)
    which = "a run (or checkpoint), or hf:ID-or-directory (default: the newest run in out/)"
    parser.add_argument("model", nargs="?", default=argparse.SUPPRESS, help=which)
    parser.add_shared("model", help="the same")
    parser.add_shared("checkpoint")
    parser.add_argument("--text", help="text to draw attention for (default: the beginning of the first story)")
    parser.add_argument(
        "--patch", nargs=2, metavar="TEXT", help="two texts that end in different answers: what carries the answer?"
    )
    parser.add_argument("--layer", type=int, help="draw only this layer, and show all of its neurons")
    parser.add_argument("--head", type=int, help="draw only this head (in each layer, or in --layer)")
    parser.add_shared("data")
    parser.add_argument("--stories", type=int, default=200, help="validation stories to read; 0: only draw --text")
    ablate_help = "stories to ablate heads on, at most half of --stories (default: about a minute's worth)"
    parser.add_argument("--ablate", type=int, help=f"{ablate_help}; 0: none")
    parser.add_shared("out", help="where to write (default: interpret/ in the run's directory)")
    parser.add_argument("--compare", nargs="+", metavar="RUN", help="compare runs that interpret.py has already read")
    parser.add_shared("markdown")
    args = parser.parse_args()
    for name in ("stories", "ablate"):
        n = getattr(args, name)
        parser.require(args, name, n in (None, 0) or n >= FEWEST_STORIES, f"0, or at least {FEWEST_STORIES}")
    for name in ("layer", "head"):
        parser.require(args, name, (getattr(args, name) or 0) >= 0, "0 or more")
    if args.stories == 0 and not args.text:
        parser.error("--stories 0 only draws attention, for which it needs a --text")
    if args.compare and args.model:
        parser.error(f"put all runs after --compare, including {args.model}")
    return args


def main():
    args = parse_arguments()
    compile_cpp.keep_freed_memory()
    with one_line_errors("interpret.py", interrupted="the old files are unchanged"):
        if args.compare:
            page = draw_comparison(args.compare, args.markdown)
            print(f"wrote {page.with_suffix('.csv')} (all counts), .png and .html; next: open {page}")
            return
        name = at_checkpoint(args.model or str(newest_run()), args.checkpoint)
        backend = load_model(name, args)
        read = args.stories and not args.patch
        texts = validation_texts(args.data or corpus_of(name), args.stories, args.ablate or 0) if read else []
        out = args.out or directory_of(name) / "interpret"
        out.mkdir(parents=True, exist_ok=True)
        if args.patch:
            draw_patching(out, name, backend, args.patch, args.markdown)
            print(f"wrote {out}/; next: open patching.html there")
            return
        if texts:
            copy_init = 0.0 if name.startswith("hf:") else load_checkpoint(name)["train_config"].get("copy_init", 0.0)
            interpret(out, name, backend, texts, args, Stopwatch(), copy_init)
        else:
            draw_attention(out, name, backend, backend.encode(args.text), args, [])
        print(f"wrote {out}/; next: open {'attention.html and neurons.html' if texts else 'attention.html'} there")


if __name__ == "__main__":
    main()
