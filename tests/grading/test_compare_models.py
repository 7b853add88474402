"""compare_models.py: judges that are perfect, a coin, or count words, and what the report says of each."""

import csv
import math
from dataclasses import replace

import numpy as np
import pytest
from grade_fixtures import true_endings
from matplotlib.image import imread

from grading import compare_models, scores_plot, scores_table
from grading.compare_models import (
    Finding,
    agreement,
    blind_spots,
    compare,
    find,
    judge_sees,
    shown_differences,
    warn_of_blindness,
    warn_of_close_calls,
    warnings_of,
)
from grading.judge_controls import CUT, OTHER, SHUFFLED, TRUE, make_controls
from grading.metrics import words_of
from grading.rubrics import CHAT, SCORES
from grading.scores_table import report
from grading.story import Story

ASPECTS = tuple(CHAT.scores)


@pytest.fixture(scope="module")
def kinds() -> dict[str, list[Story]]:
    return make_controls(true_endings(50))


def findings_of(kinds: dict, judge: str, score) -> list[Finding]:
    """Of a judge who gives score(kind, story) to everything."""
    scores = {story: {name: score(kind, story) for name in (*SCORES, "age")} for kind in kinds for story in kinds[kind]}
    return compare(kinds, [], scores, ASPECTS, judge)


def test_a_perfect_judge(kinds):
    findings = findings_of(kinds, "perfect", lambda kind, story: 10 if kind == TRUE else 3 + len(story.prompt) % 3)
    wins = find(findings, "paired_wins", "perfect")
    assert len(wins) == 15 and all(f.value == f.high == 1 and 0.9 < f.low < 1 for f in wins.values())
    assert blind_spots(findings, "perfect") == [] and warn_of_blindness(findings, "perfect") == []


def test_a_coin(kinds):
    rng = np.random.default_rng(0)
    findings = findings_of(kinds, "coin", lambda kind, story: rng.integers(11))
    for f in find(findings, "paired_wins", "coin").values():
        assert f.low < 0.5 < f.high or abs(f.value - 0.5) < 0.2
    missed = {(f.subject, f.figure) for f in blind_spots(findings, "coin")}
    assert len(missed) >= 5  # of 6: one in forty coins is taken for a judge
    assert any(
        "consistency: coin cannot tell the true ending from" in line for line in warn_of_blindness(findings, "coin")
    )


def test_one_that_only_counts_words(kinds):
    findings = findings_of(kinds, "counter", lambda kind, story: len(words_of(story.completion)) / 20)
    wins = find(findings, "paired_wins", "counter")
    shuffled = wins[SHUFFLED, "consistency"]
    assert shuffled.value == 0.5 and 0.45 < shuffled.low < 0.5 < shuffled.high < 0.55
    assert wins[CUT, "grammar"].low > 0.5  # fewer words: it only seems to see that the end is missing
    assert wins[OTHER, "consistency"].low < 0.5 < wins[OTHER, "consistency"].high
    lines = warn_of_blindness(findings, "counter")
    assert lines[0].endswith("its scores of the models' consistency mean nothing")
    assert lines[1].startswith("plot: ") and lines[1].endswith("it only notices one that is cut off")
    assert not any(line.startswith("grammar") for line in lines)


def test_one_that_prefers_what_is_spoiled_is_blind_too(kinds):
    findings = findings_of(kinds, "odd", lambda kind, story: 5 if kind == TRUE else 6)
    assert len(blind_spots(findings, "odd")) == 6


@pytest.mark.parametrize("n, few", [(11, True), (12, False)])
def test_few_prompts_do_not_show_a_judge_to_be_blind(n, few):
    kinds = make_controls(true_endings(n))
    blind = findings_of(kinds, "j", lambda kind, story: 5)
    assert (f"WARNING too few prompts ({n}) to say what j sees" in report(blind, [TRUE], dict(j="all"))) == few
    sees = findings_of(kinds, "j", lambda kind, story: 10 if kind == TRUE else 3)
    assert all(f.low > 0.5 for f in find(sees, "paired_wins", "j").values())
    assert "too few" not in report(sees, [TRUE], dict(j="all"))


def test_wins_are_counted_within_each_prompt():
    """One point above its own spoiled ending, always, though prompts differ by more: all against all gives 0.53."""
    kinds = {kind: [Story(f"p{i}", kind) for i in range(30)] for kind in (TRUE, SHUFFLED)}
    scores = {story: dict(plot=int(story.prompt[1:]) + (kind == TRUE)) for kind in kinds for story in kinds[kind]}
    (finding,) = find(compare(kinds, [], scores, ASPECTS, "j"), "paired_wins", "j").values()
    assert finding.value == 1 and finding.prompts == 30


def test_what_no_control_tests_is_said_to_be_untested(kinds):
    findings = findings_of(kinds, "j", lambda kind, story: 10 if kind == TRUE else 3)
    assert {name: judge_sees(findings, "j", name) for name in (*SCORES, "age")} == {
        "grammar": "seen", "creativity": "untested", "consistency": "seen", "plot": "seen", "age": "untested",
    }  # fmt: skip
    assert "(!: no preference shown; untested: creativity, age)" in report(findings, [TRUE], dict(j="all"))
    assert judge_sees(findings, "", "loss") == "seen" and judge_sees([], "j", "plot") == "untested"


def test_a_judge_that_always_answers_the_same_is_named():
    """For instructions, too; without controls by its answers, with controls as blind."""
    told = [Story("", story.prompt + story.completion, f"Use {i}.") for i, story in enumerate(true_endings(15))]
    kinds = make_controls(told) | dict(a=[replace(story, completion="A dog.") for story in told])
    scores = {
        story: dict(instructions=5, plot=len(story.completion + story.task) % 7)
        for kind in kinds
        for story in kinds[kind]
    }
    without = compare(dict(a=kinds["a"]), ["a"], scores, ASPECTS, "j")
    lines = [line for line in warnings_of(without, "j") if "always answers" in line]
    assert lines[0] == "instructions: j always answers 5, which says nothing about the models"
    lines = warnings_of(compare(kinds, ["a"], scores, ASPECTS, "j"), "j")
    assert any(line.startswith("instructions: j cannot tell the true ending from that of another") for line in lines)
    assert not any("always answers" in line and "instructions" in line for line in lines)
    kind_of = {story: kind for kind in kinds for story in kinds[kind]}
    seen = {story: dict(instructions=9 if kind_of[story] == TRUE else 2) for story in kind_of}
    findings = compare(kinds, ["a"], seen, ASPECTS, "j")
    assert judge_sees(findings, "j", "instructions") == "seen" and "instructions" not in str(warnings_of(findings, "j"))


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
    assert means["a", "plot"].normalized == 0 and means["c", "plot"].normalized == 1
    assert means["b", "plot"].normalized == pytest.approx(
        (means["b", "plot"].value - means["a", "plot"].value) / (means["c", "plot"].value - means["a", "plot"].value)
    )
    lines = warn_of_close_calls(findings, "j")
    assert len(lines) == 5 and lines[0].startswith("grammar: too close to call with 40 prompts, which resolve about 0.")
    assert all(line.endswith(": b - c") for line in lines)
    assert "WARNING j is unvalidated; run grade.py with --controls" in report(findings, ["a"], dict(j="240 of 240"))


def test_of_many_differences_that_do_not_exist_none_is_shown():
    """4 equal models, 5 scores, 12 experiments: by their own intervals, some of 30 differences seem real in most."""
    alone = together = 0
    for seed in range(12):
        rng, names = np.random.default_rng(seed), "abcd"
        sources = {name: [Story(f"p{i}", name) for i in range(12)] for name in names}
        scores = {story: dict(zip(ASPECTS, rng.normal(6, 1, 6))) for name in names for story in sources[name]}
        findings = compare(sources, list(names), scores, (*SCORES, "age"), "j")
        alone += any(f.low > 0 or f.high < 0 for f in find(findings, "difference", "j").values())
        together += bool(shown_differences(findings, "j"))
    assert alone >= 6 and together <= 2  # expected: 8 and 1


def test_differences_are_marked_when_corrected(tmp_path):
    """One that its own interval shows and the correction does not; and what the file keeps is enough to tell."""
    findings = [Finding("difference", "j", f"a - {i}", "plot", 1.0, 0.1, 1.9, 20) for i in range(9)]
    assert shown_differences(findings[:1], "j") == {("a - 0", "plot")} and shown_differences(findings, "j") == set()
    findings += [Finding("difference", "j", "a - z", "plot", 3.0, 2.1, 3.9, 20)]
    findings += [Finding("difference", "j", "a - y", "plot", 3.0, prompts=1)]  # no interval, no test
    compare_models.write_csv(tmp_path / "grades.csv", findings)
    assert shown_differences(compare_models.read_csv(tmp_path / "grades.csv"), "j") == {("a - z", "plot")}
    text = report(findings, [], dict(j="all"))
    assert "by Holm's correction for all 10)" in text and "a - 0  1.00 ±0.90?" in text and "3.00 ±0.90\n" in text
    assert "plot: too close to call with 20 prompts, which resolve about 1.36: a - 0; " in text


@pytest.mark.parametrize("n, shown", [(5, False), (6, True)])
def test_the_same_difference_on_every_prompt_is_judged_as_coins_are(n, shown):
    findings = [Finding("difference", "j", "a - b", "plot", 1.0, 1.0, 1.0, n)]
    assert bool(shown_differences(findings, "j")) == shown


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
    assert line.startswith("not compared (no prompts in common, or graded by separate calls") and line.endswith("a - b")


def test_one_that_may_see_is_told_how_many_prompts_would_do():
    spots = [Finding("paired_wins", "j", SHUFFLED, "consistency", 0.7, 0.45, 0.9, prompts=12)]
    spots += [Finding("paired_wins", "j", OTHER, "consistency", 0.9, 0.8, 1, prompts=12)]
    (line,) = warn_of_blindness(spots, "j")
    assert "j has too few prompts to show that it can tell the true ending from" in line
    assert line.endswith("about 38 would be enough, if it sees this well")
    spots[0] = Finding("paired_wins", "j", SHUFFLED, "consistency", 0.51, 0.3, 0.7, prompts=12)
    assert "so few" not in warn_of_blindness(spots, "j")[0]


def test_one_prompt_has_no_interval():
    sources, scores = models(1, a=5)
    (finding, *_) = compare(sources, ["a"], scores, ASPECTS, "j")
    assert finding.prompts == 1 and math.isnan(finding.low) and math.isnan(finding.normalized)
    assert "–" in report([finding], ["nobody"], dict(j="1 of 1"))


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
    assert "kind, same        –" in report(findings, [], {})


def test_files(tmp_path, kinds):
    for names in (["one"], ["a", "b"], [f"a run with a rather long name, number {i}" for i in range(8)]):
        sources, scores = models(12, **dict.fromkeys(names, 5.0))
        findings = compare(sources | kinds, names, scores, ASPECTS, "j") + [Finding("mean", "", names[0], "loss", 1.5)]
        for judges in (["j"], ["j", "k"], []):
            scores_plot.plot(tmp_path / "grades.png", findings, names, judges)
            assert imread(tmp_path / "grades.png").shape[1] > 250
    compare_models.write_csv(tmp_path / "grades.csv", findings)
    with (tmp_path / "grades.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(findings)
    ours = compare_models.read_csv(tmp_path / "grades.csv")
    (tmp_path / "old.csv").write_text((tmp_path / "grades.csv").read_text().replace("normalized", "normalised"))
    assert str(compare_models.read_csv(tmp_path / "old.csv")) == str(ours)  # as earlier versions spelled it
    assert rows[-1] == dict.fromkeys(rows[0], "") | dict(
        kind="mean", subject=names[0], figure="loss", value="1.5", prompts="0"
    )


def test_intervals_that_end_where_the_scale_does_are_printed_by_their_ends():
    assert scores_table.cell(Finding("paired_wins", "j", SHUFFLED, "plot", 1.0, 0.93, 1.0, 40)) == "1.00 [0.93, 1.00]"
    assert scores_table.cell(Finding("paired_wins", "j", SHUFFLED, "plot", 0.8, 0.7, 0.88, 40)) == "0.80 ±0.09"


def test_equal_differences_are_not_shown_by_their_rounding():
    difference = Finding("difference", "j", "a - b", "plot", 4.0, 4.0 - 1e-15, 4.0, prompts=3)
    assert compare_models.p_value(difference) == 0.25
