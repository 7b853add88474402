"""Training from the weights of a published model, from those of runs, and from counts.
(tests/checkpoints holds the files of transformers against transformers.)"""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import STATEFUL, assert_same_run, log_of, run_of
from random_models import random_model, randomize, save_run

from model import GPTNeoConfig
from nanostories.checkpoints.huggingface import load_model, save_hf
from nanostories.cli import UserError
from nanostories.corpus.token_files import load_meta
from nanostories.corpus.tokenizer import Tokenizer
from nanostories.training.bigram_init import bigram_embeddings
from nanostories.training.config import read_run
from nanostories.variants.compressor import Compressor

pytestmark = pytest.mark.usefixtures("quick")
SHAPE = dict(vocab_size=300, block_size=24, n_layer=3, n_head=4, n_embd=24)
GPT2 = SHAPE | dict(window_size=24, scale_attention=True, qkv_bias=True)


@pytest.fixture
def tokenizer(data_dir) -> Tokenizer:
    return Tokenizer(**load_meta(data_dir / "tiny")["vocabulary"])


@pytest.fixture
def source(tokenizer, tmp_path):
    """source(shape) -> a model with random weights, and the name of its files, as transformers
    writes them."""

    def write(shape: dict):
        model = random_model(**shape)
        save_hf(model, tmp_path / "theirs", tokenizer)
        return model, f"hf:{tmp_path / 'theirs'}"

    return write


@pytest.mark.parametrize("shape", [SHAPE, GPT2, "compressor"])
def test_a_run_starts_where_the_source_is(shape, source, tokenizer, config, tmp_path, capsys):
    """With a learning rate of 0 the same logits at the end, too; bigram_init changes nothing."""
    if shape == "compressor":  # a run of ours
        model = randomize(Compressor(GPTNeoConfig(**SHAPE)))
        save_run(tmp_path / "ours", model, tokenizer, architecture="compressor")
        name = str(tmp_path / "ours" / "ckpt.pt")
    else:
        model, name = source(shape)
    changes = dict(bigram_init=0.1, max_steps=1, learning_rate=0.0, weight_decay=0.0)
    run = run_of(config, start_from=name, **changes)
    assert f"{name}: val_loss {log_of(run)[-1]['val_loss']}" in capsys.readouterr().out
    ours, _ = load_model(str(run))
    tokens = torch.randint(300, (3, 16))
    torch.testing.assert_close(ours(tokens)[0], model(tokens)[0])
    assert ours.config.block_size == 16  # a smaller one stays


def test_a_resumed_run_needs_its_source_no_more(config, source, tmp_path):
    _, name = source(GPT2)
    # longer than the source's
    config |= STATEFUL | {"start_from": name, "block_size": 40}
    whole = run_of(config, name="whole")
    run_of(config, max_steps=10)
    shutil.rmtree(tmp_path / "theirs")
    run = run_of(config, resume=True)
    assert_same_run(run, whole)
    recorded = read_run(run)
    assert (recorded["start_from"], recorded["n_layer"], recorded["block_size"]) == (name, 3, 24)


@pytest.mark.parametrize(
    "shape, message",
    [
        (SHAPE, "--vocabulary_of hf:"),
        (GPT2 | {"scale_attention": False}, "attention is not scaled"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(
    config, source, instruct_data_dir, shape, message
):
    _, name = source(shape)
    config |= {"data": "builtin", "data_dir": str(instruct_data_dir)}
    with pytest.raises(UserError, match=message) as error:
        run_of(config, start_from=name)
    assert "\n" not in str(error.value) and not Path(config["out_dir"]).exists()


def test_a_run_does_not_take_the_place_of_its_source(config):
    """Its checkpoints would name themselves as their source."""
    run = run_of(config)
    for source in (run, run / "best.pt"):
        with pytest.raises(UserError, match="another --name"):
            run_of(config, start_from=str(source))
    assert sorted(path.name for path in run.parent.iterdir() if path.is_dir()) == [run.name]


def test_bigram_embeddings_are_singular_vectors_of_the_information_of_neighbors():
    tokens = np.random.default_rng(0).geometric(0.2, 5000) % 12  # 12 does not occur
    tokens[1::2] = (5 * tokens[::2] + tokens[1::2] % 3) % 12
    joint, _, _ = np.histogram2d(tokens[:-1], tokens[1:], bins=range(14))
    counts, _ = np.histogram(tokens, bins=range(14))
    products = np.outer(counts, counts)
    information = np.log(np.maximum(joint, 1e-9) / (products / 5000 + 1)).clip(0)
    left, sizes, right = np.linalg.svd(information * np.sqrt(products))
    expected = np.hstack([left[:, :4], right[:4].T]) * np.tile(np.sqrt(sizes[:4]), 2)
    expected *= np.sqrt(8) / np.linalg.norm(expected, axis=1, keepdims=True).clip(1e-9)
    vectors = bigram_embeddings(tokens, 13, 8).numpy()
    np.testing.assert_allclose(vectors @ vectors.T, expected @ expected.T, atol=1e-4)
    assert bigram_embeddings(tokens, 13, 7).shape == (13, 7)
    with pytest.raises(UserError, match="too small for n_embd=26"):
        bigram_embeddings(tokens, 13, 26)
