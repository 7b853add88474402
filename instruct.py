"""
Do models follow instructions? Checks each story for what its header asked for, without a judge.

$ python sample.py --model out/a --eval 200 --n 1                              # the headers of validation stories
$ python sample.py --model out/a --eval 200 --n 1 --ask words summary words,summary        # or parts of them
$ python instruct.py out/a out/b                # a table; instruct.csv and instruct.png next to the runs

Each figure comes with two baselines: the true stories, the best that can be expected, and the model's stories for other
prompts, which did not see this instruction. Twist, MoralValue, Foreshadowing and Conflict cannot be checked by rules:
for these, grade.py asks a judge.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from common.cli import Parser, one_line_errors

ORDER = ("words", "summary", "both", "sentence", "dialogue", "bad")  # of the measures, by their first word


def found_in(story: str, row: dict, summaries) -> Iterator[tuple[str, float]]:
    """(measure, how far the story fulfills it, 0 to 1) for everything that a row of samples.jsonl asks for."""
    from corpus.builtin_bad_endings import ends_badly
    from grading.instruction_following import pattern, plain

    asked = row["instruction"]
    words = [float(pattern(word).search(story) is not None) for word in asked.get("words", ())]
    if words:
        among = "and a summary" if "summary" in asked else "no summary"
        yield f"words ({among}): each", sum(words) / len(words)
        yield f"words ({among}): all", min(words)
    if "summary" in asked and len(summaries.words) > 1:
        nearest = summaries.is_nearest(asked["summary"], story)
        yield f"summary ({'and' if words else 'no'} words)", nearest
        if words:
            yield "both: all words, and the summary", nearest * min(words)
    if "sentence" in asked:
        yield "sentence, verbatim", float(plain(asked["sentence"]) in plain(story))
    wanted = asked.get("features", ())
    yield f"dialogue{'' if 'Dialogue' in wanted else ', not asked for'}", float('"' in plain(story))
    # Only the bad endings of the built-in plots are recognized; the one asked for may be of another kind.
    if "BadEnding" not in wanted or ends_badly(row["reference"] or ""):
        yield f"bad ending{'' if 'BadEnding' in wanted else ', not asked for'}", float(ends_badly(story))


def measure(path: Path) -> list[dict]:
    """Rows of instruct.csv for a run, or a file that sample.py wrote: the share of what was asked for that is there, as
    means over prompts, in its stories, in the true ones, and in its stories for other prompts."""
    from common.statistics import wilson
    from generation.samples_file import read_rows
    from grading.instruction_following import Summaries

    file = path / "samples.jsonl" if path.is_dir() else path
    rows = [row for _, row in sorted(read_rows(file).items()) if row.get("instruction")]
    if not rows:
        remedy = "write them with sample.py --eval 200 on a corpus with headers (prepare.py instruct, builtin-instruct)"
        raise ValueError(f"{file}: no stories written under headers; {remedy}")
    summaries = Summaries({row["instruction"]["summary"] for row in rows if "summary" in row["instruction"]})
    stories = dict(own=[row["completion"] for row in rows], true=[row["reference"] for row in rows])
    values = {}  # measure -> whose stories -> prompt -> values
    for whose, texts in (stories | dict(other=stories_for_other_prompts(rows))).items():
        for row, story in zip(rows, texts):
            for name, value in found_in(story, row, summaries) if story is not None else ():
                values.setdefault(name, {}).setdefault(whose, {}).setdefault(row["prompt_index"], []).append(value)
    for name in {"dialogue", "bad ending"} - values.keys():  # never asked for
        values.pop(f"{name}, not asked for", None)
    measured = []
    for name in sorted(values, key=lambda name: (ORDER.index(re.match("[a-z]+", name)[0]), name)):
        means = {whose: [sum(each) / len(each) for each in own.values()] for whose, own in values[name].items()}
        shares = {whose: sum(each) / len(each) for whose, each in means.items()}
        low, high = wilson(shares["own"], len(means["own"]))
        line = dict(run=str(path), measure=name, prompts=len(means["own"]), share=shares["own"], low=low, high=high)
        line |= dict(true_stories=shares.get("true"), other_stories=shares.get("other"))
        measured.append(line | dict(chance=1 / len(summaries.words) if name.startswith("summary") else None))
    return measured


def stories_for_other_prompts(rows: Sequence[dict]) -> list[str | None]:
    """For each row, the next completion of a prompt that asks for another story."""
    subjects = [row["reference"] or row["prompt"] for row in rows]
    others = []
    for i, subject in enumerate(subjects):
        following = (j % len(rows) for j in range(i + 1, i + len(rows)))
        others.append(next((rows[j]["completion"] for j in following if subjects[j] != subject), None))
    return others


def as_table(measured: Sequence[dict]) -> str:
    from common.tables import table_text

    def percent(share: float | None) -> str:
        return "" if share is None else f"{100 * share:.1f}"

    columns = ("share", "low", "high", "true_stories", "other_stories", "chance")
    rows = [
        [row["measure"], row["run"], str(row["prompts"]), *(percent(row[column]) for column in columns)]
        for row in sorted(measured, key=lambda row: [other["measure"] for other in measured].index(row["measure"]))
    ]
    head = ["measure", "run", "prompts", "%", "95% from", "to", "true stories", "other stories", "chance"]
    return table_text(head, rows)


def main() -> None:
    parser = Parser(__doc__)
    runs = "runs, or files that sample.py wrote (default: the newest run in out/)"
    parser.add_argument("runs", nargs="*", type=Path, help=runs)
    args = parser.parse_args()
    with one_line_errors("instruct.py", interrupted="nothing was written"):
        from checkpoints.checkpoint import newest_run  # here, so that --help need not wait for torch
        from common.figures import save_figure
        from common.tables import publish, write_table
        from grading.instruction_following import draw

        paths = args.runs or [newest_run()]
        measured, directory = [line for path in paths for line in measure(path)], paths[0].parent
        publish(directory / "instruct.md", as_table(measured))
        write_table(directory / "instruct.csv", measured)
        save_figure(draw(measured), directory / "instruct.png")
    print(f"wrote {directory / 'instruct.csv'} and instruct.png; next, for a judge's view: python grade.py {directory}")


if __name__ == "__main__":
    main()
