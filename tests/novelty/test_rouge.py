"""rouge.py: the metric is rouge-score's and the paper's, and what a report says is so."""

import json
import random
import subprocess
import sys

import numpy as np
import planted
import pytest
from conftest import ROOT
from rouge_score.rouge_scorer import RougeScorer
from rouge_score.tokenize import tokenize

import rouge
from corpus import builtin_stories, preparation
from generation.prompts import cut_story
from generation.samples_file import write_rows
from novelty.corpus_words import open_stories
from rouge import Values, interval, means, rouge_k, rouge_l

# ROUGE


def pairs(real: list[str]) -> list[tuple[str, str]]:
    rng = random.Random(0)
    made = [" ".join(rng.choices(["a", "b", "The", "cat,", "3rd", "é"], k=rng.randrange(25))) for _ in range(200)]
    odd = ["", "Word", "word", "...", "The cat sat. The cat sat. The cat sat."]
    told = [story.text for story in builtin_stories.stories(20)]
    return (
        list(zip(made, made[::-1])) + [(a, b) for a in odd for b in odd] + list(zip(told + real, told[::-1] + real[1:]))
    )


@pytest.fixture
def real(request) -> list[str]:
    """A few real stories where they are at hand; the rest is tested without them."""
    try:
        return request.getfixturevalue("real_stories")[:40]
    except pytest.skip.Exception:
        return []


def test_clipped_counts_are_those_of_rouge_score(real):
    scorer = RougeScorer([*(f"rouge{k}" for k in range(1, 10)), "rougeL"])
    for a, b in pairs(real):
        theirs = scorer.score(b, a)  # target, prediction
        for k in range(1, 10):
            assert rouge_k(a, b, k, "clipped") == pytest.approx(tuple(theirs[f"rouge{k}"]), abs=1e-12)
        assert rouge_l(a, b) == pytest.approx(tuple(theirs["rougeL"]), abs=1e-12)


def test_counts_by_set_are_the_papers(real):
    """The share of a's distinct k-grams that are among b's, and the harmonic mean of both directions."""
    for a, b in pairs(real):
        for k in (1, 2, 3, 8):
            ours, theirs = ({tuple(w[i : i + k]) for i in range(len(w) - k + 1)} for w in map(words, (a, b)))
            precision, recall = (len(ours & theirs) / len(x) if x else 0 for x in (ours, theirs))
            f = 2 * precision * recall / (precision + recall) if ours & theirs else 0
            assert rouge_k(a, b, k) == pytest.approx((precision, recall, f), abs=1e-12)


def words(text: str) -> list[str]:
    return tokenize(text, None)


def test_token_ids_are_words_too():
    assert rouge_k([5, 7, 5, 7], np.array([7, 5, 7, 9]), 2, "clipped") == (2 / 3, 2 / 3, 2 / 3)
    assert rouge_k([5, 7, 5, 7], np.array([7, 5, 7, 9]), 2, "set") == (1.0, 2 / 3, 0.8)
    assert rouge_l([1, 2, 3, 4], [2, 9, 4]) == (0.5, 2 / 3, 4 / 7)
    assert rouge_k([], [], 2) == rouge_l([], [1]) == (0, 0, 0)


# Intervals


def test_an_interval_holds_the_mean_as_often_as_it_says():
    """Clusters of ten that resemble each other: the interval must be that of clusters, not of values."""
    rng, held = np.random.default_rng(0), 0
    for _ in range(300):
        centres = rng.normal(size=40)
        values = np.repeat(centres, 10) + 0.1 * rng.normal(size=400)
        found = interval(means(Values(values, np.repeat(np.arange(40), 10)), n=500))
        held += found["low"] <= 0 <= found["high"]
        assert found["mean"] == pytest.approx(values.mean())
    assert 0.90 <= held / 300 <= 0.98


def test_values_that_are_missing_do_not_count():
    values = Values(np.array([1.0, np.nan, 3.0, np.nan]), np.array([0, 0, 1, 2]))
    assert means(values)[0] == 2 and np.isfinite(means(values)).all()


def test_one_cluster_has_no_interval():
    found = interval(means(Values(np.array([1.0, 2.0]), np.array([3, 3]))))
    assert found["mean"] == 1.5 and np.isnan(found["low"]) and np.isnan(found["high"])
    all_alike = interval(means(Values(np.ones(4), np.arange(4))))
    assert all_alike == dict(mean=1.0, low=1.0, high=1.0)


def test_differences_on_the_same_prompts_are_paired():
    """Prompts differ, what is put beside them is always lower by the same: nothing of that is left in the interval."""
    prompts = np.random.default_rng(0).normal(size=20)
    ours = Values(np.repeat(prompts, 3), np.repeat(np.arange(20), 3))
    theirs = Values(np.repeat(prompts - 0.1, 10), np.repeat(np.arange(20), 10))
    found = rouge.with_intervals(ours, theirs, paired=True)["difference"]
    assert [*found.values()] == pytest.approx([0.1] * 3)
    found = rouge.with_intervals(ours, theirs, paired=False)["difference"]
    assert found["low"] < -0.2 and found["high"] > 0.4


# A report


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """data/tiny and, of its training and validation stories, the texts."""
    told = [story.text for story in builtin_stories.stories(300)]
    data = tmp_path_factory.mktemp("rouge") / "data" / "tiny"
    preparation.prepare(data, ["told"], told[100:], told[:100], 1000, 0.1, 0, 1)
    return data, told[100:], told[:100]


def rows_of(completions: list[str], validation: list[str], n: int) -> list[dict]:
    """samples.jsonl: n completions for each validation story."""
    rows = []
    for i in range(len(completions) // n):
        prompt = cut_story(validation[i], 0.5)
        facts = dict(prompt_index=i, prompt=prompt.text, reference=prompt.reference)
        rows += [facts | dict(sample_index=j, completion=completions[n * i + j]) for j in range(n)]
    return rows


@pytest.fixture
def rouge_py(command_line, tmp_path):
    return command_line(rouge, tmp_path)


@pytest.fixture
def run(corpus, tmp_path):
    """out/tiny: 20 prompts x 3 completions; the first is a training story's ending, the second has its name changed."""
    data, training, validation = corpus
    completions = [cut_story(story, 0.5).reference for story in validation[20:80]]
    completions[0] = cut_story(training[5], 0.5).reference
    name = next(name for name in builtin_stories.NAMES if name in cut_story(training[6], 0.5).reference)
    completions[1] = cut_story(training[6], 0.5).reference.replace(name, "Zorban")
    completions[59] = ""
    write_rows(tmp_path / "out" / "tiny" / "samples.jsonl", rows_of(completions, validation, 3))
    return tmp_path / "out" / "tiny"


def test_a_report_says_what_is_so(run, corpus, rouge_py):
    data, training, validation = corpus
    code, printed = rouge_py(run, "--data", data)
    assert code == 0
    facts = json.loads((run / "rouge.json").read_text())
    rows = rouge.read_completions(run / "samples.jsonl")
    details, figures = facts["details"], facts["figures"]
    by_hand = [max(rouge_k(row["completion"], story).f for story in training) for row in rows]
    assert [detail["f"] for detail in details] == pytest.approx(by_hand, abs=1e-12)
    assert figures["training_f"]["completions"]["mean"] == pytest.approx(np.mean(by_hand))
    for row, detail in zip(rows, details):
        assert detail["nearest_text"] is None or rouge_k(row["completion"], detail["nearest_text"]).f == detail["f"]
        assert detail["span"] in " ".join(words(row["completion"]))
        assert detail["span_story"] < 0 or detail["span"] in " ".join(words(training[detail["span_story"]]))
    endings = [rouge_k(row["completion"], row["reference"]).f for row in rows]
    assert figures["ending_f"]["completions"]["mean"] == pytest.approx(np.mean(endings))
    others = [max(rouge_k(a["completion"], b["completion"]).f for b in rows if b is not a) for a in rows]
    assert figures["any_other_f"]["completions"]["mean"] == pytest.approx(np.mean(others))
    together = " ".join(f"{' '.join(words(story))} |" for story in training)  # no span goes on from story to story
    shares = []
    for text in (words(row["completion"]) for row in rows):
        threes = [" ".join(text[i : i + 3]) for i in range(len(text) - 2)]
        shares += [np.mean([f" {three} " in f" {together} " for three in threes])] if threes else []
    assert figures["share_3"]["completions"]["mean"] == pytest.approx(np.mean(shares))
    for figure in figures.values():
        for found in figure.values():
            assert found["low"] <= found["mean"] <= found["high"]
    assert printed.out.splitlines()[-1].startswith("wrote rouge.json and rouge.png; next: ")
    assert (run / "rouge.png").read_bytes().startswith(b"\x89PNG")


def test_copies_are_flagged_with_their_story_beside_them(run, corpus, rouge_py):
    data, training, _ = corpus
    assert rouge_py(run, "--data", data, "--threshold", "0.95")[0] == 0
    details = json.loads((run / "rouge.json").read_text())["details"]
    assert [detail["flag"] for detail in details[:2]] == ["copy", "template"]
    assert [training[detail["flag_story"]] for detail in details[:2]] == training[5:7]
    text = (run / "flagged.txt").read_text()
    assert f"all {details[0]['words']} words stand in training story {details[0]['flag_story']}" in text
    left, right = text.split("\n\n")[2].splitlines()[0].split(" | ")
    assert cut_story(training[5], 0.5).reference.strip().startswith(left.strip())
    assert training[5].startswith(right.strip())


def test_held_out_pieces_are_as_long_and_from_the_same_place(run, corpus):
    data, _, validation = corpus
    training = open_stories(data)
    rows = rouge.read_completions(run / "samples.jsonl")
    completions = rouge.texts_of(rows, training)
    pieces = rouge.held_out(data, training, completions)
    begin = [len(words(row["prompt"])) for row in rows]
    endings = training.encode(validation)
    for completion, piece, story, place in zip(completions.words, pieces.words, pieces.clusters, begin):
        assert len(piece) == len(completion)
        place = min(place, len(endings[story]) - len(piece))
        assert (piece == endings[story][place : place + len(piece)]).all()
    assert all(len(set(pieces.clusters[pieces.samples == sample])) == 20 for sample in range(3))


def test_planted_copies_are_found(corpus, rouge_py, tmp_path):
    data, _, validation = corpus
    honest = rows_of([cut_story(story, 0.5).reference for story in validation[40:60]], validation, 1)
    rows = planted.plant(honest, open_stories(data), each=15)
    write_rows(tmp_path / "out" / "planted" / "samples.jsonl", rows)
    assert rouge_py("out/planted", "--data", data)[0] == 0
    details = json.loads((tmp_path / "out" / "planted" / "rouge.json").read_text())["details"]
    found = planted.findings(rows, details)
    for kind in ("as it stands", "names exchanged", "names exchanged for unknown ones", "sentences shuffled"):
        assert found[kind][0] == 15, kind
    assert found["as it stands"][1] >= 14  # another story may have all of its ending, too
    assert found["words shuffled"][0] == 0


def test_all_settings_and_several_runs(run, corpus, rouge_py, tmp_path):
    data, _, validation = corpus
    second = tmp_path / "out" / "second"
    rows = rows_of([cut_story(story, 0.5).reference for story in validation[50:60]], validation, 1)
    for row in rows:
        row["reference"] = None  # as of --prompts: no true endings then
    write_rows(second / "samples.jsonl", rows)
    code, printed = rouge_py(run, second, "--data", data, "--k", 4, "--counting", "clipped", "--tokens")
    assert code == 0 and "look at out/rouge.png" in printed.out.replace(f"{tmp_path}/", "")
    assert (tmp_path / "out" / "rouge.png").exists()
    facts = json.loads((second / "rouge.json").read_text())
    assert "ending_f" not in facts["figures"] and facts["flagged"]["template"]["completions"] == 0
    tokenizer = open_stories(data, by_tokens=True).tokenizer
    ids = [tokenizer.encode(story) for story in corpus[1]]
    for row, detail in zip(rows, facts["details"]):
        by_hand = max(rouge_k(tokenizer.encode(row["completion"]), story, 4, "clipped").f for story in ids)
        assert detail["f"] == pytest.approx(by_hand, abs=1e-12)


def test_one_completion_alone(corpus, rouge_py, tmp_path):
    data, _, validation = corpus
    write_rows(tmp_path / "out" / "one" / "samples.jsonl", rows_of([" They all went home."], validation, 1))
    code, printed = rouge_py("out/one", "--data", data)
    assert code == 0 and "One prompt only: nothing of human hand" in printed.out
    assert "F with the nearest training story" in printed.out and "[" not in printed.out and "nan" not in printed.out
    text = (tmp_path / "out" / "one" / "rouge.json").read_text()
    assert "NaN" not in text and json.loads(text)["figures"]["training_f"]["difference"]["low"] is None


ONE = '{"prompt_index": 0, "sample_index": 0, "completion": "…"}\n'


@pytest.mark.parametrize(
    "content, args, message",
    [
        (None, (), "out/bad/samples.jsonl: no completions there; write some with `python sample.py --eval 50`"),
        ("{}\nnot json\n", (), "out/bad/samples.jsonl: no completions there"),
        ('{"prompt_index": 0, "sample_index": 0}\n', (), "no completions there"),
        (ONE, (), "no completion has a word in it"),
        (
            '{"prompt_index": 0, "sample_index": 0, "completion": "A."}\n',
            ("--data", "no"),
            "no/meta.json: cannot be read",
        ),
        ("", ("--k", "0"), "--k must be at least 1"),
        ("", ("--threshold", "2"), "--threshold must be above 0"),
    ],
)
def test_mistakes_get_one_line(corpus, rouge_py, tmp_path, content, args, message):
    (tmp_path / "out" / "bad").mkdir(parents=True)
    if content is not None:
        (tmp_path / "out" / "bad" / "samples.jsonl").write_text(content)
    code, printed = rouge_py("out/bad", *(args if "--data" in args else ("--data", corpus[0], *args)))
    complaint = printed.err.splitlines()[-1] if code == 2 else code
    assert message in complaint and "\n" not in complaint
    assert not (tmp_path / "out" / "bad" / "rouge.json").exists()


def test_without_data_it_asks_for_them(run, rouge_py):
    assert "name the training set, as in --data data/tinystories" in rouge_py(run)[0]
    assert "no run under out/ yet" in rouge_py()[0]


def test_a_full_disk_leaves_what_was_there(run, corpus):
    """A limit on the size of files stands for it."""
    open_stories(corpus[0])
    (run / "rouge.json").write_text("old")
    program = f"ulimit -f 8; exec {sys.executable} {ROOT / 'rouge.py'} {run} --data {corpus[0]}"
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True)
    assert done.returncode == 1 and (run / "rouge.json").read_text() == "old"
    assert done.stderr.splitlines()[-1].startswith("rouge.py: ") and "Traceback" not in done.stderr
    assert sorted(path.name for path in run.iterdir()) == ["rouge.json", "samples.jsonl"]
