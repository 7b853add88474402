"""rouge.py: the metric is rouge-score's and the paper's, its report is true, copies are flagged,
chance is not."""

import random
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import planted
import pytest
from matplotlib.figure import Figure
from planted import endings, rows_of, write_corpus
from random_models import model_to_probe, save_run, trained_on
from rouge_score.rouge_scorer import RougeScorer

import rouge
from nanostories.cli import UserError
from nanostories.corpus import builtin_stories
from nanostories.generation.samples_file import read_rows, write_rows
from nanostories.novelty import flags, histograms
from nanostories.novelty.intervals import ClusteredValues, Metric
from nanostories.novelty.words import draw_excerpts, open_corpus
from nanostories.results import load, to_text
from nanostories.statistics import estimate
from nanostories.tables import read_table
from nanostories.text import words_of
from rouge import kgrams, nearest_other, rouge_k


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """data/tiny and the texts of its training and validation stories."""
    texts = [story.text for story in builtin_stories.stories(300)]
    data = write_corpus(tmp_path_factory.mktemp("rouge") / "tiny", texts[100:], texts[:100])
    return data, texts[100:], texts[:100]


# ---- The metric ----
def pairs() -> list[tuple[str, str]]:
    rng = random.Random(0)
    words = "a b The cat, 3rd".split()
    made = [" ".join(rng.choices(words, k=rng.randrange(25))) for _ in range(200)]
    made += ["", "Word", "word", "..."]
    made += [story.text for story in builtin_stories.stories(20)]
    return [*zip(made, made[1:])]


def test_clipped_counts_are_those_of_rouge_score():
    scorer = RougeScorer([f"rouge{k}" for k in range(1, 10)])
    for a, b in pairs():
        theirs = scorer.score(b, a)  # target, prediction
        for k in range(1, 10):
            expected = tuple(theirs[f"rouge{k}"])
            assert rouge_k(a, b, k, "clipped") == pytest.approx(expected, abs=1e-12)


def test_counts_by_set_are_the_papers():
    """F of the distinct 2-grams."""
    for a, b in pairs():
        ours = set(pairwise(words_of(a)))
        theirs = set(pairwise(words_of(b)))
        expected = 2 * len(ours & theirs) / max(len(ours) + len(theirs), 1)
        assert rouge_k(a, b).f == pytest.approx(expected, abs=1e-12)


# ---- Intervals ----
def test_intervals_are_those_of_means_of_prompts():
    """However many completions each prompt has; their coverage is tested in
    tests/test_statistics.py. If the baseline is lower by 0.1 on each prompt, its paired interval
    has no width."""
    prompts = np.random.default_rng(0).uniform(0.3, 0.7, size=8)
    ours = ClusteredValues(np.repeat(prompts, 10), np.repeat(np.arange(8), 10))
    theirs = ClusteredValues(prompts - 0.1, np.arange(8))
    cells = Metric(ours, theirs, is_paired=True).cells()
    assert cells["completions"] == pytest.approx(estimate(prompts).cell)
    assert cells["difference"] == pytest.approx([0.1] * 3)
    assert Metric(ours, theirs).cells()["difference"][1] < 0.05


def test_only_shares_of_texts_have_a_width_where_all_are_equal():
    none = ClusteredValues(np.zeros(50), np.arange(50))
    assert Metric(none, none).cells()["completions"] == [0, 0, 0]
    assert Metric(none, none, is_yes_no=True).cells()["completions"][2] > 0.02


def test_intervals_of_few_prompts_end_at_0_and_1():
    no_baseline = ClusteredValues(np.array([np.nan]), np.array([0]))
    two_known = ClusteredValues(np.array([1.0, np.nan, 0.5, np.nan]), np.array([0, 0, 1, 2]))
    assert Metric(two_known, no_baseline).cells() == {"completions": [0.75, 0, 1]}


# ---- The nearest of others, and chance ----
def test_the_nearest_other_does_not_grow_with_the_number_of_completions():
    rng = np.random.default_rng(0)
    grams = [kgrams(rng.integers(0, 40, size=60), 2, "set") for _ in range(500)]
    few = nearest_other(grams[:50], np.arange(50), 20)
    for groups in (np.arange(500), np.arange(500) // 10):
        assert nearest_other(grams, groups, 20).mean() == pytest.approx(few.mean(), abs=0.01)
    assert np.isnan(nearest_other(grams[:20], np.arange(20), 20)).all()


def test_a_passage_counts_as_copied_if_few_held_out_excerpts_have_one_as_long():
    longest = np.full(990, 13)
    assert flags.copied_length(longest[:0]) == flags.MIN_WORDS
    assert flags.copied_length(np.append(longest, [40] * 10)) == flags.MIN_WORDS
    assert flags.copied_length(np.append(longest, [40] * 11)) == 41


def test_two_words_again_and_again_are_no_copy_but_a_shorter_passage_beside_them_is():
    text = np.concatenate([[0, 1] * 15, np.arange(50, 70)])
    spans = np.concatenate([np.arange(30, 0, -1), np.arange(20, 0, -1)])
    assert flags.find_copy(text, spans, 20) == 30  # where the shorter one begins
    assert flags.find_copy(text[:30], spans[:30], 20) is None
    assert flags.find_copy(text, spans, 21) is None


def test_held_out_excerpts_are_as_long_and_from_the_same_place(corpus):
    data, _, validation = corpus
    opened = open_corpus(data)
    completions = [opened.encode(ending) for ending in endings(validation[20:40])]
    excerpts, stories = draw_excerpts(opened, completions, range(20), 400)
    for i, (excerpt, number) in enumerate(zip(excerpts, stories, strict=True)):
        story = opened.encode(validation[number])
        length = len(completions[i % 20])
        begin = min(i % 20, len(story) - length)
        assert excerpt.tolist() == story[begin : begin + length].tolist()
    assert len(excerpts) == 400


# ---- A run ----
@pytest.fixture
def compare(command_line, tmp_path, monkeypatch, corpus):
    """rouge.py of these runs and with these flags, on data/tiny if they do not say otherwise; with
    an empty picture, as drawing takes seconds."""
    monkeypatch.setattr(histograms, "histograms", lambda *_: Figure(figsize=(1, 1)))
    rouge_py = command_line(rouge, tmp_path)

    def call(*words) -> None:
        assert rouge_py("--data", corpus[0], *words)[0] == 0

    return call


@pytest.fixture
def make_run(tmp_path):
    """Writes the completions of a run, n of each prompt."""

    def write(name: str, completions, stories, n=1, set_name="eval", **facts):
        rows = [row | facts for row in rows_of(completions, stories, n)]
        write_rows(tmp_path / "out" / name / "samples" / f"{set_name}.jsonl", rows)
        return tmp_path / "out" / name

    return write


@pytest.fixture
def run(corpus, make_run):
    """out/tiny: 25 prompts x 2 completions, the last one empty; the first is a training story's
    ending, in the second the sentences of one are reversed and its name is another."""
    _, training, validation = corpus
    completions = endings(validation[20:70])
    completions[0], text = endings(training[5:7])
    name = next(name for name in builtin_stories.NAMES if name in text)
    completions[1] = ". ".join(reversed(text.replace(name, "Zorban").split(". ")))
    completions[49] = ""
    return make_run("tiny", completions, validation, 2)


def results_of(run, name="rouge.json") -> tuple[str, dict]:
    """(warnings, rows by the kind of table)"""
    result = load(run / name)
    return "\n".join(result.warnings), {table.facts["kind"]: table.rows for table in result.tables}


def described(run) -> dict[str, dict]:
    """rouge.csv, by completion."""
    return {row["completion"]: row for row in read_table(run / "rouge.csv")}


def test_a_report_says_what_is_so(run, corpus, command_line, tmp_path):
    data, training, _ = corpus
    code, printed = command_line(rouge, tmp_path)(run, "--data", data)
    assert code == 0 and to_text(load(run / "rouge.json")) in printed.out
    assert (run / "rouge.png").exists()
    samples = read_rows(run / "samples/eval.jsonl").values()
    found = described(run)
    with_ending = []
    for sample in samples:
        text = sample["completion"]
        row = found[text]
        with_ending.append(rouge_k(text, sample["reference"]).f)
        nearest = max(rouge_k(text, story).f for story in training)
        assert float(row["f"]) == pytest.approx(nearest, abs=1e-5)
        assert row["span"] in text and len(words_of(row["span"])) == int(row["span_length"])
    tables = results_of(run)[1]
    shown = {row["metric"]: row["completions"][0] for row in tables["metrics"]}
    assert shown["F with the true ending"] == pytest.approx(np.mean(with_ending))
    first, second, *_ = (found[sample["completion"]] for sample in samples)
    assert [first["flag"], second["flag"]] == ["copy", "template"]
    assert [first["training_story"], second["training_story"]] == training[5:7]
    passage = tables["passages"][0]
    assert (passage["run"], passage["flag"], passage["story"]) == ("tiny", "copy", 5)


def compared_with_endings(completion: str, references: list[str], k: int) -> Metric:
    rows = [{"completion": completion, "reference": reference} for reference in references]
    return rouge.compare_with_endings(rows, SimpleNamespace(k=k, counting="set"))[rouge.ENDING_F]


def test_an_ending_is_not_compared_with_itself_where_a_story_has_several_prompts():
    """As of sample.py --ask."""
    references = ["A dog ran.", "A dog ran.", "Mia sat down."]
    found = compared_with_endings("A dog ran.", references, k=2)
    assert found.completions.values.tolist() == [1, 1, 0] and not found.baseline.values.any()
    assert found.completions.clusters.tolist() == [0, 0, 1]


def test_other_endings_are_as_long_as_the_completion():
    references = ["A dog ran to the sea.", "Now a dog ran to the sea."]
    found = compared_with_endings("Mia sat.", references, k=1)
    # "A dog" and "Now a" beside the other ending
    assert found.baseline.values.tolist() == pytest.approx([2 * 1 / 8, 2 * 2 / 9])


def test_planted_copies_are_found(corpus, compare, tmp_path):
    data, _, validation = corpus
    honest = rows_of(endings(validation[40:60]), validation, 1)
    rows = planted.plant(honest, open_corpus(data), each=15)
    run = tmp_path / "planted"
    write_rows(run / "samples/eval.jsonl", rows)
    compare(run)
    found = planted.count_flagged(rows, run)
    flagged = {kind: n for kind, (n, _, _) in found.items()}
    assert [kind for kind, n in flagged.items() if n == 15] == [
        "verbatim",
        "half of it, within an honest completion",
        "50 words of it, within an honest completion",
        "names replaced",
        "names replaced by unknown ones",
        "sentences shuffled",
    ]
    assert found["verbatim"][1] >= 14  # another story may have all of its ending, too
    assert flagged["words shuffled"] == flagged["nothing of it, but 100 made-up words"] == 0


def test_validation_stories_in_the_training_set_are_warned_of(corpus, compare, make_run, tmp_path):
    """Held-out story 0 says what chance does; story 1, which is a training story, too, is a false
    alarm."""
    _, training, validation = corpus
    data = write_corpus(tmp_path / "leaky", [*training, validation[1]], validation[:2])
    run = make_run("run", endings(validation[20:45]), validation)
    compare(run, "--data", data)
    warnings, tables = results_of(run)
    assert "word for word" in warnings
    assert int(tables["flags"][0]["held-out"].split()[0]) > 100


def test_both_splits_of_a_run(run, corpus, compare, make_run):
    """This model knows the endings of training stories: no completion of a validation story says
    so."""
    training = corpus[1]
    make_run("tiny", endings(training[:25]), training, set_name="train")
    compare(run)
    warnings, tables = results_of(run)
    title = "F with the true ending"
    held_out, trained = (row for row in tables["metrics"] if row["metric"] == title)
    assert trained["set"] == "train" and trained["completions"][0] == 1
    memorized = 1 - held_out["completions"][0]
    assert tables["memorization"][0]["difference"][0] == pytest.approx(memorized, abs=1e-3)
    copies = [row["completions"] for row in tables["flags"] if row["flagged"] == "copy"]
    assert copies[1] == "25 of 25" and len(read_table(run / "rouge-train.csv")) == 25
    assert "sampled with different settings: completions per prompt (2" in warnings
    make_run("tiny", endings(training[:25]), training, set_name="train", cut=0.4, weights="others")
    compare(run)
    warnings, tables = results_of(run)
    assert "memorization" not in tables and " cut (" in warnings and "; checkpoint (" in warnings


def test_all_settings_and_several_runs(run, corpus, compare, make_run):
    _, training, validation = corpus
    second = make_run("second", endings(validation[50:60]), validation, reference=None)
    compare(run, second, run, *"--k 4 --counting clipped --others 9".split())
    warnings, tables = results_of(run.parent)
    runs = [row["run"] for row in tables["metrics"] if row["metric"] == "F with the true ending"]
    assert runs == ["tiny"]  # the other has none
    assert "sampled with different settings: prompts (25, 10)" in warnings
    for text, row in described(second).items():
        by_hand = max(rouge_k(text, story, 4, "clipped").f for story in training)
        assert float(row["f"]) == pytest.approx(by_hand, abs=1e-5)
    compare(second, "--others", 10)
    assert "11 prompts" in results_of(second)[0]


def test_completions_of_a_single_prompt_are_compared_with_each_other(corpus, compare, make_run):
    validation = corpus[2]
    texts = endings(validation[20:30])
    run = make_run("single", texts, validation, 10)
    compare(run, "--others", 9)
    every = [max(rouge_k(a, b).f for b in texts if b is not a) for a in texts]
    metrics = {row["metric"]: row for row in results_of(run)[1]["metrics"]}
    nearest = metrics["highest F with 9 other completions"]["completions"][0]
    assert nearest == pytest.approx(np.mean(every))


def test_runs_with_only_the_root_in_common_are_refused():
    with pytest.raises(UserError, match="only the root"):
        rouge.comparison_path([Path("/a/run"), Path("/b/run")], "eval")


def test_neither_a_comparison_nor_another_set_replaces_the_results_of_a_run(
    run, corpus, compare, make_run
):
    """The comparison: of samples of one run at two temperatures; the same directory twice is
    one."""
    validation = corpus[2]
    texts = endings(validation[20:45])
    cool, warm = (make_run(f"tiny/temperature-{x}", texts, validation) for x in (0.3, 0.6))
    make_run("tiny", texts, validation, set_name="beginnings")
    (run / "rouge.json").write_text("before")
    compare(cool, warm)
    compare(run, run, "--set", "beginnings")
    assert (run / "rouge.json").read_text() == "before"
    rows = results_of(run, "rouge-comparison.json")[1]["metrics"]
    assert {row["run"] for row in rows} == {cool.name, warm.name}
    assert len(read_table(run / "rouge-beginnings.csv")) == 25
    assert [path.name for path in run.glob("*beginnings.json")] == ["rouge-beginnings.json"]


def test_a_run_without_completions_gets_one_line(command_line, make_run, tmp_path):
    make_run("bad", [], [])
    code, _ = command_line(rouge, tmp_path)("out/bad")
    assert "samples/eval.jsonl: no completions there" in code


def test_a_run_is_compared_with_the_stories_that_it_has_read(instruct_data_dir, tmp_path):
    """Wherever its samples are; for a model from elsewhere, --data has to name them."""
    ours = tmp_path / "ours"
    save_run(ours, model_to_probe(), **trained_on(instruct_data_dir, "builtin"))
    found = rouge.corpus_of(tmp_path / "apart", {"eval": [{"model": f"{ours}"}]})
    assert found == instruct_data_dir / "builtin"
    with pytest.raises(UserError, match="--data"):
        rouge.corpus_of(tmp_path / "api--x", {"eval": [{"model": "api:x"}]})


@pytest.mark.parametrize(
    "step, split, is_warned_of", [(0, "train", True), (0, "val", False), (10**6, "train", False)]
)
def test_training_stories_that_the_model_may_not_have_read_are_warned_of(
    corpus, compare, make_run, tmp_path, step, split, is_warned_of
):
    """By the checkpoint that told them, not by the best one of the run."""
    data, training, _ = corpus
    sampled = dict(set_name="train", split=split, model=f"{tmp_path}/out/short/ckpt.pt")
    run = make_run("short", endings(training[:4]), training, **sampled)
    facts = trained_on(data.parent, "tiny")
    save_run(run, model_to_probe(), step=step, **facts)
    save_run(run, model_to_probe(), name="best.pt", step=0, **facts)
    compare(run)
    assert ("the run read " in results_of(run)[0]) == is_warned_of
