"""grades.jsonl: what is kept through kills, damage, full disks and a thousand random faults."""

import csv
import json
import multiprocessing
import os
import random
import signal
import sys
import time
from dataclasses import replace

import pytest
from conftest import ROOT
from grade_fixtures import KEY, graded, records, table, write_samples

import grade
from generation.api_client import RetryPolicy
from grading import judge_questions
from grading.judge_questions import PROTOCOLS
from grading.ledger import Ledger
from grading.rubrics import SCORES


@pytest.mark.parametrize("cut", [1, 30, -1])
def test_a_ledger_whose_last_line_was_cut(tmp_path, capsys, cut):
    path, record = tmp_path / "grades.jsonl", dict(judge="j", failure=None, tokens_out=5, scores=dict(grammar=1.0))
    ledger = Ledger(path)
    for key in "abc":
        ledger.append(record | dict(key=key))
    whole = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(whole[:2]) + whole[2][:cut])
    ledger = Ledger(path)
    has_c = cut == -1  # only the end of the line is missing
    assert set(ledger.scores) == ({"a", "b", "c"} if has_c else {"a", "b"})
    assert ("ignored 1 line(s) that are cut short" in capsys.readouterr().out) == (not has_c)
    ledger.append(record | dict(key="d"))
    ledger.append(record | dict(key="e", scores=None, failure="refused"))
    again = Ledger(path)
    assert set(again.scores) == set(ledger.scores) and again.failures == {"e": "refused"}
    assert [again.record(key)["key"] for key in again.scores] == list(again.scores)
    again.append(record | dict(key="e"))
    assert "e" in again.scores and again.failures == {}


def test_the_ledger_says_who_graded_what_and_how(grade_py, api, tmp_path):
    """And a table of several models behind one name says that it is one."""
    assert "WARNING several" not in grade_py("out/a", "--temperature", "0.5")[1].out
    kept = records(tmp_path / "out" / "a")
    assert {(r["model"], r["temperature"]) for r in kept} == {("rules", 0.5)}
    assert len({r["text_sha256"] for r in kept}) == 10 and all(len(r["text_sha256"]) == 64 for r in kept)
    grades = dict(grammar=8, creativity=7, consistency=9, plot=6, age_group="C")
    api.fault = lambda number, request: ("say", json.dumps(grades))  # as the model "m"
    code, printed = grade_py("--temperature", "0.5")
    assert code == 0 and len(api.requests) == 20
    assert "WARNING several models have answered as rules: " in printed.out
    assert "rules (10)" in printed.out and "m (10)" in printed.out


def test_a_ledger_of_an_earlier_version_is_reused(grade_py, api, tmp_path):
    assert grade_py()[0] == 0
    for run in "ab":
        new = ("model", "temperature", "text_sha256", "question_sha256")
        old = [{key: value for key, value in r.items() if key not in new} for r in records(tmp_path / "out" / run)]
        (tmp_path / "out" / run / "grades.jsonl").write_text("".join(json.dumps(record) + "\n" for record in old))
    code, printed = grade_py()
    assert code == 0 and len(api.requests) == 20 and "rules: 20 of 20 gradings\n" in printed.out


def judges_in(tmp_path) -> dict[str, set[str]]:
    """judge -> the runs in its rows of grades.csv."""
    rows = [row for row in table(tmp_path) if row["judge"] and row["kind"] == "mean" and row["subject"] in ("a", "b")]
    return {judge: {row["subject"] for row in rows if row["judge"] == judge} for judge in {r["judge"] for r in rows}}


def test_what_was_asked_in_several_ways_stays_apart(tables_only, grade_py, api, tmp_path, monkeypatch):
    """Temperatures, and questions of other versions, stay in the table, each by itself; those changed since do not."""
    assert grade_py("out/a", "--temperature", "0.7")[0] == 0
    earlier = records(tmp_path / "out" / "a")
    with monkeypatch.context() as patch:
        patch.setitem(PROTOCOLS, "ours", replace(PROTOCOLS["ours"], turns=("Well?\n" + judge_questions.OURS,)))
        assert grade_py()[0] == 0
    version = records(tmp_path / "out" / "b")[0]["question_sha256"]
    assert version != earlier[0]["question_sha256"] and len(version) == 64
    grades = dict(grammar=1, creativity=1, consistency=1, plot=1, age_group="A")
    api.fault = lambda number, request: ("say", json.dumps(grades))
    code, printed = grade_py()
    today = "rules (the API's temperature, today's question)"
    expected = {
        today: {"a", "b"},
        f"rules (the API's temperature, earlier question {version[:6]})": {"a", "b"},
        "rules (temperature 0.7, today's question)": {"a"},
    }
    assert code == 0 and judges_in(tmp_path) == expected and f"{today}: 20 of 20 gradings\n" in printed.out
    means = {
        (row["judge"], row["figure"]): float(row["value"])
        for row in table(tmp_path)
        if row["subject"] == "a" and row["kind"] == "mean" and row["judge"]
    }
    by_hand = [record["scores"]["plot"] for record in earlier]
    assert means["rules (temperature 0.7, today's question)", "plot"] == pytest.approx(sum(by_hand) / 10, rel=1e-5)
    assert means[today, "plot"] == 1
    before = table(tmp_path)
    code, printed = grade_py("--no_judge", judge=None)
    assert (
        sorted(map(str, table(tmp_path))) == sorted(map(str, before))
        and "10 of 10 gradings, as recorded" in printed.out
    )
    write_samples(tmp_path / "out" / "a", 5, 2, seed=1)
    code, printed = grade_py("--no_judge", judge=None)
    assert all(runs == {"b"} for runs in judges_in(tmp_path).values())
    assert "30 earlier grades are left out: their completions are no longer in samples.jsonl" in printed.out


@pytest.mark.parametrize("temperature", ["0.3", "2"])
def test_a_temperature_that_an_earlier_version_did_not_record(tables_only, grade_py, api, tmp_path, temperature):
    assert grade_py("out/a", "--temperature", temperature)[0] == 0
    new = ("model", "temperature", "text_sha256", "question_sha256")
    old = [{key: value for key, value in r.items() if key not in new} for r in records(tmp_path / "out" / "a")]
    (tmp_path / "out" / "a" / "grades.jsonl").write_text("".join(json.dumps(record) + "\n" for record in old))
    assert grade_py("out/a")[0] == 0 and len(api.requests) == 20
    code, printed = grade_py("--no_judge", judge=None)
    for how in (f"temperature {temperature}", "the API's temperature"):
        assert f"rules ({how}): 10 of 10 gradings, as recorded earlier" in printed.out


def test_repeats_of_which_one_has_no_age(grade_py, api, tmp_path):
    grades = dict(grammar=8, creativity=7, consistency=9, plot=6)
    says = [json.dumps(grades), json.dumps(grades | dict(age_group="C"))]
    api.fault = lambda number, request: ("say", says[number % 2])
    assert grade_py("out/a", "--repeats", "2")[0] == 0 and len(api.requests) == 20
    with (tmp_path / "out" / "a" / "grades.csv").open(newline="") as file:
        means = {row["figure"]: row["value"] for row in csv.DictReader(file) if row["kind"] == "mean" and row["judge"]}
    assert float(means["age"]) == 6.5 and float(means["plot"]) == 6


def one_in_five(seed: int):
    """Random faults, which the number of the request decides."""
    kinds = [("status", 429), ("status", 429, {"Retry-After": "0.01"}), ("status", 500), ("drop",), ("hang", 0.3),
             ("raw", b'{"id": "0", "cho'), ("cut", b"{"), ("say", "No."), ("say", None, "stop", "I cannot."),
             ("say", '{"gramm', "length"), ("say", "[11, 7, 9, 6, C]"), ("say", "[eight, 7, 9, 6, 5]")]  # fmt: skip

    def fault(number, request):
        rng = random.Random(f"{seed}/{number}")
        return rng.choice(kinds) if rng.random() < 0.2 else None

    return fault


def assert_whole(tmp_path, n: int):
    """None lost, none double, each with the scores that the judge gives to just that story."""
    assert len(graded(tmp_path)) == n and set(graded(tmp_path).values()) == {1}
    for run in "ab":
        for record in records(tmp_path / "out" / run):
            if record["scores"]:
                said = json.loads(record["text"])
                assert all(said[name] == record["scores"][name] for name in SCORES)


@pytest.mark.slow
def test_a_thousand_gradings_under_random_faults(grade_py, api, tmp_path):
    for name in "ab":
        write_samples(tmp_path / "out" / name, 50, 8)
    api.fault = one_in_five(0)
    arguments = ("--controls", "--concurrency", "16")
    code, printed = grade_py(
        *arguments, retries=RetryPolicy(attempts=12, replies=12, first_delay=0.005, longest_delay=0.05)
    )
    assert code == 0 and "rules: 1,000 of 1,000 gradings\n" in printed.out
    assert_whole(tmp_path, 1000)
    for run in "ab":
        by_place = {
            (r["prompt_index"], r["sample_index"]): r
            for r in records(tmp_path / "out" / run)
            if r["kind"] == "completion"
        }
        assert len(by_place) == 400


CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["grade"])


def grade_in(directory, arguments: list[str], output):
    """grade.py ARGUMENTS in a process of its own, forked from one that has imported everything."""
    os.chdir(directory)
    os.environ["OPENAI_API_KEY"] = KEY
    with output.open("a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.stdout, sys.stderr = open(1, "w", 1, closefd=False), open(2, "w", 1, closefd=False)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the fork server ignores it
    grade.main(arguments, RetryPolicy(attempts=12, replies=12, first_delay=0.005, longest_delay=0.05))


@pytest.fixture
def start(grade_py, api, tmp_path):
    os.environ["PYTHONPATH"] = str(ROOT)  # for the fork server, which starts with the first process

    def start(*arguments):
        arguments = ["out", "--judge", "rules", "--base_url", api.url, "--timeout", "600", *arguments]
        process = CONTEXT.Process(target=grade_in, args=(tmp_path, arguments, tmp_path / "said"), daemon=True)
        process.start()
        return process

    return start


def wait_for_requests(api, n: int, process):
    while len(api.requests) < n:
        assert process.is_alive()
        time.sleep(0.005)


@pytest.mark.slow
def test_killed_again_and_again(start, grade_py, api, tmp_path):
    """What was on its way at a kill is asked for again, and nothing else: SIGKILL at any moment loses only that."""
    for name in "ab":
        write_samples(tmp_path / "out" / name, 25, 4)
    api.fault = one_in_five(1)
    for n in (40, 100, 170):
        process = start("--controls")
        wait_for_requests(api, n, process)
        process.kill()
        process.join()
    before = graded(tmp_path)
    assert 80 < len(before) < 300
    api.fault = lambda number, request: None
    api.requests.clear()
    code, printed = grade_py("--controls")
    assert code == 0 and len(api.requests) == 300 - len(before)
    assert_whole(tmp_path, 300)


def test_two_at_a_time_are_refused(start, grade_py, api, tmp_path):
    api.fault = lambda number, request: ("hang", 30)
    process = start()
    wait_for_requests(api, 1, process)
    code, _ = grade_py("out/b")
    assert code.startswith("grade.py: ") and code.endswith("out/b: another grade.py is running there; let it finish")
    process.kill()
    process.join()
    api.over.set()
    api.fault = lambda number, request: None
    assert grade_py("out/b")[0] == 0


def test_ctrl_c_keeps_the_replies_that_are_on_their_way(start, api, tmp_path):
    arrived = []

    def slowly(number, request):
        arrived.append(number)
        while len(arrived) < 8 or not interrupted:
            time.sleep(0.01)

    interrupted = []
    api.fault = slowly
    process = start()
    wait_for_requests(api, 8, process)
    os.kill(process.pid, signal.SIGINT)
    while "finishing requests in flight; Ctrl-C again quits" not in (tmp_path / "said").read_text():
        time.sleep(0.01)
    interrupted.append(True)
    process.join(60)
    assert process.exitcode == 1 and "every reply so far is kept" in (tmp_path / "said").read_text()
    assert len(graded(tmp_path)) == 8 == len(api.requests)


def test_a_full_disk_loses_nothing(grade_py, api, tmp_path):
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, hard))
    code, _ = grade_py("--concurrency", "1")
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    signal.signal(signal.SIGXFSZ, handler)
    assert code.startswith("grade.py: ") and "make room" in code and "\n" not in code
    had = len(graded(tmp_path))
    assert 0 < had < 20
    api.requests.clear()
    assert grade_py()[0] == 0 and len(api.requests) == 20 - had
    assert_whole(tmp_path, 20)
