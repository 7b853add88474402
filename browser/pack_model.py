"""
Everything a page needs to tell stories with a model: its shape, vocabulary and weights, and facts about it.

>>> backend = load_storyteller("out/demo")
>>> texts = validation_texts(backend, Path("data/builtin"))
>>> facts, weights = pack_storyteller("out/demo", backend, "int8", texts)
"""

import base64
import itertools
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from browser.quantize import DTYPES, pack, quality
from checkpoints.checkpoint import corpus_of, directory_of, load_checkpoint
from corpus.builtin_stories import FEATURES
from corpus.instruct_headers import FIELDS, story_tokens
from corpus.sources import HEADERS
from corpus.token_files import load_stories
from corpus.tokenizer import Tokenizer, spelled
from generation.backends import LocalBackend, load_backend
from model import GPTNeo

KERNELS = Path(__file__).parent / "multiply.wasm"
LARGEST = 100_000_000  # bytes of weights in a page
STORIES = 100  # of the validation split, on which the rounding is measured
LICENSES = {
    "builtin": "MIT: page, weights and the stories they learned from",
    "tinystories": "page: MIT; weights: that of their data, TinyStories (CDLA-Sharing-1.0)",
}
UNKNOWN_LICENSE = "page: MIT; weights: ask whoever trained them"


def load_storyteller(name: str) -> LocalBackend:
    """name: a run, or hf:ID-or-directory. ValueError if it has no weights, or is not a GPT-Neo or GPT-2."""
    if name.startswith("api:"):
        raise ValueError(f"{name}: a model behind an API has no weights to export; use a run or hf:ID-or-directory")
    backend = load_backend(name)
    if type(backend.model) is not GPTNeo:
        kind = type(backend.model).__name__.lower()
        raise ValueError(f"{name}: neither transformers nor the page supports a {kind}")
    return backend


def check_size(name: str, model: GPTNeo, dtype: str) -> None:
    size = megabytes(model, dtype)
    if 1e6 * size > LARGEST:
        remedy = "use a smaller model" if dtype == "int8" else "--dtype int8 is smaller"
        raise ValueError(f"{name}: {size:.0f} MB of weights as {dtype}; a page holds {LARGEST / 1e6:.0f}: {remedy}")


def megabytes(model: GPTNeo, dtype: str) -> float:
    return model.num_params() * np.dtype(dtype).itemsize / 1e6


# ---- What the rounding of weights is measured on ----


def corpus_directory(name: str, data: Path | None) -> Path | None:
    """`data`, or the run's own corpus; None if that is not at hand."""
    if data or name.startswith("hf:"):
        return data
    directory = corpus_of(name)
    return directory if (directory / "meta.json").exists() else None


def validation_texts(backend: LocalBackend, directory: Path) -> list[tuple]:
    """(ids, bool: whether each counts) of the first stories of the validation split, cut where the context ends.

    They are encoded again, as a published model has its own vocabulary. Below a header, only the story counts.
    """
    (meta, stories), texts = load_stories(directory, "val"), []
    for story in itertools.islice(stories, STORIES):
        ids = backend.prefix + backend.tokenizer.encode(story)
        ids = np.array([*ids, backend.tokenizer.end_of_text][: backend.model.config.block_size + 1])
        counted = story_tokens(ids, backend.tokenizer) if "headers" in meta else np.ones(len(ids), dtype=bool)
        if counted[1:].any():  # not where the header fills the context
            texts.append((ids, counted))
    return texts


# ---- The data of the page ----


def pack_storyteller(name: str, backend: LocalBackend, dtype: str, texts: Sequence[tuple]) -> tuple[dict, bytes]:
    """What pages/story.js reads, and the weights. texts: from validation_texts; without any, nothing is measured."""
    model, tokenizer = backend.model, backend.tokenizer
    training = {} if name.startswith("hf:") else load_checkpoint(name)
    corpus = training.get("train_config", {}).get("data", "")
    shapes, weights = pack(model, dtype)
    rows = []
    if texts:
        figures = quality(model, texts, tokenizer.byte_lengths())
        held = [each for each in DTYPES if np.isfinite(figures[each]["bpb"])]  # float16 overflows with large weights
        rows = [dict(dtype=each, megabytes=megabytes(model, each)) | figures[each] for each in held]
    facts = dict(config=asdict(model.config), dtype=dtype, shapes=shapes, prefix=backend.prefix, quality=rows)
    facts |= dict(vocabulary=spell(tokenizer), end_of_text=tokenizer.end_of_text)
    facts |= dict(kernels=base64.b64encode(KERNELS.read_bytes()).decode())
    facts |= dict(measured_on=f"Measured on {len(texts)} stories that the model was not trained on.")
    facts |= dict(has_headers=corpus in HEADERS, fields=FIELDS, features=FEATURES)
    return facts | dict(about=about(name, model, dtype, training)), weights


def spell(tokenizer: Tokenizer) -> str:
    """The tokens in the order of their ids, as in GPT-2's files, but with plain spaces, which are shorter than their Ġ,
    and separated by a character that no token has."""
    return "\x7f".join(spelled(token).replace("Ġ", " ") for token in tokenizer.ranks)


def title_of(name: str) -> str:
    """The directory's name of a run, or the ID of a published model."""
    kind, _, rest = name.partition(":")
    return rest if kind == "hf" and not Path(rest).is_dir() else directory_of(name).resolve().name


def about(name: str, model: GPTNeo, dtype: str, training: dict) -> list[tuple[str, str]]:
    """Rows that describe the model to readers. training: its checkpoint, {} if it was not trained here."""
    config, corpus = model.config, training.get("train_config", {}).get("data", "")
    shape = f"{config.n_layer} layers, {config.n_head} heads, width {config.n_embd}"
    rows = [
        ("model", f"{title_of(name)} ({'GPT-2' if config.qkv_bias else 'GPT-Neo'})"),
        ("parameters", f"{model.num_params():,}: {shape}"),
        (
            "it remembers",
            f"{config.block_size:,} tokens; a token is one of {config.vocab_size:,} words or parts of words",
        ),
        ("weights in this page", f"{dtype}, {megabytes(model, dtype):.1f} MB"),
    ]
    if corpus:
        rows.append(("learned from", f"{corpus}, {training['step']:,} steps"))
        rows.append(("validation loss", f"{training['best_val_loss']:.3f} nats per token, before rounding"))
    published = "tinystories" if title_of(name).startswith("roneneldan/TinyStories") else ""
    known = corpus.split("-")[0] or published
    known = {"instruct": "tinystories"}.get(known, known)
    return [*rows, ("license", LICENSES.get(known, UNKNOWN_LICENSE))]
