"""
What grade.py adds to the judge's own time, over 10,000 gradings, by part: here the judge answers at once. No peer.

$ python bench.py grade
"""

import asyncio
import contextlib
import io
import json
import os
import tempfile
import time
from pathlib import Path

from benches.measure import alone, medians, memory_mib
from corpus.builtin_stories import stories
from generation.api_client import Bill, Endpoint, Patience, Reply
from generation.prompts import cut_story
from generation.samples_file import write_rows
from grade import conclude, grade_all, parse_arguments
from grading.controls import controls
from grading.ledger import Ledger, plan, read_runs
from grading.scoreboard import SCORES

RUNS, PROMPTS, COMPLETIONS, REPEATS = 5, 100, 10, 2
REPLY = dict(assessment="A story that hangs together, in simple words. It ends a little soon.", age_group="C")


class InstantJudge(Endpoint):
    """Replies at once, with scores that differ by question."""

    async def ask(self, model: str, text: str, response_format: dict) -> Reply:
        scores = {name: (len(text) + place) % 11 for place, name in enumerate(SCORES)}
        return Reply(json.dumps(REPLY | scores), None, 500, 60)


def write_samples(out: Path):
    """RUNS runs, each with the endings of built-in stories other than the prompt's."""
    pieces = [cut_story(story.text, 0.5) for story in stories(PROMPTS + RUNS * COMPLETIONS)]
    for run in range(RUNS):
        rows = [
            dict(prompt_index=i, sample_index=j, prompt=pieces[i].text, reference=pieces[i].reference, finished=True)
            | dict(completion=pieces[i + run * COMPLETIONS + j].reference)
            for i in range(PROMPTS)
            for j in range(COMPLETIONS)
        ]
        write_rows(out / f"run{run}" / "samples.jsonl", rows)


def grade_at_once(directory: str) -> dict[str, float]:
    """Everything that grade.py does except wait -> seconds of each part, and the peak of added memory in MiB."""
    os.chdir(directory)
    write_samples(Path("out"))
    args = parse_arguments(f"out --judge instant --base-url http://localhost --repeats {REPEATS}".split())
    before, start, figures = memory_mib("VmRSS"), time.perf_counter(), {}

    def lap(name: str):
        figures[name] = time.perf_counter() - start - sum(figures.values())

    runs, common = read_runs(args.directories)
    ledgers = {run.name: Ledger(run.directory / "grades.jsonl") for run in runs}
    gradings = plan(runs, {}, ledgers, args)
    lap("read and plan")
    judge = InstantJudge(args.base_url, Bill(), Patience())
    asyncio.run(grade_all(gradings, judge, args.concurrency))
    lap("parse and append")
    for run in runs:
        Ledger(run.directory / "grades.jsonl")
    lap("read again")
    kinds = controls([ending for run in runs for ending in run.true_endings])
    with contextlib.redirect_stdout(io.StringIO()):
        conclude(runs, kinds, gradings, common, args)
    lap("aggregate, table and plot")
    return dict(gradings=len(gradings)) | figures | dict(mib=memory_mib("VmHWM") - before)


def bench(rounds: int) -> tuple[dict, dict]:
    results = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as directory:
            results.append(alone(grade_at_once, directory))
    seconds = medians(results)
    n, mib = seconds.pop("gradings"), seconds.pop("mib")
    figures = {f"{name}, ms each": 1000 * value / n for name, value in seconds.items()}
    figures |= {"all, ms each": sum(figures.values()), "gradings": n, "memory added, MiB": mib}
    return {}, figures
