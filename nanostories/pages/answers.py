"""
probe.html: prompts x models, colored by whether the right answer wins, with each model's own
continuation.

>>> write_bytes(Path("out/probe.html"), answers_page(read_table(Path("out/probe.csv"))))
"""

import html
from collections import Counter

from nanostories.pages.html import sections_page

MARKS = {"right": "✓", "nearly": "≈", "wrong": "✗"}
LEGEND = """<p class="quiet">The right answer's rank among the answers, by likelihood per byte, its
probability p as the continuation, and its lead over the best wrong one, nats per byte:
<span class="right">✓ right</span>,
<span class="nearly">≈ the best wrong answer leads by little</span>,
<span class="wrong">✗ wrong</span>. In quotes, the model's own greedy continuation, which is not
scored.</p>"""


def answers_page(rows: list[dict], warning: str = "") -> bytes:
    """rows: probe.csv, with the columns set, prompt, right, wrong, and for each model MODEL
    verdict, MODEL lead and MODEL rank, p and greedy."""
    models = [column.removesuffix(" verdict") for column in rows[0] if column.endswith(" verdict")]
    sets = {}
    for row in rows:
        sets.setdefault(row["set"], []).append(row)
    tables = {name: set_table(own, models) for name, own in sets.items()}
    count = f"{len(rows):,} prompts, models: {len(models)}"
    if warning:
        warning = f'<p class="warning">{html.escape(warning)}</p>'
    return sections_page(
        "Answers to prompts", f'{warning}<p class="quiet">{count}</p>{LEGEND}', tables
    )


def set_table(rows: list[dict], models: list[str]) -> str:
    heads = []
    for model in models:
        counts = Counter(row[f"{model} verdict"] for row in rows)
        judged = len(rows) - counts[""]
        right = f"<small>{counts['right']} of {judged} right</small>" if judged else ""
        heads.append(f"<th>{html.escape(model)} {right}</th>")
    lines = []
    for row in rows:
        cells = [prompt_cell(row), *(model_cell(row, model) for model in models)]
        lines.append(f"<tr>{''.join(cells)}</tr>")
    body = "\n".join(lines)
    head = f"<tr><th>prompt and right answer</th>{''.join(heads)}</tr>"
    table = f'<table class="answers"><thead>{head}</thead><tbody>{body}</tbody></table>'
    return f'<div class="scroll">{table}</div>'


def prompt_cell(row: dict) -> str:
    prompt, right, wrong = (html.escape(row[column]) for column in ("prompt", "right", "wrong"))
    wrong = f"<small>not{wrong.replace(' |', ',')}</small>" if wrong else ""
    return f"<td>{prompt}<b>{right}</b> {wrong}</td>"


def model_cell(row: dict, model: str) -> str:
    columns = ("verdict", "rank", "p", "lead", "greedy")
    verdict, rank, p, lead, own = (html.escape(str(row[f"{model} {column}"])) for column in columns)
    n = 2 + row["wrong"].count(" |")  # answers
    mark = MARKS.get(verdict, "")
    shown = f"{mark} {rank} of {n}, p {float(p):.2g}" if lead else mark
    own = f"lead {float(lead):+.2f}; “{own.strip()}”" if lead else f"“{own.strip()}”"
    return (
        f'<td class="{verdict}" data-model="{html.escape(model)}"><b>{shown}</b>'
        f" <small>{own}</small></td>"
    )
