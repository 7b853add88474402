"""
Do models follow instructions? Checks each story against its header, without a judge.

$ python sample.py --model out/a --eval 200 --n 1  # the headers of validation stories
# or parts of them
$ python sample.py --model out/a --eval 200 --n 1 --ask words summary words,summary
$ python instruct.py out/a out/b  # a table; instruct.json and instruct.png next to the runs
$ python sample.py --model out/a --eval 50 --n 4 --unseen_words && python instruct.py out/a
# single draws and the best of eight
$ python sample.py --model out/a --eval 200 --n 1 --best_of 8 && python instruct.py out/a

Every set that has headers is read: samples/eval.jsonl, samples/unseen.jsonl, samples/prompt.jsonl.
Each figure comes with two baselines: the true stories, the best that can be expected, and the
model's stories for other prompts, which did not see this instruction. Twist, MoralValue,
Foreshadowing and Conflict cannot be checked by rules: for these, grade.py asks a judge.
"""

import itertools
import os
from collections.abc import Collection, Sequence
from pathlib import Path
from statistics import fmean

from matplotlib.figure import Figure

from nanostories.checkpoints.models import label_of
from nanostories.cli import Parser, UserError, existing_path, one_line_errors
from nanostories.corpus.word_forms import (
    SPEECH,
    ends_badly,
    has_sentence,
    is_nearest,
    looks_english,
    uses_word,
)
from nanostories.files import common_directory
from nanostories.generation.samples_file import read_rows, run_of_samples
from nanostories.results import Table, save
from nanostories.statistics import estimate

BASELINES = ("true stories", "other prompts")  # columns, beside the "share" of the run's stories


def found_in(story: str, row: dict, summaries: Collection[str]) -> dict[str, float]:
    """{measure: how far the story fulfills it, 0 to 1} for everything that a row of a set asks
    for."""
    asked = row["instruction"]
    found = {}
    asked_for = " and ".join(name for name in ("words", "summary") if name in asked)
    if row.get("split") == "unseen":
        asked_for = "unseen words"
    words = [uses_word(story, word) for word in asked.get("words", ())]
    if words:
        found[f"{asked_for}: all"] = min(words)
        found[f"{asked_for}: each"] = fmean(words)
    if "summary" in asked and len(summaries) > 1:
        nearest = is_nearest(asked["summary"], story, summaries)
        found[f"{asked_for}: nearest"] = nearest
        if words:
            found[f"{asked_for}: all, and nearest"] = nearest * min(words)
    if "sentence" in asked:
        found["sentence, verbatim"] = has_sentence(story, asked["sentence"])
    features = asked.get("features", ())
    dialogue = "dialogue" if "Dialogue" in features else "dialogue, not asked for"
    found[dialogue] = SPEECH.search(story) is not None
    # Only the bad endings of the built-in plots are recognized; the one asked for may be of another
    # kind.
    if "BadEnding" not in features:
        found["bad ending, not asked for"] = ends_badly(story)
    elif ends_badly(row["reference"] or ""):
        found["bad ending"] = ends_badly(story)
    return found


def stories_under_headers(run: Path) -> dict[Path, list[dict]]:
    """{file: rows} of all sets of a run or of those below a directory, at any temperature."""
    found = {}
    for path in sorted(run.rglob("samples/*.jsonl")):
        rows = [row for _, row in sorted(read_rows(path).items()) if row.get("instruction")]
        if rows:
            found[path] = rows
    if not found:
        raise UserError(
            f"{run}: no stories under headers; sample.py --eval 200 makes some of a corpus with"
            " headers"
        )
    return found


def measure(run: str, rows: Sequence[dict]) -> list[dict]:
    """Rows of instruct.json: the share of the requests that are met, as means over prompts, in
    these stories, in the true ones, and in these stories for other prompts."""
    values = values_by_prompt(rows)
    measured = []
    for name, sources in values.items():
        # "dialogue, not asked for" says something only where dialogue was asked for, too
        if name.removesuffix(", not asked for") not in values:
            continue
        means = {}
        for column, prompts in sources.items():
            means[column] = [fmean(stories) for stories in prompts.values()]
        row = {"run": run, "measure": name, "prompts": len(means["share"])}
        row["share"] = estimate(means["share"], share=True).cell
        for column in BASELINES:
            row[column] = fmean(means[column]) if column in means else None
        measured.append(row)
    return measured


def values_by_prompt(rows: Sequence[dict]) -> dict[str, dict[str, dict[str | int, list[float]]]]:
    """{measure: {column: {prompt: a value for each story}}}"""
    summaries = {row["instruction"]["summary"] for row in rows if "summary" in row["instruction"]}
    values = {}
    shifted = [*rows[len(rows) // 2 :], *rows]  # the other prompt is half the file away
    for row, other in zip(rows, shifted):
        stories = {"share": row["completion"]}
        if row["reference"] is not None:
            stories["true stories"] = row["reference"]
        if (other["reference"] or other["prompt"]) != (row["reference"] or row["prompt"]):
            stories["other prompts"] = other["completion"]  # else it asks for the same story
        for column, story in stories.items():
            for name, value in found_in(story, row, summaries).items():
                prompts = values.setdefault(name, {}).setdefault(column, {})
                # prompts of one true story are not independent (sample.py --ask)
                prompts.setdefault(row["reference"] or row["prompt_index"], []).append(value)
    return values


def shares_figure(measured: Sequence[dict]) -> Figure:
    """A line for each measure of each run, with its interval and both baselines."""
    figure = Figure(figsize=(8, 1.2 + 0.22 * len(measured)), layout="constrained")
    axes = figure.subplots()
    for column, color in zip(BASELINES, ("black", "0.6")):
        values = [row[column] for row in measured]
        axes.plot(values, range(len(measured)), "|", markersize=9, color=color, label=column)
    for i, run in enumerate(dict.fromkeys(row["run"] for row in measured)):
        y = [number for number, row in enumerate(measured) if row["run"] == run]
        share, low, high = zip(*(measured[number]["share"] for number in y))
        axes.hlines(y, low, high, f"C{i}")
        axes.plot(share, y, "o", markersize=4, color=f"C{i}", label=run)
    first_lines = {}
    for i, row in enumerate(measured):
        first_lines.setdefault(row["measure"], i)
    axes.set_yticks(list(first_lines.values()), list(first_lines))
    axes.set(xlim=(-0.03, 1.03), ylim=(len(measured), -1))
    axes.set_xlabel("share fulfilled, 95% intervals over stories asked for")
    axes.grid(axis="x", alpha=0.3)
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    return figure


def main() -> None:
    parser = Parser(__doc__)
    runs = (
        "runs with stories by sample.py, or a directory of them (default: the newest run in out/)"
    )
    parser.add_argument("runs", nargs="*", type=existing_path, help=runs)
    args = parser.parse_args()
    with one_line_errors("instruct.py", interrupted="nothing was written"):
        # here, so that --help need not wait for torch
        from nanostories.checkpoints.checkpoint import newest_run

        paths = args.runs or [newest_run()]
        sets = {}
        for path in paths:
            sets |= stories_under_headers(path)
        writers = {run_of_samples(path.parent.parent) for path in sets}
        directory = Path(os.path.relpath(common_directory(writers)))
        if len(writers) == 1:
            directory = directory.parent
        measured = []
        for path, rows in sets.items():
            run = f"{label_of(path.parent.parent, directory)}, {path.stem}"
            measured += measure(run, rows)
            if "first" in rows[0]:  # by sample.py --best_of
                first = [row | {"completion": row["first"]} for row in rows]
                measured += measure(f"{run}, single draws", first)
        if not measured:
            raise UserError(f"{directory}: these headers ask for nothing that rules can check")
        # words first; the runs next to each other
        measured.sort(key=lambda row: row["measure"], reverse=True)
        stories = (row["completion"] for row in itertools.chain(*sets.values()))
        warnings = []
        if not looks_english(stories):
            consequence = "words and summaries are found by English forms alone"
            warnings.append(f"these stories do not look English: {consequence}")
        formats = dict.fromkeys(("share", *BASELINES), ".1%")
        facts = {"kind": "instructions"}
        table = Table("Instructions followed", measured, formats, facts=facts)
        path = directory / "instruct.json"
        save(path, "instruct.py", [table], warnings, sets, shares_figure(measured))
    print(f"wrote {path} and instruct.png; next, a judge's view: python grade.py {directory}")


if __name__ == "__main__":
    main()
