"""interpret.py and what it stands on: planted truth is found, chance is not, and the numbers equal those of others."""

import copy
import csv
import json
import re
import shutil
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import arguments, seen_in

import interpret
import train
from checkpoints.checkpoint import from_checkpoint, load_checkpoint
from checkpoints.huggingface import save_hf
from corpus import preparation
from corpus.builtin_stories import ROLES
from corpus.tokenizer import GPT2_VOCAB_SIZE, Tokenizer, cut, gpt2
from interpret import Reading, at_random, run_with_cache
from interpretation import comparison
from interpretation.ablation import ablate_heads, ablate_neurons, affordable, estimate_neurons, rise_with_interval
from interpretation.heads import HeadReader, Tally, induction
from interpretation.hooks import visible
from interpretation.neurons import FDR, Ranks, contexts, false_discovery_rates, ranks_and_kinds, tabulate
from interpretation.word_classes import KINDS, Corpus, Story, names_in, split_words
from model import GPTNeo, GPTNeoConfig

# ---- What run_with_cache gives ----


def random_model(**shape) -> GPTNeo:
    torch.manual_seed(0)
    shape = dict(vocab_size=97, block_size=40, n_layer=3, n_head=4, n_embd=32, window_size=7) | shape
    model = GPTNeo(GPTNeoConfig(**shape)).eval()
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, mean=1.0 if "ln" in name and "weight" in name else 0.0, std=0.15)
    return model


def test_the_explicit_path_equals_the_fast_one():
    model, tokens = random_model(), torch.randint(97, (3, 40))
    logits, cache = run_with_cache(model, tokens)
    torch.testing.assert_close(logits, model(tokens)[0], atol=1e-5, rtol=1e-5)
    attention = cache["blocks.1.attention"]
    assert attention.shape == (3, 4, 40, 40)
    torch.testing.assert_close(attention.sum(-1), torch.ones(3, 4, 40))
    assert not attention[:, :, ~visible(40, 7)].any()
    assert cache["blocks.2.mlp"].shape == (3, 40, 128) and cache["blocks.2.heads"].shape == (3, 40, 4, 8)
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_attention_and_activations_equal_those_of_transformers():
    from test_model import as_transformers

    model, tokens = random_model(), torch.randint(97, (2, 40))
    theirs = as_transformers(model)
    theirs.set_attn_implementation("eager")
    activations = []
    for block in theirs.transformer.h:
        block.mlp.act.register_forward_hook(lambda _, args, output: activations.append(output))
    with torch.no_grad():
        reference = theirs(tokens, output_attentions=True, output_hidden_states=True)
    _, cache = run_with_cache(model, tokens)
    for layer in range(3):
        torch.testing.assert_close(
            cache[f"blocks.{layer}.attention"], reference.attentions[layer], atol=1e-5, rtol=1e-4
        )
        torch.testing.assert_close(cache[f"blocks.{layer}.input"], reference.hidden_states[layer], atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(cache[f"blocks.{layer}.mlp"], activations[layer], atol=1e-5, rtol=1e-4)


# ---- Words ----


def test_tokens_are_put_together_to_words():
    tokenizer = gpt2()
    text = "Zorblax said, \"It's café  o'clock!\"\n\nThe end."
    pieces = [tokenizer.decode_bytes([i]) for i in tokenizer.encode(text)]
    words = [b"".join(pieces[i] for i in members).decode().strip() for members in split_words(pieces)]
    assert words == ["Zorblax", "said", ",", '"', "It", "'s", "café", "o", "'", "clock", '!"', "The", "end", "."]


def test_curly_quotes_and_dashes_are_no_letters():
    tokenizer, text = gpt2(), "He said, “Hello Tom.” Tom was “happy” too. Tom—Ben ran."
    pieces = [tokenizer.decode_bytes([i]) for i in tokenizer.encode(text)]
    words = [b"".join(pieces[i] for i in members).decode().strip() for members in split_words(pieces)]
    assert {"Hello", "Tom", "happy", "Ben"} <= set(words) and words.count("Tom") == 3


def test_kinds_of_words():
    texts = ["One day, Zora saw the cats. The dog saw Zora. A rose, Rose.", "Then, Monty ran. The monty and a monty."]
    assert {"Zora", "Tom"} <= names_in(texts) and not {"Rose", "Monty", "The", "One"} & names_in(texts)
    corpus = Corpus.of(texts, gpt2(), [50256], 512)
    expected = dict(Zora="name", cats="noun", the="other", ran="verb", wugs=None, she="pronoun", happy="adjective")
    expected |= {".": "punctuation", '!"': "punctuation", "was": "verb", "rocks": None}
    assert {word: corpus.kind_of(word) for word in expected} == expected
    assert "rock" not in ROLES
    story = corpus.stories[0]
    assert story.tokens[0] == 50256 and story.words[0] == -1 and story.targets[-1] == 50256
    assert corpus.words[story.words[-1]] == "."


# ---- Planted truth ----

T = 40
WORDS = [
    f"{word}" for kind in ("noun", "verb", "adjective") for word in sorted(w for w in ROLES if ROLES[w][0] == kind)[:30]
]
WORDS += ["Tom", "Mia", "Ben", "Sue", "Max", "Leo", "Ivy", "Ann", "Sam", "Fay", "Zoe", "Ada"]
WORDS += [".", ",", "!", "?", '"', ";", ":", "-", '!"', '."']
NAMES = frozenset(WORDS[90:102])
V = len(WORDS)


def planted_corpus(n: int = 60, seed: int = 0) -> Corpus:
    """Stories of words drawn at random, each a token; a quarter of each repeats what stood before."""
    rng, stories = np.random.default_rng(seed), []
    for _ in range(n):
        ids = rng.integers(V, size=T + 1 - rng.integers(10))
        ids[-10:] = ids[5:15]
        ids = torch.from_numpy(ids)
        stories.append(Story(ids[:-1], ids[1:], ids[:-1], torch.ones(len(ids) - 1, dtype=torch.bool)))
    return Corpus(stories, WORDS, NAMES)


@torch.no_grad()
def planted_model() -> GPTNeo:
    """Weights by hand. The residual stream holds the token, its position, and in layer 1 the token before it.

    Heads: 0.0 looks at the previous token and copies it, 0.1 at the first; 1.0 at what followed the token before, so
    does induction; 1.1 everywhere alike. Neurons: 0.3 fires on token 7, 0.5 on names; others at random.
    """
    torch.manual_seed(0)
    C = 2 * V + T
    config = GPTNeoConfig(vocab_size=V, block_size=T, n_layer=2, n_head=2, n_embd=C, window_size=T)
    model = GPTNeo(config).eval()
    token, position, before = slice(0, V), slice(V, V + T), slice(V + T, C)
    for name, parameter in model.named_parameters():
        if "ln" not in name and "mlp_in" not in name:
            parameter.zero_()
    model.wte.weight[:, token] = torch.eye(V)
    model.wpe.weight[:, position] = torch.eye(T)
    D = C // 2
    (q0, k0, v0), (q1, k1, _) = (block.qkv.weight.view(3, 2, D, C) for block in model.blocks)
    q0[0, : T - 1, position] = torch.eye(T)[1:]  # position i asks for i - 1
    k0[0, :T, position] = torch.eye(T)
    v0[0, :V, token] = torch.eye(V)
    model.blocks[0].attention_out.weight[before, :V] = torch.eye(V)
    q0[1, 0, position] = 1.0  # any position asks for the first
    k0[1, 0, V] = 1.0
    q1[0, :V, token] = torch.eye(V)
    k1[0, :V, before] = torch.eye(V)
    model.blocks[0].mlp_in.weight[3] = 0.0
    model.blocks[0].mlp_in.weight[3, 7] = 1.0
    model.blocks[0].mlp_in.weight[5] = 0.0
    model.blocks[0].mlp_in.weight[5, 90:102] = 1.0
    return model


@pytest.fixture(scope="module")
def planted() -> Reading:
    return Reading(planted_model(), planted_corpus())


def test_planted_heads_get_the_right_role_and_score(planted):
    rows = {
        (row["layer"], row["head"]): row for row in planted.heads.rows(induction(planted.model, planted.corpus, []))
    }
    previous, first, inducing, alike = rows[0, 0], rows[0, 1], rows[1, 0], rows[1, 1]
    assert [row["role"] for row in rows.values()] == ["previous token", "beginning", "induction", "everywhere alike"]
    assert [row["kind"] for row in rows.values()] == ["positional", "positional", "semantic", "everywhere alike"]
    assert (
        previous["previous"] > 0.98
        and previous["position"] > 0.95
        and previous["distance"] == pytest.approx(1, abs=0.1)
    )
    assert first["beginning"] > 0.98 and first["position"] > 0.95 and first["entropy"] < 0.1
    assert inducing["induction"] > 0.9 and inducing["after_same"] > 0.8 and inducing["position"] < 0.5
    assert alike["entropy"] == pytest.approx(alike["entropy_alike"], abs=1e-4)
    assert alike["names"] == pytest.approx(alike["names_alike"], abs=1e-4)
    # The earlier criterion calls the head of the previous token semantic: a spike is no line, whatever its place
    assert previous["kind_by_correlation"] == "semantic" and -0.5 < previous["distance_correlation"] < -0.1


def test_planted_neurons_are_found(planted):
    random = Reading(at_random(planted.model, 0.0), planted.corpus, with_heads=False)
    alphabet = type("Alphabet", (), dict(decode=staticmethod(lambda ids: WORDS[ids[0]])))
    table, counts = tabulate(planted.neurons, random.neurons, planted.corpus, alphabet)
    assert table.words[3] == WORDS[7]  # the only token among those on which it fires most
    assert table.preferred()[5] == KINDS.index("name") and table.of_kind(KINDS.index("name"), 3)[0] == 5
    assert table.auc[KINDS.index("name"), 5] == 1 and table.q[KINDS.index("name"), 5] < 1e-3
    assert counts["trained"]["strongly"] <= 3 and counts["random_init"]["strongly"] <= 2
    assert max(counts["trained"]["preferring_shuffled"]) <= 3
    values, stories, places = (x[3] for x in planted.neurons.top(4))
    assert all(planted.corpus.stories[story].tokens[place] == 7 for story, place in zip(stories, places))
    assert values[0] == values.max()


def test_contexts_show_the_activations_around_the_highest(planted):
    alphabet = type(
        "Alphabet", (), dict(end_of_text=-1, decode_bytes=staticmethod(lambda ids: f" {WORDS[ids[0]]}".encode()))
    )
    pieces, (found,) = contexts(planted.model, planted.corpus, alphabet, planted.neurons, [3])
    for context in found:
        assert pieces[context["ids"][context["peak"]]] == f" {WORDS[7]}" and context["levels"][context["peak"]] == "9"
        assert len(context["levels"]) == len(context["ids"])
        fires = {pieces[i] for i, level in zip(context["ids"], context["levels"]) if level not in "01"}
        assert fires == {f" {WORDS[7]}"}


# ---- Measures of heads, counted by hand ----


def test_measures_equal_loops_over_pairs():
    corpus, model = planted_corpus(4), random_model(vocab_size=V, n_layer=2, n_embd=16)
    reader = HeadReader(model, corpus)
    for batch in corpus.batches(range(4), torch.device("cpu"), tokens=100):  # in several batches, with padding
        _, cache = run_with_cache(model, batch.tokens)
        reader.start(batch)
        for layer in range(2):
            reader.add(layer, cache[f"blocks.{layer}.attention"])
    is_name = [word in NAMES for word in WORDS]
    for layer, head in ((0, 0), (1, 2)):
        pairs, entropies, shares = [], [], dict(previous=[], same_token=[], after_same=[], names=[], beginning=[])
        for story in corpus.stories:
            attention = run_with_cache(model, story.tokens[None])[1][f"blocks.{layer}.attention"][0, head].double()
            ids, window = story.tokens.tolist(), model.config.window(layer)
            for q in range(1, len(ids)):
                seen = range(max(0, q - window + 1), q + 1)
                pairs += [(q - k, attention[q, k].item()) for k in seen]
                entropies.append(sum(-a * np.log(a) for k in seen if (a := attention[q, k].item()) > 0))
                for name, keys in dict(
                    previous=[k for k in seen if k == q - 1],
                    same_token=[k for k in seen if k < q and ids[k] == ids[q]],
                    after_same=[k for k in seen if k > 0 and ids[k - 1] == ids[q]],
                    names=[k for k in seen if is_name[ids[k]]],
                    beginning=[k for k in seen if k == 0],
                ).items():
                    if keys:
                        shares[name].append(sum(attention[q, k].item() for k in keys))
        measures = {name: values[head].item() for name, values in reader.heads[layer].measures().items()}
        distances, weights = np.array(pairs).T
        assert measures["distance"] == pytest.approx((distances * weights).sum() / len(entropies), rel=1e-4)
        assert measures["distance_correlation"] == pytest.approx(np.corrcoef(distances, weights)[0, 1], abs=1e-4)
        assert measures["entropy"] == pytest.approx(np.mean(entropies), rel=1e-4)
        for name, values in shares.items():
            assert measures[name] == pytest.approx(np.mean(values), rel=1e-4, abs=1e-6), name


def test_sums_are_exact_where_the_model_is_not():
    """What is the same in every precision of the model: looking everywhere alike."""
    corpus, model = planted_corpus(12), random_model(vocab_size=V)
    with torch.autocast("cpu", torch.bfloat16):
        rows = Reading(model, corpus).heads.rows(induction(model, corpus, []))
    exact = Reading(model, corpus).heads.rows(induction(model, corpus, []))
    for name in (name for name in rows[0] if name.endswith("_alike")):
        assert rows[0][name] == pytest.approx(exact[0][name], rel=1e-6), name
    assert rows[0]["previous"] == pytest.approx(exact[0]["previous"], abs=0.01)


@pytest.mark.parametrize("positions", [256, 20])
def test_position_and_content_are_told_apart(positions, monkeypatch):
    """Patterns that are a mixture of one for all stories and one for each: the share of the first in their variance."""
    monkeypatch.setattr("interpretation.heads.POSITIONS", positions)
    torch.manual_seed(0)
    seen, B, queries = visible(30, 30), 40, slice(1, positions)

    def pattern(*shape):
        return torch.randn(*shape, 30, 30).mul(2).masked_fill(~seen, -torch.inf).softmax(-1)

    alike = seen / seen.sum(1, keepdim=True)
    fixed, own = pattern(1, 1), pattern(B, 1)
    attention = torch.cat([fixed.expand(B, 1, -1, -1), own, (fixed + own) / 2], 1)
    tally = Tally(3, 30, torch.device("cpu"))
    sets, real = torch.zeros(B, 6, 30, 30, dtype=torch.bool), torch.ones(B, 30, dtype=torch.bool)
    for i in range(0, B, 8):
        tally.add(attention[i : i + 8], sets[i : i + 8], seen, real[i : i + 8])
    by_position, by_content = ((x - alike)[:, :, queries].square().sum((2, 3)).mean().item() for x in (fixed, own))
    mixed = by_position / (by_position + by_content)
    assert tally.measures()["position"].tolist() == pytest.approx([1.0, 0.0, mixed], abs=0.03)


# ---- Ablation ----


@torch.no_grad()
def without(
    model: GPTNeo, layer: int, inputs: torch.Tensor, mean: torch.Tensor, module: str, share: float = 1.0
) -> GPTNeo:
    """The model with `share` of what these inputs of a matrix say replaced by their mean, by changing its weights."""
    changed = copy.deepcopy(model)
    matrix = getattr(changed.blocks[layer], module)
    matrix.bias += share * (matrix.weight[:, inputs] @ mean)
    matrix.weight[:, inputs] *= 1 - share
    return changed


def story_losses(model: GPTNeo, corpus: Corpus, numbers) -> torch.Tensor:
    stories = [corpus.stories[number] for number in numbers]
    with torch.no_grad():
        return torch.stack([F.cross_entropy(model(s.tokens[None])[0][0], s.targets, reduction="sum") for s in stories])


@pytest.fixture(scope="module")
def ablated():
    torch.manual_seed(1)
    corpus, model = planted_corpus(12), random_model(vocab_size=V)
    means = [torch.randn(4, 8) for _ in range(3)], [torch.randn(128) for _ in range(3)]
    return model, corpus, *means


def test_ablations_equal_models_with_other_weights(ablated):
    model, corpus, head_means, neuron_means = ablated
    numbers, neurons = [7, 2, 5, 9], [[3, 100], [], [64]]
    whole, heads = ablate_heads(model, corpus, numbers, head_means)
    again, chosen = ablate_neurons(model, corpus, numbers, neuron_means, neurons)
    torch.testing.assert_close(whole, again)
    chosen = chosen.split([len(some) for some in neurons])
    torch.testing.assert_close(whole, story_losses(model, corpus, numbers), atol=1e-3, rtol=1e-5)
    for layer in range(3):
        for head in range(4):
            inputs = torch.arange(8 * head, 8 * head + 8)
            other = without(model, layer, inputs, head_means[layer][head], "attention_out")
            torch.testing.assert_close(heads[layer, head], story_losses(other, corpus, numbers), atol=1e-3, rtol=1e-5)
        for i, neuron in enumerate(neurons[layer]):
            inputs = torch.tensor([neuron])
            other = without(model, layer, inputs, neuron_means[layer][inputs], "mlp_out")
            torch.testing.assert_close(chosen[layer][i], story_losses(other, corpus, numbers), atol=1e-3, rtol=1e-5)


def test_the_estimate_is_the_slope_of_the_loss(ablated):
    model, corpus, _, neuron_means = ablated
    model, means, numbers = copy.deepcopy(model).double(), [mean.double() for mean in neuron_means], range(1, 12, 2)
    estimates = estimate_neurons(model, corpus, numbers, means)
    n_tokens, share = sum(len(corpus.stories[number].tokens) for number in numbers), 1e-5
    whole = story_losses(model, corpus, numbers).sum()
    for layer, neuron in ((0, 5), (1, 17), (2, 127)):
        inputs = torch.tensor([neuron])
        other = without(model, layer, inputs, means[layer][inputs], "mlp_out", share)
        slope = (story_losses(other, corpus, numbers).sum() - whole) / share / n_tokens
        assert estimates[layer, neuron].item() == pytest.approx(slope.item(), rel=0.01, abs=1e-7)
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_a_head_that_does_nothing_costs_nothing_and_one_that_is_all_costs_much(planted):
    """The heads that look at the first token and everywhere write nothing; the head that copies feeds induction."""
    model, corpus = copy.deepcopy(planted.model), planted.corpus
    with torch.no_grad():  # induction writes what it read: the next token
        model.blocks[1].qkv.weight.view(3, 2, -1, 2 * V + T)[2, 0, :V, :V] = torch.eye(V)
        model.blocks[1].attention_out.weight[:V, :V] = 5 * torch.eye(V)
    means = planted.means("heads")
    numbers = range(1, 60, 2)
    whole, heads = ablate_heads(model, corpus, numbers, means)
    tokens = torch.tensor([len(corpus.stories[number].tokens) for number in numbers])
    rise, low, high = rise_with_interval(heads, whole, tokens)
    assert low[0, 0] > 0.1 and low[1, 0] > 0.1
    assert abs(rise[0, 1]) < 1e-6 and abs(rise[1, 1]) < 1e-6


def test_what_a_default_run_may_cost():
    """Half of the layers' matrices and the head, twice, for every token and part."""
    corpus, model = planted_corpus(40), random_model(vocab_size=V)
    per_token = 2 * 12 * (2 * 12 * 32**2 + 32 * V)
    tokens = [len(corpus.stories[number].tokens) for number in range(20)]
    assert affordable(model, corpus, range(40), 12, per_token * sum(tokens)) == range(20)
    assert affordable(model, corpus, range(40), 12, 0) == range(10)
    assert affordable(model, corpus, range(15), 12, 1e18) == range(15)


def test_intervals_hold_the_truth_as_often_as_they_say():
    rng, truth, held = np.random.default_rng(0), 0.1, []
    for i in range(80):
        tokens = torch.from_numpy(rng.integers(50, 300, size=60)).double()
        whole = torch.zeros(60)
        nats = tokens * truth + torch.from_numpy(rng.normal(size=60)) * tokens.sqrt()
        _, low, high = rise_with_interval(nats[None], whole, tokens, seed=i)
        held.append(low[0] <= truth <= high[0])
    assert 0.87 <= np.mean(held) <= 0.99


# ---- Statistics of neurons ----


def test_preferences_equal_counting_and_permuting():
    torch.manual_seed(0)
    means, counts = torch.randn(60, 4), torch.randint(2, 40, (60,)).float()
    kinds = torch.rand(2, 60) < 0.3
    means[kinds[0], 1] += 0.8
    ranks = Ranks(means, counts)
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
    shuffles = torch.stack([ranks.preferences(ranks.shuffled(kinds, generator))[0] for _ in range(4000)])
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
    """Neurons that fire alike, as those of a model do: of 40 dimensions; kinds of words; how often these stand."""
    means = torch.randn(n_words, 40, generator=generator) @ torch.randn(40, n_neurons, generator=generator)
    kinds = torch.nn.functional.one_hot(torch.randint(7, (n_words,), generator=generator), 7).bool().T[:6]
    return means, kinds, 2 + 60 * torch.rand(n_words, generator=generator) ** 3


def test_on_shuffled_kinds_hardly_ever_anything_is_found():
    """Where no neuron prefers anything, the false-discovery rate is the chance of any find at all."""
    generator = torch.Generator().manual_seed(0)
    means, kinds, counts = neurons_on_words(generator)
    ranks = Ranks(means, counts)
    tests = [ranks.preferences(ranks.shuffled(kinds, generator))[1] for _ in range(200)]
    assert np.mean([bool((false_discovery_rates(p) <= FDR).any()) for p in tests]) <= 0.1


def test_among_true_preferences_few_are_false():
    generator, false_share, power = torch.Generator().manual_seed(0), [], []
    for _ in range(40):
        means, kinds, counts = neurons_on_words(generator)
        true = torch.zeros(6, 1000, dtype=torch.bool)
        true[2, :200] = True
        means[:, :200] += 12 * kinds[2][:, None]
        found = false_discovery_rates(Ranks(means, counts).preferences(kinds)[1]) <= FDR
        false_share.append((found & ~true).sum().item() / max(1, found.sum().item()))
        power.append(found[true].float().mean().item())
    assert np.mean(false_share) <= 0.06 and np.mean(power) > 0.9


def test_one_frequent_word_is_one_observation():
    """A neuron that fires on a single verb, however often it stands there, does not "prefer verbs"."""
    corpus, model = planted_corpus(), planted_model()
    verb = WORDS.index(next(word for word in WORDS if word in ROLES and ROLES[word][0] == "verb"))
    for story in corpus.stories:
        story.tokens[::3] = story.words[::3] = verb
    with torch.no_grad():
        model.blocks[0].mlp_in.weight[3] = 0
        model.blocks[0].mlp_in.weight[3, verb] = 1
    reading = Reading(model, corpus, with_heads=False)
    ranks, kinds = ranks_and_kinds(reading.neurons, corpus)
    _, p = ranks.preferences(kinds)
    assert p[KINDS.index("verb"), 3] > 0.001


# ---- The command line, and its files ----


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """out/run of a tiny model, and data/tiny whose stories hold what would be markup."""
    directory = tmp_path_factory.mktemp("interpret")
    rng, names, things = np.random.default_rng(0), ["Tom", "Mia", "Ben", "Sue"], ["ball", "cat", "kite", "drum", "hat"]
    texts = [
        f"{rng.choice(names)} had a {rng.choice(things)}. Then, {rng.choice(names)} saw it. Number {i}."
        for i in range(150)
    ]
    texts[1] = f"<script>document.title = 'broken'</script> {texts[1]} </body> <b>Bold</b> & more."
    preparation.prepare(directory / "data" / "tiny", ["tests"], texts[40:], texts[:40], vocab_size=300)
    config = dict(
        name="run", out_dir=str(directory / "out"), data="tiny", data_dir=str(directory / "data"), device="cpu",
        dtype="float32", compile=False, block_size=64, n_layer=2, n_head=2, n_embd=16, batch_size=4, max_steps=2,
        eval_tokens=400, eval_interval=2, copy_init=0.03,
    )  # fmt: skip
    train.train(*train.parse_command_line(arguments(config)))
    return directory


@pytest.fixture
def interpret_py(command_line, trained):
    return command_line(interpret, trained)


def rows_of(path) -> list[dict]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def page_data(path) -> dict:
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', path.read_text(), re.S)[1])


def test_before_training_it_is_as_the_run_started(interpret_py, monkeypatch):
    started = []
    monkeypatch.setattr(interpret, "at_random", lambda *args: started.append(at_random(*args)) or started[-1])
    assert interpret_py("out/run", "--stories", "10", "--ablate", "0", "--out", "started")[0] == 0
    for block in started[0].blocks:
        copies = block.attention_out.weight @ block.qkv.weight[-16:]
        torch.testing.assert_close(copies, 0.03 * torch.eye(16))


def test_all_files_are_written(interpret_py, trained):
    code, printed = interpret_py("out/run", "--stories", "30", "--out", "all")
    assert code == 0 and "4 heads" in printed.out and "128 neurons" in printed.out
    out = trained / "all"
    assert sorted(path.name for path in out.iterdir()) == [
        "attention.html", "attention.npz", "attention.png", "heads.csv", "neurons.csv", "neurons.html", "summary.json",
    ]  # fmt: skip
    with np.load(out / "attention.npz") as file:
        assert file["attention"].shape == (2, 2, *2 * file["tokens"].shape) and file["tokens"][0] == "<|endoftext|>"
        np.testing.assert_allclose(file["attention"].sum(-1), 1, atol=1e-5)
    heads, neurons = rows_of(out / "heads.csv"), rows_of(out / "neurons.csv")
    assert [(row["layer"], row["head"]) for row in heads] == [("0", "0"), ("0", "1"), ("1", "0"), ("1", "1")]
    assert len(neurons) == 128 and sum(row["rise"] != "" for row in neurons) >= 20
    for row in heads:
        assert float(row["rise_low"]) <= float(row["rise"]) <= float(row["rise_high"])
    summary = json.loads((out / "summary.json").read_text())
    assert summary["format"] == comparison.FORMAT and summary["stories"] == 30 and summary["ablation"]["stories"] == 15
    for name in ("attention.html", "neurons.html"):
        assert (out / name).stat().st_size < 2_000_000
        assert not re.search(r"""(src|href)=|https?://|@import|url\(""", (out / name).read_text().split('id="data"')[0])


def test_what_is_drawn_can_be_chosen(interpret_py, trained):
    args = ("--stories", "30", "--ablate", "0", "--text", "Tom had a ball.", "--layer", "1", "--out", "chosen")
    assert interpret_py("out/run", *args)[0] == 0
    data = page_data(trained / "chosen" / "attention.html")
    assert [(head["layer"], head["head"]) for head in data["heads"]] == [(1, 0), (1, 1)]
    assert "".join(data["tokens"]) == "‹start›Tom had a ball."
    assert len(data["rows"]) == 4 and "rise" not in data["rows"][0]
    cards = page_data(trained / "chosen" / "neurons.html")["neurons"]
    assert {card["layer"] for card in cards} == {1} and len(cards) == 64
    with np.load(trained / "chosen" / "attention.npz") as file:
        assert file["attention"].shape[:2] == (2, 2)
    assert interpret_py("out/run", "--stories", "0", "--text", "Tom ran.", "--head", "1", "--out", "alone")[0] == 0
    assert [head["layer"] for head in page_data(trained / "alone" / "attention.html")["heads"]] == [0, 1]
    assert sorted(path.suffix for path in (trained / "alone").iterdir()) == [".html", ".npz", ".png"]


def test_published_models_read_any_corpus(interpret_py, trained):
    checkpoint = load_checkpoint(trained / "out" / "run")
    save_hf(from_checkpoint(checkpoint), trained / "exported", Tokenizer(checkpoint["gpt2_ids"]))
    args = ("--stories", "20", "--ablate", "0", "--out")
    assert interpret_py("hf:exported", "--data", "data/tiny", *args, "theirs")[0] == 0
    assert interpret_py("out/run", *args, "ours")[0] == 0
    assert rows_of(trained / "theirs" / "heads.csv") == rows_of(trained / "ours" / "heads.csv")
    # Another vocabulary than the corpus has: the text is the same
    model = GPTNeo(GPTNeoConfig(vocab_size=400, block_size=32, n_layer=1, n_head=2, n_embd=8))
    save_hf(model, trained / "others", cut(np.zeros(GPT2_VOCAB_SIZE), 400))
    assert interpret_py("hf:others", "--data", "data/tiny", *args, "other_vocabulary")[0] == 0


def test_models_are_compared(interpret_py, trained):
    for name in ("b", "a"):
        (trained / "models" / name).mkdir(parents=True)
        shutil.copy(trained / "out" / "run" / "best.pt", trained / "models" / name / "best.pt")
        shutil.copy(trained / "out" / "run" / "ckpt.pt", trained / "models" / name / "ckpt.pt")
    code, _ = interpret_py("--compare", "models/a", "models/b")
    assert code.endswith("models/a/interpret/summary.json: not there; make it with: python interpret.py models/a")
    for name, n in (("a", "12"), ("b", "0")):
        assert interpret_py(f"models/{name}", "--stories", "24", "--ablate", n)[0] == 0
    code, printed = interpret_py("--compare", "models/a", "models/b")
    assert code == 0 and "16-2-2" in printed.out and (trained / "models" / "compare.png").stat().st_size > 5000
    a, b = rows_of(trained / "models" / "compare.csv")
    assert a["heads"] == "4" and a["loss"] and not b["loss"]
    shares = [sum(int(row[key]) for key in row if key.startswith("role: ")) for row in (a, b)]
    assert shares == [4, 4] and sum(int(a[kind]) for kind in ("positional", "semantic", "everywhere alike")) == 4
    summary = trained / "models" / "a" / "interpret" / "summary.json"
    summary.write_text(summary.read_text().replace('"format": 1', '"format": 9'))
    assert "format 9, but this version reads 1" in interpret_py("--compare", "models/a", "models/b")[0]


@pytest.mark.parametrize(
    "args, message",
    [
        (["out/none"], "no such checkpoint"),
        (["api:gpt"], "nobody can look into a model behind an endpoint"),
        (["hf:exported"], "needs --data, a corpus that prepare.py made"),
        (["out/run", "--data", "data/none"], "data/none/meta.json: cannot be read"),
        (["out/run", "--layer", "2"], "--layer must be at most 1 for out/run, not 2"),
        (["out/run", "--head", "-1"], "--head must be 0 or more"),
        (["out/run", "--stories", "3"], "--stories must be 0, or at least 10"),
        (["out/run", "--ablate", "3"], "--ablate must be 0, or at least 10"),
        (["out/run", "--stories", "0"], "--stories 0 draws attention on a --text"),
        (["out/run", "--text", "cat " * 100], "--text has 102 tokens, the context of out/run 64; shorten it"),
        (["out/run", "--out", "data/tiny/meta.json"], "data/tiny/meta.json: File exists"),
        (["out/run", "--compare", "out/run"], "--compare takes all runs behind it"),
    ],
)
def test_mistakes_get_one_line(interpret_py, args, message):
    code, printed = interpret_py(*args)
    complaint = printed.err.splitlines()[-1] if code == 2 else code
    assert message in complaint and "\n" not in complaint and "Traceback" not in printed.err


# ---- The pages, in a browser ----


@pytest.fixture(scope="module")
def visited(trained, monkeypatch_module):
    """A directory with both pages, attention on a text that holds markup."""
    monkeypatch_module.chdir(trained)
    text = "<script>document.title = 'broken'</script> Tom & <b>Mia</b>."
    flags = ["out/run", "--stories", "30", "--ablate", "10", "--text", text, "--out", "pages"]
    monkeypatch_module.setattr(sys, "argv", ["interpret.py", *flags])
    interpret.main()
    return trained / "pages"


@pytest.fixture(scope="module")
def monkeypatch_module():
    with pytest.MonkeyPatch.context() as patch:
        yield patch


POINT = """
const before = document.getElementById("grid").textContent;
spans[6].dispatchEvent(new MouseEvent("mouseover", {bubbles: true}));
const after = document.getElementById("grid").textContent;
document.querySelector("#head-1-1").click();
document.querySelectorAll("#heads th")[4].click();
document.body.append(element("pre", {id: "seen"}, JSON.stringify({
  before, after, background: spans[3].style.background, outline: spans[6].style.outline,
  text: document.getElementById("text").textContent, title: document.title,
  whose: document.getElementById("whose").textContent, scripts: document.scripts.length,
  bold: document.querySelectorAll("b").length, rows: document.querySelectorAll("#heads tbody tr").length,
})));
"""


def test_pointing_at_a_token_shows_where_each_head_looks(browser, visited):
    document, console = browser(visited / "attention.html", POINT)
    assert console == []
    seen = seen_in(document)
    assert seen["before"] != seen["after"] and seen["after"].count("→") == 4 and "→" not in seen["before"]
    assert "rgba" in seen["background"] and "solid" in seen["outline"]
    assert "<script>document.title = 'broken'</script> Tom & <b>Mia</b>." in seen["text"]
    assert seen["title"] == "Attention in out/run" and seen["scripts"] == 3 and seen["bold"] == 1
    assert "layer 1, head 1" in seen["whose"] and seen["rows"] == 4


BROWSE = """
byId("kind").value = "none"; byId("kind").dispatchEvent(new Event("change"));
const none = byId("count").textContent;
byId("kind").value = ""; byId("search").value = "</b>"; byId("search").dispatchEvent(new Event("input"));
byId("search").value = ""; byId("search").dispatchEvent(new Event("input"));
for (let i = 0; i < 9; i++) byId("more").click();
const token = document.querySelector(".peak");
token.dispatchEvent(new MouseEvent("mousemove", {bubbles: true, clientX: 5, clientY: 5}));
document.body.append(element("pre", {id: "seen"}, JSON.stringify({
  none, tip: tip.textContent, shown: tip.style.display, cards: document.querySelectorAll(".card").length,
  text: byId("cards").textContent, title: document.title, scripts: document.scripts.length,
  inside: byId("cards").querySelectorAll("script, b b, .token b").length,
})));
"""


def test_neurons_can_be_browsed(browser, visited):
    document, console = browser(visited / "neurons.html", BROWSE)
    assert console == []
    seen = seen_in(document)
    assert seen["shown"] == "block" and "100 % of this neuron's highest activation" in seen["tip"]
    assert (
        seen["cards"] == len(page_data(visited / "neurons.html")["neurons"]) and "neurons on this page" in seen["none"]
    )
    assert "<script>" in seen["text"]  # the story's own
    assert seen["title"] == "Neurons of out/run" and seen["scripts"] == 3 and seen["inside"] == 0
