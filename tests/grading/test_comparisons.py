"""comparisons.py: judges that are perfect, prefer the worse, or see nothing, and what is concluded
of each."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from grade_fixtures import true_endings

from nanostories.grading import pictures
from nanostories.grading.comparisons import BLIND, FEWEST_PROMPTS, TOO_FEW, UNTESTED, Comparison
from nanostories.grading.controls import make_controls
from nanostories.grading.groups import group_runs
from nanostories.grading.scores import CHAT, CUT, SHUFFLED, SPOILED, TRUE_ENDING
from nanostories.grading.stories import Story
from nanostories.statistics import estimate, holm

SCORES = tuple(name for name in CHAT if name != "instructions")
STORIES = [Story(f"p{i}", "x") for i in range(20)]


def run(name: str, stories=STORIES) -> SimpleNamespace:
    """As much of a stories.Run as is compared."""
    return SimpleNamespace(
        name=name,
        stories=stories,
        rows=[{"reference": None} for _ in stories],
        prompts=list(dict.fromkeys(story.prompt for story in stories)),
        is_uncut=True,
        corpus=None,
        model=None,
    )


def group_of(*runs, controls=None):
    (group,) = group_runs(runs)
    group.controls = controls or make_controls([])
    return group


def compare(judge: str, group, scores: dict) -> Comparison:
    """scores: {source: story -> {score: value}}"""
    sources = group.sources() | group.controls
    grades = {name: [score(story) for story in sources[name]] for name, score in scores.items()}
    return Comparison(judge, group, grades)


@pytest.fixture(scope="module")
def kinds() -> dict[str, list[Story]]:
    return make_controls(true_endings(50))


def of_controls(kinds: dict, score) -> Comparison:
    """Of a judge that gives score(kind, story) to everything."""
    group = group_of(run("m", kinds[TRUE_ENDING]), controls=kinds)
    scores = {"m": lambda story: dict.fromkeys(SCORES, 5)}
    for kind in kinds:
        scores[kind] = lambda story, kind=kind: dict.fromkeys(SCORES, score(kind, story))
    return compare("j", group, scores)


def wins_of(comparison: Comparison, score: str, control: str) -> tuple[float, int]:
    """Paired wins, and of how many prompts."""
    rows = {(row["score"], row["control"]): row for row in comparison.tests}
    row = rows[score, control]
    return row["paired wins"][0], row["prompts"]


def failed(comparison: Comparison) -> set[tuple[str, str]]:
    return {(row["score"], row["control"]) for row in comparison.tests if row["passes"] == "no"}


def test_a_perfect_judge(kinds):
    def perfect(kind, story):
        return 10 if kind == TRUE_ENDING else 3 + len(story.prompt) % 3

    found = of_controls(kinds, perfect)
    assert len(found.tests) == 15 and found.warnings() == []
    for row in found.tests:
        win, low, high = row["paired wins"]
        assert win == high == 1 and 0.9 < low < 1
    untested = {name for name in SCORES if found.doubt(name) == UNTESTED}
    assert untested == {"creativity", "age"} and found.doubt("plot") == ""


def test_one_that_prefers_what_is_spoiled_is_blind(kinds):
    odd = of_controls(kinds, lambda kind, story: 5 if kind == TRUE_ENDING else 6)
    assert len(failed(odd)) == 6 and odd.doubt("consistency") == BLIND


@pytest.mark.parametrize("n, few", [(FEWEST_PROMPTS - 1, True), (FEWEST_PROMPTS, False)])
def test_few_prompts_do_not_show_a_judge_to_be_blind(n, few):
    kinds = make_controls(true_endings(n))
    dull = of_controls(kinds, lambda kind, story: 5)
    assert wins_of(dull, "consistency", SHUFFLED) == (0.5, n)  # of nothing but ties
    assert any("too few to test this score" in line for line in dull.warnings()) == few
    assert dull.doubt("consistency") == (TOO_FEW if few else BLIND)
    sees = of_controls(kinds, lambda kind, story: 10 if kind == TRUE_ENDING else 3)
    assert not failed(sees)


def test_one_test_with_enough_prompts_shows_a_judge_to_be_blind():
    kinds = make_controls(true_endings(FEWEST_PROMPTS))
    kinds[SHUFFLED] = kinds[SHUFFLED][:5]
    assert of_controls(kinds, lambda kind, story: 5).doubt("consistency") == BLIND


def test_wins_are_counted_within_each_prompt():
    """One point above its own spoiled ending, always, though prompts differ by more: all against
    all gives 0.53."""
    kinds = {kind: [Story(f"p{i}", kind) for i in range(30)] for kind in (TRUE_ENDING, SHUFFLED)}
    found = of_controls(kinds, lambda kind, x: (int(x.prompt[1:]) + (kind == TRUE_ENDING)) / 3)
    assert wins_of(found, "plot", SHUFFLED) == (1, 30)


# ---- Models beside each other ----
def models(n_prompts: int, **levels: float):
    """(runs, scores) of two completions of every prompt by each model, whose scores are its level
    and the prompt's."""
    rng = np.random.default_rng(0)
    ease = rng.normal(0, 0.8, n_prompts)
    runs, scores = [], {}
    for name, level in levels.items():
        stories = [Story(f"p{i}", f"{name} {j}") for i in range(n_prompts) for j in (0, 1)]
        runs.append(run(name, stories))

        def score(story, level=level):
            return {"grammar": level + ease[int(story.prompt[1:])] + rng.normal(0, 0.2)}

        scores[name] = score
    return runs, scores


def clear(comparison: Comparison) -> set[str]:
    return {row["run"] for row in comparison.differences if row["clear"] == "yes"}


def test_models_are_compared_on_the_same_prompts():
    runs, scores = models(40, a=5, b=5.4, c=5.42)
    found = compare("j", group_of(*runs), scores)
    table = {row["run"]: row["grammar"] for row in found.score_table().rows}
    assert table["a"][2] > table["b"][1]  # prompts differ more than models
    rows = {row["run"]: row["difference"] for row in found.differences}
    assert rows["a minus b"][0] == pytest.approx(table["a"][0] - table["b"][0])
    assert clear(found) == {"a minus b", "a minus c"}
    p = []  # of each by itself; together, they are corrected
    for ours, theirs in itertools.combinations(found.scores["grammar"].values(), 2):
        p.append(estimate(ours - theirs).p)
    assert [row["p (Holm)"] for row in found.differences] == pytest.approx(holm(np.array(p)))


def test_only_what_all_runs_continue_is_compared():
    runs, scores = models(12, a=5, b=6)
    group, other = group_runs([*runs, run("c", STORIES[3:9]), run("d", [Story("q", "x")])])
    assert [each.name for each in other.runs] == ["d"]
    assert group.prompts == [f"p{i}" for i in range(3, 9)]
    assert {name: len(own) for name, own in group.sources().items()} == dict(a=12, b=12, c=6)
    (warning,) = Comparison("", group, dict.fromkeys("abc", [])).warnings()
    assert "more of a, b" in warning


def test_every_group_shares_prompts():
    """Also where a run shares half of its prompts with each of two that have none in common."""
    whole = run("a", STORIES[:10])
    halves = [run("b", STORIES[:5]), run("c", STORIES[5:10])]
    names = [[each.name for each in group.runs] for group in group_runs([whole, *halves])]
    assert names == [["a", "b"], ["c"]]


def test_runs_that_were_sampled_otherwise_are_not_compared():
    """In any setting; one warning says which."""
    runs, scores = models(12, a=5, b=6, c=7)
    for each, top_k in zip(runs, (None, 5, 5)):
        each.rows[0]["top_k"] = top_k
    group = group_of(*runs)
    assert {row["run"] for row in compare("j", group, scores).differences} == {"b minus c"}
    (warning,) = compare("", group, scores).warnings()
    assert "sampled with different top_k;" in warning


def test_a_grading_that_failed_leaves_its_prompt_out():
    runs, scores = models(12, a=5, b=6)
    found = compare("j", group_of(*runs), scores)
    found.grades["b"][3] = None  # of the second completion after p1
    assert np.flatnonzero(np.isnan(found.scores["grammar"]["b"])).tolist() == [1]
    (row,) = found.differences
    means = [np.delete(values, 1).mean() for values in found.scores["grammar"].values()]
    assert row["difference"][0] == pytest.approx(means[0] - means[1])
    assert "j: 1 gradings failed" in found.warnings()[0]


@pytest.mark.parametrize("change, cut_off", [(0, 3), (-1, 3), (1, 3), (1, 7)])
def test_a_run_beside_true_endings(change, cut_off):
    """With a warning if a judge that can tell them apart prefers it."""
    controls = dict.fromkeys(SPOILED, []) | {TRUE_ENDING: STORIES, CUT: STORIES}
    scores = {
        "a": lambda story: {"grammar": 7 + change + (-1) ** int(story.prompt[1:]) / 2},
        TRUE_ENDING: lambda story: {"grammar": 7},
        CUT: lambda story: {"grammar": cut_off},
    }
    found = compare("j", group_of(run("a"), controls=controls), scores)
    assert clear(found) == ({f"a minus {TRUE_ENDING}"} if change else set())
    is_above = any("above true endings" in line for line in found.warnings())
    assert is_above == (change > 0 and cut_off < 7)


def test_intervals_end_where_the_scale_does():
    stories = [Story(f"p{i}", "x") for i in range(50)]
    group = group_of(run("a", stories))
    scores = {"a": lambda story: {"grammar": 6.0 if story.prompt == "p0" else 10}}
    found = compare("j", group, scores)
    value, low, high = found.score_table().rows[0]["grammar"]
    assert low < value < high == 10
    found = compare("", group, {"a": lambda story: {"ended": 1.0}})
    value, low, high = found.score_table().rows[0]["ended"]
    assert value == high == 1 and 0.9 < low < 0.95  # 50 of 50 are not certain


def test_pictures():
    runs, scores = models(12, a=5, b=6)
    group = group_of(*runs)
    figure = pictures.scores_figure([compare(judge, group, scores) for judge in ("", "j", "lm:k")])
    figure.canvas.draw()  # lays it out
    panels = [axes for axes in figure.axes if axes.axison]
    assert [axes.get_title().split()[0] for axes in panels] == ["grammar"] * 2
