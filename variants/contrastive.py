"""
Contrastive objectives: a story should be likelier than the same story with its sentences shuffled.

    published    L_n + alpha / (L_c + 0.01), as one reproduction of the paper writes it, with its alpha of 5
    reciprocal   the same formula over half of the windows, where every story keeps its first sentence in place
    margin       L_n + alpha * max(0, margin - (L_c - L_o)), over the same half; L_o is their loss in order

L_n is the next-word loss of the whole batch, in order; L_c that of shuffled stories alone. The published form never
stops rewarding ever less likely nonsense, so it spikes wherever L_c becomes small; a margin asks for no more than that.

The document leaves open whether L_n counts the shuffled stories, too (here it does), and what a batch is (here windows:
a story is what a window holds of it). `published` draws 33 % of a micro-batch's stories, shuffles all their sentences,
the first one too, and reads these stories one after the other in windows of their own, 33 % as many, rounded up; in the
rare case that they are longer together, the last one is cut.

$ python train.py configs/contrast_256.py
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import regex
import torch
import torch.nn.functional as F

from corpus.tokenizer import Tokenizer

SENTENCE_END = regex.compile(r"""\p{Sentence_Terminal}["'”」』]?\s*\Z""")
SHARES = dict(published=0.33, reciprocal=0.5, margin=0.5)  # of the batch that is shuffled


def sentence_ends(tokenizer: Tokenizer) -> torch.Tensor:
    """Which ids end a sentence, (vocab_size,) bool."""
    texts = (tokenizer.decode([i]) for i in range(tokenizer.vocab_size))
    return torch.tensor([SENTENCE_END.search(text) is not None for text in texts])


def shuffle_sentences(
    tokens: torch.Tensor, ends: torch.Tensor, end_of_text: int, keys: torch.Tensor, first_too: bool = False
) -> torch.Tensor:
    """tokens (B, T) with the sentences of each story in another order. Every story stays where it was. So does its
    first sentence, unless first_too: its first word has no blank before it, which gives a shuffled story away.

    keys: (B, T + 1), uniform in [0, 1); the sentences are sorted by them."""
    ended = tokens == end_of_text
    story = ended.cumsum(1)
    sentence = F.pad(ends[tokens].cumsum(1)[:, :-1], (1, 0))
    first_sentence = torch.where(ended, sentence, 0).cummax(1).values
    keys = torch.where(ended if first_too else sentence == first_sentence, 0.0, keys.gather(1, sentence))
    return tokens.gather(1, (story + keys).argsort(dim=1, stable=True))


def draw_stories(tokens: torch.Tensor, end_of_text: int, share: float, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """`share` of the stories in tokens (B, T), at least one, in random order: the tokens of these and of others after
    them, (n, T), and which are theirs, (n, T) bool."""
    begins = tokens == end_of_text
    begins[:, 0], begins[:, -1] = True, False  # a story may be cut by its window, but one token is none
    story = begins.flatten().cumsum(0) - 1
    order = torch.randperm(len(story), device=tokens.device)[story].argsort(stable=True)
    place = F.pad(story[order].diff() != 0, (1, 0)).cumsum(0)  # among the stories in their new order, from 0
    drawn = place < (share * (story[-1] + 1)).round().clamp(min=1)
    return tokens.flatten()[order].view_as(tokens)[:n], drawn.view_as(tokens)[:n]


def n_shuffled(form: str, batch_size: int) -> int:
    """How many windows of shuffled stories a batch has."""
    return math.ceil(SHARES[form] * batch_size)


@dataclass
class Contrastive:
    """A contrastive objective, made of a plain loss function."""

    loss_of: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # inputs, targets -> mean loss
    ends: torch.Tensor  # (vocab_size,) bool: sentence_ends
    end_of_text: int
    form: str  # a key of SHARES
    alpha: float
    margin: float  # nats per token

    def __call__(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:  # (B, T) each
        tokens, n = torch.cat([inputs, targets[:, -1:]], dim=1), n_shuffled(self.form, len(inputs))
        if self.form == "published":
            loss = self.loss_of(inputs, targets)
            tokens, drawn = draw_stories(self.shuffled(tokens), self.end_of_text, SHARES[self.form], n)
            return loss + self.alpha / (self.loss_of(tokens[:, :-1], tokens.where(drawn, -100)[:, 1:]) + 0.01)
        loss = in_order = self.loss_of(inputs[:n], targets[:n])
        if n < len(inputs):
            loss = torch.lerp(self.loss_of(inputs[n:], targets[n:]), in_order, n / len(inputs))
        tokens = self.shuffled(tokens[:n])
        shuffled = self.loss_of(tokens[:, :-1], tokens[:, 1:])
        if self.form == "reciprocal":
            return loss + self.alpha / (shuffled + 0.01)
        return loss + self.alpha * F.relu(self.margin - (shuffled - in_order))

    def shuffled(self, tokens: torch.Tensor) -> torch.Tensor:
        keys = torch.rand(len(tokens), tokens.size(1) + 1, device=tokens.device)
        return shuffle_sentences(tokens, self.ends, self.end_of_text, keys, first_too=self.form == "published")
