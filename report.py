"""
One page with all results of your runs: loss curves, scores, answers, novelty, heads, neurons,
stories, experiments.

$ python report.py              # every run and every experiment below out/ -> out/report.html
$ python report.py out/demo     # one run -> out/demo/report.html (or several runs)

The page is one file that needs no network. It shows the results of the other commands: the text of
NAME.md, the picture NAME.svg beside it, and links to other pages. Where a section has nothing, it
names the command that fills it.
"""

import functools
import html
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from nanostories.cli import Parser, UserError, one_line_errors
from nanostories.figures import svg_bytes
from nanostories.files import read_json, write_bytes
from nanostories.generation.samples_file import SAMPLES
from nanostories.pages.html import image, sections_page
from nanostories.pages.markdown import to_html
from nanostories.pages.results import Results
from nanostories.pages.runs import checkpoint_facts, loss_figure, read_curve, runs_text
from nanostories.pages.stories import read_samples, side_by_side


def runs(results: Results) -> Iterator[str]:
    """Pieces of HTML, as all sections: none if there is nothing to show."""
    logs = results.each("log.csv", read_curve)
    if logs:
        configs = {
            run: results.read(run / "config.json", lambda path: dict(read_json(path))) or {}
            for run in logs
        }
        for run, config in configs.items():
            config |= results.read(run / "best.pt", checkpoint_facts) or {}
        yield to_html(runs_text(results, logs, configs))
        data = {results.label(run): config.get("data", "") for run, config in configs.items()}
        yield image(svg_bytes(loss_figure(dict(zip(data, logs.values())), data)), "loss curves")
    if links := [
        results.link(path, results.label(path.parent)) for path in results.named("story.html")
    ]:
        yield to_html("Pages that tell stories: " + ", ".join(links))


def written(
    results: Results, names: Sequence[str], links: Sequence[str] = (), sources=()
) -> Iterator[str]:
    """NAME.md, NAME.svg and links to NAME.html and `links`, of each directory that has them; the
    first is unfolded. sources: files that the results are of, beside weights."""
    names = list(
        dict.fromkeys(
            path.stem for name in names for path in results.files if path.match(f"{name}.*")
        )
    )
    found = results.named(*(name + ending for name in names for ending in (".md", ".svg")))
    for i, directory in enumerate(dict.fromkeys(path.parent for path in found)):
        texts = [
            results.read(directory / f"{name}.md", lambda path: path.read_text("utf-8"))
            for name in names
        ]
        texts += [
            results.changed_since(path, sources)
            for name in names
            if (path := directory / f"{name}.md").exists()
        ]
        pages = results.named(*(f"{name}.html" for name in names), *links)
        pages = [path for path in pages if path.parent == directory]
        texts += (
            ["See also: " + ", ".join(results.link(path, path.name) for path in pages)]
            if pages
            else []
        )
        parts = [to_html(text) for text in texts if text]
        parts += [results.picture(directory / f"{name}.svg") for name in names]
        summary = f"<summary>{html.escape(results.label(directory))}</summary>"
        yield f"<details{' open' * (i == 0)}>{summary}{''.join(parts)}</details>"


def stories(results: Results) -> Iterator[str]:
    samples = {}
    for file, note in (("samples.jsonl", ""), ("samples-train.jsonl", ", training stories")):
        samples |= {
            results.label(run) + note: rows
            for run, rows in results.each(file, read_samples).items()
        }
    if samples:
        yield side_by_side(samples)


def show(*names: str, **others) -> Callable:
    return functools.partial(written, names=names, **others)


SECTIONS = [  # title, function, the command whose results it shows
    ("Runs", runs, "train.py"),
    ("Scores", show("grades", sources=SAMPLES.values()), "grade.py {}"),
    ("Facts, reasoning, context", show("probe", "probe-*"), "probe.py {}"),
    (
        "Instructions",
        show("instruct", sources=SAMPLES.values()),
        "instruct.py RUN (trained on headers)",
    ),
    (
        "Novelty and memorization",
        show("rouge", links=["rouge.csv"], sources=SAMPLES.values()),
        "rouge.py RUN",
    ),
    (
        "Heads and neurons",
        show("interpret", "patching", links=["attention.html", "neurons.html"]),
        "interpret.py RUN",
    ),
    ("Stories side by side", stories, "sample.py --model RUN --eval 50 --n 10"),
    ("Experiments", show("experiment"), "experiments.py --help"),
]


def make_report(directories: Sequence[Path]) -> tuple[bytes, Results]:
    """The page, and the results, which name the damaged files. ValueError if there is nothing to
    show."""
    results, sections, empty = Results(directories), {}, []
    for title, make, command in SECTIONS:
        sections[title] = "\n".join(make(results))
        empty += (
            [] if sections[title] else [f"- {title}: `python {command.format(directories[0])}`"]
        )
    sections = {title: content for title, content in sections.items() if content}
    if not sections:
        raise UserError(
            f"{directories[0]}: no results of a run below it; train one with: python train.py"
        )
    if results.damaged:
        sections["Damaged files, left out"] = to_html(
            "\n".join(f"- {line}" for line in results.damaged)
        )
    if empty:
        sections["Sections without results yet"] = to_html("\n".join(empty))
    return sections_page(f"nanostories: {results.top.name}", "", sections), results


def main():
    parser = Parser(__doc__)
    parser.add_argument(
        "directories",
        nargs="*",
        type=Path,
        default=[Path("out")],
        help="runs, or directories of runs",
    )
    directories = parser.parse_args().directories
    with one_line_errors("report.py", interrupted="nothing was written"):
        content, results = make_report(directories)
        path = results.top / "report.html"
        write_bytes(path, content)
    for line in results.damaged:
        print(line, file=sys.stderr)
    print(f"wrote {path} ({len(content) / 1e6:.1f} MB); next: open it in a browser")


if __name__ == "__main__":
    main()
