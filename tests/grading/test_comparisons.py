"""comparisons.py: judges that are perfect, prefer the worse, or see nothing, and what is concluded
of each."""

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from grade_fixtures import true_endings

from nanostories.grading import pictures
from nanostories.grading.comparisons import BLIND, FEWEST_PROMPTS, TOO_FEW, UNTESTED, Comparison
from nanostories.grading.controls import make_controls
from nanostories.grading.groups import group_runs
from nanostories.grading.scores import CHAT, CUT, SHUFFLED, SPOILED, TRUE_ENDING
from nanostories.grading.stories import Run, Story
from nanostories.statistics import estimate, holm

SCORES = tuple(name for name in CHAT if name != "instructions")
STORIES = [Story(f"p{i}", "x") for i in range(20)]


def run(name: str, stories=STORIES, **facts) -> Run:
    rows = []
    for story in stories:
        row = {"prompt": story.prompt, "completion": story.completion}
        rows.append(row | {"reference": story.reference} | facts)
    return Run(name, Path(f"nowhere/{name}/samples/eval.jsonl"), rows)


def group_of(*runs, controls=None):
    (group,) = group_runs(runs)
    group.controls |= controls or {}
    return group


def of_controls(kinds: dict[str, list[Story]], score) -> Comparison:
    """Of a judge that gives score(kind, story) to everything."""
    grades = {}
    for kind, stories in kinds.items():
        grades[kind] = [dict.fromkeys(SCORES, score(kind, story)) for story in stories]
    return Comparison("j", group_of(run("m", kinds[TRUE_ENDING]), controls=kinds), grades)


def wins_of(comparison: Comparison) -> dict[tuple[str, str], tuple[float, int]]:
    """{(score, control): (paired wins, of how many prompts)}"""
    found = {}
    for row in comparison.tests:
        found[row["score"], row["control"]] = (row["paired wins"][0], row["prompts"])
    return found


def passed(comparison: Comparison) -> list[str]:
    """The outcomes of the tests that count."""
    return [row["passes"] for row in comparison.tests if row["passes"] != "not tested"]


def test_a_perfect_judge_and_one_that_prefers_what_is_spoiled():
    kinds = make_controls(true_endings(50))
    sees = of_controls(kinds, lambda kind, x: 10 if kind == TRUE_ENDING else len(x.prompt) % 9)
    assert len(sees.tests) == 15 and passed(sees) == ["yes"] * 6 and sees.warnings() == []
    for row in sees.tests:
        win, low, high = row["paired wins"]
        assert win == high == 1 and 0.9 < low < 1
    doubts = {name: sees.doubt(name) for name in SCORES if sees.doubt(name)}
    assert doubts == dict(creativity=UNTESTED, age=UNTESTED)
    odd = of_controls(kinds, lambda kind, story: 5 if kind == TRUE_ENDING else 6)
    assert passed(odd) == ["no"] * 6 and odd.doubt("consistency") == BLIND


@pytest.mark.parametrize("n, doubt", [(FEWEST_PROMPTS - 1, TOO_FEW), (FEWEST_PROMPTS, BLIND)])
def test_few_prompts_do_not_show_a_judge_to_be_blind(n, doubt):
    kinds = make_controls(true_endings(n))
    dull = of_controls(kinds, lambda kind, story: 5)
    assert wins_of(dull)["consistency", SHUFFLED] == (0.5, n)  # of nothing but ties
    assert dull.doubt("consistency") == doubt
    assert ("any judge may seem so" in "".join(dull.warnings())) == (doubt == TOO_FEW)
    sees = of_controls(kinds, lambda kind, story: 10 if kind == TRUE_ENDING else 3)
    assert set(passed(sees)) == {"yes"}
    kinds[SHUFFLED] = kinds[SHUFFLED][:5]  # the other test is enough
    assert of_controls(kinds, lambda kind, story: 5).doubt("consistency") == doubt


def test_wins_are_counted_within_each_prompt():
    """One point above its own spoiled ending, always, though prompts differ by more: all against
    all gives 0.53."""
    kinds = {kind: [Story(f"p{i}", kind) for i in range(30)] for kind in (TRUE_ENDING, SHUFFLED)}
    found = of_controls(kinds, lambda kind, x: (int(x.prompt[1:]) + (kind == TRUE_ENDING)) / 3)
    assert wins_of(found)["plot", SHUFFLED] == (1, 30)


# ---- Models beside each other ----
def graded_models(n_prompts: int, **levels: float) -> Comparison:
    """Of two completions of every prompt by each model, whose scores are its level and the
    prompt's."""
    rng = np.random.default_rng(0)
    ease = np.repeat(rng.normal(0, 0.8, n_prompts), 2)
    runs = []
    grades = {}
    for name, level in levels.items():
        runs.append(run(name, [Story(f"p{i // 2}", f"{name} {i}") for i in range(2 * n_prompts)]))
        scores = level + ease + rng.normal(0, 0.2, len(ease))
        grades[name] = [{"grammar": score} for score in scores]
    return Comparison("j", group_of(*runs), grades)


def clear(comparison: Comparison) -> set[str]:
    return {row["run"] for row in comparison.differences if row["clear"] == "yes"}


def test_models_are_compared_on_the_same_prompts():
    found = graded_models(40, a=5, b=5.4, c=5.42)
    table = {row["run"]: row["grammar"] for row in found.score_table().rows}
    assert table["a"][2] > table["b"][1]  # prompts differ more than models
    rows = {row["run"]: row["difference"] for row in found.differences}
    assert rows["a minus b"][0] == pytest.approx(table["a"][0] - table["b"][0])
    assert clear(found) == {"a minus b", "a minus c"}
    pairs = itertools.combinations(found.scores["grammar"].values(), 2)
    p = np.array([estimate(ours - theirs).p for ours, theirs in pairs])  # each by itself
    assert [row["p (Holm)"] for row in found.differences] == pytest.approx(holm(p))


def test_only_what_all_runs_continue_is_compared():
    runs = [run("a"), run("b", STORIES[:12] * 2), run("c", STORIES[3:9])]
    group, other = group_runs([*runs, run("d", [Story("q", "x")])])
    assert [each.name for each in other.runs] == ["d"]
    assert group.prompts == [f"p{i}" for i in range(3, 9)]
    assert {name: len(own) for name, own in group.sources().items()} == dict(a=6, b=12, c=6)
    (warning,) = Comparison("", group, {}).warnings()
    assert "not used: more prompts of a, b" in warning


def test_prompts_of_one_true_story_count_once():
    """As sample.py --ask writes: other instructions for one story have equal true endings."""
    grades = [{"words": i} for i in range(len(STORIES))]
    stories = []
    for header in ("Words: hide", "Words: fox"):
        for i, story in enumerate(STORIES):
            stories.append(replace(story, instruction=header, reference=f"ending {i}"))
    twice = Comparison("", group_of(run("a", stories)), {"a": grades * 2}).score_table().rows[0]
    once = Comparison("", group_of(run("a")), {"a": grades}).score_table().rows[0]
    assert twice["words"] == once["words"] and twice["stories"] == 2 * once["stories"]


def test_one_cut_run_does_not_cut_true_endings():
    """Nor the controls of the others; if all are cut, to the longest completion."""
    whole = run("a", finished=True, reference="One two three.")
    cut = run("b", finished=False, reference="One two three.")
    both = group_of(whole, cut)
    assert "b: a limit" in Comparison("", both, {}).warnings()[0]
    for group, ending in ((both, "One two three."), (group_of(cut), "One")):
        assert {story.completion for story in group.true_endings()} == {ending}


def test_every_group_shares_prompts():
    """Also where a run shares half of its prompts with each of two that have none in common."""
    whole = run("a", STORIES[:10])
    first, second = group_runs([whole, run("b", STORIES[:5]), run("c", STORIES[5:10])])
    assert (len(first.runs), len(second.runs)) == (2, 1)


@pytest.mark.parametrize(
    "facts, same",
    [
        ({"top_k": 5}, False),
        ({"max_new_tokens": 200, "finished": False}, False),
        ({"max_new_tokens": 200, "finished": True}, True),  # a limit that cut no story
    ],
)
def test_runs_that_were_sampled_otherwise_are_not_compared(facts, same):
    """In any setting; one warning says which."""
    group = group_of(run("a", finished=True), run("b", **facts), run("c", **facts))
    grades = dict.fromkeys("abc", [{"grammar": 5}] * len(STORIES))
    pairs = {row["run"] for row in Comparison("j", group, grades).differences}
    assert "b minus c" in pairs and ("a minus b" in pairs) == same
    assert bool(Comparison("", group, grades).warnings()) == (not same)


def test_a_grading_that_failed_leaves_its_prompt_out():
    found = graded_models(12, a=5, b=6)
    found.grades["b"][3] = None  # of the second completion after p1
    assert np.flatnonzero(np.isnan(found.scores["grammar"]["b"])).tolist() == [1]
    (row,) = found.differences
    a, b = (np.delete(values, 1) for values in found.scores["grammar"].values())
    assert row["difference"][0] == pytest.approx((a - b).mean())
    assert "j: 1 gradings failed" in found.warnings()[0]


@pytest.mark.parametrize("change", [0, -1, 1])
def test_a_run_beside_true_endings(change):
    controls = dict.fromkeys(SPOILED, []) | {TRUE_ENDING: STORIES, CUT: STORIES}
    grades = {
        "a": [{"grammar": 7 + change + x} for x in (-0.5, 0.5)] * 10,
        TRUE_ENDING: [{"grammar": 7}] * 20,
        CUT: [{"grammar": 3}] * 20,
    }
    found = Comparison("j", group_of(run("a"), controls=controls), grades)
    assert clear(found) == ({f"a minus {TRUE_ENDING}"} if change else set())
    assert not found.warnings()


def test_intervals_end_where_the_scale_does():
    group = group_of(run("a", [Story(f"p{i}", "x") for i in range(50)]))
    found = Comparison("j", group, {"a": [{"grammar": 6}] + [{"grammar": 10}] * 49})
    value, low, high = found.score_table().rows[0]["grammar"]
    assert low < value < high == 10
    found = Comparison("", group, {"a": [{"ended": 1}] * 50})
    value, low, high = found.score_table().rows[0]["ended"]
    assert value == high == 1 and 0.9 < low < 0.95  # 50 of 50 are not certain


def test_pictures():
    j = graded_models(12, a=5, b=6)
    judges = [replace(j, judge=judge) for judge in ("", "j", "lm:k")]
    figure = pictures.scores_figure(judges)
    figure.canvas.draw()  # lays it out
    assert [axes.axison for axes in figure.axes] == [True] * 2  # not of the metrics
