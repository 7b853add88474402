"""The code stays readable: one idea a line; and imports only point down the README's list."""

import ast
import io
import re
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).parent.parent
COMMANDS = {path.stem for path in ROOT.glob("*.py")} - {"model"}
PATTERNS = ("*.py", "benches/*.py", "configs/*.py", "nanostories/**/*.py")
FILES = [path for pattern in PATTERNS for path in sorted(ROOT.glob(pattern))]
LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
# `"text" * (n > 1)`; a product of a condition and a number or a tensor is arithmetic
TEXT_TIMES_CONDITION = re.compile(r"""f?['"\[].* \* (\(.*[<>=]|\(not |bool\(|any\(|all\()""")
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
# The goals are 9.5 tokens a line; in 1,000 lines, 8 assignments of several values, 2 comprehensions
# in comprehensions, 2 walruses; none of the others. A limit falls whenever a part is rewritten.
TOKENS_PER_LINE = 9.3
LIMITS_PER_1000_LINES = {
    "several values assigned at once": 1,
    "comprehension in a comprehension": 2,
    "walrus": 0.5,
    "condition times a text or list": 0,
    "if-else in if-else": 0,
    "function above 50 lines": 0.6,
}


# ---- Density ----
def assigns_several_values(node: ast.AST) -> bool:
    """`a, b = x, y`; but not `a, b = pair`."""
    return (
        isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Tuple)
        and isinstance(node.value, ast.Tuple)
    )


def has_another_inside(node: ast.AST, kinds) -> bool:
    return any(isinstance(x, kinds) and x is not node for x in ast.walk(node))


def dense_places(tree: ast.AST):
    """(kind, line number) of each place that needs a second look."""
    for node in ast.walk(tree):
        if assigns_several_values(node):
            yield "several values assigned at once", node.lineno
        if isinstance(node, ast.BinOp) and TEXT_TIMES_CONDITION.match(ast.unparse(node)):
            yield "condition times a text or list", node.lineno
        if isinstance(node, COMPREHENSIONS):
            if len(node.generators) > 1 or has_another_inside(node, COMPREHENSIONS):
                yield "comprehension in a comprehension", node.lineno
        if isinstance(node, ast.IfExp) and has_another_inside(node, ast.IfExp):
            yield "if-else in if-else", node.lineno
        if isinstance(node, ast.NamedExpr):
            yield "walrus", node.lineno
        if isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno >= 50:
            yield "function above 50 lines", node.lineno


def test_one_idea_a_line():
    n_lines = n_tokens = 0
    places = {kind: [] for kind in LIMITS_PER_1000_LINES}
    for path in FILES:
        text = path.read_text()
        lines = set()  # without comments, docstrings, blank lines
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type not in LAYOUT and not token.line.lstrip().startswith('"""'):
                lines.add(token.start[0])
                n_tokens += 1
        n_lines += len(lines)
        for kind, number in dense_places(ast.parse(text)):
            places[kind].append(f"{path.relative_to(ROOT)}:{number}")
    rates = {kind: 1000 * len(found) / n_lines for kind, found in places.items()}
    counts = f"{n_tokens / n_lines:.2f} tokens a line; in 1,000 of {n_lines:,} lines: {rates}"
    if sys.version_info < (3, 12):  # later, an f-string is several tokens
        assert n_tokens / n_lines <= TOKENS_PER_LINE, counts
    for kind, limit in LIMITS_PER_1000_LINES.items():
        assert rates[kind] <= limit, f"{counts}\n{kind}: {', '.join(places[kind])}"


# ---- Imports ----
def modules(path: Path) -> set[str]:
    """What a file imports, anywhere in it: a command, model, or a part of nanostories."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        is_from = isinstance(node, ast.ImportFrom)
        if is_from and node.module != "nanostories":
            names.add(node.module)
        elif is_from or isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
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
