"""
Measures all speeds in the docs: medians of ours and a peer's, alternating in one run. Each bench is a file of benches/.

$ python bench.py --help                    # what each bench compares with what
$ python bench.py train --save              # run it, and append the result to bench/results.jsonl
$ python bench.py train --saved --markdown  # its newest saved results, one column per machine: docs/performance.md
$ python bench.py --saved --markdown        # the main speeds of all machines in one table

The last line of output is a JSON object. Its ratios are ours / peer: above 1 is better. Run nothing else meanwhile.
"""

import argparse
import ast
import json
import platform
import sys
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from common.cli import Parser, one_line_errors
from common.tables import table_text
from kernels import cpu_features

ROOT = Path(__file__).parent
RESULTS = ROOT / "bench" / "results.jsonl"
NAMES = ("sample", "train", "demo", "compressor", "loss", "grade", "rouge", "interpret", "export", "gpu")

# The table of all machines in docs/performance.md: {row: (bench, how the names of its figures end)}.
SUMMARY = {
    "training": ("train", ", tokens/s"),
    "one story at a time": ("sample", ", batch 1, tokens/s"),
    "64 stories at a time": ("sample", ", batch 64, tokens/s"),
}
CONTESTANTS = ("ours", "nanoGPT-style", "transformers")


def versions() -> dict[str, str]:
    names = [name for name in ("torch", "transformers", "rouge-score-rs") if find_spec(name.replace("-", "_"))]
    return {"python": platform.python_version()} | {name: version(name) for name in names}


def saved_results(name: str) -> dict[str, dict]:
    """{hardware: the newest result of this bench}, without results of older versions that had other ratios."""
    results = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    results = [result for result in results if result["bench"] == name]
    if not results:
        raise ValueError(f"{RESULTS}: no result of {name}; make one: python bench.py {name} --save")
    results = [result for result in results if set(result["ratios"]) == set(results[-1]["ratios"])]
    newest = {result["hardware"].replace("(R)", "").replace(" Processor", ""): result for result in results}
    return dict(sorted(newest.items()))


def figures_table(columns: dict[str, dict[str, float]], markdown: bool) -> str:
    """columns: {head: {figure: value}}; figures missing from a column are left empty."""
    longest_first = sorted(columns.values(), key=len, reverse=True)
    names = dict.fromkeys(name for figures in longest_first for name in figures)
    rows = [[name, *(number(figures.get(name)) for figures in columns.values())] for name in names]
    return table_text(["", *columns], rows, markdown)


def saved_table(name: str, markdown: bool) -> str:
    results = saved_results(name)
    return figures_table({machine: result["figures"] for machine, result in results.items()}, markdown)


def number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.{0 if value >= 100 else 1 if value >= 10 else 3}f}"


def summary_table(markdown: bool) -> str:
    """Our best tokens/s and each peer's, with our speedup over that peer."""
    columns: dict[str, dict[str, str]] = {}
    for title, (bench, ending) in SUMMARY.items():
        for machine, result in saved_results(bench).items():
            best = {}
            for who in CONTESTANTS:
                figures = result["figures"].items()
                best[who] = max(value for name, value in figures if name.startswith(who) and name.endswith(ending))
                ratio = "" if who == "ours" else f" ({best['ours'] / best[who]:.1f}×)"
                columns.setdefault(machine, {})[f"{title}: {who}"] = number(best[who]) + ratio
    rows = [[name, *(cells.get(name, "") for cells in columns.values())] for name in next(iter(columns.values()))]
    return table_text(["tokens/s", *columns], rows, markdown)


def run_bench(args: argparse.Namespace) -> dict:
    """Runs the bench and prints its table -> the result to save."""
    module = import_module(f"benches.{args.name}")
    if args.name == "gpu":  # it prints its own results as they come in
        ratios, figures, hardware = module.bench(args.out, args.dry_run)
    else:
        ratios, figures = module.bench(args.rounds or getattr(module, "ROUNDS", 3))
        hardware = cpu_features.hardware()
        print(figures_table({"median": figures}, args.markdown))
    return dict(bench=args.name, ratios=ratios, figures=figures, hardware=hardware, versions=versions())


def main():
    texts = {name: ast.get_docstring(ast.parse((ROOT / "benches" / f"{name}.py").read_text())) for name in NAMES}
    parser = Parser("\n\n".join([__doc__.strip(), *(f"== {name} ==\n{text}" for name, text in texts.items())]))
    parser.add_argument("name", nargs="?", choices=NAMES, help="which bench")
    parser.add_argument("--rounds", type=int, help="runs of each contestant (default: 3; demo and loss: 1)")
    parser.add_argument("--save", action="store_true", help="append the result to bench/results.jsonl")
    parser.add_argument("--saved", action="store_true", help="run nothing: print the results in bench/results.jsonl")
    parser.add_shared("out", default=Path("out/gpu"), help="gpu only: the directory for its results (default: out/gpu)")
    parser.add_argument("--dry_run", action="store_true", help="gpu only: try it with toy models on a CPU")
    parser.add_shared("markdown")
    args = parser.parse_args()
    if args.saved and not args.name:
        print(summary_table(args.markdown))
    elif args.saved:
        print(saved_table(args.name, args.markdown))
    elif not args.name:
        parser.error(f"name a bench: {', '.join(NAMES)}; or use --saved for the table of all machines")
    else:
        result = run_bench(args)
        if args.save:
            with RESULTS.open("a") as file:
                file.write(json.dumps(result) + "\n")
        print(json.dumps(result))
        if result["figures"].get("checks that failed"):
            sys.exit(1)


if __name__ == "__main__":
    with one_line_errors("bench.py", interrupted="no result was saved"):
        main()
