"""
One page of all there is about runs: curves, scores, answers, copies, heads, neurons, experiments, stories, speeds.

$ python report.py out/         # every run and every experiment below it -> out/report.html
$ python report.py out/demo     # one run -> out/demo/report.html

The page is one file that needs no network. It shows what the other scripts have left behind; where a whole section has
nothing to show yet, its end names the command that makes it.
"""

import html
import sys
from pathlib import Path

from common.files import write_bytes
from pages.html import page
from pages.results import Found
from pages.sections import (
    answers,
    completions,
    experiments,
    heads,
    instructions,
    neurons,
    overview,
    recitation,
    scores,
    speeds,
)

SECTIONS = [  # title, what makes it, the command that leaves what it shows
    ("Runs", overview, "python train.py"),
    ("Scores", scores, "python grade.py {} --no_judge (or --judge MODEL --controls)"),
    ("Facts, reasoning, context", answers, "python probe.py {}"),
    ("Instructions", instructions, "python instruct.py RUN ..., of stories to order"),
    ("Novel, or learned by heart", recitation, "python rouge.py RUN ..."),
    ("Heads", heads, "python interpret.py RUN"),
    ("Neurons", neurons, "python interpret.py RUN"),
    ("Stories side by side", completions, "python sample.py --model RUN --eval 50 --n 10"),
    ("Experiments", experiments, "python experiments.py grid"),
    ("Speed and memory", speeds, "python bench.py train --save"),
]


def report(directory: Path) -> tuple[bytes, list[str]]:
    """The page, and what was left out of it because it is damaged. A ValueError where there is nothing to show."""
    found = Found(directory)
    if not found.runs and not found.experiments:
        raise ValueError(f"{directory}: no run below it; train one with: python train.py")
    shown, absent = [], []
    for title, make, command in SECTIONS:
        parts = list(make(found))
        if parts:
            shown.append(dict(title=title, about=make.__doc__, parts=parts))
        else:
            absent.append(f"{title}: {command.format(directory)}")
    data = dict(sections=shown, absent=absent, damaged=found.damaged, runs=list(found.runs))
    n = f"{len(found.runs)} run{'s' * (len(found.runs) != 1)}"
    n += f", {len(found.experiments)} experiment{'s' * (len(found.experiments) != 1)}" if found.experiments else ""
    name = html.escape(directory.resolve().name)
    return page(f"nanostories: {directory.resolve().name}", "report", data, name=name, facts=n), found.damaged


def main():
    args = sys.argv[1:]
    if {"-h", "--help"} & set(args):
        print(__doc__)
        return
    directory = Path(args[0] if args else "out")
    try:
        if len(args) > 1:
            raise ValueError("one directory at a time, such as out/")
        content, damaged = report(directory)
        path = directory / "report.html"
        write_bytes(path, content)
    except (ValueError, OSError) as error:
        sys.exit(f"report.py: {error}")
    for line in damaged:
        print(line, file=sys.stderr)
    print(f"wrote {path} ({len(content) / 1e6:.1f} MB); next: open it in a browser")


if __name__ == "__main__":
    main()
