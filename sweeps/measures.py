"""
What is measured of the runs or models of a list: the commands, and the figures read from the files that they write.

>>> run_missing(commands_of(["scores", "probes"], subjects, call), directory)
>>> figures_of(["scores", "probes"], subjects, call)["128-8-4_0"]["facts right (%)"]
(61.2, 52.0, 69.7)
"""

import collections
import functools
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from common.files import read_json
from common.statistics import wilson
from common.tables import read_table
from generation.prompts import read_prompts
from generation.samples_file import UNSEEN
from sweeps.plan import ROOT, Run

Value = tuple[float, float, float] | float | str  # with the ends of its 95% interval; or "oom"
Commands = Iterator[tuple[list[str], list[str]]]  # with the models that each command reads
CUTS = ("0.4", "0.5")  # shares of training stories that are shown: one reproduction's, and the paper's
STORIES_READ = 200  # by interpret.py
BEGINNINGS = ROOT / "prompts" / "three_beginnings.txt"
ROUGE = {
    "ending_f": "ROUGE F with the true rest",
    "other_prompt_f": "with the nearest other",
    "training_f": "with the nearest training story",
    "share_4": "share of 4-grams in the training set",
}


class Subject(NamedTuple):
    """A run, a checkpoint that it kept, or an existing model."""

    name: str  # in tables, and of its directory below the list's
    model: str  # as in sample.py --model
    directory: Path  # of what is measured
    data: Path  # whose validation stories it continues
    has_headers: bool = False
    run: Run | None = None
    variant: str = ""  # the same for all seeds


class Call(NamedTuple):
    """What a call of experiments.py asks for."""

    directory: Path
    prompts: int
    n: int
    sample_flags: tuple[str, ...]
    judge_flags: tuple[str, ...]
    api_flags: tuple[str, ...]
    prompt_files: tuple[str, ...]
    memory_limit: int


def sample(subject: Subject, call: Call, out: Path, *how) -> tuple[list[str], list[str]]:
    own = call.api_flags if subject.model.startswith("api:") else ()
    command = ["sample.py", "--model", subject.model, "--data", subject.data, "--out", out, *how, *own]
    return list(map(str, command)), [subject.model]


def continue_stories(subject: Subject, call: Call, out: Path, n: int, *how) -> tuple[list[str], list[str]]:
    held_out = read_json(subject.data / "meta.json")["splits"]["val"]["stories"] - 1
    return sample(subject, call, out, "--eval", min(call.prompts, held_out), "--n", n, *call.sample_flags, *how)


def read_if_there(path: Path) -> list[dict]:
    return read_table(path) if path.exists() else []


# ---- Scores by judges ----


def grade(subjects: Sequence[Subject], call: Call) -> Commands:
    for subject in subjects:
        yield continue_stories(subject, call, subject.directory, call.n)
    yield ["grade.py", str(call.directory), *call.judge_flags], [subject.model for subject in subjects]


def write_from_beginnings(subjects: Sequence[Subject], call: Call) -> Commands:
    """Each beginning in a directory of its own, so that grade.py scores it by itself."""
    for subject, (i, prompt) in itertools.product(subjects, enumerate(read_prompts(BEGINNINGS), 1)):
        yield sample(subject, call, subject.directory / f"beginning-{i}", "--prompt", prompt.text, "--n", 10)


def read_grades(subject: Subject, call: Call) -> dict[str, Value]:
    """{"grammar by gpt-4o-mini": …, "grammar (beginning 2) by gpt-4o-mini": …, "ended": …}"""
    found = {}
    for row in read_if_there(call.directory / "grades.csv"):
        name, _, part = row["subject"].partition("/beginning-")
        if row["kind"] == "mean" and name == subject.name and row["value"]:
            score = row["figure"] + (f" (beginning {part})" if part else "")
            score += f" by {row['judge']}" if row["judge"] else ""
            found[score] = tuple(float(row[end] or "nan") for end in ("value", "low", "high"))
    return {name: value for name, value in found.items() if name not in ("loss", "bpb")}


# ---- Probes ----


def probe(subjects: Sequence[Subject], call: Call, *how: str) -> Commands:
    models = [subject.model for subject in subjects if not subject.model.startswith("api:")]
    each = itertools.chain.from_iterable(("--model", model) for model in models)
    data = str(subjects[0].data)
    yield ["probe.py", *each, "--out", str(call.directory), "--data", data, *how], models


def probe_order(subjects: Sequence[Subject], call: Call) -> Commands:
    yield from probe(subjects, call, "--sentence_order")


def continue_prompts(subjects: Sequence[Subject], call: Call) -> Commands:
    yield from probe(subjects, call)
    if call.prompt_files:
        yield from probe(subjects, call, "--prompts", *call.prompt_files)


def read_probes(subject: Subject, call: Call, *files: str) -> dict[str, Value]:
    found = {}
    rows = [row for file in files or ["probe.csv"] for row in read_if_there(call.directory / file)]
    for name in dict.fromkeys(row["set"] for row in rows if row["right"]):
        verdicts = [row.get(f"{subject.model} verdict") for row in rows if row["set"] == name]
        if any(verdicts):
            share = verdicts.count("right") / len(verdicts)
            found[f"{name} right (%)"] = tuple(100 * x for x in (share, *wilson(share, len(verdicts))))
    return found


def read_order(subject: Subject, call: Call) -> dict[str, Value]:
    return read_probes(subject, call, "probe-order.csv")


# ---- Instructions ----


def instruct(subjects: Sequence[Subject], call: Call, unseen: bool = False) -> Commands:
    """unseen: also with words that the training stories do not have."""
    headed = [subject for subject in subjects if subject.has_headers]
    places = [subject.directory for subject in headed]
    for subject in headed:
        yield continue_stories(subject, call, subject.directory, 1)
    for subject in headed if unseen else ():
        yield continue_stories(subject, call._replace(sample_flags=("--unseen_words",)), subject.directory, 1)
    places += [place / UNSEEN for place in places if unseen]
    yield ["instruct.py", *map(str, places)], [subject.model for subject in headed]


def read_instruct(subject: Subject, call: Call) -> dict[str, Value]:
    own = str(subject.directory), str(subject.directory / UNSEEN)
    rows = [row for row in read_if_there(call.directory / "instruct.csv") if row["run"] in own]
    return {f"{row['measure']} (%)": tuple(100 * float(row[end]) for end in ("share", "low", "high")) for row in rows}


# ---- Memorization ----


def compare_with_training(subjects: Sequence[Subject], call: Call) -> Commands:
    for cut, subject in itertools.product(CUTS, subjects):
        how = "--split", "train", "--draw", "random", "--eval", call.prompts, "--n", 1, "--cut", cut
        yield sample(subject, call, call.directory / f"cut-{cut}" / subject.name, *how)
    runs = [str(call.directory / f"cut-{cut}" / subject.name) for cut, subject in itertools.product(CUTS, subjects)]
    yield ["rouge.py", *runs, "--data", str(subjects[0].data)], [subject.model for subject in subjects]


def read_rouge(subject: Subject, call: Call) -> dict[str, Value]:
    found = {}
    for cut in CUTS:
        path = call.directory / f"cut-{cut}" / subject.name / "rouge-train.json"
        figures = read_json(path)["figures"] if path.exists() else {}
        for name in ROUGE.keys() & figures.keys():
            mean = figures[name]["completions"].values()
            found[f"{ROUGE[name]} ({float(cut):.0%} shown)"] = tuple(float("nan") if x is None else x for x in mean)
    return {name: found[name] for name in sorted(found)}


# ---- Heads and neurons; size, bits per byte, seconds; memory ----


def interpret(subjects: Sequence[Subject], call: Call) -> Commands:
    for subject in subjects:
        flags = "--data", subject.data, "--out", subject.directory, "--stories", STORIES_READ, "--ablate", 0
        yield ["interpret.py", subject.model, *map(str, flags)], [subject.model]


def read_heads(subject: Subject, call: Call) -> dict[str, Value]:
    rows = read_if_there(subject.directory / "heads.csv")
    if not rows:
        return {}
    positional = sum(float(row["distance_correlation"] or 0) > 0.5 for row in rows)
    kinds, roles = (collections.Counter(row[key] for row in rows) for key in ("kind", "role"))
    found = {"heads": len(rows), "correlation with distance above 0.5": positional}
    found |= {kind: kinds[kind] for kind in ("positional", "semantic")}
    return found | {f"role: {role}": n for role, n in roles.most_common() if role != "mixed"}


def read_neurons(subject: Subject, call: Call) -> dict[str, Value]:
    rows = read_if_there(subject.directory / "neurons.csv")
    kinds = collections.Counter(row["prefers"] for row in rows)
    names = [column.removeprefix("auc_") for column in (rows or [{}])[0] if column.startswith("auc_")]
    return {f"{kind} neurons (%)": 100 * kinds[kind] / len(rows) for kind in names}


def rule(subjects: Sequence[Subject], call: Call) -> Commands:
    for s in subjects:
        yield ["sweeps.ruler", s.model, "--data", str(s.data), "--out", str(s.directory / "ruler.json")], [s.model]


def read_ruler(subject: Subject, call: Call) -> dict[str, Value]:
    path = subject.directory / "ruler.json"
    return {
        name: tuple(v) if isinstance(v, list) else v for name, v in (read_json(path) if path.exists() else {}).items()
    }


def measure_memory(subjects: Sequence[Subject], call: Call) -> Commands:
    for s in subjects:
        vocab_size = read_json(s.data / "meta.json")["vocab_size"]
        sizes = str(vocab_size), str(call.memory_limit)
        yield ["sweeps.memory", str(s.directory / "memory.json"), *sizes, *s.run.args], [s.model]


def read_memory(subject: Subject, call: Call) -> dict[str, Value]:
    path = subject.directory / "memory.json"
    return read_json(path) if path.exists() else {}


MEASURES = {  # name: its commands, and the function that reads what they wrote
    "beginnings": (write_from_beginnings, None),
    "scores": (grade, read_grades),
    "probes": (continue_prompts, read_probes),
    "order": (probe_order, read_order),
    "instruct": (instruct, read_instruct),
    "unseen": (functools.partial(instruct, unseen=True), read_instruct),
    "memorization": (compare_with_training, read_rouge),
    "heads": (interpret, read_heads),
    "neurons": (interpret, read_neurons),
    "ruler": (rule, read_ruler),
    "memory": (measure_memory, read_memory),
}


def commands_of(names: Sequence[str], subjects: Sequence[Subject], call: Call) -> Commands:
    return itertools.chain.from_iterable(MEASURES[name][0](subjects, call) for name in names)


def figures_of(names: Sequence[str], subjects: Sequence[Subject], call: Call) -> dict[str, dict[str, Value]]:
    """{name of the subject: {column: value}}, of those that were measured."""
    readers = [MEASURES[name][1] for name in names if MEASURES[name][1]]
    return {s.name: {k: v for read in readers for k, v in read(s, call).items()} for s in subjects}
