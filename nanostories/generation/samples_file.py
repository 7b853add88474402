"""
samples.jsonl: written by sample.py, read by grade.py, rouge.py and instruct.py, one completion per
line. Samples at temperature 1 lie in the run's directory, those at any other temperature or by beam
search in a directory of their own below it.

# the third completion of the first prompt
>>> read_rows(Path("out/demo/samples.jsonl"))[0, 2]["completion"]
' cat named Tom.'
"""

import json
from collections.abc import Iterable
from pathlib import Path

from nanostories.cli import UserError
from nanostories.files import write_bytes
from nanostories.generation.prompts import Key

SAMPLES = dict(val="samples.jsonl", train="samples-train.jsonl")  # by split
UNSEEN = "samples-unseen.jsonl"  # by sample.py --unseen_words, for instruct.py
TYPES = dict(prompt_index=int, sample_index=int, prompt=str, completion=str, reference=str | None)


def samples_directory(run: Path, temperature: float, beams: int = 1) -> Path:
    """out/demo -> out/demo/temperature-0.3, or out/demo/beams-4; out/demo itself at temperature
    1"""
    if beams > 1:
        return run / f"beams-{beams}"
    return run if temperature == 1 else run / f"temperature-{temperature:g}"


def model_directory(directory: Path) -> Path:
    """out/demo for out/demo/temperature-0.3, and for out/demo itself"""
    if directory.name.startswith(("temperature-", "beams-")):
        return directory.parent
    return directory


def read_rows(path: Path) -> dict[Key, dict]:
    """{(prompt_index, sample_index): row}; {} if there is no file. ValueError names a line that is
    no completion."""
    rows = {}
    for number, line in enumerate(path.read_bytes().split(b"\n") if path.exists() else [], 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            row |= dict(prompt="", reference=None) | row
            if not all(isinstance(row.get(name), kind) for name, kind in TYPES.items()):
                raise TypeError
        except (ValueError, TypeError, RecursionError):
            message = (
                f"{path}: line {number} is no completion by sample.py: delete it, or rename the"
                " file"
            )
            raise UserError(message) from None
        rows[row["prompt_index"], row["sample_index"]] = row
    return rows


def write_rows(path: Path, rows: Iterable[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, "".join(map(line_of, rows)).encode())


def line_of(row: dict) -> str:
    return json.dumps(row, ensure_ascii=False) + "\n"
