"""
The Markdown that commands write into NAME.md (nanostories.tables), as HTML; everything else in it
is shown as text.

>>> to_html("## Scores\\nWARNING: few prompts\\n| run | loss |\\n| --- | ---: |\\n| demo | 1.5 |")
'<h3>Scores</h3>\\n<p class="warning">WARNING: few prompts</p>\\n<div class="scroll"><table>...'
"""

import html
import itertools
import re
from collections.abc import Iterator

CODE_OR_LINK = re.compile(
    r"`([^`]+)`|\[([^\]]+)\]\((?!/)([^):\s]+)\)"
)  # no colon: links lead to files nearby only
RULER = re.compile(r":?-+:?")
NUMBER = re.compile(r"[-+−<]? ?[\d.].*|–?")
LONG = 60  # characters of a cell that may wrap


def to_html(text: str) -> str:
    """Headings (## becomes h3), paragraphs, lists, pipe tables, code spans, and lines that begin
    with WARNING."""
    blocks = []
    for kind, lines in itertools.groupby(text.splitlines(), kind_of):
        blocks += BLOCKS[kind](list(lines))
    return "\n".join(blocks)


def kind_of(line: str) -> str:
    starts = {"#": "heading", "|": "table", "WARNING": "warning", "- ": "list"}
    return next(
        (kind for start, kind in starts.items() if line.startswith(start)),
        "text" if line.strip() else "blank",
    )


def inline(text: str) -> str:
    pieces, end = [], 0
    for match in CODE_OR_LINK.finditer(text):
        code, label, address = (group and html.escape(group) for group in match.groups())
        pieces += [html.escape(text[end : match.start()])]
        pieces += [f"<code>{code}</code>" if code else f'<a href="{address}">{label}</a>']
        end = match.end()
    return "".join([*pieces, html.escape(text[end:])])


def headings(lines: list[str]) -> Iterator[str]:
    for line in lines:
        title = line.lstrip("#")
        level = min(6, len(line) - len(title) + 1)
        yield f"<h{level}>{inline(title.strip())}</h{level}>"


def table(lines: list[str]) -> Iterator[str]:
    """Columns of numbers are aligned right."""
    head, *rows = ([cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines)
    rows = rows[1:] if rows and all(map(RULER.fullmatch, rows[0])) else rows
    styles = []
    for i in range(len(head)):
        cells = [row[i] for row in rows if i < len(row)]
        kind = "text" if max(map(len, cells), default=0) > LONG else ""
        kind = "number" if i and all(map(NUMBER.fullmatch, cells)) else kind
        styles.append(f' class="{kind}"' if kind else "")

    def row(tag: str, cells: list[str]) -> str:
        marked = [f"<{tag}{style}>{inline(cell)}</{tag}>" for cell, style in zip(cells, styles)]
        return f"<tr>{''.join(marked)}</tr>"

    body = "\n".join(row("td", cells) for cells in rows)
    table_html = f"<table><thead>{row('th', head)}</thead><tbody>{body}</tbody></table>"
    yield f'<div class="scroll">{table_html}</div>'


BLOCKS = {
    "heading": headings,
    "table": table,
    "warning": lambda lines: [f'<p class="warning">{inline(line)}</p>' for line in lines],
    "list": lambda lines: [f"<ul>{''.join(f'<li>{inline(line[2:])}</li>' for line in lines)}</ul>"],
    "text": lambda lines: ["<p>" + "\n".join(map(inline, lines)) + "</p>"],
    "blank": lambda lines: [],
}
