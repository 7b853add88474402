"""
A client for OpenAI-compatible APIs, for writing stories and for judging them: concurrent requests, with a rate limit,
retries and a budget.

>>> client = ApiClient("http://localhost:8080/v1", concurrency=16)
>>> for reply in client.run(client.ask(request) for request in requests):
...     print(reply.text)

OPENAI_API_KEY is sent to the endpoint in a header and goes nowhere else: it is removed from replies and errors.
Import this module only where an API is used: `import openai` takes over a second.
"""

import asyncio
import contextlib
import itertools
import json
import os
import random
import re
import signal
import sys
import time
from collections.abc import Coroutine, Iterable, Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

import openai

from generation.api_errors import final_remedy, is_flagged, is_throttled, may_have_cost, may_pass, retry_after

OPENAI_URL = "https://api.openai.com/v1"
CHECK_URL = "is that the URL of an OpenAI-compatible endpoint? Most end in /v1"

LIMITS = ("max_tokens", "max_completion_tokens")  # the older and the newer name for the longest reply
# Not every endpoint accepts response_format, or both of these names. If one rejects a request (400, 422), we try the
# next dialect: (with response_format?, with the other name?)
DIALECTS = [(True, False), (True, True), (False, False), (False, True)]


@dataclass(frozen=True)
class RetryPolicy:
    """When to try again, and when to give up."""

    attempts: int = 6  # per request, as long as its failures may be temporary
    replies: int = 3  # unusable ones per question, before the caller gives up
    first_delay: float = 1.0  # seconds before the second attempt, ± 50%; doubled at each attempt
    longest_delay: float = 60.0  # seconds
    longest_retry_after: float = 900.0  # seconds; if an endpoint asks to wait longer, we stop
    throttled: float = 300.0  # seconds of 429s alone, without a Retry-After or a reply; then we stop
    consecutive_failures: int = 5  # requests given up with no reply in between; then we stop


RETRIES = RetryPolicy()


class Stop(ValueError):
    """No more requests can be made. The message is one line for the user: why, and what to do."""


class OverBudget(Stop):
    """The next request might cost more than is left."""


class RequestFailed(Exception):
    """This request was given up; the message says why. Others may succeed."""


@dataclass
class Budget:
    """What replies have cost, and what requests in flight may cost at most."""

    price_in: float | None = None  # dollars (or any currency) per million tokens
    price_out: float | None = None
    limit: float | None = None  # on the cost; needs prices
    tokens_in: int = 0
    tokens_out: int = 0
    in_flight: int = 0  # requests
    reserved: float = 0.0  # the most that these may cost
    lost: float = 0.0  # the most that replies without token counts, or that never came, may have cost

    def cost(self, tokens_in: float, tokens_out: float) -> float:
        return ((self.price_in or 0) * tokens_in + (self.price_out or 0) * tokens_out) / 1e6

    @property
    def spent(self) -> float:
        return self.cost(self.tokens_in, self.tokens_out) + self.lost

    def allows(self, more: float) -> bool:
        return self.limit is None or self.spent + self.reserved + more <= self.limit

    def __str__(self) -> str:
        if self.price_in is None:
            return f"{self.tokens_in:,} tokens in, {self.tokens_out:,} out"
        return f"${self.spent:.4f}"


@dataclass(frozen=True)
class Reply:
    text: str
    finish_reason: str  # the API's, such as "stop" or "length"; or our own "refusal" or "not text"
    tokens_in: int | None  # None where the endpoint does not say
    tokens_out: int | None
    model: str | None = None  # the one that answered, by the endpoint's name for it


class ApiClient:
    """Requests to one endpoint. If one coroutine of `run` must stop, Stop is raised in all of them."""

    def __init__(
        self,
        base_url: str | None = None,  # None: OPENAI_BASE_URL, or OpenAI's own
        concurrency: int = 8,  # requests in flight
        rate: float | None = None,  # requests per minute, at most
        timeout: float = 120.0,  # seconds for a reply
        price_in: float | None = None,
        price_out: float | None = None,
        max_cost: float | None = None,
        retries: RetryPolicy | None = None,
    ):
        base_url = endpoint_url(base_url)
        self.key = os.environ.get("OPENAI_API_KEY", "").strip()
        if not self.key and base_url == OPENAI_URL:
            raise ValueError("OPENAI_API_KEY is not set; your own server, given as --base_url, may not need one")
        if not re.fullmatch("[!-~]*", self.key):
            raise ValueError("OPENAI_API_KEY contains spaces or other invalid characters; copy it again")
        self.url, self.concurrency = public_url(base_url), concurrency
        self.budget, self.retries = Budget(price_in, price_out, max_cost), retries or RETRIES
        self.http = openai.AsyncOpenAI(api_key=self.key or "none", base_url=base_url, max_retries=0, timeout=timeout)
        self.timeout = timeout
        self.shortest_interval = self.interval = 60 / rate if rate else 0.0  # seconds between requests
        self.next_turn = self.slowed = 0.0  # time of the next request, and of the last slowdown
        self.throttled_since = None  # time of the first 429 without Retry-After since the last reply
        self.turns, self.stopped, self.why = asyncio.Lock(), asyncio.Event(), None
        self.dialects = {}  # model -> the dialect that worked
        self.failures, self.n_retries = 0, 0  # consecutive requests given up; attempts after the first

    def run(self, jobs: Iterable[Coroutine]) -> Iterator:
        """Runs coroutines that call `ask`, and yields their results as they finish. Call it only once.

        After Ctrl-C, or when a job raises an exception, no more jobs start; requests in flight finish, their results
        are yielded, and then the exception is raised.
        """
        loop, jobs, running = asyncio.new_event_loop(), iter(jobs), set()

        def interrupt(*_):
            signal.signal(signal.SIGINT, signal.default_int_handler)  # first, as the user may press it again at once
            print("\nfinishing requests in flight; Ctrl-C again quits", file=sys.stderr)
            loop.call_soon_threadsafe(self.stop, KeyboardInterrupt())

        handler = signal.signal(signal.SIGINT, interrupt)
        try:
            while True:
                if not self.why:
                    starting = itertools.islice(jobs, self.concurrency - len(running))
                    running |= {loop.create_task(job) for job in starting}
                if not running:
                    break
                done, running = loop.run_until_complete(asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED))
                for task in done:
                    if error := task.exception():
                        self.stop(error)
                    else:
                        yield task.result()
        finally:
            signal.signal(signal.SIGINT, handler)
            leftover = asyncio.all_tasks(loop)
            for task in leftover:
                task.cancel()
            loop.run_until_complete(asyncio.wait([*leftover, loop.create_task(self.http.close())]))
            loop.close()
        if self.why:
            raise self.why

    def stop(self, why: BaseException) -> None:
        """Only the first reason is kept."""
        self.why = self.why or why
        self.stopped.set()

    async def ask(self, body: dict) -> Reply:
        """One request (the fields of a chat completion), retried where that may help. Raises RequestFailed or Stop."""
        where = f"{body['model']} at {self.url}"
        attempt = n_throttled = 0
        while attempt < self.retries.attempts:
            await self.wait_for_turn()
            sent = time.monotonic()
            try:
                reply = await self.send(body)
                self.failures, self.throttled_since = 0, None
                self.interval = max(self.shortest_interval, 0.9 * self.interval)
                return reply
            except openai.OpenAIError as error:
                reason = self.describe(error)
                if remedy := final_remedy(error):
                    self.stop(Stop(f"{where}: {reason}; {remedy}"))
                    raise Stop(reason) from None
                if is_flagged(error):  # says nothing about other requests
                    raise RequestFailed(reason) from None
                if not may_pass(error):
                    break
                if is_throttled(error) and n_throttled < 5 * self.retries.attempts:
                    n_throttled += 1
                    self.n_retries += 1
                    self.slow_down(sent, f"{where}: {reason}")
                    continue
                attempt += 1
                if attempt < self.retries.attempts:
                    self.n_retries += 1
                    await self.sleep(self.delay(attempt - 1, retry_after(error)))
        self.failures += 1
        if self.failures >= self.retries.consecutive_failures:
            hint = "; check OPENAI_API_KEY" if "Error code: 403" in reason else ""
            self.stop(Stop(f"{where}: {reason}; {self.failures} consecutive requests failed{hint}"))
            raise Stop(reason)
        raise RequestFailed(reason)

    async def send(self, body: dict) -> Reply:
        """One attempt, in the first dialect that the endpoint accepts."""
        accepted, tried, refusal = self.dialects.get(body["model"]), [], None
        longest = next((body[name] for name in LIMITS if name in body), 0)
        for dialect in [accepted] if accepted else DIALECTS:
            variant = in_dialect(body, dialect)
            if variant in tried:
                continue
            tried.append(variant)
            most = len(json.dumps(variant)), longest  # tokens in and out, at most one per character
            worst = self.budget.cost(*most)
            await self.reserve(worst)
            try:
                content = await self.post(variant)
            except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
                refusal = error
                if is_flagged(error):
                    break
            except openai.OpenAIError as error:
                if may_have_cost(error):
                    self.budget.lost += worst
                raise
            else:
                reply = self.read(content, most)
                self.dialects[body["model"]] = dialect
                return reply
            finally:
                self.budget.in_flight -= 1
                self.budget.reserved -= worst
        raise refusal

    async def post(self, body: dict) -> bytes:
        """The answer. Limits its total time: openai's timeout only limits silence, and an answer may trickle in."""
        request = self.http.chat.completions.with_raw_response.create(**body)
        try:
            return (await asyncio.wait_for(request, self.timeout)).http_response.content
        except TimeoutError:
            raise openai.OpenAIError(f"no complete answer after {self.timeout:g} seconds (--timeout)") from None

    def read(self, content: bytes, most: tuple[int, int]) -> Reply:
        """Parses an answer, without openai's types, as not every endpoint follows them. Adds its cost to the budget.

        A token count that is missing or 0 is charged at its upper bound.
        """
        try:
            answer = json.loads(content)
        except (ValueError, RecursionError):
            self.budget.lost += self.budget.cost(*most)
            raise openai.OpenAIError(f"its answer is not JSON; {CHECK_URL}") from None
        usage = field(answer, "usage", dict)
        tokens = [field(usage, name, int) for name in ("prompt_tokens", "completion_tokens")]
        self.budget.tokens_in += tokens[0] or 0
        self.budget.tokens_out += tokens[1] or 0
        self.budget.lost += self.budget.cost(*(0 if count else n for count, n in zip(tokens, most)))
        choice = next(iter(field(answer, "choices", list) or []), None)
        message = field(choice, "message", dict)
        if not message:
            raise openai.OpenAIError(f"{one_line(self.redact(str(answer)))!r} is not a completion; {CHECK_URL}")
        text = message.get("refusal") or message.get("content") or ""
        finish_reason = "refusal" if message.get("refusal") else field(choice, "finish_reason", str) or ""
        if not isinstance(text, str):
            text, finish_reason = json.dumps(text), "not text"
        model = self.redact(field(answer, "model", str) or "")[:200]
        return Reply(self.redact(text), finish_reason, *tokens, model or None)

    # ---- Time and money ----

    async def wait_for_turn(self) -> None:
        """Waits until the next request may be sent. One waits at a time, as a Retry-After may still delay it."""
        async with self.turns:
            while (wait := self.next_turn - time.monotonic()) > 0 or self.stopped.is_set():
                await self.sleep(wait)
            self.next_turn = time.monotonic() + self.interval

    def slow_down(self, sent: float, reason: str) -> None:
        """After a 429 without Retry-After, halves the request rate; further 429s of requests in flight do not count."""
        now = time.monotonic()
        self.throttled_since = self.throttled_since or now
        if now - self.throttled_since > self.retries.throttled:
            self.stop(Stop(f"{reason}; no reply for {self.retries.throttled:g} seconds; set --rate to what is allowed"))
        if sent < self.slowed:
            return
        if not self.slowed:
            print("\n429, too many requests: slowing down; --rate N allows at most N per minute", file=sys.stderr)
        slower = min(self.retries.longest_delay, max(self.retries.first_delay, 2 * self.interval))
        self.interval, self.slowed = max(self.shortest_interval, slower), now
        self.next_turn = max(self.next_turn, now + self.interval)

    def delay(self, attempt: int, asked: float | None) -> float:
        """Seconds until the next attempt. `asked`: those of a Retry-After, which hold back all requests."""
        if asked is None:
            delay = min(self.retries.longest_delay, self.retries.first_delay * 2**attempt)
            return delay * random.uniform(0.5, 1.5)
        if asked > self.retries.longest_retry_after:
            self.stop(Stop(f"{self.url} asks to wait {asked:,.0f} seconds; then run the same command to continue"))
        self.next_turn = max(self.next_turn, time.monotonic() + asked)
        return asked + random.uniform(0, self.retries.first_delay)

    async def sleep(self, seconds: float) -> None:
        """Raises Stop as soon as there is a reason to stop."""
        if seconds > 0:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.stopped.wait(), seconds)
        if self.stopped.is_set():
            raise Stop(str(self.why))

    async def reserve(self, worst: float) -> None:
        """Reserves `worst` in the budget. If that is too much, waits for replies in flight, which may cost less."""
        while not self.budget.allows(worst):
            if not self.budget.in_flight:
                limit = f"--max_cost {self.budget.limit:g}"
                self.stop(OverBudget(f"stopped before {limit}: the next request might exceed it"))
            await self.sleep(0.05)
        self.budget.in_flight += 1
        self.budget.reserved += worst

    # ---- Error messages ----

    def redact(self, text: str) -> str:
        """Removes the key. With under 8 characters, it is only a placeholder for a local server: x, none, EMPTY."""
        return text.replace(self.key, "[key]") if len(self.key) >= 8 else text

    def describe(self, error: Exception) -> str:
        """One line, without the key, even in the form that endpoints show: sk-ab***yz."""
        return re.sub(r"\S*\*{3,}\S*", "[key]", one_line(self.redact(str(error))))


def endpoint_url(base_url: str | None) -> str:
    return (base_url or os.environ.get("OPENAI_BASE_URL") or OPENAI_URL).rstrip("/")


def public_url(url: str) -> str:
    """Without the parts that may be secret: name:password@ and ?key=."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def in_dialect(body: dict, dialect: tuple[bool, bool]) -> dict:
    with_format, with_other_name = dialect
    other = dict(zip(LIMITS, LIMITS[::-1])) if with_other_name else {}
    return {other.get(k, k): value for k, value in body.items() if with_format or k != "response_format"}


def field(record: object, name: str, kind: type):
    """record[name] if it exists and has this type; otherwise None. Impossible counts are None, too."""
    value = record.get(name) if isinstance(record, dict) else None
    return None if type(value) is not kind or (kind is int and not 0 <= value < 1e9) else value


def one_line(text: object) -> str:
    return " ".join(str(text).split())[:300]
