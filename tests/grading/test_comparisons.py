"""comparisons.py: judges that are perfect, a coin, or count words, and what is concluded of
each."""

from types import SimpleNamespace

import numpy as np
import pytest
from grade_fixtures import true_endings

from nanostories.grading import pictures
from nanostories.grading.comparisons import BLIND, FEWEST_PROMPTS, TOO_FEW, UNTESTED, Comparison
from nanostories.grading.controls import make_controls
from nanostories.grading.groups import group_runs
from nanostories.grading.scores import CHAT, CUT, SHUFFLED, SPOILED, TRUE_ENDING
from nanostories.grading.stories import SAMPLING, Story
from nanostories.text import words_of

SCORES = tuple(name for name in CHAT if name != "instructions")
STORIES = [Story(f"p{i}", "x") for i in range(20)]


def run(name: str, stories=STORIES, **sampling) -> SimpleNamespace:
    """As much of a stories.Run as is compared."""
    return SimpleNamespace(
        name=name,
        stories=stories,
        rows=[{"reference": None} for _ in stories],
        prompts=list(dict.fromkeys(story.prompt for story in stories)),
        sampling=dict.fromkeys(SAMPLING) | sampling,
        is_uncut=True,
        corpus=None,
        model=None,
    )


def group_of(*runs, controls=None):
    (group,) = group_runs(runs)
    group.controls = controls or make_controls([])
    return group


def compare(judge: str, group, scores: dict, own=()) -> Comparison:
    """scores: {source: story -> {score: value}}"""
    sources = group.sources() | group.controls
    grades = {name: [score(story) for story in sources[name]] for name, score in scores.items()}
    return Comparison(judge, group, grades, own)


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


def failed(comparison: Comparison) -> set[tuple[str, str]]:
    return {(name, x) for name in comparison.scores for x in comparison.failed_controls(name)}


def test_a_perfect_judge(kinds):
    def perfect(kind, story):
        return 10 if kind == TRUE_ENDING else 3 + len(story.prompt) % 3

    found = of_controls(kinds, perfect)
    assert len(found.wins) == 15
    assert all(win.value == win.high == 1 and 0.9 < win.low < 1 for win, _ in found.wins.values())
    assert not failed(found) and found.warnings() == []
    doubts = {name: found.doubt(name) for name in SCORES}
    untested = {"creativity": UNTESTED, "age": UNTESTED}
    assert doubts == dict.fromkeys(SCORES, "") | untested


def test_a_coin_and_one_that_prefers_what_is_spoiled_are_blind(kinds):
    rng = np.random.default_rng(0)
    coin = of_controls(kinds, lambda kind, story: rng.integers(11))
    assert len(failed(coin)) >= 5  # of 6: one in forty coins is taken for a judge
    assert coin.doubt("consistency") == BLIND
    assert any(line.startswith("consistency: j cannot tell") for line in coin.warnings())
    odd = of_controls(kinds, lambda kind, story: 5 if kind == TRUE_ENDING else 6)
    assert len(failed(odd)) == 6


def test_one_that_only_counts_words(kinds):
    found = of_controls(kinds, lambda kind, story: len(words_of(story.completion)) / 20)
    shuffled, _ = found.wins["consistency", SHUFFLED]
    assert shuffled.value == 0.5 and 0.45 < shuffled.low < 0.5 < shuffled.high < 0.55
    # fewer words: it only seems to see that the end is missing
    assert found.failed_controls("grammar") == []
    assert found.failed_controls("plot") and CUT not in found.failed_controls("plot")


@pytest.mark.parametrize("n, few", [(FEWEST_PROMPTS - 1, True), (FEWEST_PROMPTS, False)])
def test_few_prompts_do_not_show_a_judge_to_be_blind(n, few):
    kinds = make_controls(true_endings(n))
    dull = of_controls(kinds, lambda kind, story: 5)
    assert any("any judge may seem so" in line for line in dull.warnings()) == few
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
    win, n_prompts = found.wins["plot", SHUFFLED]
    assert win.value == 1 and n_prompts == 30


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


def test_only_what_all_runs_continue_is_compared():
    runs, scores = models(12, a=5, b=6)
    shorter = run("c", STORIES[3:9])
    other = run("d", [Story(f"q{i}", "x") for i in range(5)])
    groups = group_runs([*runs, shorter, other])
    assert [[each.name for each in group.runs] for group in groups] == [["a", "b", "c"], ["d"]]
    assert groups[0].prompts == [f"p{i}" for i in range(3, 9)]
    assert {name: len(own) for name, own in groups[0].sources().items()} == dict(a=12, b=12, c=6)


def test_every_group_shares_prompts():
    """Also where a run shares half of its prompts with each of two that have none in common."""
    whole = run("a", STORIES[:10])
    halves = [run("b", STORIES[:5]), run("c", STORIES[5:10])]
    names = [[each.name for each in group.runs] for group in group_runs([whole, *halves])]
    assert names == [["a", "b"], ["c"]]
    assert all(group.prompts for group in group_runs([whole, *halves]))


def test_runs_that_were_sampled_otherwise_are_not_compared():
    """In any setting; one warning says which."""
    runs, scores = models(12, a=5, b=6, c=7)
    for each, top_k in zip(runs, (None, 5, 5)):
        each.sampling["top_k"] = top_k
    group = group_of(*runs)
    assert {row["run"] for row in compare("j", group, scores).differences} == {"b minus c"}
    (warning,) = compare("", group, scores).warnings()
    assert "sampled with different top_k;" in warning


@pytest.mark.parametrize("limits, compared", [((300, 300), True), ((None, 300), False)])
def test_a_limit_that_cut_a_story_is_a_setting(limits, compared):
    """Equal limits are alike, also if only one run came upon them."""
    runs, scores = models(12, a=5, b=6)
    for each, limit in zip(runs, limits):
        each.sampling["max_new_tokens"] = limit
    assert compare("j", group_of(*runs), scores).differences
    runs[1].is_uncut = False
    assert bool(compare("j", group_of(*runs), scores).differences) == compared


def test_a_judge_is_no_contestant():
    runs, scores = models(12, a=5, b=6, c=7)
    found = compare("lm:c", group_of(*runs), scores, own=["c"])
    assert {row["run"] for row in found.differences} == {"a minus b"}
    assert set(found.score_table().notes) == {"grammar", "c"}
    del scores["b"]
    two = compare("lm:c", group_of(runs[0], runs[2]), scores, own=["c"])
    assert two.differences == []
    assert any("not compared with each other" in line for line in two.warnings())


def test_failed_gradings_are_counted_and_end_comparisons():
    runs, scores = models(12, a=5, b=6)
    found = compare("j", group_of(*runs), scores)
    found.grades["b"][3] = None
    rows = {row["run"]: (row["stories"], row["ungraded"]) for row in found.score_table().rows}
    assert rows == {"a": (24, 0), "b": (24, 1)}
    assert found.differences == [] and any(
        "graded more stories of some" in x for x in found.warnings()
    )
    found = compare("j", group_of(*runs), scores)
    found.grades["a"][0] = found.grades["b"][3] = None
    assert len(found.differences) == 1


def test_of_many_differences_that_do_not_exist_none_is_clear():
    """4 equal models, 5 scores, 12 experiments: by their own intervals, some of 30 differences seem
    real in most."""
    alone = together = 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        runs = [run(name, STORIES[:12]) for name in "abcd"]
        values = rng.normal(6, 1, (4, 12, 5)).tolist()
        grades = {}
        for name, own in zip("abcd", values):
            grades[name] = [dict(zip(SCORES, each)) for each in own]
        found = Comparison("j", group_of(*runs), grades)
        assert len(found.differences) == 30
        alone += any(low > 0 or high < 0 for _, low, high in map(difference, found.differences))
        together += bool(clear(found))
    assert alone >= 6 and together <= 2  # expected: 8 and 1


def difference(row: dict) -> list[float]:
    return row["difference"]


@pytest.mark.parametrize("change, is_clear", [(0.0, False), (-1.0, True), (1.0, True)])
def test_a_run_beside_true_endings(change, is_clear):
    """With a warning if a judge that can tell them apart prefers it."""
    controls = dict.fromkeys(SPOILED, []) | {TRUE_ENDING: STORIES, CUT: STORIES}
    group = group_of(run("a"), controls=controls)
    for cut_off, can_tell in ((3.0, True), (7.0, False)):
        scores = {
            "a": lambda story: {"grammar": 7 + change + (-1) ** int(story.prompt[1:]) / 2},
            TRUE_ENDING: lambda story: {"grammar": 7.0},
            CUT: lambda story, x=cut_off: {"grammar": x},
        }
        found = compare("j", group, scores)
        assert clear(found) == ({f"a minus {TRUE_ENDING}"} if is_clear else set())
        above = [line for line in found.warnings() if "above true endings" in line]
        assert bool(above) == (change > 0 and can_tell)


def test_intervals_end_where_the_scale_does():
    stories = [Story(f"p{i}", "x") for i in range(50)]
    group = group_of(run("a", stories))
    found = compare(
        "j", group, {"a": lambda story: {"grammar": 6.0 if story.prompt == "p0" else 10}}
    )
    value, low, high = found.score_table().rows[0]["grammar"]
    assert low < value < high == 10
    found = compare("", group, {"a": lambda story: {"ended": 1.0}})
    value, low, high = found.score_table().rows[0]["ended"]
    assert value == high == 1 and 0.9 < low < 0.95  # 50 of 50 are not certain
    one = compare("j", group_of(run("a", stories[:1])), {"a": lambda story: {"plot": 5.0}})
    assert np.isnan(one.score_table().rows[0]["plot"][1])


def test_pictures():
    runs, scores = models(12, a=5, b=6)
    group = group_of(*runs)
    comparisons = [compare(judge, group, scores) for judge in ("", "j", "lm:k")]
    for some, n_rows in ((comparisons, 2), (comparisons[:1], 1)):
        figure = pictures.scores_figure(some)
        figure.canvas.draw()  # lays it out
        panels = [axes for axes in figure.axes if axes.axison]
        assert [axes.get_title().split()[0] for axes in panels] == ["grammar"] * n_rows
        assert [len(axes.collections) for axes in panels] == [2] * n_rows


def test_prompts_that_not_all_runs_have_are_counted():
    group = group_of(run("few", STORIES[:2]), run("many"))
    (warning,) = compare("", group, {"few": lambda story: {}, "many": lambda story: {}}).warnings()
    assert "more of many" in warning
