"""
Facts, reasoning, context: prompts with known answers, so no judge is needed. Grammar: pairs of a
right and a wrong sentence.

$ python probe.py out/  # every run below it: out/probe.json, probe.csv, probe.html
$ python probe.py out/demo --model hf:roneneldan/TinyStories-8M  # a run next to a published model
$ python probe.py out/demo --prompts mine.txt  # prompts without answers: greedy continuations
$ python probe.py out/demo --checkpoint all  # every step that train.py --keep_checkpoints kept
$ python probe.py out/ --pairs  # grammar: out/grammar.json, .csv, .png, .svg
$ python probe.py out/ --pairs zorro/  # pairs of BLiMP or Zorro: out/grammar-zorro.json, .csv, .png
$ python probe.py out/a out/b --loss_by_kind  # which tokens cost how much: out/loss_by_kind.html

The paper shows what its models write after prompts for facts, reasoning and context tracking; here
we count right answers. A model is right if the right answer has a higher log-likelihood per byte
than every wrong one (per byte, so that models with different vocabularies can be compared). The
prompts come in groups in which each answer is right equally often, so a model that has favorite
answers and ignores the prompt scores at chance.
"""

import argparse
import itertools
import math
import os
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import numpy as np
from tqdm import tqdm

from nanostories.checkpoints.models import Model, open_model, open_models
from nanostories.cli import (
    Parser,
    UserError,
    existing_file,
    existing_path,
    one_line_errors,
    positive,
)
from nanostories.corpus import instruct_headers
from nanostories.corpus.token_files import load_stories
from nanostories.corpus.word_forms import looks_english
from nanostories.files import common_directory, write_bytes
from nanostories.grading.pairs import (
    GRAMMAR,
    ZORRO_CHANGES,
    pair_tables,
    pairs_figure,
    read_pairs,
)
from nanostories.grading.probes import PROBE_FILES, Probe, read_probes, result_tables
from nanostories.results import save
from nanostories.tables import write_table
from nanostories.text import sentences

SENTENCE_TOKENS = 64  # few sentences are longer
STORIES = 500  # for --loss_by_kind
# Nats per byte: a verdict is "nearly" if the best wrong answer leads by no more than this.
NEARLY = 0.1


def parse_arguments() -> argparse.Namespace:
    parser = Parser(__doc__)
    parser.add_argument(
        "runs", nargs="*", type=existing_path, help="directories; every run below them is probed"
    )
    parser.add_shared("model", action="append", default=[])
    every = (
        "weights of a run: best, last, a step that train.py --keep_checkpoints kept, or all of"
        " these"
    )
    parser.add_shared("checkpoint", metavar="best|last|STEP|all", help=every)
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument(
        "--prompts",
        nargs="+",
        type=existing_file,
        default=[],
        metavar="FILE",
        help="instead of our three sets: plain prompts, as for sample.py, which are only continued,"
        " or prompts with answers, as in prompts/facts.jsonl; writes probe-FILE.csv",
    )
    instead.add_argument(
        "--pairs",
        nargs="?",
        type=existing_path,
        const=GRAMMAR,
        metavar="FILE_OR_FOLDER",
        help="grammar: is the right one of two sentences likelier? Ours (prompts/grammar.jsonl), or"
        " .jsonl files as in BLiMP, or .txt files as in Zorro",
    )
    instead.add_argument(
        "--loss_by_kind",
        action="store_true",
        help="where the loss goes: to names, function words, ends of stories …",
    )
    parser.add_shared(
        "data", help="for --loss_by_kind: the corpus to read (default: the one of the runs)"
    )
    parser.add_argument(
        "--max_new_tokens",
        type=positive,
        default=SENTENCE_TOKENS,
        help="limit of the greedy continuations, which end with their sentence (default: 64)",
    )
    parser.add_shared("out", help="directory to write to (default: the one that holds the runs)")
    args = parser.parse_args()
    if args.pairs:
        args.pairs = args.pairs.resolve()  # as GRAMMAR is
    return args


def find_models(args: argparse.Namespace) -> dict[str, Model]:
    """By their names in tables."""
    from nanostories.checkpoints.checkpoint import kept_checkpoints, runs_below

    names = []
    for directory in args.runs:
        runs = [str(run) for run in runs_below(directory)]
        if args.checkpoint == "all":  # without any, the first is named in an error
            runs = [run for run in runs if kept_checkpoints(run)] or runs[:1]
        if not runs:
            raise UserError(
                f"{directory}: no run below it; train one with `python train.py`, or name a --model"
            )
        names += runs
    models = {}
    for name in names + args.model:
        for model in open_models(name, args.checkpoint):
            models[model.label(args.out)] = model
    return models


def read_by_each(
    models: dict[str, Model], readings: Collection[tuple[str, str]], ends: bool
) -> Iterator[tuple]:
    """Yields (model in tables, its backend, {(beginning, text): log-likelihoods of the text's
    tokens}). With `ends`, the end of the story counts as a token."""
    from nanostories.generation.backends import load_backend
    from nanostories.grading.likelihood_judge import load_reader, read_texts

    for name, model in models.items():
        # without readings, prompts are only continued, which a model behind an API can do, too
        backend = load_reader(model) if readings else load_backend(model)
        with tqdm(desc=f"{name} reads", total=len(readings), disable=None, delay=1) as bar:
            nats = read_texts(name, backend, readings, ends, bar) if readings else {}
        yield name, backend, nats


# ---- Prompts ----
def compare_answers(args: argparse.Namespace, models: dict[str, Model], warning: str) -> tuple:
    """(name of the result, tables, figure)"""
    from nanostories.pages.answers import answers_page

    probes = []
    for path in args.prompts or PROBE_FILES:
        probes += read_probes(path)
    readings = []
    for probe in probes:
        readings += [(probe.prompt, answer) for answer in probe.answers]
    rows = [probe.row() for probe in probes]
    right = {}
    for name, backend, nats in read_by_each(models, readings, ends=False):
        greedy = continuations(name, backend, probes, args.max_new_tokens)
        right[name] = []
        for row, probe in zip(rows, probes):
            answer = graded(probe, nats) | {"greedy": greedy.get(probe.prompt, "")}
            row |= {f"{name} {column}": cell for column, cell in answer.items()}
            right[name].append(answer["verdict"] == "right")
    stem = "-".join(["probe", *(path.stem for path in args.prompts)])
    write_table(args.out / f"{stem}.csv", rows)
    write_bytes(args.out / f"{stem}.html", answers_page(rows, warning))
    for row in rows:
        if not row["right"]:
            print(f"\n{row['prompt']}")
            for name in models:
                print(f"  {name}:{row[f'{name} greedy']}")
    return stem, result_tables(probes, right), None


def continuations(
    name: str, backend, probes: Sequence[Probe], max_new_tokens: int
) -> dict[str, str]:
    """{prompt: its greedy continuation, to the end of its sentence}"""
    from nanostories.generation.prompts import Sampling

    sampling = Sampling(temperature=0, max_new_tokens=max_new_tokens)
    prompts = dict.fromkeys(probe.prompt for probe in probes)
    wanted = {(i, 0): prompt for i, prompt in enumerate(prompts)}
    found = {}
    texts = backend.complete(wanted, sampling)
    for key, text, _ in tqdm(texts, f"{name} writes", len(wanted), disable=None, delay=1):
        prompt = wanted[key]
        found[prompt] = "".join(sentences(text, prompt)[:1])
    n_failed = len(wanted) - len(found)  # requests to an API
    if n_failed:
        reasons = "; ".join(map(str, backend.failures.values()))
        print(f"{name}: {n_failed} requests failed: {reasons}", file=sys.stderr)
    return found


def graded(probe: Probe, nats: dict) -> dict:
    """A model's columns of probe.csv: the verdict, the rank of the right answer, its probability,
    its lead over the best wrong one in nats per byte; all are empty if the probe has no answers.
    nats: {(prompt, answer): log-likelihoods of its tokens}"""
    if not probe.answers:
        return dict.fromkeys(("verdict", "rank", "p", "lead"), "")
    sums = {text: nats[probe.prompt, text].sum() for text in probe.answers}
    right, *wrong = (total / len(text.encode()) for text, total in sums.items())
    lead = right - max(wrong)
    verdict = "nearly" if lead >= -NEARLY else "wrong"
    if lead > 0:
        verdict = "right"
    rank = 1 + sum(right <= likelihood for likelihood in wrong)
    return {
        "verdict": verdict,
        "rank": rank,
        "p": math.exp(sums[probe.answers[0]]),
        "lead": f"{lead:.4f}",
    }


# ---- Pairs of sentences ----
def compare_pairs(args: argparse.Namespace, models: dict[str, Model]) -> tuple:
    """(name of the result, tables, figure)"""
    pairs = read_pairs(args.pairs)
    texts = {pair.right for pair in pairs} | {pair.wrong for pair in pairs}
    rows = [pair._asdict() for pair in pairs]
    leads = {}
    for name, _, nats in read_by_each(models, [("", text) for text in texts], ends=False):
        own = [nats["", pair.right].sum() - nats["", pair.wrong].sum() for pair in pairs]
        leads[name] = np.array(own)
        for row, lead in zip(rows, own):
            row[name] = f"{lead:.4f}"
    tables = pair_tables(pairs, leads)
    stem = "grammar"
    if args.pairs != GRAMMAR:
        stem = f"grammar-{args.pairs.stem}"
        tables[0].about += f" {ZORRO_CHANGES}"
    write_table(args.out / f"{stem}.csv", rows)
    return stem, tables, pairs_figure(tables[0])


# ---- Where the loss goes ----
def compare_losses(args: argparse.Namespace, models: dict[str, Model]) -> tuple:
    """(name of the result, tables, figure)"""
    from nanostories.interpretation.token_kinds import loss_figure, loss_tables, token_kinds
    from nanostories.pages.shaded_stories import shaded_stories

    corpora = {args.data or model.evaluation_corpus() for model in models.values()}
    if len(corpora) > 1:
        raise UserError("these models learned different stories; name those to read with --data")
    corpus = corpora.pop()
    readings = []  # a header is read, but does not count
    for text in itertools.islice(load_stories(corpus, "val")[1], STORIES):
        headed = instruct_headers.read(text)
        readings.append((headed.header, f"\n\n{headed.story}") if headed else ("", text))
    stories = [story for _, story in readings]
    losses = {}
    for name, backend, nats in read_by_each(models, readings, ends=True):
        losses[name] = [-nats[reading] for reading in readings]
        tokenizer = backend.tokenizer
    kinds = token_kinds(stories, tokenizer)
    tables = loss_tables(kinds, losses)
    tables[0].about = f"{len(stories)} validation stories of {corpus}. {tables[0].about}"
    if len(losses) > 1:
        page = shaded_stories(stories, kinds, losses, tokenizer)
        write_bytes(args.out / "loss_by_kind.html", page)
    return "loss_by_kind", tables, loss_figure(*tables[:2], list(losses))


# ---- The command ----
def compare_models(args: argparse.Namespace) -> None:
    models = find_models(args)
    texts_are_ours = not args.prompts and not args.loss_by_kind and args.pairs in (None, GRAMMAR)
    warnings = warnings_of(models, texts_are_ours)
    if args.pairs:
        stem, tables, figure = compare_pairs(args, models)
    elif args.loss_by_kind:
        stem, tables, figure = compare_losses(args, models)
    else:
        stem, tables, figure = compare_answers(args, models, "; ".join(warnings))
    path = args.out / f"{stem}.json"
    sources = itertools.chain.from_iterable(model.files for model in models.values())
    save(path, "probe.py", tables, warnings, sources, figure)
    print(f"\nwrote {path}, and {stem}.* beside it; next: python report.py {args.out}")


def warnings_of(models: dict[str, Model], prompts_are_ours: bool) -> list[str]:
    """Of models that are partly trained, or whose training stories are unlike our prompts."""
    from nanostories.training.run_directory import warn_of_partly_trained

    warnings = warn_of_partly_trained({name: model.directory for name, model in models.items()})
    for name, model in models.items():
        if not prompts_are_ours or not model.corpus:
            continue
        meta, stories = load_stories(model.corpus, "val")
        trait = "" if looks_english(stories) else "not English"
        if "headers" in meta:
            trait = "under headers"
        if trait:
            warnings.append(f"{name} was trained on other text than these prompts: {trait}")
    return warnings


def main():
    args = parse_arguments()
    with one_line_errors("probe.py", interrupted="nothing was written"):
        if not args.runs and not args.model:
            args.runs = [open_model().directory]
        places = args.runs or [open_model(args.model[0]).directory]
        if not args.out:
            args.out = Path(os.path.relpath(common_directory(places)))
        compare_models(args)


if __name__ == "__main__":
    main()
