"""
Measures all speeds in the docs: medians of ours and a peer's, alternating in one run. Each bench is a file of benches/.

$ python bench.py --help                    # what each bench compares with what
$ python bench.py train --save              # run it, and append the result to bench/results.jsonl
$ python bench.py train --saved             # its newest saved results, a column for each machine: docs/performance.md
$ python bench.py --saved                   # the main speeds of all machines in one table

The last line of output is a JSON object. Its ratios are ours / peer: above 1 is better. Run nothing else meanwhile.
"""

import argparse
import ast
import json
import platform
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from common.cli import Parser, one_line_errors
from common.tables import table_text

ROOT = Path(__file__).parent
RESULTS = ROOT / "bench" / "results.jsonl"
NAMES = ("train", "sample", "loss", "demo", "rouge", "compressor", "export")
SUMMARY = {  # rows of the table of all machines: (bench, how the names of its figures end)
    "training": ("train", ", tokens/s"),
    "one story at a time": ("sample", ", batch 1, tokens/s"),
    "64 stories at a time": ("sample", ", batch 64, tokens/s"),
}
CONTESTANTS = ("ours", "nanoGPT-style", "transformers")


def run_bench(name: str, rounds: int | None) -> dict:
    """Runs the bench and prints its table -> the result to save."""
    module, training = import_module(f"benches.{name}"), {}
    if name in ("train", "compressor"):  # which time train.py's own step
        import train

        training = dict(make_state=train.TrainingState, train_step=train.train_step)
    ratios, figures = module.bench(rounds or getattr(module, "ROUNDS", 3), **training)
    print(figures_table({"median": figures}))
    from kernels.cpu_features import hardware  # torch takes a while to import

    libraries = [name for name in ("torch", "transformers", "rouge-score-rs") if find_spec(name.replace("-", "_"))]
    versions = {"python": platform.python_version()} | {name: version(name) for name in libraries}
    return dict(bench=name, ratios=ratios, figures=figures, hardware=hardware(), versions=versions)


def saved_results(name: str) -> dict[str, dict]:
    """{hardware: the newest result of this bench}, without results of older versions that had other ratios."""
    results = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    results = [result for result in results if result["bench"] == name]
    if not results:
        raise ValueError(f"{RESULTS}: no result of {name}; make one: python bench.py {name} --save")
    results = [result for result in results if set(result["ratios"]) == set(results[-1]["ratios"])]
    newest = {result["hardware"].replace("(R)", "").replace(" Processor", ""): result for result in results}
    return dict(sorted(newest.items()))


def figures_table(columns: dict[str, dict[str, float]]) -> str:
    """columns: {head: {figure: value}}; figures missing from a column are left empty."""
    names = dict.fromkeys(name for figures in columns.values() for name in figures)
    rows = [[name, *(number(figures.get(name)) for figures in columns.values())] for name in names]
    return table_text(["", *columns], rows)


def number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.{0 if value >= 100 else 1 if value >= 10 else 3}f}"


def summary_table() -> str:
    """Our best tokens/s and each peer's, with our speedup over that peer; cells without a saved result are empty."""
    columns: dict[str, dict[str, str]] = {}
    for title, (bench, ending) in SUMMARY.items():
        for machine, result in saved_results(bench).items():
            best = {}
            for who in CONTESTANTS:
                figures = result["figures"].items()
                best[who] = max(value for name, value in figures if name.startswith(who) and name.endswith(ending))
                ratio = "" if who == "ours" else f" ({best['ours'] / best[who]:.1f}×)"
                columns.setdefault(machine, {})[f"{title}: {who}"] = number(best[who]) + ratio
    names = [f"{title}: {who}" for title in SUMMARY for who in CONTESTANTS]
    return table_text(["tokens/s", *columns], [[name, *(c.get(name, "") for c in columns.values())] for name in names])


def parse_arguments() -> argparse.Namespace:
    texts = {name: ast.get_docstring(ast.parse((ROOT / "benches" / f"{name}.py").read_text())) for name in NAMES}
    parser = Parser("\n\n".join([__doc__.strip(), *(f"== {name} ==\n{text}" for name, text in texts.items())]))
    parser.add_argument("name", nargs="?", choices=NAMES, help="which bench")
    parser.add_argument("--rounds", type=int, help="runs of each contestant (default: 3; demo and loss: 1)")
    parser.add_argument("--save", action="store_true", help="append the result to bench/results.jsonl")
    parser.add_argument("--saved", action="store_true", help="run nothing: print the results in bench/results.jsonl")
    args = parser.parse_args()
    if not args.name and not args.saved:
        parser.error(f"name a bench: {', '.join(NAMES)}; or use --saved for the table of all machines")
    return args


def main() -> None:
    args = parse_arguments()
    with one_line_errors("bench.py", interrupted="no result was saved"):
        if args.saved:
            results = saved_results(args.name).items() if args.name else ()
            print(figures_table({at: each["figures"] for at, each in results}) if args.name else summary_table())
            return
        result = run_bench(args.name, args.rounds)
        if args.save:
            with RESULTS.open("a") as file:
                file.write(json.dumps(result) + "\n")
        print(json.dumps(result))


if __name__ == "__main__":
    main()
