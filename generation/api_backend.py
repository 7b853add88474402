"""
A model behind any OpenAI-compatible API, asked to continue a story: the GPT-3.5 baseline, sample.py --model api:MODEL.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from corpus import instruct_headers
from generation.api_client import ApiClient, RequestFailed
from generation.prompts import Continuation, Key, Sampling

CONTINUE = (
    "You are given the beginning of a story for small children, which breaks off, perhaps in the middle of a "
    "sentence. Continue it from exactly there to its end, in the same simple words. Answer with the continuation "
    "alone: do not repeat the beginning, and add no title and no remark."
)
FOLLOW_HEADER = (
    "Write a story for small children, in words that a child of three knows. You are told what it must have: "
    "words, features, a summary that it follows, a sentence that stands in it. Answer with the story alone."
)


class ApiBackend:
    """The interface of backends.LocalBackend, by API requests; it gives no likelihoods."""

    def __init__(self, name: str, **settings):
        self.client = ApiClient(name, **settings)

    def identity(self) -> dict:
        return dict(base_url=f"{self.client.url}/")

    def fits(self, prompt: str) -> bool:
        return True

    def complete(self, prompts: Sequence[str], keys: Sequence[Key], sampling: Sampling) -> Iterator[Continuation]:
        """Yields continuations as they arrive. If requests failed, a ValueError at the end says how many."""
        top_p = dict(top_p=sampling.top_p) if sampling.top_p else {}

        async def write(i: int) -> Continuation:
            instruction = FOLLOW_HEADER if instruct_headers.read(prompts[i]) else CONTINUE
            messages = [dict(role="system", content=instruction), dict(role="user", content=prompts[i])]
            seed = int(np.random.SeedSequence([sampling.seed, *keys[i]]).generate_state(1)[0] >> 1)
            settings = dict(temperature=sampling.temperature, seed=seed, **top_p)
            reply = await self.client.chat(messages, sampling.max_new_tokens, **settings)
            text = "" if reply.finish_reason == "refusal" else reply.text
            space = " " if prompts[i] and text[:1].isalnum() else ""  # chat models drop it
            return i, space + text, reply.finish_reason == "stop"

        failures = []
        for _, result in self.client.map(write, range(len(prompts))):
            if isinstance(result, RequestFailed):
                failures.append(result)
            else:
                yield result
        if failures:
            n = f"{len(failures):,} of {len(prompts):,} requests failed"
            raise ValueError(f"{n}, such as: {failures[0]}; the same command tries them again")
