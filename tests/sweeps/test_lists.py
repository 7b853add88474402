"""Every list of experiments.py, end to end at toy size: it trains, measures, and ends with its
table and picture."""

import importlib
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import forks
import local_hub
import pytest
from conftest import ROOT

from nanostories.checkpoints.checkpoint import runs_below
from nanostories.corpus import builtin_stories
from nanostories.figures import save_figure
from nanostories.files import read_json
from nanostories.generation.samples_file import EVAL, read_rows, set_file
from nanostories.results import load, to_text
from nanostories.sweeps import lists, runner
from nanostories.sweeps.measures import MEASURES
from nanostories.tables import read_table

LARGEST = dict(n_embd=16, n_layer=2, n_head=2)
TOY = dict(device="cpu", dtype="float32", block_size=200, learning_rate=1e-2, eval_tokens=1000)
TOY |= LARGEST


def toy(listed: lists.Runs) -> lists.Runs:
    """Two steps of tiny variants: the first, and one of each other kind of settings."""
    kinds = {}
    for name, settings in listed.variants.items():
        texts = [value for value in settings.values() if isinstance(value, str)]
        small = {key: value for key, value in LARGEST.items() if key in settings}
        if "compressor" in texts:
            small["n_layer"] = 3
        if "keep_checkpoints" in settings:
            small["keep_checkpoints"] = 2
        kinds.setdefault(str([*settings, *texts]), (name, settings | small))
    # Shapes alone: two widths, to have something to compare.
    if len(kinds) == 1 and "keep_checkpoints" not in small:
        widths = zip([*listed.variants], (16, 32))
        kinds = {name: (name, settings | small | dict(n_embd=width)) for name, width in widths}
    if not listed.steps and not listed.budgets:  # memory
        kinds = dict(gpt2=("gpt2-64", dict(block_size=512)))
    budgets = listed.budgets and (1e7, 2e7)
    return replace(
        listed, variants=dict(kinds.values()), steps=min(listed.steps, 2), budgets=budgets
    )


def draw_the_list(figure, path: Path) -> None:
    """Only the picture of the list: the others take most of the time."""
    if path.stem == "experiment":
        save_figure(figure, path)
        return
    path.write_bytes(b"\x89PNG")
    path.with_suffix(".svg").write_text("<?xml")


@pytest.fixture
def in_process(quick, tmp_path):
    """experiments.py with all commands in this process, as imports take most of the time of so
    small ones."""

    def run(name: str, *arguments: str) -> None:
        quick.setattr(sys, "argv", [name, *map(str, arguments)])
        try:
            importlib.import_module(name.removesuffix(".py")).main()
        except SystemExit as end:
            assert not end.code, (name, arguments, end.code)

    def train(run_of_list, log) -> str:
        run("train.py", *run_of_list.args)
        return ""

    def call(command) -> None:
        if command[0] != "nanostories.sweeps.memory":
            run(*command)
            return
        process = forks.start(forks.measure_memory, tuple(command))  # its own peak is measured
        process.join()
        assert process.exitcode == 0

    config = tmp_path / "toy.py"
    small = (ROOT / "configs" / "experiment.py").read_text()
    config.write_text(small + "".join(f"{key} = {value!r}\n" for key, value in TOY.items()))
    quick.setattr(runner, "train_one", train)
    quick.setattr(runner, "call", call)
    quick.setattr("nanostories.figures.save_figure", draw_the_list)
    quick.setattr("nanostories.sweeps.measures.N_PROMPTS", 6)
    quick.setattr("nanostories.sweeps.measures.COPIED", 6)
    quick.setattr("nanostories.sweeps.measures.STORIES_READ", 20)
    quick.setattr("interpret.MIN_STORIES", 20)
    quick.setattr("probe.SENTENCE_TOKENS", 2)
    scale = replace(lists.SCALES["small"], config=str(config), learning_rate=None, min_steps=1)
    quick.setitem(lists.SCALES, "small", scale)
    return run


def memory_of_torch() -> int:
    """MB; PyTorch for CUDA takes several times as many as that for CPUs alone."""
    # Not getrusage: its maximum begins with that of the process that started this one
    script = "import train; print(open('/proc/self/status').read())"
    status = subprocess.check_output([sys.executable, "-c", script], cwd=ROOT, text=True)
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) // 1000


@pytest.mark.parametrize("name", lists.EXPERIMENTS)
def test_a_list_ends_with_its_table_and_picture(
    name, in_process, quick, instruct_data_dir, tmp_path, capsys
):
    experiment = lists.EXPERIMENTS[name]
    quick.setitem(lists.EXPERIMENTS, name, replace(experiment, small=toy(experiment.small)))
    quick.chdir(tmp_path)
    out = tmp_path / "out"  # absolute, too, probes and scores have their columns
    limit = 400 + memory_of_torch() if name == "memory" else 700
    command = f"{name} --data_dir={instruct_data_dir} --memory_limit={limit}"
    in_process("experiments.py", *command.split(), f"--out_dir={out}")
    said, directory = capsys.readouterr().out, out / name
    rows = read_table(directory / "experiment.csv")
    trained = runs_below(directory)
    assert {row["run"].split("/")[0] for row in rows} >= {run.name for run in trained} and rows
    assert to_text(load(directory / "experiment.json")) in said and "| run" in said
    for ending, begins in ((".png", b"\x89PNG"), (".svg", b"<?xml")):
        picture = (directory / f"experiment{ending}").read_bytes()
        is_large = experiment.picture in ("panels", "law", "neurons")
        assert picture.startswith(begins) and (len(picture) > 5000) == is_large
    expected = {
        "scores": "fluency by ",
        "beginnings": "three_beginnings-3",
        "probes": "context right",
        "instruct": "words: each",
        "unseen": "unseen words",
        "memorization": "(40% shown)",
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
        assert [row["run"].split("--")[-1] for row in again] == [row["run"] for row in rows]
        assert all(row["n_embd"] == "16" and row["context right"] for row in again)
        assert any("consistency" in column and again[0][column] for column in again[0])
    if name == "instruct_ood":  # both models continue the same
        both = [read_rows(set_file(run, EVAL)) for run in trained]
        asked = [{key: row["prompt"] for key, row in rows.items()} for rows in both]
        assert len(both) == 2 and asked[0] == asked[1]
    if name == "memorization":
        (table, *_) = load(directory / "rouge.json").tables
        assert any("highest F with 5 other" in row["metric"] for row in table.rows)
    if name == "attention":  # what is measured is not measured again
        quick.setattr(runner, "call", lambda command: pytest.fail(str(command)))
        in_process("experiments.py", *command.split(), f"--out_dir={out}")
    if name == "memory":
        (row,) = rows
        ours = float(row["MB, batch 4, ours"])
        assert 50 < ours < float(row["MB, batch 32, ours"])
        # With the n² weights of attention, and all logits
        assert float(row["MB, batch 4, eager"]) > ours + 30 and row["MB, batch 32, eager"] == "oom"


@pytest.fixture
def hub(quick, tmp_path):
    """A hub with TinyStories, a GPT-Neo and a GPT-2 in the published layouts, at toy size."""
    folder = tmp_path / "hub"
    stories = folder / "datasets" / "roneneldan" / "TinyStories"
    stories.mkdir(parents=True)
    texts = [story.text for story in builtin_stories.stories(120)]
    for name, own in (("train", texts[:100]), ("valid", texts[100:])):
        text = "\n<|endoftext|>\n".join(own)
        (stories / f"TinyStories-{name}.txt").write_text(text)
    shape = (16, 2, 2, 256)
    local_hub.write_gpt_neo(folder / "models" / "roneneldan" / "TinyStories-1M", *shape)
    local_hub.write_gpt2(folder / "models" / "gpt2", *shape)
    with local_hub.serve(folder) as address:
        url = f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        quick.setattr("huggingface_hub.constants.ENDPOINT", address)
        quick.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", url)
        quick.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
        yield


def test_published_lists_need_a_hub_and_nothing_else(in_process, quick, hub, tmp_path):
    """Stories and models are downloaded, and are raw and whole; the list, and the report of it."""
    models = ("hf:roneneldan/TinyStories-1M", "hf:gpt2")
    experiment = lists.EXPERIMENTS["baselines"]
    published = replace(experiment, published=lists.Runs({}, models=models))
    quick.setitem(lists.EXPERIMENTS, "baselines", published)
    quick.chdir(tmp_path)
    short = "--sample=--n 1 --max_new_tokens 8"
    in_process("experiments.py", "baselines", "--scale=published", short)
    rows = read_table(tmp_path / "out" / "baselines-published" / "experiment.csv")
    assert [row["run"] for row in rows] == ["roneneldan--TinyStories-1M", "gpt2"]
    assert all(float(row["bits per byte by stories"]) > 2 for row in rows)
    meta = read_json(tmp_path / "data" / "tinystories-published" / "meta.json")
    assert meta["raw"] and meta["vocab_size"] == 50257 and meta["splits"]["val"]["stories"] == 20
    in_process("report.py", "out")
    assert "TinyStories-1M" in (tmp_path / "out" / "report.html").read_text()


def test_the_table_has_all_that_is_finished_and_a_failure_is_named(
    in_process, quick, instruct_data_dir, tmp_path
):
    listed, train = lists.Runs({"a": {}, "b": dict(n_layer=1)}, steps=2), runner.train_one
    quick.setitem(lists.EXPERIMENTS, "heads", lists.Experiment("two runs", listed, listed))
    command = "experiments.py", "heads", f"--data_dir={instruct_data_dir}", f"--out_dir={tmp_path}"
    in_process(*command, "--only=a")
    shutil.rmtree(tmp_path / "heads" / "a_0")
    in_process(*command, "--only=a")  # trains it again
    assert [row["run"] for row in read_table(tmp_path / "heads" / "experiment.csv")] == ["a_0"]
    quick.setattr(
        runner,
        "train_one",
        lambda run, *others: "no" if run.config.name == "b_0" else train(run, *others),
    )
    with pytest.raises(AssertionError, match=r"1 of 4 runs failed \(b_0\)"):
        in_process(*command, "--seeds=2")
    assert [row["run"] for row in read_table(tmp_path / "heads" / "experiment.csv")] == [
        "a_0",
        "a_1",
        "b_1",
    ]
