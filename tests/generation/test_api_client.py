"""ApiClient against a server that fails in every way: what is asked, what it costs, when it
stops."""

import json
import threading

import pytest
from faulty_endpoint import serve

from nanostories.generation import api_client
from nanostories.generation.api_client import ApiClient, RequestFailed, StopAsking

KEY = "sk-secret-0123456789"
PRICES = dict(
    price_in=100.0, price_out=1000.0
)  # dollars per million tokens; a reply of 100 and 10 tokens: $0.02


@pytest.fixture
def ask(monkeypatch):
    """ask(fault, n) asks n questions -> (client, server, {number: reply or error}, why asking
    stopped)."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr(api_client, "RETRIES", 3)

    def call(fault, n=1, **settings):
        with serve(fault) as server:
            client = ApiClient("m", **dict(base_url=server.url, timeout=60.0) | settings)
            replies, why = {}, None

            async def question(i: int):
                return await client.chat(
                    [dict(role="user", content=f"question {i}")], 20, temperature=0.5
                )

            try:
                replies.update(client.map(question, range(n)))
            except StopAsking as error:
                why = error
            assert not client.n_in_flight
            return client, server, replies, why

    return call


def test_a_request_and_its_reply(ask):
    client, server, replies, why = ask(lambda *_: ("say", "a time.", "length"), **PRICES)
    assert why is None and client.spent == pytest.approx(0.02)
    assert replies[0] == api_client.Reply("a time.", "length", "m")
    (request,) = server.requests
    assert request["path"] == "/v1/chat/completions" and request["key"] == f"Bearer {KEY}"
    asked = dict(
        model="m",
        messages=[dict(role="user", content="question 0")],
        max_tokens=20,
        temperature=0.5,
    )
    assert {name: request[name] for name in asked} == asked


PARTS = [
    dict(type="thinking", thinking="Hm."),
    dict(type="text", text="a "),
    dict(type="text", text="time."),
]


@pytest.mark.parametrize(
    "said, text",
    [(PARTS, "a time."), (None, ""), ("a \ud83d time.", "a \ufffd time.")],
    ids=["parts", "none", "half"],
)
def test_what_counts_as_the_text(ask, said, text):
    assert ask(lambda *_: ("say", said))[2][0].text == text


def worst(client, number: int = 0) -> float:
    """Dollars that a question costs at most."""
    message = dict(role="user", content=f"question {number}")
    return client.cost(len(json.dumps([[message], dict(temperature=0.5, max_tokens=20)])), 20)


@pytest.mark.parametrize("usage", [None, (None, 10), (0, 0)])
def test_a_reply_without_token_counts_costs_the_most_that_it_may(ask, usage):
    client, _, replies, _ = ask(lambda *_: ("say", "a time.", "stop", None, usage), **PRICES)
    assert replies[0].text == "a time." and client.spent == pytest.approx(worst(client))


PASSING = {
    "429": ("status", 429, {"retry-after-ms": "10"}),
    "503": ("status", 503, {"retry-after-ms": "10"}),
}
PASSING |= dict(dropped=("drop",), cut=("cut", b'{"choices": ['))


@pytest.mark.parametrize("fault", PASSING)
def test_what_may_pass_is_asked_again(ask, fault):
    """A request that may have been answered without reaching us counts at its worst cost."""
    client, server, replies, why = ask(
        lambda number, _: PASSING[fault] if number == 1 else ("say", "x"), **PRICES
    )
    assert replies[0].text == "x" and why is None and len(server.requests) == 2
    assert client.spent == pytest.approx(0.02 + (fault in ("dropped", "cut")) * worst(client))


def test_a_reply_that_trickles_in_ends(ask, monkeypatch):
    monkeypatch.setattr(api_client, "CONNECTIONS", 1)
    client, server, replies, _ = ask(lambda *_: ("drip", 0.05), timeout=0.5, **PRICES)
    assert isinstance(replies[0], RequestFailed) and "--timeout" in str(replies[0])
    assert client.spent > 0


@pytest.mark.parametrize(
    "status, message, remedy",
    [(401, f"no such\nkey: {KEY}, sk-se***789", "OPENAI_API_KEY"), (404, "", "--base_url")],
)
def test_what_every_request_would_meet_stops_at_once(ask, status, message, remedy):
    _, server, replies, why = ask(lambda *_: ("status", status, {}, message), 20, concurrency=1)
    assert (
        remedy in str(why) and server.url in str(why) and not replies and len(server.requests) == 1
    )
    assert "\n" not in str(why) and KEY not in str(why) and "sk-se" not in str(why)


def test_five_failures_in_a_row_stop(ask):
    def sometimes(number, request):
        return ("say", "x") if number == 4 else ("status", 403, {}, "not this one")

    _, server, replies, why = ask(sometimes, 20, concurrency=1)
    assert len(server.requests) == 9 and "not this one" in str(why)
    assert [isinstance(reply, RequestFailed) for reply in replies.values()] == 3 * [True] + [
        False
    ] + 4 * [True]


@pytest.mark.parametrize("answer", [b"<html>Not here</html>", b'{"choices": []}', b"[" * 10**5])
def test_what_is_no_completion_is_charged_and_quoted(ask, answer):
    client, server, replies, _ = ask(lambda *_: ("raw", answer), **PRICES)
    assert isinstance(replies[0], RequestFailed) and answer[:20].decode() in str(replies[0])
    assert len(server.requests) == 1 and client.spent > 0


@pytest.mark.parametrize("concurrency", [1, 8])
def test_the_budget_is_never_passed(ask, concurrency):
    """What is spent, and the most that requests in flight may cost, as the server sees it at each
    request."""
    client, server, replies, why = ask(
        lambda *_: ("say", "x"), 50, concurrency=concurrency, max_cost=0.15, **PRICES
    )
    assert "--max_cost" in str(why)
    assert 0.15 - worst(client, 10) < client.spent <= 0.15
    assert len(server.requests) == len(replies) == round(client.spent / 0.02)
    assert not ask(lambda *_: ("say", "x"), max_cost=worst(client) / 2, **PRICES)[1].requests


def test_what_is_in_flight_when_asking_stops_is_kept(ask):
    arrived = threading.Barrier(4)

    def fault(number, request):
        if number <= 4:
            arrived.wait(10)
        return ("status", 401) if request["messages"][0]["content"].endswith(" 2") else ("say", "x")

    _, server, replies, why = ask(fault, 1000, concurrency=4)
    asked = {int(request["messages"][0]["content"].split()[1]) for request in server.requests}
    assert why and {0, 1, 3} <= {*replies} and asked - {*replies} == {2} and len(asked) < 1000


def test_keys_and_urls(monkeypatch):
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ValueError, match="OPENAI_API_KEY"):
        ApiClient("m")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-café")
    with pytest.raises(ValueError, match="OPENAI_API_KEY"):
        ApiClient("m", "http://localhost/v1")
    assert api_client.endpoint_url(None) == api_client.OPENAI_URL
    assert api_client.endpoint_url("http://x/v1/") == "http://x/v1"
    assert (
        api_client.public_url("https://me:secret@host:8080/v1?key=secret") == "https://host:8080/v1"
    )
