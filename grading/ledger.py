"""
What is to be graded (samples.jsonl of every run) and every reply so far: grades.jsonl beside it, the ledger.

>>> runs, directory = read_runs([Path("out")])
>>> requests = plan_requests(runs, {}, judges=["gpt-4o-mini"], url="https://api.openai.com/v1")
"""

import collections
import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean

from corpus.instruct_headers import MARKER
from generation.samples_file import read_rows
from grading.judge import Story, question

# ---- The ledger ----


class Ledger:
    """grades.jsonl of a run: every reply as a JSON object on a line, in the order in which they came."""

    def __init__(self, path: Path):
        self.path = path
        self.scores, self.offsets = {}, {}  # key -> the scores, and where their line begins (bytes)
        self.failures = {}  # key -> why there are no scores
        self.models = {}  # key -> which model gave the scores, where the endpoint said so
        self.settings = {}  # judge -> how its last scores were asked for: base_url, temperature (None: unknown, too)
        self.repeats = {}  # judge -> the most gradings of one completion
        self.reply_tokens = {}  # judge -> the tokens of each reply
        self.is_cut = False  # killed while it wrote the last line
        unreadable, offset = 0, 0
        with path.open("rb") if path.exists() else contextlib.nullcontext([]) as lines:
            for line in lines:
                try:
                    self.add(json.loads(line), offset)
                except (ValueError, TypeError, KeyError):
                    unreadable += 1
                offset += len(line)
                self.is_cut = not line.endswith(b"\n")
        if unreadable:
            print(f"{path}: {unreadable} line(s) cut short or damaged, which are ignored")

    def add(self, record: dict, offset: int) -> None:
        key = record["key"]
        if record["scores"]:
            self.scores[key], self.offsets[key] = record["scores"], offset
            self.models[key] = record.get("model")  # not in files of earlier versions
            self.failures.pop(key, None)
            if judge := record.get("judge"):
                self.settings[judge] = record.get("base_url"), record.get("temperature")
                self.repeats[judge] = max(self.repeats.get(judge, 1), record.get("repeat", 0) + 1)
        elif key not in self.scores:
            self.failures[key] = record["failure"]
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
        self.add(record, offset)

    def record(self, key: str) -> dict:
        with self.path.open("rb") as file:
            file.seek(self.offsets[key])
            return json.loads(file.readline())


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
    """The runs below the directories, named by their paths, and the directory that contains them all."""
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
        name = os.path.relpath(path.parent, common.resolve())
        if name == "." and len(paths) == 1:  # beside others, one of which may be ./name, it stays "."
            name = path.parent.name
        runs.append(Run(name, path.parent, rows, [story_of(row) for row in rows]))
    if not runs:
        names = " ".join(map(str, directories))
        raise ValueError(f"{names}: no samples.jsonl below; `python sample.py --eval 50` writes one")
    return runs, common


def story_of(row: dict) -> Story:
    """A header as the prompt is what the writer was told to do, not how the story begins."""
    if row.get("instruction"):
        return Story("", row["completion"], row["prompt"].removesuffix(MARKER).rstrip())
    return Story(row["prompt"], row["completion"])


# ---- Requests ----


@dataclass
class Request:
    """One question to one judge."""

    key: str
    judge: str
    story: Story
    repeat: int
    entries: dict[Ledger, dict] = field(default_factory=dict)  # the ledgers for its replies, and what each says of it


def key_of(judge: str, url: str, temperature: float | None, text: str, repeat: int) -> str:
    """The same for the same question to the same judge, and for nothing else."""
    return hashlib.sha256(json.dumps([judge, url, temperature, text, repeat]).encode()).hexdigest()


def hash_of(story: Story) -> str:
    """Of the text that is graded, whatever the question about it."""
    text = json.dumps([story.instruction, story.prompt, story.completion])
    return hashlib.sha256(text.encode()).hexdigest()


def plan_requests(
    runs: Sequence[Run],
    controls: Mapping[str, Sequence[Story]],
    ledgers: Mapping[str, Ledger],  # by the names of the runs
    judges: Sequence[str],
    url: str,
    temperature: float | None = None,
    repeats: int = 1,
) -> list[Request]:
    """All that is to be graded, runs and controls mixed: in the order of the keys, which is random to a judge.

    A control belongs to every run that has its prompt; so does a completion that two of them share. It is asked once.
    """
    requests = {}
    for run in runs:
        prompts = {}
        wanted = []
        for row, story in zip(run.rows, run.stories):
            entry = dict(kind="completion", prompt_index=row["prompt_index"], sample_index=row["sample_index"])
            wanted.append((story, entry))
            if row.get("reference"):
                prompts[story.task] = row["prompt_index"]
        for kind, stories in controls.items():
            own = (story for story in stories if story.task in prompts)
            wanted += [(story, dict(kind=kind, prompt_index=prompts[story.task])) for story in own]
        for story, entry in wanted:
            text = question(story)
            for judge in judges:
                for repeat in range(repeats):
                    key = key_of(judge, url, temperature, text, repeat)
                    request = requests.setdefault(key, Request(key, judge, story, repeat))
                    request.entries.setdefault(ledgers[run.name], dict(run=run.name) | entry)
    return [requests[key] for key in sorted(requests)]


def plan_recorded(
    runs: Sequence[Run], controls: Mapping[str, Sequence[Story]], ledgers: Mapping[str, Ledger], judge: str
) -> list[Request]:
    """The requests to this judge whose scores are in the ledgers: as they were asked for last, nothing new.

    Of several settings, the one with most scores. Earlier versions did not record the temperature: the usual are tried.
    """
    settings = {ledger.settings[judge] for ledger in ledgers.values() if judge in ledger.settings}
    repeats = max(ledger.repeats.get(judge, 1) for ledger in ledgers.values())
    known = []
    for url, temperature in sorted(settings, key=str):
        for candidate in [None, 0.0, 1.0] if temperature is None else [temperature]:
            plan = plan_requests(runs, controls, ledgers, [judge], url, candidate, repeats)
            known.append([request for request in plan if find_ledger(request, ledgers.values())])
    return max(known, key=len)


def find_ledger(request: Request, ledgers: Iterable[Ledger]) -> Ledger | None:
    """One that has its scores."""
    return next((ledger for ledger in ledgers if request.key in ledger.scores), None)


def copy_shared_scores(requests: Iterable[Request], ledgers: Sequence[Ledger]) -> None:
    """Copies scores from one ledger to the others that they belong to, so that each is complete without them."""
    for request in requests:
        if source := find_ledger(request, ledgers):
            for ledger, entry in request.entries.items():
                if request.key not in ledger.scores:
                    ledger.append(source.record(request.key) | entry)


def mean_scores(requests: Iterable[Request], judges: Sequence[str]) -> dict[str, dict[Story, dict[str, float]]]:
    """judge -> story -> its scores: means over the repeats that have any."""
    repeats = {judge: {} for judge in judges}
    for request in requests:
        ledger, *_ = request.entries
        if scores := ledger.scores.get(request.key):
            repeats[request.judge].setdefault(request.story, []).append(scores)
    return {
        judge: {
            story: {name: fmean(scores[name] for scores in several if name in scores) for name in set().union(*several)}
            for story, several in stories.items()
        }
        for judge, stories in repeats.items()
    }


def served_models(requests: Iterable[Request], judge: str) -> dict[str, int]:
    """{model: of how many scores of this judge it is known that they are from this model}."""
    models = collections.Counter()
    for request in requests:
        ledger, *_ = request.entries
        if request.judge == judge and (model := ledger.models.get(request.key)):
            models[model] += 1
    return models


def failed_requests(requests: Sequence[Request], judge: str) -> tuple[str, list[str]]:
    """How many requests to this judge there are and how many have scores; and a line for each that failed."""
    own = [request for request in requests if request.judge == judge]
    lines, n_graded = [], 0
    for request in own:
        ledger, entry = next(iter(request.entries.items()))
        n_graded += request.key in ledger.scores
        if request.key in ledger.failures:
            which = f"completion {entry['sample_index']}" if entry["kind"] == "completion" else entry["kind"]
            where = f"{entry['run']}, prompt {entry['prompt_index']}, {which}"
            lines.append(f"{judge}, {where}: {ledger.failures[request.key]}")
    counts = f"{n_graded:,} of {len(own):,} gradings"
    return counts + (f"; {len(lines):,} failed and are not counted" if lines else ""), lines
