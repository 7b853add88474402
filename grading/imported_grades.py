"""
Grades made elsewhere: a CSV with a line for each grading, by the numbers of prompt and sample in samples.jsonl; or,
without these two columns, with the mean of a run on each line.

    run,prompt,sample,judge,grammar,plot
    demo,0,2,a teacher,7,5.5
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from common.tables import read_user_table
from grading.scores import AGES, CHAT, IMPORTED, checked
from grading.stories import Row, Run


def imported_rows(paths: Sequence[Path], runs: Sequence[Run]) -> Iterator[Row]:
    """ValueError names the first line that is wrong."""
    places = {(run.name, str(row.get("prompt_index", "")), str(row.get("sample_index", ""))): story
              for run in runs for row, story in [({}, None), *zip(run.rows, run.stories)]}  # fmt: skip
    for where, cells in (line for path in paths for line in read_user_table(path, ("run", "judge"))):
        cells = {name: cell.strip() for name, cell in cells.items()}
        place, judge = (cells.pop("run"), cells.pop("prompt", ""), cells.pop("sample", "")), cells.pop("judge")
        if place not in places or cells.keys() - CHAT.keys():
            runs_and_scores = f"runs: {', '.join(run.name for run in runs)}; scores: {', '.join(CHAT)}"
            named = f"run, prompt and sample {place}, or column ({', '.join(cells)})"
            raise ValueError(f"{where}: no such {named}; {runs_and_scores}")
        for score, cell in filter(lambda item: item[1], cells.items()):
            years = AGES.get(cell.upper(), cell) if score == "age" else cell
            try:
                yield Row(judge + IMPORTED, place[0], places[place], score, checked(score, float(years)))
            except ValueError:
                raise ValueError(f"{where}: {score} is {cell!r}, no number on its scale") from None
