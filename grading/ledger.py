"""
What is to be graded (samples.jsonl of every run), and every reply so far (the ledger: grades.jsonl next to it).

>>> runs, directory = read_runs([Path("out")])
>>> ledgers = {run.name: Ledger(run.directory / "grades.jsonl") for run in runs}
>>> requests = plan_requests(runs, {}, ledgers, ChatJudge("gpt-4o-mini", "https://api.openai.com/v1"))
"""

import collections
import contextlib
import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import NamedTuple, Protocol

from corpus import instruct_headers
from corpus.instruct_headers import MARKER
from generation.samples_file import read_rows
from grading.judge_controls import SAFE
from grading.judge_questions import PROTOCOLS
from grading.judge_replies import without_reasoning
from grading.rubrics import is_likelihood_judge
from grading.scores_from_likelihood import key_of_reading, other_beginnings
from grading.story import Story, key_of

# ---- The ledger ----


# How a record's scores were asked for; files of earlier versions may lack all fields from "temperature" on.
ASKED = ("judge", "base_url", "repeat", "kind", "temperature", "text_sha256", "question_sha256")
ASKED += ("protocol", "model")  # model: the one that gave the scores, if the endpoint says so
ASKED += ("prompt_index", "weights", "safe_ending")  # of likelihood judges


class Ledger:
    """grades.jsonl of a run: every reply as one line of JSON, in the order of arrival."""

    def __init__(self, path: Path):
        self.path = path
        self.scores, self.offsets = {}, {}  # key -> the scores, and where their line begins (bytes)
        self.failures = {}  # key -> why there are no scores
        self.asked = {}  # key -> how the scores were asked for: the record without its texts and scores
        self.turns = {}  # key -> the replies of an unfinished conversation: turn -> text
        self.reply_tokens = {}  # (judge, protocol) -> the tokens of each reply
        self.is_cut = False  # a kill left the last line incomplete
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
            print(f"{path}: ignored {unreadable} line(s) that are cut short or damaged")

    def add(self, record: dict, offset: int) -> None:
        key = record["key"]
        if record["scores"]:
            self.scores[key], self.offsets[key] = record["scores"], offset
            self.failures.pop(key, None)
            self.asked[key] = {name: record[name] for name in ASKED if name in record}
        elif "turn" in record:
            self.turns.setdefault(key, {})[record["turn"]] = record["text"]
        elif key not in self.scores:
            self.failures[key] = record["failure"]
        if record["tokens_out"]:
            how = record["judge"], record.get("protocol", "ours")
            self.reply_tokens.setdefault(how, []).append(record["tokens_out"])

    def append(self, record: dict) -> None:
        """In one write, which a kill may cut short but not mix with another."""
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
        """Those of the prompts that have one, once each."""
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
        if not rows:
            raise ValueError(f"{path}: its lines are not the prompts and completions that sample.py writes")
        name = os.path.relpath(path.parent, common.resolve())
        if name == "." and len(paths) == 1:  # with others, one of which may be ./name, it stays "."
            name = path.parent.name
        runs.append(Run(name, path.parent, rows, [story_of(row) for row in rows]))
    if not runs:
        names = " ".join(map(str, directories))
        raise ValueError(f"{names}: no samples.jsonl below; `python sample.py --eval 50` writes one")
    return runs, common


def story_of(row: dict) -> Story:
    """A header above the prompt is what the writer was told to do, not how the story begins."""
    if row.get("instruction"):
        return Story("", row["completion"], row["prompt"].removesuffix(MARKER).rstrip())
    if instruct_headers.read(row["prompt"]):  # with a beginning below it
        instruction, _, beginning = row["prompt"].partition(f"\n{MARKER}")
        return Story(beginning, row["completion"], instruction.rstrip())
    return Story(row["prompt"], row["completion"])


# ---- Requests ----


class Setting(NamedTuple):
    """How a judge was asked. Each table only has grades that were asked for in the same way."""

    judge: str
    temperature: float | None  # None: the API's default
    source: str  # the API's URL, or the weights of a likelihood judge
    question: str = ""  # hash of its words without the story; "" for today's
    protocol: str = "ours"


class Judge(Protocol):
    """chat_judge.ChatJudge or likelihood_judge.LikelihoodJudge."""

    setting: Setting
    repeats: int  # gradings of each story

    def key(self, story: Story, repeat: int) -> str:
        """Equal for the same question to the same judge, and only then."""

    def facts(self) -> dict:
        """What a record says about the judge, and about how it was asked."""


@dataclass
class Request:
    """One question to one judge."""

    key: str
    setting: Setting
    story: Story
    repeat: int
    entries: dict[Ledger, dict] = field(default_factory=dict)  # the ledgers for its replies, and what each adds
    judge: Judge | None = None  # None: recorded by an earlier call, and not asked again

    def earlier_replies(self) -> list[str]:
        """Those of a conversation that an earlier call began."""
        turns = next((ledger.turns[self.key] for ledger in self.entries if self.key in ledger.turns), {})
        return [without_reasoning(turns[i]) for i in sorted(turns)]

    def keep(self, **reply) -> None:
        """Appends a reply to the ledgers."""
        facts = dict(key=self.key, repeat=self.repeat, text_sha256=self.story.sha256) | self.judge.facts()
        for ledger, entry in self.entries.items():
            ledger.append(facts | entry | dict(time=round(time.time())) | reply)


def source_of(weights: str) -> str:
    """The source in a likelihood judge's Setting."""
    return f"weights {weights}"


def entries_of(
    runs: Sequence[Run], controls: Mapping[str, Sequence[Story]], ledgers: Mapping[str, Ledger]
) -> dict[Story, dict[Ledger, dict]]:
    """Everything that may be graded: each story with the ledgers it belongs to, and the fields that each adds."""
    stories = {}
    for run in runs:
        prompts = {}
        wanted = []
        for row, story in zip(run.rows, run.stories):
            entry = dict(kind="completion", prompt_index=row["prompt_index"], sample_index=row["sample_index"])
            wanted.append((story, entry))
            if row.get("reference"):
                prompts[story.task] = row["prompt_index"]
        for kind, of_kind in controls.items():
            own = (story for story in of_kind if story.task in prompts)
            wanted += [(story, dict(kind=kind, prompt_index=prompts[story.task])) for story in own]
        for story, entry in wanted:
            kept = stories.setdefault(story, {}).setdefault(ledgers[run.name], dict(run=run.name) | entry)
            if entry["kind"] == SAFE:  # its text is kept, even if a run wrote the same, or it is the true ending
                kept["safe_ending"] = story.completion
    return stories


def plan_requests(
    runs: Sequence[Run],
    controls: Mapping[str, Sequence[Story]],
    ledgers: Mapping[str, Ledger],  # by the names of the runs
    judge: Judge,
) -> list[Request]:
    """Everything that a judge is to grade, runs and controls mixed: in the order of the keys, which is random.

    A control belongs to every run that has its prompt, and a shared completion to both runs. Each is asked about once.
    """
    requests = {}
    for story, entries in entries_of(runs, controls, ledgers).items():
        for repeat in range(judge.repeats):
            key = judge.key(story, repeat)
            requests[key] = Request(key, judge.setting, story, repeat, entries, judge)
    return [requests[key] for key in sorted(requests)]


def plan_recorded(
    runs: Sequence[Run], controls: Mapping[str, Sequence[Story]], ledgers: Mapping[str, Ledger]
) -> tuple[list[Request], int]:
    """All requests whose scores are in the ledgers and still apply; how many scores are for completions that changed
    since."""
    safe = [story for of_judge in safe_endings(runs, ledgers).values() for story in of_judge]
    stories = entries_of(runs, {**controls, SAFE: safe}, ledgers)
    others, by_hash = other_beginnings(stories), {story.sha256: story for story in stories}
    requests, n_gone, guesses = {}, 0, {}
    for ledger in ledgers.values():
        for key, asked in ledger.asked.items():
            judge, url, repeat = asked["judge"], asked.get("base_url"), asked.get("repeat", 0)
            if "text_sha256" in asked:
                story, temperature = by_hash.get(asked["text_sha256"]), asked["temperature"]
            else:  # an earlier version, which kept only the key
                if (judge, url, repeat) not in guesses:
                    guesses[judge, url, repeat] = guess_keys(stories, judge, url, repeat)
                story, temperature = guesses[judge, url, repeat].get(key, (None, None))
            entries = {each: entry for each, entry in stories.get(story, {}).items() if key in each.scores}
            if not entries:
                n_gone += asked.get("kind") == "completion"
                continue
            if is_likelihood_judge(judge):
                if key != key_of_reading(asked["weights"], story, others[story.task]):
                    continue  # read after other beginnings than today's, or scored by an earlier definition
                setting = Setting(judge, None, source_of(asked["weights"]))
            else:
                protocol = asked.get("protocol", "ours")
                is_asked = protocol in PROTOCOLS  # not imported
                text = PROTOCOLS[protocol].text(story) if is_asked else ""
                is_current = not is_asked or key == key_of(judge, url, temperature, text, repeat)
                words = "" if is_current else asked.get("question_sha256", "unknown")
                setting = Setting(judge, temperature, url, words, protocol)
            requests[key] = Request(key, setting, story, repeat, entries)
    return [requests[key] for key in sorted(requests)], n_gone


def safe_endings(runs: Sequence[Run], ledgers: Mapping[str, Ledger]) -> dict[str, list[Story]]:
    """{source of a judge: the safe endings that it wrote for these runs' prompts}, from the ledgers."""
    drawn = {}
    for run in runs:
        begun = {row["prompt_index"]: story for row, story in zip(run.rows, run.stories)}
        for asked in ledgers[run.name].asked.values():
            if "safe_ending" in asked and asked["prompt_index"] in begun:
                story = replace(begun[asked["prompt_index"]], completion=asked["safe_ending"])
                if story.sha256 == asked["text_sha256"]:  # otherwise the prompt has changed since
                    drawn.setdefault(source_of(asked["weights"]), {})[story] = None
    return {source: list(stories) for source, stories in drawn.items()}


def guess_keys(stories: Iterable[Story], judge: str, url: str, repeat: int) -> dict[str, tuple[Story, float | None]]:
    """{key: (story, temperature)} for all likely temperatures. Back then, there was only one protocol."""
    temperatures = [None, *(round(0.1 * i, 1) for i in range(21))]
    text = PROTOCOLS["ours"].text
    return {key_of(judge, url, t, text(story), repeat): (story, t) for story in stories for t in temperatures}


def name_settings(settings: Sequence[Setting]) -> dict[Setting, str]:
    """What tables call each: its judge and, if this one was asked in several ways, what differs."""
    names = {}
    for setting in settings:
        others = [other for other in settings if other.judge == setting.judge]
        others = [other for other in others if (other.protocol in PROTOCOLS) == (setting.protocol in PROTOCOLS)]
        temperature = "the API's temperature" if setting.temperature is None else f"temperature {setting.temperature:g}"
        words = f"earlier question {setting.question[:6]}" if setting.question else "today's question"
        protocol = f"protocol {setting.protocol}" if setting.protocol in PROTOCOLS else setting.protocol
        how = (setting.judge, temperature, setting.source, words, protocol)
        differ = [name for name, values in zip(how, zip(*others)) if len(set(values)) > 1]
        if setting.protocol != "ours" and protocol not in differ:  # not the default, so always named
            differ.append(protocol)
        names[setting] = f"{setting.judge} ({', '.join(differ)})" if differ else setting.judge
    return names


def find_ledger(request: Request, ledgers: Iterable[Ledger]) -> Ledger | None:
    """A ledger that has its scores."""
    return next((ledger for ledger in ledgers if request.key in ledger.scores), None)


def copy_shared_scores(requests: Iterable[Request], ledgers: Sequence[Ledger]) -> None:
    """Copies scores from one ledger to the others that they belong to, so that each is complete by itself."""
    for request in requests:
        if source := find_ledger(request, ledgers):
            for ledger, entry in request.entries.items():
                if request.key not in ledger.scores:
                    ledger.append(source.record(request.key) | entry)


def mean_scores(requests: Iterable[Request]) -> dict[Story, dict[str, float]]:
    """{story: its scores, as means over the repeats that have any}"""
    stories = {}
    for request in requests:
        ledger, *_ = request.entries
        if scores := ledger.scores.get(request.key):
            stories.setdefault(request.story, []).append(scores)
    return {
        story: {name: fmean(scores[name] for scores in several if name in scores) for name in set().union(*several)}
        for story, several in stories.items()
    }


def judged_by_themselves(runs: Iterable[Run], requests: Iterable[Request]) -> list[str]:
    """The runs among these whose completions were written by the weights that judge them."""
    judged = {(r.setting.source, entry["run"]) for r in requests for entry in r.entries.values()}
    return [run.name for run in runs if (source_of(run.rows[0].get("weights")), run.name) in judged]


def served_models(requests: Iterable[Request]) -> dict[str, int]:
    """{model: how many scores are known to be from it}"""
    models = collections.Counter()
    for request in requests:
        ledger, *_ = request.entries
        if model := ledger.asked.get(request.key, {}).get("model"):
            models[model] += 1
    return models


def failed_requests(requests: Sequence[Request], judge: str) -> tuple[str, list[str]]:
    """How many requests to this judge there are and how many have scores; and a line for each that failed."""
    lines, n_graded = [], 0
    for request in requests:
        ledger, entry = next(iter(request.entries.items()))
        n_graded += request.key in ledger.scores
        if request.key in ledger.failures:
            which = f"completion {entry['sample_index']}" if entry["kind"] == "completion" else entry["kind"]
            where = f"{entry['run']}, prompt {entry['prompt_index']}, {which}"
            lines.append(f"{judge}, {where}: {ledger.failures[request.key]}")
    counts = f"{n_graded:,} of {len(requests):,} gradings"
    counts += f"; {len(lines):,} failed and are not counted" if lines else ""
    return counts + ", as recorded earlier" * all(request.judge is None for request in requests), lines
