"""
The tokens on which each neuron fires most, and whether it prefers a kind of word.

Preference is measured over distinct words, not tokens: a neuron reacts to a word similarly wherever
it occurs, so a thousand "was" are one observation. Words are compared, by ranks, with others that
are about as frequent. What chance gives (kinds permuted among words) is approximated by a normal
distribution.
"""

from collections.abc import Sequence

import numpy as np
import torch
from scipy.special import ndtr
from scipy.stats import false_discovery_control, rankdata

from model import GPTNeo
from nanostories.corpus.tokenizer import Tokenizer
from nanostories.interpretation.hooks import run
from nanostories.interpretation.word_classes import WORD_CLASSES, TaggedCorpus, pieces_of

MIN_COUNT = 2  # a word must occur this often in the stories to be used
FDR = 0.05  # false discovery rate: the share of the reported preferences that are false, on average
# A preference is strong if the neuron fires more on the word of the kind in this share of pairs of
# words.
STRONG = 0.8
LARGEST = "(largest activation)"
PEAKS = range(1, 6)  # ranks of the places where a neuron fires most, one a story
# Tokens shown before and after the one on which a neuron fires.
BEFORE = 18
AFTER = 8


class NeuronSums:
    """For all neurons of a model, the sum of activations on every word, and the highest activation
    in every story; or for all coordinates of the residual stream, C in place of 4C."""

    def __init__(self, shape: tuple[int, int], corpus: TaggedCorpus):
        """shape: (L, 4C)"""
        device = corpus.stories[0].tokens.device
        self.corpus = corpus
        # (L, words, 4C), the largest tensor here
        self.word_sums = torch.zeros(shape[0], len(corpus.words), shape[1], device=device)
        self.highest = torch.zeros(*shape, len(corpus.stories), device=device)
        self.where = torch.zeros_like(self.highest, dtype=torch.long)

    def add(self, layer: int, number: int, activations: torch.Tensor) -> None:
        """number: of the story; activations (T, 4C)"""
        story = self.corpus.stories[number]
        self.word_sums[layer].index_add_(0, story.words[story.ends], activations[story.ends])
        highest = activations.max(0)
        self.highest[layer, :, number] = highest.values
        self.where[layer, :, number] = highest.indices


def neuron_preferences(sums: NeuronSums) -> tuple[np.ndarray, np.ndarray]:
    """AUC and q (Benjamini and Hochberg, 1995) of each kind, (L, WORD_CLASSES, 4C) each, on words
    of known kind that are not rare. NaN for a kind of which there are no words to compare."""
    corpus = sums.corpus
    words = torch.cat([story.words[story.ends] for story in corpus.stories]).cpu()
    counts = np.bincount(words, minlength=len(corpus.words))
    is_known = np.array([kind is not None for kind in corpus.kinds])
    used = is_known & (counts >= MIN_COUNT)
    counts = counts[used]
    kinds = corpus.kind_flags()[:, used]
    # Layer by layer, as the ranks of a large model's neurons would not fit in memory together.
    tests = []
    for word_sums in sums.word_sums:
        means = word_sums.cpu().numpy()[used] / counts[:, None]
        tests.append(mann_whitney(means, counts, kinds))
    auc, p = np.stack(tests, axis=1)
    measured = ~np.isnan(auc)
    p[measured] = false_discovery_control(p[measured])
    return auc, p


def mann_whitney(
    means: np.ndarray, counts: np.ndarray, kinds: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Does a neuron fire more on words of a kind than on others that are about as frequent?

    means (words, neurons): the mean activation on each word; counts (words,); kinds (K, words)
    bool. -> (K, neurons): AUC, the share of pairs of a word of the kind and another word in which
    it fires more on the first (0.5 is chance; NaN: no such pairs); and the one-sided p-value
    against permuted kinds: Mann-Whitney's U, summed over strata.
    """
    # Words that occur 2 and 3 times, 4 to 7, …, 64 and more.
    stratum = np.log2(counts).astype(int).clip(max=6)
    pairs = wins = variance = 0
    for level in np.unique(stratum):
        is_here = stratum == level
        ranks = rankdata(means[is_here], axis=0)
        of_kind = kinds[:, is_here]
        n_words = len(ranks)
        n = of_kind.sum(1, keepdims=True)  # (K, 1)
        pairs = pairs + n * (n_words - n)
        wins = wins + of_kind @ ranks - n * (n + 1) / 2
        variance = variance + n * (n_words - n) * (n_words + 1) / 12
    with np.errstate(invalid="ignore"):
        return wins / pairs, ndtr((pairs / 2 - wins) / variance**0.5)


def neuron_rows(sums: NeuronSums, tokenizer: Tokenizer) -> list[dict]:
    """neurons.csv: the kind of word that each neuron strongly prefers, or ""; AUC and q of each
    kind that the stories have; the stories in which it fires most, the highest first: where, on
    which token, and how much."""
    auc, q = neuron_preferences(sums)
    strong = np.where((q <= FDR) & (auc >= STRONG), auc, 0)
    values, stories = sums.highest.topk(len(PEAKS))  # (L, 4C, PEAKS)
    places = sums.where.gather(2, stories)
    rows = []
    for layer, neuron in np.ndindex(values.shape[:2]):
        row = {"layer": layer, "neuron": neuron, "prefers": ""}
        if strong[layer, :, neuron].any():
            row["prefers"] = WORD_CLASSES[strong[layer, :, neuron].argmax()]
        for kind, auc_here, q_here in zip(WORD_CLASSES, auc[layer, :, neuron], q[layer, :, neuron]):
            if not np.isnan(auc_here):
                row[f"auc_{kind}"] = auc_here
                row[f"q_{kind}"] = q_here
        peaks = (x[layer, neuron].tolist() for x in (values, stories, places))
        for rank, value, story, place in zip(PEAKS, *peaks):
            token = sums.corpus.stories[story].tokens[place].item()
            row[f"story_{rank}"] = story
            row[f"place_{rank}"] = place
            row[f"token_{rank}"] = tokenizer.decode([token])
            row[f"activation_{rank}"] = value
        rows.append(row)
    return rows


def remarkable(rows: Sequence[dict]) -> dict[str, dict]:
    """The neuron that prefers each kind of word most, strongly if any does; and that of the largest
    activation."""
    chosen = {}
    for kind in WORD_CLASSES:
        if f"auc_{kind}" in rows[0]:
            chosen[kind] = max(rows, key=lambda row: (row["prefers"] == kind, row[f"auc_{kind}"]))
    chosen[LARGEST] = max(rows, key=lambda row: row["activation_1"])
    return chosen


@torch.no_grad()
def contexts_of(
    row: dict, model: GPTNeo, sums: NeuronSums, tokenizer: Tokenizer
) -> list[list[tuple[str, float]]]:
    """The places where this neuron fires most, the highest activation first: the text of each token
    around it, and the activation there. row: of neurons.csv."""
    contexts = []
    for rank in PEAKS:
        story = sums.corpus.stories[row[f"story_{rank}"]]
        place = row[f"place_{rank}"]
        begin = max(0, place - BEFORE)
        tokens = story.tokens[: place + AFTER + 1]
        cache = {}
        run(model, tokens[None], cache)
        activations = cache[f"blocks.{row['layer']}.post"][0, begin:, row["neuron"]]
        pieces = pieces_of(tokenizer, tokens.tolist())[begin:]
        contexts.append(list(zip(pieces, activations.tolist())))
    return contexts
