"""
samples.jsonl: what sample.py writes and grade.py, rouge.py and instruct.py read, one completion a line.

>>> read_rows(Path("out/demo/samples.jsonl"))[0, 2]["completion"]  # the third completion of the first prompt
' cat named Tom.'
"""

import contextlib
import itertools
import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from tqdm import tqdm

from common.files import write_bytes
from generation.prompts import Key, Prompt, Sampling
from training.run_directory import lock


def write_samples(path: Path, backend, metadata: dict, prompts: dict[int, Prompt], n: int, sampling: Sampling) -> None:
    """Writes `path`: a JSON object for each of n completions of every prompt (by its number), in their order.

    Until all are there they are kept in <path>.part. What a call with the same settings has left there or in `path`,
    whether interrupted or with a smaller n, is not asked for again; rows of other settings are kept under another name.
    ValueError if another call is writing there.
    """
    busy = f"another sample.py is writing {path.name}; wait, or name another --out"
    with lock(path.parent, f".{path.name}.lock", busy):
        write_locked(path, backend, metadata, prompts, n, sampling)


def write_locked(path: Path, backend, metadata: dict, prompts: dict[int, Prompt], n: int, sampling: Sampling) -> None:
    part = path.with_name(path.name + ".part")
    settings = metadata | backend.identity() | asdict(sampling)
    wanted = {
        (i, j): settings | dict(prompt_index=i, sample_index=j) | prompt.row()
        for i, prompt in prompts.items()
        for j in range(n)
    }
    done = {}
    for file in (path, part):
        rows = read_rows(file)
        usable = {key: row for key, row in rows.items() if row.items() >= wanted.get(key, {"": 0}).items()}
        if len(usable) < len(rows):
            move_aside(file)
        done |= usable
    missing = [key for key in wanted if key not in done]
    write_rows(part, done.values())
    bar = tqdm(desc="writing", total=len(wanted), initial=len(done), unit="story", disable=None, delay=1)
    completions = backend.complete([prompts[i].text for i, _ in missing], missing, sampling)
    lines = b""
    with part.open("ab", buffering=0) as file, bar, contextlib.closing(completions):
        for i, text, finished in completions:
            row = wanted[missing[i]] | dict(completion=text, finished=finished)
            lines += line_of(row)
            try:
                while lines:
                    lines = lines[file.write(lines) :]  # a full disk may take a part of them
            except OSError as error:
                error.filename = str(part)
                backend.stop(error)
            done[missing[i]] = row
            bar.update()
    write_rows(path, (done[key] for key in wanted))
    part.unlink()


def read_rows(path: Path) -> dict[Key, dict]:
    """The rows by (prompt_index, sample_index); {} if there is no file. Lines cut by a kill are left out."""
    rows = {}
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n") if path.exists() else []:
        try:
            row = json.loads(line)
            rows[row["prompt_index"], row["sample_index"]] = row
        except (ValueError, TypeError, KeyError):
            continue
    return rows


def write_rows(path: Path, rows: Iterable[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, b"".join(map(line_of, rows)))


def line_of(row: dict) -> bytes:
    return (json.dumps(row, ensure_ascii=False) + "\n").encode()


def move_aside(path: Path) -> None:
    """Renames the file, so that writing to `path` loses nothing: samples.jsonl -> samples-1.jsonl."""
    stem, dot, endings = path.name.partition(".")
    names = (path.with_name(f"{stem}-{i}{dot}{endings}") for i in itertools.count(1))
    free = next(name for name in names if not name.exists())
    path.rename(free)
    print(f"{path} was of other settings or weights: kept as {free}")
