"""
Stories by a model behind an API, with the interface of backends.LocalBackend.
"""

from collections.abc import Iterator, Mapping

import numpy as np
import regex

from nanostories.cli import UserError
from nanostories.corpus import instruct_headers
from nanostories.generation.api_client import ApiClient, RequestFailed
from nanostories.generation.prompts import Continuation, Key, Sampling
from nanostories.text import DOUBLE_QUOTES, SPACELESS

# The last character of a prompt and the first one of a reply, if a space belongs between them.
TWO_WORDS = regex.compile(rf"[^\s{SPACELESS}。、，！？：；\p{{Ps}}\p{{Pi}}](?![{SPACELESS}])\w")

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
        return dict(
            model=f"api:{self.model}",
            base_url=f"{self.client.public_url}/",
            extra=self.client.extra or None,
        )

    def fits(self, prompt: str) -> bool:
        return True

    def request(self, key: Key, prompt: str, sampling: Sampling) -> dict:
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

    def complete(self, prompts: Mapping[Key, str], sampling: Sampling) -> Iterator[Continuation]:
        """Yields continuations as they arrive; requests that fail go to `failures`."""
        failed = {}  # by the number of the prompt

        async def write(key: Key) -> Continuation:
            # Ten of one prompt that is refused, in a row, would look like an endpoint that fails.
            if key[0] in failed:
                raise failed[key[0]]
            prompt = prompts[key]
            request = self.request(key, prompt, sampling)
            reply = await self.client.chat(allow_cut=True, **request)
            text = reply.text
            if lacks_space(prompt, text):
                text = " " + text
            return key, text, not reply.cut

        # first one completion of each prompt
        order = sorted(prompts, key=lambda key: key[1])
        for key, result in self.client.map(write, order):
            if isinstance(result, RequestFailed):
                failed[key[0]] = result
            else:
                yield result
        self.failures |= failed

    def raise_failures(self) -> None:
        if self.failures:
            listed = "; ".join(f"prompt_index {i}: {why}" for i, why in self.failures.items())
            kept = "the other stories are kept, and the same command asks for these again"
            raise UserError(f"some requests failed ({kept}): {listed}")


def lacks_space(prompt: str, reply: str) -> bool:
    """Whether a space belongs between them, which chat models drop."""
    last = prompt[-1:]
    first = reply[:1]
    is_inside = len(DOUBLE_QUOTES.findall(prompt)) % 2 == 1
    if is_inside and last == '"':  # it opens the quotation
        return False
    if first in tuple("(«„¿¡") or (DOUBLE_QUOTES.match(first) and not is_inside):
        first = "a"  # a space belongs before a quotation as before a word
    return bool(TWO_WORDS.match(last + first))
