"""
Stories by a model behind an API, with the interface of backends.LocalBackend.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from nanostories.cli import UserError
from nanostories.corpus import instruct_headers
from nanostories.generation.api_client import ApiClient
from nanostories.generation.prompts import Continuation, Key, Sampling

CONTINUE = (
    "You are given the beginning of a story for small children, which breaks off, perhaps in the"
    " middle of a sentence. Continue it from exactly there to its end, in the same simple words."
    " Answer with the continuation alone: do not repeat the beginning, and add no title and no"
    " remark."
)
FOLLOW_HEADER = (
    "Write a story for small children, in words that a child of three knows. The header lists its"
    " requirements: words to use, features, a summary to follow, a sentence to include. Answer with"
    " the story alone."
)


class ApiBackend:
    """The interface of LocalBackend, by API requests; it gives no likelihoods."""

    def __init__(self, name: str, **settings):
        self.client = ApiClient(name, **settings)

    def identity(self) -> dict:
        return dict(base_url=f"{self.client.url}/")

    def fits(self, prompt: str) -> bool:
        return True

    def complete(
        self, prompts: Sequence[str], keys: Sequence[Key], sampling: Sampling
    ) -> Iterator[Continuation]:
        """Yields continuations as they arrive. ValueError, at the end, if requests failed."""

        async def write(i: int) -> Continuation:
            instruction = FOLLOW_HEADER if instruct_headers.read(prompts[i]) else CONTINUE
            messages = [
                dict(role="system", content=instruction),
                dict(role="user", content=prompts[i]),
            ]
            seed = int(np.random.SeedSequence([sampling.seed, *keys[i]]).generate_state(1)[0] >> 1)
            settings = dict(temperature=sampling.temperature, seed=seed)
            reply = await self.client.chat(messages, sampling.max_new_tokens, **settings)
            space = " " if prompts[i] and reply.text[:1].isalnum() else ""  # chat models drop it
            return i, space + reply.text, reply.finish_reason == "stop"

        failures = []
        for _, result in self.client.map(write, range(len(prompts))):
            if isinstance(result, Exception):
                failures.append(result)
            else:
                yield result
        if failures:
            n = f"{len(failures):,} of {len(prompts):,} requests failed; run it again to retry them"
            raise UserError(f"{n}: {failures[0]}")
