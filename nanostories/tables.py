"""
Tables: written and read as CSV, printed for people as Markdown.

>>> write_table(Path("out/compare.csv"), [{"run": "a", "loss": 1.5}, {"run": "b", "loss": None}])
>>> print(table_text(["run", "loss"], [["a", "1.500"], ["b", ""]]))
| run |  loss |
| --- | ----: |
| a   | 1.500 |
| b   |       |
"""

import csv
import io
import itertools
from collections.abc import Sequence
from pathlib import Path

from nanostories.cli import UserError
from nanostories.files import write_bytes


def write_table(path: Path, rows: Sequence[dict], columns: Sequence[str] | None = None) -> None:
    """CSV, six significant digits. Missing values, None and NaN are empty. columns: by default all
    keys of the rows."""
    if columns is None:
        columns = dict.fromkeys(itertools.chain.from_iterable(rows))
    file = io.StringIO(newline="")
    writer = csv.DictWriter(file, list(columns))
    writer.writeheader()
    for row in rows:
        cells = {}
        for column, value in row.items():
            if isinstance(value, float):
                value = f"{value:.6g}".replace("nan", "")
            cells[column] = value
        writer.writerow(cells)
    write_bytes(path, file.getvalue().encode())


def read_table(path: Path) -> list[dict]:
    """The rows of a CSV, all cells as text; UserError as of read_user_table."""
    return [row for _, row in read_user_table(path, ())]


def read_user_table(path: Path, needed: Sequence[str]) -> list[tuple[str, dict]]:
    """("mine.csv, line 3", row) for each row of a CSV; spreadsheets separate cells by semicolons or
    tabs, too.

    UserError names a missing column, a line with too few or too many cells, or a file that is not
    text.
    """
    with path.open(newline="", encoding="utf-8-sig") as file:
        try:
            delimiter = max(",;\t", key=file.readline().count)
            file.seek(0)
            reader = csv.DictReader(file, delimiter=delimiter, strict=True)
            names = reader.fieldnames or []
            rows = [(f"{path}, line {reader.line_num}", row) for row in reader]
        except (UnicodeDecodeError, csv.Error) as error:
            raise UserError(f"{path}: not a readable CSV in UTF-8 ({error})") from None
    if missing := set(needed) - set(names):
        raise UserError(
            f"{path}: its first line does not name the columns {', '.join(sorted(missing))}"
        )
    for where, row in rows:
        if None in row or None in row.values():
            raise UserError(f"{where}: not the {len(names)} cells that the first line names")
    return [(where, row) for where, row in rows if any(row.values())]


def table_text(
    head: Sequence[str], rows: Sequence[Sequence[str]], is_number: Sequence[bool] | None = None
) -> str:
    """A Markdown table, padded to read well in a terminal. is_number: which columns are aligned
    right (default: all but the first)."""
    if is_number is None:
        is_number = [False] + [True] * (len(head) - 1)
    widths = [max(map(len, column)) for column in zip(head, *rows)]
    ruler = []
    for width, right in zip(widths, is_number):
        ruler.append("-" * (width - 1) + ":" if right else "-" * width)
    lines = []
    for cells in [head, ruler, *rows]:
        padded = []
        for cell, width, right in zip(cells, widths, is_number):
            padded.append(cell.rjust(width) if right else cell.ljust(width))
        lines.append("| " + " | ".join(padded) + " |")
    return "\n".join(lines)
