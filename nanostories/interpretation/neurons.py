"""
The tokens on which each neuron fires most, and whether it prefers a kind of word.

Preference is measured over distinct words, not tokens: a neuron reacts to a word similarly wherever
it occurs, so a thousand "was" are one observation. Words are compared, by ranks, with others that
are about as frequent; the null distribution (kinds permuted among words) is then known exactly.
"""

import math

import torch
from scipy.stats import false_discovery_control

from model import GPTNeo
from nanostories.corpus.tokenizer import Tokenizer
from nanostories.interpretation.hooks import run
from nanostories.interpretation.word_classes import KINDS, Batch, TaggedCorpus, pieces_of

MIN_COUNT = 2  # a word must occur this often in the stories to be used
FDR = 0.05  # false discovery rate: the share of the reported preferences that are false, on average
# a preference is strong if the neuron fires more on the word of the kind in this share of pairs of
# words
STRONG = 0.8
LARGEST = "(largest activation)"
CONTEXTS, BEFORE, AFTER = (
    5,
    18,
    8,
)  # in neurons.csv; tokens before and after the one on which the neuron fires


class NeuronSums:
    """For all neurons of a model, the mean activation on every word of known kind that is not rare,
    and the highest activation in every story."""

    def __init__(self, model: GPTNeo, corpus: TaggedCorpus):
        n_layer, width, device = (
            model.config.n_layer,
            4 * model.config.n_embd,
            model.wte.weight.device,
        )
        kinds, n_stories = (
            torch.stack([corpus.is_kind(kind) for kind in KINDS]),
            len(corpus.stories),
        )
        counts = torch.cat([story.words[story.ends] for story in corpus.stories]).bincount(
            minlength=len(corpus.words)
        )
        used = ((kinds.any(0) | corpus.is_kind("other")) & (counts >= MIN_COUNT)).nonzero()[:, 0]
        used = used[
            torch.randperm(len(used), generator=torch.Generator().manual_seed(0))
        ]  # so that ties favor no kind
        self.counts, self.kinds = (
            counts[used].to(device),
            kinds[:, used].to(device),
        )  # (used,), (KINDS, used)
        self.place = torch.full(
            (len(corpus.words) + 1,), -1, device=device
        )  # each word's index among those used
        self.place[used.to(device)] = torch.arange(len(used), device=device)
        self.word_sums = torch.zeros(
            n_layer, len(used), width, device=device
        )  # the largest tensor here
        self.highest = torch.zeros(n_layer, n_stories, width, device=device)
        self.where = torch.zeros(n_layer, n_stories, width, dtype=torch.int32, device=device)

    def add(self, layer: int, batch: Batch, activations: torch.Tensor) -> None:
        """activations (B, T, 4C)"""
        places = self.place[batch.words].where(batch.ends, -1)
        known = places >= 0
        self.word_sums[layer].index_add_(0, places[known], activations[known])
        highest, where = activations.masked_fill(~batch.not_padding[..., None], -torch.inf).max(1)
        self.highest[layer, batch.index] = highest
        self.where[layer, batch.index] = where.int()

    def preferences(self) -> tuple[torch.Tensor, torch.Tensor]:
        """AUC and q (Benjamini and Hochberg, 1995) of each kind, (KINDS, L * 4C) each.

        Works layer by layer, as the ranks of a large model's neurons would not fit in memory
        together.
        """
        tests = [
            preferences(sums / self.counts[:, None], self.counts, self.kinds)
            for sums in self.word_sums
        ]
        auc, p = (torch.cat(each, 1).cpu() for each in zip(*tests))
        measured = ~auc.isnan()  # kinds of which there are words to compare
        p[measured] = torch.from_numpy(false_discovery_control(p[measured].numpy()))
        return auc.float(), p


def preferences(
    means: torch.Tensor, counts: torch.Tensor, kinds: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Does a neuron fire more on words of a kind than on others that are about as frequent?

    means (words, neurons): the mean activation on each word; counts (words,); kinds (K, words)
    bool. -> (K, neurons): AUC, the share of pairs of a word of the kind and another word in which
    it fires more on the first (0.5 is chance; nan: no such pairs); and the one-sided p-value
    against permuted kinds: Mann-Whitney's U, summed over strata.
    """
    stratum = (
        counts.log2().floor().clamp(max=6).long()
    )  # words that occur 2 and 3 times, 4 to 7, …, 64 and more
    ranks = torch.empty_like(means)
    for each in stratum.unique():
        ranks[stratum == each] = means[stratum == each].argsort(0).argsort(0).float() + 1
    in_stratum = torch.nn.functional.one_hot(stratum).double()  # (words, strata)
    kinds = kinds.to(ranks)
    n_of_kind, everything = (
        kinds.double() @ in_stratum,
        in_stratum.sum(0),
    )  # numbers of words: (K, strata), (strata,)
    others = everything - n_of_kind
    pairs = (n_of_kind * others).sum(1)[:, None]
    wins = (kinds @ ranks).double() - (n_of_kind * (n_of_kind + 1) / 2).sum(1)[:, None]
    deviation = (
        ((n_of_kind * others * (everything + 1)).sum(1)[:, None] / 12).sqrt().clamp(min=1e-9)
    )
    return wins / pairs, torch.special.ndtr((pairs / 2 - wins) / deviation)


def strongest_kinds(auc: torch.Tensor, q: torch.Tensor) -> list[str]:
    """The kind that each neuron prefers most, if strongly; else ""."""
    best = auc.where((q <= FDR) & (auc >= STRONG), 0.0).max(0)
    return [
        KINDS[kind] if auc else "" for auc, kind in zip(best.values.tolist(), best.indices.tolist())
    ]


def untrained_copy(model: GPTNeo) -> GPTNeo:
    """The same model at random initialization."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return GPTNeo(model.config).to(model.wte.weight.device).eval()


def neuron_rows(neurons: NeuronSums, untrained: NeuronSums, places: list[dict]) -> list[dict]:
    """neurons.csv: the kind of word that each neuron prefers, trained and at random initialization;
    AUC and q of each kind that the stories have; and the `places` where it fires most."""
    auc, q = neurons.preferences()
    rows, width = [], neurons.highest.size(2)
    for i, prefers in enumerate(
        zip(strongest_kinds(auc, q), strongest_kinds(*untrained.preferences()))
    ):
        row = dict(layer=i // width, neuron=i % width) | dict(
            zip(("prefers", "prefers_at_random_init"), prefers)
        )
        row |= {
            f"auc_{kind}": value
            for kind, value in zip(KINDS, auc[:, i].tolist())
            if not math.isnan(value)
        }
        row |= {
            f"q_{kind}": value
            for kind, value in zip(KINDS, q[:, i].tolist())
            if f"auc_{kind}" in row
        }
        rows.append(row | places[i])
    return rows


def most_selective(rows: list[dict]) -> dict[str, dict]:
    """The neuron that prefers each kind of word most, strongly if any does; and that of the largest
    activation."""
    kinds = [kind for kind in KINDS if f"auc_{kind}" in rows[0]]
    best = {
        kind: max(rows, key=lambda row: (row["prefers"] == kind, row[f"auc_{kind}"]))
        for kind in kinds
    }
    return best | {LARGEST: max(rows, key=lambda row: row["activation_1"])}


# ---- The contexts in which neurons fire most ----
@torch.no_grad()
def peak_contexts(
    model: GPTNeo, corpus: TaggedCorpus, tokenizer: Tokenizer, neurons: NeuronSums
) -> list[dict]:
    """For each neuron, columns of neurons.csv: token_1, activation_1, context_1 and shades_1 to
    CONTEXTS, one a story.

    Shades have a digit for each character of the context, the activation there, 9 being the
    neuron's highest; or P, the peak: the token on which it fires.
    """
    values, stories = neurons.highest.topk(CONTEXTS, dim=1)  # (L, CONTEXTS, 4C)
    places = neurons.where.gather(1, stories).long()
    window = torch.arange(-BEFORE, AFTER + 1, device=values.device)
    around = torch.zeros(*values.shape, len(window), device=values.device)
    for batch in corpus.batches(len(corpus.stories), values.device, label="contexts of neurons"):

        def record(name, activations, batch=batch):
            layer, _, part = name.removeprefix("blocks.").partition(".")
            if part == "post":
                for story, story_activations in zip(batch.index, activations):  # (T, 4C)
                    i, neuron = (stories[int(layer)] == story).nonzero(as_tuple=True)
                    shown = (places[int(layer), i, neuron, None] + window).clamp(
                        0, len(story_activations) - 1
                    )
                    around[int(layer), i, neuron] = story_activations[shown, neuron[:, None]]

        run(model, batch.tokens, record)
    digits = (9 * around / values[:, :1, :, None].clamp(min=1e-6)).round().clamp(0, 9).int()
    texts = [
        [piece.replace("\n", "↵") for piece in pieces_of(tokenizer, s.tokens.tolist())]
        for s in corpus.stories
    ]
    rows = []
    for layer in zip(
        *(x.transpose(1, 2).tolist() for x in (values, stories, places)),
        digits.transpose(1, 2).tolist(),
    ):
        for peaks in zip(*layer):
            row = {}
            for i, (value, story, place, shades) in enumerate(zip(*peaks), 1):
                start = max(0, place - BEFORE)
                pieces, shades = (
                    texts[story][start : place + AFTER + 1],
                    shades[start - place + BEFORE :],
                )
                marks = [
                    "P" if start + j == place else str(shade)
                    for j, shade in enumerate(shades[: len(pieces)])
                ]
                row |= {f"token_{i}": texts[story][place], f"activation_{i}": value}
                row[f"context_{i}"] = "".join(pieces)
                row[f"shades_{i}"] = "".join(
                    mark * len(piece) for mark, piece in zip(marks, pieces)
                )
            rows.append(row)
    return rows
