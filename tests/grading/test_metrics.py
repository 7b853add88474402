"""metrics.py: figures that can be counted on the fingers; scores.py: every score and metric stands
in the one table."""

from grade_fixtures import means, write_samples

from nanostories.grading.chat_judge import read_question
from nanostories.grading.metrics import bits_per_byte, repeated, words_of
from nanostories.grading.scores import CHAT, LIKELIHOOD, METRICS
from nanostories.grading.stories import Story


def test_every_score_and_metric_stands_in_the_table_and_no_other(tmp_path, grade_py):
    """Leaving one out, there or here, would make it vanish from tables and pages."""
    for name in "ab":
        write_samples(tmp_path / "out" / name, 5, 2)
        (tmp_path / "out" / name / "log.csv").write_text("step,done,val_loss,bpb\n10,1,2.5,0.9\n")
    assert grade_py("--no_judge", judge=None)[0] == 0
    printed = (tmp_path / "out" / "grades.md").read_text()
    assert {figure for _, _, figure in means(tmp_path / "out")} == METRICS.keys()
    assert all(f"{name}: {score.about}" in printed for name, score in METRICS.items())
    assert {*read_question("ours").scores, "age"} == CHAT.keys()
    for score in [*METRICS.values(), *CHAT.values(), *LIKELIHOOD.values()]:
        assert score.about and score.better in ("higher", "lower", "") and format(0.5, score.form)
        assert score.scale[0] < score.scale[1]


def test_words():
    assert words_of("Tom's DOG—didn’t “bark”, 3 times. Né!") == [
        "tom's",
        "dog",
        "didn't",
        "bark",
        "times",
        "né",
    ]
    assert words_of("एक लड़की थी।") == ["एक", "लड़की", "थी"]


def test_repetition_within_a_story():
    story = Story("The red dog ran to", " the park. He ran to the park again and met Zorblax.")
    assert (
        repeated(story) == 1 / 11
    )  # "ran to the park" is there twice, the first time across the joint
    assert repeated(Story("", " ".join(["la"] * 23))) == 19 / 20
    assert repeated(Story("The red dog ran", "")) is None


def test_bits_per_byte_are_those_of_the_weights_that_are_sampled(tmp_path):
    assert bits_per_byte(tmp_path) is None
    (tmp_path / "log.csv").write_text(
        "step,val_loss,bpb\n10,,\n20,2.5,0.9\n30,2.25,0.8\n40,2.75,0.95\n50,2.0"
    )
    assert bits_per_byte(tmp_path) == 0.8 and bits_per_byte(tmp_path, last=True) == 0.95
