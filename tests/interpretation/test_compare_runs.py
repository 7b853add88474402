"""interpretation/compare_runs.py: compare.html shows what is clearest in a model, and nothing twice."""

import copy

from interpretation.compare_runs import SHOWN_HEADS, choose_heads, choose_neurons
from interpretation.head_roles import ROLE_MEASURES
from interpretation.word_classes import KINDS


def head(number: int, role: str, rise: float | None, **shares) -> dict:
    """A row of heads.csv, as it is read. Uniform attention would give 0.1 to everything."""
    row = dict(layer="0", head=str(number), role=role) | ({} if rise is None else dict(rise=str(rise)))
    for name in ROLE_MEASURES.values():
        row |= {name: str(shares.get(name, 0.1)), f"{name}_uniform": "0.1"}
    return row


def test_the_clearest_head_of_each_role_comes_first_then_what_is_missed_most():
    rows = [
        head(0, "previous token", 0.3, previous=0.9),
        head(1, "names", 0.005, names=0.5),
        head(2, "names", 0.01, names=0.8, previous=0.15),
        head(3, "mixed", 0.5, nouns=0.2),
        head(4, "mixed", 0.7, names=0.15, itself=0.3),
        *(head(n, "uniform", 0.0001 * n) for n in range(5, 20)),
    ]
    chosen = choose_heads(copy.deepcopy(rows))
    assert [row["head"] for row in chosen] == ["2", "0", "4", "3", "1", "19", "18", "17"][:SHOWN_HEADS]
    assert [(row["looks_at"], row["share"]) for row in chosen[:4]] == [
        ("names", 0.8), ("previous token", 0.9), ("itself", 0.3), ("nouns", 0.2),
    ]  # fmt: skip
    assert all(row["uniform"] == 0.1 for row in chosen)
    few = choose_heads([head(0, "mixed", None), head(1, "names", None, names=0.6)])  # nothing was ablated
    assert [row["head"] for row in few] == ["1", "0"]


def test_neurons_are_chosen_for_what_they_prefer_fire_and_matter():
    def neuron(number: int, prefers: str, auc: float, highest: float, rise: str = "") -> dict:
        row = dict(neuron=str(number), prefers=prefers, top_activations=f"{highest} | 0.1", rise=rise)
        return row | {f"auc_{kind}": str(auc if kind == prefers else 0.5) for kind in KINDS}

    rows = [neuron(0, "name", 0.85, 2.0, "0.001"), neuron(1, "name", 0.95, 1.0), neuron(2, "verb", 0.9, 0.5, "-0.01")]
    rows += [neuron(3, "", 0.5, 9.5), neuron(4, "", 0.5, 9.0, "0.02")]
    found = [(row["neuron"], row["why"]) for row in choose_neurons(rows)]
    preferred = [("2", "verb"), ("1", "name")]
    assert found == [*preferred, ("3", "largest activation of all"), ("4", "largest measured rise in loss")]
    assert [row["why"] for row in choose_neurons(rows[:2])] == ["name", *(why for _, why in found[2:])]
