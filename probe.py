"""
What a model knows, can infer and can keep track of: prompts with known answers, so no judge is needed.

$ python probe.py out/                                              # every run below it: out/probe.csv, out/probe.html
$ python probe.py out/demo --model hf:roneneldan/TinyStories-8M     # a run next to a published model
$ python probe.py out/demo --prompts mine.txt                       # prompts without answers: greedy continuations
$ python probe.py out/demo --checkpoint all                         # every step that train.py --keep_checkpoints kept
$ python probe.py out/demo --mark                                   # mark them yourself: right, nearly, or wrong
$ python probe.py out/demo --sentence_order                         # is a true story likelier than a shuffled one?

The paper shows what its models write after prompts for facts, reasoning and context tracking; here we count right
answers. A model is right if the right answer has a higher log-likelihood per byte than every wrong one (per byte, so
that models with different vocabularies can be compared). The prompts come in groups in which each answer is right
equally often, so a model that has favorite answers and ignores the prompt scores at chance.
"""

import argparse
import sys
from pathlib import Path

from tqdm import tqdm

from checkpoints.checkpoint import at_checkpoints, directory_of, kept_checkpoints, newest_run, runs_below
from common.cli import Parser, one_line_errors
from common.files import lock, write_bytes
from common.tables import read_table, table_text, write_table
from generation.backends import Sampling, load_backend
from grading import human_marks, sentence_order
from grading.human_marks import marks_text
from grading.probe_answers import SETS, answer_probes, models_in, read_probes, scores_text, tabulate
from pages.sections_stories import answers_page

PLAIN = "probe-prompts.csv"


def parse_arguments() -> argparse.Namespace:
    parser = Parser(__doc__)
    parser.add_argument("runs", nargs="*", type=Path, help="directories; every run below them is probed")
    parser.add_shared("model", action="append", default=[])
    every = "weights of a run: lowest validation loss, last, a step that train.py --keep_checkpoints kept, or all,"
    every += " each with a probe.csv next to its weights"
    parser.add_shared("checkpoint", metavar="best|last|STEP|all", help=every)
    what = parser.add_mutually_exclusive_group()
    prompts = "instead of our three sets: plain prompts, as for sample.py, which are only continued, or prompts"
    prompts += " with answers, as in prompts/facts.jsonl"
    what.add_argument("--prompts", nargs="+", type=Path, metavar="FILE", help=prompts)
    order = "instead, measure how often each run finds a true story likelier than with its sentences shuffled or two"
    order += f" of them swapped; writes {sentence_order.FILE} in each run"
    what.add_argument("--sentence_order", action="store_true", help=order)
    mark = "instead, mark the completions in probe-prompts.csv as right, nearly or wrong; kept in marks.csv"
    what.add_argument("--mark", action="store_true", help=mark)
    parser.add_argument("--max_new_tokens", type=int, default=16, help="length of the greedy continuations")
    parser.add_shared("out", help="directory to write to (default: the first one given)")
    parser.add_shared("markdown")
    args = parser.parse_args()
    parser.require(args, "max_new_tokens", args.max_new_tokens >= 1, "at least 1")
    return args


def find_models(args: argparse.Namespace) -> list[str]:
    names = []
    for directory in args.runs:
        runs = [str(run) for run in runs_below(directory)]
        if args.checkpoint == "all":
            runs = [run for run in runs if kept_checkpoints(run)] or runs[:1]
        if not runs:
            raise ValueError(f"{directory}: no run below it; train one with `python train.py`, or name a --model")
        names += runs
    names = names + args.model or [str(newest_run())]
    return list(dict.fromkeys(found for name in names for found in at_checkpoints(name, args.checkpoint)))


def probe_all(args: argparse.Namespace, names: list[str]) -> int:
    """Returns the exit status: 1 if a model had to be left out."""
    files = {str(path): path for path in args.prompts} if args.prompts else {path.stem: path for path in SETS}
    probes = [probe for name, path in files.items() for probe in read_probes(path, name)]
    sampling, results = Sampling(temperature=0, max_new_tokens=args.max_new_tokens), {}
    n_texts = len(names) * sum(1 + len(probe.answers) for probe in probes)
    with tqdm(desc="probing", total=n_texts, unit="text", disable=None, delay=1) as bar:
        for name in names:
            try:
                results[name] = answer_probes(load_backend(name), probes, sampling, bar)
            except ValueError as error:
                if len(names) == 1:
                    raise
                bar.write(f"probe.py: {name} is left out: {error}", file=sys.stderr)
    if not results:
        raise ValueError("no model is left; nothing was written")
    file = PLAIN if args.prompts else "probe.csv"
    if args.checkpoint == "all" and not args.out:
        for name, result in results.items():
            write_results(directory_of(name) / file, tabulate(probes, {name: result}))
        print(scores_text(tabulate(probes, results), args.markdown))
        print(f"wrote {file} next to the weights of each; to see them over training: python train.py --plot RUN ...")
        return int(len(results) < len(names))
    directory = output_directory(args, names)
    directory.mkdir(parents=True, exist_ok=True)
    rows = tabulate(probes, results)
    n_unmarked = update_marks(directory, rows, args) if args.prompts else 0
    next_step = "open the page to see what each model says"
    if n_unmarked:
        next_step += f", and mark {n_unmarked} completions: python probe.py {directory} --mark"
    write_results(directory / file, rows)
    print_results(directory / file, rows, next_step, args.markdown)
    return int(len(results) < len(names))


def output_directory(args: argparse.Namespace, names: list[str]) -> Path:
    return args.out or (args.runs[0] if args.runs else directory_of(names[0]))


def write_results(path: Path, rows: list[dict]) -> None:
    """The table, and the page that shows it."""
    write_table(path, rows)
    write_bytes(path.with_suffix(".html"), answers_page(rows, models_in(rows)))


def print_results(path: Path, rows: list[dict], next_step: str, markdown: bool) -> None:
    for text in filter(None, (scores_text(rows, markdown), marks_text(rows, markdown))):
        print(text + "\n" * markdown)
    print(f"wrote {path} and {path.stem}.html; next: {next_step}")


def update_marks(directory: Path, rows: list[dict], args: argparse.Namespace) -> int:
    """Adds the prompts without answers to marks.csv, asks for marks if --mark is given, and fills in the verdicts.
    Returns how many are still unmarked."""
    path, pairs = directory / human_marks.FILE, human_marks.pairs_in(rows)
    with lock(directory, ".marks.lock", "another probe.py is using its marks; let it finish", keep=False):
        known = human_marks.read_marks(path)
        if new := [pair for pair in pairs if pair not in known]:
            known |= dict.fromkeys(new, "")
            human_marks.write_marks(path, known)
        if args.mark:
            human_marks.ask_for_marks(path, pairs, known)
    human_marks.apply_marks(rows, known)
    return sum(not known[pair] for pair in pairs)


def mark_all(args: argparse.Namespace) -> int:
    directory = output_directory(args, [] if args.out or args.runs else [str(newest_run())])
    path = directory / PLAIN
    if not path.exists():
        raise ValueError(f"{path}: not found; first have models continue prompts: python probe.py RUN --prompts FILE")
    rows = read_table(path)
    n_unmarked = update_marks(directory, rows, args)
    next_step = f"{n_unmarked} are not marked yet: run the same command to continue" if n_unmarked else "open the page"
    write_results(path, rows)
    next_step += f" (the marks are in {directory / human_marks.FILE}; correct them there)"
    print_results(path, rows, next_step, args.markdown)
    return 0


def compare_orders(args: argparse.Namespace, names: list[str]) -> int:
    rows = []
    for name in names:
        if name.startswith(("hf:", "api:")):
            raise ValueError(f"{name}: --sentence_order needs a run of train.py, for its validation stories")
        for order, r in sentence_order.compare_orders(name).items():
            share = f"{r['share']:.1%} [{r['low']:.1%}, {r['high']:.1%}]"
            rows.append([name, order, share, f"{r['stories']:,}", f"{r['lead']:.3f}"])
    head = ["", "other order", "true story likelier [95% interval]", "stories", "lead (nats per token)"]
    print(table_text(head, rows, args.markdown))
    print(f"wrote {sentence_order.FILE} in each run")
    return 0


def main():
    args = parse_arguments()
    sys.stdout.reconfigure(errors="replace")
    kept = f"finished runs keep their {sentence_order.FILE}" if args.sentence_order else "nothing was written"
    kept = "every mark so far is kept" if args.mark else kept
    with one_line_errors("probe.py", interrupted=kept):
        if args.mark:
            sys.exit(mark_all(args))
        names = find_models(args)
        sys.exit(compare_orders(args, names) if args.sentence_order else probe_all(args, names))


if __name__ == "__main__":
    main()
