"""
The files that commands left below some directories; unreadable ones are named and left out.

>>> results = Results([Path("out")])
# {directory: rows}; then results.damaged has a line for each damaged file
>>> results.each("log.csv", read_curve)
"""

import csv
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import quote

from nanostories.pages.html import image
from nanostories.pages.markdown import to_html

PICTURES = 3_000_000  # bytes of HTML: keeps the page of forty runs below 5 MB
# Errors from reading a file that was cut short, or written by another version.
DAMAGED = (OSError, ValueError, LookupError, TypeError, AttributeError, EOFError, csv.Error)


class Results:
    """files: all below the directories, but not inside the runs of an experiment (unless it is
    named itself), nor inside kept checkpoints, which are parts of their run."""

    def __init__(self, directories: Sequence[Path]):
        self.top = Path(os.path.commonpath([directory.resolve() for directory in directories]))
        self.files, self.damaged, self.picture_bytes = [], [], 0
        for directory in directories:
            for here, folders, names in os.walk(directory.resolve()):
                is_inner = "experiment.csv" in names and Path(here) != directory.resolve()
                folders[:] = (
                    []
                    if is_inner
                    else sorted(name for name in folders if not re.fullmatch(r"step-\d+", name))
                )
                self.files += [Path(here, name) for name in sorted(names)]
        self.files = sorted(set(self.files), key=lambda path: (len(path.parts), path))

    def named(self, *names: str) -> list[Path]:
        return [path for path in self.files if path.name in names]

    def label(self, directory: Path) -> str:
        """Its name on the page."""
        return (
            directory.name if directory == self.top else directory.relative_to(self.top).as_posix()
        )

    def link(self, path: Path, text: str) -> str:
        """Markdown: a link from a page in the top directory."""
        return f"[{text}]({quote(path.relative_to(self.top).as_posix())})"

    def read(self, path: Path, parse: Callable):
        """parse(path); None if there is no such file, or if it is damaged."""
        if not path.is_file():
            return None
        try:
            return parse(path)
        except DAMAGED as error:
            reason = str(error).removeprefix(f"{path}: ")
            line = f"{path}: left out, as it cannot be read ({reason})"
            self.damaged += [line] * (line not in self.damaged)  # two sections may read it
            return None

    def each(self, name: str, parse: Callable) -> dict[Path, object]:
        """{directory: the content of its file of this name}, where there is any."""
        contents = {path.parent: self.read(path, parse) for path in self.named(name)}
        return {directory: content for directory, content in contents.items() if content}

    def changed_since(self, path: Path, sources: Sequence[str]) -> str:
        """A warning, if runs in these results were trained, or their sources written, after they
        were."""
        weights = [
            best for best in self.named("best.pt", *sources) if best.is_relative_to(path.parent)
        ]
        newer = [best.parent for best in weights if best.stat().st_mtime > path.stat().st_mtime]
        text = self.read(path, lambda path: path.read_text("utf-8")) or ""
        words = {word.strip(".") for word in re.findall(r"[\w.-]+", text)}
        newer = dict.fromkeys(
            self.label(run) for run in newer if run == path.parent or run.name in words
        )
        return (
            f"WARNING older than weights or stories of {', '.join(newer)}: run the command again"
            if newer
            else ""
        )

    def picture(self, path: Path) -> str:
        """HTML of an SVG; a link to the PNG beside it when the page has enough pictures; "" if
        there is none."""
        alt = f"{path.stem} of {self.label(path.parent)}"
        shown = self.read(path, lambda path: image(path.read_bytes(), alt)) or ""
        self.picture_bytes += len(shown)
        is_enough = shown and self.picture_bytes > PICTURES
        return to_html(self.link(path.with_suffix(".png"), path.stem)) if is_enough else shown
