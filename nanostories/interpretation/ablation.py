"""
Does a part of the model matter? The increase in loss when its output is replaced by its mean over
other stories.

The model is run again without each part, in float32: most neurons matter less than the rounding of
bfloat16 or TF32.

An interval says how much the increase depends on the stories, not whether the part does anything
useful: without a head of random weights the loss may increase, too. So a head matters if its
interval is above 0 and the increase at least MIN_INCREASE.
"""

from collections.abc import Sequence

import numpy as np
import torch
from tqdm import tqdm

from model import GPTNeo
from nanostories.interpretation.hooks import Patch, run
from nanostories.interpretation.word_classes import TaggedStory
from nanostories.kernels.cross_entropy import head_loss
from nanostories.statistics import ratio

MIN_INCREASE = 0.01  # nats per token, one percent of perplexity
INCREASE = ("loss_increase", "loss_increase_low", "loss_increase_high")  # columns


def story_loss(model: GPTNeo, story: TaggedStory, patches: dict | None = None) -> float:
    """In nats per token."""
    hidden = run(model, story.tokens[None], patches=patches)
    return head_loss(hidden[0], model.head.weight, story.targets).item()


def without(part: int | list[int], mean: torch.Tensor) -> Patch:
    """Replaces head(s) or neuron(s) `part` of x, (1, T, H, D) or (1, T, 4C), by their means."""

    def replace(x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        x[:, :, part] = mean[part]
        return x

    return replace


@torch.no_grad()
def add_loss_increases(
    rows: Sequence[dict],
    model: GPTNeo,
    stories: Sequence[TaggedStory],
    means: dict[str, torch.Tensor],
) -> float:
    """Adds to these rows of heads.csv and neurons.csv how much the loss on these stories increases
    without the part, in nats per token, with its 95% interval. Returns the intact model's loss.

    means: {"blocks.2.z": (H, D), "blocks.2.post": (4C,), …}, over other stories.
    """
    intact = np.empty(len(stories))
    ablated = np.empty((len(rows), len(stories)))
    for i, story in enumerate(tqdm(stories, "ablating", unit="story", disable=None, delay=1)):
        intact[i] = story_loss(model, story)
        for losses, row in zip(ablated, rows):
            name = f"blocks.{row['layer']}.{'z' if 'head' in row else 'post'}"
            part = row["head"] if "head" in row else row["neuron"]
            losses[i] = story_loss(model, story, {name: without(part, means[name])})
    n_tokens = np.array([(story.targets >= 0).sum().item() for story in stories])
    mean = ratio(ablated * n_tokens - intact * n_tokens, n_tokens)
    for row, *increase in zip(rows, mean.value, mean.low, mean.high):
        row |= dict(zip(INCREASE, increase))
    return (intact * n_tokens).sum() / n_tokens.sum()
