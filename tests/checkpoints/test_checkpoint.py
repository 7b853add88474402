"""Damaged checkpoints are refused in one line, code in them is never run, and runs are found by
their directories."""

import random
import shutil
from importlib import import_module
from pathlib import Path

import pytest
import torch
from planted import endings, rows_of, write_corpus
from random_models import model_to_probe, save_run, trained_on

from nanostories.checkpoints.checkpoint import (
    checkpoint_path,
    checkpoint_paths,
    corpus_of,
    load_checkpoint,
    newest_run,
    runs_below,
)
from nanostories.generation.samples_file import write_rows


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("out") / "demo"
    save_run(run, model_to_probe())
    for step in (5, 10):
        save_run(run / f"step-{step}", model_to_probe())
    return run


def test_damage_anywhere_is_found(run, tmp_path):
    """Bytes lost, overwritten, flipped: torch.load alone would take a quarter of these files, with
    other weights."""
    good, rng = (run / "ckpt.pt").read_bytes(), random.Random(0)
    expected = load_checkpoint(run)["model"]
    path, n_refused = tmp_path / "ckpt.pt", 0
    for i in range(300):
        data, at = bytearray(good), rng.randrange(len(good))
        if i % 3 == 0:
            data = data[:at]
        elif i % 3 == 1:
            data[at] ^= 1 << rng.randrange(8)
        else:
            data[at : at + 500] = rng.randbytes(500)
        path.write_bytes(data)
        try:
            loaded = load_checkpoint(path)["model"]
            assert all(
                weight.equal(expected[name]) for name, weight in loaded.items()
            )  # only padding was hit
        except ValueError as error:
            assert str(path) in str(error) and "\n" not in str(error)
            n_refused += 1
    assert n_refused > 250


class Bomb:
    """Code that an unwary reader runs as it unpickles it."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return exec, (f"open({str(self.path)!r}, 'w').close()",)


@pytest.mark.parametrize("zipped", [True, False])
def test_code_in_weights_is_never_run(zipped, tmp_path):
    path = tmp_path / "ckpt.pt"
    for state in (
        Bomb(tmp_path / "boom"),
        dict(format=1, model={"wte.weight": Bomb(tmp_path / "boom")}),
    ):
        torch.save(state, path, _use_new_zipfile_serialization=zipped)
        with pytest.raises(ValueError, match="ckpt.pt: not a readable"):
            load_checkpoint(path)
    assert not (tmp_path / "boom").exists()
    torch.load(path, weights_only=False)
    assert (tmp_path / "boom").exists()  # it was a live one


def test_instead_of_a_run_that_does_not_exist_those_that_do_are_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_run(Path("out", "demo"), model_to_probe())
    with pytest.raises(ValueError, match="out/demos: no such.*out/demo$"):
        load_checkpoint("out/demos")


def test_checkpoints_by_name(run):
    assert checkpoint_paths(str(run), "best") == [str(run)]
    assert checkpoint_path(str(run), "last") == str(run / "ckpt.pt")
    assert checkpoint_paths(str(run), "all") == [str(run / "step-5"), str(run / "step-10")]
    assert (
        checkpoint_path(str(run), "5") == str(run / "step-5")
        and checkpoint_path("hf:gpt2", "5") == "hf:gpt2"
    )
    for which in ("6", "all"):
        with pytest.raises(ValueError, match="--checkpoint"):
            checkpoint_path(str(run), which)
    assert newest_run(run.parent) == run
    assert runs_below(run.parent) == [run] and runs_below(run / "step-5") == [run / "step-5"]


def test_a_run_finds_its_own_corpus_and_takes_no_other(tmp_path, command_line):
    """For its validation stories, that is: among those of another one may be some that it has
    learned."""
    stories = [f"Story {i} is about a very small dog. It ran. The end." for i in range(30)]
    write_corpus(data := tmp_path / "data" / "x", stories[10:], stories[:10])
    save_run(run := tmp_path / "out" / "a", model_to_probe(), **trained_on(data.parent, "x"))
    assert corpus_of(str(run)) == data
    data.rename(own := data.with_name("x-1"))  # as prepare.py does
    (other := data.with_name("x-0")).mkdir()
    (other / "meta.json").write_text("{}")  # a stranger's
    write_corpus(data, stories[:20], stories[20:])
    assert corpus_of(str(run)) == own
    shutil.rmtree(own)
    write_rows(run / "samples.jsonl", rows_of(endings(stories[:4]), stories, 1))
    flags = dict(sample=["--eval", 3, "--model"], rouge=[], grade=["--no_judge"])
    for name, args in (flags | dict(interpret=[])).items():
        assert (
            "was trained on other stories than"
            in command_line(import_module(name), tmp_path)(*args, run)[0]
        ), name
    shutil.rmtree(data)
    assert corpus_of(str(run)) == data
