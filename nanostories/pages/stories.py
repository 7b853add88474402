"""
Stories side by side: a completion of the same prompt by each run, from samples/*.jsonl.

>>> stories_section(ResultFiles([Path("out")]))  # HTML
"""

import html

from nanostories.generation.samples_file import read_rows
from nanostories.pages.html import details, language_of
from nanostories.pages.result_files import ResultFiles

LONGEST = 1500  # characters of a text
MOST_CHARACTERS = 900_000  # of the whole section


def stories_section(files: ResultFiles) -> str:
    """The prompts that most sets continue come first."""
    prompts: dict[str, dict[str, str]] = {}  # prompt -> name -> text
    for path, rows in files.contents("samples/*.jsonl", read_rows).items():
        name = f"{files.label(path.parent.parent)}, {path.stem}"
        for row in rows.values():
            texts = prompts.setdefault(row["prompt"], {})
            if row["reference"]:
                texts["true ending"] = row["reference"]
            texts.setdefault(name, row["completion"])  # the first one
    if not prompts:
        return ""
    blocks = []
    size = 0
    for prompt in sorted(prompts, key=lambda prompt: -len(prompts[prompt])):
        columns = [story_column(name, text) for name, text in prompts[prompt].items()]
        title = shortened(prompt) or "(no prompt)"
        blocks.append(details(title, side_by_side(columns)))
        size += len(blocks[-1])
        if size > MOST_CHARACTERS:
            break
    count = f"{len(blocks)} of {len(prompts)} prompts. Open one to see its stories."
    return "\n".join([f"<p>{count}</p>", *blocks])


def story_column(name: str, text: str, prompt: str = "") -> str:
    """HTML of a story"""
    beginning = f"<i>{html.escape(prompt)}</i>" if prompt else ""
    language = language_of([prompt + text])
    paragraph = f'<p lang="{language}">{beginning}{html.escape(shortened(text))}</p>'
    return f"<div><b>{html.escape(name)}</b>{paragraph}</div>"


def side_by_side(columns: list[str]) -> str:
    return f'<div class="stories">{"".join(columns)}</div>' if columns else ""


def shortened(text: str) -> str:
    shown = text[:LONGEST].rstrip()
    return f"{shown}…" if len(text) > LONGEST else shown
