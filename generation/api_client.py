"""
Questions to any OpenAI-compatible endpoint: many at once, no faster than allowed, patient with faults, within a budget.

OPENAI_API_KEY goes to the endpoint in a header, and nowhere else: what comes back is searched for it before it is kept.
"""

import asyncio
import contextlib
import email.utils
import json
import os
import random
import re
import time
from dataclasses import dataclass
from urllib.parse import urlsplit

import openai

from generation.prompts import one_line

OPENAI = "https://api.openai.com/v1"

# How requests are put, the best way first. An endpoint that refuses one (400, 422) is asked in the next.
DIALECTS = [(schema, limit) for schema in (True, False) for limit in ("max_completion_tokens", "max_tokens")]
IS_IT_ONE = "is that the URL of an OpenAI-compatible endpoint? Most end in /v1"


@dataclass(frozen=True)
class Patience:
    """When to try again, and when to give up."""

    tries: int = 6  # of a request that fails in a way that may pass
    replies: int = 3  # to a question whose replies cannot be used
    timeout: float = 120.0  # seconds, for a reply
    first_pause: float = 1.0  # seconds before the second try, more or less by half; doubled at each
    longest_pause: float = 60.0  # seconds
    longest_wait: float = 900.0  # seconds; who is told by Retry-After to wait longer had better come back another day
    failures_in_a_row: int = 5  # questions given up, none answered in between: then the endpoint is


class Stop(Exception):
    """No more can be asked. The message is one line for the user: why, and what to do."""


class OverBudget(Stop):
    """The next request might cost more than there is left."""


class Unanswered(Exception):
    """This question was given up; the message says why. Others may be answered."""


@dataclass
class Bill:
    """What replies have cost, and what those on their way may cost at the most."""

    price_in: float | None = None  # dollars (or whatever) per million tokens
    price_out: float | None = None
    limit: float | None = None  # of cost; needs prices
    tokens_in: int = 0
    tokens_out: int = 0
    on_the_way: int = 0  # requests
    reserved: float = 0.0  # the most that these may cost
    lost: float = 0.0  # requests without a reply, at the most that they may have cost

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
    problem: str | None  # why there is nothing to be read in it, if so
    tokens_in: int | None  # None where the endpoint does not say
    tokens_out: int | None


class Endpoint:
    """Serves many coroutines of one event loop. Stop is raised in all of them, whichever of them met the reason."""

    def __init__(
        self,
        base_url: str,
        bill: Bill,
        patience: Patience,
        rate: float | None = None,  # requests per minute
        max_tokens: int = 2000,  # of a reply
        temperature: float | None = None,  # None: the endpoint's own
    ):
        self.key = os.environ.get("OPENAI_API_KEY", "").strip()
        if not self.key and base_url == OPENAI:
            raise ValueError("OPENAI_API_KEY is not set; a --base-url of your own may need none; or --no-judge")
        if not re.fullmatch("[!-~]*", self.key):
            raise ValueError("OPENAI_API_KEY holds blanks or characters that no key has; copy it anew")
        self.client = openai.AsyncOpenAI(
            api_key=self.key or "none", base_url=base_url, max_retries=0, timeout=patience.timeout
        )
        self.url = public(base_url)
        self.bill, self.patience, self.max_tokens = bill, patience, max_tokens
        self.gap = 60 / rate if rate else 0.0  # seconds
        self.temperature = temperature
        self.gate, self.next_turn = asyncio.Lock(), 0.0
        self.dialects = {}  # model -> the dialect that it has accepted
        self.stopped, self.why = asyncio.Event(), None
        self.given_up, self.retries = 0, 0

    def stop(self, why: Exception) -> None:
        """The first reason counts."""
        self.why = self.why or why
        self.stopped.set()

    async def ask(self, model: str, text: str, response_format: dict) -> Reply:
        """One question, tried again where that may help. Raises Unanswered, or Stop."""
        for attempt in range(self.patience.tries):
            await self.turn()
            try:
                reply = await self.request(model, text, response_format)
                self.given_up = 0
                return reply
            except (openai.OpenAIError, json.JSONDecodeError, UnicodeDecodeError) as error:
                reason = self.describe(error)
                if final := why_stop(error):
                    self.stop(Stop(f"{model} at {self.url}: {reason}; {final}"))
                    raise Stop(reason) from None
                if not may_pass(error):
                    break
                if attempt + 1 < self.patience.tries:
                    self.retries += 1
                    await self.sleep(self.pause(attempt, retry_after(error)))
        self.given_up += 1
        if self.given_up >= self.patience.failures_in_a_row:
            self.stop(Stop(f"{model} at {self.url}: {reason}; {self.given_up} in a row came to nothing"))
            raise Stop(reason)
        raise Unanswered(reason)

    async def request(self, model: str, text: str, response_format: dict) -> Reply:
        """One try, in the first dialect that the endpoint accepts."""
        known = self.dialects.get(model)
        for dialect in [known] if known else DIALECTS:
            body = request_body(model, text, response_format, self.max_tokens, self.temperature, dialect)
            worst = self.bill.cost(
                len(json.dumps(body)), self.max_tokens
            )  # a token is one of these characters at least
            await self.reserve(worst)
            try:
                answer = await self.client.chat.completions.create(**body)
            except openai.APIStatusError as error:  # an answer that costs nothing
                refused = isinstance(error, openai.BadRequestError | openai.UnprocessableEntityError)
                if not refused or dialect in (known, DIALECTS[-1]):
                    raise
            except (openai.OpenAIError, ValueError) as error:  # no answer, or half of one
                if was_sent(error):
                    self.bill.lost += worst
                raise
            else:
                reply = self.reply(answer, worst)
                self.dialects[model] = dialect
                return reply
            finally:
                self.bill.on_the_way -= 1
                self.bill.reserved -= worst

    def reply(self, answer, worst: float) -> Reply:
        """What an answer says, paid for."""
        usage = getattr(answer, "usage", None)
        tokens = (usage.prompt_tokens or 0, usage.completion_tokens or 0) if usage else (None, None)
        if usage:
            self.bill.tokens_in += tokens[0]
            self.bill.tokens_out += tokens[1]
        else:
            self.bill.lost += worst
        choice = (getattr(answer, "choices", None) or [None])[0]
        if not getattr(choice, "message", None):
            raise openai.OpenAIError(f"{one_line(self.hide(str(answer)))!r} is no completion; {IS_IT_ONE}")
        problems = {"length": f"cut off at {self.max_tokens} tokens: raise --max-tokens", "content_filter": "filtered"}
        problem = "refused" if choice.message.refusal else problems.get(choice.finish_reason)
        said = choice.message.refusal or choice.message.content or ""
        if not isinstance(said, str):
            said, problem = json.dumps(said, default=str), "its content is no text"
        return Reply(self.hide(said), problem, *tokens)

    # ---- Time and money ----

    async def turn(self) -> None:
        """Waits until the next request may go: one after the other, as a Retry-After may yet put off the next turn."""
        async with self.gate:
            while (wait := self.next_turn - time.monotonic()) > 0 or self.stopped.is_set():
                await self.sleep(wait)
            self.next_turn = time.monotonic() + self.gap

    def pause(self, attempt: int, asked: float | None) -> float:
        """Seconds until the next try; what Retry-After asks for holds for all requests."""
        own = min(self.patience.longest_pause, self.patience.first_pause * 2**attempt) * random.uniform(0.5, 1.5)
        if asked is None:
            return own
        if asked > self.patience.longest_wait:
            self.stop(Stop(f"{self.url} asks to wait {asked:,.0f} seconds; repeat the call then: it goes on"))
        self.next_turn = max(self.next_turn, time.monotonic() + asked)
        return asked + random.uniform(0, self.patience.first_pause)

    async def sleep(self, seconds: float) -> None:
        """Ends early, and with Stop, if there is a reason to stop."""
        if seconds > 0:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.stopped.wait(), seconds)
        if self.stopped.is_set():
            raise Stop(str(self.why))

    async def reserve(self, worst: float) -> None:
        """Until the replies on their way are here it is not known what they cost; then there may be room again."""
        while not self.bill.allows(worst):
            if not self.bill.on_the_way:
                self.stop(
                    OverBudget(f"stopped before --max-cost {self.bill.limit:g}: the next request might exceed it")
                )
            await self.sleep(0.05)
        self.bill.on_the_way += 1
        self.bill.reserved += worst

    # ---- What is said of faults ----

    def hide(self, text: str) -> str:
        """A key of less than 8 characters is none, but what a server of one's own is given: x, none, EMPTY."""
        return text.replace(self.key, "[key]") if len(self.key) >= 8 else text

    def describe(self, error: Exception) -> str:
        """One line, without the key; nor what endpoints show of it: sk-ab***yz."""
        if isinstance(error, ValueError):
            return f"what it says is not JSON; {IS_IT_ONE}"
        return re.sub(r"\S*\*{3,}\S*", "[key]", one_line(self.hide(str(error))))


def public(url: str) -> str:
    """Without what may be secret in it: name:password@ and ?key=."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def request_body(
    model: str, text: str, response_format: dict, max_tokens: int, temperature: float | None, dialect=DIALECTS[0]
) -> dict:
    schema, limit = dialect
    body = dict(model=model, messages=[dict(role="user", content=text)]) | {limit: max_tokens}
    if temperature is not None:
        body["temperature"] = temperature
    if schema:
        body["response_format"] = response_format
    return body


def why_stop(error: Exception) -> str | None:
    """What to do about an error that every other request would meet, too."""
    status = getattr(error, "status_code", None)
    if status in (401, 403):
        return "check OPENAI_API_KEY"
    if status == 404:
        return "check --judge and --base-url"
    if status == 402 or getattr(error, "code", None) == "insufficient_quota":
        return "the account has nothing left"
    return None


def was_sent(error: Exception) -> bool:
    """Not where there was no connection to send it by: what the client's HTTP library says lies behind its error."""
    return type(error.__cause__).__name__ not in ("ConnectError", "ConnectTimeout", "PoolTimeout")


def may_pass(error: Exception) -> bool:
    status = getattr(error, "status_code", None)
    return status is None or status in (200, 408, 409, 429) or status >= 500


def retry_after(error: Exception) -> float | None:
    """Seconds that the endpoint asks to wait, as it says them or until the date that it gives."""
    said = error.response.headers.get("retry-after", "") if isinstance(error, openai.APIStatusError) else ""
    if re.fullmatch(r"\s*\d+(\.\d+)?\s*", said):
        return float(said)
    date = email.utils.parsedate_tz(said)
    return max(0.0, email.utils.mktime_tz(date) - time.time()) if date else None
