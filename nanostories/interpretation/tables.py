"""The tables that interpret.py prints, from the rows of heads.csv and neurons.csv."""

import collections

from nanostories.interpretation.ablation import INCREASE, MIN_INCREASE
from nanostories.interpretation.heads import CONTENTS, PLACES, ROLES
from nanostories.interpretation.logit_attribution import COPYING, LIKELIEST
from nanostories.interpretation.neurons import FDR, PEAKS, STRONG, remarkable
from nanostories.interpretation.word_classes import visible
from nanostories.results import Table

SHOWN_HEADS = 10
NOTES = {
    "positional": "the role is a place",
    "semantic": "the role is a content",
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


def roles_table(heads: list[dict]) -> Table:
    """The clearest head of each role."""
    rows = []
    for role, measure in ROLES.items():
        alike = [row for row in heads if row["role"] == role]
        if alike:
            clearest = max(alike, key=lambda row: row[measure])
            row = {"role": role, "clearest head": head_name(clearest)}
            row["its share"] = clearest[measure]
            row["if uniform"] = clearest[f"{measure}_uniform"]
            row["makes likelier"] = clearest["writes"]
            rows.append(row)
    about = "The share of its attention, and the share that attention to all alike would give."
    if not rows:
        about = "No head clearly has a role."
    formats = {"its share": ".2f", "if uniform": ".2f"}
    return Table("Roles of heads", rows, formats, about=about, facts={"kind": "roles"})


def ablation_table(heads: list[dict], loss: float, n_stories: int) -> Table:
    """The heads without which the loss increases most."""
    rows = []
    for head in sorted(heads, key=lambda row: -row["loss_increase"])[:SHOWN_HEADS]:
        row = {"head": head_name(head), "role": head["role"], "copies": head["copies"]}
        row["makes likelier"] = head["writes"]
        row["loss increase"] = [head[name] for name in INCREASE]
        rows.append(row)
    matter = [row for row in heads if row["loss_increase"] >= MIN_INCREASE]
    matter = [row for row in matter if row["loss_increase_low"] > 0]
    about = (
        f"{len(matter)} of {len(heads)} heads matter: without any one of them the loss"
        f" ({loss:.3f} nats per token on {n_stories} stories) increases by {MIN_INCREASE} or more,"
        " with an interval above 0."
    )
    formats = {"copies": ".2f", "loss increase": "+.4f"}
    facts = {"kind": "ablation"}
    return Table("The loss without a head", rows, formats, about=about, facts=facts)


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
        row["most selective"] = f"{neuron['layer']}.{neuron['neuron']}"
        tokens = dict.fromkeys(visible(neuron[f"token_{rank}"]) for rank in PEAKS)
        row["fires most on"] = " · ".join(tokens)
        row["activation"] = neuron["activation_1"]
        row["loss increase without it"] = [neuron[name] for name in INCREASE]
        rows.append(row)
    about = (
        f"Of {len(neurons):,} neurons, how many strongly prefer a kind: they fire more on a word of"
        f" that kind in at least {STRONG:.0%} of its pairs with other words that are about as"
        f" frequent (false discovery rate {FDR:.0%}). The highest activations may be on others."
    )
    formats = {"activation": ".1f", "loss increase without it": "+.4f"}
    return Table("Neurons", rows, formats, notes, about, {"kind": "neurons"})


def head_name(row: dict) -> str:
    return f"{row['layer']}.{row['head']}"
