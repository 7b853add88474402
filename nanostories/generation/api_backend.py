"""
Stories by a model behind an API, with the interface of backends.LocalBackend.
"""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import regex

from nanostories.cli import UserError
from nanostories.corpus import instruct_headers
from nanostories.generation.api_client import ApiClient, RequestFailed
from nanostories.generation.prompts import Continuation, Key, Sampling

# Of a script with spaces between words.
STARTS_WITH_WORD = regex.compile(
    r"(?![\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}])\w"
)

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

    def __init__(self, model: str, **settings):
        self.model = model
        self.client = ApiClient(**settings)
        self.failures: dict[int, RequestFailed] = {}  # by the number of the prompt

    def identity(self) -> dict:
        return dict(base_url=f"{self.client.public_url}/", extra=self.client.extra or None)

    def fits(self, prompt: str) -> bool:
        return True

    def request(self, prompt: str, key: Key, sampling: Sampling) -> dict:
        instruction = FOLLOW_HEADER if instruct_headers.read(prompt) else CONTINUE
        seed = np.random.SeedSequence([sampling.seed, *key]).generate_state(1)[0] >> 1
        return dict(
            model=self.model,
            messages=[
                dict(role="system", content=instruction),
                dict(role="user", content=prompt),
            ],
            max_tokens=sampling.max_new_tokens,
            temperature=sampling.temperature,
            seed=int(seed),
        )

    def preview(self, prompts: Sequence[str], n: int, sampling: Sampling) -> str:
        """What `complete` would ask for n continuations of each prompt, and the cost at most."""
        keys = itertools.product(range(len(prompts)), range(n))
        return self.client.preview([self.request(prompts[i], (i, j), sampling) for i, j in keys])

    def complete(
        self, prompts: Sequence[str], keys: Sequence[Key], sampling: Sampling
    ) -> Iterator[Continuation]:
        """Yields continuations as they arrive; requests that fail go to `failures`."""

        async def write(i: int) -> Continuation:
            request = self.request(prompts[i], keys[i], sampling)
            reply = await self.client.chat(allow_cut=True, **request)
            # Chat models drop the space between words.
            space = " " if prompts[i] and STARTS_WITH_WORD.match(reply.text) else ""
            return i, space + reply.text, not reply.cut

        # First one completion of each prompt: one whose requests are refused must not look like an
        # endpoint that fails.
        order = sorted(range(len(prompts)), key=lambda i: keys[i][1])
        for i, result in self.client.map(write, order):
            if isinstance(result, RequestFailed):
                self.failures[keys[i][0]] = result
            else:
                yield result

    def raise_failures(self) -> None:
        if self.failures:
            listed = "; ".join(f"prompt_index {i}: {why}" for i, why in self.failures.items())
            kept = "the other stories are kept, and the same command asks for these again"
            raise UserError(f"some requests failed ({kept}): {listed}")
