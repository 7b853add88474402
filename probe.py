"""
Facts, reasoning, context: prompts with known answers, so no judge is needed.

$ python probe.py out/  # every run below it: out/probe.csv, out/probe.html
$ python probe.py out/demo --model hf:roneneldan/TinyStories-8M  # a run next to a published model
$ python probe.py out/demo --prompts mine.txt  # prompts without answers: greedy continuations
$ python probe.py out/demo --checkpoint all  # every step that train.py --keep_checkpoints kept
$ python probe.py out/demo --prompts mine.txt --mark  # mark them yourself: right, nearly, or wrong

The paper shows what its models write after prompts for facts, reasoning and context tracking; here
we count right answers. A model is right if the right answer has a higher log-likelihood per byte
than every wrong one (per byte, so that models with different vocabularies can be compared). The
prompts come in groups in which each answer is right equally often, so a model that has favorite
answers and ignores the prompt scores at chance.
"""

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from nanostories.cli import (
    Parser,
    UserError,
    existing_file,
    existing_path,
    one_line_errors,
    positive,
)
from nanostories.corpus.token_files import load_stories
from nanostories.corpus.word_forms import looks_english
from nanostories.files import write_bytes
from nanostories.grading.probes import SETS, Probe, apply_marks, read_probes, shares_text
from nanostories.tables import print_and_save, write_table

NEARLY = (
    0.1  # nats per byte: a verdict is "nearly" if the best wrong answer leads by no more than this
)


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
    prompts = (
        "instead of our three sets: plain prompts, as for sample.py, which are only continued, or"
        " prompts"
    )
    prompts += " with answers, as in prompts/facts.jsonl; writes probe-FILE.csv"
    parser.add_argument(
        "--prompts", nargs="+", type=existing_file, default=[], metavar="FILE", help=prompts
    )
    mark = (
        "with plain --prompts: then mark the completions as right, nearly or wrong; kept in"
        " marks.csv"
    )
    parser.add_argument("--mark", action="store_true", help=mark)
    parser.add_argument(
        "--max_new_tokens", type=positive, default=16, help="length of the greedy continuations"
    )
    parser.add_shared("out", help="directory to write to (default: the first one given)")
    args = parser.parse_args()
    if args.mark and not args.prompts:
        parser.error("--mark is for plain --prompts; our three sets have known answers")
    return args


def find_models(args: argparse.Namespace) -> list[str]:
    from nanostories.checkpoints.checkpoint import (  # here, as torch takes seconds
        checkpoint_paths,
        kept_checkpoints,
        runs_below,
    )

    names = []
    for directory in args.runs:
        runs = [str(run) for run in runs_below(directory)]
        if args.checkpoint == "all":
            runs = [run for run in runs if kept_checkpoints(run)] or runs[:1]
        if not runs:
            raise UserError(
                f"{directory}: no run below it; train one with `python train.py`, or name a --model"
            )
        names += runs
    return list(
        dict.fromkeys(
            path for name in names + args.model for path in checkpoint_paths(name, args.checkpoint)
        )
    )


def answer(name: str, probes: Sequence[Probe], max_new_tokens: int, bar: tqdm) -> list[dict]:
    """For each probe, this model's columns of probe.csv: its verdict; rank, probability and lead of
    the right answer; its own continuation."""
    from nanostories.checkpoints.models import open_model
    from nanostories.generation.backends import LocalBackend, load_backend
    from nanostories.generation.prompts import Sampling
    from nanostories.grading.likelihood_judge import read_texts

    backend = load_backend(open_model(name))
    texts = [(probe.prompt, answer) for probe in probes for answer in probe.answers]
    if texts and not isinstance(backend, LocalBackend):
        raise UserError(
            f"{name}: an endpoint gives no log-likelihoods of answers; give it plain --prompts"
        )
    nats = read_texts(name, backend, texts, ends=False, bar=bar) if texts else {}
    prompts = list(dict.fromkeys(probe.prompt for probe in probes))
    sampling, greedy = Sampling(temperature=0, max_new_tokens=max_new_tokens), {}
    for i, text, _ in backend.complete(prompts, [(i, 0) for i in range(len(prompts))], sampling):
        greedy[prompts[i]] = text
        bar.update()
    if name.startswith("api:"):
        backend.raise_failures()
    columns = []
    for probe in probes:
        verdict = rank = p = lead = ""
        if probe.answers:
            sums = [nats[probe.prompt, text].sum().item() for text in probe.answers]
            right, *wrong = (total / len(text.encode()) for total, text in zip(sums, probe.answers))
            verdict = (
                "right"
                if right > max(wrong)
                else "nearly"
                if right >= max(wrong) - NEARLY
                else "wrong"
            )
            rank, p, lead = (
                1 + sum(right <= each for each in wrong),
                math.exp(sums[0]),
                f"{right - max(wrong):.4f}",
            )
        cells = dict(verdict=verdict, rank=rank, p=p, lead=lead, greedy=greedy[probe.prompt])
        columns.append({f"{name} {column}": value for column, value in cells.items()})
    return columns


def probe_all(args: argparse.Namespace) -> tuple[Path, list[dict], str]:
    """The table to write, its rows, and warnings, or ""."""
    from nanostories.training.run_directory import partly_trained

    names = find_models(args)
    sets = {path: str(path) for path in args.prompts} or {path: path.stem for path in SETS}
    probes = [probe for path, name in sets.items() for probe in read_probes(path, name)]
    path = args.out / ("-".join(["probe", *(path.stem for path in args.prompts)]) + ".csv")
    rows = [probe.row() for probe in probes]
    n_texts = sum(1 + len(probe.answers) for probe in probes)
    with tqdm(
        desc="probing", total=len(names) * n_texts, unit="text", disable=None, delay=1
    ) as bar:
        for model in names:
            rows = [
                row | own for row, own in zip(rows, answer(model, probes, args.max_new_tokens, bar))
            ]
    runs = [] if args.prompts else [name for name in names if Path(name).exists()]
    unlike = [f"{run} ({trait})" for run in runs if (trait := unlike_prompts(run))]
    warnings = [f"WARNING trained on other text than these prompts: {', '.join(unlike)}"] * bool(
        unlike
    )
    if stopped := [name + note for name in names if (note := partly_trained(Path(name)))]:
        warnings.append(f"WARNING stopped, or still being trained: {', '.join(stopped)}")
    return path, rows, "\n\n".join(warnings)


def unlike_prompts(run: str) -> str:
    """How its training stories differ from our prompts; "" if they do not, or are gone."""
    from nanostories.checkpoints.checkpoint import find_training_corpus, load_checkpoint

    if not (corpus := find_training_corpus(load_checkpoint(run))):
        return ""
    meta, stories = load_stories(corpus, "val")
    return "under headers" if "headers" in meta else "" if looks_english(stories) else "not English"


def write_results(path: Path, rows: list[dict], warning: str, ask: bool) -> None:
    """The rows, the table, and the page that shows the models' answers; ask: for the marks that are
    missing."""
    from nanostories.pages.answers import answers_page

    path.parent.mkdir(parents=True, exist_ok=True)
    unmarked = apply_marks(path.with_name("marks.csv"), rows, ask)
    write_table(path, rows)
    write_bytes(path.with_suffix(".html"), answers_page(rows, warning))
    if text := shares_text(rows):
        print_and_save(path.with_suffix(".md"), "\n\n".join(filter(None, [text, warning])))
    next_step = f"mark {unmarked} completions: the same command with --mark"
    print(
        f"wrote {path} and {path.stem}.html; next:"
        f" {next_step if unmarked else f'python report.py {path.parent}'}"
    )


def main():
    args = parse_arguments()
    sys.stdout.reconfigure(errors="replace")
    with one_line_errors("probe.py", interrupted="marks are kept; results are written at the end"):
        from nanostories.checkpoints.checkpoint import (  # here, as torch takes seconds
            directory_of,
            newest_run,
        )

        if not args.runs and not args.model:
            args.runs = [newest_run()]
        args.out = args.out or (args.runs or [directory_of(args.model[0])])[0]
        write_results(*probe_all(args), args.mark)


if __name__ == "__main__":
    main()
