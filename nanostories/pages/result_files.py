"""
The files that commands left below some directories; those that cannot be read are named and left
out.

>>> files = ResultFiles([Path("out")])
>>> files.contents("log.csv", read_curve)  # {path: rows}; those that are damaged are printed
"""

import html
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from urllib.parse import quote

from nanostories.cli import UserError
from nanostories.files import common_directory, read_json
from nanostories.pages.html import image
from nanostories.results import Result, load, outdated

PICTURES = 3_000_000  # bytes of HTML: keeps the page of forty runs below 5 MB


class ResultFiles:
    def __init__(self, directories: Sequence[Path]):
        self.top = common_directory(directories)
        self.damaged: set[Path] = set()
        self.room_for_pictures = PICTURES
        paths = set()
        for directory in directories:
            paths.update(files_below(directory.resolve()))
        self.paths = sorted(paths, key=lambda path: (len(path.parts), path))

    def contents(self, pattern: str, parse: Callable) -> dict[Path, object]:
        """{path: parse(path)}, of the files that have any content."""
        contents = {}
        for path in self.paths:
            content = self.read(path, parse) if path.match(pattern) else None
            if content:
                contents[path] = content
        return contents

    def read(self, path: Path, parse: Callable):
        """parse(path); None if there is no such file, or if it is damaged."""
        if path in self.damaged or not path.exists():
            return None
        try:
            return parse(path)
        except UserError as error:
            reason = str(error).removeprefix(f"{path}: ")
            print(f"{path}: left out, as it cannot be read ({reason})", file=sys.stderr)
            self.damaged.add(path)
            return None

    @cached_property
    def results(self) -> list[tuple[Path, Result, str]]:
        """What commands found, and why it is out of date, or ""; these come last."""
        results = []
        for path, result in self.contents("*.json", read_result).items():
            out_of_date = ""
            changed = ", ".join(outdated(result, path.parent))
            if changed:
                found = f"{changed} changed since, or is gone"
                out_of_date = f"out of date: {found}; run {result.command} again"
            results.append((path, result, out_of_date))
        return sorted(results, key=lambda row: row[2] != "")

    # ---- On the page, which lies in the top directory ----
    def label(self, path: Path) -> str:
        """The name of a file or directory."""
        if path == self.top:
            return path.name
        return path.relative_to(self.top).as_posix()

    def link(self, path: Path) -> str:
        address = quote(path.relative_to(self.top).as_posix())
        return f'<a href="{address}">{html.escape(self.label(path))}</a>'

    def picture(self, path: Path) -> str:
        """HTML of an SVG; a link to the PNG beside it when the page has no room for it; "" if there
        is none."""
        if not path.exists():
            return ""
        shown = image(path.read_bytes(), self.label(path))
        if len(shown) > self.room_for_pictures:
            return f"<p>{self.link(path.with_suffix('.png'))}</p>"
        self.room_for_pictures -= len(shown)
        return shown


def files_below(top: Path) -> Iterator[Path]:
    """Not those inside the runs of an experiment (unless it is `top`), nor inside kept checkpoints,
    which are parts of their run."""
    for directory, folders, names in os.walk(top):
        folders[:] = [folder for folder in folders if not re.fullmatch(r"step-\d+", folder)]
        if "experiment.json" in names and Path(directory) != top:
            folders.clear()
        for name in names:
            yield Path(directory, name)


def read_result(path: Path) -> Result | None:
    """None for the JSON of something else, such as config.json."""
    return load(path) if "tables" in read_json(path) else None
