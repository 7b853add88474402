"""report.py: one page of what the other commands left, no matter how much of it there is, or how
damaged."""

import json
import os
import re
import shutil

import numpy as np
import pytest
from matplotlib.figure import Figure
from random_models import random_model, save_run
from test_markdown import Reader

import report
from nanostories.figures import save_figure
from nanostories.pages.html import image
from nanostories.pages.runs import read_curve
from nanostories.tables import table_text, write_table
from nanostories.training.run_directory import LOG_COLUMNS

MARKUP = "<script>document.title = 'broken'</script> <b>Bold</b> & </body>"


def write_log(run, steps: int) -> None:
    """A row a step; every second one is validated."""
    run.mkdir(parents=True, exist_ok=True)
    rows = []
    for step in range(1, steps + 1):
        loss = 5 / step
        row = dict(
            step=step,
            tokens=step * 1000,
            done=step / 40,
            train_loss=loss,
            tokens_per_s=100 + step,
            seconds=6 * step,
        )
        rows.append(row | (dict(val_loss=loss + 0.5, bpb=loss / 2) if step % 2 == 0 else {}))
    write_table(run / "log.csv", rows, LOG_COLUMNS)


def write_samples(path, rows: list[tuple[str, str]]) -> None:
    lines = [
        dict(prompt=prompt, completion=text, reference="The true end.") for prompt, text in rows
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_result(directory, name: str, text: str) -> None:
    """NAME.md, NAME.png and NAME.svg, as a command leaves them."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{name}.md").write_text(text + "\n")
    drawn = Figure(figsize=(3, 2))
    drawn.subplots().plot([1, 2], label=MARKUP)
    save_figure(drawn, directory / f"{name}.png")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two runs with every kind of result; tests change copies."""
    directory = tmp_path_factory.mktemp("made") / "out"
    for name, steps in (("a", 40), ("b", 20)):
        write_log(directory / name, steps)
        config = dict(data="tiny", optimizer="adamw", n_embd=32, n_layer=3, n_head=4)
        config |= dict(max_steps=40, max_minutes=0.0, start_from="out/old" * (name == "b"))
        (directory / name / "config.json").write_text(json.dumps(config))
        save_run(directory / name, random_model(), name="best.pt")
        write_samples(
            directory / name / "samples.jsonl",
            [(f"{i} {MARKUP}", f"{name} {MARKUP}") for i in range(3)],
        )
        (directory / name / "story.html").write_text("")
    write_samples(directory / "b" / "samples-train.jsonl", [("In training", "It was.")])
    write_log(directory / "a" / "step-2", 2)
    table = table_text(
        ["run", "grammar"], [["a", "4.0 [3.5, 4.5]"], ["b", "12.0 [1.0, 2.0]"], ["c", ""]]
    )
    write_result(
        directory,
        "grades",
        f"## By a judge\n{MARKUP}\n\n{table}\n\nWARNING: the judge wrote what it grades",
    )
    for name in ("probe", "instruct", "a/rouge", "b/rouge", "a/interpret", "grid/experiment"):
        write_result(
            directory / name.rpartition("/")[0], name.rpartition("/")[2], f"## Results of {name}"
        )
    (directory / "a" / "attention.html").write_text("")
    write_table(directory / "grid" / "experiment.csv", [dict(run="x")])
    write_log(directory / "grid" / "x", 3)
    return directory


@pytest.fixture
def out(made, tmp_path, monkeypatch):
    shutil.copytree(made.parent, tmp_path, dirs_exist_ok=True)
    return tmp_path / "out"


@pytest.fixture
def report_py(command_line, tmp_path):
    return command_line(report, tmp_path)


def sections(page: bytes) -> dict[str, str]:
    """{title: HTML}"""
    found = re.findall(r'<section id="\d+"><h2>(.*?)</h2>(.*?)</section>', page.decode(), re.DOTALL)
    return dict(found)


def test_every_section_is_there(out, report_py):
    code, printed = report_py(out)
    assert code == 0 and printed.err == "" and "report.html" in printed.out.splitlines()[-1]
    found = sections((out / "report.html").read_bytes())
    assert list(found) == [title for title, *_ in report.SECTIONS]
    assert (
        found["Scores"].count("<img") == 1
        and 'class="warning">WARNING: the judge wrote' in found["Scores"]
    )
    novelty = found["Novelty and memorization"]
    assert (
        novelty.count("<details") == 2
        and novelty.count("<details open") == 1
        and "Results of b/rouge" in novelty
    )
    assert Reader(found["Heads and neurons"]).links == ["a/attention.html"]
    assert Reader(found["Runs"]).links == ["a/story.html", "b/story.html"]
    assert (
        "In training" in found["Stories side by side"]
        and "b, training stories" in found["Stories side by side"]
    )


def test_the_runs_are_those_of_their_logs(out):
    found = sections(report.make_report([out])[0])["Runs"]
    head, a, b = Reader(found).cells
    assert len(a) == len(head) and a[0] == "a"  # neither grid/x nor a/step-2
    assert b[0] == "b (50% trained), from out/old"
    a = dict(zip(head, a))
    assert (
        a["width-layers-heads"] == "32-3-4"
        and a["parameters"] == f"{random_model().num_params():,}"
    )
    assert a["tokens"] == "40,000" and a["data"] == "tiny"
    assert float(a["validation loss, last"]) == float(a["lowest"]) == 5 / 40 + 0.5
    assert float(a["tokens/s (median)"].replace(",", "")) == round(np.median(np.arange(101, 141)))
    assert float(a["minutes"]) == 4
    assert "WARNING the runs on tiny saw 0.02 to 0.04 million tokens" in found
    rows = read_curve(out / "a" / "log.csv")
    assert rows[-1]["minutes"] == 4 and rows[-1]["tokens"] == 0.04 and rows[0]["val_loss"] is None


def test_a_page_of_one_run_or_of_some(out, report_py):
    assert report_py(out / "a")[0] == 0
    found = sections((out / "a" / "report.html").read_bytes())
    assert (
        Reader(found["Runs"]).cells[1][0] == "a" and "Scores" not in found
    )  # they are in grades.md of all runs
    assert f"python grade.py {out / 'a'}" in found["Sections without results yet"]
    assert report_py(out / "a", out / "b", out / "a")[0] == 0
    rows = Reader(sections((out / "report.html").read_bytes())["Runs"]).cells[1:]
    assert [row[0] for row in rows] == ["a", "b (50% trained), from out/old"]


@pytest.mark.parametrize(
    "kept, title",
    [
        ("log.csv", "Runs"),
        ("interpret.md", "Heads and neurons"),
        ("rouge.svg", "Novelty and memorization"),
    ]
    + [
        ("samples.jsonl", "Stories side by side"),
        ("../b/samples-train.jsonl", "Stories side by side"),
    ]
    + [("story.html", "Runs")],
)
def test_a_run_with_a_single_result_shows_it(out, tmp_path, kept, title):
    (tmp_path / "few" / "only").mkdir(parents=True)
    shutil.copy(out / "a" / kept, tmp_path / "few" / "only")
    found = sections(report.make_report([tmp_path / "few"])[0])
    assert list(found) == [title, "Sections without results yet"]


DAMAGE = {
    "grades.md": lambda content: b"\xff" + content,
    "grades.svg": lambda content: content[:-30],
    "a/log.csv": lambda content: content.replace(b"5", b"x"),
    "a/best.pt": lambda content: content[:500],
    "a/config.json": lambda content: content[:20],
    "a/samples.jsonl": lambda content: content[:-9],
    "b/samples-train.jsonl": lambda content: b'{"prompt": 3}\n',
}


@pytest.mark.parametrize("name", ["best.pt", "samples-train.jsonl"])
def test_results_older_than_weights_or_stories_say_so(out, name):
    """Scores of all runs, and of the run itself; not another run's."""
    os.utime(out / "b" / name, (4e9, 4e9))
    found, older = sections(report.make_report([out])[0]), "older than weights or stories of b:"
    assert older in found["Scores"] and found["Novelty and memorization"].count(older) == 1
    assert older not in found["Heads and neurons"]


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_file_is_named_and_left_out(out, report_py, name):
    path = (out / name).resolve()
    path.write_bytes(DAMAGE[name](path.read_bytes()))
    code, printed = report_py(out)
    assert code == 0 and printed.err.count("\n") == 1 and str(path) in printed.err, printed.err
    found = sections((out / "report.html").read_bytes())
    assert str(path) in found["Damaged files, left out"] and "Runs" in found


def test_mistakes_get_one_line(report_py, tmp_path):
    for name in ("nowhere", tmp_path):
        assert str(name) in (code := report_py(name)[0]) and "\n" not in code


# ---- In a browser ----

USE = """(() => {
  const table = document.getElementById("1").querySelector("table");
  const names = () => [...table.tBodies[0].rows].map((row) => row.cells[0].textContent);
  const head = table.tHead.rows[0].cells[1], button = head.querySelector("button");
  const before = names();
  button.click();
  const down = names(), sorted = head.ariaSort;
  button.click();
  const images = [...document.images];
  return { before, down, sorted, up: names(), title: document.title, scripts: document.scripts.length,
    images: images.length, broken: images.filter((each) => !each.naturalWidth).length,
    inside: document.querySelectorAll("section script, section b b, summary b").length,
    ids: [...document.querySelectorAll("[id]")].map((each) => each.id),
    text: document.body.textContent, wide: document.documentElement.scrollWidth };
})()"""  # noqa: E501


@pytest.mark.parametrize("width, dark", [(360, True), (1400, False)])
def test_a_browser_shows_it_without_complaint(chromium, out, report_py, width, dark):
    assert report_py(out)[0] == 0
    chromium.open(out / "report.html", width, 900, dark)
    seen = chromium.run(USE)
    assert chromium.messages == [] and seen["wide"] <= width
    assert (
        seen["before"] == ["a", "b", "c"]
        and seen["down"] == ["b", "a", "c"]
        and seen["up"] == ["a", "b", "c"]
    )
    assert seen["sorted"] == "descending" and seen["images"] >= 7 and seen["broken"] == 0
    assert seen["title"] == "nanostories: out" and seen["scripts"] == 2 and seen["inside"] == 0
    assert MARKUP in seen["text"] and len(seen["ids"]) == len(set(seen["ids"]))


def test_scripts_in_a_picture_never_run(chromium, tmp_path):
    svg = '<svg xmlns="http://www.w3.org/2000/svg"><script>parent.document.title = 1</script></svg>'
    (tmp_path / "a.html").write_text(f"<title>safe</title>{image(svg.encode(), MARKUP)}")
    chromium.open(tmp_path / "a.html")
    assert (
        chromium.run("document.title") == "safe"
        and chromium.run("document.images[0].alt") == MARKUP
    )
    with pytest.raises(ValueError, match="SVG"):
        image(svg[:-9].encode(), "")
