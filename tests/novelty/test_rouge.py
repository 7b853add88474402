"""rouge.py: the metric is rouge-score's and the paper's, its report is true, copies are flagged,
chance is not."""

import random
from argparse import Namespace
from pathlib import Path

import numpy as np
import planted
import pytest
from matplotlib.figure import Figure
from planted import endings, rows_of, write_corpus
from rouge_score.rouge_scorer import RougeScorer
from rouge_score.tokenize import tokenize

import rouge
from nanostories.corpus import builtin_stories
from nanostories.generation.samples_file import read_rows, write_rows
from nanostories.novelty import flags, histograms
from nanostories.novelty.intervals import ClusteredValues, compare
from nanostories.novelty.words import draw_excerpts, open_corpus
from nanostories.results import load, to_text
from nanostories.statistics import estimate
from nanostories.tables import read_table
from rouge import N_OTHER_PROMPTS, N_SAME_PROMPT, kgrams, nearest_other, rouge_k


def words(text: str) -> list[str]:
    return tokenize(text, None)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """data/tiny and the texts of its training and validation stories."""
    texts = [story.text for story in builtin_stories.stories(300)]
    data = write_corpus(tmp_path_factory.mktemp("rouge") / "tiny", texts[100:], texts[:100])
    return data, texts[100:], texts[:100]


# ---- The metric ----
def pairs() -> list[tuple[str, str]]:
    rng = random.Random(0)
    made = [
        " ".join(rng.choices(["a", "b", "The", "cat,", "3rd", "é"], k=rng.randrange(25)))
        for _ in range(200)
    ]
    odd = ["", "Word", "word", "...", "The cat sat. The cat sat. The cat sat."]
    stories = [story.text for story in builtin_stories.stories(20)]
    return [
        *zip(made, made[::-1]),
        *((a, b) for a in odd for b in odd),
        *zip(stories, stories[::-1]),
    ]


def test_clipped_counts_are_those_of_rouge_score():
    scorer = RougeScorer([f"rouge{k}" for k in range(1, 10)])
    for a, b in pairs():
        theirs = scorer.score(b, a)  # target, prediction
        for k in range(1, 10):
            assert rouge_k(a, b, k, "clipped") == pytest.approx(
                tuple(theirs[f"rouge{k}"]), abs=1e-12
            )


def test_counts_by_set_are_the_papers():
    """The share of a's distinct k-grams that are among b's, and the harmonic mean of both
    directions."""
    for a, b in pairs():
        for k in (1, 2, 3, 8):
            ours, theirs = (
                {tuple(w[i : i + k]) for i in range(len(w) - k + 1)} for w in map(words, (a, b))
            )
            precision, recall = (len(ours & theirs) / len(x) if x else 0 for x in (ours, theirs))
            f = 2 * precision * recall / (precision + recall) if ours & theirs else 0
            assert rouge_k(a, b, k) == pytest.approx((precision, recall, f), abs=1e-12)
    assert rouge_k([5, 7, 5, 7], np.array([7, 5, 7, 9]), 2, "set") == (
        1.0,
        2 / 3,
        0.8,
    )  # ids of tokens


def test_intervals_are_those_of_means_of_prompts():
    """However many completions each prompt has; their coverage is tested in
    tests/test_statistics.py."""
    prompts = np.random.default_rng(0).uniform(0.3, 0.7, size=8)
    repeated = ClusteredValues(np.repeat(prompts, 10), np.repeat(np.arange(8), 10))
    assert compare(repeated, None) == {"completions": pytest.approx(estimate(prompts).cell)}
    values = np.array([1.0, np.nan, 0.5, np.nan])
    missing = compare(ClusteredValues(values, np.array([0, 0, 1, 2])), None)["completions"]
    assert missing[0] == 0.75
    shares = ClusteredValues(np.array([1.0] * 6 + [0.9, 0.8]), np.arange(8))
    mean, low, high = compare(shares, None)["completions"]
    assert high == 1 and low < mean
    one = compare(ClusteredValues(np.array([0.2, 0.4]), np.array([3, 3])), None)["completions"]
    assert one[0] == pytest.approx(0.3) and np.isnan(one[1:]).all()


def test_differences_on_the_same_prompts_are_paired():
    """Prompts differ, but the baseline is always lower by the same amount: the paired interval has
    no width."""
    prompts = np.random.default_rng(0).uniform(0.2, 0.9, size=20)
    ours = ClusteredValues(np.repeat(prompts, 3), np.repeat(np.arange(20), 3))
    theirs = ClusteredValues(np.repeat(prompts - 0.1, 10), np.repeat(np.arange(20), 10))
    assert compare(ours, theirs, paired=True)["difference"] == pytest.approx([0.1] * 3)
    assert compare(ours, theirs)["difference"][1] < 0.05


# ---- The nearest of others, and chance ----
def test_the_nearest_other_does_not_grow_with_the_number_of_completions():
    """500 completions beside 50; ten completions of each prompt beside five, of 50 prompts beside
    25: the same mean."""
    rng = np.random.default_rng(0)
    texts = [rng.integers(0, 40, size=60) for _ in range(500)]
    grams = [kgrams(text, 2, "set") for text in texts]
    few, many = (nearest_other(grams[:n], np.arange(n)).mean() for n in (50, 500))
    assert few == pytest.approx(many, abs=0.01)
    alike = [
        np.append(texts[i // 10][:30], texts[i][30:]) for i in range(500)
    ]  # ten of each prompt, half in common
    alike = [kgrams(text, 2, "set") for text in alike]
    prompts = np.arange(500) // 10
    several = [alike, prompts], [alike[:250], prompts[:250]], [alike[::2], prompts[::2]]
    means = [
        [nearest_other(*some, n_same).mean() for n_same in (0, N_SAME_PROMPT)] for some in several
    ]
    assert means[1] == pytest.approx(means[0], abs=0.01) and means[2] == pytest.approx(
        means[0], abs=0.01
    )
    assert means[0][1] > means[0][0] + 0.2  # completions of one prompt are alike
    few = N_OTHER_PROMPTS + 1
    assert np.isnan(nearest_other(grams[: few - 1], np.arange(few - 1))).all()
    assert np.isnan(nearest_other(alike[::5], prompts[::5], N_SAME_PROMPT)).all()
    every = [max(rouge_k(a, b).f for b in texts[:few] if b is not a) for a in texts[:few]]
    assert nearest_other(grams[:few], np.arange(few)).tolist() == every


def test_a_passage_counts_as_copied_if_few_held_out_excerpts_have_one_as_long():
    short, long = np.full(990, 13), np.full(10, 40)
    assert (
        flags.copied_length(short) == flags.copied_length(np.append(short, long)) == flags.MIN_WORDS
    )
    assert (
        flags.copied_length(np.append(short, [40] * 11)) == 41
        and flags.copied_length(short[:0]) == flags.MIN_WORDS
    )


def test_held_out_excerpts_are_as_long_and_from_the_same_place(corpus):
    data, training, validation = corpus
    opened = open_corpus(data)
    completions, begins = opened.encode(endings(validation[20:40])), list(range(20))
    pieces, stories = draw_excerpts(opened, completions, begins, rouge.MIN_EXCERPTS)
    held_out = opened.encode(validation)
    assert len(pieces) == rouge.MIN_EXCERPTS
    for i, (piece, story) in enumerate(zip(pieces, stories)):
        assert len(piece) == len(completions[i % 20])
        begin = min(begins[i % 20], len(held_out[story]) - len(piece))
        assert (piece == held_out[story][begin : begin + len(piece)]).all()


# ---- A run ----
@pytest.fixture
def rouge_py(command_line, tmp_path, monkeypatch):
    """rouge.py, with an empty picture, as drawing takes seconds."""
    monkeypatch.setattr(histograms, "histograms", lambda *_: Figure(figsize=(1, 1)))
    return command_line(rouge, tmp_path)


@pytest.fixture
def run(corpus, tmp_path):
    """out/tiny: 20 prompts x 3 completions, the last one empty; the first is a training story's
    ending, in the second its name and nouns are changed."""
    data, training, validation = corpus
    completions = endings(validation[20:80])
    completions[0], text = endings(training[5:7])
    name = next(name for name in builtin_stories.NAMES if name in text)
    nouns = set(builtin_stories.NOUNS)
    completions[1] = planted.replace_words(
        text.replace(name, "Zorban"), nouns, sorted(nouns), random.Random(0)
    )
    completions[59] = ""
    write_rows(tmp_path / "out" / "tiny" / "samples.jsonl", rows_of(completions, validation, 3))
    return tmp_path / "out" / "tiny"


def facts_of(run, data, split: str = "val", **others) -> dict:
    """What rouge.py finds of the completions of a split."""
    settings = {"data": Path(data), "k": 2, "counting": "set", "tokens": False}
    analyses = rouge.analyze_run(Path(run), Namespace(**settings | others))
    return next(each.facts for each in analyses if each.facts["split"] == split)


def warnings_and_tables(run) -> tuple[list[str], dict[str, list[dict]]]:
    result = load(run / "rouge.json")
    return result.warnings, {table.facts["kind"]: table.rows for table in result.tables}


def described(run, ending: str = "") -> dict[tuple[int, int], dict]:
    """rouge.csv, by prompt and completion."""
    rows = read_table(run / f"rouge{ending}.csv")
    return {(int(row["prompt_index"]), int(row["sample_index"])): row for row in rows}


def test_a_report_says_what_is_so(run, corpus, command_line, tmp_path):
    data, training, validation = corpus
    code, printed = command_line(rouge, tmp_path)(run, "--data", data)
    assert code == 0
    rows = read_rows(run / "samples.jsonl")
    found = described(run)
    figures = facts_of(run, data)["metrics"]
    by_hand = {
        key: max(rouge_k(row["completion"], story).f for story in training)
        for key, row in rows.items()
    }
    assert figures["training_f"]["completions"][0] == pytest.approx(np.mean([*by_hand.values()]))
    for key, row in found.items():
        text = rows[key]["completion"]
        assert row["completion"] == text and float(row["f"]) == pytest.approx(
            by_hand[key], abs=1e-5
        )
        nearest = int(row["nearest_story"])
        assert nearest < 0 or rouge_k(text, training[nearest]).f == pytest.approx(by_hand[key])
        assert row["span"] in text and len(words(row["span"])) == int(row["span_length"])
    ending_f = [rouge_k(row["completion"], row["reference"]).f for row in rows.values()]
    assert figures["ending_f"]["completions"][0] == pytest.approx(np.mean(ending_f))
    together = " | ".join(
        " ".join(words(story)) for story in training
    )  # no span goes on in the next story
    shares = []
    for text in (words(row["completion"]) for row in rows.values()):
        threes = [" ".join(text[i : i + 3]) for i in range(len(text) - 2)]
        shares += [np.mean([f" {three} " in f" {together} " for three in threes])] if threes else []
    assert figures["share_3"]["completions"][0] == pytest.approx(np.mean(shares))
    for figure in figures.values():
        for value, low, high in figure.values():
            assert low <= value <= high
    assert to_text(load(run / "rouge.json")) in printed.out
    shown = warnings_and_tables(run)[1]["metrics"]
    by_title = {row["metric"]: row for row in shown}
    row = by_title[rouge.TITLES["training_f"]]
    assert row["completions"] == figures["training_f"]["completions"] and row["run"] == "tiny"
    assert (run / "rouge.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (run / "rouge.svg").read_text()


def test_copies_are_flagged_beside_their_story(run, corpus, rouge_py):
    data, training, _ = corpus
    assert rouge_py(run, "--data", data)[0] == 0
    first, second = (described(run)[0, i] for i in (0, 1))
    assert [first["flag"], second["flag"]] == ["copy", "template"]
    assert [first["training_story"], second["training_story"]] == training[5:7]
    passages = warnings_and_tables(run)[1]["passages"]
    assert passages[0]["flagged"] == "copy of story 5"


def test_planted_copies_are_found(corpus, rouge_py, tmp_path):
    data, _, validation = corpus
    rows = planted.plant(
        rows_of(endings(validation[40:60]), validation, 1), open_corpus(data), each=15
    )
    write_rows(tmp_path / "out" / "planted" / "samples.jsonl", rows)
    assert rouge_py("out/planted", "--data", data)[0] == 0
    found = planted.count_flagged(rows, tmp_path / "out" / "planted")
    passages = (
        "half of it, within an honest completion",
        "50 words of it, within an honest completion",
    )
    for kind in (
        "verbatim",
        *passages,
        "names replaced",
        "names replaced by unknown ones",
        "sentences shuffled",
    ):
        assert found[kind][0] == 15, kind
    assert found["verbatim"][1] >= 14  # another story may have all of its ending, too
    assert found["words shuffled"][0] == found["nothing of it, but 100 made-up words"][0] == 0


def test_validation_stories_in_the_training_set_do_not_hide_copies(corpus, rouge_py, tmp_path):
    _, training, validation = corpus
    data = write_corpus(tmp_path / "leaky", training + validation[10:12], validation[:20] * 2)
    source = training[5].split()
    copy = " ".join(
        [*"Zorb gnarl fip dop lum wex".split(), *source[20:50], *"Vip mon kel dur sot bax".split()]
    )
    write_rows(
        tmp_path / "out" / "one" / "samples.jsonl",
        rows_of([copy, *endings(validation[60:84])], validation, 1),
    )
    code, printed = rouge_py("out/one", "--data", data)
    assert code == 0 and "10.0% of the held-out excerpts" in printed.out
    assert described(tmp_path / "out" / "one")[0, 0]["flag"] == "copy"
    facts = facts_of(tmp_path / "out" / "one", data)
    assert facts["excerpts_in_training"] == 40 and facts["held_out_excerpts"] == 360
    assert facts["n_flag_baseline"] in range(
        160, 200
    )  # the half that did not set the length of a copy


def test_near_copies_in_both_splits_are_warned_of(run, corpus, rouge_py, monkeypatch, tmp_path):
    _, training, validation = corpus
    near_copies = [" ".join([*story.split()[:-1], "indeed."]) for story in validation[:8]]
    data = write_corpus(tmp_path / "near", training + near_copies, validation)
    monkeypatch.setattr(rouge.flags, "copied_length", lambda longest: rouge.flags.MIN_WORDS)
    assert "share near-copies" in rouge_py(run, "--data", data)[1].out


def test_the_stories_that_set_the_length_of_a_copy_are_not_those_that_are_counted(
    corpus, rouge_py, tmp_path
):
    _, training, validation = corpus
    words, passage = validation[1].split(), training[5].split()[20:60]
    mixed = " ".join(
        [*words[:90], *passage, *words[90:]]
    )  # story 1: counted; story 0 says what chance does
    data = write_corpus(tmp_path / "half", training, [validation[0], mixed])
    write_rows(
        tmp_path / "out" / "run" / "samples.jsonl",
        rows_of(endings(validation[20:45]), validation, 1),
    )
    assert rouge_py("out/run", "--data", data)[0] == 0
    facts = facts_of(tmp_path / "out" / "run", data)
    assert facts["min_copied_words"] < 40 and facts["flagged"]["copy"]["baseline"] > 100


def test_both_splits_are_shown_side_by_side(run, corpus, rouge_py):
    """This model knows the endings of training stories: no completion of a validation story says
    so."""
    data, training, _ = corpus
    rows = rows_of(endings(training[:25]), training, 1)
    write_rows(
        run / "samples-train.jsonl",
        [row | dict(split="train", cut=0.4, weights="others") for row in rows],
    )
    code, printed = rouge_py(run, "--data", data)
    held_out = facts_of(run, data)
    trained = facts_of(run, data, "train")
    assert code == 0 and held_out["n_completions"] == 60 and trained["n_completions"] == 25
    assert trained["metrics"]["ending_f"]["completions"][0] == 1
    assert trained["flagged"]["copy"]["completions"] == 25
    warnings, tables = warnings_and_tables(run)
    memorized = 1 - held_out["metrics"]["ending_f"]["completions"][0]
    assert tables["memorization"][0]["difference"][0] == pytest.approx(memorized, abs=1e-3)
    assert "not sampled alike: cut, prompts, completions per prompt, checkpoint" in warnings


def test_all_settings_and_several_runs(run, corpus, rouge_py, tmp_path):
    data, training, validation = corpus
    second = tmp_path / "out" / "second"
    rows = rows_of(endings(validation[50:60]), validation, 1)
    write_rows(
        second / "samples.jsonl", [row | dict(reference=None) for row in rows]
    )  # as of --prompts
    flags_of_run = ("--data", data, "--k", 4, "--counting", "clipped", "--tokens")
    code, printed = rouge_py(run, "out/second", *flags_of_run)
    assert code == 0 and (tmp_path / "out" / "rouge.svg").exists()
    warnings, tables = warnings_and_tables(tmp_path / "out")
    assert {row["run"] for row in tables["metrics"]} == {"tiny", "second"}
    assert "not sampled alike: prompts, completions per prompt" in warnings
    facts = facts_of(second, data, k=4, counting="clipped", tokens=True)
    assert "ending_f" not in facts["metrics"] and facts["flagged"]["template"]["completions"] == 0
    tokenizer = open_corpus(data, by_tokens=True).tokenizer
    ids = [tokenizer.encode(story) for story in training]
    for row in rows:
        by_hand = max(
            rouge_k(tokenizer.encode(row["completion"]), story, 4, "clipped").f for story in ids
        )
        assert float(described(second)[row["prompt_index"], 0]["f"]) == pytest.approx(
            by_hand, abs=1e-5
        )


def test_one_completion_alone(corpus, rouge_py, tmp_path):
    data, _, validation = corpus
    write_rows(
        tmp_path / "out" / "one" / "samples.jsonl", rows_of([" They all went home."], validation, 1)
    )
    code, printed = rouge_py("out/one", "--data", data)
    assert (
        code == 0
        and "F with the nearest training story" in printed.out
        and "nan" not in printed.out
    )
    metrics = warnings_and_tables(tmp_path / "out" / "one")[1]["metrics"]
    row = next(row for row in metrics if row["metric"] == rouge.TITLES["training_f"])
    assert row["difference"][1] is None


def test_a_comparison_never_replaces_the_results_of_a_run(run, corpus, rouge_py, tmp_path):
    """Of a run and its samples at another temperature; the same directory twice is one."""
    data, _, validation = corpus
    for name in ("temperature-0.3", "temperature-0.6"):
        rows = rows_of(endings(validation[20:45]), validation, 1)
        write_rows(run / name / "samples.jsonl", rows)
    assert rouge_py(run, "--data", data)[0] == 0
    before = (run / "rouge.json").read_bytes()
    places = [run / "temperature-0.3", run / "temperature-0.6"]
    assert rouge_py(*places, "--data", data)[0] == 0
    assert (run / "rouge.json").read_bytes() == before
    rows = load(run / "rouge-comparison.json").tables[0].rows
    assert {row["run"] for row in rows} == {"temperature-0.3", "temperature-0.6"}
    (run / "rouge-comparison.json").unlink()
    assert rouge_py(places[0], places[0], "--data", data)[0] == 0
    tables = warnings_and_tables(places[0])[1]
    assert "memorization" not in tables and not (run / "rouge-comparison.json").exists()


NO_WORD = '{"prompt_index": 0, "sample_index": 0, "completion": "…"}\n'
ONE_WORD = NO_WORD.replace("…", "A.")


@pytest.mark.parametrize(
    "content, args, message",
    [
        (None, (), "samples.jsonl"),
        ('{"prompt_index": 0, "sample_index": 0}\n', (), "samples.jsonl"),
        (NO_WORD, (), "out/bad"),
        (ONE_WORD, ("--data", "nowhere"), "nowhere"),
        ("", ("--k", "0"), "--k"),
    ],
)
def test_mistakes_get_one_line(corpus, rouge_py, tmp_path, content, args, message):
    (tmp_path / "out" / "bad").mkdir(parents=True)
    if content is not None:
        (tmp_path / "out" / "bad" / "samples.jsonl").write_text(content)
    code, printed = rouge_py(
        "out/bad", *(args if "--data" in args else ("--data", corpus[0], *args))
    )
    complaint = printed.err.splitlines()[-1] if code == 2 else code
    assert message in complaint and "\n" not in complaint
    assert not (tmp_path / "out" / "bad" / "rouge.json").exists()
