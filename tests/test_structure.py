"""The code stays readable: one idea a line; and imports only point down the README's list."""

import ast
import io
import re
import sys
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
COMMANDS = {path.stem for path in ROOT.glob("*.py")} - {"model"}
PATTERNS = ("*.py", "benches/*.py", "configs/*.py", "nanostories/**/*.py")
FILES = [path for pattern in PATTERNS for path in sorted(ROOT.glob(pattern))]
CODE = (tokenize.NAME, tokenize.NUMBER, tokenize.STRING, tokenize.OP)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
# `"text" * (n > 1)`; a product of a condition and a number or a tensor is arithmetic
TEXT_TIMES_CONDITION = re.compile(r"""f?['"\[].* \* (\(.*[<>=]|\(not |bool\(|any\(|all\()""")
# These limits fall whenever a part is rewritten.
TOKENS_A_LINE = 9.3
SECOND_LOOKS = 20


# ---- Density ----
def needs_a_second_look(node: ast.AST) -> bool:
    if isinstance(node, ast.Assign):  # `a, b = x, y`, but not `a, b = pair`
        return isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple)
    if isinstance(node, COMPREHENSIONS):
        return count_inside(node, ast.comprehension) > 1
    if isinstance(node, ast.IfExp):
        return count_inside(node, ast.IfExp) > 1
    if isinstance(node, ast.BinOp):
        return bool(TEXT_TIMES_CONDITION.match(ast.unparse(node)))
    if isinstance(node, ast.FunctionDef):
        return node.end_lineno - node.lineno >= 50
    return isinstance(node, ast.NamedExpr)


def count_inside(node: ast.AST, kind: type) -> int:
    return sum(isinstance(inner, kind) for inner in ast.walk(node))


def test_few_places_need_a_second_look():
    places = []
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if needs_a_second_look(node):
                places.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert len(places) <= SECOND_LOOKS, ", ".join(places)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="an f-string is several tokens")
def test_one_idea_a_line():
    lines = set()  # without comments, docstrings, blank lines
    n_tokens = 0
    for path in FILES:
        for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
            if token.type in CODE and not token.line.lstrip().startswith('"""'):
                lines.add((path, token.start[0]))
                n_tokens += 1
    assert n_tokens / len(lines) <= TOKENS_A_LINE


# ---- Imports ----
def modules(path: Path) -> set[str]:
    """What a file imports, anywhere in it: a command, model, or a part of nanostories."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            place = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            names |= {place + alias.name for alias in node.names}
    return {name.removeprefix("nanostories.").partition(".")[0] for name in names}


def test_imports_point_down():
    readme = (ROOT / "README.md").read_text()
    listed = re.findall(r"^  (?:\.\./)?(\w+)(?:/|\.py) {2,}\S", readme, re.MULTILINE)
    parts = {path.stem for path in (ROOT / "nanostories").iterdir() if path.stem[0] not in "_."}
    assert set(listed) == parts | {"model"}
    for i, part in enumerate(listed):
        above = COMMANDS | set(listed[:i])
        place = ROOT if part == "model" else ROOT / "nanostories"
        for path in [*place.glob(f"{part}.py"), *place.glob(f"{part}/*.py")]:
            assert modules(path).isdisjoint(above), path
