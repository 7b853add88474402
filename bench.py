"""
Measures all speeds in the docs: medians of ours and its peers', alternating in one run.

$ python bench.py train --save      # run it, and append the result to benches/results.jsonl
$ python bench.py train --saved     # its newest saved results, a column for each machine

Each bench is a file of benches/, which says more:

train   a training step, against a nanoGPT-style GPT and transformers' GPTNeo, eager and compiled,
        and against its matrix products alone
sample  generate(), against transformers.generate and a nanoGPT-style GPT, which has no cache
loss    time to a loss on real stories, against a nanoGPT-style GPT; needs data/real
track   bits per byte after ten minutes on two cores, config against config; needs data/real
rouge   ROUGE-2 of 500 texts with 100,000 stories, against rouge-score-rs
gpu     the first hour on a GPU: its checks, then speed and memory beside what was counted

The last line of output is a JSON object. Its ratios are ours / peer: above 1 is better. Run nothing
else meanwhile.
"""

import importlib
import json
import os
import platform
from importlib.metadata import distributions
from pathlib import Path

from nanostories.cli import Parser, existing_file, one_line_errors, positive
from nanostories.files import append_json, read_json_lines
from nanostories.results import Result, Table, to_text

BENCHES = ("train", "sample", "loss", "track", "rouge", "gpu")
LIBRARIES = ("torch", "transformers", "rouge-score-rs")
RESULTS = Path(__file__).parent / "benches" / "results.jsonl"


def parse_arguments():
    parser = Parser(__doc__)
    parser.add_argument("name", choices=BENCHES, help="which bench")
    parser.add_argument(
        "--rounds", type=positive, help="runs of each contestant, or seeds (default: 3; loss: 1)"
    )
    parser.add_argument(
        "--config",
        dest="configs",
        nargs="+",
        type=existing_file,
        metavar="FILE",
        help="for track: the config of the record, and those to compare with it",
    )
    parser.add_argument(
        "--save", action="store_true", help="append the result to benches/results.jsonl"
    )
    parser.add_argument("--saved", action="store_true", help="only print the saved results")
    args = parser.parse_args()
    if args.configs and args.name != "track":
        parser.error("--config is for track")
    return args


def run_bench(args) -> dict:
    """The result, as it is saved."""
    from benches.measure import DEVICE
    from nanostories.device import processor_name, set_up_device

    settings = {}  # what is left out has the bench's own default
    for name in ("rounds", "configs"):
        if getattr(args, name):
            settings[name] = getattr(args, name)
    ratios, figures = importlib.import_module(f"benches.{args.name}").bench(**settings)
    device = set_up_device(DEVICE)
    versions = {"python": platform.python_version()}
    for library in distributions():
        if library.name in LIBRARIES:
            versions[library.name] = library.version
    return {
        "bench": args.name,
        "ratios": ratios,
        "figures": figures,
        "hardware": f"{os.cpu_count()} cores, {processor_name(device)}",
        "versions": versions,
    }


def print_results(name: str, results: list[dict]) -> None:
    """A column for the newest result of each machine."""
    newest = {result["hardware"]: result for result in results}
    rows = {}
    for machine, result in newest.items():
        ratios = {f"ratio: {key}": ratio for key, ratio in result["ratios"].items()}
        for key, value in (ratios | result["figures"]).items():
            text = f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
            rows.setdefault(key, {"": key})[machine] = text
    table = Table(name, list(rows.values()))
    if not rows:
        table.about = f"no saved result; make one: python bench.py {name} --save"
    print(to_text(Result("bench.py", [table], [], {})), end="\n\n")


def main() -> None:
    args = parse_arguments()
    with one_line_errors("bench.py", interrupted="no result was saved"):
        if args.saved:
            saved = [result for result in read_json_lines(RESULTS) if result["bench"] == args.name]
            print_results(args.name, saved)
            return
        result = run_bench(args)
        print_results(args.name, [result])
        if args.save:
            append_json(RESULTS, result)
        print(json.dumps(result))


if __name__ == "__main__":
    main()
