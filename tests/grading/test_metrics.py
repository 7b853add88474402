"""metrics.py: figures that can be counted on the fingers; scores.py: every score and metric stands
in the one table."""

from grade_fixtures import rows_of, write_samples
from random_models import model_to_probe, save_run

from nanostories.grading.chat_judge import read_question
from nanostories.grading.metrics import bits_per_byte, repeated
from nanostories.grading.scores import CHAT, LIKELIHOOD, METRICS
from nanostories.grading.stories import Story, read_runs
from nanostories.results import load


def test_every_score_and_metric_stands_in_the_table_and_no_other(tmp_path, grade_py):
    """Leaving one out, there or here, would make it vanish from tables and pages."""
    for name in "ab":
        write_samples(tmp_path / "out" / name, 5, 2)
        save_run(tmp_path / "out" / name, model_to_probe())
        (tmp_path / "out" / name / "log.csv").write_text("step,done,val_loss,bpb\n10,1,2.5,0.9\n")
    assert grade_py("--no_judge", judge=None)[0] == 0
    row, *_ = rows_of(tmp_path / "out", "scores")
    assert row.keys() == METRICS.keys() | {"run", "stories", "judge"} and row["bpb"] == 0.9
    defined = load(tmp_path / "out" / "grades.json").tables[-1].rows
    assert {row["is"] for row in defined} == {
        METRICS[name].about for name in METRICS.keys() - {"bpb"}
    }
    told = Story("Once", " upon a time.", "Words: cat")
    assert {*read_question("ours").names(told), "age"} == CHAT.keys()
    for score in [*METRICS.values(), *CHAT.values(), *LIKELIHOOD.values()]:
        assert score.about and score.better in ("higher", "lower", "") and format(0.5, score.form)
        assert score.scale[0] < score.scale[1]


def test_repetition_within_a_story():
    story = Story("The red dog ran to", " the park. He ran to the park again and met Zorblax.")
    assert (
        repeated(story) == 1 / 11
    )  # "ran to the park" is there twice, the first time across the joint
    assert repeated(Story("", " ".join(["la"] * 23))) == 19 / 20
    assert repeated(Story("The red dog ran", "")) is None


def test_bits_per_byte_are_those_of_the_weights_that_are_sampled(tmp_path):
    def of(model: str):
        write_samples(tmp_path / "run", 1, 1, model=model)
        (run,), _ = read_runs([tmp_path / "run"])
        return bits_per_byte(run)

    assert of("hf:published") is None
    save_run(tmp_path / "run", model_to_probe())
    assert of("out/run") is None
    log = "step,val_loss,bpb\n10,,\n20,2.5,0.9\n30,2.25,0.8\n40,2.75,0.95\n50,2.0"
    (tmp_path / "run" / "log.csv").write_text(log)
    assert of("out/run") == 0.8 and of("out/run/ckpt.pt") == 0.95
