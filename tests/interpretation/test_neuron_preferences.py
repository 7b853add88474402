"""interpretation/neuron_preferences.py: planted preferences are found, chance ones not; the statistics."""

import numpy as np
import pytest
import torch
from planted_model import WORDS, V, planted_corpus, planted_model, planted_statistics

from corpus.builtin_stories import ROLES
from interpretation.activation_statistics import ActivationStatistics, untrained_copy
from interpretation.neuron_preferences import FDR, WordRanks, contexts, false_discovery_rates, preferences, tabulate
from interpretation.word_classes import KINDS


@pytest.fixture
def planted() -> ActivationStatistics:
    return planted_statistics()


def test_planted_neurons_are_found(planted):
    random = ActivationStatistics(untrained_copy(planted.model, 0.0), planted.corpus, with_heads=False)
    alphabet = type("Alphabet", (), dict(decode=staticmethod(lambda ids: WORDS[ids[0]])))
    tests = preferences(planted.neurons), preferences(random.neurons)
    table, counts = tabulate(*tests, planted.neurons, planted.corpus, alphabet)
    assert list(table.words[3]) == [WORDS[7]]  # the only token among those on which it fires most
    assert table.preferred()[5] == KINDS.index("name") and table.strongest(KINDS.index("name"), 3)[0] == 5
    assert table.auc[KINDS.index("name"), 5] == 1 and table.q[KINDS.index("name"), 5] < 1e-3
    assert counts["trained"]["strongly"] <= 3 and counts["random_init"]["strongly"] <= 2
    assert max(counts["trained"]["preferring_shuffled"]) <= 3
    row = table.rows({})[3]
    assert float(row["top_activations"]) == pytest.approx(planted.neurons.highest[0, :, 3].max().item(), abs=1e-3)
    first = max(range(len(table.words)), key=lambda i: planted.neurons.highest.transpose(1, 2).flatten(0, 1)[i].max())
    assert counts["highest"] == dict(layer=first // table.width, neuron=first % table.width, tokens=table.words[first])
    values, stories, places = (x[3] for x in planted.neurons.top(4))
    assert all(planted.corpus.stories[story].tokens[place] == 7 for story, place in zip(stories, places))
    assert values[0] == values.max()


def test_contexts_show_the_activations_around_the_highest(planted):
    alphabet = type(
        "Alphabet", (), dict(end_of_text=-1, decode_bytes=staticmethod(lambda ids: f" {WORDS[ids[0]]}".encode()))
    )
    pieces, (of_neuron,) = contexts(planted.model, planted.corpus, alphabet, planted.neurons, [3])
    for context in of_neuron:
        assert pieces[context["ids"][context["peak"]]] == f" {WORDS[7]}" and context["levels"][context["peak"]] == "9"
        assert len(context["levels"]) == len(context["ids"])
        fires = {pieces[i] for i, level in zip(context["ids"], context["levels"]) if level not in "01"}
        assert fires == {f" {WORDS[7]}"}


def test_preferences_equal_counting_and_permuting():
    torch.manual_seed(0)
    means, counts = torch.randn(60, 4), torch.randint(2, 40, (60,)).float()
    kinds = torch.rand(2, 60) < 0.3
    means[kinds[0], 1] += 0.8
    ranks = WordRanks(means, counts)
    auc, p = ranks.preferences(kinds)
    for kind in range(2):
        for neuron in range(4):
            wins = [
                means[i, neuron] > means[j, neuron]
                for i in kinds[kind].nonzero()[:, 0]
                for j in (~kinds[kind]).nonzero()[:, 0]
                if counts[i].log2().floor() == counts[j].log2().floor()
            ]
            assert auc[kind, neuron].item() == pytest.approx(np.mean(wins))
    generator = torch.Generator().manual_seed(1)
    shuffles = torch.stack([ranks.preferences(ranks.permuted(kinds, generator))[0] for _ in range(4000)])
    torch.testing.assert_close(p, (shuffles >= auc).double().mean(0), atol=0.02, rtol=0)
    assert p[0, 1] < 0.01


def test_false_discovery_rates_equal_the_definition():
    p = torch.rand(3, 50, generator=torch.Generator().manual_seed(0)).double() ** 2
    flat = sorted(p.flatten().tolist())
    by_definition = [
        min([1.0] + [x * 150 / rank for rank, x in enumerate(flat, 1) if x >= each]) for each in p.flatten().tolist()
    ]
    assert false_discovery_rates(p).flatten().tolist() == pytest.approx(by_definition)


def neurons_on_words(generator: torch.Generator, n_words: int = 300, n_neurons: int = 1000):
    """Correlated neurons, as a model has them (of 40 dimensions); kinds of words; how often each word occurs."""
    means = torch.randn(n_words, 40, generator=generator) @ torch.randn(40, n_neurons, generator=generator)
    kinds = torch.nn.functional.one_hot(torch.randint(7, (n_words,), generator=generator), 7).bool().T[:6]
    return means, kinds, 2 + 60 * torch.rand(n_words, generator=generator) ** 3


def test_hardly_anything_is_found_for_permuted_kinds():
    """Where no neuron prefers anything, the false-discovery rate is the chance of any find at all."""
    generator = torch.Generator().manual_seed(0)
    means, kinds, counts = neurons_on_words(generator)
    ranks = WordRanks(means, counts)
    tests = [ranks.preferences(ranks.permuted(kinds, generator))[1] for _ in range(200)]
    assert np.mean([bool((false_discovery_rates(p) <= FDR).any()) for p in tests]) <= 0.1


def test_among_true_preferences_few_are_false():
    generator, false_share, power = torch.Generator().manual_seed(0), [], []
    for _ in range(40):
        means, kinds, counts = neurons_on_words(generator)
        true = torch.zeros(6, 1000, dtype=torch.bool)
        true[2, :200] = True
        means[:, :200] += 12 * kinds[2][:, None]
        found = false_discovery_rates(WordRanks(means, counts).preferences(kinds)[1]) <= FDR
        false_share.append((found & ~true).sum().item() / max(1, found.sum().item()))
        power.append(found[true].float().mean().item())
    assert np.mean(false_share) <= 0.06 and np.mean(power) > 0.9


def test_one_frequent_word_is_one_observation():
    """A neuron that fires on a single verb, however often it occurs, does not "prefer verbs"."""
    corpus, model = planted_corpus(), planted_model()
    verb = WORDS.index(next(word for word in WORDS if word in ROLES and ROLES[word][0] == "verb"))
    for story in corpus.stories:
        story.tokens[::3] = story.words[::3] = verb
    with torch.no_grad():
        model.blocks[0].mlp_in.weight[3] = 0
        model.blocks[0].mlp_in.weight[3, verb] = 1
    statistics = ActivationStatistics(model, corpus, with_heads=False)
    neurons = statistics.neurons
    _, p = WordRanks(neurons.word_sums[0] / neurons.counts[:, None], neurons.counts).preferences(neurons.kinds)
    assert p[KINDS.index("verb"), 3] > 0.001


def test_layer_by_layer_is_as_all_at_once(planted):
    neurons = planted.neurons
    together = WordRanks((neurons.word_sums / neurons.counts[:, None]).transpose(0, 1).flatten(1), neurons.counts)
    auc, p = together.preferences(neurons.kinds)
    tested = preferences(neurons, permutations=1)
    torch.testing.assert_close(tested.auc, auc.float())
    torch.testing.assert_close(tested.q, false_discovery_rates(p))
    assert neurons.word_sums.size(1) < len(planted.corpus.words) + 1 == V + 1 and neurons.counts.min() >= 2
