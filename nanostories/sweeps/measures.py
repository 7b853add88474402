"""
The measures of a list: the commands that make them, and their cells in the list's table.

>>> for command in commands(["scores", "probes"], subjects, settings):
...     print(command.result, command.arguments)
>>> next(read_cells(["probes"], subjects[0], settings))
('facts right', [0.612, 0.52, 0.697], '.1%', '')

A command writes a result (nanostories/results.py); each reader takes the rows of one kind of table
whose first cell names the subject.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from nanostories.checkpoints.models import Model
from nanostories.files import PROMPTS, read_json
from nanostories.generation.prompts import read_prompts
from nanostories.generation.samples_file import EVAL, PROMPT, UNSEEN, result_name
from nanostories.results import Cell, Table, load
from nanostories.sweeps.plan import PlannedRun

N_PROMPTS = 50  # validation stories that every model continues
COPIED = 100  # training stories; the IIIT reproduction shows the maximum among 100 completions
STORY_TOKENS = 400  # limit of an API model's story
# Shares of training stories that are shown: one reproduction's, and the paper's
CUTS = ("0.4", "0.5")
STORIES_READ = 200  # by interpret.py
UNSEEN_PROMPTS = 20  # more would need rarer words than prompts/unseen_words.txt has
THREE_BEGINNINGS = PROMPTS / "three_beginnings.txt"
OWN_RESULTS = ("interpret.json", "bits_per_byte.json", "memory-ours.json", "memory-eager.json")


@dataclass(frozen=True)
class Subject:
    """A run, a checkpoint that it kept, or an existing model."""

    name: str  # in tables; also the path of its directory, from the list's
    model: Model
    directory: Path  # for the files of its measures
    data: Path  # corpus whose validation stories it continues
    run: PlannedRun | None = None


@dataclass(frozen=True)
class Settings:
    """What the measures of one call have in common."""

    directory: Path  # of the list
    n: int = 1  # completions of each prompt
    sample: Sequence[str] = ()  # flags of sample.py
    grade: Sequence[str] = ()  # flags of grade.py
    prompts: Path | None = None  # beginnings in place of validation stories
    memory_limit: int = 12_000  # MB

    @property
    def set(self) -> str:
        """Of the stories that are graded."""
        return self.prompts.stem if self.prompts else EVAL


class Command(NamedTuple):
    # What it writes; None: it is called whatever is there, and itself asks for what is missing
    result: Path | None
    arguments: list  # a script or module, and its arguments


Subjects = Sequence[Subject]
Commands = Iterator[Command]
# A column, its cell, its format, and why not to believe it, or ""
Cells = Iterator[tuple[str, Cell, str, str]]
Rows = Iterator[tuple[dict[str, Cell], Table, str]]  # a row, its table, and as of part_of


# ---- Stories, and their scores by judges ----
def sample(subject: Subject, out: Path, settings: Settings, *how) -> Command:
    arguments = ["sample.py", "--model", subject.model.name, "--data", subject.data, "--out", out]
    arguments += [f"--n={settings.n}", *how]
    if subject.model.kind == "api":
        arguments.append(f"--max_new_tokens={STORY_TOKENS}")
    return Command(None, [*arguments, *settings.sample])  # the user's --n wins


def continue_stories(subject: Subject, settings: Settings) -> Command:
    """Validation stories, or beginnings from a file."""
    how = ("--eval", N_PROMPTS)
    if settings.prompts:
        how = ("--prompts", settings.prompts)
    return sample(subject, subject.directory, settings, *how)


def grade(places: Sequence[Path], settings: Settings, name: str) -> Command:
    """Of the stories of one set in these directories."""
    flags = settings.grade
    if name != EVAL:  # only validation stories have true endings, which controls need
        flags = [flag for flag in flags if flag != "--controls"]
    return Command(None, ["grade.py", *places, "--out", settings.directory, "--set", name, *flags])


def scores(subjects: Subjects, settings: Settings) -> Commands:
    for subject in subjects:
        yield continue_stories(subject, settings)
    places = [subject.directory for subject in subjects]
    yield grade(places, settings, settings.set)


def beginnings(subjects: Subjects, settings: Settings) -> Commands:
    """Each beginning in a directory of its own, so that grade.py scores it by itself."""
    path = settings.prompts or THREE_BEGINNINGS
    places = []
    for subject in subjects:
        for i, prompt in enumerate(read_prompts(path), 1):
            places.append(subject.directory / f"{path.stem}-{i}")
            yield sample(subject, places[-1], settings, "--prompt", prompt.text, "--n=10")
    yield grade(places, settings, PROMPT)


def read_scores(subject: Subject, settings: Settings) -> Cells:
    """grammar by gpt-4o-mini; grammar by gpt-4o-mini, three_beginnings-2"""
    for set_name in (settings.set, PROMPT):
        path = settings.directory / f"{result_name('grades', set_name)}.json"
        for row, table, part in read_rows(path, "scores", subject.name):
            judge = table.facts["judge"]
            for score, *others in cells_of(row, table):
                if judge and score not in ("stories", "ungraded"):
                    yield f"{score} by {judge}{part}", *others


# ---- Prompts with known answers ----
def probes(subjects: Subjects, settings: Settings) -> Commands:
    names = []
    for subject in subjects:
        if subject.model.kind != "api":
            names += ["--model", subject.model.name]
    if not names:
        return
    base = ["probe.py", *names, "--out", settings.directory]
    yield Command(settings.directory / "probe.json", base)
    yield Command(settings.directory / "grammar.json", [*base, "--pairs"])


def read_answers(subject: Subject, settings: Settings) -> Cells:
    label = subject.model.label(settings.directory)
    for row, table, part in read_rows(settings.directory / "probe.json", "shares", label):
        if not part:  # "": not those of a checkpoint that it kept
            for name, *others in cells_of(row, table):
                yield f"{name} right", *others
    for row, _, _ in read_rows(settings.directory / "grammar.json", "pairs", "all"):
        yield "grammar pairs right", row.get(label), ".1%", ""  # an API model has none


# ---- Instructions ----
def instructions(subjects: Subjects, settings: Settings, unseen: bool = False) -> Commands:
    """unseen: also with words that the training stories do not have."""
    places = []
    for subject in subjects:
        if "headers" in read_json(subject.data / "meta.json"):
            places.append(subject.directory)
            yield continue_stories(subject, settings)
            if unseen:
                how = ("--eval", UNSEEN_PROMPTS, "--unseen_words")
                yield sample(subject, subject.directory, settings, *how)
    if places:
        yield Command(settings.directory / "instruct.json", ["instruct.py", *places])


def read_instructions(subject: Subject, settings: Settings) -> Cells:
    """Only shares of fulfilled instructions; instruct.json has more."""
    shown = ("words: each", "unseen words: each", "summary: nearest", "sentence, verbatim")
    for row, _, _ in read_rows(settings.directory / "instruct.json", "instructions"):
        measure = row["measure"]
        writer, _, set_name = row["run"].partition(", ")
        part = part_of(subject.name, writer)
        is_shown = measure.endswith("and nearest") or measure in shown
        if part is not None and set_name in (EVAL, UNSEEN) and is_shown:
            yield f"{measure}{part}", row["share"], ".1%", ""


# ---- Memorization ----
def memorization(subjects: Subjects, settings: Settings) -> Commands:
    places = []
    for cut in CUTS:
        for subject in subjects:
            places.append(settings.directory / f"cut-{cut}" / subject.name)
            how = ["--split", "train", "--eval", COPIED, "--cut", cut, "--n=1"]
            yield sample(subject, places[-1], settings, *how)
    how = ["--data", subjects[0].data, "--others", COPIED - 1]
    yield Command(settings.directory / "rouge.json", ["rouge.py", *places, *how])


def read_copies(subject: Subject, settings: Settings) -> Cells:
    path = settings.directory / "rouge.json"
    for cut in CUTS:
        for row, _, part in read_rows(path, "metrics", f"cut-{cut}/{subject.name}"):
            yield f"{row['metric']} ({float(cut):.0%} shown{part})", row["completions"], "", ""


# ---- Heads and neurons; size, bits per byte, seconds; memory ----
def interpretation(subjects: Subjects, settings: Settings) -> Commands:
    for subject in subjects:
        if subject.model.kind != "api":  # which nobody can look into
            places = ["--data", subject.data, "--out", subject.directory]
            arguments = ["interpret.py", subject.model.name, *places, f"--stories={STORIES_READ}"]
            yield Command(subject.directory / "interpret.json", arguments)


def read_neurons(subject: Subject, settings: Settings) -> Cells:
    for row, _, _ in read_rows(subject.directory / "interpret.json", "neurons"):
        if row["neurons"] is not None:  # not the one of the largest activation
            yield f"{row['kind']} neurons (%)", row["neurons (%)"], "", ""


def bits_per_byte(subjects: Subjects, settings: Settings) -> Commands:
    for subject in subjects:
        if subject.model.kind != "api":
            result = subject.directory / "bits_per_byte.json"
            flags = ["--data", subject.data, "--out", result]
            module = "nanostories.sweeps.bits_per_byte"
            yield Command(result, [module, subject.model.name, *flags])


def memory(subjects: Subjects, settings: Settings) -> Commands:
    for subject in subjects:
        vocab_size = read_json(subject.data / "meta.json")["vocab_size"]
        for kind in ("ours", "eager"):
            result = subject.directory / f"memory-{kind}.json"
            sizes = [result, vocab_size, settings.memory_limit, kind]
            yield Command(result, ["nanostories.sweeps.memory", *sizes, *subject.run.args])


def read_own_cells(kind: str, subject: Subject, settings: Settings) -> Cells:
    """Of results about one subject alone."""
    for file in OWN_RESULTS:
        for row, table, _ in read_rows(subject.directory / file, kind):
            yield from cells_of(row, table)


MEASURES = {  # name: its commands, and the function that reads their results
    "beginnings": (beginnings, read_scores),
    "scores": (scores, read_scores),
    "probes": (probes, read_answers),
    "instruct": (instructions, read_instructions),
    "unseen": (partial(instructions, unseen=True), read_instructions),
    "memorization": (memorization, read_copies),
    "heads": (interpretation, partial(read_own_cells, "heads")),
    "neurons": (interpretation, read_neurons),
    "bits_per_byte": (bits_per_byte, partial(read_own_cells, "bits per byte")),
    "memory": (memory, partial(read_own_cells, "memory")),
}


# ---- All measures ----
def commands(names: Sequence[str], subjects: Subjects, settings: Settings) -> Commands:
    for name in names:
        for result, arguments in MEASURES[name][0](subjects, settings):
            yield Command(result, [str(argument) for argument in arguments])


def read_cells(names: Sequence[str], subject: Subject, settings: Settings) -> Cells:
    for name in names:
        yield from MEASURES[name][1](subject, settings)


def read_rows(path: Path, kind: str, name: str = "") -> Rows:
    """The rows of a result's tables of a kind; with a name, those of the model of this name. None,
    if the measure was not for these models."""
    if not path.exists():
        return
    for table in load(path).tables:
        if table.facts.get("kind") == kind:
            for row in table.rows:
                part = part_of(name, next(iter(row.values())))
                if part is not None or not name:
                    yield row, table, part


def part_of(name: str, row_name: str) -> str | None:
    """ "" for a row of the model of this name, ", temperature-0.3" for one of a directory below its
    own; None for a row of another model."""
    if row_name == name:
        return ""
    below = f"{name}/"
    return f", {row_name.removeprefix(below)}" if row_name.startswith(below) else None


def cells_of(row: dict[str, Cell], table: Table) -> Cells:
    """All but the first, which names the row; with the notes of their columns or, if these have
    none, of the row, such as that the judge wrote these stories."""
    name = next(iter(row.values()))
    note = f"{name}: {table.notes[name]}" if name in table.notes else ""
    for column in list(row)[1:]:
        yield column, row[column], table.formats.get(column, ""), table.notes.get(column, note)
