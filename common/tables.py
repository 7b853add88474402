"""
Tables: written and read as CSV, printed for people, or as Markdown for docs/.

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
    """CSV, six significant digits. What a row lacks, None and NaN are empty; columns: those of the rows, in order."""
    file = io.StringIO(newline="")
    writer = csv.DictWriter(file, columns or list(dict.fromkeys(itertools.chain.from_iterable(rows))))
    writer.writeheader()
    for row in rows:
        writer.writerow({key: as_cell(value) for key, value in row.items()})
    write_bytes(path, file.getvalue().encode())


def as_cell(value):
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.6g}"
    return value


def read_table(path: Path) -> list[dict]:
    """Its rows, all cells text; ValueError where a line was cut."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    if any(None in row.values() or None in row for row in rows):
        raise ValueError(f"{path}: a line has too few or too many cells")
    return rows


def table_text(head: Sequence[str], rows: Sequence[Sequence[str]], markdown: bool = False) -> str:
    """A table of text cells: the first column aligned left, the others right."""
    if markdown:
        ruler = ["---"] + ["---:"] * (len(head) - 1)
        return "\n".join("| " + " | ".join(row) + " |" for row in [head, ruler, *rows])
    widths = [max(map(len, column)) for column in zip(head, *rows)]
    lines = []
    for first, *others in [head, *rows]:
        cells = [f"{first:{widths[0]}}", *(f"{cell:>{width}}" for cell, width in zip(others, widths[1:]))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
