"""
The beginning of the report: a row for each run or other writer of stories, with one figure of each
command, and a story of each.

>>> overview_section(ResultFiles([Path("out")]))  # HTML
"""

import html
from collections.abc import Iterator
from pathlib import Path

from nanostories.checkpoints.checkpoint import checkpoint_file, identity_of_checkpoint
from nanostories.generation.samples_file import EVAL, read_rows
from nanostories.grading.scores import TRUE_ENDING
from nanostories.pages.result_files import ResultFiles
from nanostories.pages.runs import run_row
from nanostories.pages.stories import side_by_side, story_column
from nanostories.results import Cell, Result, Table, table_html
from nanostories.training.curves import read_curve
from nanostories.training.run_directory import percent_trained

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
    "fluency": "by {judge}, of runs that continue the same prompts",
    "consistency": "by {judge}, of runs that continue the same prompts",
    "flagged as copies": "completions that copy a training story, of those long enough for it",
}
OF_STORIES = ("fluency", "consistency", "flagged as copies")
BOLD = "Bold: its 95% interval lies above those of all other runs."


def overview_section(files: ResultFiles) -> str:
    """HTML; "" if there is no run."""
    rows = {}  # by directory
    notes = {}  # (run, column): why not to believe it
    for path, log in files.contents("log.csv", read_curve).items():
        row = run_row(files.label(path.parent), log, {})
        rows[path.parent] = row
        note = percent_trained(log[-1]["done"])
        if note:
            notes[row["run"], "bits per byte"] = note
    stories = {}
    for path, samples in files.contents("samples/eval.jsonl", read_rows).items():
        directory = path.parent.parent
        stories[directory] = next(iter(samples.values()))
        # of a model that was not trained here, or sampled at another temperature
        rows.setdefault(directory, {"run": files.label(directory)})
    if not rows:
        return ""
    by_others = {rows[directory]["run"] for directory in with_other_weights(files, stories)}
    scores = most_grades(files, rows)
    judge = scores.facts["judge"] if scores else ""
    truth = {"run": "(true endings)"}
    for path, result, out_of_date in files.results:
        for name, column, cell, note in figures_of(result, path.stem, scores):
            row = rows.get(directory_of(name, path, files.top))
            if name == TRUE_ENDING:
                row = truth
            if not row or cell is None or row.get(column) is not None:
                continue
            row[column] = cell
            if row["run"] in by_others and column in OF_STORIES:
                note = "of stories by other weights than their checkpoint has now; sample again"
            if note or out_of_date:
                notes[row["run"], column] = note or out_of_date
    return overview_html(list(rows.values()), truth, notes, judge) + one_story_each(stories, rows)


def overview_html(runs: list[dict], truth: dict, notes: dict, judge: str) -> str:
    """The table, and below it what its columns mean and which figures not to believe."""
    bold = {(best_of(column, runs), column) for column in FORMATS} - notes.keys()
    rows = [*runs, truth] if len(truth) > 1 else runs
    columns = ["run"]
    for column in FORMATS:
        if any(row.get(column) is not None for row in rows):
            columns.append(column)
    shown = []
    for row in rows:
        shown.append({column: row.get(column) for column in columns})
    texts = []
    for column in columns:
        if column in ABOUT:
            texts.append(f"{column}: {ABOUT[column].format(judge=judge)}.")
    texts.append(BOLD)
    places = {}  # note -> its cells
    for (run, column), note in notes.items():
        places.setdefault(note, []).append(f"{run} ({column})")
    for note, cells in places.items():
        texts.append(f"{', '.join(cells)}: {note}.")
    return f"{table_html(Table('', shown, FORMATS), bold)}<p>{html.escape(' '.join(texts))}</p>"


def directory_of(name: str, result: Path, top: Path) -> Path:
    """Of a run or another writer of stories, by its name in a result."""
    from nanostories.checkpoints.models import open_model

    if name.startswith("hf:"):
        return top / open_model(name).directory.name
    if name == result.parent.name:  # the result lies in the run itself
        return result.parent
    return result.parent / name


def with_other_weights(files: ResultFiles, stories: dict[Path, dict]) -> Iterator[Path]:
    """The directories whose stories are by other weights than their checkpoint has. stories: a row
    of a set, by directory."""
    for directory, story in stories.items():
        if "weights" in story:
            now = files.read(checkpoint_file(story.get("model") or ""), identity_of_checkpoint)
            if now and story["weights"] != now:
                yield directory


def most_grades(files: ResultFiles, rows: dict[Path, dict]) -> Table | None:
    """Of the tables of a judge's scores of the set eval, the one with most graded stories, by the
    runs of these rows. Others may be of other prompts, which do not compare."""
    most = 0
    found = None
    for path, result, _ in files.results:
        for table in filter(is_of_judge, result.tables):
            known = [x for x in table.rows if directory_of(x["run"], path, files.top) in rows]
            n_graded = sum(row["stories"] - row["ungraded"] for row in known)
            if n_graded > most:
                most = n_graded
                found = table
    return found


def is_of_judge(table: Table) -> bool:
    facts = table.facts
    return facts.get("kind") == "scores" and bool(facts["judge"]) and facts.get("set") == EVAL


def figures_of(
    result: Result, stem: str, scores: Table | None
) -> Iterator[tuple[str, str, Cell, str]]:
    """Yields (name of a run, one of FORMATS, its cell, why not to believe it). Scores are those of
    one table; copies are of the set eval. stem: of the result's file"""

    def warning_of(run: str) -> str:
        about_it = [text for text in result.warnings if text.startswith(f"{run} ")]
        return "; ".join(text.removeprefix(run).strip() for text in about_it)

    for table in result.tables:
        kind = table.facts.get("kind")
        for row in table.rows:
            name = next(iter(row.values()))
            if kind == "pairs" and stem == "grammar" and name == "all":  # not Zorro's
                for model, cell in list(row.items())[1:]:
                    yield model, "grammar", cell, warning_of(model)
            if kind == "shares":
                yield name, "facts", row.get("facts"), warning_of(name)
            if table is scores:
                for score in ("fluency", "consistency"):
                    note = table.notes.get(name) or table.notes.get(score, "")
                    yield name, score, row.get(score), note
            if kind == "flags" and row["flagged"] == "copy" and row["set"] == EVAL:
                yield name, "flagged as copies", row["completions"], ""


def best_of(column: str, rows: list[dict[str, Cell]]) -> str:
    """The run whose interval lies above those of all others; "" if there is none."""
    intervals = {row["run"]: row[column] for row in rows if isinstance(row.get(column), list)}
    if len(intervals) < 2 or any(low is None for _, low, _ in intervals.values()):
        return ""
    best = max(intervals, key=lambda run: intervals[run][0])
    others = [high for run, (_, _, high) in intervals.items() if run != best]
    return best if intervals[best][1] > max(others) else ""


def one_story_each(stories: dict[Path, dict], rows: dict[Path, dict]) -> str:
    """stories: a row of a set, by directory."""
    columns = []
    for directory, story in stories.items():
        columns.append(story_column(rows[directory]["run"], story["completion"], story["prompt"]))
    return side_by_side(columns)
