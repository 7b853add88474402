"""ApiClient against a server that fails in every way: what is asked, what it costs, when it
stops."""

import math
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from faulty_endpoint import refusal_of, say, serve

from nanostories.files import read_json_lines
from nanostories.generation import api_client
from nanostories.generation.api_client import (
    ApiClient,
    BadReply,
    RequestFailed,
    StopAsking,
)

KEY = "sk-secret-0123456789"
# Dollars per million tokens; a reply of 100 and 10 tokens: $0.02.
PRICES = dict(price_in=100.0, price_out=1000.0)
REQUEST = dict(model="m", max_tokens=20, temperature=1, seed=7)


@pytest.fixture
def ask(monkeypatch):
    """ask(fault, n) asks n questions."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr(api_client, "RETRIES", 3)

    def call(fault, n=1, allow_cut=False, **settings):
        with serve(fault) as server:
            client = ApiClient(**PRICES | dict(base_url=server.url, timeout=60.0) | settings)
            replies = {}
            stopped = None

            async def question(i: int):
                message = dict(role="user", content=f"question {i}")
                return await client.chat(allow_cut, messages=[message], **REQUEST)

            try:
                replies.update(client.map(question, range(n)))
            except (StopAsking, KeyboardInterrupt) as error:
                stopped = error
        assert not client.n_in_flight
        return SimpleNamespace(
            server=server,
            requests=server.requests,
            replies=replies,  # {number: reply or error}
            failed=[i for i, reply in replies.items() if isinstance(reply, RequestFailed)],
            stopped=stopped,
            spent=pytest.approx(client.ledger.spent),
        )

    return call


# Dollars that a question costs at most.
WORST = ApiClient(**PRICES).worst_cost(
    dict(messages=[dict(role="user", content="question 0")], **REQUEST)
)


def test_a_request_and_its_reply(ask):
    """Half a character is replaced; extra fields are merged last, and None removes a field."""
    asked = ask(say("a \ud83d."), extra=dict(top_p=0.9, temperature=None, seed=9))
    assert asked.replies[0] == api_client.Reply("a \ufffd.", "m", 100, 10, 0.02, cut=False)
    (request,) = asked.requests
    assert request["path"] == "/v1/chat/completions" and request["key"] == f"Bearer {KEY}"
    assert request["messages"] == [dict(role="user", content="question 0")]
    assert dict(model="m", max_tokens=20, top_p=0.9, seed=9).items() <= request.items()
    assert "temperature" not in request


@pytest.mark.parametrize(
    "said",
    [
        "<think>A dog?</think>\n\na time.",
        "<thinking>A\ndog?</thinking>a time.",
        "<reasoning>A <think>dog</think>?</reasoning> a time.",
        "[THINK]A dog?[/THINK]a time.",
        "A dog?\n</think>\na time.",
        [dict(type="thinking", thinking="Hm."), dict(type="text", text="a time.")],
    ],
)
def test_thoughts_are_not_the_text(ask, said):
    assert ask(say(said)).replies[0].text == "a time."


@pytest.mark.parametrize(
    "said, word",
    [
        ((None,), "empty"),
        (("<think>A dog?</think>\n",), "empty"),
        (("<think>A dog? Or a", "length"), "empty"),
        (("a dog", "content_filter"), "refused"),
        ((None, "stop", "I cannot."), "I cannot."),
    ],
)
def test_a_bad_reply_is_paid_and_is_none(ask, said, word):
    asked = ask(say(*said), allow_cut=True)
    assert isinstance(asked.replies[0], BadReply) and word in str(asked.replies[0])
    assert asked.spent == 0.02 == asked.replies[0].reply.dollars and len(asked.requests) == 1


def test_the_most_covers_a_token_for_each_byte_and_the_longest_reply():
    assert WORST >= (100 * len("question 0") + 1000 * 20) / 1e6


@pytest.mark.parametrize("usage", [None, (None, 10), (0, 0)])
def test_a_reply_without_token_counts_costs_the_most_that_it_may(ask, usage):
    assert ask(say("a time.", "stop", None, usage)).spent == WORST


@pytest.mark.parametrize(
    "fault, dollars",
    [
        (("status", 429, {"retry-after-ms": "10"}), 0.02),
        (("raw", b"<html>Bad Gateway</html>", 502), 0.02),
        # It may have been answered without reaching us.
        (("drop",), 0.02 + WORST),
        (("cut", b'{"choices": ['), 0.02 + WORST),
    ],
)
def test_what_may_pass_is_asked_again(ask, fault, dollars):
    asked = ask(lambda number, _: fault if number == 1 else ("say", "x"))
    assert asked.replies[0].text == "x" and len(asked.requests) == 2 and asked.spent == dollars


@pytest.mark.parametrize("status, n", [(400, 1), (403, 1), (429, 4), (503, 4)])
def test_what_would_be_refused_again_is_asked_once(ask, status, n):
    asked = ask(lambda *_: ("status", status, {"retry-after-ms": "1"}))
    assert asked.failed and len(asked.requests) == n  # the first and RETRIES


def test_a_reply_that_does_not_come_ends(ask, monkeypatch):
    monkeypatch.setattr(api_client, "CONNECTIONS", 1)
    asked = ask(lambda *_: ("drip", 0.05), timeout=0.5)
    assert asked.failed and "--timeout" in str(asked.replies[0]) and asked.spent == WORST


@pytest.mark.parametrize("refused", [["max_tokens"], ["seed", "temperature"]])
def test_refused_settings_are_sent_once(ask, refused):
    asked = ask(lambda _, request: refusal_of(request, *refused) or ("say", "x"), 5, concurrency=1)
    assert not asked.failed and len(asked.requests) == 5 + len(refused)
    last = asked.requests[-1]
    assert not set(refused) & last.keys()
    assert last.get("max_completion_tokens", last.get("max_tokens")) == 20


def test_a_temperature_that_is_refused_is_not_another_one(ask):
    asked = ask(lambda _, request: refusal_of(request, "temperature"), extra={"temperature": 0.5})
    assert "temperature" in str(asked.replies[0]) and len(asked.requests) == 1


@pytest.mark.parametrize(
    "status, message, remedy",
    [(401, f"no such\nkey: {KEY}", "key"), (404, "", "URL")],
)
def test_what_every_request_would_meet_stops_at_once(ask, status, message, remedy):
    asked = ask(lambda *_: ("status", status, {}, message), 20, concurrency=1)
    said = f"{asked.stopped} {asked.replies}"
    assert remedy in said and asked.server.url in said and len(asked.requests) == 1
    assert "\n" not in said and KEY not in said


def test_ten_failures_in_a_row_stop(ask):
    faults = {4: ("say", "x")}
    asked = ask(lambda number, _: faults.get(number, ("status", 403)), 20, concurrency=1)
    assert asked.failed == [0, 1, 2, *range(4, 14)] and "403" in str(asked.stopped)


@pytest.mark.parametrize("answer", [b"<html>Not here</html>", b'{"choices": []}'])
def test_what_is_no_completion_is_charged_and_quoted(ask, answer):
    asked = ask(lambda *_: ("raw", answer))
    assert asked.failed and answer[:20].decode() in str(asked.replies[0])
    assert len(asked.requests) == 1 and asked.spent == WORST


# ---- The budget ----
def test_a_budget_holds_over_restarts_and_for_others_at_the_same_time(ask, tmp_path):
    settings = dict(max_cost=0.5, spending=tmp_path / "spending.jsonl")
    faults = iter([("drop",), ("say", "")])
    calls = [ask(lambda *_: next(faults, ("say", "x")), 4, **settings)]
    with ThreadPoolExecutor() as pool:  # as by processes: each client reads the file for itself
        calls += pool.map(lambda _: ask(say("x"), 50, **settings), range(3))
    assert all("--max_cost" in str(call.stopped) for call in calls[1:])
    rows = list(read_json_lines(settings["spending"]))
    dollars = 0.02 * sum(len(call.server.counted) for call in calls)
    assert sum(row["dollars"] for row in rows) == pytest.approx(dollars)
    # The reply that was lost.
    assert sum(row["reserved"] for row in rows) == pytest.approx(WORST)
    assert 0.5 - 8 * WORST < dollars + WORST <= 0.5


def test_without_a_limit_of_tokens_there_is_no_limit_of_the_cost(ask):
    assert not ask(say("x"), max_cost=9.0, extra=dict(max_tokens=None)).requests


def test_another_file_is_no_ledger(tmp_path):
    (tmp_path / "notes.txt").write_text("Buy milk.\n")
    with pytest.raises(ValueError, match="notes.txt.*Buy milk"):
        api_client.Ledger(tmp_path / "notes.txt", math.inf).reserve("m", 0.01)


# ---- The end ----
@pytest.mark.parametrize("end", [StopAsking, KeyboardInterrupt])
def test_what_is_in_flight_when_asking_stops_is_kept(ask, end):
    arrived = threading.Barrier(4)

    def fault(number, request):
        if number <= 4:
            arrived.wait(10)
        if number != 2:
            time.sleep(0.2)
        elif end is KeyboardInterrupt:
            os.kill(os.getpid(), signal.SIGINT)
        else:
            return "status", 401
        return "say", "x"

    asked = ask(fault, 1000, concurrency=4)
    assert isinstance(asked.stopped, end) and len(asked.failed) == (end is StopAsking)
    assert len(asked.replies) == len(asked.requests) < 20


# ---- Keys ----
OPENAI = api_client.OPENAI_URL


@pytest.mark.parametrize(
    "variables, base_url, url, key",
    [
        ("OPENAI_API_KEY=o", "", OPENAI, "o"),
        ("OPENAI_API_KEY=o", "http://x/v1/", "http://x/v1", "o"),
        ("OPENAI_API_KEY=o OPENAI_BASE_URL=http://o", "http://x", "http://x", "none"),
        ("OPENAI_API_KEY=o JUDGE_BASE_URL=http://j", "", "http://j", "none"),
        ("OPENAI_BASE_URL=http://o JUDGE_API_KEY=j", "", OPENAI, "j"),
        ("JUDGE_BASE_URL=http://j JUDGE_API_KEY=j", "http://j/", "http://j", "j"),
    ],
)
def test_a_key_goes_only_to_the_url_that_it_was_given_with(
    variables, base_url, url, key, monkeypatch
):
    for variable in variables.split():
        monkeypatch.setenv(*variable.split("="))
    assert api_client.find_endpoint("JUDGE", base_url) == (url, key)
    assert "j" not in api_client.find_endpoint("OPENAI", base_url)


@pytest.mark.parametrize("key", ["", "sk-café", "sk-for-another-url"])
def test_a_key_that_cannot_be_one(ask, key, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", key)
    if "another" in key:
        monkeypatch.setenv("OPENAI_BASE_URL", "http://x")
    with pytest.raises(ValueError, match=f"{OPENAI}: set OPENAI_API_KEY"):
        ask(say("x"), base_url=OPENAI)


def test_a_password_is_not_shown(monkeypatch):
    """That it is sent, tests/grading/test_grade_faults.py checks."""
    monkeypatch.setenv("OPENAI_BASE_URL", "http://me:s3cret@x/v1")
    assert ApiClient().public_url == "http://x/v1"
