"""
Measures all speeds in the docs: medians of ours and a peer's, alternating in one run. Each bench is
a file of benches/.

$ python bench.py --help                    # the contestants of each bench
$ python bench.py train --save              # run it, and append the result to benches/results.jsonl
# its newest saved results, a column for each machine: docs/performance.md
$ python bench.py train --saved
$ python bench.py --saved                   # the newest saved results of all benches

The last line of output is a JSON object. Its ratios are ours / peer: above 1 is better. Run nothing
else meanwhile.
"""

import argparse
import ast
import json
import platform
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from nanostories.cli import Parser, existing_file, one_line_errors
from nanostories.tables import table_text

ROOT = Path(__file__).parent
RESULTS = ROOT / "benches" / "results.jsonl"
SOURCES = {
    path.stem: path.read_text(encoding="utf-8") for path in sorted((ROOT / "benches").glob("*.py"))
}
# Their docstrings, without importing torch; measure.py and models.py are no benches.
BENCHES = {
    name: ast.get_docstring(ast.parse(text))
    for name, text in SOURCES.items()
    if "\ndef bench(" in text
}


def run_bench(name: str, **settings) -> dict:
    """Runs the bench and prints its table -> the result to save."""
    from nanostories.kernels.cpu_features import hardware  # torch takes a while to import

    ratios, figures = import_module(f"benches.{name}").bench(**settings)
    print(figures_table({"median": figures}))
    libraries = [
        name
        for name in ("torch", "transformers", "rouge-score-rs")
        if find_spec(name.replace("-", "_"))
    ]
    versions = {"python": platform.python_version()} | {name: version(name) for name in libraries}
    return dict(bench=name, ratios=ratios, figures=figures, hardware=hardware(), versions=versions)


def saved_results(name: str) -> dict[str, dict[str, float]]:
    """{hardware: ratios and figures of this bench's newest result}, without older versions, which
    had other ratios."""
    results = [
        result
        for result in map(json.loads, RESULTS.read_text().splitlines())
        if result["bench"] == name
    ]
    results = [result for result in results if set(result["ratios"]) == set(results[-1]["ratios"])]
    newest = {
        result["hardware"].replace("(R)", "").replace(" Processor", ""): result
        for result in results
    }
    columns = {}
    for machine, result in sorted(newest.items()):
        columns[machine] = {f"ratio: {name}": x for name, x in result["ratios"].items()} | result[
            "figures"
        ]
    return columns


def figures_table(columns: dict[str, dict[str, float]]) -> str:
    """columns: {head: {figure: value}}; figures missing from a column are left empty."""
    names = dict.fromkeys(name for figures in columns.values() for name in figures)
    rows = [
        [name, *(number(column[name]) if name in column else "" for column in columns.values())]
        for name in names
    ]
    return table_text(["", *columns], rows)


def number(value: float) -> str:
    return f"{value:,.{0 if value >= 100 else 1 if value >= 10 else 3}f}"


def parse_arguments() -> argparse.Namespace:
    parser = Parser(
        "\n\n".join([__doc__.strip(), *(f"== {name} ==\n{text}" for name, text in BENCHES.items())])
    )
    parser.add_argument("name", nargs="?", choices=BENCHES, help="which bench")
    parser.add_argument(
        "--rounds", type=int, help="runs of each contestant, or seeds (default: 3; loss: 1)"
    )
    config = dict(nargs="+", type=existing_file, dest="configs", metavar="FILE")
    parser.add_argument(
        "--config",
        **config,
        help="for track: the config of the record, and those to compare with it",
    )
    parser.add_argument(
        "--save", action="store_true", help="append the result to benches/results.jsonl"
    )
    parser.add_argument(
        "--saved",
        action="store_true",
        help="run nothing: print the results in benches/results.jsonl",
    )
    args = parser.parse_args()
    if not args.name and not args.saved:
        parser.error(f"name a bench: {', '.join(BENCHES)}; or use --saved for all saved results")
    if args.configs and args.name != "track":
        parser.error("--config is for track")
    return args


def main() -> None:
    args = parse_arguments()
    with one_line_errors("bench.py", interrupted="no result was saved"):
        if args.saved:
            for name in [args.name] if args.name else BENCHES:
                if results := saved_results(name):
                    print(f"{name}\n\n{figures_table(results)}\n")
                else:
                    print(
                        f"{name}: no result in {RESULTS}; make one: python bench.py {name} --save\n"
                    )
            return
        settings = {key: getattr(args, key) for key in ("rounds", "configs") if getattr(args, key)}
        result = run_bench(args.name, **settings)
        if args.save:
            with RESULTS.open("a") as file:
                file.write(json.dumps(result) + "\n")
        print(json.dumps(result))


if __name__ == "__main__":
    main()
