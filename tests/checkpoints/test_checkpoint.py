"""Damaged checkpoints are refused in one line, code in them is never run, and runs are found by
their directories."""

import random
import shutil
from pathlib import Path

import pytest
import torch
from planted import write_corpus
from random_models import model_to_probe, save_run, trained_on

from nanostories.checkpoints.checkpoint import load_checkpoint, newest_run, runs_below
from nanostories.checkpoints.models import open_model, open_models
from nanostories.cli import UserError


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("out") / "demo"
    for directory in (run, run / "step-5", run / "step-10"):
        save_run(directory, model_to_probe())
    return run


def cut_short(data: bytearray, position: int) -> None:
    del data[position:]


def flip_a_bit(data: bytearray, position: int) -> None:
    data[position] ^= 1 << position % 8


def test_damage_anywhere_is_found(run, tmp_path):
    """torch.load alone would take a quarter of these files, with other weights."""
    good = (run / "ckpt.pt").read_bytes()
    expected = load_checkpoint(run)["model"]
    rng = random.Random(0)
    path = tmp_path / "ckpt.pt"
    n_refused = 0
    for damage in [cut_short, flip_a_bit] * 50:
        data = bytearray(good)
        damage(data, rng.randrange(len(good)))
        path.write_bytes(data)
        try:
            loaded = load_checkpoint(path)["model"]
        except UserError as error:
            assert str(path) in str(error) and "\n" not in str(error)
            n_refused += 1
        else:  # only padding was hit
            torch.testing.assert_close(loaded, expected, atol=0, rtol=0)
    assert n_refused > 80


class Bomb:
    """Code that an unwary reader runs as it unpickles it."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return exec, (f"open({str(self.path)!r}, 'w').close()",)


@pytest.mark.parametrize("zipped", [True, False])
def test_code_in_weights_is_never_run(zipped, tmp_path):
    path = tmp_path / "ckpt.pt"
    state = {"format": 1, "model": {"wte.weight": Bomb(tmp_path / "boom")}}
    torch.save(state, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(UserError, match="ckpt.pt: not a readable"):
        load_checkpoint(path)
    assert not (tmp_path / "boom").exists()
    torch.load(path, weights_only=False)
    assert (tmp_path / "boom").exists()  # it was a live one


def test_checkpoints_by_name(run, tmp_path, monkeypatch):
    for checkpoint, files in {
        "best": [run],
        "last": [run / "ckpt.pt"],
        "all": [run / "step-5", run / "step-10"],
        "5": [run / "step-5"],
    }.items():
        assert [model.name for model in open_models(str(run), checkpoint)] == list(map(str, files))
    for name, checkpoint in ((run, "6"), (run / "step-5", "all"), (run / "ckpt.pt", "5")):
        with pytest.raises(UserError, match="--checkpoint"):
            open_model(str(name), checkpoint)
    assert open_model("hf:gpt2", "5").name == "hf:gpt2"
    (tmp_path / "out").symlink_to(run.parent)
    monkeypatch.chdir(tmp_path)
    assert newest_run() == Path("out", "demo")
    assert runs_below(run.parent) == [run]
    assert runs_below(run / "step-5") == [run / "step-5"]


def test_names_and_places_of_models(run, tmp_path):
    places = {
        "hf:roneneldan/TinyStories-8M": Path("out/roneneldan--TinyStories-8M"),
        f"hf:{run}": Path("out/demo"),
        "api:a/b": Path("out/api--a--b"),
        str(run / "ckpt.pt"): run,
    }
    for name, place in places.items():
        assert open_model(name).directory == place
    assert open_model(str(run / "step-5")).label(run.parent) == "demo/step-5"
    assert open_model(str(run)).label(run) == "demo"
    assert open_model(str(run)).label(run.parents[1] / "elsewhere") == str(run)
    linked = tmp_path / "linked"
    linked.symlink_to(run.parent)
    assert open_model(str(linked / "demo")).label(run.parent) == "demo"
    (run.parent / "link").symlink_to(tmp_path)
    assert open_model(str(run.parent / "link")).label(run.parent) == "link"
    with pytest.raises(UserError, match="hf:gpt2 needs --data"):
        open_model("hf:gpt2").evaluation_corpus()


def test_a_run_finds_its_own_corpus_and_takes_no_other(tmp_path):
    """For its validation stories, that is: among those of another one may be some that it has
    learned."""
    stories = [f"Story {i} is about a very small dog. It ran. The end." for i in range(30)]
    data = tmp_path / "data" / "x"
    run = tmp_path / "out" / "a"
    write_corpus(data, stories[10:], stories[:10])
    save_run(run, model_to_probe(), **trained_on(data.parent, "x"))
    assert open_model(str(run)).evaluation_corpus() == data

    renamed = data.rename(data.with_name("x-1"))  # as prepare.py does
    write_corpus(data, stories[:20], stories[20:])
    shutil.copytree(data, data.with_name("x-0"))
    assert open_model(str(run)).evaluation_corpus() == renamed

    shutil.rmtree(renamed)
    with pytest.raises(UserError, match="trained on other stories than"):
        open_model(str(run)).evaluation_corpus()
    shutil.rmtree(data)
    assert open_model(str(run)).evaluation_corpus() == data
