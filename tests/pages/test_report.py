"""report.py: one page of what the other commands left, no matter how much of it there is, or how
damaged."""

import json
import re
import shutil

import pytest
from matplotlib.figure import Figure
from random_models import random_model, save_run

import report
from nanostories.pages.found import PICTURES, Found
from nanostories.pages.stories import side_by_side
from nanostories.results import Table, save
from nanostories.tables import write_table
from nanostories.training.run_directory import LOG_COLUMNS

MARKUP = "<script>document.title = 'broken'</script> <b>Bold</b> & </body>"


def write_log(run, steps: int) -> None:
    """A row a step; every second one is validated."""
    run.mkdir(parents=True, exist_ok=True)
    rows = []
    for step in range(1, steps + 1):
        row = {"step": step, "tokens": step * 1000, "done": step / 40, "train_loss": 5 / step}
        row |= {"tokens_per_s": 100 + step, "seconds": 6 * step}
        if step % 2 == 0:
            row |= {"val_loss": 5 / step + 0.5, "bpb": 2.5 / step}
        rows.append(row)
    write_table(run / "log.csv", rows, LOG_COLUMNS)


def write_samples(path, prompts: list[str], completion: str) -> None:
    lines = []
    for i, prompt in enumerate(prompts):
        row = {"prompt_index": i, "sample_index": 0, "prompt": prompt, "completion": completion}
        lines.append(json.dumps(row | {"reference": "The true end."}) + "\n")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(lines))


def write_result(path, command: str, sources=()) -> None:
    rows = [
        {"run": "a", "grammar": [4.0, 3.5, 4.5], "text": MARKUP},
        {"run": "b", "grammar": [12.0, 1.0, 2.0]},
        {"run": "c", "grammar": None},
    ]
    figure = Figure(figsize=(3, 2))
    figure.subplots().plot([1, 2], label=MARKUP)
    table = Table(f"Found by {command}", rows)
    save(path, command, [table], [f"the judge wrote what it grades {MARKUP}"], sources, figure)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two runs with every kind of result; tests change copies."""
    out = tmp_path_factory.mktemp("made") / "out"
    for name, steps in (("a", 40), ("b", 20)):
        write_log(out / name, steps)
        settings = {"data_dir": "data", "data": "tiny", "n_embd": 32, "n_layer": 3}
        settings["start_from"] = "out/old" if name == "b" else ""
        (out / name / "config.json").write_text(json.dumps(settings))
        save_run(out / name, random_model(), name="best.pt", train_config=settings)
        write_samples(out / name / "samples.jsonl", [f"{i} {MARKUP}" for i in range(3)], MARKUP)
        (out / name / "story.html").write_text("")
    write_samples(out / "b" / "samples-train.jsonl", ["In training"], "It was.")
    write_log(out / "a" / "step-2", 2)
    write_result(out / "grades.json", "grade.py", [out / "b" / "samples.jsonl"])
    write_result(out / "probe.json", "probe.py")
    write_result(out / "instruct.json", "instruct.py")
    write_result(out / "a" / "rouge.json", "rouge.py", [out / "a" / "samples.jsonl"])
    write_result(out / "b" / "rouge.json", "rouge.py", [out / "b" / "samples.jsonl"])
    write_result(out / "a" / "interpret.json", "interpret.py")
    write_result(out / "grid" / "experiment.json", "experiments.py")
    write_log(out / "grid" / "x", 3)
    return out


@pytest.fixture
def out(made, tmp_path):
    shutil.copytree(made, tmp_path / "out")
    return tmp_path / "out"


@pytest.fixture
def report_py(command_line, tmp_path):
    return command_line(report, tmp_path)


def sections(*directories) -> dict[str, str]:
    """{title: HTML}"""
    page = report.make_report(Found(directories)).decode()
    return dict(re.findall(r'<section id="\d+"><h2>(.*?)</h2>(.*?)</section>', page, re.DOTALL))


def table_of(section: str) -> list[list[str]]:
    """The cells of its first table, row by row."""
    rows = re.findall("<tr>(.*?)</tr>", section.partition("</table>")[0])
    return [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in rows]


def test_every_section_is_there(out, report_py):
    code, printed = report_py(out)
    assert code == 0 and printed.err == "" and "report.html" in printed.out.splitlines()[-1]
    found = sections(out)
    assert list(found) == [*report.SECTIONS.values(), "Pages"]
    for name in ("grade.py", "probe.py", "instruct.py", "rouge.py", "interpret.py"):
        section = found[report.SECTIONS[name]]
        assert section.count("<img") == section.count("<details>") == 1 + (name == "rouge.py")
        assert f"Found by {name}" in section and "12 [1, 2]" in section
        assert section.count('class="warning">WARNING the judge wrote') >= 1
    assert re.findall('href="(.*?)"', found["Pages"]) == ["a/story.html", "b/story.html"]
    stories = found["Stories side by side"]
    assert "In training" in stories and "b, samples-train" in stories


def test_the_runs_are_those_of_their_logs(out):
    section = sections(out)["Runs"]
    head, first, second = table_of(section)  # neither grid/x nor a/step-2
    parameters = f"{random_model().num_params():,}"
    expected = ["a", "tiny", "3", "32", parameters, "40,000", "4.0", "120", "0.625", "0.062"]
    assert first == expected and second[0].startswith("b ") and len(head) == len(first)
    assert "50% of its training is done; began with the weights of out/old" in section


def test_a_page_of_one_run_or_of_some(out, report_py):
    assert report_py(out / "a")[0] == 0 and (out / "a" / "report.html").exists()
    found = sections(out / "a")
    assert table_of(found["Runs"])[1][0] == "a" and "Scores" not in found
    assert "Scores: python grade.py --help" in found["Sections without results yet"]
    rows = table_of(sections(out / "a", out / "b", out / "a")["Runs"])
    assert [row[0][0] for row in rows[1:]] == ["a", "b"]


@pytest.mark.parametrize(
    "kept, title",
    [
        ("a/log.csv", "Runs"),
        ("a/interpret.json", "Heads and neurons"),
        ("b/samples-train.jsonl", "Stories side by side"),
        ("a/story.html", "Pages"),
    ],
)
def test_a_run_with_a_single_result_shows_it(out, tmp_path, kept, title):
    (tmp_path / "few" / "only").mkdir(parents=True)
    shutil.copy(out / kept, tmp_path / "few" / "only")
    assert list(sections(tmp_path / "few")) == [title, "Sections without results yet"]


def test_results_of_what_has_changed_since_say_so(out):
    """Of this source alone: not of a run that is named like a word of the text."""
    (out / "a").rename(out / "judge")
    save_run(out / "judge", random_model(n_layer=1), name="best.pt")
    write_samples(out / "b" / "samples.jsonl", ["Another prompt"], "Another end.")
    found = sections(out)
    assert "out of date: b/samples.jsonl changed since; run grade.py again" in found["Scores"]
    assert found["Novelty and memorization"].count("out of date") == 1
    others = set(found) - {"Scores", "Novelty and memorization"}
    assert not any("out of date" in found[title] for title in others)


DAMAGE = {
    "grades.json": lambda content: content[:300],
    "probe.json": lambda content: content.replace(b'"rows"', b'"lines"'),
    "instruct.json": lambda content: content.replace(b'"notes": {}', b'"notes": 3'),
    "grades.svg": lambda content: content[:-30],
    "a/log.csv": lambda content: content.replace(b"5", b"x"),
    "a/best.pt": lambda content: content[:500],
    "a/samples.jsonl": lambda content: content[:-9],
    "b/samples-train.jsonl": lambda content: b'{"prompt": 3}\n',
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_file_is_named_and_left_out(out, report_py, name):
    path = (out / name).resolve()
    content = DAMAGE[name](path.read_bytes())
    assert content != path.read_bytes()
    path.write_bytes(content)
    code, printed = report_py(out)
    assert code == 0 and printed.err.count("\n") == 1 and str(path) in printed.err, printed.err
    found = sections(out)
    assert str(path) in found["Damaged files, left out"] and "Runs" in found


def enlarged(svg: bytes, size: int) -> bytes:
    return svg.replace(b"</svg>", b"<!--" + b"x" * size + b"--></svg>")


def test_after_a_large_picture_the_others_are_still_shown(out):
    (out / "grades.svg").write_bytes(enlarged((out / "grades.svg").read_bytes(), PICTURES))
    found = sections(out)
    assert "<img" not in found["Scores"] and 'href="grades.png"' in found["Scores"]
    assert "<img" in found["Heads and neurons"] and "<img" in found["Novelty and memorization"]


def test_forty_runs_are_below_5_mb(made, tmp_path):
    """With long logs, long stories, and pictures of a megabyte."""
    large = enlarged((made / "grades.svg").read_bytes(), 1_000_000)
    for i in range(40):
        run = tmp_path / f"run-{i}"
        write_log(run, 2000)
        write_samples(run / "samples.jsonl", [f"Prompt {j}" for j in range(30)], "word " * 2000)
        shutil.copy(made / "a" / "rouge.json", run)
        (run / "rouge.svg").write_bytes(large)
    page = report.make_report(Found([tmp_path]))
    assert 2_000_000 < len(page) < 5_000_000 and b"run-39" in page


def test_the_end_of_a_long_prompt_is_shown():
    """From a whole word on, or as it is in a script without spaces."""
    rows = []
    for prompt in ("word " * 100, "昔々あるところに狐がいました。" * 30, ""):
        rows.append({"prompt": prompt, "completion": "x", "reference": None})
    prompts = re.findall("<summary>(.*?)</summary>", side_by_side({"a": rows}))
    assert prompts[0].startswith("… word word") and prompts[2] == "(no prompt)"
    assert prompts[1].startswith("… ") and len(prompts[1]) > 290


def test_mistakes_get_one_line(report_py, tmp_path):
    for name in ("nowhere", tmp_path):
        code, _ = report_py(name)
        assert str(name) in code and "\n" not in code


# ---- In a browser ----
@pytest.mark.parametrize("width, dark", [(360, True), (1400, False)])
def test_a_browser_shows_it_without_complaint(chromium, out, report_py, width, dark):
    assert report_py(out)[0] == 0
    chromium.open(out / "report.html", width, dark=dark)
    seen = chromium.run("""(() => {
      const all = (selector) => [...document.querySelectorAll(selector)];
      return {
        title: document.title,
        text: document.body.textContent,
        width: document.documentElement.scrollWidth,
        images: document.images.length,
        broken: [...document.images].filter((image) => !image.naturalWidth).length,
        inside: all("section script, section b b, summary b, td b").length,
        ids: all("[id]").map((each) => each.id),
        open: all("section").map((section) => section.querySelectorAll("[open]").length),
      };
    })()""")
    assert chromium.messages == [] and seen["width"] <= width
    assert seen["images"] >= 7 and seen["broken"] == 0 and set(seen["open"]) == {0, 1}
    assert seen["title"] == "nanostories: out" and seen["inside"] == 0
    assert MARKUP in seen["text"] and len(seen["ids"]) == len(set(seen["ids"]))


def test_a_table_is_sorted_by_keyboard(chromium, out, report_py):
    report_py(out)
    chromium.open(out / "report.html")
    names = """[...document.getElementById("1").querySelectorAll("tbody td:first-child")]
      .map((cell) => cell.textContent)"""
    orders = [chromium.run(names)]
    chromium.run("document.getElementById('1').querySelectorAll('th button')[1].focus()")
    for _ in range(2):
        chromium.press("Enter")
        orders.append(chromium.run(names))
    assert orders == [["a", "b", "c"], ["b", "a", "c"], ["a", "b", "c"]]
    assert chromium.run("document.activeElement.parentElement.ariaSort") == "ascending"
