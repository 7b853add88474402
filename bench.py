"""
Every speed that the README states: ours and a peer's, alternating in one run, medians. benches/NAME.py is one of them.

$ python bench.py --help           # what each compares with what
$ python bench.py train --save     # and keep the result: bench/results.jsonl

The last line is a JSON object; its ratios are ours / peer, above 1 is better. Nothing else should run meanwhile.
"""

import argparse
import ast
import json
import os
import platform
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import torch

from kernels import cpu_features

ROOT = Path(__file__).parent
NAMES = ("sample", "train", "demo", "compressor", "loss", "grade", "rouge", "interpret")


def hardware() -> str:
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    names = [line.split(": ")[1] for line in info.splitlines() if line.startswith("model name")]
    return f"{os.cpu_count()} cores, {names[0] if names else platform.processor()}, as {cpu_features.isa()}"


def versions() -> dict[str, str]:
    peers = [name for name in ("transformers", "rouge-score-rs") if find_spec(name.replace("-", "_"))]
    return {"python": platform.python_version(), "torch": torch.__version__} | {name: version(name) for name in peers}


def main():
    texts = [__doc__] + [ast.get_docstring(ast.parse((ROOT / "benches" / f"{name}.py").read_text())) for name in NAMES]
    description = "\n\n".join(map(str.strip, texts))  # without importing them
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("--rounds", type=int, help="how often each contestant has its turn")
    parser.add_argument("--save", action="store_true", help="append the result to bench/results.jsonl")
    args = parser.parse_args()
    module = import_module(f"benches.{args.name}")
    ratios, figures = module.bench(args.rounds or getattr(module, "ROUNDS", 3))
    width = max(map(len, figures))
    for name, value in figures.items():
        print(f"{name:{width}}  {value:>10,.{0 if value >= 100 else 1 if value >= 10 else 3}f}")
    result = dict(bench=args.name, ratios=ratios, figures=figures, hardware=hardware(), versions=versions())
    if args.save:
        with (ROOT / "bench" / "results.jsonl").open("a") as file:
            file.write(json.dumps(result) + "\n")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
