"""The code stays readable: one idea a line; and imports only point down the README's list."""

import ast
import io
import re
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
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
# The goals are 9.5 tokens a line; in 1,000 lines, 8 assignments of several values, 2 comprehensions
# in comprehensions, 2 walruses; none of the others. A limit falls whenever a part is rewritten.
LIMITS_PER_LINE = {"tokens": 9.3}
LIMITS_PER_1000_LINES = {
    "several values assigned at once": 1,
    "comprehension in a comprehension": 2,
    "walrus": 0.5,
    "condition times a text or list": 0,
    "if-else in if-else": 0,
    "function above 50 lines": 0.6,
}


# ---- Density ----
def is_condition(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return getattr(node.func, "id", "") in ("bool", "isinstance", "any", "all")
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.Not)
    return isinstance(node, (ast.Compare, ast.BoolOp))


def assigns_several_values(node: ast.AST) -> bool:
    """`a, b = x, y`; but not a swap, nor `a, b = pair`."""
    if not isinstance(node, ast.Assign):
        return False
    target = node.targets[0]
    if not isinstance(target, ast.Tuple) or not isinstance(node.value, ast.Tuple):
        return False
    return {ast.unparse(x) for x in target.elts} != {ast.unparse(x) for x in node.value.elts}


def multiplies_by_condition(node: ast.AST) -> bool:
    """`"text" * (n > 1)`. A product of a condition and a number or a tensor is arithmetic."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult):
        return False
    operands = (node.left, node.right)
    if any(isinstance(x, ast.Call) and is_condition(x) for x in operands):
        return True
    is_text = isinstance(getattr(node.left, "value", None), str)
    is_list = isinstance(node.left, (ast.List, ast.Tuple, ast.JoinedStr))
    return (is_text or is_list) and is_condition(node.right)


def has_another_inside(node: ast.AST, kinds) -> bool:
    return any(isinstance(x, kinds) and x is not node for x in ast.walk(node))


def dense_places(tree: ast.AST):
    """(kind, line number) of each place that needs a second look."""
    for node in ast.walk(tree):
        if assigns_several_values(node):
            yield "several values assigned at once", node.lineno
        if multiplies_by_condition(node):
            yield "condition times a text or list", node.lineno
        if isinstance(node, COMPREHENSIONS):
            if len(node.generators) > 1 or has_another_inside(node, COMPREHENSIONS):
                yield "comprehension in a comprehension", node.lineno
        if isinstance(node, ast.IfExp) and has_another_inside(node, ast.IfExp):
            yield "if-else in if-else", node.lineno
        if isinstance(node, ast.NamedExpr):
            yield "walrus", node.lineno
        if isinstance(node, FUNCTIONS) and node.end_lineno - node.lineno >= 50:
            yield "function above 50 lines", node.lineno


def code_lines_and_tokens(text: str) -> tuple[int, int]:
    """Without comments, docstrings, blank lines."""
    in_docstrings = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            in_docstrings |= set(range(node.lineno, node.end_lineno + 1))
    lines = set()
    n_tokens = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in LAYOUT and token.start[0] not in in_docstrings:
            lines |= set(range(token.start[0], token.end[0] + 1))
            n_tokens += 1
    return len(lines), n_tokens


def test_one_idea_a_line():
    lines = tokens = 0
    places = {kind: [] for kind in LIMITS_PER_1000_LINES}
    for path in FILES:
        text = path.read_text()
        file_lines, file_tokens = code_lines_and_tokens(text)
        lines += file_lines
        tokens += file_tokens
        for kind, number in dense_places(ast.parse(text)):
            places[kind].append(f"{path.relative_to(ROOT)}:{number}")
    rates = {kind: 1000 * len(found) / lines for kind, found in places.items()}
    counts = ", ".join(f"{kind} {rate:.1f}" for kind, rate in rates.items())
    counts = f"{tokens / lines:.2f} tokens a line; in 1,000 of {lines:,} lines: {counts}"
    assert tokens / lines <= LIMITS_PER_LINE["tokens"], counts
    for kind, limit in LIMITS_PER_1000_LINES.items():
        assert rates[kind] <= limit, f"{counts}\n{kind}: {', '.join(places[kind])}"


def test_what_counts_as_dense():
    code = """
a, b = 1, f(2)
a, b = b, a
B, T = x.shape
text = "s" * bool(n)
mask = (x > 0) * y
z = 1 if a else 2 if b else 3
rows = [[f(x) for x in y] for y in z]
if m := g(): pass
"""
    kinds = [kind for kind, _ in dense_places(ast.parse(code))]
    assert sorted(kinds) == [
        "comprehension in a comprehension",
        "condition times a text or list",
        "if-else in if-else",
        "several values assigned at once",
        "walrus",
    ]


# ---- Imports ----
def modules(path: Path) -> set[str]:
    """What a file imports, anywhere in it: a command, model, or a part of nanostories."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == "nanostories":
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module)
    return {name.removeprefix("nanostories.").partition(".")[0] for name in names}


def test_imports_point_down():
    readme = (ROOT / "README.md").read_text()
    listed = re.findall(r"^  (?:\.\./)?(\w+)(?:/|\.py) {2,}\S", readme, re.MULTILINE)
    parts = {path.stem for path in (ROOT / "nanostories").iterdir() if path.stem[0] != "_"}
    assert set(listed) == parts | {"model"}
    for i, part in enumerate(listed):
        above = COMMANDS | set(listed[:i])
        if part == "model":
            files = [ROOT / "model.py"]
        elif (ROOT / "nanostories" / part).is_dir():
            files = sorted((ROOT / "nanostories" / part).glob("*.py"))
        else:
            files = [ROOT / "nanostories" / f"{part}.py"]
        for path in files:
            assert modules(path).isdisjoint(above), path
