"""
probe.html: prompts x models, with whether the right answer wins, and each model's own continuation.

>>> write_bytes(Path("out/probe.html"), answers_page(read_table(Path("out/probe.csv"))))
"""

import html

from nanostories.pages.html import sections_page
from nanostories.results import Table, table_html

MARKS = {"right": "✓", "nearly": "≈", "wrong": "✗", "": ""}
LEGEND = """<p class="quiet">✓ right, ≈ the best wrong answer leads by little, ✗ wrong. Then the
right answer's rank among the answers, by likelihood per byte, its probability p as the
continuation, and its lead over the best wrong one, in nats per byte. Beside it, how the model
itself goes on (greedily), which is not scored.</p>"""


def answers_page(rows: list[dict], warning: str = "") -> bytes:
    """rows: probe.csv, with the columns set, prompt, right, wrong, and for each model MODEL
    verdict, MODEL lead and MODEL rank, p and greedy."""
    models = [column.removesuffix(" verdict") for column in rows[0] if column.endswith(" verdict")]
    sets = {}
    for row in rows:
        sets.setdefault(row["set"], []).append(cells_of(row, models))
    sections = {name: table_html(Table("", cells)) for name, cells in sets.items()}
    count = f"{len(rows):,} prompts, models: {len(models)}"
    if warning:
        warning = f'<p class="warning">{html.escape(warning)}</p>'
    intro = f'{warning}<p class="quiet">{count}</p>{LEGEND}'
    return sections_page("Answers to prompts", intro, sections)


def cells_of(row: dict, models: list[str]) -> dict[str, str]:
    cells = {column: row[column] for column in ("prompt", "right", "wrong")}
    n_answers = 2 + row["wrong"].count(" |")
    for model in models:
        text = MARKS[row[f"{model} verdict"]]
        if row[f"{model} lead"]:
            p = float(row[f"{model} p"])
            lead = float(row[f"{model} lead"])
            text += f" {row[f'{model} rank']} of {n_answers}, p {p:.2g}, lead {lead:+.2f}"
        cells[model] = text
        cells[f"{model} goes on"] = row[f"{model} greedy"].strip()
    return cells
