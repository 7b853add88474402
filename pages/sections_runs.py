"""
Sections of report.html about training: runs and their curves, experiments, speed and memory.

>>> list(runs_section(Results(Path("out"))))  # [{"type": "table", "columns": ..., "rows": ...}, {"type": "curves"}]
"""

import math
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from common.files import read_json
from common.tables import read_table
from kernels.cpu_features import hardware
from pages.html import embedded, table
from pages.read_results import Results, read_curve, read_records, size_and_shape

CURVE_POINTS = 30_000  # of all curves together; this and PICTURE_BYTES keep a page with dozens of runs below 5 MB
PICTURE_BYTES = 800_000
BENCH_RESULTS = Path(__file__).parent.parent / "bench" / "results.jsonl"

# ---- Runs ----


def runs_section(results: Results) -> Iterable[dict]:
    """Each run: its size, its training, its final loss."""
    logs = results.of_runs("log.csv", read_curve)
    rows = []
    for name, log in logs.items():
        run = results.runs[name]
        config = results.read(run / "config.json", read_json) or {}
        size, shape = results.read(run / "best.pt", lambda path: size_and_shape(path.parent)) or (None, None)
        validated = [row for row in log if row["val_loss"]]
        speeds = [row["tokens_per_s"] for row in log if row["tokens_per_s"]]
        last = validated[-1] if validated else {}
        row = [name, shape, size, config.get("data"), config.get("optimizer"), log[-1]["tokens"]]
        row += [log[-1]["seconds"] / 60, float(np.median(speeds)) if speeds else None, last.get("val_loss")]
        rows.append(row + [min((row["val_loss"] for row in validated), default=None), last.get("bpb")])
    columns = [
        ("run", "text"),
        ("shape", "text", "width-layers-heads"),
        ("parameters", "integer"),
        ("data", "text"),
        ("optimizer", "text"),
        ("tokens seen", "integer"),
        ("minutes", 1, "training time, without compiling, validation and saving"),
        ("tokens/s", "integer", "median"),
        ("validation loss", 3, "nats per token, at the end; not comparable across vocabularies"),
        ("lowest", 3, "the lowest validation loss, which best.pt has"),
        ("bits per byte", 3, "of validation text; comparable across vocabularies"),
    ]
    if rows:
        yield table(columns, rows)
        yield curves(logs)
    told = [path / "story.html" for path in results.runs.values() if (path / "story.html").is_file()]
    if told:
        links = [[[results.name(path.parent), results.link(path)]] for path in told]
        yield table([("let it tell a story", "link")], links)


def curves(logs: dict[str, list[dict]]) -> dict:
    """Training and validation loss over tokens or seconds."""
    points = max(20, CURVE_POINTS // len(logs) // 2)
    lines = []
    for name, log in logs.items():
        line = dict(name=name)
        for column in ("train_loss", "val_loss"):
            rows = [row for row in log if row[column]]
            rows = rows[:: -max(1, math.ceil(len(rows) / points))][::-1]  # always includes the last one
            line[column] = [[round(row["tokens"]), round(row["seconds"], 1), row[column]] for row in rows]
        lines.append(line)
    caption = "Faint lines: training; bold lines: validation. Click a name to show it alone."
    return dict(type="curves", lines=lines, caption=caption)


# ---- Experiments ----


def experiments_section(results: Results) -> Iterable[dict]:
    """Runs under equal conditions, differing in one respect (experiments.py)."""
    bytes_left = PICTURE_BYTES
    for directory in results.experiments:
        rows = results.read(directory / "experiment.csv", read_table)
        if not rows:
            continue
        names = [name for name in rows[0] if not name.endswith(("_low", "_high")) and name != "variant"]
        columns = [(name.replace("_", " "), kind_of([row[name] for row in rows])) for name in names]
        cells = [[value_of(row, name, kind) for name, (_, kind) in zip(names, columns)] for row in rows]
        yield table(columns, cells, results.name(directory))
        png = results.read(directory / "experiment.png", Path.read_bytes)
        if png and len(png) <= bytes_left:
            bytes_left -= len(png)
            yield embedded(png, f"{directory.name}: the plot of the table above")


def kind_of(texts: list[str]) -> str | int:
    """How to show a column of experiment.csv; see html.table."""
    texts = [text for text in texts if text]
    try:
        numbers = [float(text) for text in texts]
    except ValueError:
        return "text"
    if all(number == int(number) for number in numbers):
        return "integer" if max(map(abs, numbers), default=0) < 1e10 else "exponent"
    return 1 if max(map(abs, numbers)) > 100 else 3


def value_of(row: dict, name: str, kind: str | int):
    """A cell of experiment.csv, with its interval where there is one."""
    if kind == "text" or not row[name]:
        return row[name] or None
    if row.get(f"{name}_low"):
        return [float(row[key]) for key in (name, f"{name}_low", f"{name}_high")]
    return float(row[name])


# ---- Speed and memory ----


def speed_section(results: Results) -> Iterable[dict]:
    """The latest result of each benchmark that was saved on this machine (bench.py --save)."""
    records, here = results.read(BENCH_RESULTS, read_records) or [], hardware()
    last = {record["bench"]: record for record in records if record["hardware"] == here}
    ratios, figures = [], []
    for bench, record in last.items():
        ratios += [[bench, name, value, here] for name, value in record["ratios"].items()]
        for name, value in record["figures"].items():
            figures.append([bench, name, value and [value, 0 if value >= 100 else 3], here])
    if ratios:
        columns = [("bench", "text"), ("compared", "text"), ("ratio", 2, "above 1 is better"), ("hardware", "text")]
        yield table(columns, ratios, "Ours compared with a peer (python bench.py --help says which), medians")
        columns[1:3] = [("figure", "text"), ("value", "figures")]
        yield table(columns, figures, "All measurements behind these ratios", folded=True)
