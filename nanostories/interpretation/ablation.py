"""
Does a part of the model matter? The increase in loss when its output is replaced by its mean over
other stories.

The model is run again without each part. In float32: most neurons matter less than the rounding of
bfloat16.

An interval says how much the increase depends on the stories, not whether the part does anything
useful: without a head of random weights the loss may increase, too. So a head matters if its
interval is above 0 and the increase at least MIN_INCREASE.
"""

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from tqdm import tqdm

from model import GPTNeo
from nanostories.interpretation.hooks import Patch, run
from nanostories.interpretation.word_classes import Batch, TaggedCorpus
from nanostories.kernels.cross_entropy import head_loss
from nanostories.statistics import OldEstimate, bootstrap_ratio, interval

MIN_INCREASE = 0.01  # nats per token, one percent of perplexity
BATCH_TOKENS = 2048


def story_losses(
    model: GPTNeo, batch: Batch, patches: Mapping[str, Patch] | None = None
) -> torch.Tensor:
    """(B,): each story's loss, in nats over all its tokens."""
    hidden = run(model, batch.tokens, patches=patches)
    return torch.stack(
        [head_loss(x, model.head.weight, y) * (y >= 0).sum() for x, y in zip(hidden, batch.targets)]
    )


def replaced(x: torch.Tensor, part: int, mean: torch.Tensor) -> torch.Tensor:
    """x (B, T, H, D) or (B, T, 4C), the output of head or neuron `part` replaced by its mean."""
    x = x.clone()
    x[:, :, part] = mean[part]
    return x


@torch.no_grad()
def ablated_losses(
    model: GPTNeo,
    corpus: TaggedCorpus,
    n_stories: int,
    parts: Sequence[tuple[str, int]],
    means: dict,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The losses of the first stories, in nats: with the intact model, (S,), and without each part,
    (parts, S).

    parts: ("blocks.2.z", head) or ("blocks.2.post", neuron); means: {"blocks.2.z": (H, D), …}, over
    other stories.
    """
    device = model.wte.weight.device
    intact, ablated = torch.empty(n_stories), torch.empty(len(parts), n_stories)
    bar = tqdm(
        desc="ablating heads and neurons",
        total=len(parts) * n_stories,
        unit="story",
        disable=None,
        delay=1,
    )
    for batch in corpus.batches(n_stories, device, BATCH_TOKENS):
        intact[batch.index] = story_losses(model, batch).cpu()
        for i, (name, part) in enumerate(parts):
            patch = partial(replaced, part=part, mean=means[name])
            ablated[i, batch.index] = story_losses(model, batch, {name: patch}).cpu()
            bar.update(len(batch.index))
    bar.close()
    return intact, ablated


def loss_increases(
    intact: torch.Tensor, ablated: torch.Tensor, corpus: TaggedCorpus
) -> OldEstimate:
    """intact (S,), ablated (parts, S) -> the loss increase without each part, in nats per token,
    and the ends of its 95% interval (bootstrap over stories), (parts,) each."""
    tokens = torch.tensor([len(story.tokens) for story in corpus.stories[: len(intact)]])
    return interval(
        bootstrap_ratio((ablated - intact).double().numpy(), tokens.double().numpy()), len(tokens)
    )
