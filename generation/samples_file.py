"""
generation.samples_file
"""

import itertools
import json
from dataclasses import asdict
from pathlib import Path

from tqdm import tqdm

from common.files import write_bytes
from generation.backends import Key, Sampling
from generation.prompts import Prompt

# ---- What is kept ----


def write_samples(path: Path, backend, facts: dict, prompts: dict[int, Prompt], n: int, sampling: Sampling) -> None:
    """Writes `path`: a JSON object for each of n completions of every prompt (by its number), in their order.

    While it goes on they gather in <path>.part. What a call with the same settings has left there or in `path`, whether
    interrupted or with a smaller n, is not asked for again; what is of other settings is kept under another name.
    """
    part = path.with_name(path.name + ".part")
    facts = facts | backend.identity() | asdict(sampling)
    wanted = {
        (i, j): facts | dict(prompt_index=i, sample_index=j) | prompt.row()
        for i, prompt in prompts.items()
        for j in range(n)
    }
    done = {}
    for file in (path, part):
        rows = read_rows(file)
        of_use = {key: row for key, row in rows.items() if row.items() >= wanted.get(key, {"": 0}).items()}
        if len(of_use) < len(rows):
            put_aside(file)
        done |= of_use
    missing = [key for key in wanted if key not in done]
    write_rows(part, done.values())
    bar = tqdm(desc="writing", total=len(wanted), initial=len(done), unit="story", disable=None, delay=1)
    with part.open("a", encoding="utf-8") as file, bar:
        for i, text, finished in backend.complete([prompts[i].text for i, _ in missing], missing, sampling):
            row = wanted[missing[i]] | dict(completion=text, finished=finished)
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            file.flush()
            done[missing[i]] = row
            bar.update()
    write_rows(path, (done[key] for key in wanted))
    part.unlink()


def read_rows(path: Path) -> dict[Key, dict]:
    """What an earlier call had written; its last line may be cut."""
    rows = {}
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n") if path.exists() else []:
        try:
            row = json.loads(line)
            rows[row["prompt_index"], row["sample_index"]] = row
        except (ValueError, TypeError, KeyError):
            continue
    return rows


def write_rows(path: Path, rows) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())


def put_aside(path: Path) -> None:
    """Renames what stands at `path`, so that nothing is lost by writing there: samples.jsonl -> samples-1.jsonl."""
    stem, dot, endings = path.name.partition(".")
    names = (path.with_name(f"{stem}-{i}{dot}{endings}") for i in itertools.count(1))
    free = next(name for name in names if not name.exists())
    path.rename(free)
    print(f"{path} was of other settings or weights: kept as {free}")
