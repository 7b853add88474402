"""
From scores to conclusions: means of each run, differences between runs, and whether a judge can be
trusted, as tables.

>>> comparison = Comparison("gpt-4o-mini", group, grades)
>>> comparison.scores["grammar"]["demo"]  # (prompts,): means over the completions of each prompt
array([7. , 8.5, 6. ])
>>> comparison.tables(), comparison.warnings()
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np

from nanostories.grading.groups import Group
from nanostories.grading.metrics import bits_per_byte
from nanostories.grading.scores import (
    SPOILED,
    TRUE_ENDING,
    is_human,
    is_likelihood_judge,
    score_of,
)
from nanostories.grading.stories import different_settings
from nanostories.results import Table
from nanostories.statistics import difference_rows, estimate

# The scores of a source's stories, in their order; None where a grading failed
Grades = Mapping[str, Sequence[dict[str, float] | None]]

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


class Comparison:
    """One judge's scores of one group. judge "": the metrics, which need none."""

    def __init__(self, judge: str, group: Group, grades: Grades, own: Sequence[str] = ()):
        self.judge = judge
        self.group = group
        self.grades = grades
        self.own = set(own)  # names of the runs that the judge wrote
        self.compared = [run for run in group.runs if run.name not in self.own]

    @cached_property
    def scores(self) -> dict[str, dict[str, np.ndarray]]:
        """{score: {source: (prompts,)}}, NaN where a source has none after a prompt."""
        stories = self.group.sources() | self.group.controls
        found = {}
        for source, grades in self.grades.items():
            by_prompt = {prompt: [] for prompt in self.group.prompts}
            for story, scores in zip(stories[source], grades):
                by_prompt[story.prompt].append(scores)
            for name in dict.fromkeys(itertools.chain.from_iterable(filter(None, grades))):
                means = np.array([mean_score(each, name) for each in by_prompt.values()])
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
            better, worse = paired(self.scores[name], TRUE_ENDING, control)
            if not len(better):
                continue
            win = estimate((np.sign(better - worse) + 1) / 2, share=True)
            passes = NOT_TESTED
            if control in score_of(self.judge, name).tested_by:
                passes = CANNOT_TELL if len(better) < FEWEST_PROMPTS else "no"
                if win.low > 0.5:
                    passes = "yes"
            row = {"score": name, "control": control, "paired wins": win.cell}
            rows.append(row | {"prompts": len(better), "passes": passes})
        return rows

    def outcomes(self, score: str) -> dict[str, str]:
        """{control: whether this score tells it from the true ending: yes, no or CANNOT_TELL}"""
        found = {row["control"]: row["passes"] for row in self.tests if row["score"] == score}
        return {control: passes for control, passes in found.items() if passes != NOT_TESTED}

    def failed_controls(self, score: str) -> list[str]:
        """Those of too few prompts only if there are no others."""
        found = self.outcomes(score)
        failed = [control for control, passes in found.items() if passes == "no"]
        return failed or [control for control, passes in found.items() if passes == CANNOT_TELL]

    def doubt(self, score: str) -> str:
        """Why not to believe a score; "" if it passes its controls, or is a metric."""
        if not self.judge:
            return ""
        found = self.outcomes(score).values()
        if not found:
            return UNTESTED
        if "no" in found:
            return BLIND
        return TOO_FEW if CANNOT_TELL in found else ""

    # ---- Tables ----
    def tables(self) -> list[Table]:
        tables = [self.score_table(), self.difference_table(), self.control_table()]
        return [table for table in tables if table.rows]

    def score_table(self) -> Table:
        runs = {run.name: run for run in self.group.runs}
        rows = []
        for source in self.grades:
            if source in SPOILED or not self.grades[source]:
                continue
            row = {"run": source, "stories": len(self.grades[source])}
            if self.judge:
                row["ungraded"] = sum(not scores for scores in self.grades[source])
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
        about = f"Means over {len(self.group.prompts)} prompts, 95% intervals."
        if any(row.get("ungraded") for row in rows):
            about = "Means over the prompts whose stories were graded, 95% intervals."
        return Table(
            f"Scores of {self.group.title} {self.by}",
            rows,
            formats,
            notes=notes | dict.fromkeys(self.own, OWN_WORDS),
            about=about,
            facts={"kind": "scores", "judge": self.judge},
        )

    @property
    def by(self) -> str:
        return f"by {self.judge}" if self.judge else "without a judge"

    def mean(self, name: str, values: np.ndarray) -> list[float]:
        """[value, low, high], clipped to the scale."""
        found = estimate(values[np.isfinite(values)], share=name == "ended")
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
            ours, theirs = paired(sources, a, b)
            if len(ours) >= (FEWEST_PROMPTS if b == TRUE_ENDING else 2):
                found[f"{a} minus {b}", name] = estimate(ours - theirs)
        rows = difference_rows(found, "score")
        for row in rows:
            is_shown_as_0 = round(row["difference"][0], 3) == 0  # in the table
            row["clear"] = "yes" if row["p (Holm)"] < ALPHA and not is_shown_as_0 else "no"
        return rows

    def difference_table(self) -> Table:
        about = (
            f"On the same prompts. Clear: p, corrected for all of these, is below {ALPHA}, and the"
            " difference is not 0.000."
        )
        formats = {"difference": ".3f", "p (Holm)": ".3f"}
        facts = {"kind": "differences", "judge": self.judge}
        title = f"Differences {self.by}"
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
        return [*self.group_warnings(), *(self.judge_warnings() if self.judge else [])]

    def group_warnings(self) -> Iterator[str]:
        if self.own and len(self.compared) == 1:
            yield (
                f"{self.judge} wrote the stories of {', '.join(sorted(self.own))}: without another"
                " judge, runs are not compared with each other, only with true endings"
            )
        if self.n_failed:
            counts = {source: grades.count(None) for source, grades in self.grades.items()}
            failed = ", ".join(f"{n} of {source}" for source, n in counts.items() if n)
            yield (
                f"{self.judge}: gradings failed ({failed}); their prompts are left out of that"
                " run's means and differences, which favors it if odd stories failed. The same"
                " command asks for them again (with a larger --max_cost if that was spent)"
            )
        n = len(self.group.prompts)
        with_more = [run.name for run in self.group.runs if len(run.prompts) > n]
        if with_more and not self.judge:
            yield (
                f"only the {n} prompts that all of these runs share are counted; there are more of"
                f" {', '.join(with_more)}"
            )
        unlike = different_settings(self.compared)
        if unlike and not self.judge:  # once for the group
            yield (
                f"{self.group.title}: sampled with different {', '.join(unlike)}; only runs that"
                " were sampled alike are compared (a limit that cut none of their stories is no"
                " difference)"
            )

    def judge_warnings(self) -> Iterator[str]:
        if self.scores and not self.tests:
            how = "run grade.py with --controls"
            if is_likelihood_judge(self.judge) or not self.group.controls[TRUE_ENDING]:
                how = "controls need true endings, which `python sample.py --eval 50` keeps"
            elif is_human(self.judge):
                how = "more grades on the page test it, as controls are among its stories"
            yield f"{self.judge} is untested; {how}"
        for name in self.scores:
            failed = self.failed_controls(name)
            if failed:
                few = ""
                if self.doubt(name) == TOO_FEW:
                    few = "; with so few prompts any judge may seem so"
                cannot = f"cannot tell the true ending from {' or '.join(failed)}"
                yield f"{name}: {self.judge} {cannot}{few}"
        above = {}  # runs by score
        for row in self.differences:
            is_above = row["clear"] == "yes" and row["difference"][0] > 0
            if is_above and row["run"].endswith(TRUE_ENDING) and not self.doubt(row["score"]):
                run = row["run"].removesuffix(f" minus {TRUE_ENDING}")
                above.setdefault(row["score"], []).append(run)
        for score, runs in above.items():
            yield (
                f"{score}: {self.judge} scores {', '.join(runs)} above true endings: no merit, as"
                " judges like likely text"
            )


def mean_score(gradings: Sequence[dict[str, float] | None], name: str) -> float:
    """Of a prompt's completions; NaN if a grading failed: the story may be unlike the others."""
    values = [scores[name] for scores in gradings if scores and name in scores]
    return np.mean(values) if values and None not in gradings else np.nan


def paired(sources: Mapping[str, np.ndarray], a: str, b: str) -> tuple[np.ndarray, np.ndarray]:
    """The values of both where both have one."""
    if a not in sources or b not in sources:
        return np.array([]), np.array([])
    both = np.isfinite(sources[a]) & np.isfinite(sources[b])
    return sources[a][both], sources[b][both]


def definitions(comparisons: Sequence[Comparison]) -> Table:
    """What the scores of some judges mean."""
    rows = {}
    for comparison in comparisons:
        for name in comparison.scores:
            score = score_of(comparison.judge, name)
            better = score.better or "neither"
            row = {"score": name, "is": score.about, "unit": score.unit, "better": better}
            rows[name, score.about] = row
    return Table("Definitions", list(rows.values()), facts={"kind": "definitions"})
