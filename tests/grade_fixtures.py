"""What tests of grade.py share: runs to grade, a judge of rules of thumb behind an API, what was kept and concluded."""

import collections
import csv
import json
import random

import pytest
from faulty_endpoint import serve

import grade
from corpus import builtin_stories
from generation.api_client import RetryPolicy
from generation.prompts import cut_story
from grading import scores_plot
from grading.story import Story

KEY = "sk-secret-0123456789"
HASTY = RetryPolicy(attempts=8, first_delay=0.01, longest_delay=0.05)


def true_endings(n: int) -> list[Story]:
    prompts = [cut_story(story.text, 0.5) for story in builtin_stories.stories(n)]
    return [Story(prompt.text, prompt.reference) for prompt in prompts]


def write_samples(run, n_prompts: int, n: int, seed: int = 0, **facts):
    """As sample.py --eval would, of a model that writes true endings with some words lost."""
    rng, rows = random.Random(f"{run.name}/{seed}"), []
    for i, story in enumerate(true_endings(n_prompts)):
        for j in range(n):
            words = [word for word in story.completion.split(" ") if rng.random() < 0.9]
            row = dict(prompt_index=i, sample_index=j, prompt=story.prompt, reference=story.completion)
            rows.append(row | dict(completion=" ".join(words), finished=j % 2 == 0, model=f"out/{run.name}") | facts)
    run.mkdir(parents=True, exist_ok=True)
    (run / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def api():
    with serve() as api:
        yield api


@pytest.fixture
def grade_py(tmp_path, monkeypatch, api, capsys):
    """Runs grade.py in tmp_path, where out/a and out/b are: (exit code or message, what was printed)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    for name in "ab":
        write_samples(tmp_path / "out" / name, 5, 2)

    draw = scores_plot.plot

    def call(*arguments, retries=HASTY, judge="rules", picture=False):
        monkeypatch.setattr(scores_plot, "plot", draw if picture else lambda *_: None)  # it takes a second
        directories = ["out"] if not arguments or arguments[0].startswith("-") else []
        asked = ["--judge", judge, "--base_url", api.url] if judge else []
        code = 0
        try:
            grade.main([*directories, "--timeout", "600", *arguments, *asked], retries)  # 600: machines are busy
        except SystemExit as exit:
            code = exit.code
        return code, capsys.readouterr()

    return call


@pytest.fixture
def tables_only(monkeypatch):
    """No picture, no agreement of judges: they take seconds."""
    monkeypatch.setattr("grading.scores_plot.plot", lambda *args: None)
    monkeypatch.setattr("grading.compare_models.agreement", lambda *args: [])


def records(run) -> list[dict]:
    """Those that are whole: a line may be cut by a kill or a full disk, and the next one begins behind it."""
    lines = (run / "grades.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines if line.endswith("}")]


def graded(tmp_path) -> dict[str, int]:
    """key -> how often it was given scores in one ledger, at the most."""
    counts = collections.Counter()
    for run in (tmp_path / "out").iterdir():
        if (run / "grades.jsonl").exists():
            of_run = collections.Counter(r["key"] for r in records(run) if r["scores"])
            counts |= of_run
    return counts


def table(tmp_path) -> list[dict]:
    with (tmp_path / "out" / "grades.csv").open(newline="") as file:
        return list(csv.DictReader(file))
