"""
Models that write, with one interface: on this machine (LocalBackend), or behind an API
(ApiBackend, in api_backend.py).

>>> backend = load_backend(open_model("out/demo"))  # or hf:ID, or api:gpt-4o-mini
>>> wanted = {(0, 0): "Once upon a time", (0, 1): "Once upon a time"}  # by key: see prompts.py
>>> for key, text, finished in backend.complete(wanted, Sampling(temperature=0.8, seed=7)):
...     print(key, text)
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from model import GPTNeo
from nanostories.checkpoints.checkpoint import from_checkpoint, weights_identity
from nanostories.checkpoints.huggingface import HF_KEYS, load_model, model_directory
from nanostories.checkpoints.models import Model
from nanostories.checkpoints.other_architectures import load_other
from nanostories.cli import UserError
from nanostories.corpus.tokenizer import END_OF_TEXT, Tokenizer
from nanostories.device import set_up_device
from nanostories.files import read_json
from nanostories.generation.generation_loop import beam_search, generate
from nanostories.generation.prompts import Continuation, Key, Sampling
from nanostories.kernels import cpu_features


@dataclass(eq=False)
class LocalBackend:
    """One of our models, or a published one, on this machine."""

    model: GPTNeo
    tokenizer: Tokenizer
    prefix: list[int]  # precedes every prompt
    batch_size: int = 64

    def identity(self) -> dict:
        """Goes into each row of a set, to tell these weights from others of the same name."""
        return {"weights": weights_identity(self.model)}

    def encode(self, prompt: str) -> list[int]:
        """At least one token, as a model needs; trailing spaces are dropped, as they belong to the
        next token."""
        return self.prefix + self.tokenizer.encode(prompt.rstrip()) or [self.tokenizer.end_of_text]

    def decode(self, tokens: Sequence[int]) -> str:
        """Without a character at the end of which only some bytes are there."""
        return self.tokenizer.decode(tokens).rstrip("\ufffd")

    def fits(self, prompt: str) -> bool:
        return len(self.encode(prompt)) < self.model.config.block_size

    def complete(
        self, prompts: Mapping[Key, str], sampling: Sampling, on_token=None
    ) -> Iterator[Continuation]:
        """Yields continuations as they end. The draws for a prompt depend only on its key and
        sampling.seed."""
        ids = {key: self.encode(prompt) for key, prompt in prompts.items()}
        stop = self.tokenizer.end_of_text
        if sampling.beams > 1:
            completions = beam_search(self.model, ids, sampling, stop)
        else:
            completions = generate(self.model, ids, sampling, stop, self.batch_size, on_token)
        for key, tokens, finished in completions:
            yield key, self.decode(tokens), finished


def load_backend(model: Model, device: str = "auto", batch_size: int = 64, **api):
    """api: ApiClient's settings, for a model behind an API. device: of a model on this machine."""
    if model.kind == "api":
        # here, as `import openai` takes over a second
        from nanostories.generation.api_backend import ApiBackend

        return ApiBackend(model.reference, **api)
    if device == "auto" and not torch.cuda.is_available():
        device = "cpu"  # also on a Mac, whose CPU has the decoder in C++
    device = set_up_device(device)
    torch.set_num_threads(cpu_features.free_cores())
    if model.kind == "run":
        tokenizer = Tokenizer(**model.checkpoint["vocabulary"])
        gpt = from_checkpoint(model.checkpoint)
        # Training has an end of text before every story.
        prefix = [tokenizer.end_of_text]
        return LocalBackend(gpt.to(device), tokenizer, prefix, batch_size)
    directory = model_directory(model.reference)
    settings = read_json(directory / "config.json")
    if settings.get("model_type") in HF_KEYS:
        gpt, tokenizer = load_model(f"hf:{directory}")
        is_ours = settings.get("prompt_prefix") == END_OF_TEXT
        prefix = [tokenizer.end_of_text] if is_ours else []
    else:
        gpt, tokenizer = load_other(model.reference)
        prefix = tokenizer.prefix
        batch_size = min(batch_size, 4)  # large vocabularies: their logits fill the memory
    return LocalBackend(gpt.to(device), tokenizer, prefix, batch_size)


def load_gpt(model: Model) -> LocalBackend:
    """As load_backend; UserError for a model that is neither GPT-Neo nor GPT-2."""
    if model.kind == "api":
        raise UserError(f"{model.name}: a model behind an API has no weights to read")
    backend = load_backend(model)
    if type(backend.model) is not GPTNeo:  # nor one of its variants
        raise UserError(f"{model.name}: neither GPT-Neo nor GPT-2; this command reads no other")
    return backend


def stream_story(backend: LocalBackend, prompt: str, sampling: Sampling) -> None:
    """Prints the prompt, and one continuation while it is generated."""
    tokens = []

    def show(token):
        before = backend.decode(tokens)
        tokens.append(token)
        print(backend.decode(tokens).removeprefix(before), end="", flush=True)

    print(prompt.rstrip(), end="", flush=True)
    ((_, _, finished),) = backend.complete({(0, 0): prompt}, sampling, show)
    print("" if finished else " [cut here]")
