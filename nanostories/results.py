"""
What a command found, as data: tables with intervals, notes and warnings, and the files that it was
computed from. One file, NAME.json, which the terminal, the report and experiments.py all read.

>>> scores = Table("Scores", [{"run": "demo", "grammar": [7.1, 6.8, 7.4]}], {"grammar": ".1f"})
>>> samples = Path("out/demo/samples/eval.jsonl")
>>> result = save(Path("out/grades.json"), "grade.py", [scores], sources=[samples])
Scores
<BLANKLINE>
| run  |        grammar |
| ---- | -------------: |
| demo | 7.1 [6.8, 7.4] |
>>> load(Path("out/grades.json")).tables[0].rows[0]["grammar"]
[7.1, 6.8, 7.4]
"""

import html
import itertools
import math
import os
import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from nanostories.cli import UserError
from nanostories.files import read_json, sha256_of, write_json
from nanostories.tables import table_text

FORMAT = 1
SUPERSCRIPT = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")  # for the numbers of notes
MISSING = "–"
MOST_DIFFERENCES = 30  # of more, a terminal shows only the clear ones

# A text, a number, nothing, or a value with the ends of its 95% interval: [value, low, high].
Cell = str | float | None | Sequence[float]


@dataclass
class Table:
    title: str
    rows: list[dict[str, Cell]]  # the first column names the row, most often a run
    formats: dict[str, str] = field(default_factory=dict)  # by column, such as ".3f" or ".1%"
    # by column, or by the name of a row: why not to believe it; shown as a mark and a footnote
    notes: dict[str, str] = field(default_factory=dict)
    about: str = ""  # shown below the table
    # for programs: what the rows have in common, such as {"kind": "scores", "judge": "gpt-4o-mini"}
    facts: dict[str, str] = field(default_factory=dict)

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(itertools.chain.from_iterable(self.rows)))


@dataclass
class Result:
    command: str
    tables: list[Table]
    warnings: list[str]
    sources: dict[str, str]  # {path from the result's directory: SHA-256}
    arguments: list[str] = field(default_factory=list)  # as the command was called


# ---- Files ----
def save(
    path: Path,
    command: str,
    tables: Sequence[Table],
    warnings: Iterable[str] = (),
    sources: Iterable[Path] = (),
    figure=None,
    is_shown: bool = True,
) -> Result:
    """Writes NAME.json, and the figure as NAME.png and NAME.svg; prints the tables and warnings if
    is_shown."""
    checksums = {}
    for source in sources:
        checksums[os.path.relpath(source, path.parent)] = sha256_of(source)
    found = Result(command, list(tables), list(warnings), checksums, sys.argv[1:])
    if figure:
        from nanostories.figures import save_figure  # here, as matplotlib is slow to import

        save_figure(figure, path.with_suffix(".png"))
    # last: where it is, all is there
    write_json(path, {"format": FORMAT} | without_nan(asdict(found)))
    result = load(path)  # plain types, as everybody else will read it
    if is_shown:
        print(to_text(result), flush=True)
    return result


def without_nan(value):
    """Plain types, None for NaN and infinities, which JSON does not have."""
    if isinstance(value, dict):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(item) for item in value]
    if hasattr(value, "item"):  # a number of NumPy or PyTorch
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def load(path: Path) -> Result:
    """UserError if the file was not written by `save`."""
    facts = read_json(path)
    if facts.pop("format", None) != FORMAT:
        raise UserError(f"{path}: no results of format {FORMAT}; run the command again")
    try:
        tables = [Table(**table) for table in facts.pop("tables")]
        return Result(tables=tables, **facts)
    except (TypeError, KeyError) as error:
        raise UserError(f"{path}: no results of a command ({error})") from None


def outdated(result: Result, directory: Path) -> list[str]:
    """The sources of a result in this directory that have changed since, or are gone."""
    changed = []
    for name, checksum in result.sources.items():
        path = directory / name
        if not path.exists() or sha256_of(path) != checksum:
            changed.append(name)
    return changed


# ---- As text and as HTML ----
def cell_text(cell: Cell, form: str = "") -> str:
    """form: a format, such as ".3f" (default: three significant digits; whole numbers in full)."""
    if isinstance(cell, str):
        return cell
    if cell is None or cell != cell:  # NaN
        return MISSING
    if isinstance(cell, int):
        return format(cell, form or ",")
    if isinstance(cell, float):
        return format(cell, form or ".3g")
    value, low, high = [cell_text(number, form) for number in cell]
    return value if MISSING in (value, low) else f"{value} [{low}, {high}]"


def marks_of(table: Table) -> dict[str, str]:
    """{note: its mark}; equal notes share one."""
    notes = list(dict.fromkeys(table.notes.values()))
    return {note: str(i).translate(SUPERSCRIPT) for i, note in enumerate(notes, 1)}


def marked(name: str, table: Table) -> str:
    note = table.notes.get(name)
    return f"{name} {marks_of(table)[note]}" if note else name


def cells_of(table: Table) -> tuple[list[str], list[list[str]], list[bool]]:
    """(titles of the columns, rows), as text with the marks of notes; and whether each column holds
    numbers, which are aligned right."""
    head = []
    is_number = []
    for name in table.columns:
        head.append(marked(name, table))
        is_number.append(not any(isinstance(row.get(name), str) for row in table.rows))
    rows = []
    for row in table.rows:
        cells = [cell_text(row.get(name), table.formats.get(name, "")) for name in table.columns]
        cells[0] = marked(cells[0], table)
        rows.append(cells)
    return head, rows, is_number


def to_text(result: Result) -> str:
    """For a terminal, without definitions, which are long; the tables are Markdown, too."""
    parts = []
    for table in result.tables:
        if table.facts.get("kind") == "definitions":
            continue
        clear = [row for row in table.rows if row.get("clear") != "no"]
        n_others = len(table.rows) - len(clear)
        if n_others and len(table.rows) > MOST_DIFFERENCES:
            rest = f"{n_others} that are not clear are left out; the report has them."
            table = replace(table, rows=clear, about=f"{table.about} {rest}".strip())
        parts.append(table.title)
        if table.rows:
            parts.append(table_text(*cells_of(table)))
        parts += [f"{mark} {note}" for note, mark in marks_of(table).items()]
        if table.about:
            parts.append(table.about)
    parts += [f"WARNING {warning}" for warning in result.warnings]
    return "\n\n".join(parts)


def to_html(result: Result) -> str:
    """For a page; everything is escaped."""
    parts = []
    for table in result.tables:
        parts.append(f"<h3>{html.escape(table.title)}</h3>")
        if table.rows:
            parts.append(table_html(table))
        for note, mark in marks_of(table).items():
            parts.append(f'<p class="note">{mark} {html.escape(note)}</p>')
        if table.about:
            parts.append(f"<p>{html.escape(table.about)}</p>")
    for warning in result.warnings:
        parts.append(f'<p class="warning">WARNING {html.escape(warning)}</p>')
    return "\n".join(parts)


def table_html(table: Table, bold: Collection[tuple[str, str]] = ()) -> str:
    """Columns of numbers are aligned right. bold: (name of a row, column) of the cells in bold."""
    head, rows, is_number = cells_of(table)
    kinds = [' class="number"' if number else "" for number in is_number]

    def line(tag: str, cells: Sequence[str]) -> str:
        parts = [f"<{tag}{kind}>{cell}</{tag}>" for kind, cell in zip(kinds, cells)]
        return f"<tr>{''.join(parts)}</tr>"

    lines = []
    for cells in rows:
        shown = [html.escape(cell) for cell in cells]
        for i, column in enumerate(table.columns):
            if (cells[0], column) in bold:
                shown[i] = f"<b>{shown[i]}</b>"
        lines.append(line("td", shown))
    titles = line("th", [html.escape(title) for title in head])
    body = "\n".join(lines)
    whole = f"<table><thead>{titles}</thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll">{whole}</div>'
