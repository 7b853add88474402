"""
Chat completions from any OpenAI-compatible API, many at a time, within a budget.

>>> client = ApiClient("gpt-4o-mini", price_in=0.15, price_out=0.6, max_cost=1.0)
>>> for text, reply in client.map(lambda text: client.chat([dict(role="user", content=text)], 100), texts):
...     print(text, reply)  # a Reply, or a RequestFailed
"""

import asyncio
import functools
import itertools
import json
import os
import re
import signal
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import openai

from corpus.tokenizer import gpt2

OPENAI_URL = "https://api.openai.com/v1"
NEW_LIMIT_NAME = ("openai.com", "openai.azure.com")  # hosts that want max_completion_tokens; others know max_tokens
RETRIES = 16  # of an error status (429, 5xx), by the openai package: over a minute, or as Retry-After says
CONNECTIONS = 3  # attempts if the connection fails, is dropped or times out; each may have cost money
FAILURES_IN_A_ROW = 5  # requests that failed for good, without a reply between them, until asking stops
REMEDIES = {401: "check OPENAI_API_KEY", 402: "the account has no credit", 404: "check the model's name and --base_url"}
tokenizer = functools.cache(gpt2)


class RequestFailed(Exception):
    """This request failed for good; others may succeed. The message is one line."""


class StopAsking(ValueError):
    """No more requests can be made. The message is one line: why, and what to do."""


@dataclass(frozen=True)
class Reply:
    text: str
    finish_reason: str  # the API's, such as "stop" or "length"; "refusal" if the model refused
    model: str  # the one that answered, by the endpoint's name for it
    tokens_in: int  # estimated where the endpoint gives no counts
    tokens_out: int
    cost: float  # dollars; 0 without prices


class ApiClient:
    """Requests to one model. spent: dollars, including the most that failed requests may have cost."""

    def __init__(
        self,
        model: str,
        base_url: str | None = None,  # None: OPENAI_BASE_URL, or OpenAI's own
        concurrency: int = 8,  # requests in flight
        timeout: float = 120.0,  # seconds for a whole reply
        price_in: float | None = None,  # dollars per million tokens
        price_out: float | None = None,
        max_cost: float | None = None,  # dollars: what is spent, plus the most that is in flight, never exceeds this
    ):
        self.model, self.base_url = model, endpoint_url(base_url)
        self.url, self.key = public_url(self.base_url), os.environ.get("OPENAI_API_KEY", "").strip()
        if not self.key and self.base_url == OPENAI_URL:
            raise ValueError("OPENAI_API_KEY is not set; your own server, given as --base_url, may not need one")
        if not re.fullmatch("[!-~]*", self.key):
            raise ValueError("OPENAI_API_KEY contains spaces or other invalid characters; copy it again")
        self.concurrency, self.timeout = concurrency, timeout
        self.price_in, self.price_out, self.max_cost = price_in or 0.0, price_out or 0.0, max_cost or float("inf")
        self.spent, self.failures = 0.0, 0  # failures in a row
        self.in_flight: list[float] = []  # the most that each request may cost
        self.stopped: Exception | None = None  # why no more requests are made

    def map(self, work: Callable[[Any], Awaitable], items: Iterable) -> Iterator[tuple[Any, Any]]:
        """Yields (item, result of `await work(item)` or its RequestFailed) as they finish, `concurrency` at a time.

        work may call `chat` several times. If asking must stop, or after Ctrl-C, what is in flight is finished and
        yielded; then StopAsking is raised.
        """
        loop, items, running = asyncio.new_event_loop(), iter(items), {}
        settings = dict(timeout=self.timeout, max_retries=RETRIES, http_client=Http(timeout=self.timeout))
        self.api = openai.AsyncOpenAI(api_key=self.key or "none", base_url=self.base_url, **settings)
        handler = signal.signal(signal.SIGINT, self.interrupt)
        try:
            while True:
                n_free = 0 if self.stopped else self.concurrency - len(running)
                running |= {loop.create_task(work(item)): item for item in itertools.islice(items, n_free)}
                if not running:
                    break
                done, _ = loop.run_until_complete(asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED))
                for task in done:
                    item, error = running.pop(task), task.exception()
                    if error is None or isinstance(error, RequestFailed):
                        yield item, error or task.result()
                    else:
                        self.stopped = self.stopped or error
        finally:
            signal.signal(signal.SIGINT, handler)
            for task in running:
                task.cancel()
            closing = loop.create_task(self.api.close())
            loop.run_until_complete(asyncio.gather(*running, closing, return_exceptions=True))
            loop.close()
        if self.stopped:
            raise self.stopped

    def interrupt(self, *_) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        print("\nfinishing requests in flight; Ctrl-C again quits", file=sys.stderr)
        self.stopped = self.stopped or StopAsking("stopped; run the same command to continue")

    async def chat(self, messages: list[dict], max_tokens: int | None, **settings) -> Reply:
        """One request, within `map`. settings: other fields of a chat completion. Raises RequestFailed, StopAsking."""
        limit = "max_completion_tokens" if urlsplit(self.base_url).hostname.endswith(NEW_LIMIT_NAME) else "max_tokens"
        settings |= {limit: max_tokens} if max_tokens else {}
        worst, failure = self.worst_cost([*messages, settings], max_tokens or 0), ""
        for attempt in range(CONNECTIONS):
            await asyncio.sleep(attempt)  # seconds
            await self.reserve(worst)
            try:
                create = self.api.chat.completions.with_raw_response.create
                answer = await create(model=self.model, messages=messages, **settings)
                return self.read(answer.content, messages, worst)
            except openai.APIConnectionError as error:
                failure = f"no reply ({self.describe(error.__cause__)})"
                if type(error.__cause__).__name__ not in ("ConnectError", "ConnectTimeout"):
                    self.spent += worst  # it may have been answered without reaching us
            except openai.APIStatusError as error:
                status = 402 if error.code == "insufficient_quota" else error.status_code
                raise self.failed(self.describe(error), REMEDIES.get(status)) from None
            finally:
                self.in_flight.remove(worst)
        raise self.failed(failure)

    async def reserve(self, worst: float) -> None:
        """Waits until the budget allows a request: those in flight may cost less than they might have."""
        while not self.stopped and self.spent + sum(self.in_flight) + worst > self.max_cost:
            if not self.in_flight:
                self.stopped = StopAsking(f"stopped: the next request might exceed --max_cost {self.max_cost:g}")
            await asyncio.sleep(0.05)
        if self.stopped:
            raise self.stopped
        self.in_flight.append(worst)

    def failed(self, reason: str, remedy: str | None = None) -> Exception:
        """The error for a request that failed for good. With a remedy, every other request would fail, too."""
        self.failures += 1
        if remedy or self.failures >= FAILURES_IN_A_ROW:
            remedy = remedy or f"{self.failures} requests in a row failed"
            self.stopped = self.stopped or StopAsking(f"{self.model} at {self.url}: {reason}; {remedy}")
        return self.stopped or RequestFailed(reason)

    def read(self, content: bytes, messages: list[dict], worst: float) -> Reply:
        """Reads plain JSON, as not every endpoint follows openai's types. Adds the cost to what is spent."""
        try:
            answer = json.loads(content)
            choice, usage = answer["choices"][0], answer.get("usage") or {}
            refusal, said = choice["message"].get("refusal"), choice["message"].get("content") or ""
            if isinstance(said, list):  # of parts, some of which may be reasoning or images
                said = "".join(part["text"] for part in said if part.get("type") == "text")
            text = re.sub("[\ud800-\udfff]", "\ufffd", refusal or said)  # lone surrogates, which UTF-8 cannot encode
            counts = usage.get("prompt_tokens"), usage.get("completion_tokens")
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            self.spent += worst
            hint = "is that the URL of an OpenAI-compatible endpoint? Most end in /v1"
            raise self.failed(f"{self.describe(content[:200])} is no chat completion; {hint}") from None
        estimates = estimated_tokens(messages), estimated_tokens(text)
        counts = [n if isinstance(n, int) and 0 < n < 1e9 else guess for n, guess in zip(counts, estimates)]
        cost = self.cost(*counts)
        self.failures, self.spent = 0, self.spent + cost
        reason = "refusal" if refusal else str(choice.get("finish_reason") or "")
        return Reply(text, reason, str(answer.get("model") or ""), *counts, cost)

    def cost(self, tokens_in: float, tokens_out: float) -> float:
        return (self.price_in * tokens_in + self.price_out * tokens_out) / 1e6

    def worst_cost(self, messages: list[dict], max_tokens: int) -> float:
        """Dollars that a request costs at most."""
        return self.cost(estimated_tokens(messages), max_tokens)

    def describe(self, error: object) -> str:
        """One line, without the key, even in the form that endpoints show: sk-ab***yz."""
        if "Timeout" in type(error).__name__:  # asyncio's own, or one of httpx
            return f"not complete after {self.timeout:g} seconds: --timeout"
        secret = re.escape(self.key) if len(self.key) >= 8 else "(?!)"  # shorter ones are placeholders: none, EMPTY
        line = " ".join(str(error).split()) or type(error).__name__
        return re.sub(rf"{secret}|\S*\*{{3,}}\S*", "[key]", line)[:300]


class Http(openai.DefaultAsyncHttpxClient):
    """Limits the time of a whole reply: httpx limits silence only, and a byte a second may come for hours.

    What fails without a status is not for openai to retry, as it may cost money: its own errors are passed on."""

    async def send(self, request, **settings):
        try:
            response = await asyncio.wait_for(super().send(request, **settings), self.timeout.read)
        except Exception as error:
            raise openai.APIConnectionError(request=request) from error
        if response.status_code == 429 and b"insufficient_quota" in response.content:
            response.headers["x-should-retry"] = "false"  # openai would wait for credit
        return response


def estimated_tokens(content: object) -> int:
    """Rather too many: by GPT-2's tokenizer, half as many again for other tokenizers, and a few for the template."""
    return 16 + int(1.5 * len(tokenizer().encode(json.dumps(content, ensure_ascii=False))))


def endpoint_url(base_url: str | None) -> str:
    return (base_url or os.environ.get("OPENAI_BASE_URL") or OPENAI_URL).rstrip("/")


def public_url(url: str) -> str:
    """Without the parts that may be secret: name:password@ and ?key=."""
    return re.sub(r"(?<=//)[^/]*@|[?#].*", "", url)
