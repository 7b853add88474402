"""attend_within_story: in a packed window each story comes out as if it stood there alone."""

import types

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import assert_same_run, log_of

from checkpoints.checkpoint import from_checkpoint, load_checkpoint
from corpus.token_files import load_meta_and_tokens
from corpus.tokenizer import Tokenizer
from kernels import attention
from kernels.packed_stories import max_stories_per_window
from model import GPTNeo, GPTNeoConfig
from train import train
from training.config import ConfigError, TrainConfig
from training.data_order import story_windows
from variants.contrastive import Contrastive
from variants.within_story import WithinStory

END = 0


@pytest.fixture
def model():
    torch.manual_seed(0)
    return GPTNeo(GPTNeoConfig(vocab_size=30, block_size=40, n_layer=3, n_head=2, n_embd=16, window_size=6)).double()


def windows_of_stories(n_windows: int, T: int) -> torch.Tensor:
    """Random tokens, one in eight of them <|endoftext|>; the first window begins with a story, others in one."""
    tokens = torch.randint(1, 30, (n_windows, T), generator=torch.Generator().manual_seed(0))
    tokens[torch.rand(tokens.shape, generator=torch.Generator().manual_seed(1)) < 1 / 8] = END
    tokens[0, 0], tokens[1:, 0] = END, 5
    return tokens


def stories_of(window: torch.Tensor) -> list[torch.Tensor]:
    begins = [i for i in range(1, len(window)) if window[i] == END]
    return list(window.tensor_split(begins))


@pytest.mark.parametrize("compiled", [False, True])
def test_every_story_is_read_as_if_it_stood_alone(model, compiled):
    tokens = windows_of_stories(3, 40)
    assert len(stories_of(tokens[0])) > 3
    within = WithinStory(model, END, max_stories=40)
    read = torch.compile(within, fullgraph=True, backend="aot_eager") if compiled else within
    logits, _ = read(tokens)
    alone = torch.stack([torch.cat([model(story[None])[0][0] for story in stories_of(window)]) for window in tokens])
    torch.testing.assert_close(logits, alone)
    assert (logits - model(tokens)[0]).abs().max() > 1e-3  # where they see each other, they are read otherwise
    targets = torch.where(tokens > 3, tokens, -100)
    within.zero_grad()
    read(tokens, targets)[1].backward()
    gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
    model.zero_grad()
    F.cross_entropy(alone.flatten(0, 1), targets.flatten()).backward()
    torch.testing.assert_close(gradient, torch.cat([p.grad.flatten() for p in model.parameters()]))


@pytest.mark.slow
@pytest.mark.skipif(attention.kernels(8) is None, reason="no C++ compiler that builds it")
def test_the_step_as_it_is_compiled_for_training(model, monkeypatch):
    """In float32, through our kernel: loss and gradients."""
    monkeypatch.setattr(attention, "measured_implementation", lambda *_: "kernel")
    model, tokens = model.float(), windows_of_stories(3, 41)
    within = WithinStory(model, END, max_stories=40)
    results = []
    for compiled in (True, False):
        read = torch.compile(within, dynamic=False) if compiled else within.double()
        within.zero_grad()
        _, loss = read(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        results.append(torch.cat([loss.detach()[None], *(p.grad.flatten() for p in model.parameters())]).double())
    torch.testing.assert_close(*results, atol=1e-5, rtol=1e-4)


def test_one_story_alone_is_read_by_the_model_itself(model):
    tokens = torch.randint(1, 30, (2, 40), generator=torch.Generator().manual_seed(0))
    tokens[:, 0] = END
    torch.testing.assert_close(WithinStory(model, END, 1)(tokens)[0], model(tokens)[0])


def test_the_contrastive_objective_is_of_stories_alone_too(model):
    """Its loss in order: the mean over windows of stories that stand alone."""
    ends = types.SimpleNamespace(vocab_size=30, end_of_text=END, decode=lambda ids: "." if ids == [1] else "a")
    tokens = windows_of_stories(4, 41)
    objective = Contrastive(WithinStory(model, END, 40), ends, "margin", 0.0, 0.3, 0.5)  # alpha 0: of it nothing else
    _, loss = objective(tokens[:, :-1], tokens[:, 1:])
    logits = [torch.cat([model(story[None])[0][0] for story in stories_of(window[:-1])]) for window in tokens]
    torch.testing.assert_close(loss, F.cross_entropy(torch.cat(logits), tokens[:, 1:].flatten()).float())


# ---- Training ----


@pytest.fixture
def within(config) -> dict:
    return config | dict(attend_within_story=True, block_size=24)


def test_validation_loss_is_that_of_stories_alone(within, data_dir):
    run, _ = train(TrainConfig(**within), resume=False)
    checkpoint = load_checkpoint(run / "ckpt.pt")
    model, end = from_checkpoint(checkpoint), Tokenizer(checkpoint["gpt2_ids"]).end_of_text
    tokens = torch.from_numpy(load_meta_and_tokens(data_dir / "tiny", "val")[1][:400].astype(np.int64))
    windows = story_windows(tokens.numpy(), 24, end)
    assert max_stories_per_window(tokens.numpy(), 24, end) > 1
    nats = n_tokens = 0
    for start, following in zip(windows, [*windows[1:], windows[-1] + 24]):
        begins = [i for i in range(start + 1, start + 24) if tokens[i] == end]
        stories = tokens[start : start + 24].tensor_split([i - start for i in begins])
        logits = torch.cat([model(story[None])[0][0] for story in stories])
        losses = F.cross_entropy(logits, tokens[start + 1 : start + 25], reduction="none")
        nats, n_tokens = nats + losses[: following - start].sum().item(), n_tokens + following - start
    assert float(log_of(run)[-1]["val_loss"]) == pytest.approx(nats / n_tokens, abs=1e-4)


def test_a_run_within_stories_goes_on_exactly_and_not_as_another(within):
    whole, _ = train(TrainConfig(**within | dict(name="whole")), resume=False)
    train(TrainConfig(**within | dict(max_steps=10)), resume=False)
    run, _ = train(TrainConfig(**within), resume=True)
    assert_same_run(run, whole)
    with pytest.raises(ConfigError, match="attend_within_story=True; it cannot be resumed with .*=False"):
        train(TrainConfig(**within | dict(attend_within_story=False)), resume=True)


def test_a_compressor_whose_pairs_span_stories_takes_none():
    with pytest.raises(ConfigError, match="attend_within_story needs model=gptneo"):
        TrainConfig(model="compressor", attend_within_story=True)
