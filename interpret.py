"""
Look inside a model: what its heads attend to, what its neurons fire on, and whether it matters.

$ python interpret.py  # the newest run -> out/<run>/interpret.json, neurons.html
$ python interpret.py out/demo --text "Lily saw a cat. Lily was happy."
$ python interpret.py out/demo --patch "Tom had a ball. Then Tom" "Ben had a ball. Then Ben"
$ python interpret.py hf:roneneldan/TinyStories-33M --data data/tinystories

Writes interpret.json, .png and .svg (the tables that it prints, and the attention of all heads),
heads.csv, neurons.csv and residual.csv (all measures), and the page neurons.html; --patch writes
patching.json, .csv, .png and .svg. export.py makes a page on which attention can be explored. In a
notebook:

>>> from nanostories.interpretation.hooks import run_with_cache
>>> logits, cache = run_with_cache(model, tokens)         # tokens (B, T)
>>> cache["blocks.2.pattern"]                             # (B, H, T, T)
"""

import argparse
import collections
import itertools
from collections.abc import Sequence
from pathlib import Path

from nanostories.checkpoints.models import Model, open_model
from nanostories.cli import Parser, UserError, one_line_errors, positive
from nanostories.corpus.token_files import load_stories
from nanostories.files import write_bytes
from nanostories.results import Table, save
from nanostories.tables import write_table

# torch takes seconds to import, so the functions below import it: --help and typos are answered at
# once. Their arguments are backend: a LocalBackend, gpt: its GPTNeo, corpus: a TaggedCorpus, of
# tokens with their kinds of words.

FEWEST_STORIES = 10  # with fewer, the interval of an increase in loss means nothing
DEFAULT_TOKENS = 32  # without --text, attention is drawn for this many tokens of the first story
SHOWN_HEADS = 10
UNLIKELY = 0.05  # a probability


def parse_arguments() -> argparse.Namespace:
    parser = Parser(__doc__)
    model = "a run (or checkpoint), or hf:ID-or-directory (default: the newest run in out/)"
    parser.add_argument("model", nargs="?", default="", help=model)
    parser.add_shared("checkpoint", "data", "out")
    text = "text to draw attention for (default: the beginning of the first story)"
    parser.add_argument("--text", default="", help=text)
    patch = "two texts whose last words differ: which activations predict the last word?"
    parser.add_argument("--patch", nargs=2, metavar="TEXT", default=[], help=patch)
    stories = "validation stories to read (default: 200)"
    parser.add_argument("--stories", type=positive, default=200, help=stories)
    ablate = "stories to ablate heads and neurons on (default: 40; at most half of those read)"
    parser.add_argument("--ablate", type=positive, default=40, help=ablate)
    return parser.parse_args()


def interpret(model: Model, backend, texts: Sequence[str], args, out: Path) -> None:
    """Everything about a model, from validation stories, into `out`."""
    from nanostories.corpus.word_forms import looks_english
    from nanostories.interpretation import ablation, neurons, tables
    from nanostories.interpretation.word_classes import TaggedCorpus, pieces_of
    from nanostories.pages import interpretation_pages as pages

    gpt = backend.model
    tokenizer = backend.tokenizer
    device = gpt.wte.weight.device
    block_size = gpt.config.block_size
    corpus = TaggedCorpus.from_texts(texts, tokenizer, backend.prefix, block_size, device)
    n_ablation = min(args.ablate, len(texts) // 2)
    head_rows, neuron_sums, means = describe(backend, corpus, n_ablation)
    neuron_rows = neurons.neuron_rows(neuron_sums["post"], tokenizer)
    residual_rows = neurons.neuron_rows(neuron_sums["resid_post"], tokenizer)
    parts = [*head_rows, *neurons.remarkable(neuron_rows).values()]
    loss = ablation.add_loss_increases(parts, gpt, corpus.stories[:n_ablation], means)
    ids = corpus.stories[0].tokens[:DEFAULT_TOKENS].tolist()
    if args.text:
        ids = backend.encode(args.text)
    maps = attention_maps(gpt, ids)

    name = model.label(out)
    warnings = []
    language = "en"
    if not looks_english(texts):
        language = ""
        warnings.append("kinds of words are known in English only, which these stories are not")
    shown = pages.neurons_to_show(neuron_rows)
    neurons.add_contexts(shown, gpt, neuron_sums["post"], tokenizer)
    neurons_page = pages.neurons_page(name, language, shown, len(neuron_rows))
    picture = pages.attention_picture(name, maps, pieces_of(tokenizer, ids), head_rows)
    found = [
        tables.heads_table(name, head_rows),
        tables.roles_table(head_rows),
        tables.ablation_table(head_rows, loss, n_ablation),
        tables.neurons_table(neuron_rows),
    ]
    write_table(out / "heads.csv", head_rows)
    write_table(out / "neurons.csv", neuron_rows)
    write_table(out / "residual.csv", residual_rows)
    write_bytes(out / "neurons.html", neurons_page)
    save(out / "interpret.json", "interpret.py", found, warnings, model.files, picture)
    print(f"\nwrote {out}/; next: open neurons.html there, or python export.py")


# ---- Read: one pass over all stories ----
def describe(backend, corpus, n_ablation: int) -> tuple:
    """The rows of heads.csv; and of read_activations, the NeuronSums and the mean outputs."""
    from nanostories.interpretation.heads import head_rows, repeated_random_tokens
    from nanostories.interpretation.logit_attribution import tokens_written

    gpt = backend.model
    head_sums, neuron_sums, means = read_activations(gpt, corpus, n_ablation)
    repeated = repeated_random_tokens(corpus, backend.prefix, gpt.config.block_size)
    repeated_sums, _, _ = read_activations(gpt, repeated)
    rows = head_rows(head_sums, repeated_sums)
    for row, written in zip(rows, tokens_written(gpt, corpus, backend.tokenizer)):
        row |= written
    return rows, neuron_sums, means


def read_activations(gpt, corpus, n_ablation: int = 0) -> tuple:
    """Reads all stories. Returns HeadSums for each layer, the attention summed by kind of key (the
    previous token, the first one, an earlier copy of the query, …); the NeuronSums of neurons, and
    of the residual stream after each layer, {"post", "resid_post": sums}; and the mean outputs of
    heads and neurons, {"blocks.2.z": (H, D), before the output projection,
    "blocks.2.post": (4C,), after the GELU}. Stories to ablate on, the first n_ablation, have no
    part in these means."""
    import torch
    from tqdm import tqdm

    from nanostories.interpretation.heads import HeadSums, key_features
    from nanostories.interpretation.hooks import run
    from nanostories.interpretation.neurons import NeuronSums

    config = gpt.config
    device = gpt.wte.weight.device
    heads = [HeadSums(config.n_head, config.window(i), device) for i in range(config.n_layer)]
    neurons = {}
    for part, width in {"post": 4 * config.n_embd, "resid_post": config.n_embd}.items():
        neurons[part] = NeuronSums((config.n_layer, width), corpus, device)
    sums = collections.Counter()
    n = 0  # tokens in the means
    for number, story in enumerate(tqdm(corpus.stories, "reading", disable=None, delay=1)):
        cache = {}
        with torch.no_grad():
            run(gpt, story.tokens[None], cache.__setitem__, with_pattern=True)
        features = key_features(story, corpus)
        for layer in range(config.n_layer):
            heads[layer].add(cache[f"blocks.{layer}.pattern"][0], features)
            for part, sums_of_part in neurons.items():
                sums_of_part.add(layer, number, cache[f"blocks.{layer}.{part}"][0])
        if number >= n_ablation:
            n += len(story.tokens)
            for name in cache:
                if name.endswith((".z", ".post")):
                    sums[name] += cache[name][0].sum(0)
    return heads, neurons, {name: total / n for name, total in sums.items()}


# ---- Attention for one text ----
def attention_maps(gpt, ids: list[int]):
    """(heads, query, key), in the order of heads.csv."""
    import torch

    from nanostories.interpretation.hooks import run_with_cache

    _, cache = run_with_cache(gpt, torch.tensor([ids], device=gpt.wte.weight.device))
    patterns = [cache[f"blocks.{layer}.pattern"][0] for layer in range(gpt.config.n_layer)]
    return torch.cat(patterns).cpu().numpy()


# ---- Patch ----
def patch_answers(model: Model, backend, texts: Sequence[str], out: Path) -> None:
    """Writes patching.json, .csv, .png and .svg: which activations lead to each text's last word,
    called its answer."""
    import numpy as np
    import torch

    from nanostories.interpretation.activation_patching import patch
    from nanostories.interpretation.word_classes import pieces_of
    from nanostories.pages.interpretation_pages import patching_picture

    prompts = [backend.encode(text) for text in texts]
    pieces = [pieces_of(backend.tokenizer, ids) for ids in prompts]
    lengths = [len(ids) for ids in prompts]
    if min(lengths) < max(lengths) or min(lengths) < 2:
        needed = "two texts of equally many tokens, at least two"
        raise UserError(f"--patch needs {needed}, not {lengths}; choose others")
    found = patch(backend.model, torch.tensor(prompts, device=backend.model.wte.weight.device))

    answers = []
    warnings = []
    for i, which in enumerate(("first", "second")):
        p = found.probabilities[i]
        own = p[prompts[i][-1]].item()
        other = p[prompts[1 - i][-1]].item()
        *_, before, answer = pieces[i]
        likeliest = backend.tokenizer.decode([p.argmax().item()])
        row = {"text": which, "its answer": repr(answer), "probability": own}
        answers.append(row | {"of the other": other, "likeliest": repr(likeliest)})
        if own <= max(other, UNLIKELY):
            warnings.append(f"the model does not know the answer of the {which} text")
        if answer[:1].islower() and before[-1:].isalpha():
            warnings.append(f"the {which} answer is the end of a word: choose whole words")
    heads = []
    for (layer, head), share in np.ndenumerate(found.heads.double()):
        heads.append({"head": f"{layer}.{head}", "brought_back": share})
    heads.sort(key=lambda row: -row["brought_back"])
    after_first, after_second = found.leads
    about = (
        f"The first answer's logit minus the second's is {after_first:+.2f} after the first text,"
        f" {after_second:+.2f} after the second. Brought back: the share of this distance, if the"
        " second text is read with the head's output on the first."
    )
    best = heads[:SHOWN_HEADS]
    tables = [
        Table("Answers", answers, facts={"kind": "answers"}),
        Table("Heads", best, {"brought_back": ".2f"}, about=about, facts={"kind": "patching"}),
    ]
    write_table(out / "patching.csv", heads)
    picture = patching_picture(model.label(out), found, pieces)
    save(out / "patching.json", "interpret.py --patch", tables, warnings, model.files, picture)
    print(f"\nwrote {out}/patching.json, .csv, .png and .svg; next: open patching.png there")


# ---- Loading ----
def load_inspectable(model: Model, texts: Sequence[str]):
    """The model and its tokenizer. UserError if it cannot be inspected, or not on these texts."""
    import torch

    from model import GPTNeo
    from nanostories.generation.backends import load_backend

    if model.kind == "api":
        raise UserError(f"{model.name}: a model behind an API cannot be inspected")
    backend = load_backend(model)
    # Most neurons matter less than the rounding of TF32.
    torch.set_float32_matmul_precision("highest")
    if type(backend.model) is not GPTNeo:
        raise UserError(
            f"{model.name} is neither GPT-Neo nor GPT-2; interpret.py reads no other architecture"
        )
    block_size = backend.model.config.block_size
    for text in texts:
        n_tokens = len(backend.encode(text))
        if n_tokens > block_size:
            raise UserError(
                f"the text has {n_tokens} tokens, but {model.name} reads only {block_size};"
                " shorten it"
            )
    return backend


def validation_stories(model: Model, args) -> list[str]:
    data = args.data or model.evaluation_corpus()
    _, stories = load_stories(data, "val")
    texts = list(itertools.islice(stories, args.stories))
    if len(texts) < 2 * FEWEST_STORIES or args.ablate < FEWEST_STORIES:
        raise UserError(
            f"{len(texts)} stories of {data}, {args.ablate} to ablate on; at least"
            f" {2 * FEWEST_STORIES} --stories are needed, and {FEWEST_STORIES} to --ablate on"
        )
    return texts


def main() -> None:
    args = parse_arguments()
    interrupted = "no file is half written, but some may be of this run and others older"
    with one_line_errors("interpret.py", interrupted):
        model = open_model(args.model, args.checkpoint)
        out = args.out or model.directory
        if args.patch:
            backend = load_inspectable(model, args.patch)
            out.mkdir(parents=True, exist_ok=True)
            patch_answers(model, backend, args.patch, out)
        else:
            backend = load_inspectable(model, [args.text])
            texts = validation_stories(model, args)
            out.mkdir(parents=True, exist_ok=True)
            interpret(model, backend, texts, args, out)


if __name__ == "__main__":
    main()
