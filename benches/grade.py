"""
What grade.py adds to the judge's own time, over 10,000 gradings, by part: here the judge answers at once. No peer.

$ python bench.py grade
"""

import contextlib
import io
import json
import os
import time
from pathlib import Path

from benches.measure import alone, medians_of_rounds, memory_mib
from corpus.builtin_stories import stories
from generation.api_client import ApiClient, Reply
from generation.prompts import cut_story
from generation.samples_file import write_rows
from grade import write_results
from grading.chat_judge import ChatJudge, grade
from grading.judge_controls import make_controls
from grading.ledger import Ledger, plan_requests, read_runs
from grading.rubrics import SCORES

RUNS, PROMPTS, COMPLETIONS, REPEATS = 5, 100, 10, 2
REPLY = dict(assessment="A story that hangs together, in simple words. It ends a little soon.", age_group="C")


class InstantJudge(ApiClient):
    """Replies at once, with scores that depend on the question."""

    async def ask(self, body: dict) -> Reply:
        length = len(body["messages"][0]["content"])
        scores = {name: (length + i) % 11 for i, name in enumerate(SCORES)}
        return Reply(json.dumps(REPLY | scores), "stop", 500, 60)


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
    judge = ChatJudge("instant", "http://localhost", repeats=REPEATS)
    before, start, figures = memory_mib("VmRSS"), time.perf_counter(), {}

    def lap(name: str):
        figures[name] = time.perf_counter() - start - sum(figures.values())

    runs, directory = read_runs([Path("out")])
    requests = plan_requests(runs, {}, {run.name: Ledger(run.directory / "grades.jsonl") for run in runs}, judge)
    lap("read and plan")
    client = InstantJudge(judge.url)
    for _ in client.run(grade(request, client, 2000) for request in requests):
        pass
    lap("parse and append")
    for run in runs:
        Ledger(run.directory / "grades.jsonl")
    lap("read again")
    controls = make_controls([ending for run in runs for ending in run.true_endings])
    with contextlib.redirect_stdout(io.StringIO()):
        write_results(runs, controls, {}, requests, [judge], [], directory)
    lap("aggregate, table and plot")
    return dict(gradings=len(requests)) | figures | dict(mib=memory_mib("VmHWM") - before)


def bench(rounds: int) -> tuple[dict, dict]:
    seconds = medians_of_rounds(lambda directory, _: alone(grade_at_once, directory), rounds)
    n, mib = seconds.pop("gradings"), seconds.pop("mib")
    figures = {f"{name}, ms each": 1000 * value / n for name, value in seconds.items()}
    figures |= {"all, ms each": sum(figures.values()), "gradings": n, "memory added, MiB": mib}
    return {}, figures
