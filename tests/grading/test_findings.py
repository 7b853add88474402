"""findings.py: judges that are perfect, a coin, or count words, and what the report says of
each."""

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
from grade_fixtures import true_endings

from nanostories.grading import pictures
from nanostories.grading.controls import make_controls
from nanostories.grading.findings import (
    Finding,
    checks_of,
    compare,
    find,
    judge_sees,
    report,
    shown_differences,
    summary,
    warnings_of,
)
from nanostories.grading.metrics import words_of
from nanostories.grading.scores import CHAT, CUT, SHUFFLED, TRUE_ENDING
from nanostories.grading.stories import Row, Story

SCORES = tuple(name for name in CHAT if name != "instructions")


def run(name: str, stories: list[Story], temperature: float | None = None) -> SimpleNamespace:
    """As much of a stories.Run as is compared."""
    beginnings = {story.beginning for story in stories}
    return SimpleNamespace(
        name=name, beginnings=beginnings, model=name, rows=[dict(temperature=temperature)]
    )


@pytest.fixture(scope="module")
def kinds() -> dict[str, list[Story]]:
    return make_controls(true_endings(50))


def of_controls(kinds: dict, judge: str, score) -> list[Finding]:
    """Of a judge who gives score(kind, story) to everything."""
    rows = [
        Row(judge, kind, story, name, score(kind, story))
        for kind in kinds
        for story in kinds[kind]
        for name in SCORES
    ]
    return compare(rows, [run("m", kinds[TRUE_ENDING])])


def blind(found: list[Finding], judge: str) -> set[tuple[str, str]]:
    return {(f.subject, f.figure) for f in checks_of(found, judge) if not f.low > 0.5}


def test_a_perfect_judge(kinds):
    found = of_controls(
        kinds,
        "perfect",
        lambda kind, story: 10 if kind == TRUE_ENDING else 3 + len(story.prompt) % 3,
    )
    wins = find(found, "paired_wins", "perfect")
    assert len(wins) == 15 and all(
        f.value == f.high == 1 and 0.9 < f.low < 1 for f in wins.values()
    )
    assert not blind(found, "perfect") and warnings_of(found, "perfect") == []
    assert {name: judge_sees(found, "perfect", name) for name in SCORES} == {
        "grammar": "seen",
        "creativity": "untested",
        "consistency": "seen",
        "plot": "seen",
        "age": "untested",
    }
    assert judge_sees(found, "", "bpb") == "seen"


def test_a_coin_and_one_that_prefers_what_is_spoiled_are_blind(kinds):
    rng = np.random.default_rng(0)
    found = of_controls(kinds, "coin", lambda kind, story: rng.integers(11))
    assert len(blind(found, "coin")) >= 5  # of 6: one in forty coins is taken for a judge
    assert any("consistency: coin cannot tell" in line for line in warnings_of(found, "coin"))
    assert (
        len(
            blind(
                of_controls(kinds, "odd", lambda kind, story: 5 if kind == TRUE_ENDING else 6),
                "odd",
            )
        )
        == 6
    )


def test_one_that_only_counts_words(kinds):
    found = of_controls(kinds, "counter", lambda kind, story: len(words_of(story.completion)) / 20)
    wins = find(found, "paired_wins", "counter")
    shuffled = wins[SHUFFLED, "consistency"]
    assert shuffled.value == 0.5 and 0.45 < shuffled.low < 0.5 < shuffled.high < 0.55
    assert (
        wins[CUT, "grammar"].low > 0.5
    )  # fewer words: it only seems to see that the end is missing
    lines = warnings_of(found, "counter")
    assert any(line.startswith("plot: ") and "only notices (cut off)" in line for line in lines)
    assert not any(line.startswith("grammar") for line in lines)


@pytest.mark.parametrize("n, few", [(11, True), (12, False)])
def test_few_prompts_do_not_show_a_judge_to_be_blind(n, few):
    kinds = make_controls(true_endings(n))
    lines = warnings_of(of_controls(kinds, "j", lambda kind, story: 5), "j")
    assert any("too few prompts" in line for line in lines) == few
    sees = of_controls(kinds, "j", lambda kind, story: 10 if kind == TRUE_ENDING else 3)
    assert not blind(sees, "j") and not any("too few" in line for line in warnings_of(sees, "j"))


def test_wins_are_counted_within_each_prompt():
    """One point above its own spoiled ending, always, though prompts differ by more: all against
    all gives 0.53."""
    kinds = {kind: [Story(f"p{i}", kind) for i in range(30)] for kind in (TRUE_ENDING, SHUFFLED)}
    found = of_controls(
        kinds, "j", lambda kind, story: int(story.prompt[1:]) / 3 + (kind == TRUE_ENDING) / 3
    )
    wins = find(found, "paired_wins", "j")[SHUFFLED, "plot"]
    assert wins.value == 1 and wins.prompts == 30


# Models beside each other


def models(n_prompts: int, **levels: float) -> tuple[list[Row], list]:
    """Two completions of every prompt by each model, whose scores are its level and the
    prompt's."""
    rng = np.random.default_rng(0)
    ease, rows, runs = rng.normal(0, 0.8, n_prompts), [], []
    for name, level in levels.items():
        stories = [Story(f"p{i}", f"{name} {j}") for i in range(n_prompts) for j in (0, 1)]
        runs.append(run(name, stories))
        for story in stories:
            score = level + ease[int(story.prompt[1:])] + rng.normal(0, 0.2)
            rows += [Row("j", name, story, figure, score) for figure in ("grammar", "plot")]
    return rows, runs


def test_models_are_compared_on_the_same_prompts():
    found = compare(*models(40, a=5, b=5.4, c=5.42))
    means, differences = find(found, "mean", "j"), find(found, "difference", "j")
    assert means["a", "grammar"].high > means["b", "grammar"].low  # prompts differ more than models
    difference = differences["a - b", "grammar"]
    assert difference.high < 0
    assert difference.value == pytest.approx(
        means["a", "grammar"].value - means["b", "grammar"].value
    )
    assert {pair for pair, _ in shown_differences(found, "j")} == {"a - b", "a - c"}


def test_other_temperatures_are_compared_within_a_model_alone():
    rows, runs = models(12, a=5, b=5.4, c=5.42)
    for each, model, temperature in zip(runs, "mmn", (0.3, 1.0, 1.0)):
        each.model, each.rows = model, [dict(temperature=temperature)]
    assert {pair for pair, _ in find(compare(rows, runs), "difference", "j")} == {"a - b", "b - c"}


def test_of_many_differences_that_do_not_exist_none_is_shown():
    """4 equal models, 5 scores, 12 experiments: by their own intervals, some of 30 differences seem
    real in most."""
    alone = together = 0
    for seed in range(12):
        rng, stories = np.random.default_rng(seed), [Story(f"p{i}", "x") for i in range(12)]
        rows = [
            Row("j", n, story, score, rng.normal(6, 1))
            for n in "abcd"
            for story in stories
            for score in SCORES
        ]
        found = compare(rows, [run(name, stories) for name in "abcd"])
        alone += any(f.low > 0 or f.high < 0 for f in find(found, "difference", "j").values())
        together += bool(shown_differences(found, "j"))
    assert alone >= 6 and together <= 2  # expected: 8 and 1


def test_differences_are_marked_when_corrected():
    """One that its own interval shows and the correction does not."""
    found = [Finding("difference", "j", f"a - {i}", "plot", 1.0, 0.1, 1.9, 20) for i in range(9)]
    found += [
        Finding("mean", "j", subject, "plot", 5.0, 4.0, 6.0, 20)
        for subject in ("a", f"{SHUFFLED} for a")
    ]
    assert (
        shown_differences(found[:1], "j") == {("a - 0", "plot")}
        and shown_differences(found, "j") == set()
    )
    found += [Finding("difference", "j", "a - z", "plot", 3.0, 2.1, 3.9, 20)]
    assert shown_differences(found, "j") == {("a - z", "plot")}
    text = report(found, dict(j="all"))
    assert (
        SHUFFLED not in text
        and "for all 10)" in text
        and "1.00 ±0.90? |" in text
        and " 3.00 ±0.90 |" in text
    )


@pytest.mark.parametrize(
    "change, place", [(0.0, "too close to call"), (-1.0, "lower"), (1.0, "higher")]
)
def test_a_run_is_compared_with_true_endings_by_judges_that_can_tell(change, place):
    stories = [Story(f"p{i}", "x") for i in range(20)]
    rows = [
        Row("j", "a", story, "grammar", 7 + change + (-1) ** i) for i, story in enumerate(stories)
    ]
    rows += [Row("j", "(true ending)", story, "grammar", 7.0) for story in stories]
    for of_control, said in (
        (3.0, f"a beside true endings: grammar {place}"),
        (7.0, "WARNING grammar: j cannot tell"),
    ):
        cut_off = [Row("j", "(cut off)", story, "grammar", of_control) for story in stories]
        text = summary(
            compare(rows + cut_off, [run("a", stories)]), dict(j=""), [run("a", stories)]
        )
        assert said in text and ("a beside" in text) == (of_control == 3.0)
        assert ("scores a above" in text) == ("grammar higher" in text)


@pytest.mark.parametrize("n, shown", [(5, False), (6, True)])
def test_the_same_difference_on_every_prompt_is_judged_as_coins_are(n, shown):
    assert (
        bool(
            shown_differences([Finding("difference", "j", "a - b", "plot", 1.0, 1.0, 1.0, n)], "j")
        )
        == shown
    )


def test_intervals_end_where_the_scale_does_and_a_share_of_all_is_not_certain():
    stories = [Story(f"p{i}", "x") for i in range(50)]
    rows = [Row("j", "a", story, "grammar", 10.0 - 4 * (i == 0)) for i, story in enumerate(stories)]
    rows += [Row("", "a", story, "ended", 1.0) for story in stories]
    grammar, ended = compare(rows, [run("a", stories)])
    assert grammar.low < grammar.value < grammar.high == 10
    assert ended.value == 1 and ended.high - ended.low == pytest.approx(
        0.0713, abs=1e-3
    )  # 1 / (1 + n / z²)


def test_one_prompt_and_a_figure_of_the_whole_have_no_interval():
    stories = [Story("p", "x")]
    rows = [Row("j", "a", stories[0], "plot", 5.0), Row("", "a", None, "bpb", 0.9)]
    plot, bpb = compare(rows, [run("a", stories)])
    assert plot.prompts == 1 and math.isnan(plot.low) and bpb.prompts == 0 and math.isnan(bpb.low)


# Runs of several corpora


def test_true_endings_stand_beside_the_runs_of_their_prompts():
    stories = [Story(f"p{i}", "x") for i in range(6)]
    runs = [run("a", stories[:4]), run("b", stories[:4]), run("c", stories[2:])]
    rows = [Row("j", TRUE_ENDING, story, "plot", i) for i, story in enumerate(stories)]
    rows += [
        Row("j", name, story, "plot", 5) for name, story in itertools.product("abc", stories[2:4])
    ]
    means = find(compare(rows, runs), "mean", "j")
    assert (
        means[f"{TRUE_ENDING} for a, b", "plot"].value == 1.5
        and means[f"{TRUE_ENDING} for c", "plot"].value == 3.5
    )
    ticks = pictures.scores_figure(compare(rows, runs), ["j"], runs).axes[0].lines[1::2]
    assert [tick.get_xdata()[0] for tick in ticks] == [1.5, 1.5, 3.5]


# The pictures


def test_pictures():
    for judges in (["j"], ["j", "lm:k"], []):
        rows, runs = models(12, a=5, b=6)
        rows += [
            Row("lm:k", r.run, r.story, "fluency", -r.value) for r in rows if r.score == "plot"
        ]
        rows += [Row("", r.run, r.story, "repeated", 0.1) for r in rows if r.score == "plot"]
        figure = pictures.scores_figure(compare(rows, runs), judges, runs)
        figure.canvas.draw()  # lays it out
        titles = [axis.title for axis in figure.axes if axis.axison]
        expected = {"grammar", "plot"} if "j" in judges else {"repeated"} if not judges else set()
        assert expected <= {title.get_text().split()[0] for title in titles}
        boxes = [title.get_window_extent() for title in titles]
        assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
    assert [dots.get_offsets()[0][0] for dots in figure.axes[0].collections] == pytest.approx(
        [0.1, 0.1]
    )
