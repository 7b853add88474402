"""report.py: one page of what the other commands left, no matter how much of it there is, or how
damaged."""

import re
import shutil

import pytest
from random_models import random_model, save_run

import report
from nanostories.checkpoints.checkpoint import identity_of_checkpoint
from nanostories.generation.samples_file import read_rows, write_rows
from nanostories.pages.result_files import ResultFiles
from nanostories.results import Table, save

MARKUP = "<script>document.title = 'broken'</script> <b>Bold</b> & </body>"
SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"></svg>'
RESULTS = {
    "grades.json": "grade.py",
    "probe.json": "probe.py",
    "instruct.json": "instruct.py",
    "a/rouge.json": "rouge.py",
    "b/rouge.json": "rouge.py",
    "a/interpret.json": "interpret.py",
    "grid/experiment.json": "experiments.py",
}


def write_log(run, steps: int) -> None:
    """A row a step; every second one is validated."""
    run.mkdir(parents=True, exist_ok=True)
    lines = ["step,tokens,done,train_loss,val_loss,bpb,tokens_per_s,seconds"]
    for step in range(1, steps + 1):
        validated = f"{5 / step + 0.5},{2.5 / step}" if step % 2 == 0 else ","
        start = f"{step},{1000 * step},{step / 40},{5 / step}"
        lines.append(f"{start},{validated},{100 + step},{6 * step}")
    (run / "log.csv").write_text("\n".join(lines) + "\n")


def write_samples(path, prompts: list[str], completion: str) -> None:
    row = {"sample_index": 0, "completion": completion, "reference": "The true end."}
    rows = [row | {"prompt_index": i, "prompt": prompt} for i, prompt in enumerate(prompts)]
    write_rows(path, rows)


def write_result(path, command: str, source) -> None:
    rows = [{"run": "a", "grammar": [4.0, 3.5, 4.5], "text": MARKUP}]
    rows += [{"run": "b", "grammar": [1200, 100, 2000]}, {"run": "c", "grammar": None}]
    warning = f"the judge wrote what it grades {MARKUP}"
    save(path, command, [Table(f"Found by {command}", rows)], [warning], [source])
    path.with_suffix(".svg").write_text(SVG)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two runs with every kind of result; tests change copies."""
    out = tmp_path_factory.mktemp("made") / "out"
    for name, steps, source in (("a", 40, ""), ("b", 20, "out/old")):
        settings = {"data_dir": "data", "data": "tiny", "n_embd": 32, "n_layer": 3}
        settings["start_from"] = source
        save_run(out / name, random_model(), name="best.pt", train_config=settings)
        write_log(out / name, steps)
        prompts = [f"{i} {MARKUP}" for i in range(3)]
        write_samples(out / name / "samples/eval.jsonl", prompts, MARKUP)
        (out / name / "story.html").touch()
    write_samples(out / "b" / "samples/train.jsonl", ["In training"], "It was.")
    for name, command in RESULTS.items():
        owner = "a" if name.startswith("a/") else "b"
        write_result(out / name, command, out / owner / "samples/eval.jsonl")
    for part in ("a/step-2", "grid/x"):
        write_log(out / part, 2)
    return out


@pytest.fixture
def out(made, tmp_path):
    return shutil.copytree(made, tmp_path / "out")


@pytest.fixture
def report_py(command_line, tmp_path):
    return command_line(report, tmp_path)


def sections(*directories) -> dict[str, str]:
    """{title: HTML}"""
    page = report.make_report(ResultFiles(directories)).decode()
    pattern = r'<section id="section-\d+"><details[^>]*><summary><h2>(.*?)</h2></summary>'
    return dict(re.findall(pattern + "(.*?)</details></section>", page, re.DOTALL))


def table_of(section: str) -> list[list[str]]:
    """The cells of its first table, row by row."""
    rows = re.findall("<tr>(.*?)</tr>", section.partition("</table>")[0])
    return [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in rows]


def test_every_section_is_there(out, report_py):
    code, printed = report_py(out)
    assert code == 0 and printed.err == ""
    found = sections(out)
    assert list(found) == ["Overview", *report.SECTIONS.values(), "Pages"]
    for command in RESULTS.values():
        section = found[report.SECTIONS[command]]
        n = list(RESULTS.values()).count(command)
        assert section.count("<img") == section.count(f"Found by {command}") == n
        assert section.count('class="warning">WARNING the judge wrote') == n
    assert re.findall('href="(.*?)"', found["Pages"]) == ["a/story.html", "b/story.html"]
    assert "b, train" in found["Stories side by side"]


def save_one(path, kind: str, rows: list[dict], warnings=(), sources=()) -> None:
    save(path, "rouge.py", [Table("", rows, facts={"kind": kind})], warnings, sources)


def overview(out) -> tuple[str, dict[str, dict]]:
    """Its HTML, and its rows by run."""
    section = sections(out)["Overview"]
    head, *rows = table_of(section)
    return section, {row[0]: dict(zip(head, row)) for row in rows}


def scored(run: str, *consistency: float) -> dict:
    return {"run": run, "stories": 9, "ungraded": 0, "consistency": list(consistency)}


FLAG = {"run": "a", "set": "eval", "flagged": "copy", "completions": "1 of 9"}
TRUTH = scored("(true ending)", 1.0, 0.9, 1.1)
SCORES = [scored("a", 0.5, 0.4, 0.6), scored("b", 0.8, 0.7, 0.9), TRUTH]


def scores(rows=SCORES, judge="lm:x", set="eval", notes=None) -> Table:
    facts = {"kind": "scores", "judge": judge, "set": set}
    return Table("", rows, notes=notes or {}, facts=facts)


def save_scores(directory, *tables: Table, name="grades") -> None:
    save(directory / f"{name}.json", "grade.py", tables)


def test_the_overview_joins_what_the_commands_found(out):
    """What is certainly the best is bold, unless a note says why not to believe it (then no other
    is the best, either). Text is no markup."""
    shutil.copytree(out / "a", out / "c")
    graded = [*SCORES, scored("c", 0.2, 0.1, 0.3)]
    shares = [{"run": "a", "facts": [0.9, 0.8, 1.0]}, {"run": "b", "facts": [0.85, 0.75, 0.95]}]
    pairs = [{"phenomenon": "all", "a": [0.7, 0.65, 0.75], "b": [0.5, 0.45, 0.55]}]
    others = [{"phenomenon": "all", "a": [0.9, 0.8, 1.0]}]
    save_scores(out, scores(graded))
    save_one(out / "probe.json", "shares", shares)
    save_one(out / "grammar-zorro.json", "pairs", others)  # before it
    save_one(out / "grammar.json", "pairs", pairs)
    save_one(out / "rouge.json", "flags", [FLAG | {"set": "train", "completions": "9"}, FLAG])
    section, rows = overview(out)
    expected = {
        "bits per byte": "0.062",
        "flagged as copies": "1 of 9",
        "grammar": "<b>70% [65%, 75%]</b>",
        "facts": "90% [80%, 100%]",
    }
    assert expected.items() <= rows["a"].items()
    assert rows["b"]["consistency"] == "<b>0.80 [0.70, 0.90]</b>"
    assert [*rows] == ["a", "b", "c", "(true endings)"]
    assert "<script" not in section and "&lt;script" in section
    save_scores(out, scores(SCORES[1:], set="beginnings"), name="grades-beginnings")
    assert overview(out) == (section, rows)

    warnings = ["a was trained on other text: not English"]
    save_one(out / "grammar.json", "pairs", pairs, warnings)
    for name, note in (("b", "stories by the judge itself"), ("consistency", "cannot tell them")):
        save_scores(out, scores(graded, notes={name: note}))
        section, rows = overview(out)
        assert "<b>0." not in section and "b (consistency" in section
        assert f": {note}" in section
        assert "<b>" not in rows["a"]["grammar"] and "a (grammar): was trained on" in section


def test_the_overview_has_one_judge_and_all_who_wrote_stories(out):
    """The table of most stories in the first file, which has one for each judge and each group of
    runs that share prompts; also of models that were not trained here."""
    name = "api--x/temperature-0.6"
    write_samples(out / name / "samples/eval.jsonl", ["Once"], " upon.")
    shutil.copytree(out / "a", out / "c")
    few = [row | {"ungraded": 8, "consistency": [9, 8, 10]} for row in SCORES]
    others = [scored("c", 0.9, 0.85, 0.95), scored("(true ending)", 2.0, 1.9, 2.1)]
    most = [*SCORES, scored(name, 0.7, 0.6, 0.8)]
    save_scores(out, scores(few, "human:Anna"), scores(others), scores(most))
    save_scores(out / "grid", scores([row | {"stories": 99} for row in SCORES], "lm:list"))
    save_scores(out / "a", scores([scored("(true ending)", 0.2, 0.1, 0.3)]))  # of other prompts
    section, found = overview(out)
    assert found[name]["consistency"] == "0.70 [0.60, 0.80]"
    assert found["b"]["consistency"] == "0.80 [0.70, 0.90]"  # not bold
    assert found["(true endings)"]["consistency"] == "1.00 [0.90, 1.10]"
    assert found["c"]["consistency"] == "–"
    assert "by lm:x" in section and "Anna" not in section and "</i> upon." in section


def test_the_overview_takes_results_of_today_and_says_what_is_out_of_date(out):
    """From several files: the comparison of all runs was made before the stories of a changed."""
    samples = out / "a" / "samples/eval.jsonl"
    save_one(out / "rouge.json", "flags", [FLAG | {"completions": "9 of 9"}], sources=[samples])
    write_samples(samples, ["Another prompt"], "Another end.")
    section, rows = overview(out)
    assert rows["a"]["flagged as copies"] == "9 of 9"
    assert "a (flagged as copies): out of date: a/samples/eval.jsonl changed since" in section
    found = sections(out)
    assert found["Novelty and memorization"].count("run rouge.py again") == 2  # not b's
    assert "out of date" not in found["Facts, reasoning, context"]
    save_one(out / "a" / "rouge.json", "flags", [FLAG], sources=[samples])
    section, rows = overview(out)
    assert rows["a"]["flagged as copies"] == "1 of 9" and "out of date" not in section


def test_figures_of_stories_by_other_weights_say_so(out):
    """As after a training was resumed."""
    samples = out / "a" / "samples/eval.jsonl"
    weights = identity_of_checkpoint(out / "a" / "best.pt")
    save_scores(out, scores())
    for written_by, is_noted in ((weights, False), ("others", True)):
        origin = {"model": str(out / "a" / "best.pt"), "weights": written_by}
        rows = [row | origin for row in read_rows(samples).values()]
        write_rows(samples, rows)
        section = overview(out)[0]
        assert ("a (consistency): of stories by other weights" in section) == is_noted


def test_the_runs_are_those_of_their_logs(out):
    section = sections(out)["Runs"]
    head, first, second = table_of(section)  # neither grid/x nor a/step-2
    parameters = f"{random_model().num_params():,}"
    expected = ["a", "tiny", "3", "32", parameters, "40,000", "4.0", "120", "0.625", "0.062"]
    assert first == expected and second[0].startswith("b ") and len(head) == len(first)
    assert "50% trained; began with the weights of out/old" in section
    assert "b (bits per byte): 50% trained" in overview(out)[0]
    (out / "b" / "best.pt").unlink()  # stopped before its first validation
    second = table_of(sections(out)["Runs"])[2]
    assert second[1:6] == ["", "–", "–", "–", "20,000"]


def test_a_page_of_one_run_or_of_some(out, report_py):
    assert report_py(out / "a")[0] == 0 and (out / "a" / "report.html").exists()
    found = sections(out / "a")
    assert table_of(found["Runs"])[1][0] == "a" and "Scores" not in found
    assert "python grade.py --help" in found["Sections without results yet"]
    assert len(table_of(sections(out / "a", out / "b", out / "a")["Runs"])) == 3


def test_a_page_alone_is_shown_and_nothing_is_an_error(tmp_path, report_py):
    code, _ = report_py(tmp_path)
    assert str(tmp_path) in code
    (tmp_path / "story.html").touch()
    assert list(sections(tmp_path)) == ["Pages", "Sections without results yet"]


DAMAGE = [  # file, bytes that are replaced, by these
    ("grades.json", b"{", b""),
    ("probe.json", b'"rows"', b'"lines"'),
    ("a/log.csv", b"5", b"x"),
    ("a/log.csv", b"val_loss", b"loss"),  # of another program
    ("a/best.pt", b"PK", b"XX"),
    ("b/samples/train.jsonl", b'"', b""),
]


@pytest.mark.parametrize("name, old, new", DAMAGE)
def test_a_damaged_file_is_named_and_left_out(out, report_py, name, old, new):
    path = out / name
    path.write_bytes(path.read_bytes().replace(old, new))
    code, printed = report_py(out)
    assert code == 0 and printed.err.count("\n") == 1 and str(path) in printed.err
    assert "Runs" in sections(out)


def enlarge(path, size: int) -> None:
    path.write_bytes(path.read_bytes().replace(b"</svg>", b"<!--" + b"x" * size + b"--></svg>"))


def test_forty_runs_are_below_5_mb(made, tmp_path):
    """With long logs, long stories, and pictures of a megabyte, of which some become links."""
    for i in range(40):
        run = tmp_path / f"run-{i}"
        write_log(run, 2000)
        prompts = [f"Prompt {j}" for j in range(30)]
        write_samples(run / "samples/eval.jsonl", prompts, "word " * 2000)
        for name in ("rouge.json", "rouge.svg"):
            shutil.copy(made / "a" / name, run)
        enlarge(run / "rouge.svg", 1_000_000)
    page = report.make_report(ResultFiles([tmp_path]))
    assert 2_000_000 < len(page) < 5_000_000
    assert b"<img" in page and b'href="run-39/rouge.png"' in page


# ---- In a browser ----
@pytest.mark.parametrize("width, dark", [(360, True), (1400, False)])
def test_a_browser_shows_it_and_the_keyboard_sorts_a_table(chromium, out, report_py, width, dark):
    report_py(out)
    chromium.open(out / "report.html", width, dark=dark)
    images, n_open, n_inside = chromium.run("""(() => {
      const all = (selector) => [...document.querySelectorAll(selector)];
      const inside = all("section script, section b b, summary b, td b");
      const images = all("img").map((image) => image.naturalWidth);
      return [images, all("section > details[open]").length, inside.length];
    })()""")
    assert len(images) == 8 and all(images) and n_open == 1 and n_inside == 0
    assert MARKUP in chromium.run("document.body.textContent")
    chromium.check_screen()

    chromium.run("document.querySelector('nav a[href=\"#section-2\"]').click()")
    names = """[...document.getElementById("section-2").querySelectorAll("tbody td:first-child")]
      .map((cell) => cell.textContent).join("")"""
    chromium.run("document.querySelectorAll('#section-2 th button')[1].focus()")
    for order in ("bac", "abc"):
        chromium.press("Enter")
        assert chromium.run(names) == order
    assert chromium.messages == []
    assert chromium.run("document.activeElement.parentElement.ariaSort") == "ascending"


def test_a_column_of_text_sorts_by_the_numbers_in_it(chromium, out, report_py):
    report_py(out)
    chromium.open(out / "report.html")
    texts = ["gpt2", "128-4-4", "64-4-16", "–", "64-4-8"]
    chromium.run(f"""globalThis.sorted = (isDescending) => {{
      const row = (text) => element("tr", {{}}, element("td", {{}}, text));
      const body = element("tbody", {{}}, ...{texts}.map(row));
      sortRows(body, 0, isDescending);
      return [...body.rows].map((row) => row.textContent);
    }}; 0""")
    assert chromium.run("sorted(false)") == ["64-4-8", "64-4-16", "128-4-4", "gpt2", "–"]
    assert chromium.run("sorted(true)") == ["gpt2", "128-4-4", "64-4-16", "64-4-8", "–"]
