"""
Formats a rouge.json as a table, and plots one or several of them.
"""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from common.figures import png_bytes
from common.files import write_bytes
from common.tables import table_text
from generation.prompts import SPLITS
from novelty.compare_texts import K_MAX

TITLES = {  # rows of the table; "..." continues the row above
    "ending_f": "F with the true ending *",
    "ending_precision": "precision against the true ending *",
    "ending_l": "ROUGE-L F with the true ending *",
    "any_other_f": "F with the nearest other completion",
    "other_prompt_f": "... of another prompt",
    "training_f": "F with the nearest training story",
    "training_precision": "largest share in one training story",
    "share_1": "share of words in the training set",
    "share_2": "... of 2-grams",
    "share_4": "... of 4-grams",
    "share_8": "... of 8-grams",
    "span": "longest span in the training set, words",
}
PANELS = {  # panels of the plot; the second, third and fifth are the paper's
    "ending_f": "F with the true ending",
    "ending_precision": "precision against the true ending",
    "any_other_f": "F with the nearest other completion",
    "other_prompt_f": "F with the nearest completion of another prompt",
    "training_f": "F with the nearest training story",
    "training_precision": "largest share in one training story",
    "span": "longest span in the training set (words)",
}


def scores_table(rouge_json: dict, markdown: bool = False) -> str:
    """The scores of one run, under two lines that describe them."""
    settings, n = rouge_json["settings"], rouge_json["completions"]
    unit = "tokens" if settings["tokens"] else "words"
    clusters = "prompts" if rouge_json["prompts"] > 1 else "completions"
    rows = figure_rows(rouge_json["figures"])
    of_stories = f" of {SPLITS[rouge_json['split']]} stories" if "ending_f" in rouge_json["figures"] else ""
    for flag, counts in rouge_json["flagged"].items():
        words = f" ({rouge_json['copied_words']} {unit} or more in a row)" if flag == "copy" else ""
        rows.append([f"flagged: {flag}{words}", *(f"{count:,} of {n:,}" for count in counts.values()), ""])
    lines = [
        f"\n{rouge_json['run']}: {n:,} completions{of_stories} (prompts: "
        f"{rouge_json['prompts']:,}), {rouge_json['training_stories']:,} training stories of {rouge_json['data']}",
        f"ROUGE-{settings['k']} of {unit}, {settings['counting']}; means, 95% intervals (bootstrap over {clusters})",
        "",
        table_text(["", "completions", "held-out stories", "difference"], rows, markdown),
        "",
    ]
    if "ending_f" in rouge_json["figures"]:
        lines.append("* baseline: not held-out stories but other stories' endings, compared with the same true ending")
    if rouge_json["prompts"] == 1:
        lines.append("Only one prompt: there is no held-out baseline for how similar its completions are")
    return "\n".join(lines)


def figure_rows(figures: dict) -> list[list[str]]:
    rows = []
    for name, title in TITLES.items():
        if name in figures:
            cells = [cell(**figure, digits=1 if name == "span" else 3) for figure in figures[name].values()]
            rows.append([title, *cells, *[""] * (3 - len(cells))])
    return rows


def splits_table(rouge_json: dict, markdown: bool = False) -> str:
    """Completions of training stories beside those of validation stories, in the rouge.json of the former."""
    heads = ["", "of training stories", "of validation stories", "difference"]
    rows = figure_rows(rouge_json["training_and_validation"])
    title = f"{rouge_json['run']}, both splits: the difference is what it memorized"
    differ = ", ".join(rouge_json["splits_differ_in"])
    warning = f"\nThe splits were sampled with different {differ}: use the same to compare them\n" if differ else ""
    return f"\n{title}\n\n{table_text(heads, rows, markdown)}\n{warning}"


def cell(mean: float, low: float | None, high: float | None, digits: int) -> str:
    return f"{mean:.{digits}f}" + ("" if low is None else f" [{low:.{digits}f}, {high:.{digits}f}]")


def plot(path: Path, runs: list[dict]) -> None:
    """Writes a PNG of several rouge.json. Each run has a color: a line for its completions, a pale area for their
    baseline; in the last panel, dashes for the baseline."""
    titles = {name: title for name, title in PANELS.items() if any(name in run["values"] for run in runs)}
    figure = Figure(figsize=(16, 7.5), layout="constrained")
    *panels, last = figure.subplots(2, len(titles) // 2 + 1).flat
    for axes in panels[len(titles) :]:
        axes.set_axis_off()
    for axes, (name, title) in zip(panels, titles.items()):
        values = {f"C{i}": run["values"][name] for i, run in enumerate(runs) if name in run["values"]}
        largest = max(0.01, *(x for of_run in values.values() for column in of_run.values() for x in column))
        step = np.ceil(largest / 40)  # of words
        bins = np.arange(-0.5, largest + step, step) if name == "span" else np.linspace(0, largest, 41)
        for color, of_run in values.items():
            for column, style in (("completions", dict(histtype="step", linewidth=1.8)), ("beside", dict(alpha=0.2))):
                if n := len(of_run.get(column, ())):
                    axes.hist(of_run[column], bins, weights=np.full(n, 100 / n), color=color, **style)
        axes.set(xlabel=title, ylabel="texts (%)")
    of_both = any(run["split"] == "train" for run in runs)
    for i, run in enumerate(runs):
        label = run["run"] + f", {SPLITS[run['split']]} stories" * of_both
        shares = {k: run["figures"][f"share_{k}"] for k in range(1, K_MAX + 1) if f"share_{k}" in run["figures"]}
        for column, style in (
            ("completions", dict(marker="o", label=label)),
            ("beside", dict(linestyle="--")),
        ):
            points = [(k, *share[column].values()) for k, share in shares.items() if column in share]
            ks, means, lows, highs = np.array(points, dtype=float).reshape(-1, 4).T
            last.plot(ks, 100 * means, color=f"C{i}", **style)
            last.fill_between(ks, 100 * lows, 100 * highs, color=f"C{i}", alpha=0.2, linewidth=0)
    last.set(xlabel="k", ylabel="k-grams that occur in the training set (%)", ylim=(0, 103))
    title = f"ROUGE-{runs[0]['settings']['k']}. Lines: completions; pale, dashed: held-out stories"
    title += " (panels 1 and 2: other stories' endings)" * ("ending_f" in titles)
    figure.legend(loc="outside upper center", ncols=4, title=title)
    write_bytes(path, png_bytes(figure))
