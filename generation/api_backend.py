"""
A model behind any OpenAI-compatible API, asked to continue a story: the GPT-3.5 baseline, sample.py --model api:MODEL.
"""

import re
from collections.abc import Iterator, Sequence

import numpy as np

from corpus import instruct_headers
from generation.api_client import ApiClient, RequestFailed
from generation.prompts import Continuation, Key, Sampling


class ApiBackend:
    """The interface of backends.LocalBackend, by API requests; it gives no likelihoods."""

    INSTRUCTION = (
        "You are given the beginning of a story for small children, which breaks off, perhaps in the middle of a "
        "sentence. Continue it from exactly there to its end, in the same simple words. Answer with the continuation "
        "alone: do not repeat the beginning, and add no title and no remark."
    )
    INSTRUCTION_FOR_HEADERS = (
        "Write a story for small children, in words that a child of three knows. You are told what it must have: "
        "words, features, a summary that it follows, a sentence that stands in it. Answer with the story alone."
    )

    def __init__(self, name: str, **api_settings):
        self.name, self.settings, self.client = name, api_settings, ApiClient(**api_settings)

    def identity(self) -> dict:
        return dict(base_url=f"{self.client.url}/")

    def fits(self, prompt: str) -> bool:
        return True

    def complete(self, prompts: Sequence[str], keys: Sequence[Key], sampling: Sampling) -> Iterator[Continuation]:
        """Yields continuations as they arrive. The cost of earlier calls counts toward --max_cost.

        If requests failed, a ValueError at the end says how many; after Ctrl-C, requests in flight still finish.
        """
        if self.client.http.is_closed():  # after an earlier call
            budget, self.client = self.client.budget, ApiClient(**self.settings)
            self.client.budget = budget
        failures = []
        jobs = (self.write(i, prompt, key, sampling) for i, (prompt, key) in enumerate(zip(prompts, keys)))
        for result in self.client.run(jobs):
            if isinstance(result, RequestFailed):
                failures.append(result)
            else:
                yield result
        if failures:
            n = f"{len(failures):,} of {len(prompts):,} requests failed"
            raise ValueError(f"{self.name} at {self.client.url}: {failures[0]}; {n}; run it again to retry them")

    def stop(self, why: Exception) -> None:
        """No more requests start; `complete` still yields the replies to those in flight, then raises `why`."""
        self.client.stop(why)

    async def write(self, i: int, prompt: str, key: Key, sampling: Sampling) -> Continuation | RequestFailed:
        instruction = self.INSTRUCTION_FOR_HEADERS if instruct_headers.read(prompt) else self.INSTRUCTION
        optional = dict(max_tokens=sampling.max_new_tokens, top_p=sampling.top_p)
        body = dict(
            model=self.name,
            messages=[dict(role="system", content=instruction), dict(role="user", content=prompt)],
            temperature=sampling.temperature,
            seed=int(np.random.SeedSequence([sampling.seed, *key]).generate_state(1)[0] >> 1),
        )
        try:
            reply = await self.client.ask(body | {name: value for name, value in optional.items() if value is not None})
        except RequestFailed as failure:
            return failure
        text = "" if reply.finish_reason == "refusal" else reply.text
        text = re.sub("[\ud800-\udfff]", "\ufffd", text)  # lone surrogates, which UTF-8 cannot encode
        if prompt and text[:1].isalnum():  # chat models drop the space between prompt and continuation
            text = " " + text
        return i, text, reply.finish_reason == "stop"
