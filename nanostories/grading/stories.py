"""
The completions that are graded, in samples.jsonl of each run, and a row for one score of one of
them.

>>> runs, directory = read_runs([Path("out")])
>>> runs[0].stories[0]
Story(prompt='Once upon a time, Mia had a', completion=' red ball.', instruction='')
"""

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from nanostories.checkpoints.checkpoint import corpus_of
from nanostories.cli import UserError
from nanostories.corpus import instruct_headers
from nanostories.corpus.instruct_headers import MARKER
from nanostories.corpus.token_files import text_identity
from nanostories.generation.prompts import WORD, first_words
from nanostories.generation.samples_file import model_directory, read_rows
from nanostories.grading.scores import AGES, CHAT, IMPORTED, checked
from nanostories.tables import read_user_table


@dataclass(frozen=True)
class Story:
    """A completion of a prompt, perhaps under an instruction (words, features, a summary)."""

    prompt: str
    completion: str
    instruction: str = ""

    @property
    def beginning(self) -> str:
        """The text before the completion, as in samples.jsonl, except for trailing whitespace.
        Stories with the same beginning are compared."""
        return f"{self.instruction}\n{MARKER}{self.prompt}" if self.instruction else self.prompt


class Row(NamedTuple):
    """One score of one story; tables and pictures are pivots of these."""

    judge: str  # "": a metric, which needs no judge
    run: str  # or controls, such as "(true ending)"
    story: Story | None  # None: a figure of the run as a whole, such as its bits per byte
    score: str
    value: float


class Run:
    """A directory with samples.jsonl: one model at one temperature."""

    def __init__(self, name: str, directory: Path, rows: Sequence[dict]):
        self.name = name
        self.rows = rows  # the first completion of each prompt, then the second ones, ...
        # Its directory: out/demo for out/demo/temperature-0.3; samples may also lie apart from
        # their run
        places = model_directory(directory), Path(rows[0].get("model", ""))
        self.model = next((path for path in places if (path / "ckpt.pt").exists()), places[0])
        self.stories = [story_of(row) for row in rows]
        self.beginnings = {story.beginning for story in self.stories}
        pairs = zip(self.stories, rows)
        self.true_endings = [
            replace(story, completion=row["reference"]) for story, row in pairs if row["reference"]
        ]
        # The words of the longest, if completions were cut at the end of a context, else no limit
        words = [len(WORD.findall(story.completion)) for story in self.stories]
        self.longest = math.inf if all(row.get("finished", True) for row in rows) else max(words)
        self.corpus = (
            corpus_of(str(self.model)) if (self.model / "ckpt.pt").exists() else None
        )  # of train.py's runs
        self.text = text_identity(self.corpus) if self.corpus else None


def story_of(row: dict) -> Story:
    """A header above the prompt is the instruction, not the beginning of the story."""
    if row.get("instruction"):
        return Story("", row["completion"], row["prompt"].removesuffix(MARKER).rstrip())
    if instruct_headers.read(row["prompt"]):  # with a beginning below it
        instruction, _, beginning = row["prompt"].partition(f"\n{MARKER}")
        return Story(beginning, row["completion"], instruction.rstrip())
    return Story(row["prompt"], row["completion"])


def endings_by_text(runs: Sequence[Run]) -> list[list[Story]]:
    """The true endings of the runs' prompts, for each text that runs were trained on. Where
    completions were cut, at the end of a context, a longer true ending than any completion is cut
    there, too, as most scores depend on the length."""
    groups = {}
    for run in runs:
        groups.setdefault(run.text, []).append(run)
    found = []
    for own in groups.values():
        endings, longest = (
            [ending for run in own for ending in run.true_endings],
            max(run.longest for run in own),
        )
        if longest < math.inf:
            endings = [
                replace(ending, completion=first_words(ending.completion, longest))
                for ending in endings
            ]
        found.append(endings)
    return found


def read_runs(directories: Sequence[Path]) -> tuple[list[Run], Path]:
    """The runs below the directories, named by their paths, and the directory that contains them
    all."""
    if missing := [directory for directory in directories if not directory.is_dir()]:
        raise UserError(
            f"{missing[0]}: no such directory; name a run, or a directory of runs such as out/"
        )
    common = Path(os.path.relpath(os.path.commonpath([path.resolve() for path in directories])))
    paths = sorted(
        {path.resolve() for directory in directories for path in directory.rglob("samples.jsonl")}
    )
    runs = []
    for path in paths:
        name = os.path.relpath(path.parent, common.resolve())
        if rows := read_rows(path):
            in_order = [rows[key] for key in sorted(rows, key=lambda key: key[::-1])]
            runs.append(Run(path.parent.name if name == "." else name, path.parent, in_order))
    if not runs:
        names = " ".join(map(str, directories))
        raise UserError(
            f"{names}: no stories in a samples.jsonl below; `python sample.py --eval 50` writes"
            " them"
        )
    return runs, common


def imported_rows(paths: Sequence[Path], runs: Sequence[Run]) -> Iterator[Row]:
    """Grades made elsewhere: a CSV with a line for each grading, by the numbers of prompt and
    sample in samples.jsonl; or, without these two columns, with the mean of a run on each line.
    ValueError names the first line that is wrong.

        run,prompt,sample,judge,grammar,plot
        demo,0,2,a teacher,7,5.5
    """
    stories = {
        (run.name, str(row.get("prompt_index", "")), str(row.get("sample_index", ""))): story
        for run in runs
        for row, story in [({}, None), *zip(run.rows, run.stories)]
    }
    for where, cells in (
        line for path in paths for line in read_user_table(path, ("run", "judge"))
    ):
        key, judge = (
            (cells.pop("run"), cells.pop("prompt", ""), cells.pop("sample", "")),
            cells.pop("judge"),
        )
        if key not in stories or cells.keys() - CHAT.keys():
            raise UserError(
                f"{where}: no such run, prompt and sample {key}, or column ({', '.join(cells)})"
            )
        for score, cell in filter(lambda item: item[1], cells.items()):
            try:
                value = checked(
                    score, AGES[cell] if score == "age" and cell in AGES else float(cell)
                )
            except ValueError:
                raise UserError(f"{where}: {score} is {cell!r}, no number on its scale") from None
            yield Row(judge + IMPORTED, key[0], stories[key], score, value)
