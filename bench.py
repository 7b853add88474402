"""
Measures all speeds in the docs: medians of ours and its peers', alternating in one run.

$ python bench.py train --save      # run it, and append the result to benches/results.jsonl
$ python bench.py train --saved     # its newest saved results, a column for each machine
$ python bench.py --saved           # the newest saved results of all benches

Each bench is a file of benches/, which says more:

train   a training step, against a nanoGPT-style GPT and transformers' GPTNeo, eager and compiled,
        and against its matrix products alone
sample  generate(), against transformers.generate and a nanoGPT-style GPT, which has no cache
loss    time to a loss on real stories, against a nanoGPT-style GPT; needs data/real
track   bits per byte after ten minutes on two cores, config against config; needs data/real
rouge   ROUGE-2 of 500 texts with 100,000 stories, against rouge-score-rs

The last line of output is a JSON object. Its ratios are ours / peer: above 1 is better. Run nothing
else meanwhile.
"""

import importlib
import json

from benches import results
from nanostories.cli import Parser, existing_file, one_line_errors, positive

BENCHES = ("train", "sample", "loss", "track", "rouge")


def parse_arguments():
    parser = Parser(__doc__)
    parser.add_argument("name", nargs="?", choices=BENCHES, help="which bench")
    parser.add_argument(
        "--rounds", type=positive, help="runs of each contestant, or seeds (default: 3; loss: 1)"
    )
    parser.add_argument(
        "--config",
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
    if not args.name and not args.saved:
        parser.error(f"name a bench: {', '.join(BENCHES)}; or use --saved for all saved results")
    if args.config and args.name != "track":
        parser.error("--config is for track")
    return args


def run_bench(args) -> dict:
    """The result, as it is saved."""
    settings = {}
    if args.rounds:
        settings["rounds"] = args.rounds
    if args.config:
        settings["configs"] = args.config
    ratios, figures = importlib.import_module(f"benches.{args.name}").bench(**settings)
    return {
        "bench": args.name,
        "ratios": ratios,
        "figures": figures,
        "hardware": results.hardware(),
        "versions": results.versions(),
    }


def print_saved(name: str) -> None:
    saved = results.newest(name)
    if saved:
        print(f"{name}\n\n{results.to_text(saved)}\n")
    else:
        print(f"{name}: no saved result; make one: python bench.py {name} --save\n")


def main() -> None:
    args = parse_arguments()
    with one_line_errors("bench.py", interrupted="no result was saved"):
        if args.saved:
            for name in [args.name] if args.name else BENCHES:
                print_saved(name)
            return
        result = run_bench(args)
        print(results.to_text([result]))
        if args.save:
            with results.RESULTS.open("a") as file:
                file.write(json.dumps(result) + "\n")
        print(json.dumps(result))


if __name__ == "__main__":
    main()
