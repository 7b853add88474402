"""
The contrastive objective of the IIIT reproduction (B in docs/reproduce.md): a story should be
likelier than the same story with its sentences shuffled.

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

import regex
import torch
import torch.nn.functional as F
from torch import Tensor

from nanostories.corpus.tokenizer import Tokenizer

SENTENCE_END = regex.compile(r"""\p{Sentence_Terminal}["'”」』]?\s*\Z""")
SHARE = 0.33  # share of the batch that is shuffled
# (inputs, targets), (B, T) each -> mean loss in nats
Loss = Callable[[Tensor, Tensor], Tensor]


def sentence_ends(tokenizer: Tokenizer) -> Tensor:
    """Which ids end a sentence, (vocab_size,) bool."""
    texts = [tokenizer.decode([i]) for i in range(tokenizer.vocab_size)]
    return torch.tensor([SENTENCE_END.search(text) is not None for text in texts])


def n_shuffled(batch_size: int) -> int:
    """The number of windows of shuffled stories for a batch."""
    return math.ceil(SHARE * batch_size)


def shuffle_sentences(tokens: Tensor, ends: Tensor, end_of_text: int) -> Tensor:
    """tokens (B, T) with the sentences of each story in random order. Every story, and the end of
    text before it, stays where it was."""
    begins_story = tokens == end_of_text
    story = begins_story.cumsum(1)  # number of each token's story
    sentence = ends[tokens].cumsum(1)[:, :-1]
    sentence = F.pad(sentence, (1, 0))  # a sentence begins after the token that ends one
    keys = torch.rand(len(tokens), tokens.size(1) + 1, device=tokens.device)  # of all sentences
    keys = torch.where(begins_story, 0.0, keys.gather(1, sentence))  # of each token's
    order = (story + keys).argsort(dim=1, stable=True)
    return tokens.gather(1, order)


def draw_stories(tokens: Tensor, end_of_text: int, n_windows: int) -> tuple[Tensor, Tensor]:
    """Joins SHARE of the stories in tokens (B, T + 1), at least one, in random order.

    Returns inputs and targets, (n_windows, T) each. Other stories fill the windows after them, and
    are no targets (-100).
    """
    begins_story = tokens == end_of_text
    # A window may begin in the middle of a story; but a last token alone is no story.
    begins_story[:, 0] = True
    begins_story[:, -1] = False
    story = begins_story.flatten().cumsum(0) - 1  # number of each token's story
    n_drawn = (SHARE * (story[-1] + 1)).round().clamp(min=1)
    # A random key for each story. As many as tokens: counting the stories would wait for a GPU.
    key_of_story = torch.randperm(len(story), device=tokens.device)
    keys, order = key_of_story[story].sort(stable=True)  # the tokens, story by story
    place = F.pad(keys.diff() != 0, (1, 0)).cumsum(0)  # of each token's story in this order
    joined = tokens.flatten()[order].view_as(tokens)
    targets = joined.where(place.view_as(tokens) < n_drawn, -100)
    return joined[:n_windows, :-1], targets[:n_windows, 1:]


def with_contrast(loss_of: Loss, ends: Tensor, end_of_text: int, alpha: float) -> Loss:
    """The contrastive objective, from a plain loss function.

    ends: sentence_ends, (vocab_size,) bool."""

    def contrastive_loss(inputs: Tensor, targets: Tensor) -> Tensor:
        loss = loss_of(inputs, targets)
        # A window may reach past the end of the corpus, where targets are -100: empty stories there
        following = targets.where(targets >= 0, end_of_text)
        tokens = torch.cat([inputs[:, :1], following], dim=1)  # (B, T + 1)
        shuffled = shuffle_sentences(tokens, ends, end_of_text)
        inputs, targets = draw_stories(shuffled, end_of_text, n_shuffled(len(tokens)))
        is_in_story = (inputs != end_of_text) | (targets != end_of_text)
        targets = targets.where(is_in_story, -100)
        penalty = alpha / (loss_of(inputs, targets) + 0.01)
        # Where the only story drawn is one token, cut by its window, nothing is a target: the loss
        # of 0 says nothing then.
        has_targets = (targets >= 0).any()
        return loss + torch.where(has_targets, penalty, 0.0)

    return contrastive_loss
