"""
The beginning of the report: a row for each run, with one figure of each command, and a story of
each.

>>> overview_section(Found([Path("out")]))  # HTML
"""

import html
import statistics
from collections.abc import Iterator
from pathlib import Path

from nanostories.files import read_json
from nanostories.generation.samples_file import EVAL, read_rows
from nanostories.pages.found import Found
from nanostories.pages.html import language_of
from nanostories.pages.stories import LONGEST
from nanostories.results import Cell, Result, Table, load, table_html
from nanostories.training.curves import read_curve

FORMATS = {
    "bits per byte": ".3f",
    "grammar": ".0%",
    "facts": ".0%",
    "fluency": ".2f",
    "consistency": ".2f",
    "flagged as copies": "",
    "tokens/s": ",.0f",
}
ABOUT = {
    "bits per byte": "the lowest, on the validation stories",
    "grammar": "pairs of sentences of which the right one is likelier; chance is 50%",
    "facts": "prompts answered right; chance is 25%",
    "fluency": "by the first judge, beside the true endings",
    "consistency": "by the first judge, beside the true endings",
    "flagged as copies": "completions that copy a training story",
}
BOLD = "Bold: certainly the best, as its 95% interval lies above those of all other runs."


def overview_section(found: Found) -> str:
    """ "" if there is no run."""
    rows = {}
    for path, log in found.contents("log.csv", read_curve).items():
        validated = [row["bpb"] for row in log if row["bpb"]]
        speeds = [row["tokens_per_s"] for row in log if row["tokens_per_s"]]
        row = {"run": found.label(path.parent)} | dict.fromkeys(FORMATS)
        row["bits per byte"] = min(validated, default=None)
        row["tokens/s"] = statistics.median(speeds) if speeds else None
        rows[path.parent] = row
    if not rows:
        return ""
    truth = {"run": "(true endings)"}
    notes = []
    for path, figures in found.contents("*.json", read_figures).items():
        for name, figure, cell, note in figures:
            run = path.parent if name == path.parent.name else path.parent / name
            row = rows.get(run, {})
            if name == "(true ending)":
                row = truth
            if row and row.get(figure) is None:
                if note and isinstance(cell, list):
                    cell = cell[0]  # shown without an interval, so that it is never the best
                row[figure] = cell
                if note:
                    notes.append(f"{row['run']}, {figure}: {note}.")
    table = Table("", list(rows.values()), FORMATS)
    best = {name: best_of(name, table.rows) for name in FORMATS}
    if len(truth) > 1:
        table.rows.append(truth)
    for name in table.columns:
        if all(row.get(name) is None for row in table.rows):
            for row in table.rows:
                row.pop(name, None)
    content = table_html(table, bold={(row, name) for name, row in best.items() if row})
    meanings = [f"{name}: {ABOUT[name]}." for name in table.columns if name in ABOUT]
    about = html.escape(" ".join([*meanings, BOLD, *notes]))
    return f"{content}<p>{about}</p>{one_story_each(found, rows)}"


def read_figures(path: Path) -> list[tuple[str, str, Cell, str]]:
    """figures_of a result; none of another JSON."""
    if "tables" not in read_json(path):
        return []
    return list(figures_of(load(path)))


def figures_of(result: Result) -> Iterator[tuple[str, str, Cell, str]]:
    """(name of a run, one of FORMATS, its cell, why not to believe it); of stories, those of the
    set eval"""

    def warning_of(run: str) -> str:
        about_it = [text for text in result.warnings if text.startswith(f"{run} ")]
        return about_it[0].removeprefix(run).strip() if about_it else ""

    for table in result.tables:
        kind = table.facts.get("kind")
        for row in table.rows:
            name = next(iter(row.values()))
            if kind == "pairs" and name == "all":
                for model, cell in list(row.items())[1:]:
                    yield model, "grammar", cell, warning_of(model)
            if kind == "shares":
                yield name, "facts", row.get("facts"), warning_of(name)
            if kind == "scores" and table.facts["judge"] and table.facts["set"] == EVAL:
                for score in ("fluency", "consistency"):
                    note = table.notes.get(name) or table.notes.get(score, "")
                    yield name, score, row.get(score), note
            if kind == "flags" and row["flagged"] == "copy" and row["set"] == EVAL:
                yield name, "flagged as copies", row["completions"], ""


def best_of(name: str, rows: list[dict[str, Cell]]) -> str:
    """The run whose interval lies above those of all others; "" if there is none."""
    intervals = {row["run"]: row[name] for row in rows if isinstance(row[name], list)}
    if len(intervals) < 2 or any(low is None for _, low, _ in intervals.values()):
        return ""
    best = max(intervals, key=lambda run: intervals[run][0])
    others = [high for run, (_, _, high) in intervals.items() if run != best]
    return best if intervals[best][1] > max(others) else ""


def one_story_each(found: Found, rows: dict[Path, dict]) -> str:
    columns = []
    for path, stories in found.contents("samples/eval.jsonl", read_rows).items():
        if path.parent.parent in rows:
            story = next(iter(stories.values()))
            prompt = html.escape(story["prompt"])
            completion = html.escape(story["completion"][:LONGEST])
            run = html.escape(rows[path.parent.parent]["run"])
            language = language_of([story["prompt"] + story["completion"]])
            text = f'<p lang="{language}"><i>{prompt}</i>{completion}</p>'
            columns.append(f"<div><b>{run}</b>{text}</div>")
    return f'<div class="stories">{"".join(columns)}</div>' if columns else ""
