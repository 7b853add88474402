"""
The page on which a model tells stories: its weights in 8 bits, its vocabulary, and an engine, in
one file.

>>> backend = load_backend("out/demo")
>>> Path("story.html").write_bytes(story_page("demo", backend, about=[("license", "MIT")]))
"""

import base64
import html
from collections.abc import Sequence
from dataclasses import asdict

import torch

from model import GPTNeo
from nanostories.cli import UserError
from nanostories.corpus.instruct_headers import FIELDS
from nanostories.generation.backends import LocalBackend
from nanostories.pages.html import TEMPLATES, page

CONFIG = {
    "vocab_size",
    "block_size",
    "n_layer",
    "n_head",
    "n_embd",
    "window_size",
    "dropout",
    "scale_attention",
}
CONFIG |= {"qkv_bias"}  # the settings that engine.js supports
OPENINGS = (
    "Once upon a time, there was a little fox",
    "One day, a girl named Lily found a",
    "Tom was sad because",
)
LARGEST = 100_000_000  # parameters, a byte each


def check_exportable(name: str, model: torch.nn.Module) -> None:
    """ValueError if engine.js cannot compute this model."""
    if type(model) is not GPTNeo:
        raise UserError(f"{name}: neither GPT-Neo nor GPT-2; no other architecture can be exported")
    if unknown := asdict(model.config).keys() - CONFIG:
        raise UserError(
            f"{name}: the exports do not know the model's settings {', '.join(sorted(unknown))}"
        )


def check_page(name: str, model: GPTNeo) -> None:
    if model.config.n_embd % 16:
        raise UserError(
            f"{name}: the page needs an n_embd that is a multiple of 16, not {model.config.n_embd}"
        )
    if model.num_params() > LARGEST:
        raise UserError(
            f"{name}: {model.num_params():,} parameters; a page holds {LARGEST:,}: use a smaller"
            " model"
        )
    if not all(parameter.isfinite().all() for parameter in model.parameters()):
        raise UserError(f"{name}: the model's weights are not finite: its training diverged")


# ---- Weights: int8 with a float32 scale for each row of a matrix; vectors stay float32 ----
def int8_rows(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(rows, columns) -> int8 of that shape, and the scale of each row, whose largest entry becomes
    ±127."""
    scale = weight.abs().amax(1).clamp(min=1e-30) / 127
    return (weight / scale[:, None]).round().to(torch.int8), scale


def pack(model: GPTNeo) -> tuple[list[tuple], bytes]:
    """([(name, rows, columns) or (name, length)], their bytes in this order): the scales before
    their matrix, each padded to 16 bytes. The head is the embedding, stored once."""
    shapes, parts = [], []
    for name, parameter in model.named_parameters():
        tensor = parameter.detach().float().cpu()
        shapes.append((name, *tensor.shape))
        for array in reversed(int8_rows(tensor)) if tensor.dim() == 2 else [tensor]:
            data = array.numpy().astype(array.numpy().dtype.newbyteorder("<")).tobytes()
            parts.append(data + bytes(-len(data) % 16))
    return shapes, b"".join(parts)


# ---- The page ----
def story_page(
    title: str,
    backend: LocalBackend,
    about: Sequence[tuple[str, str]] = (),
    headers: bool = False,
    openings: Sequence[str] = OPENINGS,
) -> bytes:
    """about: rows of a table about the model; headers: whether it was trained on stories below
    headers; openings: first words of stories, to choose from.

    ValueError if the model cannot be on a page.
    """
    check_exportable(title, backend.model)
    check_page(title, backend.model)
    shapes, weights = pack(backend.model)
    engine = dict(
        config=asdict(backend.model.config), shapes=shapes, vocabulary=backend.tokenizer.vocabulary
    )
    engine["kernel"] = base64.b64encode((TEMPLATES / "multiply.wasm").read_bytes()).decode()
    data = dict(
        engine=engine,
        prefix=backend.prefix,
        openings=openings,
        end_of_text=backend.tokenizer.end_of_text,
    )
    rows = "".join(
        f"<tr><td>{html.escape(name)}</td><td>{html.escape(value)}</td></tr>"
        for name, value in about
    )
    fields = "".join(
        f'<label>{each} <input type="text" data-field="{each}"></label>' for each in FIELDS.values()
    )
    texts = dict(name=html.escape(title), about=rows, fields=fields if headers else "")
    texts |= dict(
        engine=(TEMPLATES / "engine.js").read_text("utf-8"),
        weights=base64.b64encode(weights).decode(),
    )
    return page(f"{title} tells stories", "story", data, **texts)
