"""
Sections of report.html about what happens inside: heads and neurons (interpret.py).
"""

from collections.abc import Iterable

import numpy as np

from interpretation.ablation import MIN_RISE
from interpretation.head_roles import HEAD_ROLES
from interpretation.summary import heads_that_matter, read_attention, read_summary
from interpretation.word_classes import KINDS
from pages.html import as_levels, table
from pages.read_results import Results, numbers

ATTENTION_BYTES = 700_000  # of all maps, before base64 makes them a third larger
MAP_TOKENS = 48  # per map, at most
NEURONS_OF_KIND = 3


def heads_section(results: Results) -> Iterable[dict]:
    """What attention heads attend to, over many stories and on one text (interpret.py)."""
    summaries = results.of_runs("interpret/summary.json", lambda path: read_summary(str(path.parent.parent)))
    roles = [role for role in HEAD_ROLES if any(role in s["heads"]["role"] for s in summaries.values())]
    if summaries:
        rows = []
        for run, s in summaries.items():
            counts = [s["heads"]["all"], heads_that_matter(s, "trained"), heads_that_matter(s, "random_init")]
            counts += [s["heads"]["role"].get(role, 0) for role in roles]
            page = results.link(results.runs[run] / "interpret" / "attention.html")
            rows.append([run, *counts, [f"{run}: every head", page]])
        columns = [("run", "text"), ("heads", "integer")]
        matter = f"heads without which the loss rises by {MIN_RISE} nats per token or more, its 95% interval above 0"
        columns += [("matter", "integer", matter)]
        columns += [("at random init", "integer", "the same for the model before training")]
        columns += [(role, "integer", "heads that clearly attend to it") for role in roles]
        yield table([*columns, ("details", "link")], rows, "Roles of the heads, over many stories")
    maps = results.of_runs("interpret/attention.npz", read_attention)
    bytes_of_run = ATTENTION_BYTES // max(1, len(maps))
    for run, (attention, tokens) in maps.items():
        n_layer, n_head = attention.shape[:2]
        T = min(len(tokens), MAP_TOKENS, int((bytes_of_run / (n_layer * n_head)) ** 0.5))
        yield dict(
            type="attention", run=run, layers=n_layer, heads=n_head, tokens=tokens[:T],
            levels=as_levels(np.sqrt(attention[:, :, :T, :T])),
            caption=f"{run}: one row per layer, one map per head; rows of a map: query tokens, columns: key tokens",
        )  # fmt: skip


def neurons_section(results: Results) -> Iterable[dict]:
    """Neurons that clearly prefer a kind of word, and the tokens on which they fire most (interpret.py)."""
    rise = ("rise", "rise_low", "rise_high")
    tables = results.of_runs("interpret/neurons.csv", numbers(*rise, *(f"auc_{kind}" for kind in KINDS)))
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
        ("AUC", 2, "how often it fires more on a word of this kind than on another as frequent; 0.5 is chance"),
        ("rise in loss if ablated", 4, "nats per token, where it was measured"),
    ]
    if rows:
        yield table(columns, rows, "The clearest preferences of each kind")
    pages = {run: results.link(results.runs[run] / "interpret" / "neurons.html") for run in tables}
    if pages:
        yield table([("details", "link")], [[[f"{run}: neurons in context", page]] for run, page in pages.items()])
