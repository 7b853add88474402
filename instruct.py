"""
Do models follow instructions? Checks each story against its header, without a judge.

$ python sample.py --model out/a --eval 200 --n 1  # the headers of validation stories
# or parts of them
$ python sample.py --model out/a --eval 200 --n 1 --ask words summary words,summary
$ python instruct.py out/a out/b  # a table; instruct.json and instruct.png next to the runs
$ python sample.py --model out/a --eval 50 --n 4 --unseen_words && python instruct.py out/a

Each figure comes with two baselines: the true stories, the best that can be expected, and the
model's stories for other prompts, which did not see this instruction. Twist, MoralValue,
Foreshadowing and Conflict cannot be checked by rules: for these, grade.py asks a judge.
"""

from collections.abc import Collection, Sequence
from pathlib import Path
from statistics import fmean

import numpy as np
from matplotlib.figure import Figure

from nanostories.checkpoints.models import label_of
from nanostories.cli import Parser, UserError, existing_path, one_line_errors
from nanostories.corpus.word_forms import (
    SPEECH,
    ends_badly,
    is_nearest,
    language_warning,
    uses_word,
)
from nanostories.generation.samples_file import UNSEEN, read_rows
from nanostories.results import Table, save
from nanostories.statistics import estimate


def plain(text: str) -> str:
    """On one line, with straight quotes."""
    return " ".join(text.translate(str.maketrans("“”‘’", "\"\"''")).split())


def found_in(story: str, row: dict, summaries: Collection[str]) -> dict[str, float]:
    """{measure: how far the story fulfills it, 0 to 1} for everything that a row of samples.jsonl
    asks for."""
    asked, found = row["instruction"], {}
    kind = " and ".join(name for name in ("words", "summary") if name in asked)
    kind = "unseen words" if row.get("split") == "unseen" else kind
    words = [float(uses_word(story, word)) for word in asked.get("words", ())]
    if words:
        found |= {f"{kind}: all": min(words), f"{kind}: each": fmean(words)}
    if "summary" in asked and len(summaries) > 1:
        found[f"{kind}: nearest"] = nearest = is_nearest(asked["summary"], story, summaries)
        found |= {f"{kind}: all, and nearest": nearest * min(words)} if words else {}
    if "sentence" in asked:
        found["sentence, verbatim"] = float(plain(asked["sentence"]) in plain(story))
    features = asked.get("features", ())
    found["dialogue" if "Dialogue" in features else "dialogue, not asked for"] = float(
        bool(SPEECH.search(story))
    )
    # Only the bad endings of the built-in plots are recognized; the one asked for may be of another
    # kind.
    if "BadEnding" not in features or ends_badly(row["reference"] or ""):
        found["bad ending" if "BadEnding" in features else "bad ending, not asked for"] = float(
            ends_badly(story)
        )
    return found


def stories_under_headers(path: Path) -> dict[str, list[dict]]:
    """{name: rows} of a file that sample.py wrote, or of all those of a run, at any temperature."""
    files = (
        [path / "samples.jsonl", *sorted(path.glob("*/samples.jsonl")), path / UNSEEN]
        if path.is_dir()
        else [path]
    )
    found = {}
    for file in files:
        if rows := [row for _, row in sorted(read_rows(file).items()) if row.get("instruction")]:
            found[str(file.parent if file.name == "samples.jsonl" else file)] = rows
    if not found:
        raise UserError(
            f"{path}: no stories under headers; sample.py --eval 200 makes some of a corpus with"
            " headers"
        )
    return found


def measure(run: str, rows: Sequence[dict]) -> list[dict]:
    """Rows of instruct.json: the share of the requests that are met, as means over prompts, in
    these stories, in the true ones, and in these stories for other prompts."""
    summaries = {row["instruction"]["summary"] for row in rows if "summary" in row["instruction"]}
    values = {}  # (measure, source of the stories) -> prompt -> values
    for row, other in zip(
        rows, rows[len(rows) // 2 :] + rows
    ):  # the other prompt is half the file away
        stories = dict(own=row["completion"], true=row["reference"], other=other["completion"])
        if (other["reference"] or other["prompt"]) == (row["reference"] or row["prompt"]):
            del stories["other"]  # it asks for the same story
        for source, story in stories.items():
            for name, value in found_in(story, row, summaries).items() if story is not None else ():
                values.setdefault((name, source), {}).setdefault(row["prompt_index"], []).append(
                    value
                )
    shares = {key: fmean(map(fmean, prompts.values())) for key, prompts in values.items()}
    measured = []
    for name in (name for name, source in values if source == "own"):
        if (name.removesuffix(", not asked for"), "own") in values:  # else never asked for
            means = [fmean(own) for own in values[name, "own"].values()]
            row = {"run": run, "measure": name, "prompts": len(means)}
            row["share"] = estimate(np.array(means), share=True).cell
            row["true stories"] = shares.get((name, "true"))
            row["other prompts"] = shares.get((name, "other"))
            measured.append(row)
    return measured


def draw(measured: Sequence[dict]) -> Figure:
    """A line for each measure of each run, with its interval and both baselines."""
    figure = Figure(figsize=(8, 1.2 + 0.22 * len(measured)), layout="constrained")
    axes, y = figure.subplots(), range(len(measured))
    column = {name: [row[name] for row in measured] for name in measured[0]}
    runs = list(dict.fromkeys(column["run"]))
    colors = [f"C{runs.index(run)}" for run in column["run"]]
    share, low, high = zip(*column["share"])
    axes.hlines(y, low, high, colors)
    axes.scatter(share, y, s=16, c=colors)
    axes.plot(column["true stories"], y, "|", markersize=9, color="black", label="true stories")
    axes.plot(
        column["other prompts"],
        y,
        "|",
        markersize=9,
        color="0.6",
        label="stories for other prompts",
    )
    for i, run in enumerate(runs):
        axes.plot([], [], "o", markersize=4, color=f"C{i}", label=run)
    axes.set_yticks(y, column["measure"])
    axes.set(
        xlim=(-0.03, 1.03), ylim=(len(measured), -1), xlabel="share of the prompts, 95% intervals"
    )
    axes.grid(axis="x", alpha=0.3)
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    return figure


def main() -> None:
    parser = Parser(__doc__)
    runs = "runs, or files that sample.py wrote (default: the newest run in out/)"
    parser.add_argument("runs", nargs="*", type=existing_path, help=runs)
    args = parser.parse_args()
    with one_line_errors("instruct.py", interrupted="nothing was written"):
        from nanostories.checkpoints.checkpoint import (
            newest_run,  # here, so that --help need not wait for torch
        )

        paths = args.runs or [newest_run()]
        sets = {run: rows for path in paths for run, rows in stories_under_headers(path).items()}
        directory = paths[0].parent
        measured = []
        for run, rows in sets.items():
            measured += measure(label_of(Path(run), directory), rows)
        # words first; the runs next to each other
        measured.sort(key=lambda row: row["measure"], reverse=True)
        stories = (row["completion"] for rows in sets.values() for row in rows)
        note = language_warning(stories, "words and summaries are found by English forms alone")
        warnings = [note.removeprefix("WARNING ")] if note else []
        formats = dict.fromkeys(("share", "true stories", "other prompts"), ".1%")
        facts = {"kind": "instructions"}
        table = Table("Instructions followed", measured, formats, facts=facts)
        sources = [source_of(Path(run)) for run in sets]
        path = directory / "instruct.json"
        save(path, "instruct.py", [table], warnings, sources, draw(measured))
    print(f"wrote {path} and instruct.png; next, a judge's view: python grade.py {directory}")


def source_of(run: Path) -> Path:
    return run / "samples.jsonl" if run.is_dir() else run


if __name__ == "__main__":
    main()
