"""ApiClient against a server that fails in every way: what is asked, what it costs, when it
stops."""

import json
import math
import os
import signal
import threading
import time

import pytest
from faulty_endpoint import refusal_of, serve

from nanostories.generation import api_client
from nanostories.generation.api_client import ApiClient, BadReply, RequestFailed, StopAsking

KEY = "sk-secret-0123456789"
# Dollars per million tokens; a reply of 100 and 10 tokens: $0.02.
PRICES = dict(price_in=100.0, price_out=1000.0)
REQUEST = dict(model="m", max_tokens=20, temperature=0.5, seed=7)


def say(*answer):
    return lambda number, request: ("say", *answer)


@pytest.fixture
def ask(monkeypatch):
    """ask(fault, n) asks n questions -> (client, server, {number: reply or error}, why asking
    stopped)."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr(api_client, "RETRIES", 3)

    def call(fault, n=1, allow_cut=False, **settings):
        with serve(fault) as server:
            settings = dict(base_url=server.url, timeout=60.0) | settings
            client = ApiClient(**settings)
            replies, why = {}, None

            async def question(i: int):
                message = dict(role="user", content=f"question {i}")
                return await client.chat(allow_cut, messages=[message], **REQUEST)

            try:
                replies.update(client.map(question, range(n)))
            except (StopAsking, KeyboardInterrupt) as error:
                why = error
            assert not client.n_in_flight
            return client, server, replies, why

    return call


def worst(client) -> float:
    """Dollars that a question costs at most."""
    message = dict(role="user", content="question 0")
    return client.worst_cost(client.body(dict(messages=[message], **REQUEST)))


def test_a_request_and_its_reply(ask):
    client, server, replies, why = ask(say("a time."), **PRICES)
    assert why is None and client.ledger.spent == pytest.approx(0.02)
    assert replies[0] == api_client.Reply("a time.", "m", 100, 10, pytest.approx(0.02), cut=False)
    (request,) = server.requests
    assert request["path"] == "/v1/chat/completions" and request["key"] == f"Bearer {KEY}"
    asked = REQUEST | dict(messages=[dict(role="user", content="question 0")])
    assert {name: request[name] for name in asked} == asked


@pytest.mark.parametrize(
    "said, text",
    [
        ("<think>A dog?</think>\n\na time.", "a time."),
        ("<thinking>A\ndog?</thinking>a time.", "a time."),
        ("<reasoning>A dog?</reasoning> a time.", "a time."),
        ("[THINK]A dog?[/THINK]a time.", "a time."),
        ("A dog?\n</think>\na time.", "a time."),
        ("<think>A <think>dog</think>?</think>a time.", "a time."),
        ([dict(type="thinking", thinking="Hm."), dict(type="text", text="a time.")], "a time."),
        ("a \ud83d time.", "a \ufffd time."),
    ],
)
def test_what_counts_as_the_text(ask, said, text):
    assert ask(say(said))[2][0].text == text


@pytest.mark.parametrize(
    "said, word",
    [
        (("",), "empty"),
        ((None,), "empty"),
        ((" \n",), "empty"),
        (("<think>A dog?</think>",), "empty"),
        (("<think>A dog? Or a",), "empty"),
        (("", "length"), "limit"),
        (("<think>A dog? Or a", "length"), "limit"),
        (("a dog", "length"), "limit"),
        (("a dog", "content_filter"), "refused"),
        ((None, "stop", "I cannot."), "I cannot."),
    ],
)
def test_a_bad_reply_is_paid_and_is_none(ask, said, word):
    client, server, replies, _ = ask(say(*said), **PRICES)
    assert isinstance(replies[0], BadReply) and word in str(replies[0])
    assert client.ledger.spent == pytest.approx(0.02) == replies[0].reply.dollars
    assert len(server.requests) == 1


def test_a_reply_may_be_cut_where_the_caller_allows_it(ask):
    replies = ask(say("a dog", "length"), allow_cut=True)[2]
    assert replies[0].text == "a dog" and replies[0].cut
    assert isinstance(ask(say("<think>A", "length"), allow_cut=True)[2][0], BadReply)


@pytest.mark.parametrize("usage", [None, (None, 10), (0, 0)])
def test_a_reply_without_token_counts_costs_the_most_that_it_may(ask, usage):
    client, _, replies, _ = ask(say("a time.", "stop", None, usage), **PRICES)
    assert replies[0].text == "a time." and client.ledger.spent == pytest.approx(worst(client))


@pytest.mark.parametrize(
    "fault, is_lost",
    [
        (("status", 429, {"retry-after-ms": "10"}), False),
        (("page", 502), False),
        (("drop",), True),
        (("cut", b'{"choices": ['), True),
    ],
)
def test_what_may_pass_is_asked_again(ask, fault, is_lost):
    """A request that may have been answered without reaching us counts at its worst cost."""
    client, server, replies, why = ask(
        lambda number, _: fault if number == 1 else ("say", "x"), **PRICES
    )
    assert replies[0].text == "x" and why is None and len(server.requests) == 2
    assert client.ledger.spent == pytest.approx(0.02 + (worst(client) if is_lost else 0))


@pytest.mark.parametrize("fault", [("drip", 0.05), ("hang",)])
def test_a_reply_that_does_not_come_ends(ask, monkeypatch, fault):
    monkeypatch.setattr(api_client, "CONNECTIONS", 1)
    client, server, replies, _ = ask(lambda *_: fault, timeout=0.5, **PRICES)
    assert isinstance(replies[0], RequestFailed) and "--timeout" in str(replies[0])
    assert client.ledger.spent == pytest.approx(worst(client))


@pytest.mark.parametrize("refused", [["max_tokens"], ["seed", "temperature"]])
def test_refused_settings_are_sent_once(ask, refused, capsys):
    def fault(number, request):
        return refusal_of(request, *refused) or ("say", "x")

    client, server, replies, _ = ask(fault, 5, concurrency=1)
    assert {reply.text for reply in replies.values()} == {"x"}
    assert len(server.requests) == 5 + len(refused)
    assert not set(refused) & server.requests[-1].keys()
    assert server.requests[-1].get("max_completion_tokens") == (
        20 if refused == ["max_tokens"] else None
    )
    assert all(f"m refuses {name}" in capsys.readouterr().err for name in refused[:1])


def test_extra_fields_are_merged_last(ask):
    extra = dict(reasoning_effort="low", temperature=None, seed=9)
    (request,) = ask(say("x"), extra=extra)[1].requests
    assert request["reasoning_effort"] == "low" and request["seed"] == 9
    assert "temperature" not in request
    limited = ask(refuse_seed, extra=dict(seed=9))
    assert isinstance(limited[2][0], RequestFailed) and len(limited[1].requests) <= 2


def refuse_seed(number, request):
    return refusal_of(request, "seed") or ("say", "x")


@pytest.mark.parametrize(
    "status, message, remedy",
    [(401, f"no such\nkey: {KEY}, sk-se***789", "key"), (404, "", "URL")],
)
def test_what_every_request_would_meet_stops_at_once(ask, status, message, remedy):
    _, server, replies, why = ask(lambda *_: ("status", status, {}, message), 20, concurrency=1)
    assert remedy in str(why) and server.url in str(why) and len(server.requests) == 1
    said = f"{why}{replies}"
    assert "\n" not in str(why) and KEY not in said and "sk-se" not in said


def test_failures_in_a_row_stop(ask, monkeypatch):
    monkeypatch.setattr(api_client, "FAILURES_IN_A_ROW", 5)

    def sometimes(number, request):
        return ("say", "x") if number == 4 else ("status", 403, {}, "not this one")

    _, server, replies, why = ask(sometimes, 20, concurrency=1)
    assert len(server.requests) == 9 and "not this one" in str(why)
    failed = [i for i, reply in replies.items() if isinstance(reply, RequestFailed)]
    assert failed == [0, 1, 2, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("answer", [b"<html>Not here</html>", b'{"choices": []}', b"[" * 10**5])
def test_what_is_no_completion_is_charged_and_quoted(ask, answer):
    client, server, replies, _ = ask(lambda *_: ("raw", answer), **PRICES)
    assert isinstance(replies[0], RequestFailed) and answer[:20].decode() in str(replies[0])
    assert len(server.requests) == 1 and client.ledger.spent > 0


# ---- The budget ----
@pytest.mark.parametrize("concurrency", [1, 8])
def test_the_budget_is_never_passed(ask, concurrency):
    """What is spent, and the most that requests in flight may cost, as the server sees it at each
    request."""
    client, server, replies, why = ask(
        say("x"), 50, concurrency=concurrency, max_cost=0.15, **PRICES
    )
    assert "--max_cost" in str(why)
    assert 0.15 - 1.1 * worst(client) < client.ledger.spent <= 0.15
    assert len(server.requests) == len(replies) == round(client.ledger.spent / 0.02)
    assert not ask(say("x"), max_cost=worst(client) / 2, **PRICES)[1].requests


def test_no_limit_of_tokens_is_no_limit_of_cost(ask):
    _, server, _, why = ask(say("x"), max_cost=9.0, extra=dict(max_tokens=None), **PRICES)
    assert "--max_cost" in str(why) and not server.requests


def test_a_budget_holds_over_restarts(ask, tmp_path):
    """Each call asks what the calls before left; a lost reply counts as what it may have cost."""
    settings = dict(max_cost=0.25, spending=tmp_path / "spending.jsonl", concurrency=3, **PRICES)
    faults = iter([("drop",), ("say", "")])
    first = ask(lambda *_: next(faults, ("say", "x")), 4, **settings)
    second = ask(say("x"), 100, **settings)
    third = ask(say("x"), 100, **settings)
    assert second[3] and third[3] and not third[1].requests
    rows = [json.loads(line) for line in settings["spending"].read_text().splitlines()]
    counted = [usage for call in (first, second) for usage in call[1].counted]
    assert sum(row["dollars"] for row in rows) == pytest.approx(0.02 * len(counted))
    assert sum(row["reserved"] for row in rows) == pytest.approx(worst(first[0]))
    total = first[0].ledger.spent + second[0].ledger.spent
    assert 0.25 - 1.1 * worst(first[0]) < total <= 0.25


def test_a_budget_is_shared_at_the_same_time(ask, tmp_path):
    """As by processes: each client has a view of its own of the file."""
    settings = dict(max_cost=0.5, spending=tmp_path / "spending.jsonl", **PRICES)
    calls = []
    threads = [
        threading.Thread(target=lambda: calls.append(ask(say("x"), 50, **settings)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spent = 0.02 * sum(len(server.counted) for _, server, _, _ in calls)
    assert 0.5 - 8 * worst(calls[0][0]) < spent <= 0.5
    assert sum(client.ledger.spent for client, *_ in calls) == pytest.approx(spent)


def test_another_file_is_no_ledger(tmp_path):
    (tmp_path / "notes.txt").write_text("Buy milk.\n")
    ledger = api_client.Ledger(tmp_path / "notes.txt", math.inf)
    with pytest.raises(ValueError, match="notes.txt.*Buy milk"):
        ledger.reserve("m", 0.01)


# ---- The end ----
def test_what_is_in_flight_when_asking_stops_is_kept(ask):
    arrived = threading.Barrier(4)

    def fault(number, request):
        if number <= 4:
            arrived.wait(10)
        return ("status", 401) if request["messages"][0]["content"].endswith(" 2") else ("say", "x")

    _, server, replies, why = ask(fault, 1000, concurrency=4)
    asked = {int(request["messages"][0]["content"].split()[1]) for request in server.requests}
    assert why and asked == {*replies} and len(asked) < 1000
    assert [i for i, reply in replies.items() if isinstance(reply, RequestFailed)] == [2]


def test_what_is_in_flight_at_ctrl_c_is_kept(ask):
    def fault(number, request):
        if number == 6:
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.2)
        return "say", "x"

    client, server, replies, why = ask(fault, 1000, concurrency=4, **PRICES)
    assert isinstance(why, KeyboardInterrupt)
    assert len(replies) == len(server.requests) < 20
    assert client.ledger.spent == pytest.approx(0.02 * len(replies))


# ---- Keys ----
@pytest.mark.parametrize(
    "variables, base_url, url, key",
    [
        (dict(OPENAI_API_KEY="o"), "", api_client.OPENAI_URL, "o"),
        (dict(OPENAI_API_KEY="o"), "http://x/v1/", "http://x/v1", "o"),
        (dict(OPENAI_API_KEY="o", OPENAI_BASE_URL="http://o"), "", "http://o", "o"),
        (dict(OPENAI_API_KEY="o", OPENAI_BASE_URL="http://o"), "http://x", "http://x", "none"),
        (dict(OPENAI_API_KEY="o", JUDGE_BASE_URL="http://j"), "", "http://j", "none"),
        (dict(OPENAI_BASE_URL="http://o", JUDGE_API_KEY="j"), "", api_client.OPENAI_URL, "j"),
        (dict(JUDGE_BASE_URL="http://j", JUDGE_API_KEY="j"), "http://x", "http://x", "none"),
    ],
)
def test_a_key_goes_only_to_the_url_that_it_was_given_with(
    variables, base_url, url, key, monkeypatch
):
    for role in ("OPENAI", "JUDGE"):
        for name in (f"{role}_API_KEY", f"{role}_BASE_URL"):
            monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    client = ApiClient("JUDGE", base_url)
    assert (client.url, client.key) == (url, key)
    other = ApiClient("OPENAI", base_url)
    assert "j" not in (other.key, other.url.removeprefix("http://"))


@pytest.mark.parametrize("key", ["", "sk-café"])
def test_a_key_that_cannot_be_one(key, monkeypatch):
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with pytest.raises(ValueError, match="OPENAI_API_KEY"):
        list(ApiClient().map(None, [1]))


def test_a_password_is_sent_and_not_shown(ask, monkeypatch):
    with serve(lambda *_: ("status", 401)) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url.replace("//", "//me:s3cret@"))
        client, _, _, why = ask(say("x"), base_url="")
    assert server.requests[0]["key"] == "Basic bWU6czNjcmV0"
    assert client.public_url == server.url in str(why) and "s3cret" not in str(why)
