"""probe.py: what it writes, prints and shows, and what it refuses."""

import argparse
import csv
import json
import re
import shutil
import subprocess
import sys

import pytest
import torch
from conftest import ROOT, page_data, seen_in
from models_to_probe import random_model, save_run

import probe
from grading.probe_answers import NEARLY, SETS, read_probes
from model import GPTNeo, GPTNeoConfig

SEEDS = ROOT.parent / "shared" / "data" / "seed-prompts"
OURS = {path.stem: read_probes(path, path.stem) for path in SETS}


@pytest.fixture
def probe_py(command_line, tmp_path):
    return command_line(probe, tmp_path)


@pytest.fixture
def out(tmp_path):
    """out/ with a run that has a fixed preference for some words over others, whatever the prompt, and a random one."""
    fixed = random_model()
    torch.nn.init.zeros_(fixed.ln_f.weight)  # its bias alone meets the head
    save_run(tmp_path / "out" / "fixed", fixed)
    save_run(tmp_path / "out" / "deeper" / "random", random_model())
    return tmp_path / "out"


def table_of(path) -> list[dict]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_last_checkpoints_of_all_runs(out):
    args = argparse.Namespace(runs=[out], model=["hf:gpt2"], checkpoint="last")
    assert probe.find_models(args) == [f"{out}/deeper/random/ckpt.pt", f"{out}/fixed/ckpt.pt", "hf:gpt2"]


def test_a_fixed_preference_scores_exactly_chance(out, probe_py):
    code, printed = probe_py("out", "--max_new_tokens", "3")
    assert code == 0
    rows = table_of(out / "probe.csv")
    assert len(rows) == sum(map(len, OURS.values()))
    for name, share in (("facts", 4), ("reasoning", 2), ("context", 2)):
        verdicts = [row["out/fixed verdict"] for row in rows if row["set"] == name]
        assert verdicts.count("right") * share == len(verdicts) == len(OURS[name])
    lines = [re.split("  +", line.strip()) for line in printed.out.splitlines()]
    assert lines[0] == ["facts (n = 60)", "reasoning (n = 64)", "context (n = 60)"]
    assert lines[1][0] == "out/deeper/random"
    assert lines[2] == ["out/fixed", "25.0% [15.8%, 37.2%]", "50.0% [38.1%, 61.9%]", "50.0% [37.7%, 62.3%]"]
    assert lines[3] == ["chance", "25.0%", "50.0%", "50.0%"]
    assert lines[4] == ["wrote out/probe.csv and probe.html; next: open the page to see what each model says"]
    for row in rows:
        lead = float(row["out/fixed lead"])
        assert row["out/fixed verdict"] == ("right" if lead > 0 else "nearly" if lead >= -NEARLY else "wrong")
    bars, table = page_data(out / "probe.html")["sections"][0]["parts"]
    chances = [(panel["title"], panel["marks"]["chance"]) for panel in bars["panels"]]
    assert chances == [("facts (n = 60)", 0.25), ("reasoning (n = 64)", 0.5), ("context (n = 60)", 0.5)]
    assert bars["panels"][0]["bars"][1][:2] == ["out/fixed", 0.25]
    assert table["models"] == ["out/deeper/random", "out/fixed"] and len(table["rows"]) == len(rows)
    for row, (*asked, answers) in zip(rows, table["rows"]):
        assert asked == [row[key] for key in ("set", "prompt", "right", "wrong")]
        assert answers == [
            [row[f"{model} {what}"] for what in ("verdict", "lead", "greedy")] for model in table["models"]
        ]
    assert {answers[0] for row in table["rows"] for answers in row[4]} == {"right", "nearly", "wrong"}


def test_the_table_as_markdown(out, probe_py):
    code, printed = probe_py("--model", "out/fixed", "--markdown", "--max_new_tokens", 1)
    lines = printed.out.splitlines()
    assert lines[0] == "|  | facts (n = 60) | reasoning (n = 64) | context (n = 60) |"
    assert lines[2].startswith("| out/fixed | 25.0% [15.8%, 37.2%] | 50.0% ")


@pytest.mark.parametrize(
    "args, place",
    [
        ((), "out/fixed"),  # the newest
        (("--model", "out/fixed/ckpt.pt"), "out/fixed"),
        (("out/deeper", "--model", "out/fixed"), "out/deeper"),
        (("out", "--out", "new/place"), "new/place"),
    ],
)
def test_where_the_tables_go(out, probe_py, tmp_path, args, place):
    (tmp_path / "mine.txt").write_text("Once upon\n")
    assert probe_py(*args, "--max_new_tokens", "1", "--prompts", "mine.txt")[0] == 0
    assert {path.parent for path in tmp_path.rglob("probe*")} == {tmp_path / place}


HOSTILE = "<script>document.title = 'broken'</script> & a \"cat\""


def test_plain_prompts_are_continued_and_not_judged(out, probe_py, tmp_path):
    (tmp_path / "mine.txt").write_text(f"Once upon\n{HOSTILE}\n")
    (tmp_path / "more.json").write_text('["There was"]')
    code, printed = probe_py("--model", "out/fixed", "--prompts", "mine.txt", "more.json", "--max_new_tokens", "4")
    assert code == 0 and len(printed.out.splitlines()) == 1
    rows = table_of(out / "fixed" / "probe-prompts.csv")
    assert [(row["set"], row["prompt"]) for row in rows] == [
        ("mine.txt", "Once upon"),
        ("mine.txt", HOSTILE),
        ("more.json", "There was"),
    ]
    assert all(row["out/fixed greedy"] and not row["out/fixed verdict"] and not row["out/fixed lead"] for row in rows)
    page = out / "fixed" / "probe-prompts.html"
    assert HOSTILE not in page.read_text()  # "<" is escaped in the data
    (table,) = page_data(page)["sections"][0]["parts"]  # no bars
    assert [prompt for _, prompt, *_ in table["rows"]] == ["Once upon", HOSTILE, "There was"]
    assert all(verdict == lead == "" for *_, ((verdict, lead, _),) in table["rows"])


def test_the_seeds_of_the_paper(out, probe_py):
    if not SEEDS.exists():
        pytest.skip("needs ../shared/data/seed-prompts")
    seeds = [str(SEEDS / f"{name}.json") for name in ("factual", "reasoning", "context")]
    assert probe_py("--model", "out/fixed", "--prompts", *seeds, "--max_new_tokens", "2")[0] == 0
    assert len(table_of(out / "fixed" / "probe-prompts.csv")) == 24


def test_prompts_of_ones_own_with_answers(out, probe_py, tmp_path):
    rows = [
        {"prompt": HOSTILE, "right": " <b>", "wrong": [" <i>", " a b"]},
        {"prompt": "A", "right": " b", "wrong": [" c"]},
    ]
    (tmp_path / "mine.jsonl").write_text("\n\n".join(map(json.dumps, rows)))
    code, printed = probe_py("--model", "out/fixed", "--prompts", "mine.jsonl", "--max_new_tokens", "2")
    assert code == 0 and "41.7%" in printed.out  # chance is (1/3 + 1/2) / 2
    first, second = table_of(out / "fixed" / "probe-prompts.csv")
    assert (first["right"], first["wrong"]) == (" <b>", " <i> | a b")
    bars, table = page_data(out / "fixed" / "probe-prompts.html")["sections"][0]["parts"]
    assert table["rows"][0][1:4] == [HOSTILE, " <b>", " <i> | a b"]
    assert bars["panels"][0]["marks"]["chance"] == pytest.approx(5 / 12)


GOOD = '{"prompt": "A", "right": " b", "wrong": [" c"]}\n'


def test_mistakes_get_one_line(out, probe_py, tmp_path):
    (tmp_path / "long.jsonl").write_text(
        GOOD + json.dumps({"prompt": "far " * 126 + "a", "right": " b", "wrong": [" c"]})
    )
    (tmp_path / "empty").mkdir()
    for args, message in (
        (["--model", "nowhere"], "nowhere: no such checkpoint"),
        (["empty"], "empty: no run below it; train one with `python train.py`"),
        (["--model", "api:gpt-3.5-turbo"], "OPENAI_API_KEY is not set"),
        (["--model", "out/fixed", "--prompts", "no.jsonl"], "no.jsonl: No such file or directory"),
        (["--model", "out/fixed", "--prompts", "empty"], "empty: Is a directory"),
        (["--model", "out/fixed", "--prompts", "long.jsonl"], 'the context, 128 tokens, is too short for "far far'),
    ):
        code, printed = probe_py(*args)
        assert str(code).startswith("probe.py: ") and message in code and "\n" not in code
        assert printed.out == ""
    assert probe_py("--max_new_tokens", "0")[0] == 2
    assert not list(tmp_path.rglob("probe*.*"))


def test_a_run_that_cannot_be_probed_is_left_out(out, probe_py):
    (out / "deeper" / "random" / "ckpt.pt").write_bytes(b"cut")
    save_run(out / "short", GPTNeo(GPTNeoConfig(vocab_size=3000, block_size=20, n_layer=1, n_head=1, n_embd=8)))
    broken = random_model()
    torch.nn.init.constant_(broken.ln_f.bias, float("nan"))
    save_run(out / "nan", broken)
    other = random_model()
    other.another_part = torch.nn.Linear(1, 1)
    save_run(out / "other", other)
    code, printed = probe_py("out", "--max_new_tokens", "1")
    assert code == 1
    assert [line.split(" is left out: ")[0] for line in printed.err.splitlines()] == [
        f"probe.py: out/{name}" for name in ("deeper/random", "nan", "other", "short")
    ]
    assert "out/fixed verdict" in table_of(out / "probe.csv")[0]
    shutil.rmtree(out / "fixed")
    assert probe_py("out")[0] == "probe.py: no model is left; nothing was written"


def test_an_endpoint_continues_plain_prompts_only(endpoint, probe_py, tmp_path):
    (tmp_path / "mine.txt").write_text("Once upon\nOne day\n")
    endpoint.fault = lambda number, request: ("say", f"after {request['messages'][-1]['content']}")
    assert "an endpoint gives no log-likelihoods" in probe_py("--model", "api:teacher")[0]
    assert probe_py("--model", "api:teacher", "--prompts", "mine.txt")[0] == 0
    assert {request["temperature"] for request in endpoint.requests} == {0}
    rows = table_of(tmp_path / "out" / "api--teacher" / "probe-prompts.csv")
    assert [row["api:teacher greedy"] for row in rows] == [" after Once upon", " after One day"]


@pytest.mark.slow
def test_a_full_disk_leaves_the_old_tables(out, tmp_path):
    """A limit on the size of files stands for it."""
    (out / "probe.csv").write_text("old")
    command = f"ulimit -f 4; exec {sys.executable} {ROOT / 'probe.py'} out --max_new_tokens 1"
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.splitlines()[-1].startswith("probe.py: ")
    assert "Traceback" not in done.stderr
    assert (out / "probe.csv").read_text() == "old" and len(list(out.iterdir())) == 3


SEEN = """
document.body.append(element("pre", {id: "seen"}, JSON.stringify({
  title: document.title, text: main.textContent, heads: [...main.querySelectorAll("th")].map((th) => th.textContent),
  cells: [...main.querySelectorAll("td")].map((td) => [td.className, td.textContent]),
  inside: main.querySelectorAll("script, td i, td b b").length, links: document.querySelectorAll("nav a").length,
  panels: document.querySelectorAll(".panel").length, headings: document.querySelectorAll("h1, h2").length,
})));
"""


def test_a_browser_shows_the_page_without_complaint(browser, out, probe_py, tmp_path):
    (tmp_path / "mine.jsonl").write_text(json.dumps({"prompt": HOSTILE, "right": " <b>", "wrong": [" <i>"]}))
    assert probe_py("out", "--prompts", "mine.jsonl", "--max_new_tokens", "5")[0] == 0
    page = out / "probe-prompts.html"
    assert not re.search("https?:|src=|@import|url\\(", page.read_text().split("<script")[0])
    document, console = browser(page, SEEN)
    seen = seen_in(document)
    assert console == [] and seen["title"] == "Answers to prompts" and seen["headings"] == 1
    assert seen["inside"] == seen["links"] == 0 and seen["panels"] == 1
    assert seen["heads"][1:] == ["out/deeper/random", "out/fixed"]
    asked, *answered = seen["cells"]
    assert asked[1] == f"{HOSTILE} <b>not <i>"
    rows = table_of(out / "probe-prompts.csv")
    for (verdict, text), model in zip(answered, seen["heads"][1:], strict=True):
        lead = float(rows[0][f"{model} lead"])
        assert verdict == rows[0][f"{model} verdict"] and text.endswith(f"{lead:+.2f}")
