"""
What neurons fire on: the tokens on which each fires most, and whether it prefers a kind of word.

Preference is measured over distinct words, not tokens: a neuron reacts to a word similarly wherever it occurs, so a
thousand "was" are one observation. Words are compared, by ranks, with others that are about as frequent; the null
distribution (kinds permuted among words) is then known exactly, and preferences for permuted kinds are also counted.
"""

from dataclasses import dataclass

import torch

from corpus.tokenizer import Tokenizer
from interpretation.hooks import run
from interpretation.word_classes import KINDS, Batch, TaggedCorpus, pieces_of
from model import GPTNeo

MIN_COUNT = 2  # a word must occur this often in the stories to be used
FDR = 0.05  # false discovery rate: the share of the reported preferences that are false, on average
STRONG = 0.8  # a preference is strong if the neuron fires more on the word of the kind in this share of pairs of words
CONTEXTS, BEFORE, AFTER = 6, 18, 8  # per neuron on the page; tokens before and after the one on which it fires
SHOWN, SHOWN_OF_KIND = 96, 48  # neurons on the page: random ones, and at most this many per kind of word
CONTEXTS_ON_PAGE = 6000  # for all neurons together: keeps the page under 2 MB
ABLATED, ABLATED_AT_RANDOM = 6, 20  # neurons ablated exactly: the largest estimates, and random ones to check estimates


class NeuronStatistics:
    """Collects, for all neurons of a model, the mean activation on every word of known kind that is not rare, and the
    highest in every story."""

    def __init__(self, model: GPTNeo, corpus: TaggedCorpus):
        n_layer, width, device = model.config.n_layer, 4 * model.config.n_embd, model.wte.weight.device
        kinds, n_stories = torch.stack([corpus.is_kind(kind) for kind in KINDS]), len(corpus.stories)
        counts = torch.cat([story.words[story.ends] for story in corpus.stories]).bincount(minlength=len(corpus.words))
        used = ((kinds.any(0) | corpus.is_kind("other")) & (counts >= MIN_COUNT)).nonzero()[:, 0]
        used = used[torch.randperm(len(used), generator=torch.Generator().manual_seed(0))]  # so that ties favor no kind
        self.counts, self.kinds = counts[used].to(device), kinds[:, used].to(device)  # (used,), (KINDS, used)
        self.place = torch.full((len(corpus.words) + 1,), -1, device=device)  # of each word among those used
        self.place[used.to(device)] = torch.arange(len(used), device=device)
        self.word_sums = torch.zeros(n_layer, len(used), width, device=device)  # the largest tensor here
        self.total = torch.zeros(n_layer, width, device=device)
        self.highest = torch.zeros(n_layer, n_stories, width, device=device)
        self.where = torch.zeros(n_layer, n_stories, width, dtype=torch.int32, device=device)
        self.n_tokens = sum(len(story.tokens) for story in corpus.stories)

    def start(self, batch: Batch):
        self.batch, self.places = batch, self.place[batch.words].where(batch.ends, -1)

    def add(self, layer: int, activations: torch.Tensor):
        """activations (B, T, 4C)"""
        batch, known = self.batch, self.places >= 0
        self.word_sums[layer].index_add_(0, self.places[known], activations[known].float())
        self.total[layer] += activations[batch.real].float().sum(0)
        highest, where = activations.float().masked_fill(~batch.real[..., None], -torch.inf).max(1)
        self.highest[layer, batch.index] = highest
        self.where[layer, batch.index] = where.int()

    def top(self, n: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(L * 4C, n) each, for all neurons: the highest activations (one per story), their stories and positions."""
        values, stories = self.highest.topk(n, dim=1)
        top = values, stories, self.where.gather(1, stories).long()
        return tuple(x.transpose(1, 2).flatten(0, 1) for x in top)


class WordRanks:
    """Words ranked by how much each neuron fires on them, among words that are about as frequent."""

    def __init__(self, means: torch.Tensor, counts: torch.Tensor):
        """means (words, neurons): the mean activation on each word; counts (words,): how often it occurs."""
        self.stratum = counts.log2().floor().clamp(max=6).long()  # 2 and 3 times, 4 to 7, …, 64 and more
        self.ranks = torch.empty_like(means)
        for stratum in self.stratum.unique():
            words = self.stratum == stratum
            self.ranks[words] = means[words].argsort(0).argsort(0).float() + 1

    def preferences(self, kinds: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """kinds (K, words) bool -> (K, neurons) each: AUC, the share of pairs of a word of the kind and another word in
        which the neuron fires more on the first (0.5 is chance); and the one-sided p-value against permuted kinds.

        Van Elteren's test: Wilcoxon's rank-sum test in every stratum (words that are about as frequent), combined.
        """
        strata = torch.nn.functional.one_hot(self.stratum).double()  # (words, strata)
        kinds = kinds.to(self.ranks)
        of_kind, everything = kinds.double() @ strata, strata.sum(0)  # numbers of words: (K, strata), (strata,)
        others = everything - of_kind
        pairs = (of_kind * others).sum(1)[:, None].clamp(min=1)
        wins = (kinds @ self.ranks).double() - (of_kind * (of_kind + 1) / 2).sum(1)[:, None]
        deviation = ((of_kind * others * (everything + 1)).sum(1)[:, None] / 12).sqrt().clamp(min=1e-9)
        return wins / pairs, torch.special.erfc((wins - pairs / 2) / deviation / 2**0.5) / 2

    def permuted(self, kinds: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """The kinds, permuted among words that are about as frequent."""
        order = torch.arange(kinds.size(1))
        for stratum in self.stratum.cpu().unique():
            words = (self.stratum.cpu() == stratum).nonzero()[:, 0]
            order[words] = words[torch.randperm(len(words), generator=generator)]
        return kinds[:, order.to(kinds.device)]


def false_discovery_rates(p: torch.Tensor) -> torch.Tensor:
    """Benjamini and Hochberg's q of all p together: of those with q <= x, on average at most a share of x is false."""
    order = p.flatten().argsort()
    n = len(order)
    q = p.flatten()[order] * n / torch.arange(1, n + 1, device=p.device)
    q = q.flip(0).cummin(0).values.flip(0).clamp(max=1)
    return torch.empty_like(q).scatter_(0, order, q).view_as(p)


def strong(auc: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """bool, of the same shape: what each neuron prefers strongly."""
    return (q <= FDR) & (auc >= STRONG)


@dataclass
class Preferences:
    """What the neurons of a model prefer: AUC and q of each kind, (KINDS, N), layer by layer; and how many do."""

    auc: torch.Tensor
    q: torch.Tensor
    counts: dict  # for summary.json


def preferences(neurons: NeuronStatistics, permutations: int = 20, seed: int = 0) -> Preferences:
    """Also counts how many neurons prefer a kind after the kinds are permuted, `permutations` times.

    Works layer by layer, as the ranks of a large model's neurons would not fit in memory together.
    """
    generator, counts, tests = torch.Generator().manual_seed(seed), neurons.counts, []
    for sums in neurons.word_sums:
        ranks = WordRanks(sums / counts[:, None], counts)
        if not tests:  # the same for all layers
            kinds = [neurons.kinds, *(ranks.permuted(neurons.kinds, generator) for _ in range(permutations))]
        tests.append([[x.cpu() for x in ranks.preferences(each)] for each in kinds])
    of_all = [[torch.cat(parts, 1) for parts in zip(*layers)] for layers in zip(*tests)]  # (auc, p) of each of kinds
    of_all = [(auc, false_discovery_rates(p)) for auc, p in of_all]
    preferring = [(q <= FDR).any(0).sum().item() for _, q in of_all]
    strongly = [strong(auc, q).any(0).sum().item() for auc, q in of_all]
    auc, q = of_all[0]
    facts = dict(preferring=preferring[0], strongly=strongly[0])
    facts |= dict(by_kind=dict(zip(KINDS, strong(auc, q).sum(1).tolist())))
    facts |= dict(preferring_shuffled=preferring[1:], strongly_shuffled=strongly[1:])
    return Preferences(auc.float(), q, facts)


# ---- All of them in a table ----


@dataclass
class NeuronTable:
    """All N neurons, layer by layer: (N,), or (KINDS, N)."""

    width: int  # of a layer
    auc: torch.Tensor
    q: torch.Tensor
    auc_random: torch.Tensor  # of the same model at random initialization
    q_random: torch.Tensor
    words: list[dict[str, float]]  # the distinct tokens on which it fires most, and how high
    means: torch.Tensor  # activation over all tokens
    estimates: torch.Tensor | None = None  # of the rise in loss without it, nats per token

    def highest(self) -> int:
        """The neuron with the largest activation."""
        return max(range(len(self.words)), key=lambda i: next(iter(self.words[i].values())))

    def preferred(self) -> list[int | None]:
        """The index in KINDS of what each prefers most, if strongly."""
        best = self.auc.where(strong(self.auc, self.q), 0.0).max(0)
        return [kind if auc else None for auc, kind in zip(best.values.tolist(), best.indices.tolist())]

    def strongest(self, kind: int, n: int) -> list[int]:
        """The n neurons that prefer this kind most, if strongly."""
        auc = self.auc[kind].where(strong(self.auc[kind], self.q[kind]), 0.0)
        return [i for i in auc.argsort(descending=True)[:n].tolist() if auc[i]]

    def rows(self, rises: dict[int, tuple[float, float, float]]) -> list[dict]:
        """neurons.csv. rises: in loss without a neuron, and the ends of its interval, where it was ablated."""
        kinds = self.preferred()
        best = self.auc_random.max(0)
        random = zip(best.values.tolist(), best.indices.tolist())
        auc, q, q_random = self.auc.tolist(), self.q.tolist(), self.q_random.tolist()
        rows = []
        for i, (auc_at_random, kind_at_random) in enumerate(random):
            row = dict(layer=i // self.width, neuron=i % self.width, top_tokens=" | ".join(self.words[i]))
            row |= dict(top_activations=" | ".join(f"{value:.3f}" for value in self.words[i].values()))
            row |= dict(mean_activation=self.means[i].item())
            row |= dict(prefers="" if kinds[i] is None else KINDS[kinds[i]])
            for k, kind in enumerate(KINDS):
                row |= {f"auc_{kind}": auc[k][i], f"q_{kind}": q[k][i]}
            row |= dict(best_auc_at_random_init=auc_at_random, q_at_random_init=q_random[kind_at_random][i])
            row |= dict(rise_estimate="" if self.estimates is None else self.estimates[i].item())
            rows.append(row | dict(zip(("rise", "rise_low", "rise_high"), rises.get(i, ("", "", "")))))
        return rows


def tabulate(
    trained: Preferences, untrained: Preferences, neurons: NeuronStatistics, corpus: TaggedCorpus, tokenizer: Tokenizer
) -> tuple[NeuronTable, dict]:
    """The table; and for summary.json how many neurons prefer a kind: trained, at random initialization, and with
    permuted kinds, and which one fires highest."""
    means = (neurons.total / neurons.n_tokens).flatten().cpu()
    columns = trained.auc, trained.q, untrained.auc, untrained.q, top_tokens(neurons, corpus, tokenizer), means
    table = NeuronTable(neurons.highest.size(2), *columns)
    first = table.highest()
    highest = dict(layer=first // table.width, neuron=first % table.width, tokens=table.words[first])
    words = {kind: int(n) for kind, n in zip(KINDS, neurons.kinds.sum(1))} | {"all": len(neurons.counts)}
    return table, dict(trained=trained.counts, random_init=untrained.counts, words=words, highest=highest)


def top_tokens(neurons: NeuronStatistics, corpus: TaggedCorpus, tokenizer: Tokenizer) -> list[dict[str, float]]:
    """For each neuron the distinct tokens on which it fires most, and how high; one a story, as the page shows."""
    values, stories, places = (x.cpu() for x in neurons.top(CONTEXTS))
    tokens = torch.nn.utils.rnn.pad_sequence([story.tokens for story in corpus.stories], batch_first=True)
    text = {i: repr(tokenizer.decode([i]))[1:-1] for i in tokens.unique().tolist()}
    found = []
    for ids, activations in zip(tokens[stories, places].tolist(), values.tolist()):
        found.append({})
        for i, activation in zip(ids, activations):  # from the highest
            found[-1].setdefault(text[i], activation)
    return found


def choose_neurons(table: NeuronTable, layer: int | None) -> tuple[list[int], list[int], list[int]]:
    """Which neurons are ablated exactly; which of them were drawn at random; and which the page shows."""
    n = table.auc.size(1)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(0)).tolist()
    random = order[:ABLATED_AT_RANDOM]
    strongest = [i for kind in range(len(KINDS)) for i in table.strongest(kind, 1)]
    largest = [] if table.estimates is None else table.estimates.argsort(descending=True)[:ABLATED].tolist()
    ablated = sorted({*strongest, *largest, *random})
    shown = {*ablated, *order[:SHOWN], table.highest()}.union(
        *(table.strongest(kind, SHOWN_OF_KIND) for kind in range(len(KINDS)))
    )
    if layer is not None:
        shown = range(layer * table.width, (layer + 1) * table.width)
    return ablated, random, sorted(shown)


# ---- What neurons.html shows of them ----


@torch.no_grad()
def activations_around(
    model: GPTNeo, corpus: TaggedCorpus, shown: torch.Tensor, stories: torch.Tensor, places: torch.Tensor
):
    """(shown, CONTEXTS, BEFORE + 1 + AFTER): the activations of these neurons around their `places` in `stories`."""
    width, window = 4 * model.config.n_embd, torch.arange(-BEFORE, AFTER + 1, device=shown.device)
    layers, neurons = shown // width, shown % width
    around = torch.zeros(*places.shape, len(window), device=shown.device)
    for batch in corpus.batches(range(len(corpus.stories)), shown.device):
        T = batch.tokens.size(1)

        def record(name, activations, batch=batch, T=T):
            if not name.endswith(".post"):
                return
            in_layer = (layers == int(name.split(".")[1]))[:, None]
            for b, number in enumerate(batch.index):
                i, j = (in_layer & (stories == number)).nonzero(as_tuple=True)
                at = (places[i, j, None] + window).clamp(0, T - 1)
                around[i, j] = activations[b][at, neurons[i, None]].float()

        run(model, batch.tokens, record)
    return around


def contexts(
    model: GPTNeo, corpus: TaggedCorpus, tokenizer: Tokenizer, neurons: NeuronStatistics, shown: list[int]
) -> tuple[list[str], list[list[dict]]]:
    """The pieces of text that contexts are made of; and for each neuron shown, where it fires most, one context a
    story: the `ids` of its pieces, the `levels` (0 to 9) of its activations, where the `peak` is and its `value`."""
    which = torch.tensor(shown, device=neurons.highest.device)
    values, stories, places = (x[which] for x in neurons.top(CONTEXTS))  # (shown, CONTEXTS)
    around = activations_around(model, corpus, which, stories, places)
    levels = (9 * around / values[:, :1, None].clamp(min=1e-6)).round().clamp(0, 9).int()
    numbers, of_neurons = {}, []
    for rows in zip(values.tolist(), stories.tolist(), places.tolist(), levels.tolist()):
        of_neurons.append([])
        for value, story, place, digits in zip(*rows):
            tokens = corpus.stories[story].tokens[max(0, place - BEFORE) : place + AFTER + 1].tolist()
            ids = [numbers.setdefault(piece, len(numbers)) for piece in pieces_of(tokenizer, tokens)]
            digits = digits[max(0, BEFORE - place) :][: len(ids)]
            peak = min(place, BEFORE)
            of_neurons[-1].append(dict(ids=ids, levels="".join(map(str, digits)), peak=peak, value=round(value, 3)))
    return list(numbers), of_neurons


def neuron_cards(table: NeuronTable, shown: list[int], contexts: list[list[dict]], rises: dict[int, tuple]):
    """What neurons.html shows: a dict for each of these neurons."""
    kinds, n_contexts = table.preferred(), max(1, CONTEXTS_ON_PAGE // len(shown))
    return [
        dict(
            layer=i // table.width,
            neuron=i % table.width,
            kind=kinds[i],
            q=None if kinds[i] is None else float(f"{table.q[kinds[i], i]:.1e}"),
            auc=[round(auc, 3) for auc in table.auc[:, i].tolist()],
            estimate=None if table.estimates is None else round(table.estimates[i].item(), 7),
            rise=rises.get(i),
            contexts=own[:n_contexts],
        )
        for i, own in zip(shown, contexts)
    ]
