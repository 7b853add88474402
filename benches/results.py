"""The saved results of benches: benches/results.jsonl."""

import contextlib
import json
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from nanostories.kernels import cpu_features
from nanostories.tables import table_text

RESULTS = Path(__file__).parent / "results.jsonl"


def hardware() -> str:
    """The name of this machine."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    processor = cpu_features.cpu_info("model name")
    isa = cpu_features.instruction_set().name
    return f"{os.cpu_count()} cores, {processor}, as {isa}"


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for library in ("torch", "transformers", "rouge-score-rs"):
        with contextlib.suppress(PackageNotFoundError):
            found[library] = version(library)
    return found


def newest(bench: str) -> list[dict]:
    """The last saved result of each machine."""
    by_machine = {}
    for line in RESULTS.read_text().splitlines():
        result = json.loads(line)
        if result["bench"] == bench:
            by_machine[result["hardware"]] = result
    return list(by_machine.values())


def to_text(results: list[dict]) -> str:
    """A table with a column for each result; a row that it lacks is left empty."""
    rows = {}
    for column, result in enumerate(results):
        ratios = {f"ratio: {name}": ratio for name, ratio in result["ratios"].items()}
        for name, value in (ratios | result["figures"]).items():
            row = rows.setdefault(name, [name] + [""] * len(results))
            row[1 + column] = f"{value:,.3f}"
    machines = [result["hardware"] for result in results]
    return table_text(["", *machines], list(rows.values()))
