"""
The measures of a list: the commands that make them, and their cells in the list's table.

>>> for command in commands(["scores", "probes"], subjects, settings):
...     print(command.arguments, command.result)
>>> next(read_cells(["probes"], subjects[0], settings))
('facts right', [0.612, 0.52, 0.697], '')

A command writes a result (nanostories/results.py); each reader takes the rows of one kind of table
whose first cell names the subject.
"""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from nanostories.checkpoints.models import Model
from nanostories.files import read_json
from nanostories.generation.prompts import read_prompts
from nanostories.generation.samples_file import EVAL, PROMPT, UNSEEN, result_name, set_file
from nanostories.results import Cell, Table, load
from nanostories.sweeps.plan import ROOT, PlannedRun
from nanostories.training.run_directory import read_log

PROMPTS = 50  # validation stories that every model continues
COPIED = 100  # training stories; B shows the maximum among 100 completions
STORY_TOKENS = 400  # limit of an API model's story
# Shares of training stories that are shown: one reproduction's, and the paper's
CUTS = ("0.4", "0.5")
STORIES_READ = 200  # by interpret.py
UNSEEN_PROMPTS = 20  # more would need rarer words than prompts/unseen_words.txt has
THREE_BEGINNINGS = ROOT / "prompts" / "three_beginnings.txt"


@dataclass(frozen=True)
class Subject:
    """A run, a checkpoint that it kept, or an existing model."""

    name: str  # in tables, and of its directory below the list's
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
    prompts: Sequence[Path] = ()  # files of beginnings; for probe.py
    memory_limit: int = 12_000  # MB

    @property
    def set(self) -> str:
        """Of the stories that are graded."""
        return self.prompts[0].stem if self.prompts else EVAL


class Command(NamedTuple):
    arguments: list[str]  # a script or module, and its arguments
    # What it writes; None: it sees by itself what is there already (sample.py)
    result: Path | None = None
    stories: tuple[Path, ...] = ()  # files that it finds by itself, and reads


Subjects = Sequence[Subject]
Commands = Iterator[Command]
Cells = Iterator[tuple[str, Cell, str]]  # a column, its cell, and why not to believe it, or ""


def command_of(result: Path | None, *arguments) -> Command:
    return Command([str(argument) for argument in arguments], result)


# ---- Stories, and their scores by judges ----
def sample(subject: Subject, out: Path, settings: Settings, *how, n: int | None = None) -> Command:
    """n: completions of each prompt, if not as in the other sets."""
    flags = ["--model", subject.model.name, "--data", subject.data, "--out", out]
    flags += ["--n", n or settings.n, *how]
    if subject.model.kind == "api":
        flags.append(f"--max_new_tokens={STORY_TOKENS}")
    return command_of(None, "sample.py", *flags, *settings.sample)  # the user's --n wins


def continue_stories(subject: Subject, settings: Settings) -> Command:
    """Validation stories, or beginnings from a file."""
    if settings.prompts:
        return sample(subject, subject.directory, settings, "--prompts", settings.prompts[0])
    held_out = read_json(subject.data / "meta.json")["splits"]["val"]["stories"] - 1
    count = min(PROMPTS, held_out)
    return sample(subject, subject.directory, settings, "--eval", count)


def grades_file(settings: Settings, name: str) -> Path:
    return settings.directory / f"{result_name('grades', name)}.json"


def grade(places: Sequence[Path], settings: Settings, name: str, flags: Sequence[str]) -> Command:
    """Of the stories of one set in these directories."""
    if name != EVAL:  # they have no true endings
        flags = [flag for flag in flags if flag != "--controls"]
    command = command_of(
        grades_file(settings, name), "grade.py", settings.directory, "--set", name, *flags
    )
    return command._replace(stories=tuple(set_file(place, name) for place in places))


def scores(subjects: Subjects, settings: Settings) -> Commands:
    for subject in subjects:
        yield continue_stories(subject, settings)
    places = [subject.directory for subject in subjects]
    yield grade(places, settings, settings.set, settings.grade)


def texts_to_begin(files: Sequence[Path]) -> dict[str, str]:
    """{file-number: beginning} of the plain files among these, or of our three beginnings."""
    found = {}
    for path in [path for path in files if path.suffix == ".txt"] or [THREE_BEGINNINGS]:
        for i, prompt in enumerate(read_prompts(path), 1):
            found[f"{path.stem}-{i}"] = prompt.text
    return found


def beginnings(subjects: Subjects, settings: Settings) -> Commands:
    """Each beginning in a directory of its own, so that grade.py scores it by itself."""
    places = []
    for subject in subjects:
        for name, text in texts_to_begin(settings.prompts).items():
            places.append(subject.directory / name)
            yield sample(subject, places[-1], settings, "--prompt", text, n=10)
    flags = list(settings.grade)
    runs = [subject for subject in subjects if subject.run]
    if "--judge" not in shlex.join(flags) and runs:
        # grade.py would not know whose directories these are
        best = min(runs, key=lambda run: float(read_log(run.directory / "log.csv")[-1]["bpb"]))
        flags.append(f"--judge=lm:{best.model.name}")
    yield grade(places, settings, PROMPT, flags)


def read_scores(subject: Subject, settings: Settings) -> Cells:
    """grammar by gpt-4o-mini; grammar by gpt-4o-mini, three_beginnings-2"""
    found = read_tables(grades_file(settings, settings.set), "scores")
    found += read_tables(grades_file(settings, PROMPT), "scores")
    for table in found:
        judge = table.facts["judge"]
        for row in table.rows if judge else ():
            another, _, beginning = row["run"].removeprefix(subject.name).partition("/")
            if another:
                continue
            for score, cell in row.items():
                if score not in ("run", "stories", "ungraded"):
                    column = f"{score} by {judge}"
                    if beginning:
                        column += f", {beginning}"
                    yield column, cell, table.notes.get(score, "")


# ---- Prompts with known answers ----
def probes(subjects: Subjects, settings: Settings) -> Commands:
    known = [subject for subject in subjects if subject.model.kind != "api"]
    names = []
    for subject in known:
        names += ["--model", subject.model.name]
    if not known:
        return
    base = ["probe.py", *names, "--out", settings.directory]
    yield command_of(settings.directory / "probe.json", *base)
    yield command_of(settings.directory / "grammar.json", *base, "--pairs")
    if settings.prompts:
        yield command_of(None, *base, "--prompts", *settings.prompts)


def read_answers(subject: Subject, settings: Settings) -> Cells:
    label = subject.model.label(settings.directory)
    for row in read_labeled_rows(settings.directory / "probe.json", "shares", label):
        for name, cell in row.items():
            if name != "run":
                yield f"{name} right", cell, ""
    for table in read_tables(settings.directory / "grammar.json", "pairs"):
        every_pair = table.rows[0]
        yield "grammar pairs right", every_pair[label], ""


# ---- Instructions ----
def instructions(subjects: Subjects, settings: Settings, unseen: bool = False) -> Commands:
    """unseen: also with words that the training stories do not have."""
    headed = [subject for subject in subjects if "headers" in read_json(subject.data / "meta.json")]
    for subject in headed:
        yield continue_stories(subject, settings)
        if unseen:
            how = ("--eval", UNSEEN_PROMPTS, "--unseen_words")
            yield sample(subject, subject.directory, settings, *how)
    if headed:
        places = [subject.directory for subject in headed]
        result = settings.directory / "instruct.json"
        yield command_of(result, "instruct.py", *places)


def unseen_words(subjects: Subjects, settings: Settings) -> Commands:
    yield from instructions(subjects, settings, unseen=True)


def read_instructions(subject: Subject, settings: Settings) -> Cells:
    """Only shares of fulfilled instructions; instruct.json has more."""
    shown = ("words: each", "unseen words: each", "summary: nearest", "sentence, verbatim")
    for label in (f"{subject.name}, {EVAL}", f"{subject.name}, {UNSEEN}"):
        for row in read_labeled_rows(settings.directory / "instruct.json", "instructions", label):
            if row["measure"].endswith("and nearest") or row["measure"] in shown:
                yield row["measure"], row["share"], ""


# ---- Memorization ----
def memorization(subjects: Subjects, settings: Settings) -> Commands:
    places = []
    for cut in CUTS:
        for subject in subjects:
            places.append(settings.directory / f"cut-{cut}" / subject.name)
            how = ["--split", "train", "--eval", COPIED, "--cut", cut]
            yield sample(subject, places[-1], settings, *how, n=1)
    result = settings.directory / "rouge.json"
    how = ["--data", subjects[0].data, "--others", COPIED - 1]
    yield command_of(result, "rouge.py", *places, *how)


def read_copies(subject: Subject, settings: Settings) -> Cells:
    for cut in CUTS:
        label = f"cut-{cut}/{subject.name}"
        for row in read_labeled_rows(settings.directory / "rouge.json", "metrics", label):
            yield f"{row['metric']} ({float(cut):.0%} shown)", row["completions"], ""


# ---- Heads and neurons; size, bits per byte, seconds; memory ----
def interpretation(subjects: Subjects, settings: Settings) -> Commands:
    for subject in subjects:
        places = ["--data", subject.data, "--out", subject.directory]
        result = subject.directory / "interpret.json"
        command = ["interpret.py", subject.model.name, *places, f"--stories={STORIES_READ}"]
        yield command_of(result, *command)


def read_heads(subject: Subject, settings: Settings) -> Cells:
    yield from read_own_cells(subject.directory / "interpret.json", "heads")


def read_neurons(subject: Subject, settings: Settings) -> Cells:
    for table in read_tables(subject.directory / "interpret.json", "neurons"):
        for row in table.rows:
            yield f"{row['kind']} neurons (%)", row["neurons (%)"], ""


def bits_per_byte(subjects: Subjects, settings: Settings) -> Commands:
    for subject in subjects:
        if subject.model.kind != "api":
            result = subject.directory / "bits_per_byte.json"
            flags = ["--data", subject.data, "--out", result]
            module = "nanostories.sweeps.bits_per_byte"
            yield command_of(result, module, subject.model.name, *flags)


def read_bits_per_byte(subject: Subject, settings: Settings) -> Cells:
    yield from read_own_cells(subject.directory / "bits_per_byte.json", "bits per byte")


def memory(subjects: Subjects, settings: Settings) -> Commands:
    for subject in subjects:
        vocab_size = read_json(subject.data / "meta.json")["vocab_size"]
        for kind in ("ours", "eager"):
            result = subject.directory / f"memory-{kind}.json"
            sizes = [result, vocab_size, settings.memory_limit, kind]
            module = "nanostories.sweeps.memory"
            yield command_of(result, module, *sizes, *subject.run.args)


def read_memory(subject: Subject, settings: Settings) -> Cells:
    for kind in ("ours", "eager"):
        yield from read_own_cells(subject.directory / f"memory-{kind}.json", "memory")


MEASURES = {  # name: its commands, and the function that reads their results
    "beginnings": (beginnings, read_scores),
    "scores": (scores, read_scores),
    "probes": (probes, read_answers),
    "instruct": (instructions, read_instructions),
    "unseen": (unseen_words, read_instructions),
    "memorization": (memorization, read_copies),
    "heads": (interpretation, read_heads),
    "neurons": (interpretation, read_neurons),
    "bits_per_byte": (bits_per_byte, read_bits_per_byte),
    "memory": (memory, read_memory),
}


# ---- All measures ----
def commands(names: Sequence[str], subjects: Subjects, settings: Settings) -> Commands:
    for name in names:
        yield from MEASURES[name][0](subjects, settings)


def read_cells(names: Sequence[str], subject: Subject, settings: Settings) -> Cells:
    for name in names:
        yield from MEASURES[name][1](subject, settings)


def read_tables(path: Path, kind: str) -> list[Table]:
    if not path.exists():
        return []
    return [table for table in load(path).tables if table.facts.get("kind") == kind]


def read_labeled_rows(path: Path, kind: str, label: str) -> Iterator[dict[str, Cell]]:
    """The rows of tables of a kind whose first cell is the label."""
    for table in read_tables(path, kind):
        for row in table.rows:
            if next(iter(row.values())) == label:
                yield row


def read_own_cells(path: Path, kind: str) -> Cells:
    """All but the first of a result about one subject."""
    for table in read_tables(path, kind):
        for row in table.rows:
            _, *others = row.items()
            for column, cell in others:
                yield column, cell, table.notes.get(column, "")
