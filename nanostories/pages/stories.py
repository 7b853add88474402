"""
Stories side by side: a completion of the same prompt by each run, from samples/*.jsonl.

>>> stories_section(ResultFiles([Path("out")]))  # HTML
"""

import html

from nanostories.generation.samples_file import read_rows
from nanostories.pages.html import details, language_of
from nanostories.pages.result_files import ResultFiles

LONGEST = 1500  # characters of a text
ALL = 900_000  # characters of the whole section


def stories_section(files: ResultFiles) -> str:
    samples = {}
    for path, rows in files.contents("samples/*.jsonl", read_rows).items():
        samples[f"{files.label(path.parent.parent)}, {path.stem}"] = list(rows.values())
    return side_by_side(samples) if samples else ""


def side_by_side(samples: dict[str, list[dict]]) -> str:
    """samples: rows of read_rows by name. The prompts that most of them continue come first."""
    prompts: dict[str, dict[str, str]] = {}  # prompt -> name -> text
    for name, rows in samples.items():
        for row in rows:
            texts = prompts.setdefault(row["prompt"], {})
            if row["reference"]:
                texts["true ending"] = row["reference"]
            texts.setdefault(name, row["completion"])  # the first one
    blocks = []
    size = 0
    for prompt in sorted(prompts, key=lambda prompt: -len(prompts[prompt])):
        columns = [column(name, text) for name, text in prompts[prompt].items()]
        title = shortened(prompt) or "(no prompt)"
        blocks.append(details(title, f'<div class="stories">{"".join(columns)}</div>'))
        size += len(blocks[-1])
        if size > ALL:
            break
    count = f"{len(blocks)} of {len(prompts)} prompts. Open one to see its stories."
    return "\n".join([f"<p>{count}</p>", *blocks])


def column(name: str, text: str) -> str:
    paragraph = f'<p lang="{language_of([text])}">{html.escape(shortened(text))}</p>'
    return f"<div><b>{html.escape(name)}</b>{paragraph}</div>"


def shortened(text: str) -> str:
    shown = text[:LONGEST].strip()
    return f"{shown}…" if len(text) > LONGEST else shown
