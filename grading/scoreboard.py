"""
From scores to conclusions: means, differences, whether the judge can be believed; the tables, grades.csv, grades.png.

Every figure is a Finding, with its interval where it has one; tables, CSV and picture show the same findings.

>>> findings = compare(dict(a=stories_of_a, b=stories_of_b), ["a", "b"], scores, ASPECTS, "gpt-4o-mini")
>>> print(report(findings, ["a", "b"], ["gpt-4o-mini"], {"gpt-4o-mini": "1,000 of 1,000 gradings"}))
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from common import statistics
from common.files import write_atomically
from common.tables import read_table, table_text, write_table
from grading.judge import AGES, INSTRUCTIONS, SCORES, Story
from grading.judge_controls import CUT, OTHER, SHUFFLED, SPOILED, TRUE

ASPECTS = (*SCORES, *INSTRUCTIONS, "age")

Scores = Mapping[Story, Mapping[str, float]]  # of each story, by judge or metrics


@dataclass(frozen=True)
class Finding:
    kind: str  # mean, difference (of two models, on the same prompts), auc, spearman, mean_absolute_difference
    judge: str  # "": needs no judge
    subject: str  # a model, a kind of control, two models ("a - b") or two judges ("a, b")
    figure: str  # grammar, ..., loss, ...
    value: float
    low: float = math.nan  # the 95 % interval
    high: float = math.nan
    prompts: int = 0
    normalised: float = math.nan  # (s - min) / (max - min) over the models

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2


def prompt_means(stories: Sequence[Story], scores: Scores, figure: str) -> dict[str, float]:
    """{task: mean of this figure over its completions that have it}."""
    values = {}
    for story in stories:
        value = scores.get(story, {}).get(figure, math.nan)
        if not math.isnan(value):
            values.setdefault(story.task, []).append(value)
    return {prompt: sum(several) / len(several) for prompt, several in values.items()}


SCALES = dict.fromkeys((*SCORES, *INSTRUCTIONS), (0.0, 10.0)) | dict(age=(min(AGES.values()), max(AGES.values())))
SCALES |= dict.fromkeys(("repeated", "unknown"), (0.0, 1.0))


def mean_of(figure: str, values: np.ndarray) -> statistics.Estimate:
    """With an interval that ends where the scale does. That of a share of stories is Wilson's: 50 of 50 is not ± 0."""
    value, low, high = statistics.mean(values)
    if figure == "ended" and len(values) > 1:
        return statistics.Estimate(value, *statistics.wilson(value, len(values)))
    return statistics.Estimate(value, *np.clip((low, high), *SCALES.get(figure, (-math.inf, math.inf))))


def paired(a: dict, b: dict) -> tuple[np.ndarray, np.ndarray]:
    """The values of both on their common prompts, in one order."""
    prompts = [prompt for prompt in a if prompt in b]
    return np.array([a[prompt] for prompt in prompts]), np.array([b[prompt] for prompt in prompts])


def compare(
    sources: Mapping[str, Sequence[Story]], models: Sequence[str], scores: Scores, figures: Sequence[str], judge: str
) -> list[Finding]:
    """Means of every source and figure, normalised over the models; their differences; the AUC against the controls.

    sources: the stories of each model and each kind of control, by name.
    """
    findings = []
    for figure in figures:
        means = {name: prompt_means(stories, scores, figure) for name, stories in sources.items()}
        means = {name: values for name, values in means.items() if values}
        estimates = {name: mean_of(figure, np.array(list(values.values()))) for name, values in means.items()}
        graded = [model for model in models if model in means]
        normalised = dict.fromkeys(means, math.nan)
        if graded and judge:
            normalised |= zip(graded, statistics.normalised(np.array([estimates[model].value for model in graded])))
        for name, values in means.items():
            findings.append(Finding("mean", judge, name, figure, *estimates[name], len(values), normalised[name]))
        for a, b in itertools.combinations(graded, 2):
            ours, theirs = paired(means[a], means[b])
            if len(ours):
                difference = statistics.mean(ours - theirs)
                findings.append(Finding("difference", judge, f"{a} - {b}", figure, *difference, len(ours)))
        for control in SPOILED if judge else ():
            true, spoiled = paired(means.get(TRUE, {}), means.get(control, {}))
            if len(true):
                auc = statistics.bootstrap(statistics.auc, true, spoiled)
                findings.append(Finding("auc", judge, control, figure, *auc, len(true)))
    return findings


def agreement(stories: Sequence[Story], judges: Mapping[str, Scores]) -> list[Finding]:
    """Rank correlation and mean absolute difference of every two judges, on the stories that both have graded."""
    findings = []
    for (a, grades_a), (b, grades_b) in itertools.combinations(judges.items(), 2):
        for figure in ASPECTS:
            prompts = {}  # prompt -> the two grades of each of its completions
            for story in dict.fromkeys(stories):
                if figure in grades_a.get(story, {}) and figure in grades_b.get(story, {}):
                    both = grades_a[story][figure], grades_b[story][figure]
                    prompts.setdefault(story.task, []).append(both)
            if not prompts:
                continue
            pairs = np.full((len(prompts), max(map(len, prompts.values())), 2), np.nan)
            for row, grades in zip(pairs, prompts.values()):
                row[: len(grades)] = grades
            kinds = dict(spearman=statistics.spearman, mean_absolute_difference=absolute_difference)
            for kind, statistic in kinds.items():
                estimate = statistics.bootstrap(lambda drawn, s=statistic: s(*drawn[~np.isnan(drawn[..., 0])].T), pairs)
                findings.append(Finding(kind, "", f"{a}, {b}", figure, *estimate, len(prompts)))
    return findings


def absolute_difference(x: np.ndarray, y: np.ndarray) -> float:
    return float(np.abs(x - y).mean())


# ---- What may not be concluded ----


def blind_spots(findings: Sequence[Finding], judge: str) -> list[Finding]:
    """The AUCs that should be above 0.5, as the control is spoiled in just that respect, and are not."""
    aucs = (f for f in findings if f.kind == "auc" and f.judge == judge and f.figure in SPOILED[f.subject])
    return [f for f in aucs if not f.low > 0.5]


def is_resolved(difference: Finding) -> bool:
    return difference.low > 0 or difference.high < 0


SPOILED_HOW = {SHUFFLED: "one with its sentences shuffled", OTHER: "that of another story", CUT: "one cut off"}


def warn_of_blindness(findings: Sequence[Finding], judge: str) -> list[str]:
    """A line for each score whose controls the judge cannot tell from the true ending."""
    lines, missed, needed = [], {}, {}
    for spot in blind_spots(findings, judge):
        missed.setdefault(spot.figure, {})[spot.subject] = f"AUC {spot.value:.2f}, {spot.low:.2f} to {spot.high:.2f}"
        needed.setdefault(spot.figure, []).append(prompts_needed(spot))
    for figure, spots in missed.items():
        what = " nor ".join(f"{SPOILED_HOW[kind]} ({auc})" for kind, auc in spots.items())
        seen = [SPOILED_HOW[kind] for kind in SPOILED if figure in SPOILED[kind] and kind not in spots]
        so = f"it only sees {' and '.join(seen)}" if seen else f"what it says of the models' {figure} means nothing"
        if max(needed[figure]) <= MANY_PROMPTS:  # it leans to the right side
            so = f"not shown with so few prompts: about {max(needed[figure]):.0f} would do, if that is how well it sees"
        lines.append(f"{figure}: {judge} cannot tell the true ending from {what}; {so}")
    return lines


MANY_PROMPTS = 300  # a judge that needs more to be told from a coin is as good as blind


def prompts_needed(auc: Finding) -> float:
    """With how many prompts this AUC would be above 0.5, as intervals shrink with their square root."""
    if not auc.value > 0.5 or math.isnan(auc.low):
        return math.inf
    return math.ceil(1.2 * auc.prompts * ((auc.value - auc.low) / (auc.value - 0.5)) ** 2)  # 1.2: not at the very edge


# The 95 % interval of an AUC contained the truth in 81 % of 400 simulated experiments with 4 prompts, 87 % with 8,
# 92 % with 10, 95 % with 40 (as in test_statistics.py).
FEWEST_PROMPTS = 10


def warn_of_few_prompts(findings: Sequence[Finding], judge: str) -> list[str]:
    """Whether there are too few prompts to validate the judge."""
    n = min((f.prompts for f in find(findings, "auc", judge).values()), default=FEWEST_PROMPTS)
    line = f"too few prompts ({n}) to say what {judge} sees: below {FEWEST_PROMPTS}, intervals of AUC are too narrow"
    return [line] * (n < FEWEST_PROMPTS)


def warn_of_close_calls(findings: Sequence[Finding], judge: str) -> list[str]:
    """Differences smaller than what this judge can resolve with these prompts."""
    lines, close = [], {}
    for difference in find(findings, "difference", judge).values():
        if not is_resolved(difference) and not math.isnan(difference.half_width):
            close.setdefault(difference.figure, []).append(difference)
    means = find(findings, "mean", judge) if judge else {}
    models = dict.fromkeys(subject for subject, _ in means if subject not in (TRUE, *SPOILED))
    compared = {subject for subject, _ in find(findings, "difference", judge)}
    apart = [pair for pair in map(" - ".join, itertools.combinations(models, 2)) if pair not in compared]
    if apart:
        more = f"; {len(apart) - 4} more" * (len(apart) > 4)
        lines.append(f"no prompts in common, so no difference can be told: {'; '.join(apart[:4])}{more}")
    for figure, calls in close.items():
        widths, n = [f.half_width for f in calls if f.half_width], max(f.prompts for f in calls)
        resolved = f", which resolve about {np.mean(widths):.2f}" if widths else ", on which they are equal"
        pairs = "; ".join(f.subject for f in calls[:4]) + f"; {len(calls) - 4} more" * (len(calls) > 4)
        lines.append(f"{figure}: too close to call with {n} prompts{resolved}: {pairs}")
    return lines


# ---- The table ----

SHOWN = {  # metrics: head of the column, factor, format
    "loss": ("loss", 1, ".3f"),
    "bpb": ("bpb", 1, ".3f"),
    "ended": ("ended %", 100, ".0f"),
    "repeated": ("repeat %", 100, ".1f"),
    "distinct-2": ("distinct-2", 1, ".3f"),
    "words": ("words", 1, ".0f"),
    "unknown": ("unknown %", 100, ".2f"),
}


def cell(finding: Finding | None, factor: float = 1, form: str = ".2f", mark: str = "") -> str:
    if finding is None or math.isnan(finding.value):
        return "–"
    width = "" if math.isnan(finding.half_width) else f" ±{factor * finding.half_width:{form}}"
    return f"{factor * finding.value:{form}}{width}{mark}"


def find(findings: Sequence[Finding], kind: str, judge: str) -> dict[tuple[str, str], Finding]:
    """{(subject, figure): finding}."""
    return {(f.subject, f.figure): f for f in findings if f.kind == kind and f.judge == judge}


def figures_table(
    figures: Mapping[tuple[str, str], Finding],  # of find()
    subjects: Sequence[str] | None = None,  # None: all, in their order
    form: str = ".2f",
    mark: Callable[[Finding], str] = lambda finding: "",
    markdown: bool = False,
) -> str:
    """Subjects down, figures across: the judge's scores, then metrics."""
    names = [name for name in (*ASPECTS, *SHOWN) if any(figure == name for _, figure in figures)]
    formats = {name: SHOWN.get(name, (name, 1, form)) for name in names}
    rows = []
    for subject in dict.fromkeys(subject for subject, _ in figures) if subjects is None else subjects:
        cells = {name: figures.get((subject, name)) for name in names}
        rows.append([subject, *(cell(f, *formats[name][1:], mark(f) if f else "") for name, f in cells.items())])
    return table_text(["", *(formats[name][0] for name in names)], rows, markdown)


def report(
    findings: Sequence[Finding],
    sources: Sequence[str],  # models and controls, to be shown in this order
    judges: Sequence[str],
    counts: Mapping[str, str],  # judge -> how many gradings there are, how many failed
    markdown: bool = False,
) -> str:
    """All tables and warnings, as text."""
    parts, metrics, gap = [], find(findings, "mean", ""), "\n\n" if markdown else "\n"

    def add(head: str, figures: Mapping, *args, **kwargs):
        parts.append(head + gap + figures_table(figures, *args, **kwargs, markdown=markdown))

    for judge in judges or [""]:
        head = f"{judge}: {counts[judge]}{gap}" if judge else ""
        head += "Means over prompts, ± half of the 95 % interval"
        add(head, (find(findings, "mean", judge) if judge else {}) | metrics, sources, ".1f")
        if not judge:
            continue
        if differences := find(findings, "difference", judge):
            head = "Differences on the same prompts (? where the interval contains 0)"
            add(head, differences, mark=lambda f: " " if is_resolved(f) else "?")
        if aucs := find(findings, "auc", judge):
            spots = blind_spots(findings, judge)
            head = f"Does {judge} prefer the true ending to a spoiled one? AUC: 1 always, 0.5 is chance (! where blind)"
            add(head, aucs, mark=lambda f, spots=spots: "!" if f in spots else " ")
        else:
            parts.append(f"{judge} is unvalidated; run with --controls")
        warnings = (warn_of_few_prompts, warn_of_blindness, warn_of_close_calls)
        if lines := [f"WARNING {line}" for warn in warnings for line in warn(findings, judge)]:
            parts.append("\n".join(lines))
    for kind, head in (("spearman", "rank correlation"), ("mean_absolute_difference", "mean absolute difference")):
        if figures := find(findings, kind, ""):
            add(f"Agreement of the judges: {head}", figures)
    return "\n\n".join(parts)


# ---- Files ----

LONGEST_NAME = 48  # characters, in the plot


def write_csv(path: Path, findings: Sequence[Finding]) -> None:
    """One finding a line; NaN is an empty cell."""
    write_table(path, list(map(asdict, findings)), [field.name for field in fields(Finding)])


def read_csv(path: Path) -> list[Finding]:
    """The findings that write_csv wrote."""
    parse = {float: lambda text: float(text or "nan"), int: int, str: str}
    columns = fields(Finding)
    return [Finding(*(parse[c.type](row[c.name]) for c in columns)) for row in read_table(path)]


def plot(path: Path, findings: Sequence[Finding], models: Sequence[str], judges: Sequence[str]) -> None:
    """Bars with intervals and normalised scores, a row for each judge; without a judge, the metrics."""
    shown = {(f.judge, f.figure) for f in findings if f.kind == "mean"}
    rows = {judge: [name for name in ASPECTS if (judge, name) in shown] for judge in judges}
    judges = [judge for judge in judges if rows[judge]]
    rows = {judge: rows[judge] for judge in judges} or {"": [name for name in SHOWN if ("", name) in shown]}
    columns = max(map(len, rows.values()))
    ratios = [1] * columns + [0.36 * columns] * bool(judges)
    names_width = 0.065 * min(LONGEST_NAME, max(map(len, models)))  # inches
    size = (names_width + 1 + 1.3 * sum(ratios), 0.4 + len(rows) * (1.2 + 0.3 * len(models)))
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(len(rows), len(ratios), squeeze=False, width_ratios=ratios)
    for axes, (judge, names) in zip(grid, rows.items()):
        means, blind = find(findings, "mean", judge), {f.figure for f in blind_spots(findings, judge)}
        for axis in axes[len(names) : columns]:
            axis.set_axis_off()
        for axis, name in zip(axes, names):
            draw_bars(axis, means, models, name, "#b8b8b8" if name in blind else "#5b8db8")
            axis.set_yticks(range(len(models)), [""] * len(models))
        axes[0].set_yticks(range(len(models)), [shorten(model, LONGEST_NAME) for model in models])
        axes[0].set_ylabel(shorten(judge, 12 + 3 * len(models)))
        if judge:
            draw_heat_map(axes[-1], means, models, names)
    notes = ["lines: 95 % intervals", "dashed: the true endings"] + ["gray: the judge is blind to it, or partly"] * any(
        blind_spots(findings, judge) for judge in judges
    )
    figure.supxlabel("; ".join(notes), fontsize=8, color="#555555")
    with write_atomically(path) as temporary:
        figure.savefig(temporary, dpi=120, format="png")


def shorten(name: str, width: int) -> str:
    """Leaves out the middle of a name that is too long."""
    return name if len(name) <= width else f"{name[: width // 2]}…{name[-(width // 2 - 1) :]}"


def draw_bars(axis, means: Mapping, models: Sequence[str], name: str, color: str) -> None:
    """One figure: a bar for each model, a dashed line for the true endings."""
    title, factor, _ = SHOWN.get(name, ("age (years)" if name == "age" else name, 1, ""))
    for y, model in enumerate(models):
        if finding := means.get((model, name)):
            axis.barh(y, factor * finding.value, color=color, height=0.7)
            axis.plot([factor * finding.low, factor * finding.high], [y, y], color="#222222", linewidth=1.3)
    if true := means.get((TRUE, name)):
        axis.axvline(factor * true.value, color="#222222", linewidth=1, linestyle=(0, (3, 3)))
    axis.set_title(title, fontsize=9)
    axis.set_ylim(len(models) - 0.5, -0.5)
    if name in ASPECTS and name != "age":
        axis.set_xlim(0, 10)
        axis.set_xticks([0, 5, 10])
    axis.locator_params(axis="x", nbins=3)
    axis.grid(axis="x", alpha=0.3)
    axis.set_axisbelow(True)
    axis.tick_params(labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)


def draw_heat_map(axis, means: Mapping, models: Sequence[str], names: Sequence[str]) -> None:
    """Normalised scores, (models, scores), in the order of the bars beside them."""
    values = [[means[model, name].normalised if (model, name) in means else math.nan for name in names]
              for model in models]  # fmt: skip
    axis.imshow(np.ma.masked_invalid(values), cmap="Blues", vmin=0, vmax=1.7, aspect="auto")
    for (y, x), value in np.ndenumerate(values):
        axis.text(x, y, "–" if math.isnan(value) else f"{value:.2f}", ha="center", va="center", fontsize=8)
    axis.set_xticks(range(len(names)), names, rotation=30, ha="right", fontsize=8)
    axis.set_yticks([])
    axis.set_title("(s - min) / (max - min)", fontsize=9)
