"""
generation.backends
"""

import codecs
import concurrent.futures
import itertools
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import openai
import torch

from checkpoints import huggingface
from checkpoints.checkpoint import load_run
from checkpoints.huggingface import load_hf, load_hf_tokenizer
from common.files import read_json
from corpus import instruct_headers
from corpus.tokenizer import END_OF_TEXT, Tokenizer
from generation.engine import beam_search, generate
from generation.prompts import one_line
from model import GPTNeo

# ---- Who writes ----


@dataclass(frozen=True)
class Sampling:
    """How completions are drawn."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    beams: int = 1
    max_new_tokens: int | None = None
    seed: int = 0


Key = tuple[int, int]  # number of the prompt, number of the completion
Continuation = tuple[int, str, bool]  # which of the prompts, its text, whether it ended by itself


class LocalBackend:
    """A model of ours, or a published one, on this machine."""

    def __init__(self, model: GPTNeo, tokenizer: Tokenizer, prefix: Sequence[int], batch_size: int = 64):
        self.model, self.tokenizer, self.prefix, self.batch_size = model, tokenizer, list(prefix), batch_size

    def identity(self) -> dict:
        """Tells these weights from others of the same name."""
        return dict(weights=f"{sum(p.double().abs().sum().item() for p in self.model.parameters()):.12e}")

    def encode(self, prompt: str) -> list[int]:
        """Trailing blanks go: they would split a word off. A model must be given something to begin with."""
        return self.prefix + self.tokenizer.encode(prompt.rstrip()) or [self.tokenizer.end_of_text]

    def fits(self, prompt: str) -> bool:
        return len(self.encode(prompt)) < self.model.config.block_size

    def complete(self, prompts: Sequence[str], keys: Sequence[Key], sampling: Sampling) -> Iterator[Continuation]:
        """As they come."""
        ids, stop = [self.encode(prompt) for prompt in prompts], self.tokenizer.end_of_text
        settings = asdict(sampling)
        if settings.pop("beams") > 1:
            completions = beam_search(self.model, ids, sampling.beams, sampling.max_new_tokens, stop)
        else:
            completions = generate(self.model, ids, **settings, stop=stop, batch_size=self.batch_size, keys=keys)
        for completion in completions:
            yield completion.index, self.tokenizer.decode(completion.tokens), completion.finished


class EndpointError(ValueError):
    """What an endpoint would not do, in one line."""


class ApiBackend:
    """A model behind any OpenAI-compatible endpoint, asked to continue a story: the GPT-3.5 baseline."""

    INSTRUCTION = (
        "You are given the beginning of a story for small children, which breaks off, perhaps in the middle of a "
        "sentence. Continue it from exactly there to its end, in the same simple words. Answer with the continuation "
        "alone: do not repeat the beginning, and add no title and no remark."
    )
    UNDER_A_HEADER = (
        "Write a story for small children, in words that a child of three knows. You are told what it must have: "
        "words, features, a summary that it follows, a sentence that stands in it. Answer with the story alone."
    )
    REQUESTS_AT_ONCE = 8

    def __init__(self, name: str):
        self.name = name
        key = os.environ.get("OPENAI_API_KEY")
        if not key and not os.environ.get("OPENAI_BASE_URL"):
            raise ValueError(f"api:{name} needs OPENAI_API_KEY, or OPENAI_BASE_URL for a server of your own")
        self.client = openai.OpenAI(api_key=key or "none", max_retries=6, timeout=120)

    def identity(self) -> dict:
        return dict(base_url=str(self.client.base_url))

    def fits(self, prompt: str) -> bool:
        return True

    def complete(self, prompts: Sequence[str], keys: Sequence[Key], sampling: Sampling) -> Iterator[Continuation]:
        """As they come. When one fails, or at Ctrl-C, nothing more is asked, but what is on its way is paid for."""
        failure = None
        pool = concurrent.futures.ThreadPoolExecutor(self.REQUESTS_AT_ONCE)
        requests = [pool.submit(self.ask, *request, sampling) for request in zip(itertools.count(), prompts, keys)]
        waiting = set(requests)
        while waiting:
            try:
                done, waiting = concurrent.futures.wait(waiting, return_when=concurrent.futures.FIRST_COMPLETED)
            except KeyboardInterrupt as interrupt:
                if failure:
                    raise
                failure, done = interrupt, set()
                print("stopping when the answers on their way are here", file=sys.stderr)
            for request in done:
                if not request.exception():
                    yield request.result()
                elif not failure:
                    failure = request.exception()
            if failure:
                pool.shutdown(wait=False, cancel_futures=True)
                waiting = {request for request in waiting if not request.cancelled()}
        if failure:
            raise failure

    def ask(self, i: int, prompt: str, key: Key, sampling: Sampling) -> Continuation:
        told = self.UNDER_A_HEADER if instruct_headers.read(prompt) else self.INSTRUCTION
        limits = {"max_tokens": sampling.max_new_tokens, "top_p": sampling.top_p}
        try:
            answer = self.client.chat.completions.create(
                model=self.name,
                messages=[{"role": "system", "content": told}, {"role": "user", "content": prompt}],
                temperature=sampling.temperature,
                seed=int(np.random.SeedSequence([sampling.seed, *key]).generate_state(1)[0] >> 1),
                **{name: value for name, value in limits.items() if value is not None},
            )
        except (openai.OpenAIError, json.JSONDecodeError) as error:
            raise EndpointError(f"api:{self.name} at {self.client.base_url}: {one_line(error)}") from None
        if not getattr(answer, "choices", None):
            raise EndpointError(
                f"api:{self.name} at {self.client.base_url}: {one_line(answer)!r} is no completion; is that the URL of "
                "an OpenAI-compatible endpoint? Most end in /v1"
            )
        text = answer.choices[0].message.content or ""
        if prompt and text[:1].isalnum():  # chat models drop the blank that they would have begun with
            text = " " + text
        return i, text, answer.choices[0].finish_reason == "stop"


def load_backend(name: str, batch_size: int = 64) -> LocalBackend | ApiBackend:
    """Whoever --model names: a run of ours, hf:ID-or-directory, or api:MODEL. ValueError says what is wrong with it."""
    kind, _, rest = name.partition(":")
    if kind == "api":
        return ApiBackend(rest)
    if kind == "hf":
        directory = huggingface.model_directory(rest)
        model, tokenizer = load_hf(directory), load_hf_tokenizer(directory)
        if tokenizer.vocab_size != model.config.vocab_size:
            sizes = f"the model has {model.config.vocab_size} ids, its tokenizer {tokenizer.vocab_size}"
            raise ValueError(f"{directory}: {sizes}; they do not belong together")
        # In our training every story follows an end of text, so a prompt does too; others are prompted without.
        follows_end_of_text = read_json(directory / "config.json").get("prompt_prefix") == END_OF_TEXT
    else:
        (model, tokenizer), follows_end_of_text = load_run(name), True
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return LocalBackend(model.to(device), tokenizer, [tokenizer.end_of_text] * follows_end_of_text, batch_size)


# ---- The command line ----


def stream_story(backend: LocalBackend, prompt: str, sampling: Sampling) -> None:
    """Prints the prompt and one continuation while it is written."""
    tokenizer, settings = backend.tokenizer, asdict(sampling)
    del settings["beams"]
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")  # a character may take several tokens

    def show(_, token):
        print(decoder.decode(tokenizer.decode_bytes([token])), end="", flush=True)

    print(prompt.rstrip(), end="", flush=True)
    settings |= dict(stop=tokenizer.end_of_text, batch_size=1, keys=[(0, 0)], on_token=show)
    (completion,) = generate(backend.model, [backend.encode(prompt)], **settings)
    print(decoder.decode(b"", final=True) + ("" if completion.finished else " [cut here]"))
