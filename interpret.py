"""
Look inside a model: what its heads attend to, what its neurons fire on, and whether it matters.

$ python interpret.py                                     # the newest run -> out/<run>/interpret.md and pages
$ python interpret.py out/demo --text "Lily saw a cat. Lily was happy." --layer 2 --head 3
$ python interpret.py out/demo --patch "Mia had a ball. Then Mia" "Anna had a ball. Then Anna"
$ python interpret.py hf:roneneldan/TinyStories-33M --data data/tinystories

Writes heads.csv and neurons.csv (all measures), attention.json (the maps and predictions for one text), attention.html
and neurons.html, which show them, and interpret.md, .png and .svg; --patch writes patching.csv, .md, .png and .svg.
In a notebook:

>>> from interpretation.hooks import run_with_cache
>>> logits, cache = run_with_cache(model, tokens)         # tokens (B, T)
>>> cache["blocks.2.pattern"]                             # (B, H, T, T)
"""

# ruff: noqa: E402

import argparse
import itertools
import random
from collections.abc import Sequence
from pathlib import Path

from common.cli import Parser, one_line_errors, positive

FEWEST_STORIES = 10  # with fewer, the interval of a rise in loss means nothing


def parse_arguments() -> argparse.Namespace:
    parser = Parser(__doc__)
    which = "a run (or checkpoint), or hf:ID-or-directory (default: the newest run in out/)"
    parser.add_argument("model", nargs="?", default=argparse.SUPPRESS, help=which)
    parser.add_shared("model", help="another way to name the model")
    parser.add_shared("checkpoint", "data", "out")
    parser.add_argument("--text", help="text to draw attention for (default: the beginning of the first story)")
    parser.add_argument(
        "--patch",
        nargs=2,
        metavar="TEXT",
        help="two texts whose last words differ: which activations predict the last word?",
    )
    parser.add_argument("--layer", type=int, help="draw only this layer, and show all of its neurons")
    parser.add_argument("--head", type=int, help="draw only this head (in each layer, or in --layer)")
    parser.add_argument("--stories", type=positive, default=200, help="validation stories to read (default: 200)")
    parser.add_argument(
        "--ablate", type=positive, default=40, help="stories on which heads and neurons are ablated (default: 40)"
    )
    args = parser.parse_args()
    if args.stories < 2 * FEWEST_STORIES or args.ablate < FEWEST_STORIES:
        parser.error(f"at least {FEWEST_STORIES} stories to --ablate, and twice as many --stories, are needed")
    return args


if __name__ == "__main__":
    ARGUMENTS = parse_arguments()  # before the imports below, which take seconds: --help and typos are answered at once

import numpy as np
import torch

from checkpoints.checkpoint import checkpoint_path, corpus_of, directory_of, newest_run
from common.figures import save_figure
from common.files import write_bytes, write_json
from common.tables import print_and_save, write_table
from corpus.token_files import load_stories
from corpus.word_forms import language_warning
from generation.backends import LocalBackend, load_backend
from interpretation.ablation import losses_without, rises
from interpretation.activation_patching import answers_given, check_prompts, patch
from interpretation.heads import HeadSums, head_rows, key_sets, repeated_corpus
from interpretation.hooks import run, run_with_cache
from interpretation.logit_attribution import head_outputs, lens_table
from interpretation.neurons import NeuronSums, clearest, contexts, neuron_rows, untrained_copy
from interpretation.summary import ablation_text, answers_text, heads_text, neurons_text, patching_text
from interpretation.word_classes import TaggedCorpus, pieces_of
from kernels import compile_cpp
from model import GPTNeo
from pages.html import as_levels
from pages.interpretation_pages import attention_page, attention_picture, neurons_page, patching_picture

N_RANDOM = 20  # neurons drawn at random that are ablated, too, beside the most selective ones
DEFAULT_TOKENS = 32  # without --text, attention is drawn for this many tokens of the first story


def interpret(out: Path, name: str, backend: LocalBackend, texts: Sequence[str], args) -> None:
    """Everything about a model, from validation stories, into `out`."""
    model, tokenizer = backend.model, backend.tokenizer
    corpus = TaggedCorpus.from_texts(texts, tokenizer, backend.prefix, model.config.block_size)
    n_ablation = min(args.ablate, len(texts) // 2)
    sums, neuron_sums, means = read(model, corpus, n_ablation)

    repeated, _, _ = read(model, repeated_corpus(corpus, backend.prefix, model.config.block_size))
    heads = head_rows(sums, repeated)
    heads = [row | written for row, written in zip(heads, head_outputs(model, corpus, tokenizer))]
    _, untrained, _ = read(untrained_copy(model), corpus, with_heads=False)
    neurons = neuron_rows(neuron_sums, untrained, contexts(model, corpus, tokenizer, neuron_sums))
    sections = [f"## Heads of {name}", f"{len(texts)} validation stories were read.", *heads_text(heads)]
    loss = ablate(model, corpus, n_ablation, means, heads, neurons)
    sections.append(ablation_text(heads, loss, n_ablation))
    sections += [f"## Neurons of {name}", *neurons_text(neurons)]
    if warning := language_warning(texts, "kinds of words and names are found by English lists"):
        sections.append(warning)

    write_table(out / "heads.csv", heads)
    write_table(out / "neurons.csv", neurons)
    write_bytes(out / "neurons.html", neurons_page(name, out, args.layer))
    ids = backend.encode(args.text) if args.text else corpus.stories[0].tokens[:DEFAULT_TOKENS].tolist()
    draw_attention(out, name, backend, ids, heads, args)
    print_and_save(out / "interpret.md", "\n\n".join(sections))


# ---- Read: one pass over all stories ----


@torch.no_grad()
def read(
    model: GPTNeo, corpus: TaggedCorpus, n_ablation: int = 0, with_heads: bool = True
) -> tuple[list[HeadSums], NeuronSums, dict[str, torch.Tensor]]:
    """Reads all stories. Returns, for each layer, its heads' attention summed by kind of key (the previous token,
    the first one, an earlier copy of the query, …); the neurons'
    activation sums; and the mean outputs {"blocks.2.z": (H, D), before the output projection, "blocks.2.post": (4C,)}
    of heads and neurons. Stories to ablate on, the first n_ablation, have no part in these means.

    with_heads=False skips the heads, and with them the slow path that materializes attention.
    """
    device, longest = model.wte.weight.device, max(len(story.tokens) for story in corpus.stories)
    heads = [HeadSums(model.config.n_head, longest, device) for _ in model.blocks]
    neurons, sums, n = NeuronSums(model, corpus), {}, 0
    label = "reading" if with_heads else "reading, at random initialization"
    for batch in corpus.batches(len(corpus.stories), device, label=label):
        sets = key_sets(batch, corpus) if with_heads else None
        averaged = batch.real & (torch.tensor(batch.index, device=device) >= n_ablation)[:, None]
        n += averaged.sum().item()

        def record(name, x, batch=batch, sets=sets, averaged=averaged):
            layer, _, part = name.removeprefix("blocks.").partition(".")
            if part == "pattern":
                heads[int(layer)].add(x, sets, model.config.window(int(layer)), batch.real)
            if part == "post":
                neurons.add(int(layer), batch, x)
            if part in ("z", "post"):
                sums[name] = sums.get(name, 0) + x[averaged].sum(0)

        run(model, batch.tokens, record, with_pattern=with_heads)
    return heads, neurons, {name: total / n for name, total in sums.items()}


# ---- Ablate ----


def ablate(model: GPTNeo, corpus: TaggedCorpus, n_stories: int, means: dict, heads: list, neurons: list) -> float:
    """Adds to the rows of all heads, the most selective neurons and some random ones how much the loss rises when each
    is ablated. Returns the loss of the intact model on these stories, in nats per token."""
    some = [*clearest(neurons).values(), *random.Random(0).sample(neurons, N_RANDOM)]
    some = list({(row["layer"], row["neuron"]): row for row in some}.values())
    for name, part, rows in (("head", "z", heads), ("neuron", "post", some)):
        parts = [(f"blocks.{row['layer']}.{part}", row[name]) for row in rows]
        intact, without = losses_without(model, corpus, n_stories, parts, means, f"{name}s")
        for row, rise in zip(rows, zip(*rises(intact, without, corpus))):
            row |= dict(zip(("rise", "rise_low", "rise_high"), rise))
    return intact.sum().item() / sum(len(story.tokens) for story in corpus.stories[:n_stories])


# ---- Draw ----


def draw_attention(out: Path, name: str, backend: LocalBackend, ids: list[int], rows: list[dict], args) -> None:
    """Writes attention.json, interpret.png and .svg, and attention.html for the tokens `ids`. rows: those of heads.csv.

    attention.json: the tokens; the layer and head of each map; the maps (heads, query, key), with weights
    quantized to 0 to 255, in base64; and, after the embedding and each layer, the likeliest next tokens (logit lens).
    """
    model, pieces = backend.model, pieces_of(backend.tokenizer, ids)
    _, cache = run_with_cache(model, torch.tensor([ids], device=model.wte.weight.device))
    heads = [
        {name: row[name] for name in ("layer", "head", "role")}
        for row in rows
        if args.layer in (None, row["layer"]) and args.head in (None, row["head"])
    ]
    maps = np.stack([cache[f"blocks.{each['layer']}.pattern"][0, each["head"]].cpu().numpy() for each in heads])
    lens = [
        [[(pieces_of(backend.tokenizer, [i])[0], round(p, 3)) for i, p in top] for top in layer]
        for layer in lens_table(model, cache)
    ]
    write_json(out / "attention.json", dict(tokens=pieces, heads=heads, attention=as_levels(maps), lens=lens))
    save_figure(attention_picture(f"Attention in {name}", maps, pieces, heads), out / "interpret.png")
    write_bytes(out / "attention.html", attention_page(name, out))


def draw_patching(out: Path, name: str, backend: LocalBackend, texts: Sequence[str]) -> None:
    """Writes patching.csv, .md, .png and .svg: which activations make the difference between the two answers."""
    prompts = [backend.encode(text) for text in texts]
    pieces = [pieces_of(backend.tokenizer, ids) for ids in prompts]
    check_prompts(*prompts, pieces)
    tokens, others = torch.tensor(prompts, device=backend.model.wte.weight.device)

    def text_of(token: int) -> str:
        return repr(pieces_of(backend.tokenizer, [token])[0])

    sections = answers_text(name, answers_given(backend.model, tokens, others), text_of)
    # A row for each head: its effect, the token that it attends to most, the tokens that it makes likelier. Also the
    # effect of the residual stream by layer and position, and both texts' logit differences of the answers.
    rows, residual, differences = patch(backend.model, tokens, others)
    for row in rows:
        row |= dict(looks_at=pieces[0][row["looks_at"]], writes=", ".join(map(text_of, row["writes"])))
    write_table(out / "patching.csv", rows)
    save_figure(patching_picture(name, rows, residual.numpy(), pieces), out / "patching.png")
    print_and_save(out / "patching.md", "\n\n".join([*sections, *patching_text(rows, differences)]))


# ---- Loading ----


def load_model(name: str, args: argparse.Namespace) -> LocalBackend:
    """ValueError if the model cannot be inspected, or lacks the layer or head of the flags."""
    if name.startswith("api:"):
        raise ValueError(f"{name}: a model behind an API cannot be inspected; use a run or hf:ID-or-directory")
    if name.startswith("hf:") and not args.data and not args.patch:
        raise ValueError(f"{name} needs --data, a corpus that prepare.py made")
    backend = load_backend(name)
    config = backend.model.config
    if type(backend.model) is not GPTNeo:
        raise ValueError(f"{name} is neither GPT-Neo nor GPT-2; interpret.py reads no other architecture")
    for flag, value, n in (("layer", args.layer, config.n_layer), ("head", args.head, config.n_head)):
        if value is not None and not 0 <= value < n:
            raise ValueError(f"--{flag} must be 0 to {n - 1} for {name}, not {value}")
    for text in filter(None, [args.text, *(args.patch or [])]):
        if (n_tokens := len(backend.encode(text))) > config.block_size:
            raise ValueError(f"the text has {n_tokens} tokens, but {name} reads only {config.block_size}; shorten it")
    return backend


def main(args: argparse.Namespace | None = None):
    args = args or parse_arguments()
    compile_cpp.keep_freed_memory()
    with one_line_errors("interpret.py", interrupted="the old files are unchanged"):
        name = checkpoint_path(args.model or str(newest_run()), args.checkpoint)
        backend = load_model(name, args)
        out = args.out or directory_of(name)
        out.mkdir(parents=True, exist_ok=True)
        if args.patch:
            draw_patching(out, name, backend, args.patch)
            print(f"\nwrote {out}/patching.md, .csv, .png and .svg; next: open patching.png there")
            return
        data = args.data or corpus_of(name)
        texts = list(itertools.islice(load_stories(data, "val")[1], args.stories))
        if len(texts) < 2 * FEWEST_STORIES:
            raise ValueError(f"{data}: only {len(texts)} validation stories; at least {2 * FEWEST_STORIES} are needed")
        interpret(out, name, backend, texts, args)
        print(f"\nwrote {out}/; next: open attention.html and neurons.html there")


if __name__ == "__main__":
    main(ARGUMENTS)
