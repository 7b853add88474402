"""
Counts for summary.json and the sentences that interpret.py prints; readers of summary.json and attention.npz.
"""

from collections import Counter
from pathlib import Path

import numpy as np

from checkpoints.checkpoint import directory_of
from common.files import read_json
from interpretation.ablation import MIN_RISE
from interpretation.head_roles import UNIFORM
from interpretation.logit_attribution import COPYING, LIKELIEST
from interpretation.neuron_preferences import FDR, STRONG

FORMAT = 2  # of summary.json


def read_summary(model: str) -> dict:
    """out/<run>/interpret/summary.json, of a run or of hf:ID-or-directory."""
    path = directory_of(model) / "interpret" / "summary.json"
    remedy = f"python interpret.py {model}" + (" --data DATA" if model.startswith("hf:") else "")
    if not path.is_file():
        raise ValueError(f"{path}: not found; make it with: {remedy}")
    summary = read_json(path)
    if summary.get("format") != FORMAT:
        mismatch = f"format {summary.get('format')}, but this version reads {FORMAT}"
        raise ValueError(f"{path}: {mismatch}; make it again with: {remedy}")
    return summary


def read_attention(path: Path) -> tuple[np.ndarray, list[str]]:
    """attention.npz: (layers, heads, T, T) float32; the T tokens."""
    with np.load(path, allow_pickle=False) as file:
        return file["attention"].astype(np.float32), file["tokens"].tolist()


def count_heads(rows: list[dict], rises_at_random_init: list[tuple[float, float, float]]) -> dict:
    """For summary.json. rises: in loss without each head of the untrained model, and the ends of their intervals."""
    counts = {name: dict(Counter(row[name] for row in rows)) for name in ("role", "kind", "kind_by_correlation")}
    rises = [(row["rise"], row["rise_low"]) for row in rows if "rise" in row]
    ablated = dict(trained=rises, random_init=[rise[:2] for rise in rises_at_random_init]) if rises else {}
    effects = {}
    for which, each in ablated.items():
        above_zero = [rise for rise, low in each if low > 0]
        effects[which] = dict(above_zero=len(above_zero), matter=sum(bool(rise >= MIN_RISE) for rise in above_zero))
    copying = sum(row["copies"] >= COPYING for row in rows)
    return dict(all=len(rows), copying=copying, ablated=effects) | counts


def heads_that_matter(summary: dict, which: str) -> int | None:
    """Of the "trained" model or at "random_init"; None if none were ablated."""
    return summary["heads"]["ablated"].get(which, {}).get("matter")


def describe_heads(summary: dict, rows: list[dict]) -> list[str]:
    heads, ablation = summary["heads"], summary["ablation"]
    roles = ", ".join(f"{n} {role}" for role, n in sorted(heads["role"].items(), key=lambda item: -item[1]))
    positional, by_correlation = (heads[kind].get("positional", 0) for kind in ("kind", "kind_by_correlation"))
    semantic, uniform = (heads["kind"].get(kind, 0) for kind in ("semantic", UNIFORM))
    sentences = [
        f"{heads['all']} heads, by what clearly gets their attention: {roles}.",
        f"Positional: {positional} (position explains most of how their attention differs from uniform; by the earlier "
        f"criterion, a correlation with distance beyond ±0.5, {by_correlation}). Semantic: {semantic} (a kind of "
        f"content clearly gets it). Uniform: {uniform}. The others are unclear.",
        f"Copying: {heads['copying']} (where they look at a single token, it is in at least {COPYING:.0%} of cases "
        f"among the {LIKELIEST} that their output makes likeliest).",
    ]
    if ablation:
        trained, random = (heads["ablated"][which] for which in ("trained", "random_init"))
        most = max(rows, key=lambda row: row["rise"])
        sentences.append(
            f"{trained['matter']} of {heads['all']} heads matter: without any one of them the loss "
            f"({ablation['loss']:.3f} on {ablation['stories']} stories) rises by {MIN_RISE} nats or more, with a 95% "
            f"interval above 0. The interval alone says less: {trained['above_zero']} heads have one, and at random "
            f"initialization {random['above_zero']}, of which {random['matter']} would matter. The largest rise is "
            f"without layer {most['layer']}, head {most['head']} ({most['role']}): {most['rise']:+.4f} "
            f"[{most['rise_low']:.4f}, {most['rise_high']:.4f}]."
        )
    return sentences


def describe_neurons(summary: dict) -> list[str]:
    neurons, ablation = summary["neurons"], summary["ablation"]
    trained, random = neurons["trained"], neurons["random_init"]
    kinds = ", ".join(f"{kind} {count:,}" for kind, count in trained["by_kind"].items())
    sentences = [
        f"{trained['strongly']:,} of {neurons['all']:,} neurons strongly prefer a kind of word: {kinds}. At random "
        f"initialization, {random['strongly']:,} do. Strongly means that the "
        f"neuron fires more on the word of that kind in at least {100 * STRONG:.0f}% of its pairs with other words.",
        f"{trained['preferring']:,} have any preference; at random initialization {random['preferring']:,} do, and "
        f"with kinds shuffled over the {neurons['words']['all']:,} words {np.mean(trained['preferring_shuffled']):.1f} "
        f"on average (false discovery rate: {100 * FDR:.0f}%).",
    ]
    highest = neurons["highest"]
    tokens = ", ".join(f"{token.strip() or token!r} ({value:.1f})" for token, value in highest["tokens"].items())
    where = f"layer {highest['layer']}, neuron {highest['neuron']}"
    sentences.append(f"The highest activation is that of {where}, on {tokens}.")
    if ablation:
        sentences.append(
            f"The rise in loss without a neuron is estimated for all neurons and measured for {ablation['neurons']}. "
            f"For {ablation['estimates_checked']} of these, drawn at random, estimates and measurements have a rank "
            f"correlation of {ablation['estimates_rank_correlation']:.2f}."
        )
    return sentences
