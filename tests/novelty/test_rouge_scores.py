"""rouge_scores.py and clustered_means.py: as rouge-score and the paper have it, and intervals cover the truth."""

import random

import numpy as np
import pytest
from rouge_score.rouge_scorer import RougeScorer
from rouge_score.tokenize import tokenize

from common import statistics
from corpus import builtin_stories
from novelty.clustered_means import Clustered, bootstrap_means, compare_means
from novelty.rouge_scores import rouge_k, rouge_l

# ROUGE


def pairs(real: list[str]) -> list[tuple[str, str]]:
    rng = random.Random(0)
    made = [" ".join(rng.choices(["a", "b", "The", "cat,", "3rd", "é"], k=rng.randrange(25))) for _ in range(200)]
    odd = ["", "Word", "word", "...", "The cat sat. The cat sat. The cat sat."]
    stories = [story.text for story in builtin_stories.stories(20)]
    return (
        list(zip(made, made[::-1]))
        + [(a, b) for a in odd for b in odd]
        + list(zip(stories + real, stories[::-1] + real[1:]))
    )


@pytest.fixture
def real(request) -> list[str]:
    """A few real stories where they are at hand; the rest is tested without them."""
    try:
        return request.getfixturevalue("real_stories")[:40]
    except pytest.skip.Exception:
        return []


def test_clipped_counts_are_those_of_rouge_score(real):
    scorer = RougeScorer([*(f"rouge{k}" for k in range(1, 10)), "rougeL"])
    for a, b in pairs(real):
        theirs = scorer.score(b, a)  # target, prediction
        for k in range(1, 10):
            assert rouge_k(a, b, k, "clipped") == pytest.approx(tuple(theirs[f"rouge{k}"]), abs=1e-12)
        assert rouge_l(a, b) == pytest.approx(tuple(theirs["rougeL"]), abs=1e-12)


def test_counts_by_set_are_the_papers(real):
    """The share of a's distinct k-grams that are among b's, and the harmonic mean of both directions."""
    for a, b in pairs(real):
        for k in (1, 2, 3, 8):
            ours, theirs = ({tuple(w[i : i + k]) for i in range(len(w) - k + 1)} for w in map(words, (a, b)))
            precision, recall = (len(ours & theirs) / len(x) if x else 0 for x in (ours, theirs))
            f = 2 * precision * recall / (precision + recall) if ours & theirs else 0
            assert rouge_k(a, b, k) == pytest.approx((precision, recall, f), abs=1e-12)


def words(text: str) -> list[str]:
    return tokenize(text, None)


def test_token_ids_are_words_too():
    assert rouge_k([5, 7, 5, 7], np.array([7, 5, 7, 9]), 2, "clipped") == (2 / 3, 2 / 3, 2 / 3)
    assert rouge_k([5, 7, 5, 7], np.array([7, 5, 7, 9]), 2, "set") == (1.0, 2 / 3, 0.8)
    assert rouge_l([1, 2, 3, 4], [2, 9, 4]) == (0.5, 2 / 3, 4 / 7)
    assert rouge_k([], [], 2) == rouge_l([], [1]) == (0, 0, 0)


# Intervals


def test_intervals_are_those_of_means_of_prompts():
    """However many completions each prompt has; their coverage is tested in tests/common/test_statistics.py."""
    prompts = np.random.default_rng(0).normal(size=8)
    found = compare_means(Clustered(np.repeat(prompts, 10), np.repeat(np.arange(8), 10)), None, paired=False)
    assert [*found["completions"].values()] == pytest.approx(statistics.mean(prompts))


def test_values_that_are_missing_do_not_count():
    values = Clustered(np.array([1.0, np.nan, 3.0, np.nan]), np.array([0, 0, 1, 2]))
    assert bootstrap_means(values)[0] == 2 and np.isfinite(bootstrap_means(values)).all()


def test_one_cluster_has_no_interval():
    found = compare_means(Clustered(np.array([1.0, 2.0]), np.array([3, 3])), None, paired=False)["completions"]
    assert found["mean"] == 1.5 and np.isnan(found["low"]) and np.isnan(found["high"])
    all_alike = compare_means(Clustered(np.ones(4), np.arange(4)), None, paired=False)["completions"]
    assert all_alike == dict(mean=1.0, low=1.0, high=1.0)


def test_differences_on_the_same_prompts_are_paired():
    """Prompts differ, but the baseline is always lower by the same amount: the paired interval has no width."""
    prompts = np.random.default_rng(0).normal(size=20)
    ours = Clustered(np.repeat(prompts, 3), np.repeat(np.arange(20), 3))
    theirs = Clustered(np.repeat(prompts - 0.1, 10), np.repeat(np.arange(20), 10))
    found = compare_means(ours, theirs, paired=True)["difference"]
    assert [*found.values()] == pytest.approx([0.1] * 3)
    found = compare_means(ours, theirs, paired=False)["difference"]
    assert found["low"] < -0.2 and found["high"] > 0.4
