"""rouge.py: the metric is rouge-score's and the paper's, its report is true, copies are flagged,
chance is not."""

import random
from pathlib import Path

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
    words = ["a", "b", "The", "cat,", "3rd"]
    made = [" ".join(rng.choices(words, k=rng.randrange(25))) for _ in range(200)]
    made += ["", "Word", "word", "...", "The cat sat. The cat sat. The cat sat."]
    made += [story.text for story in builtin_stories.stories(20)]
    return [*zip(made, made[::-1]), *zip(made[200:], made[201:])]


def test_clipped_counts_are_those_of_rouge_score():
    scorer = RougeScorer([f"rouge{k}" for k in range(1, 10)])
    for a, b in pairs():
        theirs = scorer.score(b, a)  # target, prediction
        for k in range(1, 10):
            expected = tuple(theirs[f"rouge{k}"])
            assert rouge_k(a, b, k, "clipped") == pytest.approx(expected, abs=1e-12)


def test_counts_by_set_are_the_papers():
    """The share of a's distinct k-grams that are among b's, the other way round, and F."""

    def distinct(text: str, k: int) -> set:
        words = words_of(text)
        return {tuple(words[i : i + k]) for i in range(len(words) - k + 1)}

    for a, b in pairs():
        for k in (1, 2, 8):
            ours = distinct(a, k)
            theirs = distinct(b, k)
            shared = len(ours & theirs)
            sizes = (len(ours), len(theirs), (len(ours) + len(theirs)) / 2)
            expected = [shared / max(size, 0.5) for size in sizes]
            assert rouge_k(a, b, k) == pytest.approx(expected, abs=1e-12)


# ---- Intervals ----
def test_intervals_are_those_of_means_of_prompts():
    """However many completions each prompt has; their coverage is tested in
    tests/test_statistics.py. If the baseline is lower by 0.1 on each prompt, its paired interval
    has no width."""
    prompts = np.random.default_rng(0).uniform(0.3, 0.7, size=8)
    ours = ClusteredValues(np.repeat(prompts, 10), np.repeat(np.arange(8), 10))
    theirs = ClusteredValues(np.repeat(prompts - 0.1, 3), np.repeat(np.arange(8), 3))
    cells = Metric("", ours, theirs, is_paired=True).cells()
    assert cells["completions"] == pytest.approx(estimate(prompts).cell)
    assert cells["difference"] == pytest.approx([0.1] * 3)
    assert Metric("", ours, theirs).cells()["difference"][1] < 0.05


def test_intervals_of_few_prompts():
    no_baseline = ClusteredValues(np.array([np.nan]), np.array([0]))
    clipped = ClusteredValues(np.array([1.0, np.nan, 0.5, np.nan]), np.array([0, 0, 1, 2]))
    assert Metric("", clipped, no_baseline).cells() == {"completions": [0.75, 0, 1]}
    one_prompt = ClusteredValues(np.array([0.25, 0.5]), np.array([3, 3]))
    (cell,) = Metric("", one_prompt, no_baseline).cells().values()
    assert cell[0] == 0.375 and np.isnan(cell[1:]).all()


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
    assert flags.copied_length(longest) == flags.copied_length(longest[:0]) == flags.MIN_WORDS
    assert flags.copied_length(np.append(longest, [40] * 10)) == flags.MIN_WORDS
    assert flags.copied_length(np.append(longest, [40] * 11)) == 41


@pytest.mark.parametrize(
    "passage, is_copy", [([0] * 20, False), ([0, 1] * 10, False), (range(50, 70), True)]
)
def test_a_word_twenty_times_is_no_copy(passage, is_copy):
    text = np.concatenate([np.arange(1, 41), passage])
    spans = np.append(np.zeros(40, int), np.arange(20, 0, -1))
    assert flags.is_copy(text, spans, 20) == is_copy
    assert not flags.is_copy(text, spans, 21)


def test_names_and_unknown_words_are_masked_and_nothing_else(corpus):
    opened = open_corpus(corpus[0])
    anna, zorban, otter, was = opened.encode("Anna zorban otter was")
    classes = flags.mask_names(opened)
    assert classes[anna] == classes[zorban]
    assert [classes[otter], classes[was]] == [otter, was]


def test_held_out_excerpts_are_as_long_and_from_the_same_place(corpus):
    data, _, validation = corpus
    opened = open_corpus(data)
    completions = [opened.encode(ending) for ending in endings(validation[20:40])]
    excerpts, stories = draw_excerpts(opened, completions, range(20), rouge.MIN_EXCERPTS)
    assert len(excerpts) == rouge.MIN_EXCERPTS
    for i, (excerpt, number) in enumerate(zip(excerpts, stories)):
        story = opened.encode(validation[number])
        length = len(completions[i % 20])
        begin = min(i % 20, len(story) - length)
        assert excerpt.tolist() == story[begin : begin + length].tolist()


# ---- A run ----
@pytest.fixture
def rouge_py(command_line, tmp_path, monkeypatch):
    """rouge.py, with an empty picture, as drawing takes seconds."""
    monkeypatch.setattr(histograms, "histograms", lambda *_: Figure(figsize=(1, 1)))
    return command_line(rouge, tmp_path)


@pytest.fixture
def make_run(tmp_path):
    """Writes the completions of a run, n of each prompt."""

    def write(name: str, completions: list[str], stories: list[str], n=1, set_name="eval", **facts):
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


def results_of(run, name: str = "rouge.json") -> tuple[str, dict[str, list[dict]]]:
    """(warnings, rows by the kind of table)"""
    result = load(run / name)
    return "\n".join(result.warnings), {table.facts["kind"]: table.rows for table in result.tables}


def described(run) -> dict[tuple[int, int], dict]:
    """rouge.csv, by prompt and completion."""
    rows = read_table(run / "rouge.csv")
    return {(int(row["prompt_index"]), int(row["sample_index"])): row for row in rows}


def test_a_report_says_what_is_so(run, corpus, command_line, tmp_path):
    data, training, _ = corpus
    code, printed = command_line(rouge, tmp_path)(run, "--data", data)
    assert code == 0 and to_text(load(run / "rouge.json")) in printed.out
    assert (run / "rouge.png").exists()
    samples = read_rows(run / "samples/eval.jsonl")
    found = described(run)
    all_pairs = set().union(*(kgrams(story, 2, "set") for story in training))
    with_training = []
    with_ending = []
    shares = []
    for key, sample in samples.items():
        row = found[key]
        text = sample["completion"]
        with_ending.append(rouge_k(text, sample["reference"]).f)
        with_training.append(max(rouge_k(text, story).f for story in training))
        assert row["completion"] == text
        assert float(row["f"]) == pytest.approx(with_training[-1], abs=1e-5)
        nearest = int(row["nearest_story"])
        assert nearest < 0 or rouge_k(text, training[nearest]).f == with_training[-1]
        assert row["span"] in text and len(words_of(row["span"])) == int(row["span_length"])
        words = words_of(text)
        if words:
            shares.append(np.mean([pair in all_pairs for pair in zip(words, words[1:])]))
    expected = {
        "F with the true ending": with_ending,
        "F with the nearest training story": with_training,
        "share of 2-grams in the training set": shares,
    }
    tables = results_of(run)[1]
    shown = {row["metric"]: row for row in tables["metrics"]}
    for title, values in expected.items():
        assert shown[title]["completions"][0] == pytest.approx(np.mean(values), abs=2e-3), title
        assert shown[title]["run"] == "tiny" and shown[title]["set"] == "eval"
    first, second = found[0, 0], found[0, 1]
    assert [first["flag"], second["flag"]] == ["copy", "template"]
    assert [first["training_story"], second["training_story"]] == training[5:7]
    assert (tables["passages"][0]["flag"], tables["passages"][0]["story"]) == ("copy", 5)


def test_planted_copies_are_found(corpus, rouge_py, tmp_path):
    data, _, validation = corpus
    honest = rows_of(endings(validation[40:60]), validation, 1)
    rows = planted.plant(honest, open_corpus(data), each=15)
    write_rows(tmp_path / "out" / "planted" / "samples/eval.jsonl", rows)
    assert rouge_py(f"out/planted --data {data}")[0] == 0
    found = planted.count_flagged(rows, tmp_path / "out" / "planted")
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


def test_validation_stories_in_the_training_set_are_warned_of(corpus, rouge_py, make_run, tmp_path):
    _, training, validation = corpus
    data = write_corpus(tmp_path / "leaky", training + validation[10:12], validation[:20] * 2)
    run = make_run("one", endings(validation[60:85]), validation)
    assert rouge_py(f"{run} --data {data}")[0] == 0
    assert "held-out excerpts are in the training set word for word" in results_of(run)[0]


def test_held_out_copies_count_in_the_other_half_of_stories_and_are_warned_of(
    corpus, rouge_py, make_run, tmp_path
):
    """Held-out story 0 says what chance does; story 1, which has a passage of a training story, is
    a false alarm."""
    _, training, validation = corpus
    words = validation[1].split()
    mixed = " ".join([*words[:90], *training[5].split()[20:60], *words[90:]])
    data = write_corpus(tmp_path / "half", training, [validation[0], mixed])
    run = make_run("run", endings(validation[20:45]), validation)
    assert rouge_py(f"{run} --data {data}")[0] == 0
    warnings, tables = results_of(run)
    assert "near-copies" in warnings
    assert int(tables["flags"][0]["held-out"].split()[0]) > 100


def test_both_splits_of_a_run(run, corpus, rouge_py, make_run):
    """This model knows the endings of training stories: no completion of a validation story says
    so."""
    data, training, validation = corpus
    facts = {"set_name": "train"}
    make_run("tiny", endings(training[:25]), training, **facts)
    make_run("tiny", endings(validation[20:45]), validation, set_name="beginnings")
    assert rouge_py(f"{run} --data {data} --set train eval")[0] == 0
    reversed_sets = results_of(run, "rouge-train.json")[1]["memorization"]
    assert rouge_py(f"{run} --data {data} --set eval beginnings")[0] == 0
    assert "memorization" not in results_of(run)[1]
    assert rouge_py(f"{run} --data {data}")[0] == 0
    warnings, tables = results_of(run)
    title = "F with the true ending"
    held_out, trained = (row for row in tables["metrics"] if row["metric"] == title)
    assert trained["set"] == "train" and trained["completions"][0] == 1
    memorized = 1 - held_out["completions"][0]
    assert tables["memorization"][0]["difference"][0] == pytest.approx(memorized, abs=1e-3)
    assert reversed_sets == tables["memorization"]
    other = make_run("other", endings(validation[20:45]), validation)
    assert rouge_py(f"{run} {other} --data {data}")[0] == 0
    _, of_both = results_of(run.parent)
    assert [row["run"] for row in of_both["memorization"]] == ["tiny"] * len(tables["memorization"])
    assert {row["set"] for row in of_both["passages"]} == {"eval", "train"}
    copies = [row["completions"] for row in tables["flags"] if row["flagged"] == "copy"]
    assert copies[1] == "25 of 25" and len(read_table(run / "rouge-train.csv")) == 25
    assert "sampled with different settings: completions per prompt (2" in warnings
    for change, word in ((dict(cut=0.4), " cut ("), (dict(weights="others"), "; checkpoint (")):
        make_run("tiny", endings(training[:25]), training, **facts, **change)
        assert rouge_py(f"{run} --data {data}")[0] == 0
        warnings, tables = results_of(run)
        assert "memorization" not in tables and "different settings: " in warnings
        assert word in warnings


def test_all_settings_and_several_runs(run, corpus, rouge_py, make_run):
    data, training, validation = corpus
    second = make_run("second", endings(validation[50:60]), validation, reference=None)
    settings = "--k 4 --counting clipped --others 9"
    assert rouge_py(f"{run} {second} {run} --data {data} {settings}")[0] == 0
    warnings, tables = results_of(run.parent)
    runs = {}
    for row in tables["metrics"]:
        runs.setdefault(row["metric"], []).append(row["run"])
    assert runs["highest F with 9 other completions"] == ["tiny", "second"]
    assert runs["F with the true ending"] == ["tiny"]  # the other has none
    assert "sampled with different settings: prompts (25 of " in warnings
    for row in described(second).values():
        by_hand = max(rouge_k(row["completion"], story, 4, "clipped").f for story in training)
        assert float(row["f"]) == pytest.approx(by_hand, abs=1e-5)
    assert rouge_py(f"{second} --data {data} --others 10")[0] == 0
    assert "11 prompts" in results_of(second)[0]


def test_completions_of_a_single_prompt_are_compared_with_each_other(corpus, rouge_py, make_run):
    data, _, validation = corpus
    run = make_run("single", endings(validation[20:30]), validation, 10)
    assert rouge_py(f"{run} --data {data} --others 9")[0] == 0
    grams = [kgrams(ending, 2, "set") for ending in endings(validation[20:30])]
    every = [max(rouge.overlap(a, b).f for b in grams if b is not a) for a in grams]
    metrics = {row["metric"]: row for row in results_of(run)[1]["metrics"]}
    nearest = metrics["highest F with 9 other completions"]["completions"][0]
    assert nearest == pytest.approx(np.mean(every))


def test_runs_with_only_the_root_in_common_are_refused(run):
    with pytest.raises(UserError, match="only the root"):
        rouge.comparison_path([run, Path("/elsewhere/run")], "eval")


def test_neither_a_comparison_nor_another_set_replaces_the_results_of_a_run(
    run, corpus, rouge_py, make_run
):
    """The comparison: of samples of one run at two temperatures; the same directory twice is
    one."""
    data, _, validation = corpus
    texts = endings(validation[20:45])
    cool, warm = (make_run(f"tiny/temperature-{x}", texts, validation) for x in (0.3, 0.6))
    for name in ("tiny", "second"):
        make_run(name, texts, validation, set_name="beginnings")
    second = run.with_name("second")
    assert rouge_py(f"{run} --data {data}")[0] == 0
    before = (run / "rouge.json").read_bytes()
    assert rouge_py(f"{cool} {cool} --data {data}")[0] == 0
    assert not (run / "rouge-comparison.json").exists()
    assert rouge_py(f"{cool} {warm} --data {data}")[0] == 0
    assert rouge_py(f"{run} {second} --set beginnings --data {data}")[0] == 0
    assert (run / "rouge.json").read_bytes() == before
    rows = results_of(run, "rouge-comparison.json")[1]["metrics"]
    assert {row["run"] for row in rows} == {cool.name, warm.name}
    assert len(read_table(second / "rouge-beginnings.csv")) == 25
    rows = results_of(run.parent, "rouge-beginnings.json")[1]["metrics"]
    found = {(row["run"], row["set"]) for row in rows}
    assert found == {("tiny", "beginnings"), ("second", "beginnings")}
    assert "--set" in rouge_py(f"{second} --data {data}")[0]  # it has no set eval


@pytest.mark.parametrize(
    "completion, args, message",
    [
        (None, "", "samples/eval.jsonl"),
        ("…", "", "out/bad: no completion has a word"),
        ("A.", "--others 0", "--others"),
    ],
)
def test_mistakes_get_one_line(corpus, rouge_py, make_run, tmp_path, completion, args, message):
    data, _, validation = corpus
    run = tmp_path / "out" / "bad"
    run.mkdir(parents=True)
    if completion:
        make_run("bad", [completion], validation)
    code, printed = rouge_py(f"out/bad --data {data} {args}")
    complaint = printed.err.splitlines()[-1] if code == 2 else code
    assert message in complaint and "\n" not in complaint
    assert not (run / "rouge.json").exists()


def test_a_model_from_elsewhere_is_compared_with_the_stories_of_the_others(
    instruct_data_dir, tmp_path
):
    ours = tmp_path / "ours"
    save_run(ours, model_to_probe(), **trained_on(instruct_data_dir, "builtin"))
    sets = {
        tmp_path / "api--x": {"eval": [{"model": "api:x"}]},
        tmp_path / "apart": {"eval": [{"model": f"{ours}"}]},
    }
    found = rouge.corpora_of(sets)
    assert set(found.values()) == {instruct_data_dir / "builtin"} and found.keys() == sets.keys()
    del sets[tmp_path / "apart"]
    with pytest.raises(UserError, match="--data"):
        rouge.corpora_of(sets)
