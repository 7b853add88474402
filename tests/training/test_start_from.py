"""Training from weights that transformers wrote, which is the reference, from those of runs, and
from counts."""

import json
import math
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import STATEFUL, assert_same_run, log_of

from nanostories.checkpoints.checkpoint import load_run
from nanostories.checkpoints.huggingface import save_hf, save_hf_tokenizer
from nanostories.corpus.token_files import load_meta_and_tokens
from nanostories.corpus.tokenizer import Tokenizer
from nanostories.training.config import TrainConfig
from nanostories.training.data_order import load_corpus, make_windows, story_windows
from nanostories.training.start_from import bigram_embeddings
from train import train

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.usefixtures("quick")
IDS = dict(vocab_size=300, bos_token_id=299, eos_token_id=299, initializer_range=0.1)
SOURCES = {
    "gptneo": lambda: transformers.GPTNeoForCausalLM(
        transformers.GPTNeoConfig(
            max_position_embeddings=24,
            hidden_size=24,
            num_layers=4,
            num_heads=4,
            window_size=7,
            attention_types=[[["global", "local"], 2]],
            **IDS,
        )
    ),
    "gpt2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(n_positions=24, n_embd=24, n_layer=3, n_head=4, **IDS)
    ),
}
SHAPE = ("block_size", "n_layer", "n_head", "n_embd", "window_size")


def source(architecture: str, directory: Path, data: Path):
    """A model with random weights, and where transformers wrote it, with the vocabulary of a
    corpus."""
    torch.manual_seed(0)
    model = SOURCES[architecture]().eval()
    model.save_pretrained(directory)
    save_hf_tokenizer(Tokenizer(**load_meta_and_tokens(data)[0]["vocabulary"]), directory)
    return model, f"hf:{directory}"


@pytest.mark.parametrize("architecture", SOURCES)
def test_a_run_starts_where_the_source_is_and_learns_as_it_would(
    architecture, config, data_dir, tmp_path, capsys
):
    """Validation loss at step 0, the losses of the first steps, the logits after them."""
    theirs, name = source(architecture, tmp_path / "theirs", data_dir / "tiny")
    config = TrainConfig(
        **config | dict(start_from=name, max_steps=3, log_interval=1, weight_decay=0.0)
    )
    run, _ = train(config, resume=False)
    tokens, val = (
        tokens.astype(np.int64)
        for tokens in load_meta_and_tokens(data_dir / "tiny", "train", "val")[1:]
    )
    losses = np.full(len(val[:400]), np.nan)
    for start in story_windows(val[:400], 16, end_of_text=299):
        text = torch.from_numpy(val[start : min(start + 17, 400)])
        log_shares = theirs(text[None, :-1]).logits[0].log_softmax(-1)
        ours = -log_shares[range(len(text) - 1), text[1:]].detach().numpy()
        losses[start + 1 : start + len(text)] = ours
    said = re.search(rf"{name}, block_size 16: loss (\S+)", capsys.readouterr().out)
    assert float(said[1]) == pytest.approx(np.nanmean(losses), abs=1e-4)

    optimizer = torch.optim.AdamW(theirs.parameters(), 1e-2, (0.9, 0.95), weight_decay=0.0)
    for step, row in enumerate(log_of(run)):
        starts = make_windows(load_corpus(config), config).for_step(step)
        text = torch.from_numpy(np.stack([tokens[start : start + 17] for start in starts]))
        loss = torch.nn.functional.cross_entropy(
            theirs(text[:, :-1]).logits.flatten(0, 1), text[:, 1:].flatten()
        )
        assert float(row["train_loss"]) == pytest.approx(loss.item(), rel=1e-3)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        optimizer.step()

    ours, tokenizer = load_run(run)
    save_hf(ours, tmp_path / "exported", tokenizer)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "exported").eval()
    torch.testing.assert_close(again(text[:, :-1]).logits, ours(text[:, :-1])[0], atol=1e-4, rtol=0)
    assert again.config.model_type == theirs.config.model_type


def test_a_resumed_run_needs_its_source_no_more(config, data_dir, tmp_path):
    _, name = source("gpt2", tmp_path / "theirs", data_dir / "tiny")
    config |= STATEFUL | dict(
        start_from=name, block_size=40, copy_init=0.1
    )  # longer than the source's
    whole, _ = train(TrainConfig(**config | dict(name="whole")), resume=False)
    run, _ = train(TrainConfig(**config | dict(max_steps=10)), resume=False)
    shutil.rmtree(tmp_path / "theirs")
    assert train(TrainConfig(**config), resume=True) == (run, True)
    assert_same_run(run, whole)
    recorded = json.loads((run / "config.json").read_text())
    assert (recorded["start_from"], recorded["architecture"]) == (name, "gpt2")
    assert [recorded[key] for key in SHAPE] == [24, 3, 4, 24, 24] and recorded["dropout"] == 0.1


@pytest.mark.parametrize("architecture", ["gptneo", "compressor"])
def test_a_run_goes_on_from_another_with_a_new_optimizer(config, architecture, capsys):
    first, _ = train(TrainConfig(**config | dict(architecture=architecture)), resume=False)
    changes = dict(
        start_from=str(first / "ckpt.pt"), name="second", optimizer="muon", max_steps=1, n_embd=64
    )
    second, _ = train(TrainConfig(**config | changes), resume=False)
    assert f": loss {log_of(first)[-1]['val_loss']}" in capsys.readouterr().out
    assert (
        load_run(second)[0].config == load_run(first)[0].config
        and int(log_of(second)[-1]["step"]) == 1
    )


def test_what_does_not_fit_is_refused_in_one_line(config, instruct_data_dir, data_dir, tmp_path):
    _, name = source("gptneo", tmp_path / "theirs", data_dir / "tiny")
    config |= dict(start_from=name)
    for changes, message in (
        (dict(data="builtin", data_dir=str(instruct_data_dir)), f"--vocabulary_of {name}"),
        (dict(start_from="out/none"), "out/none"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)) as error:
            train(TrainConfig(**config | changes), resume=False)
        assert "\n" not in str(error.value) and not (tmp_path / "out").exists()


def test_epochs_are_passes_over_the_training_windows(config):
    config = TrainConfig(**config | dict(epochs=0.5))
    run, _ = train(config, resume=False)
    n_windows = len(make_windows(load_corpus(config), config).starts)
    steps = math.ceil(0.5 * n_windows / 8)
    assert int(log_of(run)[-1]["step"]) == steps
    assert json.loads((run / "config.json").read_text())["max_steps"] == steps


def test_bigram_embeddings_are_singular_vectors_of_the_information_of_neighbors():
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 12, 5000)
    tokens[1::2] = (5 * tokens[::2] + rng.integers(0, 3, 2500)) % 12
    joint, counts = np.zeros((13, 13)), np.bincount(tokens, minlength=13)
    np.add.at(joint, (tokens[:-1], tokens[1:]), 1)
    products = np.outer(counts, counts)
    information = np.log(np.maximum(joint, 1e-9) / (products / 5000 + 1)).clip(0)
    left, sizes, right = np.linalg.svd(information * np.sqrt(products))
    expected = np.hstack([left[:, :4], right[:4].T]) * np.tile(np.sqrt(sizes[:4]), 2)
    expected *= np.sqrt(8) / np.linalg.norm(expected, axis=1, keepdims=True).clip(1e-9)
    vectors = bigram_embeddings(tokens, 13, 8).numpy()  # token 12 does not occur
    np.testing.assert_allclose(vectors @ vectors.T, expected @ expected.T, atol=1e-4)
    np.testing.assert_allclose((vectors**2).mean(1), [1] * 12 + [0], atol=1e-5)
    assert bigram_embeddings(tokens, 13, 7).shape == (13, 7)
