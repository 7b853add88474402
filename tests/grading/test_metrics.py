"""metrics.py: figures that can be counted on the fingers; scores.py: every score and metric stands in the one table."""

import json

from grade_fixtures import means, write_samples

from grading import metrics
from grading.chat_judge import PROTOCOLS
from grading.likelihood_judge import DEFINITIONS
from grading.metrics import distinct, held_out, story_metrics, words_of
from grading.scores import CHAT, LIKELIHOOD, METRICS
from grading.stories import Story


def test_every_score_and_metric_stands_in_the_table_and_no_other(tmp_path, data_dir, grade_py):
    """Leaving one out, there or here, would make it vanish from tables and pages."""
    for name in "ab":
        write_samples(tmp_path / "out" / name, 5, 2)
        (tmp_path / "out" / name / "log.csv").write_text("step,val_loss,bpb\n10,2.5,0.9\n")
        (tmp_path / "out" / name / "config.json").write_text(json.dumps(dict(data_dir=str(data_dir), data="tiny")))
    assert grade_py("--no_judge", judge=None)[0] == 0
    printed = (tmp_path / "out" / "grades.md").read_text()
    assert {figure for _, _, figure in means(tmp_path / "out")} == METRICS.keys()
    assert all(f"{name}: {score.about}" in printed for name, score in METRICS.items())
    assert DEFINITIONS.keys() == LIKELIHOOD.keys()
    assert {*PROTOCOLS["ours"].scores, "instructions", "age"} == CHAT.keys()
    for score in [*METRICS.values(), *CHAT.values(), *LIKELIHOOD.values()]:
        assert score.about and score.better in ("higher", "lower", "") and format(0.5, score.form)
        assert score.scale[0] < score.scale[1]


def test_words():
    assert words_of("Tom's DOG—didn’t “bark”, 3 times. Né!") == ["tom's", "dog", "didn't", "bark", "times", "né"]


def test_metrics_of_a_story():
    story = Story("The red dog ran to", " the park. He ran to the park again and met Zorblax.")
    found = story_metrics(story, known={"the", "park", "he", "ran", "to", "again", "and"})
    # "ran to the park" is there twice, the first time across the joint
    assert found == dict(repeated=1 / 11, words=11.0, unknown=2 / 11)
    assert "unknown" not in story_metrics(story, None)
    assert story_metrics(Story("The red dog ran", ""), {"the"}) == dict(words=0.0)
    assert story_metrics(Story("", " ".join(["la"] * 23)), set())["repeated"] == 19 / 20


def test_distinct_n_is_of_the_same_number_of_words():
    assert distinct(["a b a b"], 1, 100) == 0.5
    assert distinct(["a b a b", "a b c"], 2, 100) == 3 / 5  # ab ba ab | ab bc
    assert distinct(["a b c", "a b c"], 2, 3) == 1
    assert distinct(["a"], 2, 100) != distinct(["a"], 2, 100)  # NaN


def test_held_out_loss_is_that_of_the_weights_that_are_sampled(tmp_path):
    assert held_out(tmp_path) == {}
    (tmp_path / "log.csv").write_text("step,val_loss,bpb\n10,,\n20,2.5,0.9\n30,2.25,0.8\n40,2.75,0.95\n50,2.0")
    assert held_out(tmp_path) == dict(loss=2.25, bpb=0.8) and held_out(tmp_path, last=True) == dict(loss=2.75, bpb=0.95)


def test_the_words_of_a_corpus(data_dir, monkeypatch):
    words = metrics.corpus_words(data_dir / "tiny")
    assert {"tom", "mia", "kite", "had", "it", "was", "number"} <= words and "zorblax" not in words
    monkeypatch.setattr(metrics, "CORPUS_STORIES", 3)
    assert len(metrics.corpus_words(data_dir / "tiny")) < len(words)
