"""
Sections of report.html about what models write: scores, answers, instructions, novelty, stories side by side.

Also probe.html, a page with one of these sections.
"""

import itertools
import json
import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from common.figures import png_bytes
from common.tables import read_table
from generation.samples_file import read_rows
from grading import compare_models, human_marks, probe_answers
from grading.rubrics import CHAT, LIKELIHOOD, rubric_of
from grading.scores_table import SHOWN
from grading.temperature_plot import collect, temperature_figure
from novelty.rouge_tables_and_plots import PANELS, TITLES
from pages.html import bars, embedded, sections_page, table
from pages.read_results import Results, numbers, read_rouge

# Limits that keep a page with dozens of runs below 5 MB.
STORY_BYTES = 700_000
PROBE_BYTES = 600_000
LONGEST_TEXT = 1500  # characters per completion
PROMPTS, COMPLETIONS = 30, 2  # side by side; completions per run
BINS = 40
ALL_SCORES = tuple(dict.fromkeys((*CHAT.scores, *LIKELIHOOD.scores)))
OF_TRAINING_STORIES = ", training stories"  # after a run's name; report.js draws it in the run's color, dotted
# What the paper measures of completions of training stories, and the longest copied span
PUBLISHED = ("ending_precision", "any_other_f", "training_f", "span")
BY_HEART = """Completions of training stories and of validation stories: means with 95% intervals. The difference shows
what a model has memorized: near 0, it continues stories that it was trained on like any others. The paper continues
training stories, cut at 40%, and reads the first three figures like this: low precision means that the model does not
recite the true ending; a low F with the nearest other completion, that it does not repeat itself; a low F with the
nearest training story, that it does not copy another one."""
EXPLAINED = {  # the metrics that need no judge
    "loss": "nats per token of validation text, from the run's log",
    "bpb": "bits per byte of validation text, from the run's log",
    "ended": "share of stories that end by themselves",
    "repeated": "share of 4-grams that occurred before in the same story",
    "distinct-2": "share of 2-grams that are different, in equally many words of each model",
    "words": "words per completion",
    "unknown": "share of words that occur neither in the corpus nor in the prompt",
}

# ---- Scores ----


def scores_section(results: Results) -> Iterable[dict]:
    """A judge's grades and metrics that need no judge (grade.py): means over prompts with 95% intervals."""
    everything = findings = [f for f in read_scores(results) if not results.kept.keys() & set(f.subject.split(" - "))]
    means = [f for f in findings if f.kind == "mean" and (f.subject[0] == "(" or results.is_shown(f.subject))]
    if all(f.subject[0] == "(" for f in means):
        return
    if results.is_one_run:
        findings = means + [f for f in findings if f.kind in ("paired_wins", "auc")]
    for judge in dict.fromkeys(f.judge for f in findings if f.judge or f.kind == "mean"):
        means = compare_models.find(findings, "mean", judge)
        names = rubric_of(judge).scores if judge else SHOWN
        names = [name for name in names if any(figure == name and estimate(f) for (_, figure), f in means.items())]
        if not names:
            continue
        columns = [how_shown(name, judge) for name in names]
        subjects = list(dict.fromkeys(subject for subject, _ in means))
        rows = [[subject, *(estimate(means.get((subject, name))) for name in names)] for subject in subjects]
        n = sorted({f.prompts for f in means.values() if f.prompts})  # the loss has no prompts
        caption = f"Judge: {judge}. " if judge else "Metrics that need no judge. "
        caption += f"Means over {' to '.join(map(str, dict.fromkeys(n[:1] + n[-1:])))} prompts." if n else ""
        yield table([("", "text"), *columns], rows, caption)
        verdicts = {name: compare_models.judge_sees(findings, judge, name) for name in names}
        unseen = set(verdicts.values()) != {"seen"}
        caption = "Outlined: the judge failed the controls for this score, or was not tested." if unseen else ""
        yield bars([panel_of_scores(means, name, judge, subjects, verdicts[name]) for name in names], caption)
        if wins := compare_models.find(findings, "paired_wins", judge):
            controls = dict.fromkeys(subject for subject, _ in wins)
            rows = [[control, *(estimate(wins.get((control, name))) for name in names)] for control in controls]
            caption = f"Paired wins: how often {judge} grades the true ending above a spoiled one of the same prompt, "
            caption += "ties as half; 1 is always, 0.5 is chance"
            columns = [(name if verdicts[name] != "untested" else f"{name} (untested)", 2) for name in names]
            yield table([("true ending against", "text"), *columns], rows, caption)
        if judge:
            yield dict(type="warnings", lines=compare_models.warnings_of(findings, judge))
    for kind, head in (("spearman", "Rank correlation"), ("mean_absolute_difference", "Mean absolute difference")):
        if agreement := compare_models.find(findings, kind, ""):
            names = [name for name in ALL_SCORES if any(figure == name for _, figure in agreement)]
            pairs = dict.fromkeys(pair for pair, _ in agreement)
            rows = [[pair, *(estimate(agreement.get((pair, name))) for name in names)] for pair in pairs]
            yield table([("judges", "text"), *((name, 2) for name in names)], rows, f"{head} between judges")
    yield from temperature_parts(results, everything)


def temperature_parts(results: Results, findings: list[compare_models.Finding]) -> Iterable[dict]:
    """The figures of runs that were sampled at several temperatures, from grade.py and rouge.py."""
    above = results.shared("grades.csv").parent
    names = {f.subject: results.name(above / f.subject) for f in findings if f.kind == "mean" and f.subject[0] != "("}
    findings = [replace(f, subject=names.get(f.subject, f.subject)) for f in findings]
    if panels := collect(findings, results.directory, lambda path: results.read(path, read_rouge)):
        yield embedded(
            png_bytes(temperature_figure(panels)), "Scores, repetition and novelty over the sampling temperature"
        )


def read_scores(results: Results) -> list[compare_models.Finding]:
    """grades.csv of all runs; and, for runs or judges that it lacks, those that `grade.py RUN` wrote below it."""
    shared, findings = results.shared("grades.csv"), []
    for path in [shared, *sorted({*results.directory.rglob("grades.csv")} - {shared})]:
        known = {(f.kind, f.judge, f.subject, f.figure) for f in findings}
        for f in results.read(path, compare_models.read_csv) or []:
            is_of_run = f.kind == "mean" and f.subject[0] != "("
            if is_of_run:  # named as on this page
                name = results.name(path.parent if f.subject == path.parent.name else path.parent / f.subject)
                f = replace(f, subject=name)
            is_known = (f.kind, f.judge, f.subject, f.figure) in known or f.kind == "difference"
            is_there = not is_of_run or f.subject in results.runs or f.subject in results.kept
            if path == shared or is_there and not is_known:
                findings.append(f)
    return findings


def how_shown(name: str, judge: str) -> tuple[str, str | int, str]:
    """Title, kind and explanation of a score's column."""
    if judge:
        score = rubric_of(judge).scores[name]
        return name, int(score.fine[1]), f"{score.about}, {score.unit}".strip(", ")
    title, factor, form = SHOWN[name]
    return title.removesuffix(" %"), "percent" if factor == 100 else int(form[1]), EXPLAINED.get(name, "")


def estimate(finding: compare_models.Finding | None) -> list[float | None] | None:
    if finding is None or np.isnan(finding.value):
        return None
    return [None if np.isnan(x) else x for x in (finding.value, finding.low, finding.high)]


def panel_of_scores(means: dict, name: str, judge: str, subjects: list[str], verdict: str) -> dict:
    title, kind, _ = how_shown(name, judge)
    lines = [[subject, *estimate(means[subject, name])] for subject in subjects if estimate(means.get((subject, name)))]
    low, high = rubric_of(judge).scores[name].scale if judge else (None, None)
    end, dots = high if low == 0 else None, low == -math.inf
    about = dict(seen="", blind=" (controls failed)", untested=" (untested)")[verdict]
    return dict(title=title + about, kind=kind, bars=lines, marks={}, end=end, dots=dots, outlined=verdict != "seen")


# ---- Answers ----


def answers_section(results: Results) -> Iterable[dict]:
    """What each model answers to prompts with known answers, and how it continues plain ones (probe.py)."""
    for name in ("probe.csv", "probe-prompts.csv"):
        rows = results.read(results.shared(name), read_table) or [{}]
        models = {model: results.name(model) for model in probe_answers.models_in(rows) if results.is_shown(model)}
        yield from answer_parts(rows, models, PROBE_BYTES) if models else ()


def answers_page(rows: list[dict], models: list[str]) -> bytes:
    """probe.html: all rows of probe.csv, and nothing else."""
    parts = list(answer_parts(rows, {model: model for model in models}, math.inf))
    subtitle = f"{len(rows):,} prompts, {len(models)} model{'s' * (len(models) != 1)}"
    title = "Answers to prompts"
    return sections_page(title, subtitle, [dict(title=title, about="", parts=parts)], models, {})


def answer_parts(rows: list[dict], models: dict[str, str], max_bytes: float) -> Iterable[dict]:
    """rows: of probe.csv; models: {as it is called there: as the page calls it}; max_bytes: of the models' texts."""
    captions = []
    if panels := panels_of_answers(rows, models):
        yield bars(
            panels,
            "Share of prompts where the right answer wins, with Wilson's 95% interval (as if the prompts were "
            "independent); dashed line: chance.",
        )
        captions.append(
            "✓ right: the right answer has a higher log-likelihood per byte than every wrong one. "
            f"≈ nearly: the best wrong answer leads by at most {probe_answers.NEARLY} nats per byte. "
            "✗ wrong: it leads by more. The number is the lead of the right answer in nats per byte."
        )
    if marked := panels_of_marks(rows, models):
        yield bars(marked, "Share of the marked completions that a reader found right, with Wilson's 95% interval.")
        captions.append("For prompts without answers: ✓ right, ≈ nearly, ✗ wrong, as marked by a reader.")
    captions.append(f"The text is each model's own greedy continuation{'' if marked else ', which is not scored'}.")
    cells, size = [], 0
    for row in rows:
        answers = [[row[f"{model} verdict"], row[f"{model} lead"], row[f"{model} greedy"]] for model in models]
        size += sum(map(len, itertools.chain.from_iterable(answers)))
        if size > max_bytes:
            break
        cells.append([row["set"], row["prompt"], row["right"], row["wrong"], answers])
    yield dict(type="answers", models=list(models.values()), rows=cells, all=len(rows), caption=" ".join(captions))


def panels_of_answers(rows: list[dict], models: dict[str, str]) -> list[dict]:
    panels = []
    for name, of_set in probe_answers.score(rows).items():
        lines = [[shown, *of_set.shares[model]] for model, shown in models.items()]
        title, chance = f"{name} (n = {of_set.n})", {"chance": of_set.chance}
        panels.append(dict(title=title, kind="percent", bars=lines, marks=chance, end=1))
    return panels


def panels_of_marks(rows: list[dict], models: dict[str, str]) -> list[dict]:
    panels = []
    for name, of_models in human_marks.count_marks(rows).items():
        shares = {shown: human_marks.share_right(of_models[model]) for model, shown in models.items()}
        lines = [[shown, *share] for shown, share in shares.items() if share]
        panels.append(dict(title=Path(name).stem, kind="percent", bars=lines, marks={}, end=1))
    return panels


# ---- Instructions ----


def instructions_section(results: Results) -> Iterable[dict]:
    """How often a story has what its header asks for (instruct.py)."""
    columns = ("share", "low", "high", "true_stories", "other_stories", "chance")
    panels = {}
    for row in results.read(results.shared("instruct.csv"), numbers(*columns)) or []:
        if results.is_shown(row["run"]):
            empty = dict(title=row["measure"], kind="percent", bars=[], marks={}, end=1)
            panel, name = panels.setdefault(row["measure"], empty), results.name(row["run"])
            panel["bars"].append([name, row["share"], row["low"], row["high"]])
            baselines = {"(true stories)": row["true_stories"], f"({name}, other prompts)": row["other_stories"]}
            for label, value in baselines.items():
                if value is not None and [label, value, None, None] not in panel["bars"]:
                    panel["bars"].append([label, value, None, None])
            panel["marks"] |= {"chance": row["chance"]} if row["chance"] is not None else {}
    if panels:
        gray = "gray: the true stories, and the run's stories for other prompts"
        yield bars(list(panels.values()), f"Share of prompts, with 95% intervals; {gray}.")


# ---- Novelty ----


def novelty_section(results: Results) -> Iterable[dict]:
    """How much of the completions is in the training set, compared with held-out stories (rouge.py)."""
    held_out, trained = (results.of_runs(name, read_rouge) for name in ("rouge.json", "rouge-train.json"))
    analyses, files, texts = {}, {}, ("completions", "beside")
    for run in results.runs:
        for of_split, label, ending in ((held_out, run, ""), (trained, run + OF_TRAINING_STORIES, "-train")):
            if run in of_split:
                analyses[label], files[label] = of_split[run], results.runs[run] / f"flagged{ending}.txt"
    if not analyses:
        return
    columns, rows, before = [("", "text")], [], ""
    for run in analyses:
        columns += [(run, "figures"), (f"{run}: baseline", "figures", "held-out stories, or endings of other stories")]
    for name, title in TITLES.items():
        figures = [analysis["figures"].get(name, {}) for analysis in analyses.values()]
        kind = 1 if name == "span" else 3
        cells = [
            (list(of_run[whose].values()), kind) if whose in of_run else None for of_run in figures for whose in texts
        ]
        before = before if title.startswith("...") else title.split(" in the")[0].removesuffix(" of words")
        if any(cells):
            rows.append([title.replace("...", before).rstrip(" *"), *cells])
    for flag in next(iter(analyses.values()))["flagged"]:
        counts = [analysis["flagged"][flag][whose] for analysis in analyses.values() for whose in texts]
        rows.append([f"flagged: {flag}", *((count, "integer") for count in counts)])
    yield table(columns, rows, "Means, with 95% intervals")
    yield from both_splits({run: each for run, each in trained.items() if "training_and_validation" in each})
    panels = []
    for name, title in PANELS.items():
        values = {run: analysis["values"][name] for run, analysis in analyses.items() if name in analysis["values"]}
        if values:
            panels.append(histogram(title, values, whole=name == "span"))
    caption = "Share of texts. Lines: completions; filled: the baseline, held-out stories or endings of other stories."
    yield dict(type="histograms", panels=panels, caption=caption)
    links = [[[f"{label}: {file.name}", results.link(file)]] for label, file in files.items()]
    yield table([("read the flagged completions", "link")], links)


def both_splits(analyses: dict[str, dict]) -> Iterable[dict]:
    """Completions of training stories beside those of validation stories. analyses: {run: its rouge-train.json}."""
    columns, rows = [("", "text"), ("run", "text")], []
    columns += [(title, "figures") for title in ("of training stories", "of validation stories", "difference")]
    for name in PUBLISHED:
        for run, analysis in analyses.items():
            if figure := analysis["training_and_validation"].get(name):
                cells = [(list(estimate.values()), 1 if name == "span" else 3) for estimate in figure.values()]
                rows.append([TITLES[name].rstrip(" *"), run, *cells])
    if rows:
        yield table(columns, rows, BY_HEART)
    differ = {run: ", ".join(analysis["splits_differ_in"]) for run, analysis in analyses.items()}
    lines = [f"{run}: splits sampled with different {what}; use the same" for run, what in differ.items() if what]
    if lines:
        yield dict(type="warnings", lines=lines)


def histogram(title: str, values: dict[str, dict], whole: bool) -> dict:
    """Shares of the texts, in the same bins for all runs. values: {run: {whose texts: numbers}}; whole: integers."""
    everything = np.concatenate([column for of_run in values.values() for column in of_run.values() if column])
    largest = float(everything.max()) or 1.0  # if all are 0
    step = np.ceil((largest + 1) / BINS) if whole else largest / BINS
    edges = np.arange(0, largest + 1.5 * step, step) if whole else np.linspace(0, largest, BINS + 1)
    series = []
    for run, of_run in values.items():
        counts = {whose: np.histogram(column, edges)[0] / max(1, len(column)) for whose, column in of_run.items()}
        series.append(dict(name=run) | {whose: [round(float(x), 4) for x in of] for whose, of in counts.items()})
    return dict(title=title, end=float(edges[-1]), series=series)


# ---- Stories side by side ----


def side_by_side_section(results: Results) -> Iterable[dict]:
    """The same prompts, continued by each model (sample.py)."""
    rows_of = results.of_runs("samples.jsonl", lambda path: [row for _, row in sorted(read_rows(path).items())])
    prompts = {}
    for run, rows in rows_of.items():
        for row in rows:
            prompt = prompts.setdefault(row["prompt"], dict(prompt=row["prompt"], reference="", of={}))
            prompt["reference"] = prompt["reference"] or shortened(row.get("reference") or "")
            texts = prompt["of"].setdefault(run, [])
            if len(texts) < COMPLETIONS:
                texts.append(shortened(row["completion"]))
    shown, size = [], 0
    for prompt in sorted(prompts.values(), key=lambda prompt: -len(prompt["of"]))[:PROMPTS]:
        size += len(json.dumps(prompt))
        if size > STORY_BYTES:
            break
        shown.append(prompt)
    if shown:
        yield dict(type="stories", prompts=shown, runs=list(rows_of), all=len(prompts))


def shortened(text: str) -> str:
    return text[:LONGEST_TEXT] + "…" * (len(text) > LONGEST_TEXT)
