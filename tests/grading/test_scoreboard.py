"""scoreboard.py: judges that are perfect, a coin, or count words, and what the report says of each."""

import csv
import math

import numpy as np
import pytest
from grade_fixtures import true_endings
from matplotlib.image import imread

from grading import scoreboard
from grading.judge import SCORES, Story
from grading.judge_controls import CUT, OTHER, SHUFFLED, TRUE, make_controls
from grading.metrics import words_of
from grading.scoreboard import (
    ASPECTS,
    Finding,
    agreement,
    blind_spots,
    compare,
    find,
    report,
    warn_of_blindness,
    warn_of_close_calls,
)


@pytest.fixture(scope="module")
def kinds() -> dict[str, list[Story]]:
    return make_controls(true_endings(50))


def findings_of(kinds: dict, judge: str, score) -> list[Finding]:
    """Of a judge who gives score(kind, story) to everything."""
    scores = {story: {name: score(kind, story) for name in (*SCORES, "age")} for kind in kinds for story in kinds[kind]}
    return compare(kinds, [], scores, ASPECTS, judge)


def test_a_perfect_judge(kinds):
    findings = findings_of(kinds, "perfect", lambda kind, story: 10 if kind == TRUE else 3 + len(story.prompt) % 3)
    aucs = find(findings, "auc", "perfect")
    assert len(aucs) == 15 and all((f.value, f.low, f.high) == (1, 1, 1) for f in aucs.values())
    assert blind_spots(findings, "perfect") == [] and warn_of_blindness(findings, "perfect") == []


def test_a_coin(kinds):
    rng = np.random.default_rng(0)
    findings = findings_of(kinds, "coin", lambda kind, story: rng.integers(11))
    for f in find(findings, "auc", "coin").values():
        assert f.low < 0.5 < f.high or abs(f.value - 0.5) < 0.2
    missed = {(f.subject, f.figure) for f in blind_spots(findings, "coin")}
    assert len(missed) >= 5  # of 6: one in forty coins is taken for a judge
    assert any(
        "consistency: coin cannot tell the true ending from" in line for line in warn_of_blindness(findings, "coin")
    )


def test_one_that_only_counts_words(kinds):
    findings = findings_of(kinds, "counter", lambda kind, story: len(words_of(story.completion)) / 20)
    aucs = find(findings, "auc", "counter")
    shuffled = aucs[SHUFFLED, "consistency"]
    assert (shuffled.value, shuffled.low, shuffled.high) == (0.5, 0.5, 0.5)
    assert aucs[CUT, "grammar"].low > 0.5  # fewer words: it only seems to see that the end is missing
    assert aucs[OTHER, "consistency"].low < 0.5 < aucs[OTHER, "consistency"].high
    lines = warn_of_blindness(findings, "counter")
    assert lines[0].endswith("what it says of the models' consistency means nothing")
    assert lines[1].startswith("plot: ") and lines[1].endswith("it only sees one cut off")
    assert not any(line.startswith("grammar") for line in lines)


def test_one_that_prefers_what_is_spoiled_is_blind_too(kinds):
    findings = findings_of(kinds, "odd", lambda kind, story: 5 if kind == TRUE else 6)
    assert len(blind_spots(findings, "odd")) == 6


@pytest.mark.parametrize("n, few", [(9, True), (10, False)])
def test_few_prompts_are_no_proof(n, few):
    findings = findings_of(make_controls(true_endings(n)), "j", lambda kind, story: 10 if kind == TRUE else 3)
    assert all(f.low == 1 for f in find(findings, "auc", "j").values())  # as if it were certain
    text = report(findings, [TRUE], ["j"], dict(j="all"))
    assert ("WARNING too few prompts (9) to say what j sees" in text) == few


# Models beside each other


def models(n_prompts: int, **levels: float) -> tuple[dict, dict]:
    """(sources, scores): two completions of every prompt by each model, whose scores are its level and the prompt's."""
    rng = np.random.default_rng(0)
    ease = rng.normal(0, 1.5, n_prompts)
    sources = {name: [Story(f"p{i}", f"{name} {j}") for i in range(n_prompts) for j in (0, 1)] for name in levels}
    scores = {
        story: dict.fromkeys((*SCORES, "age"), level + ease[int(story.prompt[1:])] + rng.normal(0, 0.3))
        for name, level in levels.items()
        for story in sources[name]
    }
    return sources, scores


def test_models_are_compared_on_the_same_prompts():
    sources, scores = models(40, a=5, b=5.4, c=5.42)
    findings = compare(sources, list(sources), scores, ASPECTS, "j")
    means, differences = find(findings, "mean", "j"), find(findings, "difference", "j")
    assert means["a", "grammar"].high > means["b", "grammar"].low  # prompts differ more than models
    difference = differences["a - b", "grammar"]
    assert difference.high < 0 and difference.value == pytest.approx(
        means["a", "grammar"].value - means["b", "grammar"].value
    )
    assert means["a", "plot"].normalised == 0 and means["c", "plot"].normalised == 1
    assert means["b", "plot"].normalised == pytest.approx(
        (means["b", "plot"].value - means["a", "plot"].value) / (means["c", "plot"].value - means["a", "plot"].value)
    )
    lines = warn_of_close_calls(findings, "j")
    assert len(lines) == 5 and lines[0].startswith("grammar: too close to call with 40 prompts, which resolve about 0.")
    assert all(line.endswith(": b - c") for line in lines)
    assert "j is unvalidated; run with --controls" in report(findings, ["a"], ["j"], dict(j="240 of 240"))


def test_models_that_are_equal_on_every_prompt_are_too_close_to_call():
    sources, scores = models(12, a=5, b=5, c=9)
    for i in range(12):
        for j in (0, 1):
            scores[Story(f"p{i}", f"b {j}")] = scores[Story(f"p{i}", f"a {j}")]
    lines = warn_of_close_calls(compare(sources, list(sources), scores, ASPECTS, "j"), "j")
    assert lines[0] == "grammar: too close to call with 12 prompts, on which they are equal: a - b"


def test_what_was_not_graded_is_left_out():
    sources, scores = models(10, a=5, b=6)
    for story in list(scores):
        if story.prompt in ("p0", "p1") and story.completion.startswith("a") or story.completion == "b 1":
            del scores[story]
    findings = compare(sources, ["a", "b"], scores, ASPECTS, "j")
    means = find(findings, "mean", "j")
    assert means["a", "plot"].prompts == 8 and means["b", "plot"].prompts == 10
    assert find(findings, "difference", "j")["a - b", "plot"].prompts == 8
    assert compare(sources, ["a", "b"], {}, ASPECTS, "j") == []
    assert not any(f.figure == "instructions" for f in findings)


def test_intervals_end_where_the_scale_does():
    stories = [Story(f"p{i}", "x") for i in range(12)]
    scores = {story: dict(grammar=10.0 - 4 * (i == 0), age=14.5 - 8 * (i == 0)) for i, story in enumerate(stories)}
    for finding in compare(dict(a=stories), ["a"], scores, ASPECTS, "j"):
        assert finding.low < finding.value < finding.high == (10 if finding.figure == "grammar" else 14.5)


def test_a_share_of_all_stories_is_not_certain():
    stories = [Story(f"p{i}", "x") for i in range(50)]
    for share in (0.0, 1.0):
        (finding,) = compare(dict(a=stories), ["a"], dict.fromkeys(stories, dict(ended=share)), ["ended"], "")
        assert finding.value == share and finding.high - finding.low == pytest.approx(
            0.0713, abs=1e-3
        )  # 1 / (1 + n / z²)


def test_runs_without_shared_prompts_are_named():
    stories = dict(a=[Story(f"p{i}", "x") for i in range(9)], b=[Story(f"q{i}", "x") for i in range(9)])
    scores = {story: dict(plot=5.0) for several in stories.values() for story in several}
    findings = compare(stories, ["a", "b"], scores, ASPECTS, "j")
    (line,) = warn_of_close_calls(findings, "j")
    assert line == "no prompts in common, so no difference can be told: a - b"


def test_one_that_may_see_is_told_how_many_prompts_would_do():
    spots = [Finding("auc", "j", SHUFFLED, "consistency", 0.7, 0.45, 0.9, prompts=12)]
    spots += [Finding("auc", "j", OTHER, "consistency", 0.9, 0.8, 1, prompts=12)]
    (line,) = warn_of_blindness(spots, "j")
    assert line.endswith("not shown with so few prompts: about 23 would do, if that is how well it sees")
    spots[0] = Finding("auc", "j", SHUFFLED, "consistency", 0.51, 0.3, 0.7, prompts=12)
    assert "so few" not in warn_of_blindness(spots, "j")[0]


def test_one_prompt_has_no_interval():
    sources, scores = models(1, a=5)
    (finding, *_) = compare(sources, ["a"], scores, ASPECTS, "j")
    assert finding.prompts == 1 and math.isnan(finding.low) and math.isnan(finding.normalised)
    assert "–" in report([finding], ["nobody"], ["j"], dict(j="1 of 1"))


def test_agreement_of_judges():
    sources, scores = models(30, a=5, b=6)
    stories = sources["a"] + sources["b"]
    strict = {story: {name: 2 * value - 3 for name, value in values.items()} for story, values in scores.items()}
    random = {
        story: dict(grammar=float(value)) for story, value in zip(scores, np.random.default_rng(0).normal(size=120))
    }
    findings = agreement(stories, dict(kind=scores, strict=strict, random=random))
    correlation = find(findings, "spearman", "")
    assert correlation["kind, strict", "plot"].value == pytest.approx(1)
    coin = correlation["kind, random", "grammar"]
    assert coin.low < 0 < coin.high and ("kind, random", "plot") not in correlation
    apart = find(findings, "mean_absolute_difference", "")["kind, strict", "plot"]
    by_hand = np.mean([abs(strict[story]["plot"] - scores[story]["plot"]) for story in stories])
    assert apart.value == pytest.approx(by_hand) and apart.low < by_hand < apart.high


@pytest.mark.filterwarnings("error")
def test_a_judge_who_always_says_the_same_agrees_with_nobody():
    sources, scores = models(5, a=5)
    findings = agreement(sources["a"], dict(kind=scores, same={story: dict(grammar=7.0) for story in scores}))
    estimate = find(findings, "spearman", "")["kind, same", "grammar"]
    assert math.isnan(estimate.value) and math.isnan(estimate.low) and math.isnan(estimate.high)
    assert "kind, same        –" in report(findings, [], [], {})


def test_files(tmp_path, kinds):
    for names in (["one"], ["a", "b"], [f"a run with a rather long name, number {i}" for i in range(8)]):
        sources, scores = models(12, **dict.fromkeys(names, 5.0))
        findings = compare(sources | kinds, names, scores, ASPECTS, "j") + [Finding("mean", "", names[0], "loss", 1.5)]
        for judges in (["j"], ["j", "k"], []):
            scoreboard.plot(tmp_path / "grades.png", findings, names, judges)
            assert imread(tmp_path / "grades.png").shape[1] > 250
    scoreboard.write_csv(tmp_path / "grades.csv", findings)
    with (tmp_path / "grades.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(findings)
    assert rows[-1] == dict.fromkeys(rows[0], "") | dict(
        kind="mean", subject=names[0], figure="loss", value="1.5", prompts="0"
    )
