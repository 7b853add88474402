"""
samples.jsonl: what sample.py writes and grade.py, rouge.py and instruct.py read, one completion per line.

All lines of a file were sampled in the same way. If a run is sampled at several temperatures, each gets a directory.

>>> read_rows(Path("out/demo/samples.jsonl"))[0, 2]["completion"]  # the third completion of the first prompt
' cat named Tom.'
"""

import contextlib
import itertools
import json
import re
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from tqdm import tqdm

from common.files import lock, write_bytes
from generation.prompts import Key, Prompt, Sampling

SAMPLES = dict(val="samples.jsonl", train="samples-train.jsonl")  # by the split whose stories are continued


def at_temperature(directory: Path, temperature: float) -> Path:
    """out/demo -> out/demo/temperature-0.3"""
    return directory / f"temperature-{temperature:g}"


def temperature_of(directory: Path) -> float | None:
    """0.3 for out/demo/temperature-0.3; None for other directories."""
    named = re.fullmatch(r"temperature-(\d[\d.]*(?:e[+-]\d+)?)", directory.name)
    return float(named[1]) if named else None


def temperatures_of(run: Path) -> list[Path]:
    """The run's directories of samples at several temperatures, ascending."""
    found = [path.parent for name in SAMPLES.values() for path in run.glob(f"temperature-*/{name}")]
    return sorted({path for path in found if temperature_of(path) is not None}, key=temperature_of)


def run_of(directory: Path) -> Path:
    """The run whose samples are there: out/demo for out/demo/temperature-0.3, and for out/demo itself."""
    return directory if temperature_of(directory) is None else directory.parent


def write_samples(path: Path, backend, metadata: dict, prompts: dict[int, Prompt], n: int, sampling: Sampling) -> None:
    """Writes n completions of every prompt to `path`, one JSON object per line, in the order of prompts.

    Until all are there, they are kept in <path>.part. Completions that a call with the same settings left there or in
    `path` (it was interrupted, or its n was smaller) are not generated again; files with any other lines are renamed.
    prompts: by their numbers. ValueError if another call is writing there.
    """
    busy = f"another sample.py is writing {path.name}; wait, or choose another --out"
    with lock(path.parent, f".{path.name}.lock", busy, keep=False):
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
        usable = {key: row for key, row in rows.items() if (UNSAID | row).items() >= wanted.get(key, {"": 0}).items()}
        lines = file.read_bytes().split(b"\n") if file.exists() else []
        if file == part:  # its last line may be incomplete, after a kill
            del lines[-1:]
        if len(usable) < sum(bool(line.strip()) for line in lines):
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
                    lines = lines[file.write(lines) :]  # a full disk may take only some of them
            except OSError as error:
                error.filename = str(part)
                backend.stop(error)
            done[missing[i]] = row
            bar.update()
    write_rows(path, (done[key] for key in wanted))
    part.unlink()


def read_rows(path: Path) -> dict[Key, dict]:
    """{(prompt_index, sample_index): row}; {} if there is no file. Lines that are not complete rows are left out.

    The last line may be incomplete after a kill; about other damaged lines, stderr says how many there are and where.
    """
    rows, damaged = {}, []
    lines = path.read_bytes().split(b"\n") if path.exists() else []
    for number, line in enumerate(lines, 1):
        try:
            row = check_row(json.loads(line.decode()))
            rows[row["prompt_index"], row["sample_index"]] = row
        except (ValueError, RecursionError):
            damaged += [number] * (number < len(lines) and bool(line.strip()))
    if damaged:
        what = f"{len(damaged)} damaged line{'s' * (len(damaged) > 1)} left out, the first is line {damaged[0]}"
        print(f"{path}: {what}; run the same sample.py command to write them again", file=sys.stderr)
    return rows


UNSAID = dict(split="val")  # the default, for files of older versions, which lack it
ROW = dict(
    prompt_index=int, sample_index=int, prompt=str, completion=str, reference=str | None, instruction=dict | None
)


def check_row(row: object) -> dict:
    """The row, with a prompt and a reference; ValueError if a value has the wrong type, or a text is not UTF-8."""
    row = row | dict(prompt=row.get("prompt", ""), reference=row.get("reference")) if isinstance(row, dict) else {}
    for name, kind in ROW.items():
        if not isinstance(row.get(name), kind):
            raise ValueError(f"{name} is missing, or has the wrong type")
    "".join(row[name] or "" for name in ("prompt", "completion", "reference")).encode()  # fails on lone surrogates
    return row


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
    print(f"{path} has damaged lines, or some with other settings or weights: kept as {free}")
