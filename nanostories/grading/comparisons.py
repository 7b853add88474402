"""
From scores to conclusions: means of each run, differences between runs, and whether a judge can be
trusted, as tables.

>>> comparison = Comparison("gpt-4o-mini", group, grades)
>>> comparison.scores["grammar"]["demo"]  # (prompts,): means over the completions of each prompt
array([7. , 8.5, 6. ])
>>> comparison.tables(), comparison.warnings()
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from nanostories.grading.groups import Group
from nanostories.grading.metrics import bits_per_byte
from nanostories.grading.scores import SPOILED, TRUE_ENDING, is_likelihood_judge, score_of
from nanostories.grading.stories import Run, Story, different_settings
from nanostories.results import Table
from nanostories.statistics import difference_rows, estimate

Scores = dict[str, float] | None  # of a story; None if its grading failed

# Counted over the outcomes of paired wins: with 20% ties and 90% wins among the rest, a judge
# passes the test with 12 prompts in 78% of cases (tests/test_statistics.py), with 10 in 68%.
FEWEST_PROMPTS = 12
ALPHA = 0.05  # the chance that any of a table's differences is called clear although none exists
BLIND = "the judge fails the controls of this score"
TOO_FEW = f"controls of fewer than {FEWEST_PROMPTS} prompts: too few to test this score"
CANNOT_TELL = "too few prompts"  # an outcome of a test, beside "yes" and "no"
NOT_TESTED = "not tested"
UNTESTED = "no control tests this score"
OWN_WORDS = "stories by the judge itself, which overrates them: not compared"


@dataclass(eq=False)
class Comparison:
    """One judge's scores of one group. judge "": the metrics, which need none."""

    judge: str
    group: Group
    grades: Mapping[str, Sequence[Scores]]  # of each source's stories, in their order
    own: Sequence[str] = ()  # names of the runs that the judge wrote

    @property
    def compared(self) -> list[Run]:
        return [run for run in self.group.runs if run.name not in self.own]

    @cached_property
    def scores(self) -> dict[str, dict[str, np.ndarray]]:
        """{score: {source: (prompts,)}}, NaN where a source has none after a prompt. Prompts with
        other instructions for one story count as one."""
        stories = self.group.sources(with_controls=True)
        story_of_prompt = self.group.story_of_prompt
        found = {}
        for source, grades in self.grades.items():
            by_story = {true_story: [] for true_story in story_of_prompt.values()}
            for story, scores in zip(stories[source], grades):
                by_story[story_of_prompt[story.prompt]].append(scores)
            for name in dict.fromkeys(itertools.chain.from_iterable(filter(None, grades))):
                means = np.array([mean_score(each, name) for each in by_story.values()])
                if np.isfinite(means).any():
                    found.setdefault(name, {})[source] = means
        return found

    # ---- Tests of the judge ----
    @cached_property
    def tests(self) -> list[dict]:
        """A row for each score and control: how often the true ending scores above the spoiled one
        of the same prompt, ties as half; and whether a score that must tell them apart does."""
        rows = []
        for name, control in itertools.product(self.scores, SPOILED if self.judge else ()):
            lead = paired_difference(self.scores[name], TRUE_ENDING, control)
            if not len(lead):
                continue
            win = estimate((np.sign(lead) + 1) / 2, share=True)
            passes = NOT_TESTED
            if control in score_of(self.judge, name).tested_by:
                passes = CANNOT_TELL if len(lead) < FEWEST_PROMPTS else "no"
                if win.low > 0.5:
                    passes = "yes"
            row = {"score": name, "control": control, "paired wins": win.cell}
            rows.append(row | {"prompts": len(lead), "passes": passes})
        return rows

    def controls(self, score: str, passes: str) -> list[str]:
        """Those whose test by this score came out like this: yes, no or CANNOT_TELL."""
        rows = [row for row in self.tests if row["score"] == score]
        return [row["control"] for row in rows if row["passes"] == passes]

    def doubt(self, score: str) -> str:
        """Why not to believe a score; "" if it passes its controls, or is a metric."""
        if self.controls(score, "no"):
            return BLIND
        if self.controls(score, CANNOT_TELL):
            return TOO_FEW
        if self.judge and not self.controls(score, "yes"):
            return UNTESTED
        return ""

    # ---- Tables ----
    def tables(self) -> list[Table]:
        tables = [self.score_table(), self.difference_table(), self.control_table()]
        return [table for table in tables if table.rows]

    def score_table(self) -> Table:
        runs = {run.name: run for run in self.group.runs}
        rows = []
        for source, grades in self.grades.items():
            if source in SPOILED or not grades:
                continue
            row = {"run": source, "stories": len(grades)}
            if self.judge:
                row["ungraded"] = sum(not scores for scores in grades)
            for name, sources in self.scores.items():
                if source in sources:
                    row[name] = self.mean(name, sources[source])
            if not self.judge and source in runs:
                row["bpb"] = bits_per_byte(runs[source])
            rows.append(row)
        formats = {name: score_of(self.judge, name).form for name in self.scores}
        notes = {name: self.doubt(name) for name in self.scores if self.doubt(name)}
        if not self.judge:
            formats["bpb"] = score_of("", "bpb").form
        n = len(set(self.group.story_of_prompt.values()))
        about = f"Means over {n} prompts (without those of ungraded stories), 95% intervals."
        return Table(
            f"Means of {self.kind}: {self.group.title}",
            rows,
            formats,
            notes=notes | dict.fromkeys(self.own, OWN_WORDS),
            about=about,
            facts={"kind": "scores", "judge": self.judge},
        )

    @property
    def kind(self) -> str:
        return f"scores by {self.judge}" if self.judge else "metrics"

    def mean(self, name: str, values: np.ndarray) -> list[float]:
        """[value, low, high], clipped to the scale."""
        is_share = name == "ended" and not self.judge
        found = estimate(values[np.isfinite(values)], share=is_share)
        return [found.value, *np.clip([found.low, found.high], *score_of(self.judge, name).scale)]

    def pairs(self) -> Iterator[tuple[str, str]]:
        """The runs that are compared: those that were sampled alike, not the judge's own; and each
        with the true endings of its prompts."""
        for a, b in itertools.combinations(self.compared, 2):
            if not different_settings([a, b]):
                yield a.name, b.name
        if self.judge:
            for run in self.compared:
                yield run.name, TRUE_ENDING

    @property
    def n_failed(self) -> int:
        """How many gradings failed."""
        return sum(scores is None for scores in itertools.chain(*self.grades.values()))

    @cached_property
    def differences(self) -> list[dict]:
        """A row for each pair and score, with p corrected for all of them (Holm)."""
        found = {}
        for (a, b), (name, sources) in itertools.product(self.pairs(), self.scores.items()):
            difference = paired_difference(sources, a, b)
            if len(difference) >= 2:
                found[f"{a} minus {b}", name] = estimate(difference)
        rows = difference_rows(found, "score")
        for row in rows:
            row["clear"] = "yes" if row["p (Holm)"] < ALPHA else "no"
        return rows

    def difference_table(self) -> Table:
        about = (
            "On the same prompts; of shares, as fractions. Clear: p, corrected for all of these, is"
            f" below {ALPHA}."
        )
        if is_likelihood_judge(self.judge):
            about += (
                " A run above the true endings is no better than they are: likelihood judges favor"
                " likely text."
            )
        formats = {"p (Holm)": ".3f"}
        facts = {"kind": "differences", "judge": self.judge}
        title = f"Differences of {self.kind}"
        return Table(title, self.differences, formats, about=about, facts=facts)

    def control_table(self) -> Table:
        about = (
            "Paired wins: how often the judge scores the true ending above the spoiled one of the"
            " same prompt; 0.5 is chance. It passes if the interval lies above 0.5. An ending too"
            " short to be spoiled in some way has no such control, so prompts may be fewer."
        )
        title = f"Tests of {self.judge}: true endings against spoiled ones"
        facts = {"kind": "controls", "judge": self.judge}
        return Table(title, self.tests, {"paired wins": ".2f"}, about=about, facts=facts)

    # ---- Warnings ----
    def warnings(self) -> list[str]:
        """Reasons to distrust the tables."""
        return list(self.judge_warnings() if self.judge else self.group_warnings())

    def group_warnings(self) -> Iterator[str]:
        n = len(self.group.prompts)
        with_more = [run.name for run in self.group.runs if len(run.prompts) > n]
        if with_more:
            yield (
                f"compared on the {n} prompts that all of these runs share; not used: more prompts"
                f" of {', '.join(with_more)}"
            )
        cut = [run.name for run in self.compared if run.is_cut]
        if 0 < len(cut) < len(self.compared):
            yield (
                f"{', '.join(cut)}: a limit or the end of the context cut stories, but no true"
                " endings, as other runs have whole stories: differences from true endings are"
                " partly those of length"
            )
        unlike = different_settings(self.compared)
        if unlike:
            yield (
                f"{self.group.title}: sampled with different {', '.join(unlike)}; only runs that"
                " were sampled alike are compared (a limit that cut none of their stories is no"
                " difference)"
            )

    def judge_warnings(self) -> Iterator[str]:
        if self.n_failed:
            yield (
                f"{self.judge}: {self.n_failed} gradings failed; their prompts are left out of that"
                " run's means and differences, which favors it if odd stories failed. The same"
                " command asks for them again (with a larger --max_cost if that was spent)"
            )
        if self.scores and not self.tests:
            yield (
                f"{self.judge} is untested; a chat judge is tested by grade.py --controls, a person"
                " by more grades, and each only where there are true endings, which `python"
                " sample.py --eval 50` keeps"
            )
        for name in self.scores:
            few = ""
            failed = self.controls(name, "no")
            if not failed:
                failed = self.controls(name, CANNOT_TELL)
                few = "; with so few prompts any judge may seem so"
            if failed:
                cannot = f"cannot tell the true ending from {' or '.join(failed)}"
                yield f"{name}: {self.judge} {cannot}{few}"


def mean_score(gradings: Sequence[Scores], name: str) -> float:
    """Of a prompt's completions; NaN if a grading failed: the story may be unlike the others."""
    values = [scores[name] for scores in gradings if scores and name in scores]
    return np.mean(values) if values and None not in gradings else np.nan


def paired_difference(sources: Mapping[str, np.ndarray], a: str, b: str) -> np.ndarray:
    """By how much a's values exceed b's, after the prompts where both have one."""
    if a not in sources or b not in sources:
        return np.array([])
    difference = sources[a] - sources[b]
    return difference[np.isfinite(difference)]


def compare(
    judge: str,
    group: Group,
    score: Callable[[Story], Scores],
    wrote: Callable[[Run], bool] | None = None,
    with_controls: bool = True,
) -> Comparison:
    """All stories of a group by the scores of one judge. wrote: whether it wrote a run's."""
    grades = {}
    for source, stories in group.sources(with_controls).items():
        grades[source] = [score(story) for story in stories]
    own = [run.name for run in group.runs if wrote and wrote(run)]
    return Comparison(judge, group, grades, own)


def definitions(comparisons: Sequence[Comparison]) -> Table:
    """What the scores of some judges mean."""
    rows = {}
    for comparison in comparisons:
        for name in comparison.scores:
            score = score_of(comparison.judge, name)
            row = {"score": name, "is": score.about, "unit": score.unit, "better": score.better}
            rows[name, score.about] = row
    return Table("Definitions", list(rows.values()), facts={"kind": "definitions"})
