"""python grade.py out/, without a judge: the best run of each text grades all of its runs; no API
is asked."""

import shutil

import pytest
from grade_fixtures import means, write_samples
from random_models import model_to_probe, save_run, trained_on

from nanostories.grading.likelihood_judge import default_judges
from nanostories.grading.scores import CONTROLS
from nanostories.grading.stories import read_runs


@pytest.fixture
def out(tmp_path, monkeypatch, grade_py):
    """No key, and out/ is empty."""
    monkeypatch.delenv("OPENAI_API_KEY")
    shutil.rmtree(tmp_path / "out")
    return tmp_path / "out"


@pytest.fixture
def train(out, data_dir):
    """What train.py leaves of a run, and its samples."""

    def train(name: str, bpb: float, data: str = "tiny", **samples):
        save_run(out / name, model_to_probe(block_size=400), **trained_on(data_dir, data))
        rows = [f"10,{3 * bpb},{bpb},9,9,0.5", f"20,{9 * bpb},{3 * bpb},18,9,1"]
        (out / name / "log.csv").write_text(
            "\n".join(["step,val_loss,bpb,tokens,seconds,done", *rows, ""])
        )
        write_samples(out / name, 3, 1, **samples)

    return train


def test_the_best_run_of_each_corpus_reads_the_others_of_that_corpus(out, train, monkeypatch):
    """Bits per byte of other texts do not compare; a model from elsewhere may have continued either
    corpus."""
    monkeypatch.chdir(out.parent)
    for name, bpb, data in (("a", 1.1, "x"), ("b", 0.9, "x"), ("c", 1.0, "x"), ("d", 0.1, "y")):
        train(name, bpb, data)
    write_samples(out / "b" / "temperature-0", 3, 1, seed=1)
    write_samples(out / "published", 2, 1)
    chosen = default_judges(runs := read_runs([out])[0])
    assert {judge: {run.name for run in graded} for judge, graded in chosen.items()} == {
        "lm:out/b": {"a", "b", "b/temperature-0", "c", "published"},
        "lm:out/d": {"d", "published"},
    }
    for run in runs:
        run.text = run.text and "x and y hold the same stories in two vocabularies"
    assert default_judges(runs) == {"lm:out/d": runs}


def test_a_judge_reads_the_controls_of_its_own_corpus_alone(out, train, grade_py):
    train("a", 1.0)
    train("b", 1.0, data="other")
    write_samples(out / "b", 9, 1, before="Now ")
    code, printed = grade_py(judge=None)
    assert code == 0 and "WARNING different prompts (a; b)" in printed.out
    found = means(out)
    assert {run for judge, run, _ in found if judge == "lm:out/a"} == {
        "a",
        *(f"{kind} for a" for kind in CONTROLS),
    }
    assert grade_py("out/a", judge=None)[0] == 0  # foreign endings are of the same corpus, too
    for kind in CONTROLS:
        assert (
            means(out / "a")["lm:out/a", kind, "fluency"]
            == found["lm:out/a", f"{kind} for a", "fluency"]
        )


def test_where_nothing_was_trained_no_api_is_asked(out, grade_py, api, monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", api.url)
    write_samples(out / "published", 3, 1)
    code, printed = grade_py(judge=None)
    assert code == 0 and "no run of train.py" in printed.out and api.requests == []
    assert {judge for judge, _, _ in means(out)} == {""}
