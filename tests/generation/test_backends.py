"""nanostories/generation/backends.py: a model is on the device that is asked for; what it is given
and what it gives."""

import numpy as np
import pytest
import torch
from random_models import model_to_probe, save_run

from nanostories.checkpoints.models import open_model
from nanostories.cli import UserError
from nanostories.corpus.tokenizer import GPT2_VOCAB_SIZE, cut, gpt2
from nanostories.generation import backends
from nanostories.generation.backends import LocalBackend, load_backend, load_gpt, stream_story
from nanostories.generation.prompts import Sampling


@pytest.fixture
def run(tmp_path):
    save_run(tmp_path / "run", model_to_probe())
    return tmp_path / "run"


def test_a_model_is_on_the_device_that_is_asked_for(run, monkeypatch):
    """On a machine that seems to have a GPU, and on one that has none."""
    devices = []

    def set_up_device(name):
        devices.append(name)
        return torch.device("cpu")

    monkeypatch.setattr(backends, "set_up_device", set_up_device)
    for has_gpu in (True, False):
        monkeypatch.setattr(torch.cuda, "is_available", lambda is_there=has_gpu: is_there)
        for name in ("auto", "cuda:1"):
            load_backend(open_model(str(run)), name)
    assert devices == ["auto", "cuda:1", "cpu", "cuda:1"]  # "cpu" also on a Mac


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


def test_no_character_is_shown_in_pieces(monkeypatch, capsys):
    """In a story that is cut within a character."""
    tokenizer = cut(np.zeros(GPT2_VOCAB_SIZE), 257)  # its tokens are bytes

    def seven_bytes(model, prompts, sampling, stop, batch_size, on_token):
        tokens = tokenizer.encode("狐が行く")[:7]
        for token in tokens:
            on_token(token)
        yield *prompts, tokens, False

    monkeypatch.setattr(backends, "generate", seven_bytes)
    stream_story(LocalBackend(None, tokenizer, []), "昔", Sampling())
    assert capsys.readouterr().out == "昔狐が [cut here]\n"
