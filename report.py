"""
One page of everything known about your runs: loss curves, scores, answers, novelty, heads, neurons, experiments, speed.

$ python report.py out/         # every run and every experiment below it -> out/report.html
$ python report.py out/demo     # one run -> out/demo/report.html

The page is one file that needs no network. It shows what the other commands have written; at its end, it lists the
sections that are still empty, with the commands that fill them.
"""

import sys
from pathlib import Path

from common.cli import Parser, one_line_errors
from common.files import write_bytes
from generation.samples_file import run_of
from pages import during_training, sections_interpretation, sections_runs, sections_stories
from pages.html import sections_page
from pages.read_results import Results

KEPT = "sample.py --eval 50 --checkpoint all, grade.py {0} --no_judge, probe.py {0} --checkpoint all"
SECTIONS = [  # title, the function that builds it, the command whose results it shows
    ("Runs", sections_runs.runs_section, "python train.py"),
    ("Scores", sections_stories.scores_section, "python grade.py {}"),
    ("Facts, reasoning, context", sections_stories.answers_section, "python probe.py {}"),
    ("During training", during_training.kept_section, "python train.py --keep_checkpoints=8, and then: " + KEPT),
    ("Instructions", sections_stories.instructions_section, "python instruct.py RUN ... (of runs trained on headers)"),
    ("Novelty and memorization", sections_stories.novelty_section, "python rouge.py RUN ..."),
    ("Heads", sections_interpretation.heads_section, "python interpret.py RUN"),
    ("Neurons", sections_interpretation.neurons_section, "python interpret.py RUN"),
    ("Stories side by side", sections_stories.side_by_side_section, "python sample.py --model RUN --eval 50 --n 10"),
    ("Experiments", sections_runs.experiments_section, "python experiments.py grid"),
    ("Speed and memory", sections_runs.speed_section, "python bench.py train --save"),
]
DAMAGED, EMPTY = "Damaged files, left out", "Sections without results yet"  # notes at the end


def make_report(directory: Path) -> tuple[bytes, list[str]]:
    """The page, and which files were left out because they are damaged. ValueError if there is nothing to show."""
    results = Results(directory)
    if not results.runs and not results.experiments:
        raise ValueError(f"{directory}: there are no runs in it; train one with: python train.py")
    sections, empty = [], []
    for title, make, command in SECTIONS:
        parts = list(make(results))
        if parts:
            sections.append(dict(title=title, about=make.__doc__, parts=parts))
        else:
            empty.append(f"{title}: {command.format(directory)}")
    runs = {run_of(run) for run in results.runs.values()}  # a run sampled at several temperatures counts once
    counts = {"run": len(runs), "experiment": len(results.experiments)}
    subtitle = ", ".join(f"{n} {what}{'s' * (n != 1)}" for what, n in counts.items() if n or what == "run")
    title, notes = f"nanostories: {directory.resolve().name}", {DAMAGED: results.damaged, EMPTY: empty}
    return sections_page(title, subtitle, sections, list(results.runs), notes), results.damaged


def main():
    parser = Parser(__doc__)
    parser.add_argument("directory", nargs="?", type=Path, default=Path("out"), help="a run, or a directory of runs")
    directory = parser.parse_args().directory
    with one_line_errors("report.py", interrupted="nothing was written"):
        content, damaged = make_report(directory)
        path = directory / "report.html"
        write_bytes(path, content)
    for line in damaged:
        print(line, file=sys.stderr)
    print(f"wrote {path} ({len(content) / 1e6:.1f} MB); next: open it in a browser")


if __name__ == "__main__":
    main()
