"""metrics.py: figures that can be counted on the fingers; scores.py: every score and metric stands
in the one table."""

from grade_fixtures import rows_of, write_samples
from random_models import model_to_probe, save_run

from nanostories.checkpoints.checkpoint import identity_of_checkpoint
from nanostories.grading.chat_judge import read_question
from nanostories.grading.metrics import bits_per_byte, repeated
from nanostories.grading.scores import CHAT, METRICS
from nanostories.grading.stories import Story, read_runs, warn_of_other_weights


def test_every_score_and_metric_stands_in_the_table_and_no_other(out, graded, api):
    """Leaving one out, there or here, would make it vanish from tables and pages. An empty
    completion has no repetition, and leaves the others their figures."""
    save_run(out / "a", model_to_probe())
    (out / "a" / "log.csv").write_text("step,done,val_loss,bpb\n10,1,2.5,0.9\n")
    write_samples(out / "b", 5, 2, completion="")
    graded("--no_judge")
    row, empty, _ = rows_of(out, "scores")
    assert row.keys() == METRICS.keys() | {"run", "stories", "judge"} and row["bpb"] == 0.9
    assert empty["words"][0] == 0 and "repeated" not in empty and api.requests == []
    defined = {row["score"] for row in rows_of(out, "definitions")}
    assert defined == METRICS.keys() - {"bpb"}
    told = Story("Once", " upon a time.", "Words: cat")
    assert {*read_question("ours").names(told), "age"} == CHAT.keys()


def test_repetition_within_a_story():
    story = Story("The red dog ran to", " the park. He ran to the park again and met Zorblax.")
    # "ran to the park" is there twice, the first time across the joint
    assert repeated(story) == 1 / 11
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


def test_stories_by_weights_that_a_run_no_longer_has_are_named(tmp_path):
    save_run(tmp_path / "a", model_to_probe())
    weights = identity_of_checkpoint(tmp_path / "a")
    row = {"model": str(tmp_path / "a"), "weights": weights}
    assert warn_of_other_weights([row]) == []
    (warning,) = warn_of_other_weights([row | {"weights": "1.5e+02"}])
    assert "sample again" in warning
    assert warn_of_other_weights([{"model": "api:x"}]) == []
