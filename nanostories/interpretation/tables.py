"""The tables that interpret.py prints, from the rows of heads.csv and neurons.csv."""

import collections

from nanostories.interpretation.ablation import INCREASE, MIN_INCREASE
from nanostories.interpretation.heads import CONTENTS, PLACES, ROLES
from nanostories.interpretation.logit_attribution import COPYING, LIKELIEST
from nanostories.interpretation.neurons import FDR, PEAKS, STRONG, remarkable
from nanostories.interpretation.word_classes import visible
from nanostories.results import Table

SHOWN_HEADS = 10
FORMATS = {
    "attention share": ".2f",
    "share if uniform": ".2f",
    "copying": ".2f",
    "activation": ".1f",
    "loss increase": "+.4f",
}
NOTES = {
    "positional": "it looks at a place: itself, the previous token, the beginning",
    "semantic": "it looks at a content: a repeated token, a kind of word, the subject, …",
    "copying": "where it looks at a single token, in at least"
    f" {COPYING:.0%} of cases it is among the {LIKELIEST} that it makes likeliest",
    "correlation above 0.5": "of attention and distance: positional by another criterion",
}


def heads_table(run: str, heads: list[dict]) -> Table:
    roles = collections.Counter(row["role"] for row in heads)
    row = {
        "run": run,
        "heads": len(heads),
        "positional": sum(roles[role] for role in PLACES),
        "semantic": sum(roles[role] for role in CONTENTS),
        "copying": sum(row["copies"] >= COPYING for row in heads),
        "correlation above 0.5": sum(row["distance_correlation"] > 0.5 for row in heads),
    }
    row |= dict(roles.most_common())
    return Table("Heads", [row], notes=NOTES, facts={"kind": "heads"})


def shown(head: dict) -> dict:
    """A row for a table."""
    column = ROLES.get(head["role"])  # None: no role, no share
    return {
        "head": f"{head['layer']}.{head['head']}",
        "role": head["role"],
        "attention share": head.get(column),
        "share if uniform": head.get(f"{column}_uniform"),
        "copying": head["copies"],
        "promotes": head["writes"],
        "mostly": head["writes_kind"],
        "loss increase": [head[name] for name in INCREASE],
    }


def roles_table(heads: list[dict]) -> Table:
    """The clearest head of each role."""
    rows = []
    for role, column in ROLES.items():
        alike = [row for row in heads if row["role"] == role]
        if alike:
            rows.append(shown(max(alike, key=lambda row: row[column])))
    about = (
        "The clearest head of each role that any has: the share of its attention that makes the"
        " role, and the share that attention to all alike would give."
    )
    if not rows:
        about = "No head has a role."
    return Table("Roles of heads", rows, FORMATS, about=about, facts={"kind": "roles"})


def ablation_table(heads: list[dict], loss: float, n_stories: int) -> Table:
    """The heads without which the loss increases most."""
    largest = sorted(heads, key=lambda row: -row["loss_increase"])
    rows = [shown(head) for head in largest[:SHOWN_HEADS]]
    matter = [row for row in heads if row["loss_increase"] >= MIN_INCREASE]
    n_matter = sum(row["loss_increase_low"] > 0 for row in matter)
    about = (
        f"{n_matter} of {len(heads)} heads matter: without any one of them the loss ({loss:.3f}"
        f" nats per token on {n_stories} stories) increases by {MIN_INCREASE} or more, with an"
        " interval above 0."
    )
    title = "Heads without which the loss increases most"
    return Table(title, rows, FORMATS, about=about, facts={"kind": "ablation"})


def neurons_table(neurons: list[dict]) -> Table:
    """Preferences counted; the most selective neuron for each kind."""
    counts = collections.Counter(row["prefers"] for row in neurons)
    rows = []
    notes = {}
    for kind, neuron in remarkable(neurons).items():
        row = {"kind": kind, "neurons (%)": None, "neurons": None}
        if f"auc_{kind}" in neuron:
            row["neurons (%)"] = 100 * counts[kind] / len(neurons)
            row["neurons"] = counts[kind]
            if not counts[kind]:
                notes[kind] = "no neuron prefers it strongly, or too few words to tell"
        row["most selective (layer.neuron)"] = f"{neuron['layer']}.{neuron['neuron']}"
        tokens = dict.fromkeys(visible(neuron[f"token_{rank}"]) for rank in PEAKS)
        row["fires most on"] = " · ".join(tokens)
        row["activation"] = neuron["activation_1"]
        row["loss increase"] = [neuron[name] for name in INCREASE]
        rows.append(row)
    about = (
        f"Of {len(neurons):,} neurons, how many strongly prefer a kind: they fire more on a word of"
        f" that kind in at least {STRONG:.0%} of its pairs with other words that are about as"
        f" frequent (false discovery rate {FDR:.0%}). The highest activations may be on others."
    )
    return Table("Neurons", rows, FORMATS, notes, about, {"kind": "neurons"})
