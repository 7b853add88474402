"""
One page with all results of your runs: an overview, then loss curves, scores, answers, novelty,
heads, neurons, stories, experiments.

$ python report.py              # every run and every experiment below out/ -> out/report.html
$ python report.py out/demo     # one run -> out/demo/report.html (or several runs)

The page is one file that needs no network. It shows what the other commands found: the tables of
NAME.json, the picture NAME.svg beside it, and links to their pages. Where a section has nothing, it
names the command that fills it.
"""

from dataclasses import replace
from pathlib import Path

from nanostories.cli import Parser, UserError, existing_path, one_line_errors
from nanostories.files import write_bytes
from nanostories.results import to_html

SECTIONS = {  # the command whose results it shows: its title
    "train.py": "Runs",
    "grade.py": "Scores",
    "probe.py": "Facts, reasoning, context",
    "instruct.py": "Instructions",
    "rouge.py": "Novelty and memorization",
    "interpret.py": "Heads and neurons",
    "sample.py": "Stories side by side",
    "experiments.py": "Experiments",
}


def make_report(files) -> bytes:
    """files: ResultFiles. UserError if there is nothing to show."""
    # These import torch and matplotlib.
    from nanostories.pages.html import details, sections_page
    from nanostories.pages.overview import overview_section
    from nanostories.pages.runs import runs_section
    from nanostories.pages.stories import stories_section

    sections = {"Overview": overview_section(files)} | dict.fromkeys(SECTIONS.values(), "")
    sections[SECTIONS["train.py"]] = runs_section(files)
    sections[SECTIONS["sample.py"]] = stories_section(files)
    for path, result, out_of_date in files.results:
        if out_of_date:
            result = replace(result, warnings=[*result.warnings, out_of_date])
        command = result.command.partition(" ")[0]
        title = SECTIONS.get(command, command)
        content = to_html(result) + files.picture(path.with_suffix(".svg"))
        sections[title] = sections.get(title, "") + details(files.label(path), content)
    pages = [path for path in files.paths if path.suffix == ".html" and path.name != "report.html"]
    sections["Pages"] = list_html([files.link(path) for path in pages])
    if not any(sections.values()):
        raise UserError(f"{files.top}: no results below it; train a run with: python train.py")
    missing = []
    for command, title in SECTIONS.items():
        if not sections[title]:
            missing.append(f"{title}: python {command} --help")
    sections["Sections without results yet"] = list_html(missing)
    shown = {title: content for title, content in sections.items() if content}
    return sections_page(f"nanostories: {files.top.name}", "", shown, is_folded=True)


def list_html(lines: list[str]) -> str:
    items = [f"<li>{line}</li>" for line in lines]
    return f"<ul>{''.join(items)}</ul>" if items else ""


def main():
    parser = Parser(__doc__)
    parser.add_argument(
        "directories",
        nargs="*",
        type=existing_path,
        default=[Path("out")],
        help="runs, or directories of runs",
    )
    directories = parser.parse_args().directories
    with one_line_errors("report.py", interrupted="nothing was written"):
        from nanostories.pages.result_files import ResultFiles  # here, as it imports NumPy

        files = ResultFiles(directories)
        content = make_report(files)
        path = files.top / "report.html"
        write_bytes(path, content)
    print(f"wrote {path} ({len(content) / 1e6:.1f} MB); next: open it in a browser")


if __name__ == "__main__":
    main()
