"""
Stories side by side: the completions of the same prompts by each run, from samples/*.jsonl.

>>> stories_section(Found([Path("out")]))  # HTML
"""

import html

from nanostories.generation.samples_file import read_rows
from nanostories.pages.found import Found
from nanostories.pages.html import details, language_of

PROMPTS = 30
COMPLETIONS = 2  # of each run
LONGEST = 1500  # characters of a completion
LONGEST_PROMPT = 300  # characters of a prompt that are shown: its last ones
ALL = 900_000  # characters of the whole section


def stories_section(found: Found) -> str:
    samples = {}
    for path, rows in found.contents("samples/*.jsonl", read_rows).items():
        samples[f"{found.label(path.parent.parent)}, {path.stem}"] = list(rows.values())
    return side_by_side(samples) if samples else ""


def side_by_side(samples: dict[str, list[dict]]) -> str:
    """samples: rows of read_rows by name. The prompts that most of them continue come first."""
    prompts: dict[str, dict[str, list[str]]] = {}  # prompt -> name -> texts
    for name, rows in samples.items():
        for row in rows:
            texts = prompts.setdefault(row["prompt"], {})
            if row["reference"]:
                texts["true ending"] = [row["reference"]]
            completions = texts.setdefault(name, [])
            if len(completions) < COMPLETIONS:
                completions.append(row["completion"])
    blocks = []
    size = 0
    for prompt in sorted(prompts, key=lambda prompt: -len(prompts[prompt]))[:PROMPTS]:
        columns = [column(name, texts) for name, texts in prompts[prompt].items()]
        content = f'<div class="stories">{"".join(columns)}</div>'
        blocks.append(details(end_of(prompt), content))
        size += len(blocks[-1])
        if size > ALL:
            break
    count = f"{len(blocks)} of {len(prompts)} prompts. Open one to see its stories."
    return "\n".join([f"<p>{count}</p>", *blocks])


def end_of(prompt: str) -> str:
    """What is shown of a prompt: its end, from a whole word if there are several."""
    text = prompt.strip() or "(no prompt)"
    if len(text) <= LONGEST_PROMPT:
        return text
    end = text[-LONGEST_PROMPT:]
    return "… " + (end.partition(" ")[2] or end)


def column(name: str, texts: list[str]) -> str:
    paragraphs = []
    for text in texts:
        shown = text[:LONGEST].strip()
        if len(text) > LONGEST:
            shown += "…"
        paragraphs.append(f"<p>{html.escape(shown)}</p>")
    language = language_of(texts)
    return (
        f'<div><b>{html.escape(name)}</b><div lang="{language}">{"".join(paragraphs)}</div></div>'
    )
