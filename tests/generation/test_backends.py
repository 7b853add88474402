"""nanostories/generation/backends.py: a model is on the device that is asked for; what it is given
and what it gives."""

from types import SimpleNamespace

import pytest
import torch
from random_models import model_to_probe, save_run

import train
from nanostories.checkpoints.models import open_model
from nanostories.cli import UserError
from nanostories.corpus.tokenizer import gpt2
from nanostories.generation import backends
from nanostories.generation.backends import LocalBackend, load_backend, load_gpt, stream_story
from nanostories.generation.prompts import Sampling
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


@pytest.fixture
def run(tmp_path):
    save_run(tmp_path / "run", model_to_probe())
    return tmp_path / "run"


def test_a_model_is_on_the_device_that_is_asked_for(devices, run, monkeypatch):
    model = open_model(str(run))
    for name in ("auto", "cpu", "cuda:1"):
        load_backend(model, name)
    assert devices == ["auto", "cpu", "cuda:1"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    load_backend(model)
    assert devices[3:] == ["cpu"]  # also on a Mac


def test_the_closing_story_is_told_on_the_device_of_the_training(
    devices, run, monkeypatch, data_dir
):
    monkeypatch.setattr(train, "stream_story", lambda *_: None)
    train.tell_a_story(run, TrainConfig(device="cpu", data="tiny", data_dir=str(data_dir)))
    assert devices == ["cpu"]


def test_a_device_that_is_not_there_is_named(run):
    with pytest.raises(UserError, match="'cuda:99' cannot be used here"):
        load_backend(open_model(str(run)), "cuda:99")


def test_only_gpt_is_read_where_nothing_else_can_be(run, monkeypatch):
    assert load_gpt(open_model(str(run))).model.config == model_to_probe().config
    monkeypatch.setattr(backends, "from_checkpoint", lambda _: torch.nn.Linear(2, 2))
    for name in (str(run), "api:gpt-4o"):
        with pytest.raises(UserError, match=name):
            load_gpt(open_model(name))


def test_the_prompt_as_a_model_is_given_it():
    tokenizer = gpt2()
    ours = LocalBackend(None, tokenizer, [tokenizer.end_of_text])
    theirs = LocalBackend(None, tokenizer, [])
    assert ours.encode("a b \n") == [tokenizer.end_of_text] + tokenizer.encode("a b")
    assert theirs.encode("a b \n") == tokenizer.encode("a b")
    assert theirs.encode(" ") == [tokenizer.end_of_text]


@pytest.mark.parametrize("n_bytes", [7, 9])
def test_no_character_is_shown_in_pieces(monkeypatch, capsys, n_bytes):
    """By a tokenizer whose tokens are bytes, in a story that is cut within a character."""

    def decode(tokens):
        return bytes(tokens).decode(errors="replace")

    def bytes_of_text(model, prompts, sampling, stop, batch_size, on_token):
        tokens = list("狐が行く".encode()[:n_bytes])
        for token in tokens:
            on_token(token)
        yield *prompts, tokens, False

    # As OtherTokenizer does, which has no bytes.
    tokenizer = SimpleNamespace(
        encode=lambda text: list(text.encode()),
        decode=decode,
        decode_bytes=lambda tokens: decode(tokens).encode(),
        end_of_text=0,
    )
    monkeypatch.setattr(backends, "generate", bytes_of_text)
    stream_story(LocalBackend(None, tokenizer, []), "昔", Sampling())
    assert capsys.readouterr().out == f"昔{'狐が行'[: n_bytes // 3]} [cut here]\n"
