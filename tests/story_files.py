"""Stories as files, prepare.py on them, and the stories in what it wrote."""

import codecs
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import tokenizers

import prepare

END = "<|endoftext|>"
STORIES = [
    f"Once there were {i} dragons.\nThey said, “Good night, number {i * i}!”" for i in range(600)
]
ODD_STORIES = [
    "Tab\tand  two spaces — stay. 🐉👩‍👧!",
    "猫はいました。「おやすみ。」",
    "The sign said <|endoftext|> and they laughed.",
    "A blank line\n\nstays, and so does \x00 a zero.",
    "¡Mira mi muñeca! “CAFÉ,” said “MANHÃ” of JOSÉ’s âge, for 5 € (Â).",
]


def write_stories(path: Path, stories: list[str]) -> Path:
    path.write_text("".join(f"{story}\n{END}\n" for story in stories), encoding="utf-8", newline="")
    return path


def write_jsonl(path: Path, stories: list[str], field: str = "text") -> Path:
    path.write_text("".join(json.dumps({"id": 1, field: story}) + "\n" for story in stories))
    return path


def write_parquet(path: Path, stories: list[str | None], field: str = "text") -> Path:
    parquet = pytest.importorskip("pyarrow.parquet")
    from pyarrow import table

    parquet.write_table(table({field: stories}), path)
    return path


codecs.register_error("keep", lambda error: (chr(error.object[error.start]), error.end))


def misread(text: str) -> str:
    """UTF-8 read as cp1252, by Python's own tables; what cp1252 leaves undefined is kept."""
    return text.encode().decode("cp1252", "keep")


def run_prepare(*args) -> None:
    """The command line, in this process; a message to the user comes back as SystemExit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["prepare.py", *map(str, args)])
        prepare.main()


def stories_in(directory: Path, split: str) -> list[str]:
    """The stories in a .bin, by tokenizers and numpy alone."""
    meta = json.loads((directory / "meta.json").read_text())
    ids = np.fromfile(directory / f"{split}.bin", dtype="<u2")
    ends = np.flatnonzero(ids == meta["vocab_size"] - 1)
    *pieces, rest = np.split(ids, ends + 1)
    assert not len(rest)  # every story ends
    tokens = meta["vocabulary"]["tokens"]
    decoder = tokenizers.decoders.ByteLevel()
    stories = []
    for piece in pieces:
        spelled = [tokens[i] for i in piece[:-1]]
        stories.append(decoder.decode(spelled))
    return stories


def prepared_stories(data_dir: Path, source: Path, *flags) -> list[str]:
    """Of both splits, sorted, by the command line."""
    to = ("--name", "x", "--vocab_size", 300, "--data_dir", data_dir)
    run_prepare("--input", source, *flags, *to)
    return sorted(stories_in(data_dir / "x", "train") + stories_in(data_dir / "x", "val"))


def snapshot(folder: Path) -> dict:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder): path.read_bytes() for path in files}
