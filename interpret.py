"""
Look into a model: what its heads look at, what its neurons fire on, and whether it matters.

$ python interpret.py                                     # the newest run -> out/<run>/interpret/
$ python interpret.py out/demo --text "Lily saw a cat. Lily was happy." --layer 2 --head 3
$ python interpret.py hf:roneneldan/TinyStories-33M --data data/tinystories
$ python interpret.py --compare out/a out/b               # by width, depth and number of heads -> out/compare.png

Writes attention.html, attention.png, attention.npz ([layer, head, query, key] and the tokens), heads.csv, neurons.html,
neurons.csv and summary.json. In a notebook:

>>> from interpret import run_with_cache
>>> logits, cache = run_with_cache(model, tokens)         # tokens (B, T)
>>> cache["blocks.2.attention"]                           # (B, H, T, T)
"""

import argparse
import contextlib
import io
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from checkpoints.checkpoint import corpus_of, directory_of, load_checkpoint, newest_run
from common import statistics
from common.files import write_bytes, write_json
from common.tables import write_table
from corpus.token_files import load_meta, load_tokens
from corpus.tokenizer import END_OF_TEXT, Tokenizer
from generation.backends import LocalBackend, load_backend
from interpretation.ablation import (
    HEAD_BUDGET,
    NEURON_BUDGET,
    ablate_heads,
    ablate_neurons,
    affordable,
    estimate_neurons,
    rise_with_interval,
)
from interpretation.comparison import FORMAT, compare
from interpretation.heads import HeadReader, induction
from interpretation.hooks import run, run_fast, run_with_cache
from interpretation.neurons import (
    FDR,
    STRONG,
    NeuronReader,
    NeuronTable,
    choose_neurons,
    contexts,
    neuron_cards,
    tabulate,
)
from interpretation.word_classes import KINDS, START, Corpus, pieces_of
from kernels import compile_cpp
from model import GPTNeo
from pages import html
from training.device_and_dtype import choose_dtype
from variants.compressor import Compressor

FEWEST_STORIES = 10  # for an interval
DEFAULT_TOKENS = 32  # of the first story that are drawn where no --text is given


# ---- What is read ----


def validation_texts(directory: Path, n: int) -> list[str]:
    """The first n validation stories of a corpus. Any tokenizer gives them back, so that any model may read them."""
    tokenizer, tokens = Tokenizer(load_meta(directory)["gpt2_ids"]), load_tokens(directory, "val")
    ends = np.flatnonzero(tokens == tokenizer.end_of_text)[:n]
    if len(ends) < FEWEST_STORIES:
        raise ValueError(
            f"{directory}: {len(ends)} validation stories to read; there must be {FEWEST_STORIES} at least"
        )
    return [tokenizer.decode(tokens[start:end]) for start, end in zip([0, *(ends[:-1] + 1)], ends)]


class Reading:
    """A model that reads all stories once: what its heads and neurons do, and their means over the even ones."""

    def __init__(self, model: GPTNeo, corpus: Corpus, with_heads: bool = True):
        self.model, self.corpus, self.neurons = model, corpus, NeuronReader(model, corpus)
        self.heads = HeadReader(model, corpus) if with_heads else None
        self.sums, self.n = {}, 0  # for the means
        device = model.wte.weight.device
        what = "reading" if with_heads else "reading, at random initialisation"
        bar = tqdm(desc=what, total=len(corpus.stories), unit="story", disable=None, delay=1)
        for batch in corpus.batches(range(len(corpus.stories)), device):
            self.neurons.start(batch)
            even = torch.tensor([number % 2 == 0 for number in batch.index], device=device)
            self.averaged = batch.real & even[:, None]
            self.n += self.averaged.sum().item()
            if with_heads:
                self.heads.start(batch)
                run(model, batch.tokens, self.see)
            else:
                with torch.no_grad():
                    run_fast(model, batch.tokens, self.see)
            bar.update(len(batch.index))
        bar.close()

    def see(self, name: str, tensor: torch.Tensor):
        layer, _, part = name.removeprefix("blocks.").partition(".")
        if part == "attention":
            self.heads.add(int(layer), tensor)
        if part == "mlp":
            self.neurons.add(int(layer), tensor)
        if part in ("heads", "mlp"):
            self.sums[name] = self.sums.get(name, 0) + tensor[self.averaged].float().sum(0)

    def means(self, part: str) -> list[torch.Tensor]:
        """Of "heads" (H, D) or "mlp" (4C,) of every layer, over the tokens of the even stories."""
        return [self.sums[f"blocks.{layer}.{part}"] / self.n for layer in range(self.model.config.n_layer)]


def at_random(model: GPTNeo, copy_init: float) -> GPTNeo:
    """The same model before any training. copy_init: how strong copiers its heads started as, 0 if they did not."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        random = GPTNeo(model.config)
        if copy_init:
            random.init_copying(copy_init)
        return random.to(model.wte.weight.device).eval()


def copy_init_of(name: str) -> float:
    """By the config of the run; published models have none."""
    return 0.0 if name.startswith("hf:") else load_checkpoint(name)["train_config"].get("copy_init", 0.0)


# ---- Attention on one text ----


def draw_attention(out: Path, name: str, backend: LocalBackend, ids: list[int], args, rows: list[dict]) -> None:
    """attention.npz, attention.png and attention.html for the tokens `ids`; rows: what is known of every head."""
    model = backend.model
    _, cache = run_with_cache(model, torch.tensor([ids], device=model.wte.weight.device))
    attention = torch.cat([cache[f"blocks.{layer}.attention"] for layer in range(model.config.n_layer)]).cpu().numpy()
    pieces = pieces_of(backend.tokenizer, ids)
    tokens = [END_OF_TEXT if piece == START else piece for piece in pieces]
    file = io.BytesIO()
    np.savez_compressed(file, format=FORMAT, attention=attention, tokens=np.array(tokens), ids=np.array(ids))
    write_bytes(out / "attention.npz", file.getvalue())
    drawn = [
        (layer, head)
        for layer in range(model.config.n_layer)
        for head in range(model.config.n_head)
        if args.layer in (None, layer) and args.head in (None, head)
    ]
    roles = {(row["layer"], row["head"]): row["role"] for row in rows}
    heads = [dict(layer=layer, head=head, role=roles.get((layer, head), "")) for layer, head in drawn]
    maps = np.stack([attention[layer, head] for layer, head in drawn])
    write_bytes(out / "attention.png", html.attention_picture(f"Attention in {name}", maps, pieces, heads))
    write_bytes(out / "attention.html", html.attention_page(name, maps, pieces, heads, rows))


# ---- All of it ----


class Stopwatch:
    """Seconds of each stage."""

    def __init__(self):
        self.seconds = {}

    @contextlib.contextmanager
    def __call__(self, stage: str):
        start = time.perf_counter()
        yield
        self.seconds[stage] = self.seconds.get(stage, 0) + round(time.perf_counter() - start, 1)


def interpret(
    out: Path, name: str, backend: LocalBackend, texts: Sequence[str], args: argparse.Namespace, stage: Stopwatch
) -> None:
    """Writes all files into `out`."""
    model, tokenizer, prefix = backend.model, backend.tokenizer, backend.prefix
    device = model.wte.weight.device
    corpus = Corpus.of(texts, tokenizer, prefix, model.config.block_size)
    dtype = choose_dtype("auto", device)
    fast = partial(torch.autocast, device.type, dtype, enabled=dtype != torch.float32)
    with stage("reading"), fast():
        reading = Reading(model, corpus)
        rows = reading.heads.rows(induction(model, corpus, prefix))
    with stage("reading at random initialisation"), fast():
        random = Reading(at_random(model, copy_init_of(name)), corpus, with_heads=False)
    with stage("preferences of neurons"):
        table, counts = tabulate(reading.neurons, random.neurons, corpus, tokenizer)
    del random
    with stage("ablation"), fast():
        effects = ablation(model, corpus, reading, table, args)
    with stage("contexts of neurons"), fast():
        pieces, found = contexts(model, corpus, tokenizer, reading.neurons, effects.shown)
    for row, rise in zip(rows, effects.heads):
        row |= dict(zip(("rise", "rise_low", "rise_high"), rise))
    summary = dict(format=FORMAT, name=name, parameters=model.num_params(), shape=asdict(model.config))
    summary |= dict(stories=len(corpus.stories), tokens=sum(len(story.tokens) for story in corpus.stories))
    summary |= dict(heads=count_heads(rows), neurons=counts | dict(all=table.auc.size(1)), ablation=effects.facts)
    with stage("pages and tables"):
        write_table(out / "heads.csv", rows)
        write_table(out / "neurons.csv", table.rows(effects.neurons))
        cards = neuron_cards(table, effects.shown, found, effects.neurons)
        facts = f"{len(cards)} of {table.auc.size(1):,} neurons (neurons.csv has all), {len(texts)} validation stories"
        told = tell_neurons(summary)
        write_bytes(out / "neurons.html", html.neurons_page(name, facts, told, KINDS, pieces, cards))
        ids = backend.encode(args.text) if args.text else corpus.stories[0].tokens[:DEFAULT_TOKENS].tolist()
        draw_attention(out, name, backend, ids, args, rows)
    summary |= dict(seconds=stage.seconds)
    write_json(out / "summary.json", summary)
    print("\n".join([*tell_heads(summary, rows), *told]))


@dataclass
class Effects:
    """The rise in loss without a part, in nats per token, with the ends of its 95 % interval."""

    shown: list[int]  # neurons for the page
    heads: list[tuple[float, float, float]]  # layer by layer; none where nothing was ablated
    neurons: dict[int, tuple[float, float, float]]  # those that were ablated exactly
    facts: dict  # for the summary


def ablation(model: GPTNeo, corpus: Corpus, reading: Reading, table: NeuronTable, args: argparse.Namespace) -> Effects:
    """Means are of the even stories, losses of the odd ones. Adds to the table what is estimated of all neurons."""
    odd = range(1, len(corpus.stories), 2)
    n_heads = model.config.n_layer * model.config.n_head
    numbers = affordable(model, corpus, odd, n_heads, HEAD_BUDGET) if args.ablate is None else odd[: args.ablate]
    if not numbers:
        return Effects(choose_neurons(table, args.layer)[2], [], {}, {})
    n_tokens = torch.tensor([len(corpus.stories[number].tokens) for number in numbers])
    whole, without = ablate_heads(model, corpus, numbers, reading.means("heads"))
    heads = list(zip(*rise_with_interval(without.flatten(0, 1), whole, n_tokens)))
    facts = dict(stories=len(numbers), loss=float(whole.sum() / n_tokens.sum()))

    means = reading.means("mlp")
    table.estimates = estimate_neurons(model, corpus, numbers, means).flatten()
    chosen, random, shown = choose_neurons(table, args.layer)
    few = affordable(model, corpus, numbers, len(chosen), NEURON_BUDGET)
    by_layer = [[i % table.width for i in chosen if i // table.width == layer] for layer in range(len(means))]
    whole, without = ablate_neurons(model, corpus, few, means, by_layer)
    neurons = dict(zip(chosen, zip(*rise_with_interval(without, whole, n_tokens[: len(few)]))))
    exact = torch.tensor([neurons[i][0] for i in random])
    estimates = estimate_neurons(model, corpus, few, means).flatten()  # on the same stories
    facts |= dict(neurons=len(chosen), stories_for_neurons=len(few), estimates_checked=len(random))
    facts |= dict(estimates_rank_correlation=statistics.spearman(estimates[random].numpy(), exact.numpy()))
    return Effects(shown, heads, neurons, facts)


def count_heads(rows: list[dict]) -> dict:
    counts = {what: dict(Counter(row[what] for row in rows)) for what in ("role", "kind", "kind_by_correlation")}
    matter = sum(bool(row["rise_low"] > 0) for row in rows) if "rise" in rows[0] else None
    return dict(all=len(rows), matter=matter) | counts


def tell_heads(summary: dict, rows: list[dict]) -> list[str]:
    """What was found, in sentences."""
    heads, ablation = summary["heads"], summary["ablation"]
    roles = ", ".join(f"{n} {role}" for role, n in sorted(heads["role"].items(), key=lambda item: -item[1]))
    positional, earlier = (heads[kind].get("positional", 0) for kind in ("kind", "kind_by_correlation"))
    text = [
        f"{heads['all']} heads, by what clearly gets their attention: {roles}.",
        f"Position, not content, explains most of where {positional} of them look (by the earlier criterion, "
        f"correlation with distance beyond 0.5 either way, it would be {earlier}).",
    ]
    if ablation:
        most = max(rows, key=lambda row: row["rise"])
        text.append(
            f"Without it, the loss (of {ablation['loss']:.3f}, on {ablation['stories']} stories) rises for "
            f"{heads['matter']} of them, with a 95 % interval above 0 (about {heads['all'] / 40:.0f} would by chance); "
            f"most for layer {most['layer']}, head {most['head']} ({most['role']}): {most['rise']:+.4f} "
            f"[{most['rise_low']:.4f}, {most['rise_high']:.4f}]."
        )
    return text


def tell_neurons(summary: dict) -> list[str]:
    neurons, ablation = summary["neurons"], summary["ablation"]
    trained, random = neurons["trained"], neurons["random_init"]
    kinds = ", ".join(f"{kind} {count:,}" for kind, count in trained["by_kind"].items())
    text = [
        f"{trained['strongly']:,} of {neurons['all']:,} neurons strongly prefer a kind of word: {kinds}. At random "
        f"initialisation, {random['strongly']:,} do. Strongly: of a word of the kind and another, they fire more on "
        f"the first in {100 * STRONG:.0f} % of pairs or more.",
        f"However weakly, {trained['preferring']:,} prefer one; at random initialisation, {random['preferring']:,}; "
        f"with kinds shuffled over the {neurons['words']['all']:,} words, "
        f"{np.mean(trained['preferring_shuffled']):.1f} on average. Of what is found, {100 * FDR:.0f} % may be false.",
    ]
    if ablation:
        text.append(
            f"How much the loss rises without a neuron is estimated for all, and measured for {ablation['neurons']}. "
            f"Over {ablation['estimates_checked']} of these, drawn at random, the rank correlation of the two is "
            f"{ablation['estimates_rank_correlation']:.2f}."
        )
    return text


# ---- The command line ----


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "model", nargs="?", help="a run (or checkpoint), or hf:ID-or-directory (default: newest in out/)"
    )
    parser.add_argument("--text", help="what attention is drawn on (default: the beginning of the first story)")
    parser.add_argument("--layer", type=int, help="draw this layer alone, and show all of its neurons")
    parser.add_argument("--head", type=int, help="draw this head alone (of each layer, or of --layer)")
    parser.add_argument("--data", type=Path, help="corpus of the stories (default: that of the run)")
    parser.add_argument("--stories", type=int, default=200, help="validation stories to read; 0: draw --text, no more")
    parser.add_argument(
        "--ablate", type=int, help="on how many of them heads are ablated (default: what takes about a minute); 0: none"
    )
    parser.add_argument("--out", type=Path, help="directory to write to (default: interpret/ in that of the run)")
    parser.add_argument("--compare", nargs="+", type=Path, metavar="RUN", help="runs that were interpreted before")
    args = parser.parse_args()
    for name, ok, what in (
        ("stories", args.stories == 0 or args.stories >= FEWEST_STORIES, f"0, or at least {FEWEST_STORIES}"),
        ("ablate", args.ablate in (None, 0) or args.ablate >= FEWEST_STORIES, f"0, or at least {FEWEST_STORIES}"),
        ("layer", args.layer is None or args.layer >= 0, "0 or more"),
        ("head", args.head is None or args.head >= 0, "0 or more"),
    ):
        if not ok:
            parser.error(f"--{name} must be {what}, not {getattr(args, name)}")
    if args.stories == 0 and not args.text:
        parser.error("--stories 0 draws attention on a --text, which is missing")
    if args.compare and args.model:
        parser.error(f"--compare takes all runs behind it, {args.model} as well")
    return args


def check_backend(name: str, backend: LocalBackend, args: argparse.Namespace) -> None:
    """That what the command line asks for is there in this model."""
    config = backend.model.config
    if isinstance(backend.model, Compressor):
        raise ValueError(f"{name} is a compressor, whose heads look at pairs of tokens; only a GPTNeo can be read")
    for flag, value, n in (("layer", args.layer, config.n_layer), ("head", args.head, config.n_head)):
        if value is not None and value >= n:
            raise ValueError(f"--{flag} must be at most {n - 1} for {name}, not {value}")
    if args.text and len(backend.encode(args.text)) > config.block_size:
        n_tokens = len(backend.encode(args.text))
        raise ValueError(f"--text has {n_tokens} tokens, the context of {name} {config.block_size}; shorten it")


def look(args: argparse.Namespace) -> None:
    if args.compare:
        compare(args.compare)
        return
    name = args.model or str(newest_run())
    if name.startswith("api:"):
        raise ValueError(f"{name}: nobody can look into a model behind an endpoint; take a run or hf:ID-or-directory")
    if name.startswith("hf:") and args.stories and not args.data:
        raise ValueError(f"{name} needs --data, a corpus that prepare.py made; or --stories 0, to draw --text alone")
    backend = load_backend(name)
    check_backend(name, backend, args)
    texts = validation_texts(args.data or corpus_of(name), args.stories) if args.stories else []
    out = args.out or directory_of(name) / "interpret"
    out.mkdir(parents=True, exist_ok=True)
    if texts:
        interpret(out, name, backend, texts, args, Stopwatch())
    else:
        draw_attention(out, name, backend, backend.encode(args.text), args, [])
    pages_made = "attention.html and neurons.html" if texts else "attention.html"
    print(f"Everything is in {out}/; open {pages_made} there in a browser")


def main():
    args = parse_arguments()
    compile_cpp.keep_freed_memory()
    try:
        look(args)
    except KeyboardInterrupt:
        sys.exit("interpret.py: stopped; what was there before still is")
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        sys.exit(f"interpret.py: {where}{error.strerror}; mend that (make room?), then run again")
    except ValueError as error:
        sys.exit(f"interpret.py: {error}")


if __name__ == "__main__":
    main()
