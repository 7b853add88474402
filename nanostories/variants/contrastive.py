"""
The contrastive objective of one reproduction of the paper: a story should be likelier than the same
story with its sentences shuffled.

    loss = L_n + alpha / (L_c + 0.01)

L_n is the next-word loss of the whole batch, L_c that of shuffled stories alone; the reproduction's
alpha is 5. The loss spikes wherever L_c becomes small, as less likely nonsense is rewarded without
end.

The document leaves open whether L_n includes the stories that are shuffled (here it does), and how
a batch is made (here of windows; a story is the part of it in its window). 33 % of a micro-batch's
stories are drawn, all their sentences shuffled, and these stories read one after the other in
windows of their own, 33 % as many, rounded up; in the rare case that they are longer together, the
last one is cut.

$ python train.py configs/ts_8m.py --contrast=published
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import regex
import torch
import torch.nn.functional as F

from nanostories.corpus.tokenizer import Tokenizer

SENTENCE_END = regex.compile(r"""\p{Sentence_Terminal}["'”」』]?\s*\Z""")
SHARE = 0.33  # share of the batch that is shuffled


def sentence_ends(tokenizer: Tokenizer) -> torch.Tensor:
    """Which ids end a sentence, (vocab_size,) bool."""
    texts = (tokenizer.decode([i]) for i in range(tokenizer.vocab_size))
    return torch.tensor([SENTENCE_END.search(text) is not None for text in texts])


def shuffle_sentences(
    tokens: torch.Tensor, ends: torch.Tensor, end_of_text: int, keys: torch.Tensor
) -> torch.Tensor:
    """tokens (B, T) with the sentences of each story in another order. Every story stays where it
    was.

    keys: (B, T + 1), uniform in [0, 1); the sentences are sorted by them."""
    ended = tokens == end_of_text
    story = ended.cumsum(1)
    sentence = F.pad(ends[tokens].cumsum(1)[:, :-1], (1, 0))
    keys = torch.where(ended, 0.0, keys.gather(1, sentence))
    return tokens.gather(1, (story + keys).argsort(dim=1, stable=True))


def draw_stories(
    tokens: torch.Tensor, end_of_text: int, n: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """SHARE of the stories in tokens (B, T), at least one, in random order: the tokens of these and
    of others after them, (n, T), and which are theirs, (n, T) bool."""
    begins = tokens == end_of_text
    begins[:, 0], begins[:, -1] = (
        True,
        False,
    )  # a story may be cut by its window, but one token is none
    story = begins.flatten().cumsum(0) - 1
    order = torch.randperm(len(story), device=tokens.device)[story].argsort(stable=True)
    place = F.pad(story[order].diff() != 0, (1, 0)).cumsum(
        0
    )  # among the stories in their new order, from 0
    drawn = place < (SHARE * (story[-1] + 1)).round().clamp(min=1)
    return tokens.flatten()[order].view_as(tokens)[:n], drawn.view_as(tokens)[:n]


def n_shuffled(batch_size: int) -> int:
    """The number of windows of shuffled stories for a batch."""
    return math.ceil(SHARE * batch_size)


@dataclass
class Contrastive:
    """The contrastive objective, from a plain loss function."""

    loss_of: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # inputs, targets -> mean loss
    ends: torch.Tensor  # (vocab_size,) bool: sentence_ends
    end_of_text: int
    alpha: float

    def __call__(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:  # (B, T) each
        loss, tokens = self.loss_of(inputs, targets), torch.cat([inputs, targets[:, -1:]], dim=1)
        keys = torch.rand(len(tokens), tokens.size(1) + 1, device=tokens.device)
        shuffled = shuffle_sentences(tokens, self.ends, self.end_of_text, keys)
        tokens, drawn = draw_stories(shuffled, self.end_of_text, n_shuffled(len(tokens)))
        return loss + self.alpha / (
            self.loss_of(tokens[:, :-1], tokens.where(drawn, -100)[:, 1:]) + 0.01
        )
