"""nanostories/generation/backends.py: a model is loaded onto the device that is asked for."""

import pytest
import torch
from random_models import model_to_probe, save_run

import sample
import train
from nanostories.checkpoints.models import open_model
from nanostories.cli import UserError
from nanostories.generation import backends
from nanostories.training.config import TrainConfig


@pytest.fixture
def devices(monkeypatch) -> list[str]:
    """Those that were set up, on a machine that seems to have a GPU; all are the CPU."""
    names = []

    def set_up_device(name):
        names.append(name)
        return torch.device("cpu")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(backends, "set_up_device", set_up_device)
    return names


def test_sampling_is_on_the_device_that_is_asked_for(devices, command_line, tmp_path):
    save_run(tmp_path / "run", model_to_probe())
    run = command_line(sample, tmp_path)
    for flags in ([], ["--device", "cpu"], ["--device", "cuda:1"]):
        code, _ = run("--model", "run", "--n", 1, "--max_new_tokens", 3, *flags)
        assert code == 0
    assert devices == ["auto", "cpu", "cuda:1"]


def test_the_closing_story_is_told_on_the_device_of_the_training(devices, monkeypatch, data_dir):
    config = TrainConfig(device="cpu", data="tiny", data_dir=str(data_dir))
    monkeypatch.setattr(train, "stream_story", lambda *_: None)
    save_run(data_dir / "run", model_to_probe())
    train.tell_a_story(data_dir / "run", config)
    assert devices == ["cpu"]


def test_without_a_gpu_sampling_is_on_the_cpu(devices, monkeypatch, tmp_path):
    """Also on a Mac."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    save_run(tmp_path / "run", model_to_probe())
    backends.load_backend(open_model(str(tmp_path / "run")))
    assert devices == ["cpu"]


def test_a_device_that_is_not_there_is_named(tmp_path):
    save_run(tmp_path / "run", model_to_probe())
    with pytest.raises(UserError, match="'cuda:99' cannot be used here"):
        backends.load_backend(open_model(str(tmp_path / "run")), "cuda:99")
