"""
The files that commands left below some directories; those that cannot be read are named and left
out.

>>> found = Found([Path("out")])
>>> found.contents("log.csv", read_curve)  # {path: rows}; found.damaged has a line for each other
"""

import csv
import html
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

from nanostories.pages.html import image

PICTURES = 3_000_000  # bytes of HTML: keeps the page of forty runs below 5 MB
# Errors from reading a file that was cut short, or written by another version; RuntimeError:
# weights of another shape
DAMAGED = (
    OSError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    EOFError,
    RuntimeError,
    csv.Error,
)


class Found:
    def __init__(self, directories: Sequence[Path]):
        self.top = Path(os.path.commonpath([directory.resolve() for directory in directories]))
        self.damaged: list[str] = []
        self.room_for_pictures = PICTURES
        files = set()
        for directory in directories:
            files.update(files_below(directory.resolve()))
        self.files = sorted(files, key=lambda path: (len(path.parts), path))

    def contents(self, pattern: str, parse: Callable) -> dict[Path, object]:
        """{path: parse(path)}, of the files that have any content."""
        contents = {}
        for path in self.files:
            if path.match(pattern):
                contents[path] = self.read(path, parse)
        return {path: content for path, content in contents.items() if content}

    def read(self, path: Path, parse: Callable):
        """parse(path); None if there is no such file, or if it is damaged."""
        if not path.exists():
            return None
        try:
            return parse(path)
        except DAMAGED as error:
            reason = str(error).removeprefix(f"{path}: ")
            line = f"{path}: left out, as it cannot be read ({reason})"
            if line not in self.damaged:
                self.damaged.append(line)
            return None

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
        shown = self.read(path, lambda path: image(path.read_bytes(), self.label(path))) or ""
        if len(shown) > self.room_for_pictures:
            return f"<p>{self.link(path.with_suffix('.png'))}</p>"
        self.room_for_pictures -= len(shown)
        return shown


def files_below(top: Path) -> Iterator[Path]:
    """Not those inside the runs of an experiment (unless it is `top`), nor inside kept checkpoints,
    which are parts of their run."""
    for directory, folders, names in os.walk(top):
        is_experiment = "experiment.json" in names and Path(directory) != top
        for folder in list(folders):
            if is_experiment or re.fullmatch(r"step-\d+", folder):
                folders.remove(folder)
        for name in names:
            yield Path(directory, name)
