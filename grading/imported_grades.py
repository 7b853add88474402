"""
Grades that were made elsewhere, by people or another program: a CSV with one line per grading, with the numbers of
prompt and sample in samples.jsonl; or, without prompt and sample, with the mean of a run on each line.

    run,prompt,sample,judge,grammar,plot
    demo,0,2,a teacher,7,5.5
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from common.tables import read_user_table
from grading.scores import AGES, CHAT, IMPORTED
from grading.stories import Row, Run


def imported_rows(paths: Sequence[Path], runs: Sequence[Run]) -> Iterator[Row]:
    """ValueError names the first line that is wrong."""
    places = {(run.name, "", ""): None for run in runs}
    for run in runs:
        for row, story in zip(run.rows, run.stories):
            places[run.name, str(row["prompt_index"]), str(row["sample_index"])] = story
    for where, cells in (line for path in paths for line in read_user_table(path, ("run", "judge"))):
        cells = {name: cell.strip() for name, cell in cells.items()}
        place, judge = (cells.pop("run"), cells.pop("prompt", ""), cells.pop("sample", "")), cells.pop("judge")
        if place not in places:
            raise ValueError(
                f"{where}: no run, prompt and sample {place}; the runs are {', '.join(r.name for r in runs)}"
            )
        for score, cell in cells.items():
            low, high = CHAT[score].scale if score in CHAT else (0, 0)
            try:
                value = AGES[cell.upper()] if score == "age" and cell.upper() in AGES else float(cell or low)
            except ValueError:
                value = float("nan")
            if score not in CHAT or not low <= value <= high:
                raise ValueError(
                    f"{where}: {score} is {cell!r}; the scores are {', '.join(CHAT)}, here {low:g} to {high:g}"
                )
            if cell:
                yield Row(judge + IMPORTED, place[0], places[place], score, value)
