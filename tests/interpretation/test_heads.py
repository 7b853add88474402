"""nanostories/interpretation/heads.py: planted heads get the right role, and measures equal
counting by hand."""

import numpy as np
import pytest
import torch
from planted_model import NAMES, WORDS, T, V, planted_corpus, planted_model
from random_models import random_model

from interpret import collect_activations
from nanostories.interpretation.heads import (
    BACK,
    KEY_SETS,
    HeadSums,
    head_rows,
    key_sets,
    repeated_random_tokens,
)
from nanostories.interpretation.hooks import run_with_cache, visible_keys


def rows_of(model, corpus) -> list[dict]:
    return head_rows(
        *(
            collect_activations(model, each)[0]
            for each in (corpus, repeated_random_tokens(corpus, [], T))
        )
    )


def test_planted_heads_get_the_right_role_and_score():
    rows = rows_of(planted_model(), planted_corpus())
    assert [(row["layer"], row["head"]) for row in rows] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    previous, first, inducing, alike = rows
    assert [row["role"] for row in rows] == ["previous token", "beginning", "induction", "uniform"]
    assert [row["kind"] for row in rows] == ["positional", "positional", "semantic", "uniform"]
    assert (
        previous["previous"] > 0.98
        and previous["position"] > 0.95
        and abs(previous["distance"] - 1) < 0.1
    )
    assert first["beginning"] > 0.98 and first["position"] > 0.95 and first["entropy"] < 0.1
    assert (
        inducing["induction"] > 0.9 and inducing["after_same"] > 0.8 and inducing["position"] < 0.5
    )
    assert alike["entropy"] == pytest.approx(alike["entropy_uniform"], abs=1e-4)
    assert alike["names"] == pytest.approx(alike["names_uniform"], abs=1e-4)
    assert "nouns" in alike and "pronouns" not in alike  # no word is a pronoun
    # A correlation with distance does not see the head of the previous token: a spike is no line,
    # whatever its place
    assert -0.5 < previous["distance_correlation"] < -0.1


def test_measures_equal_loops_over_pairs():
    corpus, model = planted_corpus(4), random_model(vocab_size=V, n_layer=2, n_embd=16)
    heads = [HeadSums(4, 40, torch.device("cpu")) for _ in range(2)]
    for batch in corpus.batches(
        4, torch.device("cpu"), tokens=100
    ):  # in several batches, with padding
        _, cache = run_with_cache(model, batch.tokens)
        for layer in range(2):
            masks = key_sets(batch, corpus)
            heads[layer].add(
                cache[f"blocks.{layer}.pattern"],
                masks,
                model.config.window(layer),
                batch.not_padding,
            )
    is_name = [word in NAMES for word in WORDS]
    for layer, head in ((0, 0), (1, 2)):
        pairs, entropies, shares = (
            [],
            [],
            dict(same_token=[], after_same=[], names=[], beginning=[]),
        )
        for story in corpus.stories:
            attention = run_with_cache(model, story.tokens[None])[1][f"blocks.{layer}.pattern"][
                0, head
            ].double()
            ids, window = story.tokens.tolist(), model.config.window(layer)
            for q in range(1, len(ids)):
                seen = range(max(0, q - window + 1), q + 1)
                pairs += [(q - k, attention[q, k].item()) for k in seen]
                entropies.append(
                    sum(-a * np.log(a) for k in seen if (a := attention[q, k].item()) > 0)
                )
                for name, keys in dict(
                    same_token=[k for k in seen if k < q and ids[k] == ids[q]],
                    after_same=[k for k in seen if k > 0 and ids[k - 1] == ids[q]],
                    names=[k for k in seen if is_name[ids[k]]],
                    beginning=[k for k in seen if k == 0],
                ).items():
                    if keys:
                        shares[name].append(sum(attention[q, k].item() for k in keys))
        measures = {name: values[head].item() for name, values in heads[layer].measures().items()}
        for offset in range(BACK):
            at = [a for d, a in pairs if d == offset]
            assert measures[f"back_{offset}"] == pytest.approx(
                np.mean(at) if at else 0, rel=1e-4, abs=1e-6
            )
        distances, weights = np.array(pairs).T
        assert measures["distance"] == pytest.approx(
            (distances * weights).sum() / len(entropies), rel=1e-4
        )
        assert measures["distance_correlation"] == pytest.approx(
            np.corrcoef(distances, weights)[0, 1], abs=1e-4
        )
        assert measures["entropy"] == pytest.approx(np.mean(entropies), rel=1e-4)
        for name, values in shares.items():
            assert measures[name] == pytest.approx(np.mean(values), rel=1e-4, abs=1e-6), name


def test_heads_that_look_at_themselves_or_n_positions_back():
    model, corpus = planted_model(), planted_corpus()
    position = slice(V, V + T)
    with torch.no_grad():
        (q, k, _) = model.blocks[0].qkv.weight.view(3, 2, -1, 2 * V + T)
        q.zero_(), k.zero_()
        k[:, :T, position] = torch.eye(T)
        q[0, : T - 2, position] = torch.eye(T)[2:]  # position i asks for i - 2
        q[1, :T, position] = torch.eye(T)  # and for itself
    back, itself = rows_of(model, corpus)[:2]
    assert (back["role"], back["kind"], back["offset"]) == ("fixed offset", "positional", 2)
    assert back["offset_share"] > 0.98 and back["offset_share_uniform"] < 0.2
    assert (itself["role"], itself["kind"]) == ("itself", "positional") and itself["itself"] > 0.98


@pytest.mark.parametrize("positions", [256, 20])
def test_position_and_content_are_separated(positions, monkeypatch):
    """Patterns that are a mixture of one for all stories and one for each: the share of the first
    in their variance."""
    monkeypatch.setattr("nanostories.interpretation.heads.POSITIONS", positions)
    torch.manual_seed(0)
    seen, B, queries = visible_keys(30, 30), 10, slice(1, positions)

    def pattern(*shape):
        return torch.randn(*shape, 30, 30).mul(2).masked_fill(~seen, -torch.inf).softmax(-1)

    alike = seen / seen.sum(1, keepdim=True)
    fixed, own = pattern(1, 1), pattern(B, 1)
    attention = torch.cat([fixed.expand(B, 1, -1, -1), own, (fixed + own) / 2], 1)
    sums = HeadSums(3, 30, torch.device("cpu"))
    masks, not_padding = (
        torch.zeros(B, len(KEY_SETS), 30, 30, dtype=torch.bool),
        torch.ones(B, 30, dtype=torch.bool),
    )
    for i in range(0, B, 5):
        sums.add(attention[i : i + 5], masks[i : i + 5], 30, not_padding[i : i + 5])
    by_position, by_content = (
        (x - alike)[:, :, queries].square().sum((2, 3)).mean().item() for x in (fixed, own)
    )
    mixed = by_position / (by_position + by_content)
    assert sums.measures()["position"].tolist() == pytest.approx([1.0, 0.0, mixed, 0.0], abs=0.03)
