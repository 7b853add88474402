"""The code stays readable: lines in a file, in a function; and imports only point down the README's list."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
COMMANDS = {path.stem for path in ROOT.glob("*.py")} - {"model"}
FILES = [path for pattern in ("*.py", "*/*.py") for path in ROOT.glob(pattern) if path.parent.name != "tests"]


def test_files_and_functions_are_short():
    for path in FILES:
        functions = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)]
        assert [f.name for f in functions if f.end_lineno - f.lineno >= 80] == [], path
        assert len(path.read_text().splitlines()) <= 450, path


def modules(path: Path) -> set[str]:
    """What a file imports, anywhere in it: the first part of each name."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            names.add(node.module.partition(".")[0])
        elif isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
    return names


def test_imports_point_down():
    listed = re.findall(r"^(\w+)(?:/|\.py) {2,}\S", (ROOT / "README.md").read_text(), re.MULTILINE)
    listed = listed[: listed.index("common") + 1]
    assert {"pages", "model", "kernels"} < set(listed)
    for i, package in enumerate(listed):
        files = [path for path in FILES if path.relative_to(ROOT).parts[0] in (package, f"{package}.py")]
        assert files, package
        for path in files:
            assert modules(path).isdisjoint(COMMANDS | set(listed[:i])), path
