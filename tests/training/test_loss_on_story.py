"""loss_on=story: only stories are targets, not their headers, however the work is divided."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import arguments, assert_same_curve, log_of, settings
from forks import fork_ranks

from checkpoints.checkpoint import load_run
from corpus import instruct_headers
from corpus.instruct_headers import story_tokens
from corpus.token_files import load_meta, load_meta_and_tokens
from corpus.tokenizer import Tokenizer
from train import train
from training.config import ConfigError, TrainConfig
from training.data_order import TokenStream
from training.evaluation import evaluate

pytestmark = pytest.mark.xdist_group("several processes")  # together they are too many for two cores


def config_for(data_dir, directory, **changes) -> dict:
    return settings(data_dir, directory) | dict(data="builtin-instruct", loss_on="story", eval_tokens=4000) | changes


@pytest.fixture(scope="module")
def stream(instruct_data_dir):
    """The training tokens of builtin-instruct, which of them count, and the tokenizer."""
    tokens = load_meta_and_tokens(instruct_data_dir / "builtin-instruct", "train")[1]
    tokenizer = Tokenizer(load_meta(instruct_data_dir / "builtin-instruct")["gpt2_ids"])
    return tokens, story_tokens(tokens, tokenizer), tokenizer


def test_only_stories_are_targets(stream):
    tokens, counted, tokenizer = stream
    end = int(np.flatnonzero(tokens == tokenizer.end_of_text)[0])
    inputs, targets = TokenStream(tokens, 400, torch.device("cpu"), counted).read(np.array([end]))
    text, story = tokenizer.decode(inputs[0].tolist()), tokenizer.decode(targets[0][targets[0] >= 0].tolist())
    headed = instruct_headers.read(text.split("<|endoftext|>")[1])
    assert story.startswith(f"\n\n{headed.story}<|endoftext|>\n\n")  # then the next one, its header left out
    assert (targets[0][: len(tokenizer.encode(headed.header))] == -100).all()


def test_micro_batches_count_by_their_targets(stream):
    """The mean over a step is that over its targets, however it is divided; headers alone count nothing."""
    tokens, counted, tokenizer = stream
    source = TokenStream(tokens, 8, torch.device("cpu"), counted)
    starts = np.arange(24) * 8
    losses = torch.rand(len(tokens))
    _, targets = source.read(starts)
    taken = losses[: 24 * 8].view(24, 8)
    expected = taken[targets >= 0].mean()
    n = (targets >= 0).sum(1)
    assert (n == 0).any()
    for ranks, micro_batches in ((1, 1), (1, 24), (4, 1), (2, 3), (24, 1)):
        shares = source.loss_weights(starts.reshape(ranks, micro_batches, -1))
        assert shares.shape == (ranks, micro_batches) and shares.mean() == pytest.approx(1)
        parts = [
            taken[rows][targets[rows] >= 0].sum() / max(1, (targets[rows] >= 0).sum())
            for rows in np.arange(24).reshape(ranks * micro_batches, -1)
        ]
        mean = sum(part * share for part, share in zip(parts, shares.flatten())) / shares.size
        assert mean == pytest.approx(expected.item(), rel=1e-5)
    assert (TokenStream(tokens, 8, torch.device("cpu")).loss_weights(starts.reshape(2, 3, 4)) == 1).all()
    nothing = TokenStream(tokens, 8, torch.device("cpu"), np.zeros(len(tokens), dtype=bool))
    assert (nothing.loss_weights(starts.reshape(2, 3, 4)) == 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("size, changes", [(2, dict(batch_size=2)), (4, dict(optimizer="muon", align_stories=True))])
def test_the_same_run_on_more_processes(instruct_data_dir, tmp_path, size, changes):
    """Windows of 16 tokens: many hold nothing but header, and micro-batches have anything from none to all."""
    config = config_for(instruct_data_dir, tmp_path, **changes)
    reference, _ = train(TrainConfig(**config | dict(name="reference")), resume=False)
    assert all(math.isfinite(float(row["train_loss"])) for row in log_of(reference))
    said = fork_ranks(size, arguments(config), tmp_path / "said")
    assert [text.split()[-1] for text in said] == ["0"] * size, said
    assert_same_curve(tmp_path / "out" / "run", reference)
    assert "--words" in said[0]


@pytest.mark.slow
def test_divided_otherwise_it_is_the_same_run(instruct_data_dir, tmp_path):
    runs = [
        train(
            TrainConfig(**config_for(instruct_data_dir, tmp_path, name=f"{n}", batch_size=8 // n, grad_accum_steps=n)),
            resume=False,
        )
        for n in (1, 8)
    ]
    assert_same_curve(runs[1][0], runs[0][0])


def test_validation_counts_stories_alone_for_every_run(instruct_data_dir, tmp_path):
    """Against logits and cross-entropy, story by story."""
    losses = {}
    for loss_on in ("all", "story"):
        config = TrainConfig(
            **config_for(instruct_data_dir, tmp_path, name=loss_on, loss_on=loss_on, block_size=400, batch_size=2)
        )
        run, _ = train(config, resume=False)
        losses[loss_on] = float(log_of(run)[-1]["train_loss"])
    model, tokenizer = load_run(run)
    val = load_meta_and_tokens(instruct_data_dir / "builtin-instruct", "val")[1]
    ends = np.flatnonzero(val == tokenizer.end_of_text)[:6]
    val, nats, n_bytes, n = np.array(val[: ends[-1] + 1]), 0.0, 0, 0
    for start, end in zip(ends, ends[1:]):
        ids = torch.from_numpy(val[start : end + 1].astype(np.int64))
        n_header = len(tokenizer.encode(instruct_headers.read(tokenizer.decode(ids[1:-1].tolist())).header))
        each = F.cross_entropy(model(ids[None, :-1])[0][0], ids[1:], reduction="none")[n_header:]
        nats, n = nats + each.sum().item(), n + len(each)
        n_bytes += len(tokenizer.decode(ids[1 + n_header : -1].tolist()).encode())
    windows = ends[:-1]  # each story read from its beginning
    stream = TokenStream(np.append(val, np.zeros(400, np.uint16)), 400, torch.device("cpu"),
                         np.append(story_tokens(val, tokenizer), np.zeros(400, bool)))  # fmt: skip
    result = evaluate(model, stream, windows, tokenizer, torch.no_grad)
    assert result["val_loss"] == pytest.approx(nats / n, rel=1e-4)
    assert result["bpb"] == pytest.approx(nats / n_bytes / math.log(2), rel=1e-4)
    assert losses["all"] != losses["story"]
    same = evaluate(model, stream, windows, tokenizer, torch.no_grad, compiled=True)  # filled up to a whole batch
    assert same == pytest.approx(result, rel=1e-5)


def test_no_headers_no_story_loss(tmp_path, instruct_data_dir):
    config = config_for(instruct_data_dir, tmp_path, data="builtin")
    with pytest.raises(ConfigError, match="builtin: its stories have no headers for loss_on=story to leave out"):
        train(TrainConfig(**config), resume=False)
    with pytest.raises(ConfigError, match="needs loss_on=all"):
        TrainConfig(loss_on="story", contrast="margin")
    with pytest.raises(ConfigError, match="loss_on must be one of all, story"):
        TrainConfig(loss_on="header")
