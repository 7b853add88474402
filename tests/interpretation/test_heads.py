"""nanostories/interpretation/heads.py: planted heads get the right role, and measures equal
counting by hand."""

import collections

import numpy as np
import pytest
from planted_model import NAMES, WORDS, for_both_models, planted_corpus, planted_model
from scipy.special import entr

from nanostories.corpus.tokenizer import gpt2
from nanostories.interpretation.heads import (
    KEY_SETS,
    head_rows,
    induction_shares,
    key_features,
    name_role,
)
from nanostories.interpretation.hooks import run_with_cache
from nanostories.interpretation.reading import read_activations
from nanostories.interpretation.word_classes import TaggedCorpus, kind_of


def rows_of(model, corpus) -> list[dict]:
    return head_rows(read_activations(model, corpus).heads, induction_shares(model, corpus, []))


def test_planted_heads_get_the_right_role():
    rows = rows_of(planted_model(), planted_corpus())
    assert [row["role"] for row in rows] == ["previous token", "beginning", "induction", "uniform"]
    previous, _, inducing, alike = rows
    assert inducing["induction"] > 0.9
    assert alike["names"] == pytest.approx(alike["names_uniform"], abs=1e-4)
    assert "nouns" in alike and "pronouns" not in alike  # no word is a pronoun
    # A correlation with distance does not see the head of the previous token: a spike is no line,
    # whatever its place
    assert -0.5 < previous["distance_correlation"] < -0.1


def subject_and_main_character(words: list[str], q: int) -> tuple[int | None, str | None]:
    """The place of the subject of the sentence that has word q, if it is before it; the first of
    the most frequent names, in the order of WORDS."""
    kinds = [kind_of(word, {name.lower() for name in NAMES}) for word in words]
    ends = [i for i, word in enumerate(words) if word[0] in ".!?"]
    begin = max([i + 1 for i in ends if i < q], default=0)
    end = min([i for i in ends if i >= q], default=len(words))
    subject = None
    if "verb" in kinds[begin:end]:
        verb = kinds.index("verb", begin)
        nouns = [i for i in range(begin, verb) if kinds[i] in ("noun", "name")]  # no pronouns
        if nouns and nouns[-1] < q:
            subject = nouns[-1]
    named = [word for word in words if word in NAMES]
    main = max(sorted(set(named), key=WORDS.index), key=named.count, default=None)
    return subject, main


def test_the_main_character_has_most_mentions_not_most_tokens():
    text = "Then Zorbanika saw Tom, and Tom saw Zorbanika, and Tom did not see it, but she did."
    corpus = TaggedCorpus.from_texts([text], gpt2(), [], block_size=64)
    (story,) = corpus.stories
    is_main = key_features(story, corpus)[KEY_SETS.index("main_character"), -1]
    assert {corpus.words[story.words[k]] for k in is_main.nonzero()} == {"Tom"}


@for_both_models
def test_measures_equal_loops_over_pairs(any_model):
    corpus = planted_corpus(4)
    rows = rows_of(any_model, corpus)
    for layer, head in ((0, 0), (1, 2)):
        window = any_model.config.window(layer)
        pairs = []
        entropies = []
        shares = collections.defaultdict(list)
        for story in corpus.stories:
            _, cache = run_with_cache(any_model, story.tokens[None])
            attention = cache[f"blocks.{layer}.pattern"][0, head].double().numpy()
            words = [WORDS[i] for i in story.tokens]
            for q in range(1, len(words)):
                seen = range(max(0, q - window + 1), q + 1)
                weights = attention[q, seen]
                pairs += [(q - k, attention[q, k]) for k in seen]
                entropies.append(entr(weights).sum())
                subject, main = subject_and_main_character(words, q)
                sets = {
                    "itself": [q],
                    "previous": [q - 1],
                    "beginning": [k for k in seen if k == 0],
                    "same_token": [k for k in seen if k < q and words[k] == words[q]],
                    "after_same": [k for k in seen if k > 0 and words[k - 1] == words[q]],
                    "names": [k for k in seen if words[k] in NAMES],
                    "sentence_end": [k for k in seen if k < q and words[k][0] in ".!?"],
                    "subject": [k for k in seen if k == subject],
                    "main_character": [k for k in seen if words[k] == main],
                }
                for name, keys in sets.items():
                    if keys:
                        shares[name].append(attention[q, keys].sum())
        distances, weights = np.array(pairs).T
        expected = {name: np.mean(values) for name, values in shares.items()}
        expected["distance"] = (distances * weights).sum() / len(entropies)
        expected["distance_correlation"] = np.corrcoef(distances, weights)[0, 1]
        expected["entropy"] = np.mean(entropies)
        row = rows[4 * layer + head]
        for name, value in expected.items():
            assert row[name] == pytest.approx(value, rel=1e-4, abs=1e-4), name


def test_of_names_and_their_main_character_a_head_has_the_clearer_role():
    row = {"entropy": 1, "entropy_uniform": 3, "names": 0.8, "names_uniform": 0.2}
    row |= {"main_character": 0.78, "main_character_uniform": 0.1}
    assert name_role(row) == "main character"
    assert name_role(row | {"main_character": 0.5}) == "names"
