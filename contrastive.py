"""
The contrastive objective: a story is to be likelier than the same story with its sentences in another order.

The published form divides by the loss on the shuffled story, so it never stops paying for making nonsense unlikely:

    reciprocal   L_next + alpha / (L_shuffled + 0.01)
    margin       L_next + alpha * max(0, margin - (L_shuffled - L_next)), which asks for no more than a margin

$ python train.py configs/contrast_256.py
$ python contrastive.py out/contrast_256 out/ts_8m       # how often does a run tell a true story from a shuffled one?
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

from config import TrainConfig
from tokenizer import Tokenizer

SENTENCE_END = tuple(mark + quote for mark in ".!?" for quote in ("", '"', "'"))


def sentence_ends(tokenizer: Tokenizer) -> torch.Tensor:
    """Which ids end a sentence, (vocab_size,) bool."""
    texts = (tokenizer.decode([i]).rstrip() for i in range(tokenizer.vocab_size))
    return torch.tensor([text.endswith(SENTENCE_END) for text in texts])


def shuffle_sentences(tokens: torch.Tensor, ends: torch.Tensor, end_of_text: int, keys: torch.Tensor) -> torch.Tensor:
    """
    tokens (B, T) with the sentences of each story in another order. Every story stays where it was, and so does its
    first sentence, whose first word, without a blank before it, would else give the shuffled story away.

    keys: (B, T + 1), uniform in [0, 1); the sentences are sorted by them.
    """
    ended = tokens == end_of_text
    story = ended.cumsum(1)
    sentence = F.pad(ends[tokens].cumsum(1)[:, :-1], (1, 0))
    first_sentence = torch.where(ended, sentence, 0).cummax(1).values
    keys = torch.where(sentence == first_sentence, 0.0, keys.gather(1, sentence))
    return tokens.gather(1, (story + keys).argsort(dim=1, stable=True))


class Contrastive(nn.Module):
    """A model with the objective for its loss. The first rows of a batch are also shuffled."""

    def __init__(self, model: nn.Module, tokenizer: Tokenizer, config: TrainConfig):
        super().__init__()
        self.model, self.config = model, config
        self.end_of_text = tokenizer.end_of_text
        self.register_buffer("ends", sentence_ends(tokenizer))

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor):
        """As of the model: inputs, targets (B, T) -> None, loss."""
        _, loss = self.model(inputs, targets)
        config, n_shuffled = self.config, max(1, round(self.config.contrast_share * len(inputs)))
        tokens = torch.cat([inputs, targets[:, -1:]], dim=1)[:n_shuffled]
        keys = torch.rand(n_shuffled, tokens.size(1) + 1, device=tokens.device)
        tokens = shuffle_sentences(tokens, self.ends, self.end_of_text, keys)
        _, loss_shuffled = self.model(tokens[:, :-1], tokens[:, 1:])
        if config.contrast == "reciprocal":
            return None, loss + config.contrast_alpha / (loss_shuffled + 0.01)
        return None, loss + config.contrast_alpha * F.relu(config.contrast_margin - (loss_shuffled - loss))
