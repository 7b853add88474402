"""
The completions that are graded: one set of each run, such as samples/eval.jsonl.

>>> runs, directory = read_runs([Path("out")])
>>> runs[0].stories[0]
Story(opening='Once upon a time, Mia had a', completion=' red ball.', instruction='')
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from nanostories.checkpoints.checkpoint import checkpoint_file, identity_of_checkpoint
from nanostories.checkpoints.models import Model, label_of, open_model
from nanostories.cli import UserError
from nanostories.corpus import instruct_headers
from nanostories.corpus.instruct_headers import MARKER
from nanostories.files import common_directory
from nanostories.generation.samples_file import EVAL, read_rows, run_of_samples, set_file

# Runs are compared where these are equal.
SAMPLING_SETTINGS = ("cut", "ask", "temperature", "top_k", "beams", "best_of", "max_new_tokens")
SAMPLING = ("split", "draw", *SAMPLING_SETTINGS)


@dataclass(frozen=True)
class Story:
    """A completion of a prompt, perhaps under an instruction (words, features, a summary)."""

    opening: str  # the prompt without the instruction
    completion: str
    instruction: str = ""
    # Whether the model ended it by itself. Equal texts are graded once.
    finished: bool | None = field(default=None, compare=False)
    # The prompt's true ending, where there is one
    reference: str | None = field(default=None, compare=False)

    @property
    def prompt(self) -> str:
        """As in its file, except for trailing whitespace."""
        if self.instruction:
            return f"{self.instruction}\n{MARKER}{self.opening}"
        return self.opening


def story_of(row: dict) -> Story:
    """A header at the top of the prompt is the instruction, not the story's opening."""
    instruction = ""
    opening = row["prompt"]
    if instruct_headers.read(opening):
        header, _, opening = opening.partition(f"\n{MARKER}")
        instruction = header.rstrip()
    return Story(opening, row["completion"], instruction, row.get("finished"), row["reference"])


class Run:
    """The stories of one file: of one model, sampled in one way."""

    def __init__(self, name: str, samples: Path, rows: Sequence[dict]):
        self.name = name  # in tables
        self.samples = samples
        self.rows = rows  # the first completion of each prompt, then the second ones, …
        self.stories = [story_of(row) for row in rows]
        self.prompts = list(dict.fromkeys(story.prompt for story in self.stories))
        # Whether max_new_tokens or the context's end cut any of its stories
        self.is_cut = any(story.finished is False for story in self.stories)

    @cached_property
    def model(self) -> Model | None:
        return writer_of(self.samples.parent.parent, self.rows)

    @cached_property
    def corpus(self) -> Path | None:
        return self.model.evaluation_corpus() if self.model else None


def writer_of(directory: Path, rows: Sequence[dict]) -> Model | None:
    """The run of train.py that wrote these stories. They are in its directory, in one below it
    (temperature-0.3), or apart from it."""
    named = rows[0].get("model") or ""
    if named.startswith(("hf:", "api:")):
        return None
    for place in (run_of_samples(directory), Path(named)):
        if checkpoint_file(place).is_file():
            return open_model(str(place))
    return None


def warn_of_other_weights(rows: Sequence[dict]) -> list[str]:
    """rows: of one set"""
    path = checkpoint_file(rows[0].get("model") or "")
    weights = rows[0].get("weights")
    if not weights or not path.is_file() or identity_of_checkpoint(path) == weights:
        return []
    return [f"sampled before {path} changed: delete these stories, and sample again"]


def different_settings(runs: Sequence[Run]) -> list[str]:
    """Those of SAMPLING in which the runs differ. Limits that cut none of their stories are no
    difference."""
    different = []
    for name in SAMPLING:
        values = {run.rows[0].get(name) for run in runs}
        if len(values) > 1:
            different.append(name)
    if "max_new_tokens" in different and not any(run.is_cut for run in runs):
        different.remove("max_new_tokens")
    return different


def by_numbers(path: Path) -> list[str | int]:
    """For sorting: step-8 before step-23."""
    parts = re.split(r"(\d+)", str(path))
    return [int(part) if part.isdecimal() else part for part in parts]


def read_runs(
    directories: Sequence[Path],
    name: str = EVAL,
    n_prompts: int | None = None,
    out: Path | None = None,
) -> tuple[list[Run], Path]:
    """The runs below the directories that have a set of this name, with the stories of its first
    prompts, and the directory of the results: `out`, or the one that contains them all."""
    found = {}  # by their real paths, as directories may overlap
    for directory in directories:
        if not directory.is_dir():
            raise UserError(
                f"{directory}: no such directory; name a run, or a directory of runs such as out/"
            )
        for path in directory.rglob("samples/*.jsonl"):
            found.setdefault(path.resolve(), path)
    results_directory = out or Path(os.path.relpath(common_directory(directories)))
    runs = []
    for directory in sorted({path.parent.parent for path in found.values()}, key=by_numbers):
        path = set_file(directory, name)
        rows = read_rows(path)
        if n_prompts:
            rows = {key: row for key, row in rows.items() if key[0] < n_prompts}
        if rows:
            in_order = [rows[key] for key in sorted(rows, key=lambda key: key[::-1])]
            runs.append(Run(label_of(directory, results_directory), path, in_order))
    if not runs:
        places = " ".join(map(str, directories))
        others = ", ".join(sorted({path.stem for path in found})) or "none"
        raise UserError(
            f"{places}: no stories in a samples/{name}.jsonl below; `python sample.py --eval 50`"
            f" writes eval.jsonl; --set takes one that is there: {others}"
        )
    return runs, results_directory
