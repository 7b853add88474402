"""Training from weights that transformers wrote, which is the reference, from those of runs, and
from counts."""

import json
import math
import shutil
from functools import partial

import numpy as np
import pytest
import torch
from conftest import STATEFUL, assert_same_run, log_of

from nanostories.checkpoints.checkpoint import load_run
from nanostories.checkpoints.huggingface import save_hf, save_hf_tokenizer
from nanostories.cli import UserError
from nanostories.corpus.token_files import load_meta_and_tokens
from nanostories.corpus.tokenizer import Tokenizer
from nanostories.training.bigram_init import bigram_embeddings
from nanostories.training.config import TrainConfig
from nanostories.training.data_order import Windows, load_corpus
from train import train

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.usefixtures("quick")
IDS = dict(vocab_size=300, bos_token_id=299, eos_token_id=299, initializer_range=0.1)
CPU = torch.device("cpu")
SHAPE = ("block_size", "n_layer", "n_head", "n_embd", "window_size")


def make_gptneo():
    config = transformers.GPTNeoConfig(
        max_position_embeddings=24,
        hidden_size=24,
        num_layers=4,
        num_heads=4,
        window_size=7,
        attention_types=[[["global", "local"], 2]],
        **IDS,
    )
    return transformers.GPTNeoForCausalLM(config)


def make_gpt2(**settings):
    config = transformers.GPT2Config(
        n_positions=24, n_embd=24, n_layer=3, n_head=4, **IDS, **settings
    )
    return transformers.GPT2LMHeadModel(config)


@pytest.fixture
def source(data_dir, tmp_path):
    """source(make) -> a model with random weights, and the name of what transformers wrote, with
    the vocabulary of data/tiny."""

    def write(make):
        torch.manual_seed(0)
        model = make().eval()
        model.save_pretrained(tmp_path / "theirs")
        meta, *_ = load_meta_and_tokens(data_dir / "tiny")
        save_hf_tokenizer(Tokenizer(**meta["vocabulary"]), tmp_path / "theirs")
        return model, f"hf:{tmp_path / 'theirs'}"

    return write


@pytest.mark.parametrize("make", [make_gptneo, make_gpt2])
def test_a_run_starts_where_the_source_is(make, source, config, tmp_path, capsys):
    """With a learning rate of 0 it also ends there: the same logits, in our form and exported."""
    theirs, name = source(make)
    changes = {"start_from": name, "max_steps": 1, "learning_rate": 0.0, "weight_decay": 0.0}
    run, _ = train(TrainConfig(**config | changes), resume=False)
    assert f"{name}: val_loss {log_of(run)[-1]['val_loss']}" in capsys.readouterr().out
    ours, tokenizer = load_run(run)
    save_hf(ours, tmp_path / "exported", tokenizer)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "exported").eval()
    assert again.config.model_type == theirs.config.model_type
    tokens = torch.randint(300, (3, 16))
    expected = theirs(tokens).logits
    torch.testing.assert_close(ours(tokens)[0], expected, atol=1e-4, rtol=0)
    torch.testing.assert_close(again(tokens).logits, expected, atol=1e-4, rtol=0)


def test_a_resumed_run_needs_its_source_no_more(config, source, tmp_path):
    _, name = source(make_gpt2)
    # longer than the source's
    config |= STATEFUL | {"start_from": name, "block_size": 40, "copy_init": 0.1}
    whole, _ = train(TrainConfig(**config | {"name": "whole"}), resume=False)
    run, _ = train(TrainConfig(**config | {"max_steps": 10}), resume=False)
    shutil.rmtree(tmp_path / "theirs")
    assert train(TrainConfig(**config), resume=True) == (run, True)
    assert_same_run(run, whole)
    recorded = json.loads((run / "config.json").read_text())
    assert (recorded["start_from"], recorded["architecture"]) == (name, "gpt2")
    assert [recorded[key] for key in SHAPE] == [24, 3, 4, 24, 24] and recorded["dropout"] == 0.1


@pytest.mark.parametrize("architecture", ["gptneo", "compressor"])
def test_a_run_goes_on_from_another_with_a_new_optimizer(config, architecture, capsys):
    first, _ = train(TrainConfig(**config | {"architecture": architecture}), resume=False)
    changes = {"start_from": str(first / "ckpt.pt"), "name": "second", "optimizer": "muon"}
    changes |= {"max_steps": 1, "n_embd": 64}
    second, _ = train(TrainConfig(**config | changes), resume=False)
    assert f": val_loss {log_of(first)[-1]['val_loss']}" in capsys.readouterr().out
    assert load_run(second)[0].config == load_run(first)[0].config
    assert log_of(second)[-1]["step"] == "1"


@pytest.mark.parametrize(
    "settings, changes, message",
    [
        ({}, {"data": "builtin"}, "--vocabulary_of hf:"),
        ({}, {"start_from": "out/none"}, "out/none"),
        ({"scale_attn_weights": False}, {}, "attention is not scaled"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(
    config, source, instruct_data_dir, tmp_path, settings, changes, message
):
    _, name = source(partial(make_gpt2, **settings))
    if "data" in changes:
        config["data_dir"] = str(instruct_data_dir)
    with pytest.raises(UserError, match=message) as error:
        train(TrainConfig(**config | {"start_from": name} | changes), resume=False)
    assert "\n" not in str(error.value) and not (tmp_path / "out").exists()


def test_epochs_are_passes_over_the_training_windows(config):
    config = TrainConfig(**config | {"epochs": 0.5})
    run, _ = train(config, resume=False)
    n_windows = len(Windows(load_corpus(config, CPU), config).starts)
    steps = math.ceil(0.5 * n_windows / 8)
    assert int(log_of(run)[-1]["step"]) == steps
    assert json.loads((run / "config.json").read_text())["max_steps"] == steps


def test_bigram_embeddings_are_singular_vectors_of_the_information_of_neighbors():
    rng = np.random.default_rng(0)
    tokens = np.minimum(rng.integers(0, 12, 5000), rng.integers(0, 12, 5000))  # 12 does not occur
    tokens[1::2] = (5 * tokens[::2] + tokens[1::2] % 3) % 12
    joint = np.zeros((13, 13))
    np.add.at(joint, (tokens[:-1], tokens[1:]), 1)
    counts = np.bincount(tokens, minlength=13)
    products = np.outer(counts, counts)
    information = np.log(np.maximum(joint, 1e-9) / (products / 5000 + 1)).clip(0)
    left, sizes, right = np.linalg.svd(information * np.sqrt(products))
    expected = np.hstack([left[:, :4], right[:4].T]) * np.tile(np.sqrt(sizes[:4]), 2)
    expected *= np.sqrt(8) / np.linalg.norm(expected, axis=1, keepdims=True).clip(1e-9)
    vectors = bigram_embeddings(tokens, 13, 8).numpy()
    np.testing.assert_allclose(vectors @ vectors.T, expected @ expected.T, atol=1e-4)
    assert bigram_embeddings(tokens, 13, 7).shape == (13, 7)
