"""metrics.py: figures that can be counted on the fingers."""

import math

import pytest

from grading import metrics
from grading.metrics import distinct, held_out, story_figures, words_of
from grading.story import Story


def test_words():
    assert words_of("Tom's DOG—didn’t “bark”, 3 times. Né!") == ["tom's", "dog", "didn't", "bark", "times", "né"]


def test_figures_of_a_story():
    story = Story("The red dog ran to", " the park. He ran to the park again and met Zorblax.")
    figures = story_figures(story, True, known={"the", "park", "he", "ran", "to", "again", "and"})
    # "ran to the park" is there twice, the first time across the joint
    assert figures == dict(ended=1.0, repeated=1 / 11, words=11.0, unknown=2 / 11)
    assert math.isnan(story_figures(story, None, None)["ended"])
    assert math.isnan(story_figures(story, False, None)["unknown"])
    nothing = story_figures(Story("The red dog ran", ""), False, {"the"})
    assert nothing["words"] == 0 and math.isnan(nothing["repeated"]) and math.isnan(nothing["unknown"])
    assert story_figures(Story("", " ".join(["la"] * 23)), True, set())["repeated"] == 19 / 20


def test_distinct_n_is_of_the_same_number_of_words():
    assert distinct(["a b a b"], 1, 100) == 0.5
    assert distinct(["a b a b", "a b c"], 2, 100) == 3 / 5  # ab ba ab | ab bc
    assert distinct(["a b c", "a b c"], 2, 3) == 1
    assert math.isnan(distinct(["a"], 2, 100))


def test_held_out_loss_is_that_of_the_weights_that_are_sampled(tmp_path):
    assert all(map(math.isnan, held_out(tmp_path)))
    (tmp_path / "log.csv").write_text("step,val_loss,bpb\n10,,\n20,2.5,0.9\n30,2.25,0.8\n40,2.75,0.95\n50,2.0")
    assert held_out(tmp_path) == (2.25, 0.8) and held_out(tmp_path, last=True) == (2.75, 0.95)


def test_the_words_of_a_corpus(data_dir, monkeypatch):
    words = metrics.corpus_words(data_dir / "tiny")
    assert {"tom", "mia", "kite", "had", "it", "was", "number"} <= words and "zorblax" not in words
    monkeypatch.setattr(metrics, "CORPUS_TOKENS", 10)
    assert len(metrics.corpus_words(data_dir / "tiny")) < len(words)


@pytest.mark.parametrize("known", [None, {"a"}])
def test_real_stories_have_figures_as_one_would_expect(real_stories, known):
    figures = [story_figures(Story("", text), True, known) for text in real_stories]
    assert sum(f["repeated"] for f in figures) / len(figures) < 0.05
    assert 100 < sum(f["words"] for f in figures) / len(figures) < 250
