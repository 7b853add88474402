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
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
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
from nanostories.corpus.tokenizer import Tokenizer
from nanostories.corpus.word_forms import looks_english
from nanostories.files import write_bytes
from nanostories.grading.pairs import (
    GRAMMAR,
    ZORRO_CHANGES,
    files_of,
    pair_tables,
    pairs_figure,
    read_pairs,
)
from nanostories.grading.probes import PROBE_FILES, Probe, read_probes, result_tables
from nanostories.results import save
from nanostories.tables import write_table
from nanostories.text import sentences

TEXTS_AT_ONCE = 512
SENTENCE_TOKENS = 64  # few sentences are longer
STORIES = 500  # for --loss_by_kind
# Nats per byte: a verdict is "nearly" if the best wrong answer leads by no more than this.
NEARLY = 0.1


@dataclass
class Answer:
    """A model's columns of probe.csv; all but the last are empty if the probe has no answers."""

    verdict: str = ""  # right, nearly or wrong
    rank: int | str = ""  # of the right answer
    p: float | str = ""  # its probability
    lead: str = ""  # over the best wrong answer, in nats per byte
    greedy: str = ""  # the model's own continuation, to the end of its sentence


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
    return parser.parse_args()


def find_models(args: argparse.Namespace) -> list[Model]:
    from nanostories.checkpoints.checkpoint import kept_checkpoints, runs_below

    names = []
    for directory in args.runs:
        runs = [str(run) for run in runs_below(directory)]
        if args.checkpoint == "all":
            # without any, the first is named in an error
            runs = [run for run in runs if kept_checkpoints(run)] or runs[:1]
        if not runs:
            raise UserError(
                f"{directory}: no run below it; train one with `python train.py`, or name a --model"
            )
        names += runs
    models = {}
    for name in names + args.model:
        models |= {model.name: model for model in open_models(name, args.checkpoint)}
    return list(models.values())


def answers_of_model(
    model: Model, name: str, probes: Sequence[Probe], max_new_tokens: int, bar: tqdm
) -> list[Answer]:
    from nanostories.generation.backends import load_backend
    from nanostories.grading.likelihood_judge import read_texts

    texts = []
    for probe in probes:
        texts += [(probe.prompt, answer) for answer in probe.answers]
    if texts:
        require_likelihoods(model)
    backend = load_backend(model)
    nats = read_texts(name, backend, texts, ends=False, bar=bar) if texts else {}
    greedy = continuations(backend, probes, max_new_tokens, bar)
    if model.kind == "api" and backend.failures:
        reasons = "; ".join(map(str, backend.failures.values()))
        print(f"{name}: {len(backend.failures)} requests failed: {reasons}", file=sys.stderr)
    answers = []
    for probe in probes:
        found = graded(probe, nats) if probe.answers else Answer()
        found.greedy = greedy.get(probe.prompt, "")
        answers.append(found)
    return answers


def continuations(
    backend, probes: Sequence[Probe], max_new_tokens: int, bar: tqdm
) -> dict[str, str]:
    """{prompt: its greedy continuation, to the end of its sentence}"""
    from nanostories.generation.prompts import Sampling

    prompts = list(dict.fromkeys(probe.prompt for probe in probes))
    sampling = Sampling(temperature=0, max_new_tokens=max_new_tokens)
    wanted = {(i, 0): prompt for i, prompt in enumerate(prompts)}
    found = {}
    for key, text, _ in backend.complete(wanted, sampling):
        prompt = wanted[key]
        found[prompt] = "".join(sentences(text, prompt)[:1])
        bar.update()
    return found


def graded(probe: Probe, nats: dict) -> Answer:
    """nats: {(prompt, answer): log-likelihoods of its tokens}"""
    sums = [nats[probe.prompt, text].sum().item() for text in probe.answers]
    n_bytes = [len(text.encode()) for text in probe.answers]
    right, *wrong = (total / n for total, n in zip(sums, n_bytes))
    lead = right - max(wrong)
    rank = 1 + sum(right <= likelihood for likelihood in wrong)
    return Answer(verdict_of(lead), rank, math.exp(sums[0]), f"{lead:.4f}")


def require_likelihoods(model: Model) -> None:
    if model.kind == "api":
        raise UserError(
            f"{model.name}: an endpoint gives no log-likelihoods; give it plain --prompts"
        )


def verdict_of(lead: float) -> str:
    """lead: of the right answer over the best wrong one, in nats per byte"""
    if lead > 0:
        return "right"
    return "nearly" if lead >= -NEARLY else "wrong"


def probe_all(args: argparse.Namespace) -> None:
    from nanostories.pages.answers import answers_page

    models = {model.label(args.out): model for model in find_models(args)}
    sets = {path: str(path) for path in args.prompts} or {path: path.stem for path in PROBE_FILES}
    probes = []
    for path, name in sets.items():
        probes += read_probes(path, name)
    rows = [probe.row() for probe in probes]
    n_texts = sum(1 + len(probe.answers) for probe in probes)
    right = {}
    total = len(models) * n_texts
    with tqdm(desc="probing", total=total, unit="text", disable=None, delay=1) as bar:
        for name, model in models.items():
            answers = answers_of_model(model, name, probes, args.max_new_tokens, bar)
            right[name] = [found.verdict == "right" for found in answers]
            for row, found in zip(rows, answers):
                row |= {f"{name} {column}": cell for column, cell in vars(found).items()}
    warnings = warnings_of(models, prompts_are_ours=not args.prompts)
    stem = "-".join(["probe", *(path.stem for path in args.prompts)])
    path = args.out / f"{stem}.json"
    write_table(path.with_suffix(".csv"), rows)
    write_bytes(path.with_suffix(".html"), answers_page(rows, "; ".join(warnings)))
    sources = []
    for model in models.values():
        sources += model.files
    save(path, "probe.py", result_tables(probes, right), warnings, sources)
    print_continuations(rows, list(models))
    wrote = f"wrote {path}, {stem}.csv and {stem}.html"
    print(f"{wrote}; next: open {stem}.html, or python report.py {path.parent}")


def print_continuations(rows: Sequence[dict], models: Sequence[str]) -> None:
    """Of prompts without answers."""
    for row in rows:
        if not row["right"]:
            print(f"\n{row['prompt']}")
            for name in models:
                print(f"  {name}:{row[f'{name} greedy']}")


def read_by_all(
    args: argparse.Namespace,
    models: list[Model],
    readings: Collection[tuple[str, str]],
    ends: bool,
) -> tuple[dict, Tokenizer]:
    """({model in tables: {(beginning, text): (tokens,) log-likelihoods of the text's}}, the
    tokenizer of the last one). With `ends`, the end of the story counts as a token."""
    from nanostories.generation.backends import load_backend
    from nanostories.grading.likelihood_judge import read_texts

    found = {}
    total = len(models) * len(readings)
    with tqdm(desc="reading", total=total, unit="text", disable=None, delay=1) as bar:
        for model in models:
            require_likelihoods(model)
            backend = load_backend(model, batch_size=TEXTS_AT_ONCE)
            name = model.label(args.out)
            nats = read_texts(name, backend, readings, ends, bar)
            found[name] = {reading: own.numpy() for reading, own in nats.items()}
    return found, backend.tokenizer


def compare_pairs(args: argparse.Namespace, models: list[Model]) -> tuple:
    """(name of the result, tables, figure)"""
    pairs = read_pairs(args.pairs)
    texts = {pair.right for pair in pairs} | {pair.wrong for pair in pairs}
    found, _ = read_by_all(args, models, [("", text) for text in texts], ends=False)
    rows = [pair._asdict() for pair in pairs]
    leads = {}
    for name, nats in found.items():
        own = [nats["", pair.right].sum() - nats["", pair.wrong].sum() for pair in pairs]
        leads[name] = np.array(own)
        for row, lead in zip(rows, own):
            row[name] = f"{lead:.4f}"
    tables = pair_tables(pairs, leads)
    if any(file.suffix == ".txt" for file in files_of(args.pairs)):
        tables[0].about += f" {ZORRO_CHANGES}"
    stem = "grammar"
    if args.pairs != GRAMMAR:
        stem = f"grammar-{args.pairs.resolve().stem}"
    write_table(args.out / f"{stem}.csv", rows)
    return stem, tables, pairs_figure(tables[0])


def compare_losses(args: argparse.Namespace, models: list[Model]) -> tuple:
    """(name of the result, tables, figure)"""
    from nanostories.interpretation.token_kinds import loss_figure, loss_tables, token_kinds
    from nanostories.pages.shaded_stories import shaded_stories

    corpora = {args.data or model.evaluation_corpus() for model in models}
    if len(corpora) > 1:
        raise UserError("these models learned different stories; name those to read with --data")
    corpus = corpora.pop()
    readings = []  # a header is read, but does not count
    for text in itertools.islice(load_stories(corpus, "val")[1], STORIES):
        headed = instruct_headers.read(text)
        readings.append((headed.header, f"\n\n{headed.story}") if headed else ("", text))
    stories = [story for _, story in readings]
    found, tokenizer = read_by_all(args, models, readings, ends=True)
    losses = {}
    for name, nats in found.items():
        losses[name] = [-nats[reading] for reading in readings]
    kinds = token_kinds(stories, tokenizer)
    tables = loss_tables(kinds, losses)
    tables[0].about = f"{len(stories)} validation stories of {corpus}. {tables[0].about}"
    if len(losses) > 1:
        page = shaded_stories(stories, kinds, losses, tokenizer)
        write_bytes(args.out / "loss_by_kind.html", page)
    return "loss_by_kind", tables, loss_figure(*tables[:2], list(losses))


def compare_models(args: argparse.Namespace) -> None:
    compare = compare_pairs if args.pairs else compare_losses
    models = find_models(args)
    stem, tables, figure = compare(args, models)
    path = args.out / f"{stem}.json"
    sources = itertools.chain.from_iterable(model.files for model in models)
    by_name = {model.label(args.out): model for model in models}
    warnings = warnings_of(by_name, prompts_are_ours=args.pairs == GRAMMAR)
    save(path, "probe.py", tables, warnings, sources, figure)
    others = [".png", ".svg"]
    if args.pairs:
        others.append(".csv")
    if stem == "loss_by_kind" and len(models) > 1:
        others.append(".html")
    print(f"\nwrote {path}, {', '.join(others)}; next: python report.py {args.out}")


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


def directory_of(args: argparse.Namespace) -> Path:
    """That of the results: the run, or the directory of the first of several."""
    if not args.runs:
        return open_model(args.model[0]).directory
    return args.runs[0].parent if len(args.runs) > 1 else args.runs[0]


def main():
    args = parse_arguments()
    with one_line_errors("probe.py", interrupted="nothing was written"):
        if not args.runs and not args.model:
            args.runs = [open_model().directory]
        if not args.out:
            args.out = directory_of(args)
        if args.pairs or args.loss_by_kind:
            compare_models(args)
        else:
            probe_all(args)


if __name__ == "__main__":
    main()
