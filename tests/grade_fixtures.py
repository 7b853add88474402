"""What tests of grade.py share: runs to grade, a judge of rules of thumb behind an API, what was
kept and concluded."""

import random

import pytest
from faulty_endpoint import serve

import grade
from nanostories.corpus import builtin_stories
from nanostories.files import read_json_lines
from nanostories.generation.prompts import cut_story
from nanostories.generation.samples_file import write_rows
from nanostories.grading.stories import Story
from nanostories.results import load

KEY = "sk-secret-0123456789"
GOOD = dict(grammar=8, creativity=7, consistency=9, plot=6, age_group="C")


def true_endings(n: int) -> list[Story]:
    prompts = [cut_story(story.text, 0.5) for story in builtin_stories.stories(n)]
    return [Story(prompt.text, prompt.reference) for prompt in prompts]


def write_samples(run, n_prompts: int, n: int, seed: int = 0, before="", name="eval", **facts):
    """As sample.py would, of a model that writes true endings with some words exchanged."""
    rng = random.Random(f"{run.name}/{seed}")
    rows = []
    for i, story in enumerate(true_endings(n_prompts)):
        for j in range(n):
            words = [word if rng.random() < 0.9 else "and" for word in story.completion.split(" ")]
            row = dict(prompt_index=i, sample_index=j, prompt=before + story.prompt)
            row |= dict(reference=story.completion, completion=" ".join(words))
            rows.append(row | dict(finished=j % 2 == 0, model=f"out/{run.name}") | facts)
    write_rows(run / "samples" / f"{name}.jsonl", rows)


def read_by_transformers(directory):
    """(beginning, text) -> log-likelihoods of the text's tokens by the reference implementation, in
    float64."""
    import torch  # not before OMP_NUM_THREADS is set

    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(directory).eval().double()
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)

    def nats(before: str, text: str) -> list[float]:
        own = tokenizer(text).input_ids
        ids = tokenizer(before).input_ids + own
        found = theirs(torch.tensor([ids])).logits[0].log_softmax(-1)
        return [found[i - 1, ids[i]].item() for i in range(-len(own), 0)]

    return nats


@pytest.fixture
def api():
    with serve() as api:
        yield api


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


@pytest.fixture
def grade_py(out, monkeypatch, api, command_line):
    """Runs grade.py beside out/, where a and b are: (exit code or message, what was printed)."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)
    monkeypatch.setattr("nanostories.figures.save_figure", lambda *args: None)  # a second
    for name in "ab":
        write_samples(out / name, 5, 2)
    run = command_line(grade, out.parent)

    def call(*arguments, judge="rules"):
        directories = ["out"] if not arguments or arguments[0].startswith("-") else []
        asked = ["--timeout", "600"]  # machines are busy
        if judge and "--no_judge" not in arguments:
            asked += ["--judge", judge, "--base_url", api.url]
        return run(*directories, *arguments, *asked)

    return call


@pytest.fixture
def graded(grade_py):
    """As grade_py, which must succeed -> what it printed."""

    def call(*arguments, **judge) -> str:
        code, printed = grade_py(*arguments, **judge)
        assert code == 0, code
        return printed.out

    return call


def records(out) -> list[dict]:
    """The whole lines of grades.jsonl: a line may be cut by a kill or a full disk."""
    return list(read_json_lines(out / "grades.jsonl"))


def rows_of(out, kind: str) -> list[dict]:
    """The rows of all tables of a kind in grades.json, each with its judge."""
    found = []
    for table in load(out / "grades.json").tables:
        if table.facts["kind"] == kind:
            found += [row | {"judge": table.facts.get("judge")} for row in table.rows]
    return found


def means(out) -> dict[tuple[str, str, str], float]:
    """{(judge, run, score): mean}"""
    found = {}
    for row in rows_of(out, "scores"):
        for name, cell in row.items():
            if isinstance(cell, list):
                found[row["judge"], row["run"], name] = cell[0]
    return found


def wins(out) -> dict[tuple[str, str, str], float]:
    """{(judge, control, score): paired wins}"""
    rows = rows_of(out, "controls")
    return {(row["judge"], row["control"], row["score"]): row["paired wins"][0] for row in rows}
