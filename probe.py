"""
What a model knows, can infer and can keep track of: prompts with known answers, so no judge is needed.

$ python probe.py out/                                              # every run below it: out/probe.csv, out/probe.html
$ python probe.py out/demo --model hf:roneneldan/TinyStories-8M     # a run next to a published model
$ python probe.py out/demo --prompts mine.txt                       # prompts without answers: greedy continuations
$ python probe.py out/demo --checkpoint all                         # every step that train.py --keep_checkpoints kept
$ python probe.py out/demo --mark                                   # mark them yourself: right, nearly, or wrong
$ python probe.py out/ --sentence_order                             # are true stories likelier than shuffled ones?

The paper shows what its models write after prompts for facts, reasoning and context tracking; here we count right
answers. A model is right if the right answer has a higher log-likelihood per byte than every wrong one (per byte, so
that models with different vocabularies can be compared). The prompts come in groups in which each answer is right
equally often, so a model that has favorite answers and ignores the prompt scores at chance.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from common.cli import Parser, one_line_errors, positive
from common.files import write_bytes
from common.tables import publish, read_table, write_table
from grading.human_marks import apply_marks
from grading.probes import SETS, Probe, order_probes, read_probes, shares_text

PLAIN, ORDER, MARKS = "probe-prompts.csv", "probe-order.csv", "marks.csv"
NEARLY = 0.1  # nats per byte: a verdict is "nearly" if the best wrong answer leads by no more than this


def parse_arguments() -> argparse.Namespace:
    parser = Parser(__doc__)
    parser.add_argument("runs", nargs="*", type=Path, help="directories; every run below them is probed")
    parser.add_shared("model", action="append", default=[])
    every = "weights of a run: best, last, a step that train.py --keep_checkpoints kept, or all of these"
    parser.add_shared("checkpoint", metavar="best|last|STEP|all", help=every)
    either = parser.add_mutually_exclusive_group()
    prompts = "instead of our three sets: plain prompts, as for sample.py, which are only continued, or prompts"
    prompts += " with answers, as in prompts/facts.jsonl"
    either.add_argument("--prompts", nargs="+", type=Path, metavar="FILE", help=prompts)
    order = "instead, how often a validation story (of the first run's corpus) is likelier than with its sentences"
    order += " shuffled or two of them swapped; writes probe-order.csv"
    either.add_argument("--sentence_order", action="store_true", help=order)
    mark = f"instead, mark the completions in {PLAIN} as right, nearly or wrong; kept in {MARKS}"
    either.add_argument("--mark", action="store_true", help=mark)
    parser.add_argument("--max_new_tokens", type=positive, default=16, help="length of the greedy continuations")
    parser.add_shared("data")
    parser.add_shared("out", help="directory to write to (default: the first one given)")
    return parser.parse_args()


def find_models(args: argparse.Namespace) -> list[str]:
    from checkpoints.checkpoint import at_checkpoints, kept_checkpoints, newest_run, runs_below  # here: torch is slow

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


def answer(name: str, probes: Sequence[Probe], max_new_tokens: int, bar) -> list[dict]:
    """For each probe, this model's columns of probe.csv: its verdict, the right answer's lead, its own continuation."""
    from generation.backends import LocalBackend, load_backend
    from generation.prompts import Sampling
    from generation.token_likelihoods import log_likelihoods

    backend = load_backend(name)
    if any(probe.answers for probe in probes) and not isinstance(backend, LocalBackend):
        raise ValueError("an endpoint gives no log-likelihoods of answers; give it plain prompts, with --prompts")
    asked = [probe for probe in probes if probe.prompt]
    for text in [probe.prompt + answer for probe in asked for answer in probe.answers or ("",)]:
        if not backend.fits(text):
            raise ValueError(f'the context, {backend.model.config.block_size} tokens, is too short for "{text[:40]}…"')
    ids = [(backend.encode(p.prompt), backend.tokenizer.encode(answer)) for p in probes for answer in p.answers]
    nats = iter(log_likelihoods(backend, ids, bar) if ids else ())  # one for each token of each answer
    sampling, greedy = Sampling(temperature=0, max_new_tokens=max_new_tokens), {}
    keys = [(i, 0) for i in range(len(asked))]
    for i, text, _ in backend.complete([probe.prompt for probe in asked], keys, sampling):
        greedy[asked[i]] = text
        bar.update()
    columns = []
    for probe in probes:
        verdict = lead = ""
        if probe.answers:
            right, *wrong = (next(nats).sum().item() / len(text.encode()) for text in probe.answers)
            verdict = "right" if right > max(wrong) else "nearly" if right >= max(wrong) - NEARLY else "wrong"
            lead = f"{right - max(wrong):.4f}"
        columns.append({f"{name} verdict": verdict, f"{name} lead": lead, f"{name} greedy": greedy.get(probe, "")})
    return columns


def read_all(args: argparse.Namespace, names: Sequence[str]) -> tuple[str, list[Probe]]:
    """The file to write, and the probes."""
    from checkpoints.checkpoint import corpus_of

    if args.sentence_order:
        return ORDER, order_probes(args.data or Path(corpus_of(names[0])))
    files = {str(path): path for path in args.prompts} if args.prompts else {path.stem: path for path in SETS}
    probes = [probe for name, path in files.items() for probe in read_probes(path, name)]
    return PLAIN if args.prompts else "probe.csv", probes


def probe_all(args: argparse.Namespace) -> int:
    """Returns the exit status: 1 if a model had to be left out."""
    from checkpoints.checkpoint import directory_of

    names, answers = find_models(args), {}
    file, probes = read_all(args, names)
    n_texts = len(names) * sum(bool(probe.prompt) + len(probe.answers) for probe in probes)
    with tqdm(desc="probing", total=n_texts, unit="text", disable=None, delay=1) as bar:
        for name in names:
            try:
                answers[name] = answer(name, probes, args.max_new_tokens, bar)
            except ValueError as error:
                if len(names) == 1:
                    raise
                bar.write(f"probe.py: {name} is left out: {error}", file=sys.stderr)
    if not answers:
        raise ValueError("no model is left; nothing was written")
    rows = [probe.row() for probe in probes]
    if args.checkpoint == "all" and not args.out:  # each next to its weights, where train.py --plot finds it
        for name, columns in answers.items():
            write_table(directory_of(name) / file, [row | own for row, own in zip(rows, columns)])
    for columns in answers.values():
        rows = [row | own for row, own in zip(rows, columns)]
    write_results(output_directory(args, names) / file, rows, ask=False)
    return int(len(answers) < len(names))


def output_directory(args: argparse.Namespace, names: Sequence[str]) -> Path:
    from checkpoints.checkpoint import directory_of

    return args.out or (args.runs[0] if args.runs else directory_of(names[0]))


def write_results(path: Path, rows: list[dict], ask: bool) -> None:
    """The rows, the table, and the page that shows what each model says; ask: for the marks that are missing."""
    from pages.answers import answers_page

    path.parent.mkdir(parents=True, exist_ok=True)
    unmarked = apply_marks(path.with_name(MARKS), rows, ask) if path.name == PLAIN else 0
    write_table(path, rows)
    if path.name != ORDER:  # whose answers are whole stories
        write_bytes(path.with_suffix(".html"), answers_page(rows))
    if text := shares_text(rows):
        publish(path.with_suffix(".md"), text)
    next_step = f"python report.py {path.parent}"
    if unmarked:
        next_step = f"mark {unmarked} completions: python probe.py {path.parent} --mark"
    print(f"wrote {path}{f' and {path.stem}.html' * (path.name != ORDER)}; next: {next_step}")


def mark(args: argparse.Namespace) -> int:
    path = output_directory(args, [] if args.out or args.runs else find_models(args)) / PLAIN
    if not path.exists():
        raise ValueError(f"{path}: not found; first have models continue prompts: python probe.py RUN --prompts FILE")
    write_results(path, read_table(path), ask=True)
    return 0


def main():
    args = parse_arguments()
    sys.stdout.reconfigure(errors="replace")
    kept = "every mark so far is kept" if args.mark else "what was finished is kept"
    with one_line_errors("probe.py", interrupted=kept):
        sys.exit(mark(args) if args.mark else probe_all(args))


if __name__ == "__main__":
    main()
