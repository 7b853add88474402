"""
What is to be graded, and what has been: samples.jsonl of every run, grades.jsonl beside it.
"""

import argparse
import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from corpus.instruct_headers import MARKER
from generation.api_client import public
from generation.samples_file import read_rows
from grading.judge import Story, question

# ---- What is graded ----


@dataclass
class Run:
    """A directory with samples.jsonl."""

    name: str
    directory: Path
    rows: list[dict]  # the first completion of every prompt, then the second ones, ...
    stories: list[Story]  # of the rows

    @property
    def true_endings(self) -> list[Story]:
        """Of the prompts that have one, once each."""
        pairs = zip(self.rows, self.stories)
        endings = (replace(story, completion=row["reference"]) for row, story in pairs if row.get("reference"))
        return list(dict.fromkeys(endings))


def read_runs(directories: Sequence[Path]) -> tuple[list[Run], Path]:
    """The runs below the directories, named by their place, and the directory that holds them all."""
    for directory in directories:
        if not directory.is_dir():
            raise ValueError(f"{directory}: no such directory; name a run, or a directory of runs such as out/")
    common = Path(os.path.relpath(os.path.commonpath([path.resolve() for path in directories])))
    paths = sorted({path.resolve() for directory in directories for path in directory.rglob("samples.jsonl")})
    runs = []
    for path in paths:
        rows = [row for _, row in sorted(read_rows(path).items(), key=lambda item: item[0][::-1])]
        if not rows or not all(isinstance(row.get(name), str) for row in rows for name in ("prompt", "completion")):
            raise ValueError(f"{path}: its lines are not the prompts and completions that sample.py writes")
        stories = [story_of(row) for row in rows]
        name = os.path.relpath(path.parent, common.resolve())
        if name == "." and len(paths) == 1:  # beside others, one of which may be ./name, it stays "."
            name = path.parent.name
        runs.append(Run(name, path.parent, rows, stories))
    if not runs:
        raise ValueError(
            f"{' '.join(map(str, directories))}: no samples.jsonl below; `python sample.py --eval 50` writes one"
        )
    return runs, common


def story_of(row: dict) -> Story:
    """Where the prompt is a header, it is what the writer was told to do, and not how the story begins."""
    if row.get("instruction"):
        return Story("", row["completion"], row["prompt"].removesuffix(MARKER).rstrip())
    return Story(row["prompt"], row["completion"])


@dataclass
class Grading:
    """One question to one judge; the ledgers that its replies belong to, and what it is about in the words of each."""

    key: str
    judge: str
    story: Story
    repeat: int
    places: dict["Ledger", dict] = field(default_factory=dict)


def key_of(judge: str, base_url: str, temperature: float | None, text: str, repeat: int) -> str:
    """The same for the same question to the same judge, and for nothing else."""
    return hashlib.sha256(json.dumps([judge, base_url, temperature, text, repeat]).encode()).hexdigest()


def plan(
    runs: Sequence[Run],
    spoiled: Mapping[str, Sequence[Story]],
    ledgers: Mapping[str, "Ledger"],
    args: argparse.Namespace,
) -> list[Grading]:
    """All that is to be graded, runs and controls mixed, in the order of the keys, which is no order at all.

    A control belongs to every run that has its prompt; so does a completion that two of them share. It is asked once.
    """
    gradings = {}
    for run in runs:
        pairs = zip(run.rows, run.stories)
        prompts = {story.task: row["prompt_index"] for row, story in pairs if row.get("reference")}
        wanted = [
            (story, dict(kind="completion", prompt_index=row["prompt_index"], sample_index=row["sample_index"]))
            for row, story in zip(run.rows, run.stories)
        ]
        for kind, stories in spoiled.items():
            of_run = (story for story in stories if story.task in prompts)
            wanted += [(story, dict(kind=kind, prompt_index=prompts[story.task])) for story in of_run]
        for story, place in wanted:
            text = question(story)
            for judge in args.judge:
                for repeat in range(args.repeats):
                    key = key_of(judge, public(args.base_url), args.temperature, text, repeat)
                    grading = gradings.setdefault(key, Grading(key, judge, story, repeat))
                    grading.places.setdefault(ledgers[run.name], dict(run=run.name) | place)
    return [gradings[key] for key in sorted(gradings)]


# ---- What is kept ----


class Ledger:
    """grades.jsonl of a run: every reply as a JSON object on a line, in the order in which they came."""

    def __init__(self, path: Path):
        self.path = path
        self.scores, self.places = {}, {}  # key -> the scores, and where their line begins
        self.failures = {}  # key -> why there are none
        self.reply_tokens = {}  # judge -> those of each reply
        self.is_cut = False  # killed while it wrote the last line
        unreadable, offset = 0, 0
        with path.open("rb") if path.exists() else contextlib.nullcontext([]) as lines:
            for line in lines:
                try:
                    self.take(json.loads(line), offset)
                except (ValueError, TypeError, KeyError):
                    unreadable += 1
                offset += len(line)
                self.is_cut = not line.endswith(b"\n")
        if unreadable:
            print(f"{path}: {unreadable} line(s) cut short or damaged, which count for nothing")

    def take(self, record: dict, offset: int) -> None:
        if record["scores"]:
            self.scores[record["key"]], self.places[record["key"]] = record["scores"], offset
            self.failures.pop(record["key"], None)
        elif record["key"] not in self.scores:
            self.failures[record["key"]] = record["failure"]
        if record["tokens_out"]:
            self.reply_tokens.setdefault(record["judge"], []).append(record["tokens_out"])

    def append(self, record: dict) -> None:
        """In one write, which a kill may cut but not mix with another."""
        line = json.dumps(record, ensure_ascii=False).encode(errors="replace") + b"\n"
        with self.path.open("ab") as file:
            was_cut, self.is_cut = self.is_cut, True  # until it is written: the disk may be full
            offset = file.tell() + was_cut
            file.write(b"\n" * was_cut + line)
        self.is_cut = False
        self.take(record, offset)

    def record(self, key: str) -> dict:
        with self.path.open("rb") as file:
            file.seek(self.places[key])
            return json.loads(file.readline())


def owner_of(grading: Grading, ledgers: Mapping[str, Ledger]) -> Ledger | None:
    return next((ledger for ledger in ledgers.values() if grading.key in ledger.scores), None)


def share_out(gradings: Iterable[Grading], ledgers: Mapping[str, Ledger]) -> None:
    """What one ledger has is written to the others that it belongs to, so that each is complete without them."""
    for grading in gradings:
        if owner := owner_of(grading, ledgers):
            for ledger, place in grading.places.items():
                if grading.key not in ledger.scores:
                    ledger.append(owner.record(grading.key) | place)
