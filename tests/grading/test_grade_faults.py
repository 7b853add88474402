"""grade.py and the API client: the real client against a server that fails in every way; time and money."""

import asyncio
import email.utils
import json
import time

import pytest
from grade_fixtures import HASTY, KEY, graded, records, true_endings

from generation.api_client import ApiClient, Budget, RetryPolicy
from grading.judge_controls import make_controls
from grading.judge_questions import PROTOCOLS
from grading.ledger import read_runs

# Faults


def test_faults_that_pass(grade_py, api, tmp_path):
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
    api.fault = lambda number, request: faults.pop() if number % 3 == 0 and faults else None
    code, printed = grade_py(
        "--controls", "--timeout", "3", retries=RetryPolicy(attempts=8, replies=6, first_delay=0.01)
    )
    assert code == 0 and not faults and "rules: 40 of 40 gradings\n" in printed.out
    assert len(graded(tmp_path)) == 40 and set(graded(tmp_path).values()) == {1}
    told = {r["failure"]: r["text"] for run in "ab" for r in records(tmp_path / "out" / run) if not r["scores"]}
    assert told["refused"] == "I cannot grade this." and "filtered" in told
    assert "cut off at 2000 tokens: raise --max_tokens" in told
    assert "grammar is 'eight', not a number from 0 to 10" in told
    assert "grammar is '11', not a number from 0 to 10" in told


def test_faults_that_stay_are_counted_and_asked_again_later(grade_py, api, tmp_path):
    story = read_runs([tmp_path / "out"])[0][0].stories[0]
    bad = PROTOCOLS["ours"].text(story)
    api.fault = lambda number, request: ("say", "No.") if request["messages"][0]["content"] == bad else None
    code, printed = grade_py()
    assert code == 0 and "rules: 19 of 20 gradings; 1 failed and are not counted" in printed.out
    assert "rules, a, prompt 0, completion 0: no grammar, creativity" in printed.out
    assert len(api.requests) == 19 + HASTY.replies
    api.fault = lambda number, request: None
    code, printed = grade_py()
    assert "20 of 20 gradings\n" in printed.out and len(api.requests) == 20 + HASTY.replies


def test_controls_that_failed_are_named_by_their_prompt(grade_py, api, tmp_path):
    kinds = make_controls(read_runs([tmp_path / "out" / "a"])[0][0].true_endings)
    prompt = true_endings(5)[3].prompt
    bad = next(PROTOCOLS["ours"].text(story) for story in kinds["(cut off)"] if story.prompt == prompt)
    api.fault = lambda number, request: ("say", "No.") if request["messages"][0]["content"] == bad else None
    code, printed = grade_py("out/a", "--controls")
    assert code == 0 and "rules, a, prompt 3, (cut off): no grammar" in printed.out
    assert all("prompt_index" in record for record in records(tmp_path / "out" / "a"))


def test_retry_after_is_respected_by_all(grade_py, api):
    api.fault = lambda number, request: ("status", 429, {"Retry-After": "1"}) if number == 5 else None
    assert grade_py("--concurrency", "2")[0] == 0
    times = [request["at"] for request in api.requests]
    assert max(b - a for a, b in zip(times, times[1:])) > 0.9


def test_retry_after_holds_back_what_the_rate_has_queued():
    async def turns():
        client, starts = ApiClient("http://127.0.0.1/v1", rate=1200), []

        async def turn():
            await client.wait_for_turn()
            starts.append(time.monotonic())

        waiting = [asyncio.create_task(turn()) for _ in range(4)]
        while not starts:
            await asyncio.sleep(0.001)
        asked = time.monotonic()
        client.delay(0, 0.5)
        before = len(starts)
        await asyncio.gather(*waiting)
        return before, asked, starts

    before, asked, starts = asyncio.run(turns())
    assert before < 4 and all(start > asked + 0.5 for start in starts[before:])


def test_retry_after_may_be_a_date_and_too_far(grade_py, api, monkeypatch):
    date = email.utils.formatdate(time.time() + 4000, usegmt=True)
    api.fault = lambda number, request: ("status", 429, {"Retry-After": date})
    code, _ = grade_py()
    assert "asks to wait 3,99" in code or "asks to wait 4,000" in code
    date = email.utils.formatdate(time.time() - 10, usegmt=True)
    api.fault = lambda number, request: ("status", 429, {"Retry-After": date}) if number % 2 else None
    assert grade_py()[0] == 0


@pytest.mark.parametrize(
    "fault, hint",
    [
        (("status", 401, {}, f"Incorrect API key provided: {KEY}, known as sk-se***89."), "check OPENAI_API_KEY"),
        (("status", 403, {}, "Country, region, or territory not supported"), "check OPENAI_API_KEY"),
        (("status", 403, {}, "Your account was flagged; this key has no access"), "check OPENAI_API_KEY"),
        (("status", 404, {}, "no such model"), "check the name of the model, and --base_url"),
        (("status", 402), "the account has no credit left"),
        (("status", 429, {}, "You exceeded your quota", "insufficient_quota"), "the account has no credit left"),
    ],
)
def test_what_no_retry_helps_stops_it_at_once(grade_py, api, tmp_path, fault, hint):
    api.fault = lambda number, request: fault
    code, printed = grade_py("--concurrency", "3")
    assert code.startswith("grade.py: rules at http://127.0.0.1") and code.endswith(hint) and "\n" not in code
    assert len(api.requests) <= 3 and printed.out == ""
    assert KEY not in code + printed.err and "sk-se***" not in code


@pytest.mark.parametrize("answer, what", [(b"<html>Hi</html>", "not JSON"), (b'{"id": "0"}', "not a completion")])
def test_what_is_no_endpoint_is_not_asked_for_ever(grade_py, api, answer, what):
    api.fault = lambda number, request: ("raw", answer)
    code, _ = grade_py(retries=RetryPolicy(attempts=2, first_delay=0.01))
    assert what in code and "is that the URL of an OpenAI-compatible endpoint? Most end in /v1; 5 consecutive" in code
    assert len(api.requests) < 40


def test_the_key_is_nowhere(grade_py, api, tmp_path):
    """Even if the endpoint says it again."""
    says = json.dumps(
        dict(assessment=f"Your key is {KEY}", grammar=8, creativity=7, consistency=9, plot=6, age_group="C")
    )
    faults = {2: ("say", f"Key: {KEY}"), 3: ("status", 400, {}, f"bad key {KEY}"), 4: ("say", says)}
    api.fault = lambda number, request: faults.get(number)
    code, printed = grade_py("--controls")
    assert code == 0 and api.requests[0]["key"] == f"Bearer {KEY}"
    kept = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert len(kept) >= 6 and not any(KEY.encode() in data for data in kept)
    assert KEY not in printed.out + printed.err
    assert any(
        "Your key is [key]" in (r["text"] or "")
        for r in records(tmp_path / "out" / "a") + records(tmp_path / "out" / "b")
    )


def test_a_password_in_the_url_is_nowhere(grade_py, api, tmp_path):
    def grade_at(login, *arguments):
        url = api.url.replace("//", f"//{login}@") + "?key=k3y"
        return grade_py("out/a", "--judge", "rules", "--base_url", url, *arguments, judge=None)

    printed = [grade_at("me:s3cret", "--dry_run"), grade_at("me:s3cret")]
    assert printed[1][0] == 0 and "requests to http://127.0.0.1" in printed[0][1].out
    kept = (tmp_path / "out" / "a" / "grades.jsonl").read_text()
    assert '"http://127.0.0.1' in kept and not any(word in f"{printed}{kept}" for word in ("s3cret", "k3y"))
    assert len(api.requests) == 10
    assert grade_at("me:another")[0] == 0 and len(api.requests) == 10  # the same endpoint: nothing is asked again
    assert "s3cret" not in str(grade_py("out/a", "--judge", "rules", "--base_url", "me:s3cret@host", judge=None))


def test_an_endpoint_without_schemas_or_newer_names_is_asked_otherwise(grade_py, api):
    unknown = {"response_format", "max_completion_tokens"}
    api.fault = lambda number, request: ("status", 400) if unknown & set(request) else None
    assert grade_py("--concurrency", "1")[0] == 0
    assert len(api.requests) == 20 + 3 and "max_tokens" in api.requests[-1]
    api.requests.clear()
    unknown.discard("max_completion_tokens")
    assert grade_py("--repeats", "2", "--concurrency", "1")[0] == 0
    assert "response_format" in api.requests[0] and "response_format" not in api.requests[-1]


# Time and money


def test_a_rate_is_kept(grade_py, api):
    assert grade_py("out/a", "--rate", "1200", "--concurrency", "8")[0] == 0
    times = sorted(request["at"] for request in api.requests)
    assert len(times) == 10 and times[-1] - times[0] > 0.8 * 9 / 20


def test_it_stops_before_it_costs_too_much(grade_py, api):
    prices = ("--price_in", "100", "--price_out", "1000", "--max_tokens", "100")
    code, printed = grade_py(*prices, "--max_cost", "1.5")
    assert code.startswith("grade.py: stopped before --max_cost 1.5")
    spent = float(printed.err.split("this call: $")[1].split()[0])
    assert 0.5 < spent <= 1.5 and f"rules: {len(api.requests)} of 20 gradings" in printed.out
    n = len(api.requests)
    assert 0 < n < 20 and grade_py(*prices)[0] == 0 and len(api.requests) == 20


def test_requests_that_were_lost_count_as_paid(grade_py, api):
    api.fault = lambda number, request: ("drop",)
    code, printed = grade_py("--price_in", "100", "--price_out", "1000", "--max_tokens", "100", "--max_cost", "2")
    assert code.startswith("grade.py: stopped before --max_cost 2") and len(api.requests) < 12


def test_a_refused_connection_costs_nothing(grade_py, api):
    api.server_close()
    code, printed = grade_py(
        "--price_in", "100", "--price_out", "1000", "--max_cost", "5", retries=RetryPolicy(attempts=2, first_delay=0.01)
    )
    assert code.endswith("Connection error.; 5 consecutive requests failed") and "this call: $0.0000" in printed.err


def test_a_budget():
    budget = Budget(2.0, 8.0, limit=1.0)
    budget.tokens_in, budget.tokens_out = 100_000, 50_000
    assert budget.spent == pytest.approx(0.6) and budget.allows(0.4 - 1e-9) and not budget.allows(0.41)
    budget.reserved = 0.2
    assert not budget.allows(0.3) and str(budget) == "$0.6000" and str(Budget()) == "0 tokens in, 0 out"


def test_a_dry_run_asks_nothing_and_needs_no_key(grade_py, api, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY")
    code, printed = grade_py("--controls", "--dry_run", "--price_in", "1", "--price_out", "2")
    assert code == 0 and api.requests == []
    assert "40 requests to http://127.0.0.1" in printed.out and "$0.0" in printed.out
    request = json.loads(printed.out[printed.out.index("{\n") : printed.out.rindex("}") + 1])
    grade_py("--controls", "--concurrency", "1")
    first = {key: value for key, value in api.requests[0].items() if key not in ("path", "key", "at")}
    assert first["messages"][0].pop("content") in printed.out
    del request["messages"][0]["content"]
    assert first == request
