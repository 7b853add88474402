"""
The measures of the runs or models of a list: commands, and figures read from the files that they
write.

>>> run_missing(commands_of(["scores", "probes"], subjects, directory, args), directory)
>>> figures_of(["scores", "probes"], subjects, directory)["128-8-4_0"]["facts right (%)"]
(61.2, 52.0, 69.7)

args: the command line of experiments.py.
"""

import collections
import functools
import itertools
import math
import re
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from nanostories.files import read_json
from nanostories.generation.prompts import read_prompts
from nanostories.generation.samples_file import UNSEEN
from nanostories.grading.findings import Finding, judge_sees
from nanostories.grading.pictures import NOTES
from nanostories.statistics import wilson
from nanostories.sweeps.plan import ROOT, Run
from nanostories.tables import read_table
from nanostories.training.run_directory import read_log

Value = Sequence[float] | float | str  # with the ends of its 95% interval; or "oom"
Commands = Iterator[tuple[list[str], list[str]]]  # with the models that each command reads
CUTS = (
    "0.4",
    "0.5",
)  # shares of training stories that are shown: one reproduction's, and the paper's
STORIES_READ, STORIES_ABLATED = 200, 10  # by interpret.py
UNSEEN_PROMPTS = 20  # more would need rarer words than prompts/unseen_words.txt has
BEGINNINGS = ROOT / "prompts" / "three_beginnings.txt"
ROUGE = {
    "ending_f": "ROUGE F with the true rest",
    "other_prompt_f": "with the nearest other",
    "training_f": "with the nearest training story",
    "share_4": "share of 4-grams in the training set",
}
ENDS = ("value", "low", "high")


class Subject(NamedTuple):
    """A run, a checkpoint that it kept, or an existing model."""

    name: str  # in tables, and of its directory below the list's
    model: str  # as in sample.py --model
    directory: Path  # for the files of its measures
    data: Path  # corpus whose validation stories it continues
    run: Run | None = None


def sample(subject: Subject, args: Namespace, out: Path, *how) -> tuple[list[str], list[str]]:
    own = args.story_flags if subject.model.startswith("api:") else ()
    command = [
        "sample.py",
        "--model",
        subject.model,
        "--data",
        subject.data,
        "--out",
        out,
        *how,
        *own,
    ]
    return list(map(str, command)), [subject.model]


def continue_stories(subject: Subject, args: Namespace, n: int) -> tuple[list[str], list[str]]:
    held_out = read_json(subject.data / "meta.json")["splits"]["val"]["stories"] - 1
    count = min(args.prompt_count, held_out)
    return sample(subject, args, subject.directory, "--eval", count, "--n", n, *args.sample_flags)


def rows_of(path: Path) -> list[dict]:
    return read_table(path) if path.exists() else []


# ---- Scores by judges ----
def grade(subjects: Sequence[Subject], directory: Path, args: Namespace) -> Commands:
    for subject in subjects:
        yield continue_stories(subject, args, args.n)
    yield ["grade.py", str(directory), *args.judge_flags], [subject.model for subject in subjects]


def grade_beginnings(subjects: Sequence[Subject], directory: Path, args: Namespace) -> Commands:
    """Each beginning in a directory of its own, so that grade.py scores it by itself."""
    for subject, (i, prompt) in itertools.product(subjects, enumerate(read_prompts(BEGINNINGS), 1)):
        yield sample(
            subject, args, subject.directory / f"beginning-{i}", "--prompt", prompt.text, "--n", 10
        )
    judge = [
        flag for flag in args.judge_flags if flag != "--controls"
    ]  # these stories have no true endings
    if not args.grade and subjects[0].run:  # grade.py would not know whose directories these are
        best = min(
            subjects, key=lambda subject: float(read_log(Path(subject.model, "log.csv"))[-1]["bpb"])
        )
        judge = [*judge, f"--judge=lm:{best.model}"]
    yield ["grade.py", str(directory), *judge], [subject.model for subject in subjects]


def read_grades(subject: Subject, directory: Path) -> dict[str, Value]:
    """{"grammar by gpt-4o-mini": …, "grammar by gpt-4o-mini, beginning 2": …}"""
    found, findings = {}, []
    for row in read_table(directory / "grades.csv"):
        texts, numbers = (
            (row[key] for key in Finding._fields[:4]),
            (float(row[key] or "nan") for key in ENDS),
        )
        findings.append(Finding(*texts, *numbers, int(row["prompts"])))
    for f in findings:
        name, _, part = f.subject.partition("/beginning-")
        if f.kind == "mean" and name == subject.name and f.judge and not math.isnan(f.value):
            note = NOTES[judge_sees(findings, f.judge, f.figure)].replace("\n", " ")
            note += f", beginning {part}" * bool(part)
            found[f"{f.figure} by {f.judge}{note}"] = f.value, f.low, f.high
    return found


# ---- Probes ----
def probe(subjects: Sequence[Subject], directory: Path, args: Namespace, *how: str) -> Commands:
    models = [subject.model for subject in subjects if not subject.model.startswith("api:")]
    each = itertools.chain.from_iterable(("--model", model) for model in models)
    if models:
        yield ["probe.py", *each, "--out", str(directory), *how], models


def continue_prompts(subjects: Sequence[Subject], directory: Path, args: Namespace) -> Commands:
    yield from probe(subjects, directory, args)
    if args.prompts:
        yield from probe(subjects, directory, args, "--prompts", *map(str, args.prompts))


def read_probes(subject: Subject, directory: Path) -> dict[str, Value]:
    verdicts = {}
    for row in rows_of(directory / "probe.csv"):
        if row["right"] and row.get(f"{subject.model} verdict"):
            verdicts.setdefault(row["set"], []).append(row[f"{subject.model} verdict"] == "right")
    shares = {name: (sum(own) / len(own), len(own)) for name, own in verdicts.items()}
    return {
        f"{name} right (%)": [100 * x for x in (share, *wilson(share, n))]
        for name, (share, n) in shares.items()
    }


# ---- Instructions ----
def instruct(
    subjects: Sequence[Subject], directory: Path, args: Namespace, unseen: bool = False
) -> Commands:
    """unseen: also with words that the training stories do not have."""
    headed = [subject for subject in subjects if "headers" in read_json(subject.data / "meta.json")]
    for subject in headed:
        yield continue_stories(subject, args, 1)
        if unseen:
            yield sample(
                subject, args, subject.directory, "--eval", UNSEEN_PROMPTS, "--unseen_words"
            )
    if headed:
        yield (
            ["instruct.py", *(str(subject.directory) for subject in headed)],
            [subject.model for subject in headed],
        )


def read_instruct(subject: Subject, directory: Path) -> dict[str, Value]:
    """Only shares of fulfilled instructions; instruct.csv has more."""
    own = str(subject.directory), str(subject.directory / UNSEEN)
    shown = re.compile("^(unseen )?words: each|^summary: nearest|and nearest|sentence")
    rows = [
        row
        for row in rows_of(directory / "instruct.csv")
        if row["run"] in own and shown.search(row["measure"])
    ]
    ends = ("share", "low", "high")
    return {
        f"{row['measure']} (%)": [100 * float(row[end] or "nan") for end in ends] for row in rows
    }


# ---- Memorization ----
def compare_with_training(
    subjects: Sequence[Subject], directory: Path, args: Namespace
) -> Commands:
    places = []
    for cut, subject in itertools.product(CUTS, subjects):
        places.append(str(directory / f"cut-{cut}" / subject.name))
        how = (
            "--split",
            "train",
            "--draw",
            "random",
            "--eval",
            args.prompt_count,
            "--n",
            1,
            "--cut",
            cut,
        )
        yield sample(subject, args, places[-1], *how)
    yield (
        ["rouge.py", *places, "--data", str(subjects[0].data)],
        [subject.model for subject in subjects],
    )


def read_rouge(subject: Subject, directory: Path) -> dict[str, Value]:
    found = {}
    for (name, title), cut in itertools.product(ROUGE.items(), CUTS):
        figures = read_json(directory / f"cut-{cut}" / subject.name / "rouge-train.json")["metrics"]
        if name in figures:
            mean = figures[name]["completions"].values()
            found[f"{title} ({float(cut):.0%} shown)"] = [
                float("nan") if x is None else x for x in mean
            ]
    return found


# ---- Heads and neurons; size, bits per byte, seconds; memory ----
def interpret(subjects: Sequence[Subject], directory: Path, args: Namespace) -> Commands:
    for subject in subjects:
        places = ["--data", str(subject.data), "--out", str(subject.directory)]
        counts = [f"--stories={STORIES_READ}", f"--ablate={STORIES_ABLATED}"]
        yield ["interpret.py", subject.model, *places, *counts], [subject.model]


def read_heads(subject: Subject, directory: Path) -> dict[str, Value]:
    rows = read_table(subject.directory / "heads.csv")
    positional = sum(float(row["distance_correlation"] or 0) > 0.5 for row in rows)
    kinds, roles = (collections.Counter(row[key] for row in rows) for key in ("kind", "role"))
    found = {"heads": len(rows), "correlation with distance above 0.5": positional}
    found |= {kind: kinds[kind] for kind in ("positional", "semantic")}
    return found | {f"role: {role}": n for role, n in roles.most_common() if role != "mixed"}


def read_neurons(subject: Subject, directory: Path) -> dict[str, Value]:
    rows = read_table(subject.directory / "neurons.csv")
    kinds = collections.Counter(row["prefers"] for row in rows)
    names = [column.removeprefix("auc_") for column in rows[0] if column.startswith("auc_")]
    return {f"{kind} neurons (%)": 100 * kinds[kind] / len(rows) for kind in names}


def measure_bits_per_byte(
    subjects: Sequence[Subject], directory: Path, args: Namespace
) -> Commands:
    for s in [s for s in subjects if not s.model.startswith("api:")]:
        flags = "--data", str(s.data), "--out", str(s.directory / "bits_per_byte.json")
        yield ["nanostories.sweeps.bits_per_byte", s.model, *flags], [s.model]


def measure_memory(subjects: Sequence[Subject], directory: Path, args: Namespace) -> Commands:
    for s in subjects:
        sizes = str(read_json(s.data / "meta.json")["vocab_size"]), str(args.memory_limit)
        yield (
            ["nanostories.sweeps.memory", str(s.directory / "memory.json"), *sizes, *s.run.args],
            [s.model],
        )


def read_figures(subject: Subject, directory: Path, file: str) -> dict[str, Value]:
    return read_json(subject.directory / file) if (subject.directory / file).exists() else {}


MEASURES = {  # name: its commands, and the function that reads their files
    "beginnings": (grade_beginnings, read_grades),
    "scores": (grade, read_grades),
    "probes": (continue_prompts, read_probes),
    "instruct": (instruct, read_instruct),
    "unseen": (functools.partial(instruct, unseen=True), read_instruct),
    "memorization": (compare_with_training, read_rouge),
    "heads": (interpret, read_heads),
    "neurons": (interpret, read_neurons),
    "bits_per_byte": (
        measure_bits_per_byte,
        functools.partial(read_figures, file="bits_per_byte.json"),
    ),
    "memory": (measure_memory, functools.partial(read_figures, file="memory.json")),
}


def commands_of(
    names: Sequence[str], subjects: Sequence[Subject], directory: Path, args: Namespace
) -> Commands:
    return itertools.chain.from_iterable(
        MEASURES[name][0](subjects, directory, args) for name in names
    )


def figures_of(
    names: Sequence[str], subjects: Sequence[Subject], directory: Path
) -> dict[str, dict[str, Value]]:
    """{name of the subject: {column: value}}"""
    readers = [MEASURES[name][1] for name in names]
    return {
        s.name: {k: v for read in readers for k, v in read(s, directory).items()} for s in subjects
    }
