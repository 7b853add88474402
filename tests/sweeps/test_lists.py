"""Every list of experiments.py, end to end at toy size: it trains, measures, and ends with its
table and picture."""

import importlib
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import ROOT
from random_models import random_model
from story_files import STORIES, write_stories

from nanostories.checkpoints.checkpoint import runs_below
from nanostories.checkpoints.huggingface import save_hf
from nanostories.corpus.tokenizer import gpt2
from nanostories.figures import save_figure
from nanostories.files import read_json
from nanostories.generation.samples_file import EVAL, read_rows, set_file
from nanostories.grading.pairs import read_pairs
from nanostories.results import load, to_text
from nanostories.sweeps import lists, runner
from nanostories.sweeps.measures import MEASURES
from nanostories.tables import read_table

TOY = dict(device="cpu", dtype="float32", block_size=200, learning_rate=1e-2, eval_tokens=1000)
TOY |= dict(n_embd=16, n_layer=2, n_head=2)


def toy(listed: lists.Runs) -> lists.Runs:
    """Two steps of the first variant and of the last, both tiny."""
    if not listed.trains:  # memory
        return replace(listed, variants={"gpt2-64": dict(block_size=512)})
    variants = {}
    names = list(listed.variants)
    for width, name in ((16, names[0]), (32, names[-1])):
        tiny = dict(n_embd=width, n_layer=3, n_head=2, keep_checkpoints=2)
        settings = listed.variants[name]
        variants[name] = {key: tiny.get(key, value) for key, value in settings.items()}
    budgets = listed.budgets and (1e9, 2e9, 3e9, 4e9)
    return replace(listed, variants=variants, steps=min(listed.steps, 2), budgets=budgets)


def draw_the_list(figure, path: Path) -> None:
    """Only the picture of the list: the others take most of the time."""
    if path.stem == "experiment":
        save_figure(figure, path)


@pytest.fixture
def in_process(quick, command_line, tmp_path):
    """experiments.py with all commands in this process, as imports take most of the time of so
    small ones. Returns what it printed after the last of them."""

    def run(name: str, *arguments: str) -> str:
        script = importlib.import_module(name.removesuffix(".py"))
        code, printed = command_line(script, tmp_path)(*arguments)
        assert not code, (name, arguments, code)
        return printed.out

    def train(run_of_list, log) -> str:
        run("train.py", *run_of_list.args)
        return ""

    call_process = runner.call

    def call(command) -> None:
        if command[0] == "nanostories.sweeps.memory":  # which measures its process
            assert call_process(command) == 0
        else:
            run(*command)

    config = tmp_path / "toy.py"
    small = (ROOT / "configs" / "experiment.py").read_text()
    config.write_text(small + "".join(f"{key} = {value!r}\n" for key, value in TOY.items()))
    replacements = {
        "nanostories.sweeps.runner.train_one": train,
        "nanostories.sweeps.runner.call": call,
        "nanostories.figures.save_figure": draw_the_list,
        "nanostories.sweeps.measures.N_PROMPTS": 6,
        "nanostories.sweeps.measures.COPIED": 6,
        "nanostories.sweeps.measures.STORIES_READ": 20,
        "interpret.MIN_STORIES": 20,
        "probe.SENTENCE_TOKENS": 2,
        "probe.read_pairs": lambda path: read_pairs(path)[::40],
    }
    for name, value in replacements.items():
        quick.setattr(name, value)
    scale = replace(
        lists.SCALES["small"], config=str(config), highest_learning_rate=None, min_steps=1
    )
    quick.setitem(lists.SCALES, "small", scale)
    return run


def memory_of_torch() -> int:
    """MB; PyTorch for CUDA takes several times as many as that for CPUs alone."""
    # The first step of an optimizer imports half of it. Not getrusage: its maximum begins with that
    # of the process that started this one.
    script = """import torch, train
torch.optim.AdamW([torch.ones(1, requires_grad=True)]).step()
print(open("/proc/self/status").read())"""
    status = subprocess.check_output([sys.executable, "-c", script], cwd=ROOT, text=True)
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) // 1000


@pytest.mark.parametrize("name", lists.EXPERIMENTS)
def test_a_list_ends_with_its_table_and_picture(
    name, in_process, quick, instruct_data_dir, tmp_path
):
    experiment = lists.EXPERIMENTS[name]
    quick.setitem(lists.EXPERIMENTS, name, replace(experiment, small=toy(experiment.small)))
    out = tmp_path / "out"  # absolute, too, probes and scores have their columns
    limit = 400 + memory_of_torch() if name == "memory" else 700
    command = f"{name} --data_dir={instruct_data_dir} --memory_limit={limit}"
    said = in_process("experiments.py", *command.split(), f"--out_dir={out}")
    directory = out / name
    rows = read_table(directory / "experiment.csv")
    trained = runs_below(directory)
    assert {row["run"].split("/")[0] for row in rows} >= {run.name for run in trained} and rows
    assert to_text(load(directory / "experiment.json")) in said
    assert (directory / "experiment.svg").exists() == (experiment.picture != "")
    expected = {
        "scores": "fluency by ",
        "beginnings": "three_beginnings-3",
        "probes": "context right",
        "instruct": "words: each",
        "unseen": "unseen words",
        "memorization": "highest F with 5 other completions (40% shown)",
        "heads": "semantic",
        "neurons": "noun neurons (%)",
        "bits_per_byte": "byte by windows",
        "memory": "MB, batch 2",
    }
    assert expected.keys() == MEASURES.keys()
    filled = [column for row in rows for column in row if row[column]]
    for measure in experiment.measures:
        assert any(expected[measure] in column for column in filled), measure
    if name == "over_training":  # the same of runs that are there: a color for each
        models = ["--only_models", *trained, f"--grade=--judge lm:{trained[0]}"]
        in_process("experiments.py", *command.split(), f"--out_dir={out}/again", *models)
        again = read_table(out / "again" / name / "experiment.csv")
        assert {row["run"].split("--")[-1] for row in again} == {row["run"] for row in rows}
        assert all(row["n_embd"] and row["context right"] for row in again)
    if name == "instruct_ood":  # both models continue the same
        both = [read_rows(set_file(run, EVAL)) for run in trained]
        asked = [{key: row["prompt"] for key, row in rows.items()} for rows in both]
        assert len(both) == 2 and asked[0] == asked[1]
    if name == "attention":  # what is measured is not measured again
        quick.setattr(runner, "call", lambda command: pytest.fail(str(command)))
        in_process("experiments.py", *command.split(), f"--out_dir={out}")
    if name == "memory":
        (row,) = rows
        ours = float(row["MB, batch 4, ours"])
        assert 50 < ours < float(row["MB, batch 32, ours"])
        # With the n² weights of attention, and all logits
        assert float(row["MB, batch 4, eager"]) > ours + 30 and row["MB, batch 32, eager"] == "oom"


def test_published_lists_need_a_hub_and_nothing_else(in_process, quick, tmp_path):
    """Stories and models are taken from there, and are raw and whole. (tests/test_hub.py downloads
    from one.)"""
    hub = tmp_path / "hub"
    stories = hub / "roneneldan" / "TinyStories"
    stories.mkdir(parents=True)
    for name in ("train", "valid"):
        write_stories(stories / f"TinyStories-{name}.txt", STORIES[:20])
    name = "roneneldan/TinyStories-1M"
    save_hf(random_model(vocab_size=50257, block_size=256), hub / name, gpt2())
    (hub / name / "tokenizer.json").unlink()  # it is GPT-2's
    for module in ("corpus.sources", "checkpoints.huggingface"):
        quick.setattr(f"nanostories.{module}.from_hub", lambda name, *_, **__: hub / name)
    flags = ("--scale=published", f"--only_models=hf:{name}", "--sample=--max_new_tokens 8")
    in_process("experiments.py", "baselines", *flags)
    (row,) = read_table(tmp_path / "out" / "baselines-published" / "experiment.csv")
    assert row["run"] == "roneneldan--TinyStories-1M" and float(row["bits per byte by stories"]) > 2
    meta = read_json(tmp_path / "data" / "tinystories-published" / "meta.json")
    assert meta["raw"] and meta["vocab_size"] == 50257 and meta["splits"]["val"]["stories"] == 20
