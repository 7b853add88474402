"""grade.py and endpoint.py: the real client against a server that fails in every way, kills, and what is made of it."""

import asyncio
import collections
import csv
import email.utils
import json
import multiprocessing
import os
import random
import signal
import sys
import time

import pytest
from conftest import ROOT
from faulty_endpoint import serve
from test_controls import true_endings

import grade
from generation.api_client import Bill, Endpoint, Patience
from grade import Ledger

KEY = "sk-secret-0123456789"
HASTY = Patience(tries=8, first_pause=0.01, longest_pause=0.05, timeout=600)  # machines are busy


def write_samples(run, n_prompts: int, n: int, seed: int = 0, **facts):
    """As sample.py --eval would, of a model that writes true endings with some words lost."""
    rng, rows = random.Random(f"{run.name}/{seed}"), []
    for i, story in enumerate(true_endings(n_prompts)):
        for j in range(n):
            words = [word for word in story.completion.split(" ") if rng.random() < 0.9]
            row = dict(prompt_index=i, sample_index=j, prompt=story.prompt, reference=story.completion)
            rows.append(row | dict(completion=" ".join(words), finished=j % 2 == 0, model=f"out/{run.name}") | facts)
    run.mkdir(parents=True, exist_ok=True)
    (run / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def server():
    with serve() as server:
        yield server


@pytest.fixture
def grade_py(tmp_path, monkeypatch, server, capsys):
    """Runs grade.py in tmp_path, where out/a and out/b are: (exit code or message, what was printed)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    for name in "ab":
        write_samples(tmp_path / "out" / name, 5, 2)

    def call(*arguments, patience=HASTY, judge="rules"):
        arguments = [*arguments, "--judge", judge, "--base-url", server.url] if judge else arguments
        code = 0
        try:
            grade.main(["out", *arguments] if not arguments or arguments[0].startswith("-") else arguments, patience)
        except SystemExit as exit:
            code = exit.code
        return code, capsys.readouterr()

    return call


def records(run) -> list[dict]:
    """Those that are whole: a line may be cut by a kill or a full disk, and the next one begins behind it."""
    lines = (run / "grades.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines if line.endswith("}")]


def graded(tmp_path) -> dict[str, int]:
    """key -> how often it was given scores in one ledger, at the most."""
    counts = collections.Counter()
    for run in (tmp_path / "out").iterdir():
        if (run / "grades.jsonl").exists():
            of_run = collections.Counter(r["key"] for r in records(run) if r["scores"])
            counts |= of_run
    return counts


def table(tmp_path) -> list[dict]:
    with (tmp_path / "out" / "grades.csv").open(newline="") as file:
        return list(csv.DictReader(file))


# From samples to the table


def test_runs_are_graded_and_compared(grade_py, server, tmp_path):
    code, printed = grade_py("--controls", "--price-in", "1", "--price-out", "2")
    assert code == 0
    assert len(server.requests) == 2 * 5 * 2 + 4 * 5  # completions of both runs, and of each prompt four controls
    assert "rules: 40 of 40 gradings" in printed.out and "WARNING consistency: rules cannot tell" in printed.out
    assert "this call: $0.0" in printed.err
    rows = {(row["kind"], row["judge"], row["subject"], row["figure"]): row for row in table(tmp_path)}
    mean = rows["mean", "rules", "a", "grammar"]
    assert float(mean["low"]) <= float(mean["value"]) <= float(mean["high"]) and mean["prompts"] == "5"
    by_hand = [r["scores"]["grammar"] for r in records(tmp_path / "out" / "a") if r["kind"] == "completion"]
    assert float(mean["value"]) == pytest.approx(sum(by_hand) / 10)
    assert ("difference", "rules", "a - b", "plot") in rows and ("auc", "rules", "(cut off)", "grammar") in rows
    assert rows["mean", "", "a", "ended"]["value"] == "0.5"
    assert (tmp_path / "out" / "grades.png").stat().st_size > 1000
    record = records(tmp_path / "out" / "a")[0]
    assert json.loads(record["text"])["grammar"] == record["scores"]["grammar"] and record["tokens_in"] > 100
    assert sorted(path.name for path in (tmp_path / "out" / "a").iterdir()) == [
        ".grade.lock", "grades.jsonl", "samples.jsonl",
    ]  # fmt: skip


def test_the_judge_is_blind(grade_py, server):
    """No request says who wrote the completion, or whether it is a control; their order says nothing either."""
    grade_py("--controls", "--concurrency", "1")
    texts = [request["messages"][0]["content"] for request in server.requests]
    assert len(set(texts)) == 40
    for text in texts:
        assert not any(word in text for word in ("out/a", "out/b", "(true", "shuffled", "control", "model"))
    settings = {json.dumps({k: v for k, v in r.items() if k not in ("messages", "at")}) for r in server.requests}
    assert len(settings) == 1
    spoiled = {grade.question(story) for stories in grade.controls(true_endings(5)).values() for story in stories}
    is_control = [text in spoiled for text in texts]
    assert sum(is_control) == 20 and sum(a != b for a, b in zip(is_control, is_control[1:])) > 10


def test_nothing_is_asked_twice(grade_py, server, tmp_path):
    assert grade_py("--controls")[0] == 0
    asked = len(server.requests)
    code, printed = grade_py("--controls")
    assert code == 0 and len(server.requests) == asked and "40 of 40" in printed.out
    assert grade_py("out/b", "--controls")[0] == 0 and len(server.requests) == asked  # nor with one run alone
    write_samples(tmp_path / "out" / "c", 5, 2)
    assert grade_py("--controls")[0] == 0 and len(server.requests) == asked + 10
    assert grade_py("out/c", "--controls")[0] == 0 and len(server.requests) == asked + 10  # its controls were shared
    assert grade_py("--no-judge", judge=None)[0] == 0
    assert set(graded(tmp_path).values()) == {1}


def test_what_changed_is_graded_again_and_no_more(grade_py, server, tmp_path, monkeypatch):
    assert grade_py()[0] == 0
    assert len(server.requests) == 20
    rows = (tmp_path / "out" / "a" / "samples.jsonl").read_text().splitlines()
    changed = json.loads(rows[3]) | dict(completion=" was another one.")
    (tmp_path / "out" / "a" / "samples.jsonl").write_text("\n".join([*rows[:3], json.dumps(changed), *rows[4:]]) + "\n")
    assert grade_py()[0] == 0 and len(server.requests) == 21
    assert grade_py("--repeats", "2")[0] == 0 and len(server.requests) == 41
    assert grade_py(judge="other")[0] == 0 and len(server.requests) == 61
    assert grade_py("--temperature", "0")[0] == 0 and len(server.requests) == 81
    assert server.requests[-1]["temperature"] == 0 and "temperature" not in server.requests[0]
    monkeypatch.setattr("grading.judge.QUESTION", "Well?\n" + grade.question.__globals__["QUESTION"])
    assert grade_py()[0] == 0 and len(server.requests) == 101


def test_several_judges_and_their_agreement(grade_py, server, tmp_path):
    code, printed = grade_py("--judge", "first", judge="second")
    assert code == 0 and len(server.requests) == 40
    assert "Agreement of the judges: rank correlation" in printed.out
    rows = [row for row in table(tmp_path) if row["kind"] == "spearman"]
    assert {row["subject"] for row in rows} == {"first, second"} and float(rows[0]["value"]) == pytest.approx(1)


def test_instructions_are_graded_where_there_are_any(grade_py, server, tmp_path):
    write_samples(tmp_path / "out" / "b", 5, 2, instruction="Words: cat")
    says = json.dumps(dict(grammar=8, creativity=7, consistency=9, plot=6, age_group="C", instructions=2))
    server.fault = lambda number, request: ("say", says)
    assert grade_py()[0] == 0
    rows = [row for row in table(tmp_path) if row["figure"] == "instructions" and row["kind"] == "mean"]
    assert [(row["subject"], float(row["value"])) for row in rows] == [("b", 2.0)]


# Faults


def test_faults_that_pass(grade_py, server, tmp_path):
    faults = [
        ("status", 429),
        ("status", 429, {"Retry-After": "0.2"}),
        ("status", 500),
        ("status", 503),
        ("status", 408),
        ("drop",),
        ("hang", 60),
        ("raw", b'{"id": "0", "choi'),
        ("raw", b"\xff\xfe"),
        ("raw", b'{"error": "overloaded"}'),
        ("cut", b'{"id": "0", "choices"'),
        ("say", "I'm sorry, but I cannot do that."),
        ("say", None, "stop", "I cannot grade this."),
        ("say", None, "content_filter"),
        ("say", '{"assessment": "Good', "length"),
        ("say", "Grammar: eight, Creativity: 7, Consistency: 9, Plot: 6, Age group: C"),
        ("say", json.dumps(dict(grammar=11, creativity=7, consistency=9, plot=6, age_group="C"))),
    ]
    server.fault = lambda number, request: faults.pop() if number % 3 == 0 and faults else None
    code, printed = grade_py("--controls", patience=Patience(tries=8, replies=6, first_pause=0.01, timeout=3))
    assert code == 0 and not faults and "rules: 40 of 40 gradings\n" in printed.out
    assert len(graded(tmp_path)) == 40 and set(graded(tmp_path).values()) == {1}
    told = {r["failure"]: r["text"] for run in "ab" for r in records(tmp_path / "out" / run) if not r["scores"]}
    assert told["refused"] == "I cannot grade this." and "filtered" in told
    assert "cut off at 2000 tokens: raise --max-tokens" in told
    assert "grammar is 'eight', not a number from 0 to 10" in told
    assert "grammar is '11', not a number from 0 to 10" in told


def test_faults_that_stay_are_counted_and_asked_again_later(grade_py, server, tmp_path):
    story = grade.read_runs([tmp_path / "out"])[0][0].stories[0]
    bad = grade.question(story)
    server.fault = lambda number, request: ("say", "No.") if request["messages"][0]["content"] == bad else None
    code, printed = grade_py()
    assert code == 0 and "rules: 19 of 20 gradings; 1 failed and are not counted" in printed.out
    assert "rules, a, prompt 0, completion 0: no grammar, creativity" in printed.out
    assert len(server.requests) == 19 + HASTY.replies
    server.fault = lambda number, request: None
    code, printed = grade_py()
    assert "20 of 20 gradings\n" in printed.out and len(server.requests) == 20 + HASTY.replies


def test_controls_that_failed_are_named_by_their_prompt(grade_py, server, tmp_path):
    kinds = grade.controls(grade.read_runs([tmp_path / "out" / "a"])[0][0].true_endings)
    prompt = true_endings(5)[3].prompt
    bad = next(grade.question(story) for story in kinds["(cut off)"] if story.prompt == prompt)
    server.fault = lambda number, request: ("say", "No.") if request["messages"][0]["content"] == bad else None
    code, printed = grade_py("out/a", "--controls")
    assert code == 0 and "rules, a, prompt 3, (cut off): no grammar" in printed.out
    assert all("prompt_index" in record for record in records(tmp_path / "out" / "a"))


def test_retry_after_is_respected_by_all(grade_py, server):
    server.fault = lambda number, request: ("status", 429, {"Retry-After": "1"}) if number == 5 else None
    assert grade_py("--concurrency", "2")[0] == 0
    times = [request["at"] for request in server.requests]
    assert max(b - a for a, b in zip(times, times[1:])) > 0.9


def test_retry_after_holds_back_what_the_rate_has_queued():
    async def turns():
        endpoint, starts = Endpoint("http://127.0.0.1/v1", Bill(), HASTY, rate=1200), []

        async def turn():
            await endpoint.turn()
            starts.append(time.monotonic())

        waiting = [asyncio.create_task(turn()) for _ in range(4)]
        while not starts:
            await asyncio.sleep(0.001)
        asked = time.monotonic()
        endpoint.pause(0, 0.5)
        before = len(starts)
        await asyncio.gather(*waiting)
        return before, asked, starts

    before, asked, starts = asyncio.run(turns())
    assert before < 4 and all(start > asked + 0.5 for start in starts[before:])


def test_retry_after_may_be_a_date_and_too_far(grade_py, server, monkeypatch):
    date = email.utils.formatdate(time.time() + 4000, usegmt=True)
    server.fault = lambda number, request: ("status", 429, {"Retry-After": date})
    code, _ = grade_py()
    assert "asks to wait 3,99" in code or "asks to wait 4,000" in code
    date = email.utils.formatdate(time.time() - 10, usegmt=True)
    server.fault = lambda number, request: ("status", 429, {"Retry-After": date}) if number % 2 else None
    assert grade_py()[0] == 0


@pytest.mark.parametrize(
    "fault, hint",
    [
        (("status", 401, {}, f"Incorrect API key provided: {KEY}, known as sk-se***89."), "check OPENAI_API_KEY"),
        (("status", 403), "check OPENAI_API_KEY"),
        (("status", 404, {}, "no such model"), "check --judge and --base-url"),
        (("status", 402), "the account has nothing left"),
        (("status", 429, {}, "You exceeded your quota", "insufficient_quota"), "the account has nothing left"),
    ],
)
def test_what_no_patience_helps_stops_it_at_once(grade_py, server, tmp_path, fault, hint):
    server.fault = lambda number, request: fault
    code, printed = grade_py("--concurrency", "3")
    assert code.startswith("grade.py: rules at http://127.0.0.1") and code.endswith(hint) and "\n" not in code
    assert len(server.requests) <= 3 and printed.out == ""
    assert KEY not in code + printed.err and "sk-se***" not in code


@pytest.mark.parametrize("answer, what", [(b"<html>Hi</html>", "not JSON"), (b'{"id": "0"}', "no completion")])
def test_what_is_no_endpoint_is_not_asked_for_ever(grade_py, server, answer, what):
    server.fault = lambda number, request: ("raw", answer)
    code, _ = grade_py(patience=Patience(tries=2, first_pause=0.01))
    assert what in code and "is that the URL of an OpenAI-compatible endpoint? Most end in /v1; 5 in a row" in code
    assert len(server.requests) < 40


def test_the_key_is_nowhere(grade_py, server, tmp_path):
    """Even if the endpoint says it again."""
    says = json.dumps(
        dict(assessment=f"Your key is {KEY}", grammar=8, creativity=7, consistency=9, plot=6, age_group="C")
    )
    faults = {2: ("say", f"Key: {KEY}"), 3: ("status", 400, {}, f"bad key {KEY}"), 4: ("say", says)}
    server.fault = lambda number, request: faults.get(number)
    code, printed = grade_py("--controls")
    assert code == 0 and server.requests[0]["key"] == f"Bearer {KEY}"
    kept = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert len(kept) >= 6 and not any(KEY.encode() in data for data in kept)
    assert KEY not in printed.out + printed.err
    assert any(
        "Your key is [key]" in (r["text"] or "")
        for r in records(tmp_path / "out" / "a") + records(tmp_path / "out" / "b")
    )


def test_a_password_in_the_url_is_nowhere(grade_py, server, tmp_path):
    def grade_at(login, *arguments):
        url = server.url.replace("//", f"//{login}@") + "?key=k3y"
        return grade_py("out/a", "--judge", "rules", "--base-url", url, *arguments, judge=None)

    printed = [grade_at("me:s3cret", "--dry-run"), grade_at("me:s3cret")]
    assert printed[1][0] == 0 and "requests to http://127.0.0.1" in printed[0][1].out
    kept = (tmp_path / "out" / "a" / "grades.jsonl").read_text()
    assert '"http://127.0.0.1' in kept and not any(word in f"{printed}{kept}" for word in ("s3cret", "k3y"))
    assert len(server.requests) == 10
    assert grade_at("me:another")[0] == 0 and len(server.requests) == 10  # the same endpoint: nothing is asked again
    assert "s3cret" not in str(grade_py("out/a", "--judge", "rules", "--base-url", "me:s3cret@host", judge=None))


def test_an_endpoint_without_schemas_or_newer_names_is_asked_otherwise(grade_py, server):
    unknown = {"response_format", "max_completion_tokens"}
    server.fault = lambda number, request: ("status", 400) if unknown & set(request) else None
    assert grade_py("--concurrency", "1")[0] == 0
    assert len(server.requests) == 20 + 3 and "max_tokens" in server.requests[-1]
    server.requests.clear()
    unknown.discard("max_completion_tokens")
    assert grade_py("--repeats", "2", "--concurrency", "1")[0] == 0
    assert "response_format" in server.requests[0] and "response_format" not in server.requests[-1]


# Time and money


def test_a_rate_is_kept(grade_py, server):
    assert grade_py("out/a", "--rate", "1200", "--concurrency", "8")[0] == 0
    times = sorted(request["at"] for request in server.requests)
    assert len(times) == 10 and times[-1] - times[0] > 0.8 * 9 / 20


def test_it_stops_before_it_costs_too_much(grade_py, server):
    prices = ("--price-in", "100", "--price-out", "1000", "--max-tokens", "100")
    code, printed = grade_py(*prices, "--max-cost", "1.5")
    assert code.startswith("grade.py: stopped before --max-cost 1.5")
    spent = float(printed.err.split("this call: $")[1].split()[0])
    assert 0.5 < spent <= 1.5 and f"rules: {len(server.requests)} of 20 gradings" in printed.out
    n = len(server.requests)
    assert 0 < n < 20 and grade_py(*prices)[0] == 0 and len(server.requests) == 20


def test_requests_that_were_lost_count_as_paid(grade_py, server):
    server.fault = lambda number, request: ("drop",)
    code, printed = grade_py("--price-in", "100", "--price-out", "1000", "--max-tokens", "100", "--max-cost", "2")
    assert code.startswith("grade.py: stopped before --max-cost 2") and len(server.requests) < 12


def test_a_refused_connection_costs_nothing(grade_py, server):
    server.server_close()
    code, printed = grade_py(
        "--price-in", "100", "--price-out", "1000", "--max-cost", "5", patience=Patience(tries=2, first_pause=0.01)
    )
    assert code.endswith("Connection error.; 5 in a row came to nothing") and "this call: $0.0000" in printed.err


def test_a_bill():
    bill = Bill(2.0, 8.0, limit=1.0)
    bill.tokens_in, bill.tokens_out = 100_000, 50_000
    assert bill.spent == pytest.approx(0.6) and bill.allows(0.4 - 1e-9) and not bill.allows(0.41)
    bill.reserved = 0.2
    assert not bill.allows(0.3) and str(bill) == "$0.6000" and str(Bill()) == "0 tokens in, 0 out"


def test_a_dry_run_asks_nothing_and_needs_no_key(grade_py, server, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY")
    code, printed = grade_py("--controls", "--dry-run", "--price-in", "1", "--price-out", "2")
    assert code == 0 and server.requests == []
    assert "40 requests to http://127.0.0.1" in printed.out and "$0.0" in printed.out
    request = json.loads(printed.out[printed.out.index("{\n") : printed.out.rindex("}") + 1])
    grade_py("--controls", "--concurrency", "1")
    first = {key: value for key, value in server.requests[0].items() if key not in ("key", "at")}
    assert first["messages"][0].pop("content") in printed.out
    del request["messages"][0]["content"]
    assert first == request


# What is kept, through kills and damage


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
    assert ("1 line(s) cut short" in capsys.readouterr().out) == (not has_c)
    ledger.append(record | dict(key="d"))
    ledger.append(record | dict(key="e", scores=None, failure="refused"))
    again = Ledger(path)
    assert set(again.scores) == set(ledger.scores) and again.failures == {"e": "refused"}
    assert [again.record(key)["key"] for key in again.scores] == list(again.scores)
    again.append(record | dict(key="e"))
    assert "e" in again.scores and again.failures == {}


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
                assert all(said[name] == record["scores"][name] for name in grade.scoreboard.SCORES)


def test_a_thousand_gradings_under_random_faults(grade_py, server, tmp_path):
    for name in "ab":
        write_samples(tmp_path / "out" / name, 50, 8)
    server.fault = one_in_five(0)
    arguments = ("--controls", "--concurrency", "16")
    code, printed = grade_py(*arguments, patience=Patience(tries=12, replies=12, first_pause=0.005, longest_pause=0.05))
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
    grade.main(arguments, Patience(tries=12, replies=12, first_pause=0.005, longest_pause=0.05, timeout=600))


@pytest.fixture
def start(grade_py, server, tmp_path):
    os.environ["PYTHONPATH"] = str(ROOT)  # for the fork server, which starts with the first process

    def start(*arguments):
        arguments = ["out", "--judge", "rules", "--base-url", server.url, *arguments]
        process = CONTEXT.Process(target=grade_in, args=(tmp_path, arguments, tmp_path / "said"), daemon=True)
        process.start()
        return process

    return start


def wait_for_requests(server, n: int, process):
    while len(server.requests) < n:
        assert process.is_alive()
        time.sleep(0.005)


def test_killed_again_and_again(start, grade_py, server, tmp_path):
    """What was on its way at a kill is asked for again, and nothing else: SIGKILL at any moment loses only that."""
    for name in "ab":
        write_samples(tmp_path / "out" / name, 25, 4)
    server.fault = one_in_five(1)
    for n in (40, 100, 170):
        process = start("--controls")
        wait_for_requests(server, n, process)
        process.kill()
        process.join()
    before = graded(tmp_path)
    assert 80 < len(before) < 300
    server.fault = lambda number, request: None
    server.requests.clear()
    code, printed = grade_py("--controls")
    assert code == 0 and len(server.requests) == 300 - len(before)
    assert_whole(tmp_path, 300)


def test_two_at_a_time_are_refused(start, grade_py, server, tmp_path):
    server.fault = lambda number, request: ("hang", 30)
    process = start()
    wait_for_requests(server, 1, process)
    code, _ = grade_py("out/b")
    assert code.startswith("grade.py: ") and code.endswith("out/b: another grade.py is at work there; let it end")
    process.kill()
    process.join()
    server.over.set()
    server.fault = lambda number, request: None
    assert grade_py("out/b")[0] == 0


def test_ctrl_c_keeps_the_replies_that_are_on_their_way(start, server, tmp_path):
    arrived = []

    def slowly(number, request):
        arrived.append(number)
        while len(arrived) < 8 or not interrupted:
            time.sleep(0.01)

    interrupted = []
    server.fault = slowly
    process = start()
    wait_for_requests(server, 8, process)
    os.kill(process.pid, signal.SIGINT)
    while "stopping when the replies on their way are here" not in (tmp_path / "said").read_text():
        time.sleep(0.01)
    interrupted.append(True)
    process.join(60)
    assert process.exitcode == 1 and "every reply that came is kept" in (tmp_path / "said").read_text()
    assert len(graded(tmp_path)) == 8 == len(server.requests)


def test_a_full_disk_loses_nothing(grade_py, server, tmp_path):
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
    server.requests.clear()
    assert grade_py()[0] == 0 and len(server.requests) == 20 - had
    assert_whole(tmp_path, 20)


# The command line


def test_without_a_judge(grade_py, server, tmp_path):
    code, printed = grade_py("--no-judge", judge=None)
    assert code == 0 and server.requests == []
    assert "(true ending)" in printed.out and "ended %" in printed.out
    assert {row["judge"] for row in table(tmp_path)} == {""}
    assert not (tmp_path / "out" / "a" / "grades.jsonl").exists()


def test_runs_of_one_name_stay_apart(grade_py, tmp_path):
    for run in ("x", "x/x", "y/x"):
        write_samples(tmp_path / "out" / run, 3, 1)
    for directories, names in (
        (("out/x", "out/y/x"), {"x", "x/x", "y/x"}),
        (("out/x",), {".", "x"}),
        (("out/y/x",), {"x"}),
    ):
        runs, common = grade.read_runs([tmp_path / directory for directory in directories])
        assert {run.name for run in runs} == names and len(runs) == len(names)
    assert grade_py("out/x", "--no-judge", judge=None)[0] == 0
    with (tmp_path / "out" / "x" / "grades.csv").open(newline="") as file:
        subjects = [row["subject"] for row in csv.DictReader(file) if row["figure"] == "loss"]
    assert sorted(subjects) == [".", "x"]


def test_words_unknown_to_the_corpus(grade_py, data_dir, tmp_path):
    (tmp_path / "out" / "a" / "config.json").write_text(json.dumps(dict(data_dir=str(data_dir), data="tiny")))
    (tmp_path / "out" / "b" / "config.json").write_text(json.dumps(dict(data_dir="data", data="gone")))
    (tmp_path / "out" / "a" / "log.csv").write_text("step,val_loss,bpb\n10,2.5,0.9\n")
    code, printed = grade_py("--no-judge", judge=None)
    assert code == 0 and "data/gone: no such corpus here" in printed.out
    found = {(row["subject"], row["figure"]): row["value"] for row in table(tmp_path)}
    assert float(found["a", "unknown"]) > 0.3 and ("b", "unknown") not in found
    assert found["a", "loss"] == "2.5" and found["b", "loss"] == ""
    assert grade_py("--no-judge", "--data", str(data_dir / "tiny"), judge=None)[0] == 0
    assert ("b", "unknown") in {(row["subject"], row["figure"]) for row in table(tmp_path)}


def test_a_corpus_that_is_none_is_noticed_before_the_judge_is_paid(grade_py, server):
    code, _ = grade_py("--data", "nowhere")
    assert code.startswith("grade.py: nowhere/meta.json: cannot be read") and server.requests == []


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("out",), "name a --judge MODEL, or say --no-judge"),
        (("out", "--judge", "x", "--no-judge"), "name a --judge MODEL, or say --no-judge"),
        (("out", "--judge", "x", "--max-cost", "1"), "--max-cost needs --price-in and --price-out"),
        (("out", "--judge", "x", "--price-in", "1"), "--price-in and --price-out belong together"),
        (("out", "--judge", "x", "--repeats", "0"), "--repeats must be at least 1, not 0"),
        (("out", "--judge", "x", "--rate", "0"), "--rate must be above 0"),
        (("nowhere", "--no-judge"), "grade.py: nowhere: no such directory"),
        (("empty", "--no-judge"), "grade.py: empty: no samples.jsonl below; `python sample.py --eval 50` writes one"),
        (("odd", "--no-judge"), "odd/samples.jsonl: its lines are not the prompts and completions"),
        (("plain", "--judge", "x", "--controls"), "--controls needs true endings"),
        (("out", "--judge", "x"), "OPENAI_API_KEY is not set"),
    ],
)
def test_mistakes_are_named_in_one_line(grade_py, tmp_path, monkeypatch, arguments, message):
    monkeypatch.delenv("OPENAI_API_KEY")
    (tmp_path / "empty").mkdir()
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "samples.jsonl").write_text('{"prompt_index": 0, "sample_index": 0}\n')
    write_samples(tmp_path / "plain", 2, 1, reference=None)
    code, printed = grade_py(*arguments, judge=None)
    complaint = code if isinstance(code, str) else printed.err.splitlines()[-1]
    assert message in complaint and "\n" not in complaint


def test_a_key_that_is_none(grade_py, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-two words")
    assert "copy it anew" in grade_py()[0]
    monkeypatch.setenv("OPENAI_API_KEY", KEY + "\n")
    assert grade_py()[0] == 0
