"""
The tokens on which each neuron fires most, and whether it prefers a kind of word.

Preference is measured over distinct words, not tokens: a neuron reacts to a word similarly wherever
it occurs, so a thousand "was" are one observation. Words are compared, by ranks, with others that
are about as frequent; the null distribution (kinds permuted among words) is then known exactly.
"""

from collections.abc import Sequence

import numpy as np
import torch
from scipy.special import ndtr
from scipy.stats import false_discovery_control, rankdata

from model import GPTNeo
from nanostories.corpus.tokenizer import Tokenizer
from nanostories.interpretation.hooks import run
from nanostories.interpretation.word_classes import KINDS, TaggedCorpus, pieces_of

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
    in every story."""

    def __init__(self, model: GPTNeo, corpus: TaggedCorpus):
        n_layer = model.config.n_layer
        width = 4 * model.config.n_embd
        device = model.wte.weight.device
        self.corpus = corpus
        # The largest tensor here.
        self.word_sums = torch.zeros(n_layer, len(corpus.words), width, device=device)
        self.highest = torch.zeros(n_layer, len(corpus.stories), width, device=device)
        self.where = torch.zeros_like(self.highest, dtype=torch.long)

    def add(self, layer: int, number: int, activations: torch.Tensor) -> None:
        """number: of the story; activations (T, 4C)"""
        story = self.corpus.stories[number]
        self.word_sums[layer].index_add_(0, story.words[story.ends], activations[story.ends])
        self.highest[layer, number], self.where[layer, number] = activations.max(0)

    def preferences(self) -> tuple[np.ndarray, np.ndarray]:
        """AUC and q (Benjamini and Hochberg, 1995) of each kind, (KINDS, L * 4C) each, on words of
        known kind that are not rare. NaN for a kind of which there are no words to compare."""
        words = torch.cat([story.words[story.ends] for story in self.corpus.stories])
        counts = words.bincount(minlength=len(self.corpus.words)).cpu().numpy()
        is_known = np.array([kind is not None for kind in self.corpus.kinds])
        used = is_known & (counts >= MIN_COUNT)
        kinds = self.corpus.kind_flags().numpy()[:, used]
        # Layer by layer, as the ranks of a large model's neurons would not fit in memory together.
        tests = []
        for sums in self.word_sums:
            means = sums.cpu().numpy()[used] / counts[used, None]
            tests.append(preferences(means, counts[used], kinds))
        auc, p = np.concatenate(tests, axis=2)
        measured = ~np.isnan(auc)
        q = np.full_like(p, np.nan)
        q[measured] = false_discovery_control(p[measured])
        return auc, q


def preferences(
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
    for each in np.unique(stratum):
        is_here = stratum == each
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
    auc, q = sums.preferences()
    strong = np.where((q <= FDR) & (auc >= STRONG), auc, 0)
    values, stories = sums.highest.topk(len(PEAKS), dim=1)  # (L, PEAKS, 4C)
    places = sums.where.gather(1, stories)
    peaks = zip(*(x.mT.flatten(0, 1).tolist() for x in (values, stories, places)))
    rows = []
    for i, of_neuron in enumerate(peaks):
        layer, neuron = divmod(i, values.size(2))
        row = {"layer": layer, "neuron": neuron, "prefers": ""}
        if strong[:, i].any():
            row["prefers"] = KINDS[strong[:, i].argmax()]
        for k, kind in enumerate(KINDS):
            if not np.isnan(auc[k, i]):
                row[f"auc_{kind}"] = auc[k, i]
                row[f"q_{kind}"] = q[k, i]
        for rank, value, story, place in zip(PEAKS, *of_neuron):
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
    found = {}
    for kind in KINDS:
        if f"auc_{kind}" in rows[0]:
            found[kind] = max(rows, key=lambda row: (row["prefers"] == kind, row[f"auc_{kind}"]))
    found[LARGEST] = max(rows, key=lambda row: row["activation_1"])
    return found


@torch.no_grad()
def add_contexts(rows: Sequence[dict], model: GPTNeo, sums: NeuronSums, tokenizer: Tokenizer):
    """Adds `contexts` to these rows of neurons.csv: around each place where the neuron fires most,
    the pieces of text, the activation on each, and the index of that place among them."""
    for row in rows:
        row["contexts"] = [{} for _ in PEAKS]
    for number, story in enumerate(sums.corpus.stories):
        activations = {}
        run(model, story.tokens[None], activations.__setitem__)
        pieces = pieces_of(tokenizer, story.tokens.tolist())
        for row in rows:
            posts = activations[f"blocks.{row['layer']}.post"][0, :, row["neuron"]]
            for context, rank in zip(row["contexts"], PEAKS):
                if row[f"story_{rank}"] == number:
                    place = row[f"place_{rank}"]
                    begin = max(0, place - BEFORE)
                    context["peak"] = place - begin
                    context["pieces"] = pieces[begin : place + AFTER + 1]
                    context["activations"] = posts[begin : place + AFTER + 1].tolist()
