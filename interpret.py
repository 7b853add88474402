"""
Look inside a model: what its heads attend to, what its neurons fire on, and whether it matters.

$ python interpret.py  # the newest run -> out/<run>/interpret.md and pages
$ python interpret.py out/demo --text "Lily saw a cat. Lily was happy."
$ python interpret.py out/demo --patch "Tom had a ball. Then Tom" "Ben had a ball. Then Ben"
$ python interpret.py hf:roneneldan/TinyStories-33M --data data/tinystories

Writes heads.csv and neurons.csv (all measures), attention.json (the maps and predictions for one
text), attention.html and neurons.html, which show them, and interpret.md, .png and .svg; --patch
writes patching.csv, .md, .png and .svg. In a notebook:

>>> from nanostories.interpretation.hooks import run_with_cache
>>> logits, cache = run_with_cache(model, tokens)         # tokens (B, T)
>>> cache["blocks.2.pattern"]                             # (B, H, T, T)
"""

import argparse
import itertools
import random
from collections.abc import Sequence
from pathlib import Path

from nanostories.checkpoints.checkpoint import checkpoint_path, corpus_of, directory_of, newest_run
from nanostories.cli import Parser, UserError, one_line_errors, positive
from nanostories.corpus.token_files import load_stories
from nanostories.corpus.word_forms import language_warning
from nanostories.files import write_bytes, write_json
from nanostories.tables import print_and_save, write_table

# torch takes seconds to import, so the functions below import it: --help and typos are answered at
# once. Their arguments are backend: a LocalBackend, model: its GPTNeo, corpus: a TaggedCorpus, of
# tokens with their kinds of words.

FEWEST_STORIES = 10  # with fewer, the interval of an increase in loss means nothing
N_RANDOM = 20  # neurons drawn at random that are ablated, too, beside the most selective ones
DEFAULT_TOKENS = 32  # without --text, attention is drawn for this many tokens of the first story


def parse_arguments() -> argparse.Namespace:
    parser = Parser(__doc__)
    model = "a run (or checkpoint), or hf:ID-or-directory (default: the newest run in out/)"
    parser.add_argument("model", nargs="?", help=model)
    parser.add_shared("checkpoint", "data", "out")
    parser.add_argument(
        "--text", help="text to draw attention for (default: the beginning of the first story)"
    )
    patch = "two texts whose last words differ: which activations predict the last word?"
    parser.add_argument("--patch", nargs=2, metavar="TEXT", help=patch)
    parser.add_argument(
        "--stories", type=positive, default=200, help="validation stories to read (default: 200)"
    )
    ablate = (
        "stories on which heads and neurons are ablated (default: 40; at most half of those that"
        " are read)"
    )
    parser.add_argument("--ablate", type=positive, default=40, help=ablate)
    args = parser.parse_args()
    if args.stories < 2 * FEWEST_STORIES or args.ablate < FEWEST_STORIES:
        parser.error(
            f"at least {FEWEST_STORIES} stories to --ablate, and twice as many --stories, are"
            " needed"
        )
    return args


def interpret(out: Path, name: str, backend, texts: Sequence[str], args) -> None:
    """Everything about a model, from validation stories, into `out`."""
    from nanostories.interpretation import heads, neurons, summary
    from nanostories.interpretation.logit_attribution import tokens_written
    from nanostories.interpretation.word_classes import TaggedCorpus
    from nanostories.pages.interpretation_pages import neurons_page

    model, tokenizer = (
        backend.model,
        backend.tokenizer,
    )  # backend.prefix: ids before every text, an end of text
    corpus = TaggedCorpus.from_texts(texts, tokenizer, backend.prefix, model.config.block_size)
    n_ablation = min(args.ablate, len(texts) // 2)
    head_sums, neuron_sums, means = collect_activations(model, corpus, n_ablation)
    repeated = heads.repeated_random_tokens(corpus, backend.prefix, model.config.block_size)
    repeated_sums, _, _ = collect_activations(
        model, repeated, label="reading repeated random tokens"
    )
    untrained, label = neurons.untrained_copy(model), "reading, at random initialization"
    _, untrained_sums, _ = collect_activations(untrained, corpus, with_heads=False, label=label)

    head_rows = heads.head_rows(head_sums, repeated_sums)
    written = tokens_written(
        model, corpus, tokenizer
    )  # columns: the tokens that each head makes likelier
    head_rows = [row | columns for row, columns in zip(head_rows, written)]
    contexts = neurons.peak_contexts(model, corpus, tokenizer, neuron_sums)
    neuron_rows = neurons.neuron_rows(neuron_sums, untrained_sums, contexts)
    loss = ablate(model, corpus, n_ablation, means, head_rows, neuron_rows)

    sections = [
        f"## Heads of {name}",
        f"{len(texts)} validation stories were read.",
        *summary.heads_text(head_rows),
    ]
    sections.append(summary.ablation_text(head_rows, loss, n_ablation))
    sections += [f"## Neurons of {name}", *summary.neurons_text(neuron_rows)]
    if warning := language_warning(
        texts, "the lists of kinds of words are English, so only punctuation is told apart"
    ):
        sections.append(warning)
    write_table(out / "heads.csv", head_rows)
    write_table(out / "neurons.csv", neuron_rows)
    write_bytes(out / "neurons.html", neurons_page(name, out))
    ids = (
        backend.encode(args.text)
        if args.text
        else corpus.stories[0].tokens[:DEFAULT_TOKENS].tolist()
    )
    draw_attention(out, name, backend, ids, head_rows)
    print_and_save(out / "interpret.md", "\n\n".join(sections))


# ---- Read: one pass over all stories ----
def collect_activations(
    model, corpus, n_ablation: int = 0, with_heads: bool = True, label: str = "reading"
):
    """Reads all stories. Returns HeadSums for each layer, the attention summed by kind of key (the
    previous token, the first one, an earlier copy of the query, …); the NeuronSums; and the mean
    outputs of heads and neurons, {"blocks.2.z": (H, D), before the output projection,
    "blocks.2.post": (4C,), after the GELU}. Stories to ablate on, the first n_ablation, have no
    part in these means.

    with_heads=False skips the heads, and the slow path that materializes attention. label: of the
    progress bar."""
    import torch

    from nanostories.interpretation.heads import HeadSums, key_sets
    from nanostories.interpretation.hooks import run
    from nanostories.interpretation.neurons import NeuronSums

    device, longest = model.wte.weight.device, max(len(story.tokens) for story in corpus.stories)
    heads = [HeadSums(model.config.n_head, longest, device) for _ in model.blocks]
    neurons, sums, n = NeuronSums(model, corpus), {}, 0
    for batch in corpus.batches(len(corpus.stories), device, label=label):
        key_masks = key_sets(batch, corpus) if with_heads else None
        in_mean = (
            batch.not_padding & (torch.tensor(batch.index, device=device) >= n_ablation)[:, None]
        )
        n += in_mean.sum().item()

        def record(name, x, batch=batch, key_masks=key_masks, in_mean=in_mean):
            layer, _, part = name.removeprefix("blocks.").partition(".")
            if part == "pattern":
                heads[int(layer)].add(
                    x, key_masks, model.config.window(int(layer)), batch.not_padding
                )
            if part == "post":
                neurons.add(int(layer), batch, x)
            if part in ("z", "post"):
                sums[name] = sums.get(name, 0) + x[in_mean].sum(0)

        with torch.no_grad():
            run(model, batch.tokens, record, with_pattern=with_heads)
    return heads, neurons, {name: total / n for name, total in sums.items()}


# ---- Ablate ----
def ablate(model, corpus, n_stories: int, means: dict, head_rows: list, neuron_rows: list) -> float:
    """Adds to rows how much the loss on the first stories increases if a part's output is replaced
    by its mean: for all heads, the most selective neuron for each kind of word, the neuron with the
    largest activation, and N_RANDOM random ones. Returns the loss of the intact model on these
    stories, in nats per token."""
    from nanostories.interpretation.ablation import ablated_losses, loss_increases
    from nanostories.interpretation.neurons import most_selective

    ablated_neurons = [
        *most_selective(neuron_rows).values(),
        *random.Random(0).sample(neuron_rows, N_RANDOM),
    ]
    ablated_neurons = list({(row["layer"], row["neuron"]): row for row in ablated_neurons}.values())
    parts = [(f"blocks.{row['layer']}.z", row["head"]) for row in head_rows]
    parts += [(f"blocks.{row['layer']}.post", row["neuron"]) for row in ablated_neurons]
    intact, ablated = ablated_losses(model, corpus, n_stories, parts, means)
    for row, increase in zip(
        [*head_rows, *ablated_neurons], zip(*loss_increases(intact, ablated, corpus))
    ):
        row |= dict(zip(("loss_increase", "loss_increase_low", "loss_increase_high"), increase))
    return intact.sum().item() / sum(len(story.tokens) for story in corpus.stories[:n_stories])


# ---- Draw ----
def draw_attention(out: Path, name: str, backend, ids: list[int], rows: list[dict]) -> None:
    """Writes attention.json, interpret.png and .svg, and attention.html for the tokens `ids`. rows:
    those of heads.csv.

    attention.json: the tokens; the layer and head of each map; the maps (heads, query, key), with
    weights quantized to 0 to 255, in base64; and, after the embedding and each layer, the likeliest
    next tokens (logit lens).
    """
    import numpy as np
    import torch

    from nanostories.figures import save_figure
    from nanostories.interpretation.hooks import run_with_cache
    from nanostories.interpretation.logit_attribution import lens_table
    from nanostories.interpretation.word_classes import pieces_of
    from nanostories.pages.html import to_base64_bytes
    from nanostories.pages.interpretation_pages import attention_page, attention_picture

    model, pieces = backend.model, pieces_of(backend.tokenizer, ids)
    _, cache = run_with_cache(model, torch.tensor([ids], device=model.wte.weight.device))
    heads = [{name: row[name] for name in ("layer", "head", "role")} for row in rows]
    maps = np.stack(
        [cache[f"blocks.{each['layer']}.pattern"][0, each["head"]].cpu().numpy() for each in heads]
    )
    lens = [
        [[(pieces_of(backend.tokenizer, [i])[0], round(p, 3)) for i, p in top] for top in layer]
        for layer in lens_table(model, cache)
    ]
    write_json(
        out / "attention.json",
        dict(tokens=pieces, heads=heads, attention=to_base64_bytes(maps), lens=lens),
    )
    save_figure(
        attention_picture(f"Attention in {name}", maps, pieces, heads), out / "interpret.png"
    )
    write_bytes(out / "attention.html", attention_page(name, out))


def draw_patching(out: Path, name: str, backend, texts: Sequence[str]) -> None:
    """Writes patching.csv, .md, .png and .svg: which activations lead to each text's last word,
    called its answer."""
    import torch

    from nanostories.figures import save_figure
    from nanostories.interpretation.activation_patching import check_prompts, patch, predict_answers
    from nanostories.interpretation.summary import patching_text, predictions_text
    from nanostories.interpretation.word_classes import pieces_of
    from nanostories.pages.interpretation_pages import patching_picture

    prompts = [backend.encode(text) for text in texts]
    pieces = [pieces_of(backend.tokenizer, ids) for ids in prompts]
    check_prompts(*prompts, pieces)
    tokens, others = torch.tensor(prompts, device=backend.model.wte.weight.device)

    def text_of(token: int) -> str:
        return repr(pieces_of(backend.tokenizer, [token])[0])

    sections = predictions_text(name, predict_answers(backend.model, tokens, others), text_of)
    if any(answer[:1].islower() and before[-1:].isalpha() for *_, before, answer in pieces):
        sections.append(
            "WARNING an answer is the end of a word, which its beginning predicts: choose whole"
            " words"
        )
    # A row for each head: its effect, the token that it attends to most, the tokens that it makes
    # likelier. Also the effect of the residual stream by layer and position, and both texts' logit
    # differences of the answers.
    rows, residual, differences = patch(backend.model, tokens, others)
    for row in rows:
        row |= dict(
            looks_at=pieces[0][row["looks_at"]], writes=", ".join(map(text_of, row["writes"]))
        )
    write_table(out / "patching.csv", rows)
    save_figure(patching_picture(name, rows, residual.numpy(), pieces), out / "patching.png")
    print_and_save(out / "patching.md", "\n\n".join([*sections, *patching_text(rows, differences)]))


# ---- Loading ----
def load_inspectable(name: str, args: argparse.Namespace):
    """The model and its tokenizer. ValueError if it cannot be inspected."""
    from model import GPTNeo
    from nanostories.checkpoints.models import open_model
    from nanostories.generation.backends import load_backend

    if name.startswith("api:"):
        raise UserError(
            f"{name}: a model behind an API cannot be inspected; use a run or hf:ID-or-directory"
        )
    if name.startswith("hf:") and not args.data and not args.patch:
        raise UserError(f"{name} needs --data, a corpus that prepare.py made")
    backend = load_backend(open_model(name))
    config = backend.model.config
    if type(backend.model) is not GPTNeo:
        raise UserError(
            f"{name} is neither GPT-Neo nor GPT-2; interpret.py reads no other architecture"
        )
    for text in filter(None, [args.text, *(args.patch or [])]):
        if (n_tokens := len(backend.encode(text))) > config.block_size:
            raise UserError(
                f"the text has {n_tokens} tokens, but {name} reads only {config.block_size};"
                " shorten it"
            )
    return backend


def main() -> None:
    args = parse_arguments()
    with one_line_errors("interpret.py", interrupted="the old files are unchanged"):
        name = checkpoint_path(args.model or str(newest_run()), args.checkpoint)
        backend = load_inspectable(name, args)
        out = args.out or directory_of(name)
        out.mkdir(parents=True, exist_ok=True)
        if args.patch:
            draw_patching(out, name, backend, args.patch)
            print(f"\nwrote {out}/patching.md, .csv, .png and .svg; next: open patching.png there")
            return
        data = args.data or corpus_of(name)
        texts = list(itertools.islice(load_stories(data, "val")[1], args.stories))
        if len(texts) < 2 * FEWEST_STORIES:
            raise UserError(
                f"{data}: only {len(texts)} validation stories; at least {2 * FEWEST_STORIES} are"
                " needed"
            )
        interpret(out, name, backend, texts, args)
        print(f"\nwrote {out}/; next: open attention.html and neurons.html there")


if __name__ == "__main__":
    main()
