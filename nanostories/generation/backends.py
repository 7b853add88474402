"""
Models that write, with one interface: on this machine (LocalBackend), or behind an API
(ApiBackend, in api_backend.py).

>>> model = open_model("out/demo")  # or hf:roneneldan/TinyStories-33M, or api:gpt-4o-mini
>>> backend = load_backend(model)
>>> sampling = Sampling(temperature=0.8, seed=7)
>>> for i, text, finished in backend.complete(["Once upon a time"], [(0, 0)], sampling):
...     print(text)
"""

import codecs
from collections.abc import Iterator, Sequence

import torch

from model import GPTNeo
from nanostories.checkpoints.checkpoint import from_checkpoint
from nanostories.checkpoints.huggingface import HF_KEYS, load_model, model_directory
from nanostories.checkpoints.models import Model
from nanostories.checkpoints.other_architectures import load_other
from nanostories.corpus.tokenizer import END_OF_TEXT, Tokenizer
from nanostories.device import set_up_device
from nanostories.files import read_json
from nanostories.generation.generation_loop import beam_search, generate
from nanostories.generation.prompts import Continuation, Key, Sampling
from nanostories.kernels import cpu_features


class LocalBackend:
    """One of our models, or a published one, on this machine. prefix: ids that precede every
    prompt."""

    def __init__(
        self, model: GPTNeo, tokenizer: Tokenizer, prefix: Sequence[int], batch_size: int = 64
    ):
        self.model = model
        self.tokenizer = tokenizer
        self.prefix = list(prefix)
        self.batch_size = batch_size

    def identity(self) -> dict:
        """Goes into samples.jsonl, to tell these weights from others of the same name."""
        total = sum(p.double().abs().sum().item() for p in self.model.parameters())
        return {"weights": f"{total:.12e}"}

    def encode(self, prompt: str) -> list[int]:
        """At least one token, as a model needs; trailing spaces are dropped, as they belong to the
        next token."""
        return self.prefix + self.tokenizer.encode(prompt.rstrip()) or [self.tokenizer.end_of_text]

    def fits(self, prompt: str) -> bool:
        return len(self.encode(prompt)) < self.model.config.block_size

    def complete(
        self, prompts: Sequence[str], keys: Sequence[Key], sampling: Sampling, on_token=None
    ) -> Iterator[Continuation]:
        """Yields continuations as they end. The draws for prompt i depend only on (sampling.seed,
        keys[i])."""
        ids = [self.encode(prompt) for prompt in prompts]
        stop = self.tokenizer.end_of_text
        if sampling.beams > 1:
            completions = beam_search(
                self.model, ids, sampling.beams, sampling.max_new_tokens, stop
            )
        else:
            completions = generate(
                self.model,
                ids,
                max_new_tokens=sampling.max_new_tokens,
                temperature=sampling.temperature,
                top_k=sampling.top_k,
                seed=sampling.seed,
                stop=stop,
                batch_size=self.batch_size,
                keys=keys,
                on_token=on_token,
            )
        for completion in completions:
            yield completion.index, self.tokenizer.decode(completion.tokens), completion.finished


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
        return LocalBackend(gpt.to(device), tokenizer, [tokenizer.end_of_text], batch_size)
    directory = model_directory(model.reference)
    settings = read_json(directory / "config.json")
    if settings.get("model_type") not in HF_KEYS:
        gpt, tokenizer = load_other(model.reference)
        # large vocabularies: their logits fill the memory
        return LocalBackend(gpt.to(device), tokenizer, tokenizer.prefix, batch_size=4)
    gpt, tokenizer = load_model(f"hf:{directory}")
    prefix = []
    # We train with an end of text before every story, so our models need it before prompts; others
    # do not.
    if settings.get("prompt_prefix") == END_OF_TEXT:
        prefix = [tokenizer.end_of_text]
    return LocalBackend(gpt.to(device), tokenizer, prefix, batch_size)


def stream_story(backend: LocalBackend, prompt: str, sampling: Sampling) -> None:
    """Prints the prompt, and one continuation while it is generated."""
    decoder = codecs.getincrementaldecoder("utf-8")(
        errors="replace"
    )  # a character may take several tokens

    def show(token):
        print(decoder.decode(backend.tokenizer.decode_bytes([token])), end="", flush=True)

    print(prompt.rstrip(), end="", flush=True)
    ((_, _, finished),) = backend.complete([prompt], [(0, 0)], sampling, on_token=show)
    print(decoder.decode(b"", final=True) + ("" if finished else " [cut here]"))
