"""report.py: one page that shows what the other scripts left, no matter how much of it there is."""

import base64
import csv
import json
import math
import re
import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest
from conftest import arguments, log_of, page_data, seen_in

import grade
import instruct
import interpret
import probe
import report
import rouge
import sample
import train
from checkpoints.checkpoint import load_run
from common.tables import read_table
from corpus.preparation import prepare
from generation.samples_file import write_rows
from grading import compare_models
from grading.compare_models import Finding
from interpretation.summary import read_attention
from kernels.cpu_features import hardware
from novelty.rouge_tables_and_plots import PANELS, TITLES
from pages import during_training, sections_runs
from pages.html import bars, sections_page
from pages.sections_stories import PUBLISHED, histogram

MARKUP = "<script>document.title = 'broken'</script> <b>Bold</b> & </body>"
MEANS = dict(
    grammar=[("a", 6.5), ("b", 4.25), ("(true ending)", 9.0), ("(shuffled)", 8.9)], consistency=[("a", 5), ("b", 6)]
)
JUDGED = [
    *(Finding("mean", "a judge", run, name, x, x - 1, x + 0.5, 9) for name, of in MEANS.items() for run, x in of),
    Finding("difference", "a judge", "a - b", "consistency", -1.0, -2.5, 0.5, 9),
    Finding("paired_wins", "a judge", "(shuffled)", "consistency", 0.52, 0.4, 0.6, 9),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two little runs, and all that the scripts say of them; what they write is never touched by the tests."""
    directory = tmp_path_factory.mktemp("report")
    rng = np.random.default_rng(0)
    names, things = ["Tom", "Mia", "Ben", "Sue"], ["ball", "cat", "kite", "drum", "hat"]
    pick = rng.choice
    texts = [f"{pick(names)} had a {pick(things)}. Then, {pick(names)} saw it. Number {i}." for i in range(150)]
    texts[1] += MARKUP
    prepare(directory / "data" / "tiny", ["tests"], texts[40:], texts[:40], vocab_size=300)
    for name, steps in (("a", 4), ("b", 2)):
        config = dict(
            name=name, out_dir=str(directory / "out"), data="tiny", data_dir=str(directory / "data"), device="cpu",
            dtype="float32", compile=False, block_size=224, n_layer=2, n_head=2, n_embd=16, batch_size=2,
            max_steps=steps, eval_tokens=400, eval_interval=1, log_interval=1,
            keep_checkpoints="2,3" if name == "a" else "",
        )  # fmt: skip
        train.train(*train.parse_command_line(arguments(config)))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)

        def call(script, *args):
            patch.setattr(sys, "argv", [f"{script.__name__}.py", *map(str, args)])
            try:
                script.main()
            except SystemExit as end:  # some end so when all is well
                assert not end.code

        for name in "ab":
            call(sample, "--model", f"out/{name}", "--eval", 6, "--n", 2, "--max_new_tokens", 12)
        call(sample, "--model", "out/a", "--eval", 3, "--n", 1, "--max_new_tokens", 12, "--checkpoint", "all")
        call(sample, "--model", "out/a", "--eval", 6, "--n", 2, "--split", "train", "--max_new_tokens", 9)
        call(grade, "out/", "--no-judge")
        grades = directory / "out" / "grades.csv"
        compare_models.write_csv(grades, compare_models.read_csv(grades) + JUDGED)
        call(probe, "out/", "--max_new_tokens", 4)
        call(probe, "out/", "--max_new_tokens", 1, "--checkpoint", "all")
        call(rouge, "out/a", "out/b")
        call(interpret, "out/a", "--stories", 30, "--ablate", 10, "--text", MARKUP)
    rows = [
        dict(prompt_index=i, sample_index=0, prompt=f"Words: {word}\nStory:", reference=f"A {word}.",
             completion=f"A {word} {MARKUP}", instruction=dict(words=[word]))
        for i, word in enumerate(("cat", "dog", "bird"))
    ]  # fmt: skip
    write_rows(directory / "asked" / "samples.jsonl", rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        patch.setattr(sys, "argv", ["instruct.py", "asked"])
        instruct.main()
        shutil.move("instruct.csv", "out/instruct.csv")
    grid = directory / "out" / "grid"
    shutil.copytree(directory / "out" / "b", grid / "128-8-4_0")
    table = "run,variant,seed,flops,val_loss,told,told_low,told_high\n128-8-4_0,128-8-4,0,6.9e+12,3.7,0.5,0.25,0.75\n"
    (grid / "experiment.csv").write_text(table)
    (grid / "experiment.png").write_bytes(base64.b64decode(PIXEL))
    return directory


PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNoAAAAggCBd81ytgAAAABJRU5ErkJggg=="


@pytest.fixture
def out(made, tmp_path):
    return shutil.copytree(made / "out", tmp_path / "out")


@pytest.fixture(autouse=True)
def benches(tmp_path, monkeypatch):
    """bench/results.jsonl with a result of this machine, and one of another."""
    results = [dict(bench="train", ratios=dict(peer=ratio), figures=dict(ours=1.0), hardware=of)
               for ratio, of in ((2.0, hardware()), (3.0, "a supercomputer"))]  # fmt: skip
    (tmp_path / "results.jsonl").write_text("".join(f"{json.dumps(result)}\n" for result in results))
    monkeypatch.setattr(sections_runs, "BENCH_RESULTS", tmp_path / "results.jsonl")
    return tmp_path / "results.jsonl"


@pytest.fixture
def report_py(command_line, tmp_path):
    return command_line(report, tmp_path)


def parts_of(data: dict, title: str, kind: str) -> list[dict]:
    section = next(section for section in data["sections"] if section["title"] == title)
    return [part for part in section["parts"] if part["type"] == kind]


def test_every_stage_is_there(out, report_py):
    code, printed = report_py(out)
    assert code == 0 and "wrote" in printed.out and "next: open it" in printed.out and printed.err == ""
    data = page_data(out / "report.html")
    assert [section["title"] for section in data["sections"]] == [title for title, *_ in report.SECTIONS]
    assert not any(data["notes"].values()) and data["runs"] == ["a", "b"]
    assert not re.search(r"src=\"|@import|url\(", (out / "report.html").read_text().split("<script")[0])


def test_figures_are_those_of_the_runs(out):
    data = page_data(report.make_report(out)[0])
    (table,) = parts_of(data, "Runs", "table")
    rows = [dict(zip((column["title"] for column in table["columns"]), row)) for row in table["rows"]]
    for row, name in zip(rows, "ab"):
        log = log_of(out / name)
        assert row["run"] == name and row["shape"] == "16-2-2" and row["data"] == "tiny"
        assert row["parameters"] == load_run(out / name)[0].num_params()
        assert row["validation loss"] == float(log[-1]["val_loss"]) and row["tokens seen"] == int(log[-1]["tokens"])
        assert row["lowest"] == min(float(line["val_loss"]) for line in log)
    (curves,) = parts_of(data, "Runs", "curves")
    drawn = [[point[0], point[2]] for point in curves["lines"][0]["train_loss"]]
    assert drawn == [[int(line["tokens"]), float(line["train_loss"])] for line in log_of(out / "a")]

    attention, tokens = read_attention(out / "a" / "interpret" / "attention.npz")
    (maps,) = parts_of(data, "Heads", "attention")
    T = len(maps["tokens"])
    levels = np.frombuffer(base64.b64decode(maps["levels"]), np.uint8).reshape(2, 2, T, T)
    assert maps["tokens"] == tokens[:T]
    np.testing.assert_allclose((levels / 255) ** 2, attention[:, :, :T, :T], atol=0.005)

    panels = {panel["title"]: panel for part in parts_of(data, "Scores", "bars") for panel in part["panels"]}
    assert panels["grammar (untested)"]["bars"][:2] == [["a", 6.5, 5.5, 7.0], ["b", 4.25, 3.25, 4.75]]
    (warnings,) = parts_of(data, "Scores", "warnings")
    assert any("cannot tell the true ending from one with its sentences shuffled" in w for w in warnings["lines"])
    assert any("too close to call" in line for line in warnings["lines"])

    with (out / "probe.csv").open(newline="") as file:
        answered = list(csv.DictReader(file))
    facts = [row for row in answered if row["set"] == "facts"]
    share = sum(row[next(key for key in row if key.endswith("a verdict"))] == "right" for row in facts) / len(facts)
    panel = parts_of(data, "Facts, reasoning, context", "bars")[0]["panels"][0]
    assert panel["title"] == f"facts (n = {len(facts)})" and panel["marks"] == {"chance": 0.25}
    name, value, low, high = panel["bars"][0]
    assert value == share and low <= share <= high

    (experiment,) = parts_of(data, "Experiments", "table")
    assert experiment["rows"] == [["128-8-4_0", 0.0, 6.9e12, 3.7, [0.5, 0.25, 0.75]]]
    assert [column["kind"] for column in experiment["columns"]] == ["text", "integer", "exponent", 3, 3]
    (instructed,) = parts_of(data, "Instructions", "bars")
    assert instructed["panels"][0]["bars"][0][1] == 1.0  # all words of all prompts


def test_what_was_kept_on_the_way_stands_in_its_own_section_alone(out, monkeypatch):
    drawn = []
    monkeypatch.setattr(during_training, "picture", lambda logs, runs: drawn.append(runs) or b"")
    data = page_data(report.make_report(out)[0])
    assert "step-" not in json.dumps([section for section in data["sections"] if section["title"] != "During training"])
    (runs,) = drawn
    first, second = runs.pop("a")
    assert not runs and [first.step, second.step] == [2, 3]
    assert first.val_loss == float(log_of(out / "a")[1]["val_loss"])
    (told,) = [f for f in compare_models.read_csv(out / "grades.csv") if (f.subject, f.figure) == ("a/step-3", "words")]
    assert second.measures["words"] == (told.value, told.low, told.high)
    answered = read_table(out / "a" / "step-3" / "probe.csv")
    facts = [next(row[key] for key in row if key.endswith("verdict")) for row in answered if row["set"] == "facts"]
    assert second.measures["facts: right (chance 0.25)"][0] == facts.count("right") / len(facts)


def test_histograms_hold_every_text(out):
    facts = json.loads((out / "a" / "rouge.json").read_text())
    (part,) = parts_of(page_data(report.make_report(out)[0]), "Novelty and memorization", "histograms")
    spans = next(panel for panel in part["panels"] if panel["title"] == PANELS["span"])
    of_a, values = spans["series"][0], facts["values"]["span"]["completions"]
    assert len(values) == facts["completions"] == 12
    step = spans["end"] / len(of_a["completions"])
    for i, share in enumerate(of_a["completions"]):
        assert share == pytest.approx(np.mean([i * step <= x < (i + 1) * step for x in values]), abs=1e-4)
    for column in ("completions", "beside"):
        assert sum(of_a[column]) == pytest.approx(1, abs=0.01)
        assert np.mean(facts["values"]["span"][column]) == pytest.approx(facts["figures"]["span"][column]["mean"])


def test_training_stories_stand_beside_validation_stories(out):
    facts = json.loads((out / "a" / "rouge-train.json").read_text())
    data = page_data(report.make_report(out)[0])
    means, splits, links = parts_of(data, "Novelty and memorization", "table")
    of_a = ["a", "a: baseline", "a, training stories", "a, training stories: baseline"]
    assert [column["title"] for column in means["columns"]] == ["", *of_a, "b", "b: baseline"]
    assert [row[1] for row in splits["rows"]] == ["a"] * 4  # b has continued no training stories
    for name, row in zip(PUBLISHED, splits["rows"]):
        figure = facts["training_and_validation"][name]
        assert [cell[0] for cell in row[2:]] == [list(figure[what].values()) for what in figure]
        assert row[2][0][0] == facts["figures"][name]["completions"]["mean"] and TITLES[name].startswith(row[0])
    (cautions,) = parts_of(data, "Novelty and memorization", "warnings")
    assert cautions["lines"] == ["a: splits sampled with different max_new_tokens; use the same"]
    (histograms,) = parts_of(data, "Novelty and memorization", "histograms")
    for panel in histograms["panels"]:
        assert [each["name"] for each in panel["series"]] == [of_a[0], of_a[2], "b"]
    assert ["a, training stories: flagged-train.txt", "a/flagged-train.txt"] in [row[0] for row in links["rows"]]

    (out / "a" / "rouge.json").unlink()
    del facts["training_and_validation"]  # as where a run has continued no validation stories
    (out / "a" / "rouge-train.json").write_text(json.dumps(facts))
    means, links = parts_of(page_data(report.make_report(out)[0]), "Novelty and memorization", "table")
    assert means["columns"][1]["title"] == "a, training stories"


def test_findings_come_back_as_they_were(tmp_path):
    compare_models.write_csv(tmp_path / "grades.csv", JUDGED)
    for back, finding in zip(compare_models.read_csv(tmp_path / "grades.csv"), JUDGED, strict=True):
        for ours, theirs in zip(vars(back).values(), vars(finding).values(), strict=True):
            assert ours == theirs or math.isnan(ours) and math.isnan(theirs)


def test_a_page_of_one_run(out, report_py):
    assert report_py(out / "a")[0] == 0
    data = page_data(out / "a" / "report.html")
    assert data["runs"] == ["a"] and parts_of(data, "Runs", "table")[0]["rows"][0][0] == "a"
    few, blind = parts_of(data, "Scores", "warnings")[0]["lines"]  # and no close call between two runs
    assert "too few prompts (9)" in few and "cannot tell the true ending" in blind
    names = {section["title"] for section in data["sections"]}
    assert names == {title for title, *_ in report.SECTIONS} - {"Experiments", "Instructions"}  # asked is another run
    parts = parts_of(data, "Facts, reasoning, context", "bars") + parts_of(data, "Scores", "bars")
    bars_of_runs = [bar for part in parts for panel in part["panels"] for bar in panel["bars"] if bar[0][0] != "("]
    assert {bar[0] for bar in bars_of_runs} == {"a"}


def test_a_run_with_some_stages_shows_those(out, report_py):
    only = out / "only"  # which is in none of the tables above it
    only.mkdir()
    shutil.copy(out / "a" / "log.csv", only)  # no checkpoint either
    assert report_py(only)[0] == 0
    data = page_data(only / "report.html")
    assert [section["title"] for section in data["sections"]][0] == "Runs"
    assert "Heads: python interpret.py RUN" in data["notes"][report.EMPTY]
    assert [section["title"] for section in data["sections"]] == ["Runs", "Speed and memory"]


DAMAGE = {
    "grades.csv": lambda content: content[:-30],
    "probe.csv": lambda content: content[: len(content) // 2].rpartition(b",")[0],
    "instruct.csv": lambda content: content.replace(b"0.", b"o."),
    "a/log.csv": lambda content: content.replace(b"5.", b"x."),
    "a/best.pt": lambda content: content[:500],
    "a/config.json": lambda content: content[:20],
    "a/rouge.json": lambda content: content.replace(b'"format": ', b'"format": 9'),
    "a/rouge-train.json": lambda content: content[:-9],
    "a/interpret/summary.json": lambda content: b"{}",
    "a/interpret/attention.npz": lambda content: content[:900],
    "a/interpret/neurons.csv": lambda content: b"\xff" + content,
    "grid/experiment.csv": lambda content: content[:-8],
}


@pytest.mark.parametrize("name", DAMAGE)
def test_what_is_damaged_is_named_and_left_out(out, report_py, name):
    path = out / name
    path.write_bytes(DAMAGE[name](path.read_bytes()))
    code, printed = report_py(out)
    assert code == 0 and printed.err.count("\n") == 1 and str(path) in printed.err, printed.err
    data = page_data(out / "report.html")
    assert len(data["notes"][report.DAMAGED]) == 1 and str(path) in data["notes"][report.DAMAGED][0]
    assert "Runs" in [section["title"] for section in data["sections"]]


@pytest.mark.slow
def test_many_large_runs_stay_below_5_mb(made, tmp_path):
    out = tmp_path / "out"
    row = log_of(made / "out" / "a")[-1]
    attention = np.tril(np.full((12, 16, 64, 64), 0.5, dtype=np.float32))
    for i in range(40):
        run = out / f"run{i}"
        shutil.copytree(made / "out" / "a", run)
        with (run / "log.csv").open("w", newline="") as file:
            log = csv.DictWriter(file, row)
            log.writeheader()
            log.writerows(row | dict(step=step, tokens=1000 * step) for step in range(1, 1000))
        samples = [dict(prompt_index=p, sample_index=0, prompt="p " * 200, completion="a " * 999) for p in range(50)]
        write_rows(run / "samples.jsonl", samples)
        np.savez_compressed(run / "interpret" / "attention.npz", format=1, attention=attention, tokens=["a"] * 64)
    models = [f"run{i} {what}" for i in range(40) for what in ("verdict", "lead", "greedy")]
    with (out / "probe.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["set", "prompt", "right", "wrong", *models])
        table.writerows([["facts", "p" * 60, " a", " b", *["wrong", "-0.1", "text " * 20] * 40]] * 200)
    page, damaged = report.make_report(out)
    assert damaged == [] and 1e6 < len(page) < 5e6


def test_mistakes_get_one_line(report_py):
    code, printed = report_py("nowhere")
    assert "nowhere: there are no runs in it; train one with: python train.py" in code and "\n" not in code
    assert report_py("a", "b")[0] == 2  # one directory at a time


USE = """
const rows = () => [...document.querySelectorAll("#section-0 tbody tr")].map((row) => row.cells[0].textContent);
const before = rows();
const titles = [...document.querySelectorAll("#section-0 th button")];
titles[0].click(); titles[0].click();
const after = rows(), sorted = titles[0].closest("th").getAttribute("aria-sort");
document.querySelector(".legend button").click();
const curves = document.querySelectorAll("svg.curves path").length;
const chooser = document.querySelector('select[aria-label="prompt"]');
const story = document.querySelector(".stories").textContent;
document.querySelector('button[aria-label="next"]').click();
const set = document.querySelector('select[aria-label="set"]');
const everything = document.querySelectorAll("table.answers tbody tr").length;
set.value = "facts"; set.dispatchEvent(new Event("change"));
const axis = document.querySelector('select[aria-label="horizontal axis"]');
axis.value = "seconds of training"; axis.dispatchEvent(new Event("change"));
const bar = document.querySelector(".panel g");
bar.dispatchEvent(new MouseEvent("mousemove", {bubbles: true, clientX: 5, clientY: 5}));
const told = tip.textContent;
const canvas = document.querySelector("canvas");
const legends = [...document.querySelectorAll(".legend > span")];
const [held, trained] = ["a", "a, training stories"]
  .map((name) => legends.find((each) => each.textContent === name).querySelector("line").attributes);
const inked = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.some((x) => x > 200);
document.body.append(element("pre", {id: "seen"}, JSON.stringify({
  before, after, sorted, curves, told, inked, everything,
  same: held.stroke.value === trained.stroke.value,
  dotted: held["stroke-dasharray"].value !== trained["stroke-dasharray"].value,
  facts: document.querySelectorAll("table.answers tbody tr").length, chosen: chooser.value,
  stories: story !== document.querySelector(".stories").textContent,
  nan: main.innerHTML.replace(/data:[^"]*/g, "").includes("NaN") || main.textContent.includes("undefined"),
  title: document.title, scripts: document.scripts.length, links: document.querySelectorAll("nav a").length,
  text: main.textContent, inside: main.querySelectorAll("script, .story b b, td b b").length,
  wide: document.documentElement.scrollWidth <= innerWidth,
})));
"""


def test_a_browser_shows_it_without_complaint(browser, out, report_py):
    rows = [dict(prompt_index=i, sample_index=0, prompt=f"{i} {MARKUP}", completion=MARKUP) for i in range(3)]
    write_rows(out / "b" / "samples.jsonl", rows)
    assert report_py(out)[0] == 0
    document, console = browser(out / "report.html", USE)
    assert console == []
    seen = seen_in(document)
    assert seen["before"] == ["a", "b"] and seen["after"] == ["b", "a"] and seen["sorted"] == "descending"
    assert seen["curves"] == 2 and seen["chosen"] == "1" and seen["stories"] and seen["inked"]
    assert seen["everything"] > seen["facts"] == 60 and seen["same"] and seen["dotted"]
    assert re.match(r"a: [\d.]+", seen["told"])
    assert not seen["nan"] and seen["wide"]
    assert seen["title"] == "nanostories: out" and seen["scripts"] == 3 and seen["inside"] == 0
    assert seen["links"] == len(report.SECTIONS) and MARKUP in seen["text"]


def test_scores_of_runs_that_were_graded_alone_are_found(out):
    """grade.py out/a writes out/a/grades.csv, and grade.py out/grid would write there."""
    shutil.copytree(out / "b", out / "more" / "c")
    (out / "grades.csv").unlink()
    compare_models.write_csv(
        out / "a" / "grades.csv", [f for f in JUDGED if f.subject != "b" and f.kind != "difference"]
    )
    renamed = [replace(f, subject="c", prompts=12) for f in JUDGED if f.subject == "b"]
    compare_models.write_csv(out / "more" / "grades.csv", [*renamed, replace(renamed[0], subject="gone")])
    data = page_data(report.make_report(out)[0])
    panels = {panel["title"]: panel for part in parts_of(data, "Scores", "bars") for panel in part["panels"]}
    names = ["a", "(true ending)", "(shuffled)", "more/c"]
    assert [bar[0] for bar in panels["grammar (untested)"]["bars"]] == names
    tables = parts_of(data, "Scores", "table")
    assert tables[0]["caption"] == "Judge: a judge. Means over 9 to 12 prompts."
    assert len(tables) == 2  # with paired wins


def test_only_what_the_controls_have_tested_is_in_color(out):
    seen = Finding("paired_wins", "a judge", "(cut off)", "grammar", 1.0, 0.8, 1.0, 9)
    compare_models.write_csv(out / "grades.csv", [*JUDGED, seen, replace(JUDGED[0], figure="creativity")])
    data = page_data(report.make_report(out)[0])
    panels = [panel for part in parts_of(data, "Scores", "bars") for panel in part["panels"]]
    outlined = {panel["title"]: panel["outlined"] for panel in panels}
    assert outlined == {"grammar": False, "creativity (untested)": True, "consistency (controls failed)": True}


def test_controls_of_an_earlier_version_are_to_be_compared_again(out):
    """Its AUCs paired all with all; the scores themselves are shown."""
    compare_models.write_csv(
        out / "grades.csv", [replace(f, kind=f.kind.replace("paired_wins", "auc")) for f in JUDGED]
    )
    data = page_data(report.make_report(out)[0])
    assert len(parts_of(data, "Scores", "table")) == 1
    lines = parts_of(data, "Scores", "warnings")[0]["lines"]
    assert any("an earlier version; run grade.py --no_judge" in line for line in lines)
    assert not any("unvalidated" in line or "cannot tell" in line for line in lines)


def test_benchmarks_of_other_machines_are_not_shown_as_the_users(out, benches):
    speed = parts_of(page_data(report.make_report(out)[0]), "Speed and memory", "table")
    assert speed[0]["rows"] == [["train", "peer", 2.0, hardware()]]
    benches.write_text(benches.read_text().splitlines()[1] + "\n")
    data = page_data(report.make_report(out)[0])
    assert "Speed and memory" not in [section["title"] for section in data["sections"]]
    assert "Speed and memory: python bench.py train --save" in data["notes"][report.EMPTY]


LOOK = """
const boxes = [...document.querySelectorAll(".panel g")]
  .map((g) => [...g.querySelectorAll("text")].map((text) => text.getBBox()));
main.style.width = "328px";
document.body.append(element("pre", {id: "seen"}, JSON.stringify({
  apart: boxes.every(([name, value]) => name.x + name.width < value.x),
  names: [...document.querySelectorAll(".panel")].map((panel) =>
    new Set([...panel.querySelectorAll("text.name")].map((text) => text.textContent)).size).filter((n) => n),
  wide: Math.max(...[...document.querySelectorAll(".legend > *")].map((each) => each.getBoundingClientRect().width)),
  nan: main.innerHTML.includes("NaN") || main.innerHTML.includes("Infinity"),
})));
"""


def test_long_names_and_panels_of_zeros_are_legible_on_a_phone(browser, tmp_path):
    names = [f"experiments/a_long_name_of_a_run_with_all_of_its_settings_in_it_seed_{i}" for i in range(2)]
    panels = [dict(title=kind, kind=kind, bars=[[name, value, None, None] for name in names], marks={}, end=None)
              for kind, value in (("percent", 0.0), ("integer", 123456), (2, 5.0))]  # fmt: skip
    zeros = histogram("zeros", {name: dict(completions=[0, 0], beside=[0]) for name in names}, whole=False)
    assert zeros["end"] == 1
    none = dict(title="none", end=1, series=[dict(name=name, completions=[0, 0]) for name in names])
    parts = [bars(panels), dict(type="histograms", panels=[zeros, none], caption="")]
    page = tmp_path / "page.html"
    page.write_bytes(sections_page("t", "s", [dict(title="Scores", about="", parts=parts)], names, {}))
    document, console = browser(page, LOOK)
    seen = seen_in(document)
    assert console == [] and seen["apart"] and seen["names"] == [2, 2, 2] and seen["wide"] <= 328 and not seen["nan"]
