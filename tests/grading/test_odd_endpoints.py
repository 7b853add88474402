"""grade.py and the API client, against endpoints whose answers have another shape, a quota, or no end."""

import json
import time

import pytest
from grade_fixtures import graded, records, write_samples

from generation.api_client import RetryPolicy

GOOD = json.dumps(dict(assessment="Good.", grammar=8, creativity=7, consistency=9, plot=6, age_group="C"))
PAID = ("--price_in", "100", "--price_out", "1000", "--max_tokens", "100")


def answer(**changes) -> tuple:
    """A fault that answers 200, with a completion whose fields are changed."""
    choice = dict(index=0, message=dict(role="assistant", content=GOOD), finish_reason="stop")
    usage = dict(prompt_tokens=100, completion_tokens=10)
    return "raw", json.dumps(dict(id="0", model="m", choices=[choice], usage=usage) | changes).encode()


# Answers of another shape


@pytest.mark.parametrize(
    "fault",
    [
        answer(choices={"0": "Hi"}),
        answer(choices=["Hi"]),
        answer(choices=[dict(message="Hi")]),
        answer(choices=[dict(message=["Hi"])]),
        answer(choices="Hi"),
        ("raw", b"[" * 100_000),
        ("raw", b"1" * 5000),
        ("raw", b'"Hi"'),
        ("status", 429, {"Retry-After": "Wed, 21 Oct 99999 07:28:00 GMT"}),
        ("status", 429, {"Retry-After": "9" * 400}),
        ("status", 429, {"Retry-After": "Wed, 99 Foo"}),
        ("status", 503, {"Retry-After": "1e999"}),
    ],
    ids=range(12),
)
def test_an_answer_of_another_shape_is_one_failed_attempt(grade_py, api, tmp_path, fault):
    api.fault = lambda number, request: fault if number == 5 else None
    code, printed = grade_py("out/a")
    assert code == 0 and "rules: 10 of 10 gradings\n" in printed.out
    assert len(api.requests) == 11 and set(graded(tmp_path).values()) == {1}


@pytest.mark.parametrize(
    "usage", ["12", [1, 2], dict(prompt_tokens="100", completion_tokens="10"), dict(prompt_tokens=10**400), None]
)
def test_a_reply_with_odd_token_counts_is_kept_and_charged_in_full(grade_py, api, tmp_path, usage):
    api.fault = lambda number, request: answer(usage=usage)
    code, printed = grade_py("out/a", *PAID)
    assert code == 0 and "rules: 10 of 10 gradings\n" in printed.out
    spent = float(printed.err.split("this call: $")[1].split()[0])
    assert spent > 10 * 100 * 1000 / 1e6  # all of --max_tokens
    assert {record["tokens_out"] for record in records(tmp_path / "out" / "a")} == {None}


@pytest.mark.parametrize(
    "usage, least", [(dict(prompt_tokens=100), 0.11), (dict(prompt_tokens=100, completion_tokens=0), 0.11)]
)
def test_a_count_that_is_missing_is_charged_at_its_most(grade_py, api, usage, least):
    api.fault = lambda number, request: answer(usage=usage)
    code, printed = grade_py("out/a", *PAID, "--concurrency", "1", "--max_cost", "1")
    assert code.startswith("grade.py: stopped before --max_cost 1")
    spent = float(printed.err.split("this call: $")[1].split()[0])
    assert spent == pytest.approx(least * len(api.requests)) and spent <= 1


def test_replies_in_flight_are_kept_whatever_a_job_raises(grade_py, api, tmp_path, monkeypatch):
    """Even if the cause is a mistake of ours."""

    first = []

    def fail_once(text, names, has_age):
        if not first:
            first.append(text)
            raise ZeroDivisionError
        return dict.fromkeys([*names, "age"], 1.0)

    monkeypatch.setattr("grading.chat_judge.read_reply", fail_once)
    with pytest.raises(ZeroDivisionError):
        grade_py("out/a", "--concurrency", "4")
    assert len(graded(tmp_path)) == len(api.requests) - 1 >= 1


# Refusals


@pytest.mark.parametrize(
    "status, message",
    [
        (403, "Your chosen model requires moderation. Your input was flagged for violence: the key to the region"),
        (400, "The response was filtered, triggering Azure OpenAI's content management policy"),
    ],
)
def test_a_flagged_completion_ends_only_that(grade_py, api, tmp_path, status, message):
    """However many they are, and each is asked once a call."""
    flagged = set()

    def fault(number, request):
        text = request["messages"][0]["content"]
        if number <= 14:
            flagged.add(text)
        return ("status", status, {}, message) if text in flagged else None

    api.fault = fault
    code, printed = grade_py("--concurrency", "1")
    assert code == 0 and "rules: 6 of 20 gradings; 14 failed and are not counted" in printed.out
    assert len(api.requests) == 20
    flagged.clear()
    api.fault = lambda number, request: None
    assert grade_py()[0] == 0 and len(api.requests) == 34


def test_what_failed_before_is_asked_last(grade_py, api, tmp_path):
    """Else five that fail again would stop a call that has others to ask."""
    bad = set()

    def fault(number, request):
        text = request["messages"][0]["content"]
        if number in range(2, 22, 4):
            bad.add(text)
        return ("status", 403) if text in bad else None

    api.fault = fault
    assert grade_py("--concurrency", "1")[0] == 0 and len(bad) == 5 and len(api.requests) == 20
    api.requests.clear()
    api.fault = lambda number, request: ("status", 403) if request["messages"][0]["content"] in bad else None
    write_samples(tmp_path / "out" / "c", 5, 2)
    code, _ = grade_py("--concurrency", "1")
    assert "5 consecutive requests failed; check OPENAI_API_KEY" in code
    assert len(api.requests) == 15 and {r["messages"][0]["content"] for r in api.requests[-5:]} == bad


def test_a_403_without_a_reason_stops_when_several_requests_get_it(grade_py, api):
    api.fault = lambda number, request: ("status", 403)
    code, _ = grade_py("--concurrency", "1")
    assert code.endswith("5 consecutive requests failed; check OPENAI_API_KEY") and len(api.requests) == 5


# Time


def test_a_reply_that_drips_for_ever_is_cut_off(grade_py, api):
    api.fault = lambda number, request: ("drip", 0.05) if number == 5 else None
    code, printed = grade_py("out/a", "--timeout", "2")
    assert code == 0 and "rules: 10 of 10 gradings\n" in printed.out and len(api.requests) >= 11


def test_a_quota_without_retry_after_is_kept_to_and_all_is_done(grade_py, api, tmp_path):
    """Five requests a second, more than that is refused: forty take a while, and nothing fails."""
    seconds = {}

    def quota(number, request):
        second = int(time.monotonic())
        seconds[second] = seconds.get(second, 0) + 1
        return ("status", 429) if seconds[second] > 5 else None

    api.fault = quota
    retries = RetryPolicy(attempts=2, first_delay=0.02, longest_delay=1)
    code, printed = grade_py("--controls", "--concurrency", "16", retries=retries)
    assert code == 0 and "rules: 40 of 40 gradings\n" in printed.out and len(seconds) >= 8
    assert printed.err.count("429, too many requests: slowing down; --rate N") == 1


def test_a_quota_that_is_used_up_stops_it(grade_py, api):
    api.fault = lambda number, request: None if number <= 3 else ("status", 429)
    retries = RetryPolicy(attempts=2, first_delay=0.02, longest_delay=0.1, throttled=1)
    code, _ = grade_py("--concurrency", "4", retries=retries)
    assert "429" in code and code.endswith("no reply for 1 seconds; set --rate to what is allowed")
