"""
Tables: written and read as CSV, printed for people as Markdown.

>>> write_table(Path("out/compare.csv"), [{"run": "a", "loss": 1.5}, {"run": "b", "loss": None}])
>>> print(table_text(["run", "loss"], [["a", "1.500"], ["b", ""]]))
"""

import csv
import io
import itertools
import math
from collections.abc import Sequence
from pathlib import Path

from common.files import write_bytes


def write_table(path: Path, rows: Sequence[dict], columns: Sequence[str] | None = None) -> None:
    """CSV, six significant digits. Missing values, None and NaN are empty. columns: by default all keys of the rows."""
    file = io.StringIO(newline="")
    writer = csv.DictWriter(file, columns or list(dict.fromkeys(itertools.chain.from_iterable(rows))))
    writer.writeheader()
    for row in rows:
        writer.writerow({key: cell(value) for key, value in row.items()})
    write_bytes(path, file.getvalue().encode())


def cell(value):
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.6g}"
    return value


def read_table(path: Path) -> list[dict]:
    """The rows of a CSV, all cells as text; ValueError if a line was cut off."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    if any(None in row.values() or None in row for row in rows):
        raise ValueError(f"{path}: a line has too few or too many cells")
    return rows


def read_user_table(path: Path, needed: Sequence[str]) -> list[tuple[str, dict]]:
    """A CSV that a user or a spreadsheet wrote: ("mine.csv, line 3", row) for each row that is not empty.

    Cells are separated by commas, semicolons or tabs. ValueError names a missing column, a line with too few or too
    many cells, or a file that is not text.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        delimiter = max(",;\t", key=text.partition("\n")[0].count)
        reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
        reader.fieldnames = [name.strip() for name in reader.fieldnames or []]
        rows = [(f"{path}, line {reader.line_num}", row) for row in reader]
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror})") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path}: not a readable CSV in UTF-8 ({error})") from None
    if missing := [name for name in needed if name not in reader.fieldnames]:
        raise ValueError(f"{path}: its first line must name the columns {', '.join(needed)}; no {', '.join(missing)}")
    for where, row in rows:
        if None in row or None in row.values():
            raise ValueError(f"{where}: not the {len(reader.fieldnames)} cells that the first line names")
    return [(where, row) for where, row in rows if any(map(str.strip, row.values()))]


def table_text(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table of text cells, padded so that it reads well in a terminal: the first column aligned left, the
    others right."""
    widths = [max(map(len, column)) for column in zip(head, *rows)]
    ruler = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    lines = []
    for first, *others in [head, ruler, *rows]:
        cells = [f"{first:{widths[0]}}", *(f"{cell:>{width}}" for cell, width in zip(others, widths[1:]))]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def publish(path: Path, text: str) -> None:
    """Prints the results of a command, and keeps the same text at `path` (.md), where report.py finds it."""
    print(text, flush=True)
    write_bytes(path, (text + "\n").encode())
