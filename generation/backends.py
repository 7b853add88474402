"""
What writes: a model on this machine (LocalBackend, here) or behind an API (api_backend.py), with the same interface.

>>> backend = load_backend("out/demo")  # or hf:roneneldan/TinyStories-33M, or api:gpt-4o-mini
>>> for i, text, finished in backend.complete(["Once upon a time"], [(0, 0)], Sampling(temperature=0.8, seed=7)):
...     print(text)
"""

import codecs
from collections.abc import Iterator, Sequence
from dataclasses import asdict

import torch

from checkpoints import huggingface
from checkpoints.checkpoint import load_run
from checkpoints.huggingface import load_hf, load_hf_tokenizer
from common.files import read_json
from corpus.tokenizer import END_OF_TEXT, Tokenizer
from generation.generation_loop import beam_search, generate
from generation.prompts import Continuation, Key, Sampling
from model import GPTNeo


class LocalBackend:
    """One of our models, or a published one, on this machine. prefix: ids that precede every prompt."""

    def __init__(self, model: GPTNeo, tokenizer: Tokenizer, prefix: Sequence[int], batch_size: int = 64):
        self.model, self.tokenizer, self.prefix, self.batch_size = model, tokenizer, list(prefix), batch_size

    def identity(self) -> dict:
        """Goes into samples.jsonl, to tell these weights from others of the same name."""
        return dict(weights=f"{sum(p.double().abs().sum().item() for p in self.model.parameters()):.12e}")

    def encode(self, prompt: str) -> list[int]:
        """At least one token, as a model needs; trailing spaces are dropped, as they belong to the next token."""
        return self.prefix + self.tokenizer.encode(prompt.rstrip()) or [self.tokenizer.end_of_text]

    def fits(self, prompt: str) -> bool:
        return len(self.encode(prompt)) < self.model.config.block_size

    def complete(
        self, prompts: Sequence[str], keys: Sequence[Key], sampling: Sampling, on_token=None
    ) -> Iterator[Continuation]:
        """Yields continuations as they end. What is drawn for prompt i depends only on (sampling.seed, keys[i])."""
        ids, stop = [self.encode(prompt) for prompt in prompts], self.tokenizer.end_of_text
        settings = asdict(sampling)
        if settings.pop("beams") > 1:
            completions = beam_search(self.model, ids, sampling.beams, sampling.max_new_tokens, stop)
        else:
            settings |= dict(stop=stop, batch_size=self.batch_size, keys=keys, on_token=on_token)
            completions = generate(self.model, ids, **settings)
        for completion in completions:
            yield completion.index, self.tokenizer.decode(completion.tokens), completion.finished


def load_backend(name: str, batch_size: int = 64, **api):
    """name: as in --model: a run, hf:ID-or-directory, or api:MODEL, which takes ApiClient's settings."""
    kind, _, rest = name.partition(":")
    if kind == "api":
        from generation.api_backend import ApiBackend  # here, as `import openai` takes over a second

        return ApiBackend(rest, **api)
    if kind == "hf":
        directory = huggingface.model_directory(rest)
        model, tokenizer = load_hf(directory), load_hf_tokenizer(directory)
        if tokenizer.vocab_size != model.config.vocab_size:
            sizes = f"the model has {model.config.vocab_size} ids, its tokenizer {tokenizer.vocab_size}"
            raise ValueError(f"{directory}: {sizes}; they do not belong together")
        # We train with an end-of-text token before every story, so our models need it before prompts; others do not.
        follows_end_of_text = read_json(directory / "config.json").get("prompt_prefix") == END_OF_TEXT
    else:
        (model, tokenizer), follows_end_of_text = load_run(name), True
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return LocalBackend(model.to(device), tokenizer, [tokenizer.end_of_text] * follows_end_of_text, batch_size)


def stream_story(backend: LocalBackend, prompt: str, sampling: Sampling) -> None:
    """Prints the prompt, and one continuation while it is generated."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")  # a character may take several tokens

    def show(token):
        print(decoder.decode(backend.tokenizer.decode_bytes([token])), end="", flush=True)

    print(prompt.rstrip(), end="", flush=True)
    ((_, _, finished),) = backend.complete([prompt], [(0, 0)], sampling, on_token=show)
    print(decoder.decode(b"", final=True) + ("" if finished else " [cut here]"))
