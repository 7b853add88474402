"""
Packed windows in which each token attends only to its own story, and positions restart at 0 with each story.

Stories are packed one after another, so that no part of a window is empty. Without this, a story attends to those
before it, which have nothing to do with it, and begins at a position that it never has when the model generates it.
docs/training.md says what this gains.

$ python train.py configs/ts_8m.py --attend_within_story=True
"""

import torch
import torch.nn as nn

from kernels.packed_stories import packed_stories
from model import GPTNeo


class WithinStory(nn.Module):
    """A GPTNeo that knows where stories begin. It adds no parameters and changes nothing for a single story."""

    def __init__(self, model: GPTNeo, end_of_text: int, max_stories: int):
        """max_stories: how many a window can hold, by kernels.packed_stories.max_stories_per_window."""
        super().__init__()
        self.model, self.end_of_text, self.max_stories = model, end_of_text, max_stories

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor | None = None):
        """Same arguments and result as GPTNeo.forward."""
        return self.model(tokens, targets, packed_stories(tokens, self.end_of_text, self.max_stories))
