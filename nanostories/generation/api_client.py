"""
Chat completions from any OpenAI-compatible API, many at a time, within a budget.

>>> client = ApiClient("gpt-4o-mini", price_in=0.15, price_out=0.6, max_cost=1.0)
>>> ask = lambda text: client.chat([dict(role="user", content=text)], 100)
>>> for text, reply in client.map(ask, texts):
...     print(text, reply)  # a Reply, or a RequestFailed
"""

import asyncio
import itertools
import json
import os
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx2  # the client below openai's
import openai

from nanostories.cli import UserError

OPENAI_URL = "https://api.openai.com/v1"
# after an error status (429, 5xx), by the openai package: over a minute, or as Retry-After says
RETRIES = 16
CONNECTIONS = 3  # attempts if no reply arrives; each may have cost money
FAILURES_IN_A_ROW = (
    5  # requests that failed for good, without a reply between them, until asking stops
)
REMEDIES = {401: "check OPENAI_API_KEY", 404: "check the model's name and --base_url"}


class RequestFailed(Exception):
    """This request failed for good; others may succeed. The message is one line."""


class StopAsking(UserError):
    """No more requests can be made. The message is one line: the reason, and a remedy."""


@dataclass(frozen=True)
class Reply:
    text: str
    finish_reason: str  # the API's, such as "stop" or "length"
    model: str  # the model that answered, as the endpoint names it


class ApiClient:
    """Requests to one model. spent: dollars, counting requests that are in flight, or got lost, at
    their worst cost."""

    def __init__(
        self,
        model: str,
        base_url: str | None = None,  # None: OPENAI_BASE_URL, or OpenAI's own
        concurrency: int = 8,  # requests in flight
        timeout: float = 120.0,  # seconds for a whole reply
        price_in: float | None = None,  # dollars per million tokens
        price_out: float | None = None,
        max_cost: float | None = None,  # dollars that `spent` never exceeds
    ):
        self.model, self.base_url = model, endpoint_url(base_url)
        self.url, self.key = public_url(self.base_url), os.environ.get("OPENAI_API_KEY", "").strip()
        if not re.fullmatch("[!-~]+" if self.base_url == OPENAI_URL else "[!-~]*", self.key):
            raise UserError(
                "OPENAI_API_KEY is not set, or contains spaces or other invalid characters"
            )
        self.concurrency, self.timeout = concurrency, timeout
        self.price_in, self.price_out, self.max_cost = (
            price_in or 0.0,
            price_out or 0.0,
            max_cost or float("inf"),
        )
        self.spent, self.n_in_flight, self.failures = 0.0, 0, 0  # failures in a row
        self.stopped: Exception | None = None  # why no more requests are made

    def map(self, work: Callable[[Any], Awaitable], items: Iterable) -> Iterator[tuple[Any, Any]]:
        """Yields (item, result of `await work(item)` or its RequestFailed) as they finish,
        `concurrency` at a time. If asking must stop, requests in flight are finished and yielded;
        then StopAsking is raised."""
        loop, items, running = asyncio.new_event_loop(), iter(items), {}
        settings = dict(
            timeout=self.timeout, max_retries=RETRIES, http_client=Http(timeout=self.timeout)
        )
        self.api = openai.AsyncOpenAI(
            api_key=self.key or "none", base_url=self.base_url, **settings
        )
        try:
            while True:
                n_free = 0 if self.stopped else self.concurrency - len(running)
                running |= {
                    loop.create_task(work(item)): item for item in itertools.islice(items, n_free)
                }
                if not running:
                    break
                done, _ = loop.run_until_complete(
                    asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                )
                for task in done:
                    item, error = running.pop(task), task.exception()
                    if error is None or isinstance(error, RequestFailed):
                        yield item, error or task.result()
                    else:
                        self.stopped = self.stopped or error
        finally:
            for task in running:
                task.cancel()
            running |= {loop.create_task(self.api.close()): None}
            loop.run_until_complete(asyncio.gather(*running, return_exceptions=True))
            loop.close()
        if self.stopped:
            raise self.stopped

    async def chat(self, messages: list[dict], max_tokens: int | None, **settings) -> Reply:
        """One request, within `map`. settings: other fields of a chat completion. Raises
        RequestFailed, StopAsking."""
        if max_tokens:  # OpenAI's own name for it is new, which other endpoints do not know yet
            settings["max_completion_tokens" if self.base_url == OPENAI_URL else "max_tokens"] = (
                max_tokens
            )
        worst = self.cost(
            len(json.dumps([messages, settings])), max_tokens or 0
        )  # a token has at least one byte
        create = self.api.chat.completions.with_raw_response.create
        for attempt in range(CONNECTIONS):
            await asyncio.sleep(attempt)  # seconds
            await self.reserve(worst)
            try:
                answer = await create(model=self.model, messages=messages, **settings)
                return self.read(answer.content, worst)
            except (
                openai.APIConnectionError
            ) as error:  # it may have been answered without reaching us: it stays spent
                failure = f"no reply ({self.describe(error.__cause__)})"
            except openai.APIStatusError as error:
                self.spent -= worst
                raise self.failed(self.describe(error), REMEDIES.get(error.status_code)) from None
            finally:
                self.n_in_flight -= 1
        raise self.failed(failure)

    async def reserve(self, worst: float) -> None:
        """Waits until the budget allows a request: those in flight may cost less than they might
        have."""
        while not self.stopped and self.spent + worst > self.max_cost:
            if not self.n_in_flight:
                self.stopped = StopAsking(
                    f"stopped: the next request might exceed --max_cost {self.max_cost:g}"
                )
            await asyncio.sleep(0.05)
        if self.stopped:
            raise self.stopped
        self.spent, self.n_in_flight = self.spent + worst, self.n_in_flight + 1

    def failed(self, reason: str, remedy: str | None = None) -> Exception:
        """The error for a request that failed for good. With a remedy, every other request would
        fail, too."""
        self.failures += 1
        if remedy or self.failures >= FAILURES_IN_A_ROW:
            remedy = remedy or f"{self.failures} requests in a row failed"
            self.stopped = self.stopped or StopAsking(
                f"{self.model} at {self.url}: {reason}; {remedy}"
            )
        return self.stopped or RequestFailed(reason)

    def read(self, content: bytes, worst: float) -> Reply:
        """Reads plain JSON, as not every endpoint follows openai's types. Without token counts, the
        cost is `worst`."""
        try:
            answer = json.loads(content)
            choice, usage = answer["choices"][0], answer.get("usage") or {}
            said = choice["message"].get("content") or ""
            if isinstance(said, list):  # content parts, some of which may be reasoning or images
                said = "".join(part["text"] for part in said if part.get("type") == "text")
            text = re.sub(
                "[\ud800-\udfff]", "\ufffd", said
            )  # lone surrogates, which UTF-8 cannot encode
            counts = [usage.get(name) for name in ("prompt_tokens", "completion_tokens")]
            cost = self.cost(*counts) if all(counts) else worst
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            raise self.failed(
                f"{self.describe(content[:200])} is no chat completion; is that the URL?"
            ) from None
        self.failures, self.spent = 0, self.spent - worst + cost
        return Reply(text, str(choice.get("finish_reason")), str(answer.get("model")))

    def cost(self, tokens_in: float, tokens_out: float) -> float:
        """Dollars."""
        return (self.price_in * tokens_in + self.price_out * tokens_out) / 1e6

    def describe(self, error: object) -> str:
        """One line, without the key, even in the form that endpoints show: sk-ab***yz."""
        if "Timeout" in type(error).__name__:  # asyncio's own, or one of httpx
            return f"not complete after {self.timeout:g} seconds: --timeout"
        secret = (
            re.escape(self.key) if len(self.key) >= 8 else "(?!)"
        )  # shorter ones are placeholders: none, EMPTY
        line = " ".join(str(error).split()) or type(error).__name__
        return re.sub(rf"{secret}|\S*\*{{3,}}\S*", "[key]", line)[:300]


class Http(openai.DefaultAsyncHttpxClient):
    """Limits the time of a whole reply (httpx limits silence only, and a byte a second may come for
    hours), and keeps openai, which passes its own errors on, from repeating requests that may have
    cost money."""

    async def send(self, request, **settings):
        try:
            return await asyncio.wait_for(super().send(request, **settings), self.timeout.read)
        # asyncio's TimeoutError is a class of its own in Python 3.10
        except (asyncio.TimeoutError, httpx2.HTTPError, OSError) as error:  # noqa: UP041
            raise openai.APIConnectionError(request=request) from error


def endpoint_url(base_url: str | None) -> str:
    return (base_url or os.environ.get("OPENAI_BASE_URL") or OPENAI_URL).rstrip("/")


def public_url(url: str) -> str:
    """Without the parts that may be secret: name:password@ and ?key=."""
    return re.sub(r"(?<=//)[^/]*@|[?#].*", "", url)
