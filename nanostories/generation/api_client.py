"""
Chat completions from any OpenAI-compatible API, many at a time, within a budget.

>>> client = ApiClient(price_in=0.15, price_out=0.6, max_cost=1.0)
>>> def ask(text):
...     message = dict(role="user", content=text)
...     return client.chat(model="gpt-4o-mini", messages=[message], max_tokens=100)
>>> for text, reply in client.map(ask, texts):
...     print(text, reply)  # a Reply, or a RequestFailed
"""

import asyncio
import collections
import itertools
import json
import math
import os
import re
import sys
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2  # the client below openai's
import openai

from nanostories.cli import UserError
from nanostories.generation.spending import Ledger

OPENAI_URL = "https://api.openai.com/v1"
# After transient HTTP errors, the openai package asks again, for over a minute or as Retry-After
# says.
RETRIES = 16
# Attempts if no reply arrives. Each may have cost money.
CONNECTIONS = 3
# Asking stops after so many failures without a usable reply between them.
FAILURES_IN_A_ROW = 10
# Every request would meet these errors, so asking stops at once.
REMEDIES = {
    401: "check the key: is it set, and for this URL?",
    404: "check the model and the URL",
}
NO_KEY = "none"  # the openai package wants one
# Tokens that a reply may have at most if no limit is sent.
NO_LIMIT = 1_000_000
# Fields that some models refuse, and what they take instead.
REPLACEMENTS = {"max_tokens": "max_completion_tokens", "seed": None, "temperature": None}
THOUGHT_BEGINS = re.compile(r"<(think|thinking|reasoning)>|\[THINK\]", re.IGNORECASE)
THOUGHT_ENDS = re.compile(r"</(?:think|thinking|reasoning)>\s*|\[/THINK\]\s*", re.IGNORECASE)


@dataclass(frozen=True)
class Reply:
    text: str  # without the model's thoughts
    model: str  # the model that answered, as the endpoint names it
    tokens_in: int | None  # None: the endpoint does not say
    tokens_out: int | None
    dollars: float
    cut: bool  # by the limit of tokens


class RequestFailed(Exception):
    """This request failed for good; others may succeed. The message is one line."""


class BadReply(RequestFailed):
    """The reply was paid for, and is empty, filtered, refused, cut or of no use."""

    def __init__(self, reason: str, reply: Reply):
        super().__init__(reason)
        self.reply = reply


class StopAsking(UserError):
    """No more requests can be made. The message is one line: the reason, and a remedy."""


@dataclass
class ApiClient:
    """Requests to the models of one endpoint, within one budget."""

    role: str = "OPENAI"  # of ROLE_API_KEY and ROLE_BASE_URL: see find_endpoint
    base_url: str = ""  # instead of ROLE_BASE_URL
    concurrency: int = 8  # requests in flight
    timeout: float = 120.0  # seconds for a whole reply
    price_in: float = 0.0  # dollars per million tokens
    price_out: float = 0.0
    max_cost: float = math.inf  # dollars, with all that is in the file `spending`
    spending: Path | None = None
    extra: dict = field(default_factory=dict)  # merged into each request; None removes a field

    def __post_init__(self):
        self.url, self.key = find_endpoint(self.role, self.base_url)
        self.public_url = re.sub("(?<=//)[^/]*@", "", self.url)  # without name:password@
        self.ledger = Ledger(self.spending, self.max_cost)
        self.replaced = collections.defaultdict(dict)  # model -> {refused field: its replacement}

    # ---- Many requests ----
    def map(self, work: Callable[[Any], Awaitable], items: Collection) -> Iterator[tuple]:
        """Yields (item, result of `await work(item)` or its RequestFailed) as they finish,
        `concurrency` at a time. If asking must stop (also at Ctrl-C), requests in flight, which are
        paid for, are finished and yielded; then StopAsking (KeyboardInterrupt) is raised."""
        if not items:
            return
        if not re.fullmatch("[!-~]+", self.key):
            rule = "a key is sent only to the URL in the variable beside it"
            raise UserError(
                f"no usable key for {self.public_url}: set {self.role}_API_KEY ({rule})"
            )
        self.stopped = None  # why it ends
        self.failures = 0  # in a row
        self.n_in_flight = 0
        self.api = openai.AsyncOpenAI(
            api_key=self.key,
            base_url=self.url,
            max_retries=RETRIES,
            http_client=Http(timeout=self.timeout),
        )
        remaining = iter(items)
        running = {}
        with asyncio.Runner() as runner:
            try:
                while True:
                    n_free = 0 if self.stopped else self.concurrency - len(running)
                    for item in itertools.islice(remaining, n_free):
                        running[runner.get_loop().create_task(work(item))] = item
                    if not running:
                        break
                    for task in self.wait_for_some(running, runner):
                        item = running.pop(task)
                        error = task.exception()
                        if error is None or isinstance(error, RequestFailed):
                            yield item, error or task.result()
                        else:
                            self.stopped = self.stopped or error
            finally:
                runner.run(self.api.close())
        if self.stopped:
            raise self.stopped

    def wait_for_some(self, running: Iterable, runner: asyncio.Runner) -> Iterable[asyncio.Task]:
        """The tasks that are done; none after Ctrl-C, of which a second one drops all others."""
        try:
            done, _ = runner.run(asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED))
        except KeyboardInterrupt as stop:
            if self.stopped:
                raise
            print("\nwaiting for the last replies; Ctrl-C again drops them", file=sys.stderr)
            self.stopped = stop
            done = ()
        return done

    # ---- One request ----
    async def chat(
        self, allow_cut: bool = False, check: Callable[[str], Any] | None = None, **request
    ) -> Reply:
        """One request, within `map`. request: model, messages and other fields of a chat
        completion. check: UserError if a text is of no use. Raises RequestFailed (or BadReply),
        StopAsking."""
        model = request["model"]
        n_lost = 0
        while True:
            body = self.body(request)
            reserved = await self.reserve(body)
            try:
                # extra_body, as openai itself refuses fields that it does not know.
                answer = await self.api.chat.completions.with_raw_response.create(
                    model=model, messages=[], extra_body=body
                )
                break
            except openai.APIStatusError as error:
                self.ledger.append(model, -reserved)
                self.note_refused_fields(body, str(error.body))
                if self.body(request) == body:  # nothing was replaced: it would be refused again
                    reason = f"HTTP {error.status_code}: {error.body}"
                    why_stop = REMEDIES.get(error.status_code)
                    raise RequestFailed(self.note_failure(model, reason, why_stop)) from None
            except openai.APIConnectionError as error:
                # It may have been answered without reaching us: it stays reserved.
                n_lost += 1
                if n_lost == CONNECTIONS:
                    reason = self.note_failure(model, f"no reply ({error})")
                    raise RequestFailed(reason) from None
                await asyncio.sleep(n_lost)
            finally:
                self.n_in_flight -= 1
        reply, problem = self.read(answer, model, reserved)
        if reply.cut and not allow_cut and not problem:
            problem = "cut off at the limit of tokens"
        if check and not problem:
            try:
                check(reply.text)
            except UserError as error:
                problem = f"{error}: {reply.text[:200]!r}"
        if problem:
            raise BadReply(self.note_failure(model, problem), reply)
        self.failures = 0
        return reply

    def body(self, request: dict) -> dict:
        """The request as it is sent."""
        replaced = self.replaced[request["model"]]
        body = {replaced.get(name, name): value for name, value in request.items()} | self.extra
        return {name: value for name, value in body.items() if name and value is not None}

    def note_refused_fields(self, body: dict, error: str) -> None:
        replaced = self.replaced[body["model"]]
        for name in (REPLACEMENTS.keys() & body.keys()) - replaced.keys():
            # 1 is the default; without another one, the stories would be of another temperature
            is_needed = name == "temperature" and body[name] != 1
            if re.search(f"['\"`]{name}['\"`]", error) and not is_needed:
                replaced[name] = REPLACEMENTS[name]
                print(f"{body['model']} refuses {name}: left out or replaced", file=sys.stderr)

    def read(self, answer: openai.APIResponse, model: str, reserved: float) -> tuple[Reply, str]:
        """The reply, and why it is of no use. Without token counts, the cost is what was
        reserved."""
        try:
            completion = answer.parse()
            choice = completion.choices[0]
            said = choice.message.content or ""
            if isinstance(said, list):  # of parts, some of which may be thoughts or images
                said = "".join(part["text"] for part in said if part["type"] == "text")
            usage = completion.usage
            tokens = (usage.prompt_tokens, usage.completion_tokens) if usage else (None, None)
            # Some endpoints leave the counts out, or give 0 for both.
            is_counted = None not in tokens and any(tokens)
            dollars = self.cost(*tokens) if is_counted else reserved
        except (ValueError, TypeError, LookupError, AttributeError):
            reason = f"{answer.text[:200]} is no chat completion; is that the URL?"
            raise RequestFailed(self.note_failure(model, reason)) from None
        self.ledger.append(model, -reserved, dollars, tokens)
        text = without_thoughts(re.sub("[\ud800-\udfff]", "\ufffd", said))
        ending = choice.finish_reason
        reply = Reply(text, str(completion.model), *tokens, dollars, cut=ending == "length")
        refusal = choice.message.refusal
        if refusal or ending == "content_filter":
            return reply, f"refused ({refusal or ending})"
        if text.strip():
            return reply, ""
        if reply.cut:
            return reply, "an empty reply: its thoughts took all tokens of the limit; raise it"
        return reply, f"an empty reply (finish_reason: {ending})"

    def note_failure(self, model: str, reason: str, why_stop: str | None = None) -> str:
        """Counts a failure; returns its reason as one line. why_stop: why every other request would
        fail, too: then asking stops."""
        reason = " ".join(reason.split())
        if len(self.key) >= 8:  # shorter ones are placeholders
            reason = reason.replace(self.key, "[key]")
        reason = reason[:300]
        self.failures += 1
        if self.failures >= FAILURES_IN_A_ROW:
            why_stop = f"{self.failures} requests in a row failed"
        if why_stop and not self.stopped:
            self.stopped = StopAsking(f"{model} at {self.public_url}: {reason}; {why_stop}")
        return reason

    # ---- Costs ----
    async def reserve(self, body: dict) -> float:
        """Waits until the budget allows a request: those in flight may cost less than they might
        have. Returns the dollars that it may cost at most."""
        dollars = self.worst_cost(body)
        while not self.stopped and not self.ledger.reserve(body["model"], dollars):
            if not self.n_in_flight:
                reason = f"the next request might exceed --max_cost {self.max_cost:g}"
                self.stopped = StopAsking(f"stopped: {reason}")
            await asyncio.sleep(0.05)
        if self.stopped:
            raise StopAsking  # map raises the reason
        self.n_in_flight += 1
        return dollars

    def worst_cost(self, body: dict) -> float:
        """Dollars at most: a token has at least one byte."""
        limits = [body.get(name) or 0 for name in ("max_tokens", "max_completion_tokens")]
        return self.cost(len(json.dumps(body)), max(limits) or NO_LIMIT)

    def cost(self, tokens_in: int, tokens_out: int) -> float:
        """Dollars."""
        return (self.price_in * tokens_in + self.price_out * tokens_out) / 1e6

    def preview(self, requests: Collection[dict], attempts: int = 1) -> str:
        """For --dry_run: the first request, how many there are, and what they cost at most.
        attempts: how often each may be sent."""
        if not requests:
            return "nothing to ask"
        bodies = [self.body(request) for request in requests]
        shown = json.dumps(bodies[0], indent=2, ensure_ascii=False)
        number = f"{len(bodies):,} requests to {self.public_url}"
        if attempts > 1:
            number += f", each up to {attempts} times"
        dollars = attempts * sum(map(self.worst_cost, bodies))
        cost = f"at most ${dollars:.4f} by --price_in and --price_out"
        if self.max_cost < math.inf:
            cost += f"; ${self.ledger.left():.4f} of --max_cost is left"
        if not dollars:
            cost = "--price_in and --price_out show the cost"
        return f"{shown}\n{number}: {cost}"


class Http(openai.DefaultAsyncHttpxClient):
    """Limits the time of a whole reply (httpx limits silence only, and a byte a second may come for
    hours), and keeps openai, which passes its own errors on, from repeating requests that may have
    cost money."""

    async def send(self, request, **settings):
        try:
            return await asyncio.wait_for(super().send(request, **settings), self.timeout.read)
        except (httpx2.HTTPError, OSError) as error:
            reason = str(error) or f"not complete after {self.timeout.read:g} seconds: --timeout"
            raise openai.APIConnectionError(message=reason, request=request) from None


def find_endpoint(role: str, base_url: str) -> tuple[str, str]:
    """The URL and its key. A JUDGE without variables of its own uses OPENAI's. A key is sent only
    to the URL in the variable beside it; if there is none, to `base_url` or OpenAI's."""
    for prefix in (role, "OPENAI"):
        key = os.environ.get(f"{prefix}_API_KEY", "").strip()
        url_of_key = os.environ.get(f"{prefix}_BASE_URL", "").rstrip("/")
        if key or url_of_key:
            break
    url = (base_url or url_of_key or OPENAI_URL).rstrip("/")
    if url_of_key and url != url_of_key:
        key = ""
    if url != OPENAI_URL:
        key = key or NO_KEY
    return url, key


def without_thoughts(text: str) -> str:
    """The text after the last </think> or its like, whether or not that was opened; "" if a thought
    begins after it and never ends."""
    text = THOUGHT_ENDS.split(text)[-1]
    return "" if THOUGHT_BEGINS.search(text) else text
