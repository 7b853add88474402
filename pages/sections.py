"""
The sections of the page that report.py writes: of each, the parts that pages/report.js draws.

>>> list(overview(Found(Path("out"))))  # [{"type": "table", "columns": ..., "rows": ...}, {"type": "curves", ...}]
"""

import base64
import itertools
import json
import math
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from common.files import read_json
from common.statistics import wilson
from common.tables import read_table
from generation.samples_file import read_rows
from grading import scoreboard
from interpretation.comparison import ROLES
from interpretation.word_classes import KINDS
from novelty.tables_and_plots import PANELS, TITLES
from pages.results import (
    Found,
    numbers,
    read_attention,
    read_curve,
    read_records,
    read_rouge,
    read_summaries,
    size_and_shape,
)

# What makes a page large is kept within bounds, so that it stays below 5 MB with dozens of runs.
CURVE_POINTS = 30_000  # of all curves
ATTENTION_BYTES = 700_000  # of all maps, before base64 makes them a third larger
MAP_TOKENS = 48  # of a map, at most
STORY_BYTES = 700_000
PROBE_BYTES = 600_000
PICTURE_BYTES = 800_000
LONGEST_TEXT = 1500  # characters of a completion
PROMPTS, COMPLETIONS = 30, 2  # side by side; of each run
BINS = 40
NEURONS_OF_KIND = 3

# ---- Parts of a section, which pages/report.js draws ----


def table(columns: list[tuple], rows: list[list], caption: str = "", **others) -> dict:
    """columns: (title, kind, explanation). Cells are, by kind: text; integer, exponent, percent or 0 to 4 for digits
    behind the point: numbers, or [value, low, high]; figures: such a cell and its kind; link: [text, address]. Or None.
    """
    titles = [dict(zip(("title", "kind", "help"), (*column, ""))) for column in columns]
    return dict(type="table", columns=titles, rows=rows, caption=caption) | others


def bars(panels: list[dict], caption: str = "") -> dict:
    """panels: title, kind as of a table's column, bars [[name, value, low, high]], marks {explanation: value}, end."""
    return dict(type="bars", panels=panels, caption=caption)


# ---- Runs ----


def overview(found: Found) -> Iterable[dict]:
    """Each run with its size, what it has seen, and where its loss ended."""
    logs = found.of_runs("log.csv", read_curve)
    rows = []
    for name, log in logs.items():
        run = found.runs[name]
        config = found.read(run / "config.json", read_json) or {}
        size, shape = found.read(run / "best.pt", lambda path: size_and_shape(path.parent)) or (None, None)
        validated = [row for row in log if row["val_loss"]]
        speeds = [row["tokens_per_s"] for row in log if row["tokens_per_s"]]
        last = validated[-1] if validated else {}
        rows.append(
            [
                name,
                shape,
                size,
                config.get("data"),
                config.get("optimizer"),
                log[-1]["tokens"],
                log[-1]["seconds"] / 60,
                float(np.median(speeds)) if speeds else None,
                last.get("val_loss"),
                min((row["val_loss"] for row in validated), default=None),
                last.get("bpb"),
            ]
        )
    columns = [
        ("run", "text"),
        ("shape", "text", "width-layers-heads"),
        ("parameters", "integer"),
        ("data", "text"),
        ("optimizer", "text"),
        ("tokens seen", "integer"),
        ("minutes", 1, "of training; compiling, validation and saving aside"),
        ("tokens/s", "integer", "median"),
        ("validation loss", 3, "nats per token; vocabularies differ between data sets"),
        ("lowest", 3, "validation loss at its lowest, that of best.pt"),
        ("bits per byte", 3, "of validation text: can be compared across vocabularies"),
    ]
    if rows:
        yield table(columns, rows)
        yield curves(logs)


def curves(logs: dict[str, list[dict]]) -> dict:
    """Training and validation loss over tokens or over seconds."""
    points = max(20, CURVE_POINTS // len(logs) // 2)
    lines = []
    for name, log in logs.items():
        line = dict(name=name)
        for column in ("train_loss", "val_loss"):
            rows = [row for row in log if row[column]]
            rows = rows[:: -max(1, math.ceil(len(rows) / points))][::-1]  # the last one always
            line[column] = [[round(row["tokens"]), round(row["seconds"], 1), row[column]] for row in rows]
        lines.append(line)
    caption = "Pale: training, strong: validation. A click on a name shows it alone."
    return dict(type="curves", lines=lines, caption=caption)


# ---- Scores ----


def scores(found: Found) -> Iterable[dict]:
    """GPT-Eval and what needs no judge: means over prompts with 95 % intervals; the controls; what not to conclude."""
    findings = found.read(found.shared("grades.csv"), scoreboard.read_csv) or []
    if found.one:  # differences are between two
        findings = [
            f
            for f in findings
            if f.kind == "auc" or f.kind == "mean" and (f.subject[0] == "(" or found.is_shown(f.subject))
        ]
        if not any(f.kind == "mean" and f.subject[0] != "(" for f in findings):
            return
    for judge in dict.fromkeys(f.judge for f in findings if f.judge or f.kind == "mean"):
        means = scoreboard.find(findings, "mean", judge)
        names = scoreboard.ASPECTS if judge else scoreboard.SHOWN
        names = [name for name in names if any(figure == name for _, figure in means)]
        if not names:
            continue
        titles, kinds = zip(*(how_shown(name) for name in names))
        subjects = list(dict.fromkeys(subject for subject, _ in means))
        rows = [[subject, *(estimate(means.get((subject, name))) for name in names)] for subject in subjects]
        n = max(f.prompts for f in means.values())
        caption = (f"Judge: {judge}. " if judge else "What needs no judge. ") + f"Means over {n} prompts."
        yield table([("", "text"), *zip(titles, kinds)], rows, caption)
        yield bars([panel_of_scores(means, name, subjects) for name in names])
        if aucs := scoreboard.find(findings, "auc", judge):
            controls = dict.fromkeys(subject for subject, _ in aucs)
            rows = [[control, *(estimate(aucs.get((control, name))) for name in names)] for control in controls]
            caption = f"How often {judge} puts the true ending above a spoiled one (AUC): 1 always, 0.5 is a coin"
            yield table([("true ending against", "text"), *((name, 2) for name in names)], rows, caption)
        if judge:
            warnings = (scoreboard.warn_of_few_prompts, scoreboard.warn_of_blindness, scoreboard.warn_of_close_calls)
            lines = [line for warn in warnings for line in warn(findings, judge)]
            lines += [f"What {judge} can see nobody knows: grade.py --controls finds out"] * (not aucs)
            yield dict(type="warnings", lines=lines)
    for kind, head in (("spearman", "Rank correlation"), ("mean_absolute_difference", "Mean absolute difference")):
        if agreement := scoreboard.find(findings, kind, ""):
            names = [name for name in scoreboard.ASPECTS if any(figure == name for _, figure in agreement)]
            rows = [
                [pair, *(estimate(agreement.get((pair, name))) for name in names)]
                for pair in dict.fromkeys(pair for pair, _ in agreement)
            ]
            yield table([("judges", "text"), *((name, 2) for name in names)], rows, f"{head} of the judges")


def how_shown(name: str) -> tuple[str, str | int]:
    title, factor, form = scoreboard.SHOWN.get(name, (name, 1, ".2f"))
    return title.removesuffix(" %"), "percent" if factor == 100 else int(form[1])


def estimate(finding: scoreboard.Finding | None) -> list[float | None] | None:
    if finding is None or np.isnan(finding.value):
        return None
    return [None if np.isnan(x) else x for x in (finding.value, finding.low, finding.high)]


def panel_of_scores(means: dict, name: str, subjects: list[str]) -> dict:
    title, kind = how_shown(name)
    lines = [[subject, *estimate(means[subject, name])] for subject in subjects if estimate(means.get((subject, name)))]
    end = 10 if name in scoreboard.ASPECTS and name != "age" else None
    return dict(title=title, kind=kind, bars=lines, marks={}, end=end)


# ---- Answers ----


def answers(found: Found) -> Iterable[dict]:
    """Facts, reasoning, context: what the models make of prompts with known answers (probe.py)."""
    rows = found.read(found.shared("probe.csv"), read_table) or [{}]
    models = [column.removesuffix(" verdict") for column in rows[0] if column.endswith(" verdict")]
    models = [model for model in models if found.is_shown(model)]
    if not models:
        return
    panels = []
    for name in dict.fromkeys(row["set"] for row in rows if row["right"]):
        of_set = [row for row in rows if row["set"] == name]
        lines = []
        for model in models:
            share = sum(row[f"{model} verdict"] == "right" for row in of_set) / len(of_set)
            lines.append([found.name(model), share, *wilson(share, len(of_set))])
        chance = sum(1 / (2 + row["wrong"].count(" | ")) for row in of_set) / len(of_set)
        title = f"{name} (n = {len(of_set)})"
        panels.append(dict(title=title, kind="percent", bars=lines, marks={"chance": chance}, end=1))
    caption = "Share of prompts answered right, with Wilson's 95 % interval, as if no prompt resembled another"
    yield bars(panels, f"{caption}; dashed: a guess.")
    cells, size = [], 0
    for row in rows:
        answered = [[row[f"{model} verdict"], row[f"{model} lead"], row[f"{model} greedy"]] for model in models]
        size += sum(map(len, itertools.chain.from_iterable(answered)))
        if size > PROBE_BYTES:
            break
        cells.append([row["set"], row["prompt"], row["right"], row["wrong"], answered])
    caption = (
        "Right: the right answer is likelier per byte than every wrong one; nearly: a wrong one leads by little. The "
        "figure is the lead of the right answer in nats per byte, the text how the model itself goes on."
    )
    names = [found.name(model) for model in models]
    yield dict(type="answers", models=names, rows=cells, all=len(rows), caption=caption)


# ---- Instructions ----


def instructions(found: Found) -> Iterable[dict]:
    """Is what a header asks for in the story? (instruct.py)"""
    columns = ("share", "low", "high", "true_stories", "other_stories", "chance")
    panels = {}
    for row in found.read(found.shared("instruct.csv"), numbers(*columns)) or []:
        if found.is_shown(row["run"]):
            empty = dict(title=row["measure"], kind="percent", bars=[], marks={}, end=1)
            panel, name = panels.setdefault(row["measure"], empty), found.name(row["run"])
            panel["bars"].append([name, row["share"], row["low"], row["high"]])
            for told, value in (
                ("(true stories)", row["true_stories"]),
                (f"({name}, other prompts)", row["other_stories"]),
            ):
                if value is not None and [told, value, None, None] not in panel["bars"]:
                    panel["bars"].append([told, value, None, None])
            panel["marks"] |= {"chance": row["chance"]} if row["chance"] is not None else {}
    if panels:
        caption = (
            "Share of prompts, with 95 % intervals; gray: the true stories, and the run's stories for other prompts."
        )
        yield bars(list(panels.values()), caption)


# ---- Novel, or learned by heart ----


WHOSE = ("completions", "beside")


def recitation(found: Found) -> Iterable[dict]:
    """Completions beside the whole training set and beside held-out stories (rouge.py)."""
    facts = found.of_runs("rouge.json", read_rouge)
    if not facts:
        return
    columns = [("", "text")]
    for run in facts:
        columns += [(run, "figures"), (f"{run}: beside it", "figures", "held-out stories, or other stories' endings")]
    rows, about = [], ""
    for name, title in TITLES.items():
        of_runs = [of_run["figures"].get(name, {}) for of_run in facts.values()]
        about = about if title.startswith("...") else title
        kind = 1 if name == "span" else 3
        cells = [
            (list(figures[whose].values()), kind) if whose in figures else None
            for figures in of_runs
            for whose in WHOSE
        ]
        if any(cells):
            rows.append(
                [title.replace("...", f"{about.split(' in the')[0].removesuffix(' of words')}").rstrip(" *"), *cells]
            )
    for flag in next(iter(facts.values()))["flagged"]:
        rows.append(
            [f"flagged: {flag}", *((f["flagged"][flag][whose], "integer") for f in facts.values() for whose in WHOSE)]
        )
    yield table(columns, rows, "Means, with 95 % intervals")
    panels = []
    for name, title in PANELS.items():
        values = {run: of_run["values"][name] for run, of_run in facts.items() if name in of_run["values"]}
        if values:
            panels.append(histogram(title, values, whole=name == "span"))
    caption = "Lines: completions; pale: what stands beside them, held-out stories or the endings of others."
    yield dict(type="histograms", panels=panels, caption=caption)
    yield table(
        [("read what was flagged", "link")],
        [[[f"{run}: flagged.txt", found.link(found.runs[run] / "flagged.txt")]] for run in facts],
    )


def histogram(title: str, values: dict[str, dict], whole: bool) -> dict:
    """Shares of the texts, in the same bins for all runs; whole: of whole numbers."""
    everything = np.concatenate([column for of_run in values.values() for column in of_run.values() if column])
    largest = max(1e-9, float(everything.max()))
    step = np.ceil((largest + 1) / BINS) if whole else largest / BINS
    edges = np.arange(0, largest + 1.5 * step, step) if whole else np.linspace(0, largest, BINS + 1)
    series = []
    for run, of_run in values.items():
        counts = {whose: np.histogram(column, edges)[0] / max(1, len(column)) for whose, column in of_run.items()}
        series.append(dict(name=run) | {whose: [round(float(x), 4) for x in of] for whose, of in counts.items()})
    return dict(title=title, end=float(edges[-1]), series=series)


# ---- Heads and neurons ----


def heads(found: Found) -> Iterable[dict]:
    """What heads look at, on one text and over many stories (interpret.py)."""
    summaries = found.of_runs("interpret/summary.json", read_summaries)
    roles = [role for role in ROLES if any(role in s["heads"]["role"] for s in summaries.values())]
    if summaries:
        rows = [
            [run, s["heads"]["all"], s["heads"]["matter"], *(s["heads"]["role"].get(role, 0) for role in roles)]
            + [[f"{run}: every head", found.link(found.runs[run] / "interpret" / "attention.html")]]
            for run, s in summaries.items()
        ]
        columns = [("run", "text"), ("heads", "integer"), ("matter", "integer", "the loss rises without them")]
        columns += [(role, "integer", "heads whose attention it clearly gets") for role in roles]
        yield table([*columns, ("look closer", "link")], rows, "What the heads do, over many stories")
    maps = found.of_runs("interpret/attention.npz", read_attention)
    bytes_of_run = ATTENTION_BYTES // max(1, len(maps))
    for run, (attention, tokens) in maps.items():
        n_layer, n_head = attention.shape[:2]
        T = min(len(tokens), MAP_TOKENS, int((bytes_of_run / (n_layer * n_head)) ** 0.5))
        levels = (np.sqrt(attention[:, :, :T, :T]) * 255).round().astype(np.uint8)
        yield dict(
            type="attention", run=run, layers=n_layer, heads=n_head, tokens=tokens[:T],
            levels=base64.b64encode(levels.tobytes()).decode(),
            caption=f"{run}: a row for each layer, a map for each head; down, the token that looks, across, what at",
        )  # fmt: skip


def neurons(found: Found) -> Iterable[dict]:
    """The neurons with the clearest preference for a kind of word, and the tokens on which they fire most."""
    rise = ("rise", "rise_low", "rise_high")
    tables = found.of_runs("interpret/neurons.csv", numbers(*rise, *(f"auc_{kind}" for kind in KINDS)))
    rows = []
    for run, of_run in tables.items():
        for kind in KINDS:
            of_kind = [row for row in of_run if row["prefers"] == kind]
            of_kind.sort(key=lambda row: -row[f"auc_{kind}"])
            for row in of_kind[:NEURONS_OF_KIND]:
                place, rises = f"{row['layer']}.{row['neuron']}", [row[name] for name in rise]
                rows.append([run, kind, place, row["top_tokens"], row[f"auc_{kind}"], rises if row["rise"] else None])
    columns = [
        ("run", "text"),
        ("prefers", "text"),
        ("layer.neuron", "text"),
        ("fires most on", "text"),
        ("AUC", 2, "how often it fires more on a word of the kind than on one that is not, both about as frequent"),
        ("loss without it", 4, "the rise, in nats per token, where it was measured"),
    ]
    if rows:
        yield table(columns, rows, "The clearest of each kind")
    pages_of = [
        [[f"{run}: neurons in context", found.link(found.runs[run] / "interpret" / "neurons.html")]] for run in tables
    ]
    if pages_of:
        yield table([("look closer", "link")], pages_of)


# ---- Experiments ----


def experiments(found: Found) -> Iterable[dict]:
    """Lists of runs under equal conditions (experiments.py)."""
    left = PICTURE_BYTES
    for directory in found.experiments:
        rows = found.read(directory / "experiment.csv", read_table)
        if not rows:
            continue
        names = [name for name in rows[0] if not name.endswith(("_low", "_high")) and name != "variant"]
        columns = [(name.replace("_", " "), kind_of([row[name] for row in rows])) for name in names]
        cells = [[value_of(row, name, kind) for name, (_, kind) in zip(names, columns)] for row in rows]
        yield table(columns, cells, found.name(directory))
        picture = found.read(directory / "experiment.png", Path.read_bytes)
        if picture and len(picture) <= left:
            left -= len(picture)
            caption = f"{directory.name}: the plot of the table above"
            yield dict(type="picture", data=base64.b64encode(picture).decode(), caption=caption)


def kind_of(texts: list[str]) -> str | int:
    """How a column of a table shows best."""
    texts = [text for text in texts if text]
    try:
        numbers = [float(text) for text in texts]
    except ValueError:
        return "text"
    if all(number == int(number) for number in numbers):
        return "integer" if max(map(abs, numbers), default=0) < 1e10 else "exponent"
    return 1 if max(map(abs, numbers)) > 100 else 3


def value_of(row: dict, name: str, kind: str | int):
    if kind == "text" or not row[name]:
        return row[name] or None
    if row.get(f"{name}_low"):
        return [float(row[key]) for key in (name, f"{name}_low", f"{name}_high")]
    return float(row[name])


# ---- Stories ----


def completions(found: Found) -> Iterable[dict]:
    """The same prompts, continued by each run (sample.py)."""
    rows_of = found.of_runs("samples.jsonl", lambda path: [row for _, row in sorted(read_rows(path).items())])
    prompts = {}
    for run, rows in rows_of.items():
        for row in rows:
            prompt = prompts.setdefault(row["prompt"], dict(prompt=row["prompt"], reference="", of={}))
            prompt["reference"] = prompt["reference"] or shortened(row.get("reference") or "")
            texts = prompt["of"].setdefault(run, [])
            if len(texts) < COMPLETIONS:
                texts.append(shortened(row["completion"]))
    shown, size = [], 0
    for prompt in sorted(prompts.values(), key=lambda prompt: -len(prompt["of"]))[:PROMPTS]:
        size += len(json.dumps(prompt))
        if size > STORY_BYTES:
            break
        shown.append(prompt)
    if shown:
        yield dict(type="stories", prompts=shown, runs=list(rows_of), all=len(prompts))


def shortened(text: str) -> str:
    return text[:LONGEST_TEXT] + "…" * (len(text) > LONGEST_TEXT)


# ---- Speed and memory ----


def speeds(found: Found) -> Iterable[dict]:
    """The last record of each bench (bench.py)."""
    path = Path(__file__).parent.parent / "bench" / "results.jsonl"
    records = found.read(path, read_records) or []
    last = {(record["bench"], record["hardware"]): record for record in records}
    ratios, figures = [], []
    for (bench, hardware), record in last.items():
        ratios += [[bench, name, value, hardware] for name, value in record["ratios"].items()]
        for name, value in record["figures"].items():
            figures.append([bench, name, value and [value, 0 if value >= 100 else 3], hardware])
    if ratios:
        columns = [
            ("bench", "text"),
            ("beside", "text"),
            ("ratio", 2, "above 1 is better"),
            ("hardware", "text"),
        ]
        yield table(columns, ratios, "Ours beside what the bench compares it with (python bench.py --help), medians")
        columns[1:3] = [("figure", "text"), ("value", "figures")]
        yield table(columns, figures, "All figures behind it", folded=True)
