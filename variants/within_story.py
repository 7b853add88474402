"""
Each story of a window is read as if it stood alone, though several share the window.

Stories are packed one after another, so that no part of a window is empty; without this, each attends to those before
it, which have nothing to do with it, and begins at a position that it never has when it is told. docs/training.md has
what it gains.

$ python train.py configs/ts_8m.py --attend_within_story=True
"""

import torch
import torch.nn as nn

from kernels.packed_stories import packed_stories
from model import GPTNeo


class WithinStory(nn.Module):
    """A GPTNeo that is told where stories begin. It has no parameters of its own; one story alone it reads as ever."""

    def __init__(self, model: GPTNeo, end_of_text: int, most_stories: int):
        """most_stories: how many a window can hold, see kernels/packed_stories.py."""
        super().__init__()
        self.model, self.end_of_text, self.most_stories = model, end_of_text, most_stories

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor | None = None):
        """As of the model."""
        return self.model(tokens, targets, packed_stories(tokens, self.end_of_text, self.most_stories))
