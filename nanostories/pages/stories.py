"""
Stories side by side: the completions of the same prompts by each run, from samples.jsonl.

>>> side_by_side({"demo": rows, "large": others})  # HTML
"""

import html
import json
from pathlib import Path

from nanostories.cli import UserError

PROMPTS, COMPLETIONS = 30, 2  # completions: of each run
LONGEST, ALL = 1500, 900_000  # characters of a completion, and of the whole section


def read_samples(path: Path) -> list[dict]:
    rows = [json.loads(line) for line in path.read_text("utf-8").split("\n") if line.strip()]
    if not all(isinstance(row["prompt"] + row["completion"], str) for row in rows):
        raise UserError("prompts and completions must be texts")
    return rows


def side_by_side(samples: dict[str, list[dict]]) -> str:
    """samples: rows of samples.jsonl by name. The prompts that most of them continue come first."""
    prompts: dict[str, dict[str, list[str]]] = {}  # prompt -> name -> texts
    for name, rows in samples.items():
        for row in rows:
            texts = prompts.setdefault(row["prompt"], {})
            if row.get("reference"):
                texts.setdefault("true ending", [row["reference"]])
            if len(texts.setdefault(name, [])) < COMPLETIONS:
                texts[name].append(row["completion"])
    blocks, size = [], 0
    for prompt in sorted(prompts, key=lambda prompt: -len(prompts[prompt]))[:PROMPTS]:
        blocks.append(block(prompt, prompts[prompt], is_open=not blocks))
        size += len(blocks[-1])
        if size > ALL:
            break
    shown = (
        f'<p class="quiet">{len(blocks)} of {len(prompts)} prompts. Click one to see its'
        " stories.</p>"
    )
    return "\n".join([shown, *blocks])


def block(prompt: str, texts: dict[str, list[str]], is_open: bool) -> str:
    names = sorted(texts, key=lambda name: name == "true ending")  # last
    columns = [
        f"<div><b>{html.escape(name)}</b>{''.join(map(paragraph, texts[name]))}</div>"
        for name in names
    ]
    shown = prompt.strip() if len(prompt) < 300 else "… " + prompt.strip()[-300:].partition(" ")[2]
    summary = f"<summary>{html.escape(shown) or '(no prompt)'}</summary>"
    return (
        f"<details{' open' * is_open}>{summary}<div"
        f' class="stories">{"".join(columns)}</div></details>'
    )


def paragraph(text: str) -> str:
    return f"<p>{html.escape(text[:LONGEST].strip())}{'…' * (len(text) > LONGEST)}</p>"
