"""
The text of interpret.md, which interpret.py prints: tables and sentences from the rows of heads.csv
and neurons.csv.
"""

from collections import Counter
from collections.abc import Callable, Iterable

from nanostories.interpretation.ablation import MIN_INCREASE
from nanostories.interpretation.heads import ROLE_MEASURES
from nanostories.interpretation.logit_attribution import COPYING, LIKELIEST
from nanostories.interpretation.neurons import CONTEXTS, FDR, LARGEST, STRONG, most_selective
from nanostories.tables import table_text

SHOWN_HEADS, PATCHED_HEADS = 10, 5  # at most, in tables
UNLIKELY = 0.05  # a probability
PATCHING_HEAD = [
    "head",
    "share brought back",
    "share lost without it",
    "adds (logits)",
    "looks at",
    "writes tokens",
]


def heads_text(rows: list[dict]) -> list[str]:
    """Roles counted, and the clearest head of each."""
    cells = []
    for role, n in Counter(row["role"] for row in rows).most_common():
        if measure := ROLE_MEASURES.get(role):
            best = max((row for row in rows if row["role"] == role), key=lambda row: row[measure])
            shares = (
                f"{best[measure]:.2f}",
                f"{best[measure + '_uniform']:.2f}",
                listed(best["writes"].split(" | ")),
            )
            cells.append([role, str(n), f"{best['layer']}.{best['head']}", *shares])
        else:
            cells.append([role, str(n), "", "", "", ""])
    kinds = Counter(row["kind"] for row in rows)
    by_correlation = sum(row["distance_correlation"] > 0.5 for row in rows)
    copying = sum(row["copies"] >= COPYING for row in rows)
    return [
        table_text(
            ["role", "heads", "clearest head", "its share", "if uniform", "writes tokens"], cells
        ),
        (
            f"Positional: {kinds['positional']} of {len(rows)} (position explains most of how the"
            " attention differs from uniform; if a correlation of attention and distance above 0.5"
            f" decided, {by_correlation}). Semantic: {kinds['semantic']} (a kind of content clearly"
            f" gets the attention). Copying: {copying} (where they look at a single token, in at"
            f" least {COPYING:.0%} of cases it is among the {LIKELIEST} that they make likeliest)."
        ),
    ]


def ablation_text(rows: list[dict], loss: float, n_stories: int) -> str:
    matter = sum(
        row["loss_increase"] >= MIN_INCREASE and row["loss_increase_low"] > 0 for row in rows
    )
    cells = []
    for row in sorted(rows, key=lambda row: -row["loss_increase"])[:SHOWN_HEADS]:
        cells.append([f"{row['layer']}.{row['head']}", row["role"], f"{row['copies']:.2f}"])
        cells[-1] += [listed(row["writes"].split(" | ")), increase_text(row)]
    return (
        f"{matter} of {len(rows)} heads matter: without any one of them the loss ({loss:.3f} on"
        f" {n_stories} stories) increases by {MIN_INCREASE} nats per token or more, with a 95%"
        " interval above 0. The largest increases:\n\n"
        + table_text(["head", "role", "copies", "writes tokens", "loss increase without it"], cells)
    )


def listed(tokens: Iterable[str]) -> str:
    """In a cell of a table, which has pipes of its own."""
    return ", ".join(dict.fromkeys(map(str.strip, tokens))).replace("|", "¦")


def increase_text(row: dict) -> str:
    return (
        f"{row['loss_increase']:+.4f} [{row['loss_increase_low']:.4f},"
        f" {row['loss_increase_high']:.4f}]"
    )


def neurons_text(rows: list[dict]) -> list[str]:
    """Preferences counted, and the most selective neuron for each kind."""
    cells = []
    for kind, row in most_selective(rows).items():
        counts = [
            f"{sum(row[key] == kind for row in rows):,}"
            for key in ("prefers", "prefers_at_random_init")
        ]
        if (
            counts[0] == "0"
            and kind != LARGEST
            and any(row[f"auc_{kind}"] >= STRONG for row in rows)
        ):
            counts[0] = "too few words to tell"
        tokens = listed(row[f"token_{i}"] for i in range(1, CONTEXTS + 1))
        name = f"{row['layer']}.{row['neuron']}" + " (not strongly)" * (
            kind != LARGEST and row[f"auc_{kind}"] < STRONG
        )
        cells.append([kind, *(["", ""] if kind == LARGEST else counts), name, tokens])
        cells[-1] += [f"{row['activation_1']:.1f}", increase_text(row)]
    increases = [row["loss_increase"] for row in rows if "loss_increase" in row]
    head = [
        "strongly prefers",
        "neurons",
        "at random init",
        "most selective neuron",
        "fires most on",
    ]
    head += ["largest activation", "loss increase without it"]
    return [
        table_text(head, cells),
        (
            f"{sum(row['prefers'] != '' for row in rows):,} of {len(rows):,} neurons strongly"
            " prefer a kind of word: they fire more on a word of that kind in at least"
            f" {STRONG:.0%} of its pairs with other words that are about as frequent (false"
            f" discovery rate {FDR:.0%}); the very largest activations may be on others. Without"
            f" any of {len(increases)}, these and random ones, the loss increases by"
            f" {max(increases):.4f} at most."
        ),
    ]


# ---- Activation patching ----
def predictions_text(name: str, given: list[dict], text_of: Callable[[int], str]) -> list[str]:
    """Whether the model knows the answers, and how sure it is."""
    cells = [
        [which, *(f"{text_of(token)} {p:.3f}" for token, p in answers.values())]
        for which, answers in zip(("first", "second"), given)
    ]
    wrong = " and ".join(
        row[0]
        for row, each in zip(cells, given)
        if each["own"][1] <= max(each["other"][1], UNLIKELY)
    )
    warning = (
        f"WARNING the model does not know: after the {wrong} text, its answer is unlikely or not"
        " the likelier"
    )
    table = table_text(["text", "its answer", "the other's answer", "likeliest"], cells)
    return [f"## Activations that carry the answer in {name}", table, *([warning] if wrong else [])]


def patching_text(rows: list[dict], differences: tuple[float, float]) -> list[str]:
    """The heads that bring back most of the first answer."""
    cells = [
        [
            f"{row['layer']}.{row['head']}",
            *(f"{row[key]:.2f}" for key in ("brought_back", "lost_without", "direct")),
        ]
        + [f"{row['looks_at']!r} ({row['attention']:.2f})", row["writes"].replace("|", "¦")]
        for row in sorted(rows, key=lambda row: -row["brought_back"])[:PATCHED_HEADS]
    ]
    return [
        "The logit of the first answer is {:+.2f} above that of the second after the first text,"
        " {:+.2f} after the second. Shares are of the distance between the two.".format(
            *differences
        ),
        table_text(PATCHING_HEAD, cells),
    ]
