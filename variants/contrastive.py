"""
The contrastive objective: a story should be likelier than the same story with its sentences shuffled.

The published form divides by the loss on the shuffled story, so it never stops rewarding ever less likely nonsense:

    reciprocal   L_next + alpha / (L_shuffled + 0.01)
    margin       L_next + alpha * max(0, margin - (L_shuffled - L_in_order)), which asks for no more than a margin

L_next is over the whole batch, the other losses are over the rows that are also shuffled.

$ python train.py configs/contrast_256.py
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from corpus.tokenizer import Tokenizer

SENTENCE_END = tuple(mark + quote for mark in ".!?" for quote in ("", '"', "'"))


def sentence_ends(tokenizer: Tokenizer) -> torch.Tensor:
    """Which ids end a sentence, (vocab_size,) bool."""
    texts = (tokenizer.decode([i]).rstrip() for i in range(tokenizer.vocab_size))
    return torch.tensor([text.endswith(SENTENCE_END) for text in texts])


def shuffle_sentences(tokens: torch.Tensor, ends: torch.Tensor, end_of_text: int, keys: torch.Tensor) -> torch.Tensor:
    """tokens (B, T) with the sentences of each story in another order. Every story stays where it was, and so does its
    first sentence: its first word has no blank before it, which would give the shuffled story away.

    keys: (B, T + 1), uniform in [0, 1); the sentences are sorted by them."""
    ended = tokens == end_of_text
    story = ended.cumsum(1)
    sentence = F.pad(ends[tokens].cumsum(1)[:, :-1], (1, 0))
    first_sentence = torch.where(ended, sentence, 0).cummax(1).values
    keys = torch.where(sentence == first_sentence, 0.0, keys.gather(1, sentence))
    return tokens.gather(1, (story + keys).argsort(dim=1, stable=True))


def n_shuffled(n_sequences: int, share: float) -> int:
    """How many sequences of a batch are also shuffled."""
    return max(1, round(share * n_sequences))


@dataclass
class Contrastive:
    """The contrastive objective, made of a plain loss function. The first rows of a batch are also shuffled."""

    loss_of: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # inputs, targets -> mean loss
    ends: torch.Tensor  # (vocab_size,) bool: sentence_ends
    end_of_text: int
    form: str  # reciprocal or margin
    alpha: float
    margin: float  # nats per token
    share: float  # of the batch that is also shuffled

    def __call__(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:  # (B, T) each
        n = n_shuffled(len(inputs), self.share)
        loss = in_order = self.loss_of(inputs[:n], targets[:n])
        if n < len(inputs):
            loss = torch.lerp(self.loss_of(inputs[n:], targets[n:]), in_order, n / len(inputs))
        tokens = torch.cat([inputs, targets[:, -1:]], dim=1)[:n]
        keys = torch.rand(len(tokens), tokens.size(1) + 1, device=tokens.device)
        tokens = shuffle_sentences(tokens, self.ends, self.end_of_text, keys)
        shuffled = self.loss_of(tokens[:, :-1], tokens[:, 1:])
        if self.form == "reciprocal":
            return loss + self.alpha / (shuffled + 0.01)
        return loss + self.alpha * F.relu(self.margin - (shuffled - in_order))
