"""
Look inside a model: what its heads attend to, what its neurons fire on, and whether it matters.

$ python interpret.py  # the newest run -> out/<run>/interpret.json, neurons.html
$ python interpret.py out/demo --text "Lily saw a cat. Lily was happy."
$ python interpret.py out/demo --patch "Tom had a ball. Then Tom" "Ben had a ball. Then Ben"
$ python interpret.py hf:roneneldan/TinyStories-33M --data data/tinystories

Writes interpret.json, .png and .svg (the tables that it prints, and the attention of all heads),
heads.csv, neurons.csv and residual.csv (all measures), and the page neurons.html; --patch writes
patching.json, .png and .svg. export.py makes a page on which attention can be explored. In a
notebook:

>>> from nanostories.interpretation.hooks import run_with_cache
>>> logits, cache = run_with_cache(model, tokens)         # tokens (B, T)
>>> cache["blocks.2.pattern"]                             # (B, H, T, T)
"""

import argparse
import itertools
from collections.abc import Sequence
from pathlib import Path

from nanostories.checkpoints.models import Model, open_model
from nanostories.cli import Parser, UserError, one_line_errors, positive
from nanostories.corpus.token_files import load_stories
from nanostories.files import write_bytes
from nanostories.results import Table, save
from nanostories.tables import write_table

# torch takes seconds to import, so the functions below import what needs it: --help and typos are
# answered at once. Their argument backend is a LocalBackend.

MIN_STORIES = 50
ABLATED = 0.2  # the share of the stories on which heads and neurons are ablated: the first ones


def parse_arguments() -> argparse.Namespace:
    parser = Parser(__doc__)
    model = "a run (or checkpoint), or hf:ID-or-directory (default: the newest run in out/)"
    parser.add_argument("model", nargs="?", default="", help=model)
    parser.add_shared("checkpoint", "data", "out")
    text = "text whose first 32 tokens attention is drawn for (default: the first story)"
    parser.add_argument("--text", default="", help=text)
    patch = (
        "two texts of equally many tokens whose last tokens differ: which activations of the first"
        " make the model predict its last one? (activation patching; reads no stories)"
    )
    parser.add_argument("--patch", nargs=2, metavar="TEXT", default=[], help=patch)
    stories = "validation stories to read (default: 200); a fifth of them to ablate on"
    parser.add_argument("--stories", type=positive, default=200, help=stories)
    args = parser.parse_args()
    if args.patch and (args.text or args.data or args.stories != 200):
        parser.error("--patch reads two texts alone: leave out --text, --data and --stories")
    return args


# ---- Everything about a model ----
def interpret(model: Model, backend, texts: Sequence[str], args, out: Path) -> None:
    """texts: validation stories."""
    from nanostories.interpretation import neurons, tables
    from nanostories.interpretation.ablation import add_loss_increases
    from nanostories.interpretation.heads import head_rows, induction_shares
    from nanostories.interpretation.logit_attribution import tokens_written
    from nanostories.interpretation.reading import read_activations
    from nanostories.interpretation.word_classes import TaggedCorpus
    from nanostories.pages import interpretation_pages as pages
    from nanostories.pages.html import language_of

    gpt = backend.model
    tokenizer = backend.tokenizer
    device = gpt.wte.weight.device
    block_size = gpt.config.block_size
    corpus = TaggedCorpus.from_texts(texts, tokenizer, backend.prefix, block_size, device)
    n_ablated = int(ABLATED * len(texts))
    reading = read_activations(gpt, corpus, n_ablated)
    heads = head_rows(reading.heads, induction_shares(gpt, corpus, backend.prefix))
    for row, written in zip(heads, tokens_written(gpt, corpus, tokenizer)):
        row |= written
    neuron_rows = neurons.neuron_rows(reading.neurons, tokenizer)
    parts = [*heads, *neurons.remarkable(neuron_rows).values()]
    loss = add_loss_increases(parts, gpt, corpus.stories[:n_ablated], reading.means)

    write_table(out / "heads.csv", heads)
    write_table(out / "neurons.csv", neuron_rows)
    write_table(out / "residual.csv", neurons.neuron_rows(reading.residual, tokenizer))
    name = model.label(out)
    language = language_of(texts)
    page = pages.neurons_page(name, language, neuron_rows, backend, reading.neurons)
    write_bytes(out / "neurons.html", page)
    result_tables = [
        tables.heads_table(name, heads),
        tables.roles_table(heads),
        tables.ablation_table(heads, loss, n_ablated),
        tables.neurons_table(neuron_rows),
    ]
    warnings = []
    if not language:
        warnings.append("kinds of words are known in English only, which these stories are not")
    picture = draw_attention(name, backend, args.text or texts[0], heads)
    save(out / "interpret.json", "interpret.py", result_tables, warnings, model.files, picture)
    print(f"\nwrote {out}/; next: open neurons.html there, or python export.py {model.name}")


def draw_attention(name: str, backend, text: str, heads: list[dict]):
    """heads: rows of heads.csv."""
    import torch

    from nanostories.interpretation.hooks import run_with_cache
    from nanostories.interpretation.word_classes import pieces_of
    from nanostories.pages.interpretation_pages import PICTURE_TOKENS, attention_picture

    gpt = backend.model
    most = min(PICTURE_TOKENS, gpt.config.block_size)
    ids = backend.encode(text)[:most]
    _, cache = run_with_cache(gpt, torch.tensor([ids], device=gpt.wte.weight.device))
    patterns = [cache[f"blocks.{layer}.pattern"][0] for layer in range(gpt.config.n_layer)]
    maps = torch.cat(patterns).cpu().numpy()  # (heads, query, key)
    return attention_picture(name, maps, pieces_of(backend.tokenizer, ids), heads)


# ---- Patch ----
def patch_answers(model: Model, backend, texts: Sequence[str], out: Path) -> None:
    """Writes patching.json, .png and .svg: which activations lead to each text's last word, called
    its answer."""
    import numpy as np
    import torch

    from nanostories.interpretation.activation_patching import patch
    from nanostories.interpretation.word_classes import pieces_of
    from nanostories.pages.interpretation_pages import patching_picture

    prompts = [backend.encode(text) for text in texts]
    lengths = [len(ids) for ids in prompts]
    block_size = backend.model.config.block_size
    if min(lengths) < max(lengths) or not 2 <= lengths[0] <= block_size:
        raise UserError(
            f"--patch needs two texts of equally many tokens, 2 to {block_size}, not {lengths}"
        )
    patching = patch(backend.model, torch.tensor(prompts, device=backend.model.wte.weight.device))

    heads = []
    for (layer, head), share in np.ndenumerate(patching.heads.double()):
        heads.append({"head": f"{layer}.{head}", "share restored": share})
    heads.sort(key=lambda row: -row["share restored"])
    after_first, after_second = patching.leads
    about = (
        f"The first answer's logit minus the second's is {after_first:+.2f} after the first text,"
        f" {after_second:+.2f} after the second. Share restored: of this distance, when the head's"
        " output in the run on the second text is replaced by its output on the first."
    )
    formats = {"share restored": ".2f"}
    facts = {"kind": "patching"}
    table = Table("Patched heads", heads, formats, about=about, facts=facts)
    pieces = [pieces_of(backend.tokenizer, ids) for ids in prompts]
    picture = patching_picture(model.label(out), patching, pieces)
    save(out / "patching.json", "interpret.py --patch", [table], (), model.files, picture)
    print(f"\nwrote {out}/patching.json, .png and .svg; next: open patching.png there")


# ---- The command ----
def validation_stories(model: Model, args) -> list[str]:
    data = args.data or model.evaluation_corpus()
    _, stories = load_stories(data, "val")
    texts = list(itertools.islice(stories, args.stories))
    if len(texts) < MIN_STORIES:
        raise UserError(
            f"{data}: {len(texts)} validation stories to read (--stories); {MIN_STORIES} are needed"
        )
    return texts


def main() -> None:
    args = parse_arguments()
    interrupted = "no file is half written, but some may be of this run and others older"
    with one_line_errors("interpret.py", interrupted):
        import torch

        from nanostories.generation.backends import load_gpt

        model = open_model(args.model, args.checkpoint)
        out = args.out or model.directory
        backend = load_gpt(model)
        # Most neurons matter less than the rounding of TF32.
        torch.set_float32_matmul_precision("highest")
        if args.patch:
            patch_answers(model, backend, args.patch, out)
        else:
            texts = validation_stories(model, args)
            out.mkdir(parents=True, exist_ok=True)
            interpret(model, backend, texts, args, out)


if __name__ == "__main__":
    main()
