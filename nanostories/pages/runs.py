"""
Runs side by side: a table of their training and their loss curves, from log.csv and best.pt.

>>> runs_section(ResultFiles([Path("out")]))  # HTML
"""

import statistics
from pathlib import Path

from nanostories.figures import svg_bytes
from nanostories.files import read_json
from nanostories.pages.html import image
from nanostories.pages.result_files import ResultFiles
from nanostories.results import Result, Table, to_html
from nanostories.training.curves import loss_figure, read_curve
from nanostories.training.run_directory import percent_trained

FORMATS = {"minutes": ".1f", "tokens/s": ",.0f", "validation loss": ".3f", "bits per byte": ".3f"}
ABOUT = (
    "Compare runs that saw equally many tokens. Minutes of training alone, without compiling,"
    " validation and saving; tokens/s: the median. Validation loss: the lowest, in nats per token,"
    " which can be compared only within a vocabulary; other commands use the weights of that"
    " moment."
)


def runs_section(files: ResultFiles) -> str:
    logs = {}
    data = {}
    rows = []
    notes = {}
    for path, log in files.contents("log.csv", read_curve).items():
        run = files.label(path.parent)
        facts = files.read(path.with_name("best.pt"), run_facts)
        if not facts:  # stopped before its first validation
            facts = files.read(path.with_name("config.json"), read_json) or {}
        logs[run] = log
        data[run] = facts.get("data", "")
        rows.append(run_row(run, log, facts))
        remarks = [percent_trained(log[-1]["done"])]
        if facts.get("start_from"):
            remarks.append(f"began with the weights of {facts['start_from']}")
        if any(remarks):
            notes[run] = "; ".join(filter(None, remarks))
    if not logs:
        return ""
    result = Result("train.py", [Table("Training", rows, FORMATS, notes, ABOUT)], [], {})
    return to_html(result) + image(svg_bytes(loss_figure(logs, data)), "loss curves")


def run_facts(checkpoint: Path) -> dict:
    """The settings of a run and its number of parameters; `data` is the name that its corpus has
    now, if it is there."""
    from nanostories.checkpoints.checkpoint import from_checkpoint
    from nanostories.checkpoints.models import Model

    model = Model(str(checkpoint))
    facts = dict(model.checkpoint["train_config"])
    facts["parameters"] = from_checkpoint(model.checkpoint).num_params()
    if model.corpus:
        facts["data"] = model.corpus.name
    return facts


def run_row(run: str, log: list[dict], facts: dict) -> dict:
    validated = [row for row in log if row["val_loss"]]
    lowest = min(validated, key=lambda row: row["val_loss"], default={})
    speeds = [row["tokens_per_s"] for row in log if row["tokens_per_s"]]
    return {
        "run": run,
        "data": facts.get("data", ""),
        "layers": facts.get("n_layer"),
        "width": facts.get("n_embd"),
        "parameters": facts.get("parameters"),
        "tokens": int(log[-1]["tokens"]),
        "minutes": (log[-1]["seconds"] or 0) / 60,
        "tokens/s": statistics.median(speeds) if speeds else None,
        "validation loss": lowest.get("val_loss"),
        "bits per byte": lowest.get("bpb"),
    }
