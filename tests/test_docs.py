"""README, docs/ and docstrings: links lead somewhere, and every command line in them is one that
the command takes."""

import ast
import contextlib
import io
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nanostories.cli import Parser
from nanostories.training.config import parse_command_line

ROOT = Path(__file__).parent.parent
OF_THEIR_TIME = [ROOT / "LOG.md", *sorted(ROOT.glob("docs/results/*.md"))]
TODAYS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/*.md"))]
PAGES = TODAYS + OF_THEIR_TIME
SCRIPTS = sorted([*ROOT.glob("*.py"), *ROOT.glob("*/*.py")])
FENCE = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)


HELP = """import contextlib, runpy, sys
scripts, sys.argv[1:] = sys.argv[1:], ["--help"]
sys.modules["torch"] = None  # an import of it fails
for script in scripts:
    with contextlib.suppress(SystemExit):
        runpy.run_path(script, run_name="__main__")
"""


def test_help_comes_without_waiting_for_torch():
    scripts = []
    for path in ROOT.glob("*.py"):
        if "Parser(__doc__)" in path.read_text():  # not train.py's
            scripts.append(path.name)
    command = [sys.executable, "-c", HELP, *scripts]
    said = subprocess.check_output(command, cwd=ROOT, text=True)
    assert said.count("show this help message") == len(scripts)


# ---- Links ----
def anchors(page: Path) -> set[str]:
    """What GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_is_named_is_there(page):
    """Links and images, and on pages of today our files in `backticks`."""
    text = FENCE.sub("", page.read_text())
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert link.startswith("https://") or target.exists(), link
        assert not anchor or anchor in anchors(target), link
    named = re.findall(
        r"`(?!data/|out/)((?:[a-z_]+/)+[a-z_0-9]+\.(?:py|cpp|h|js|jsonl|txt|md))`", text
    )
    missing = [name for name in named if not (ROOT / name).exists()]
    assert page in OF_THEIR_TIME or not missing


ORIGIN = re.compile(
    r"# .+\n\n- Date: \d{4}-\d\d-\d\d, commit [0-9a-f]{7}.*\n- Command: .+\n- Seed: \d.*\n"
    r"- Hardware: .+\n\n"
)


def test_results_say_where_they_come_from():
    pages = list(ROOT.glob("docs/results/*.md"))
    assert len(pages) > 10
    assert [page.name for page in pages if not ORIGIN.match(page.read_text())] == []


# ---- Commands ----
def shell_lines(path: Path) -> Iterator[str]:
    """The lines of code blocks and inline code in a page; in a script, the lines of its docstring
    that begin with $."""
    text = path.read_text()
    if path.suffix == ".py":
        docstring = ast.get_docstring(ast.parse(text)) or ""
        yield from re.findall(r"^\$ (.*)", docstring.replace("\\\n", " "), re.MULTILINE)
        return
    for block in FENCE.findall(text):
        yield from block.replace("\\\n", " ").splitlines()
    yield from (code.replace("\n", " ") for code in re.findall(r"`([^`]+)`", FENCE.sub("", text)))


def commands(path: Path) -> Iterator[tuple[str, ...]]:
    """(script, *arguments) of each `python SCRIPT.py …` and `torchrun … SCRIPT.py …`."""
    for line in shell_lines(path):
        for command in re.findall(r"\b(?:python|torchrun .*?) ([\w/]+\.py\b[^&]*)", line):
            yield tuple(shlex.split(command, comments=True))


class Parsed(BaseException):
    """The command has understood its arguments, and need not go on."""


def complaint(script: str, arguments: tuple[str, ...], monkeypatch) -> str:
    """What the command says to these arguments; '' if it takes them."""
    if script == "train.py":
        # a run of the user's
        arguments = [word for word in arguments if not word.startswith("out/")]
        try:
            parse_command_line(arguments)
        except ValueError as error:
            return str(error)
        return ""
    if "Parser(" not in (ROOT / script).read_text():  # a server, which would run
        return ""
    parse = Parser.parse_args

    def parse_and_stop(self):
        parse(self)
        raise Parsed

    errors = io.StringIO()
    with monkeypatch.context() as patch, contextlib.redirect_stderr(errors):
        patch.setattr(Parser, "parse_args", parse_and_stop)
        patch.setattr(sys, "argv", [script, *arguments])
        try:
            runpy.run_path(script, run_name="__main__")
        except Parsed:
            return ""
        except SystemExit as end:
            errors.write(str(end))
    said = errors.getvalue()
    return "" if "no such file" in said else said  # of the user's


def test_every_command_line_is_understood(monkeypatch):
    monkeypatch.chdir(ROOT)
    pages = {}
    for path in TODAYS + SCRIPTS:
        pages |= dict.fromkeys(commands(path), path.name)
    wrong = []
    for command, page in pages.items():
        said = "" if "--help" in command else complaint(command[0], command[1:], monkeypatch)
        if said:
            wrong.append(f"{page}: {shlex.join(command)}: {said}")
    assert not wrong, "\n".join(wrong)
