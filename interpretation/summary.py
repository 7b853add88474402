"""
What was measured in a model, counted: summary.json, and the sentences that interpret.py prints.
"""

from collections import Counter
from pathlib import Path

import numpy as np

from common.files import read_json
from interpretation.neuron_preferences import FDR, STRONG

FORMAT = 1  # of summary.json


def read_summary(run: Path) -> dict:
    """out/<run>/interpret/summary.json."""
    path = run / "interpret" / "summary.json"
    if not path.is_file():
        raise ValueError(f"{path}: not there; make it with: python interpret.py {run}")
    summary = read_json(path)
    if summary.get("format") != FORMAT:
        mismatch = f"format {summary.get('format')}, but this version reads {FORMAT}"
        raise ValueError(f"{path}: {mismatch}; make it again with: python interpret.py {run}")
    return summary


def count_heads(rows: list[dict]) -> dict:
    counts = {name: dict(Counter(row[name] for row in rows)) for name in ("role", "kind", "kind_by_correlation")}
    matter = sum(bool(row["rise_low"] > 0) for row in rows) if "rise" in rows[0] else None
    return dict(all=len(rows), matter=matter) | counts


def describe_heads(summary: dict, rows: list[dict]) -> list[str]:
    heads, ablation = summary["heads"], summary["ablation"]
    roles = ", ".join(f"{n} {role}" for role, n in sorted(heads["role"].items(), key=lambda item: -item[1]))
    positional, by_correlation = (heads[kind].get("positional", 0) for kind in ("kind", "kind_by_correlation"))
    sentences = [
        f"{heads['all']} heads, by what clearly gets their attention: {roles}.",
        f"In {positional} of them, position explains more of the attention than content does (by the earlier "
        f"criterion, a correlation with distance beyond ±0.5, in {by_correlation}).",
    ]
    if ablation:
        most = max(rows, key=lambda row: row["rise"])
        sentences.append(
            f"Ablating a head raises the loss ({ablation['loss']:.3f} on {ablation['stories']} stories) for "
            f"{heads['matter']} of them, with a 95 % interval above 0 (expected by chance: about "
            f"{heads['all'] / 40:.0f}); most for layer {most['layer']}, head {most['head']} ({most['role']}): "
            f"{most['rise']:+.4f} [{most['rise_low']:.4f}, {most['rise_high']:.4f}]."
        )
    return sentences


def describe_neurons(summary: dict) -> list[str]:
    neurons, ablation = summary["neurons"], summary["ablation"]
    trained, random = neurons["trained"], neurons["random_init"]
    kinds = ", ".join(f"{kind} {count:,}" for kind, count in trained["by_kind"].items())
    sentences = [
        f"{trained['strongly']:,} of {neurons['all']:,} neurons strongly prefer a kind of word: {kinds}. At random "
        f"initialization, {random['strongly']:,} do. Strongly means: of a word of that kind and another word, the "
        f"neuron fires more on the first in at least {100 * STRONG:.0f} % of all pairs.",
        f"{trained['preferring']:,} prefer a kind at all; at random initialization {random['preferring']:,} do, and "
        f"with kinds shuffled over the {neurons['words']['all']:,} words {np.mean(trained['preferring_shuffled']):.1f} "
        f"on average (false discovery rate: {100 * FDR:.0f} %).",
    ]
    if ablation:
        sentences.append(
            f"The rise in loss without a neuron is estimated for all neurons and measured for {ablation['neurons']}. "
            f"For {ablation['estimates_checked']} of these, drawn at random, estimates and measurements have a rank "
            f"correlation of {ablation['estimates_rank_correlation']:.2f}."
        )
    return sentences
