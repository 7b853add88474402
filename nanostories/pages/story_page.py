"""
The page on which a model tells stories: its weights in 8 bits, its vocabulary, and an engine, in
one file.

>>> backend = load_backend(open_model("out/demo"))
>>> content, lessons = story_page("demo", backend, {"license": "MIT"})
"""

import base64
import copy
import html
from collections.abc import Sequence
from dataclasses import asdict

import torch

from model import GPTNeo
from nanostories.cli import UserError
from nanostories.corpus.instruct_headers import FIELDS
from nanostories.generation.backends import LocalBackend
from nanostories.generation.generation_loop import generate
from nanostories.generation.prompts import Sampling
from nanostories.interpretation.hooks import run
from nanostories.pages.html import TEMPLATES, page
from nanostories.pages.lessons import Lesson, find_lessons

OPENINGS = (
    "Once upon a time, there was a little fox",
    "One day, a girl named Lily found a",
    "Tom was sad because",
)
TEMPERATURE = 0.6  # of the page's stories
N_STORIES = 16  # told for the means of heads and for lessons
LONGEST = 300  # tokens of each
LARGEST = 100_000_000  # parameters, a byte each


def check_page(name: str, model: GPTNeo) -> None:
    width = model.config.n_embd
    if width % 16:
        raise UserError(f"{name}: a page needs an n_embd that is a multiple of 16, not {width}")
    size = model.num_params()
    if size > LARGEST:
        raise UserError(f"{name}: {size:,} parameters; a page holds at most {LARGEST:,}")
    if not all(parameter.isfinite().all() for parameter in model.parameters()):
        raise UserError(f"{name}: the model's weights are not finite: its training diverged")


# ---- Weights: int8 with a float32 scale for each row of a matrix; vectors stay float32 ----
def int8_rows(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(rows, columns) -> int8 of that shape, and the scale of each row, whose largest entry becomes
    ±127."""
    scale = weight.abs().amax(1).clamp(min=1e-30) / 127
    return (weight / scale[:, None]).round().to(torch.int8), scale


def pack(model: GPTNeo) -> tuple[list[tuple], bytes, GPTNeo]:
    """([(name, rows, columns) or (name, length)], their bytes in this order, a copy of the model
    with these weights, as float32). The scales stand before their matrix, each array is padded to
    16 bytes. The head is the embedding, stored once."""
    model = copy.deepcopy(model).float().cpu().eval().requires_grad_(False)
    shapes = []
    content = bytearray()
    for name, parameter in model.named_parameters():
        shapes.append((name, *parameter.shape))
        arrays = [parameter]
        if parameter.dim() == 2:
            rows, scale = int8_rows(parameter)
            parameter.copy_(rows * scale[:, None])
            arrays = [scale, rows]
        for array in arrays:
            content += array.numpy().tobytes()
            content += bytes(-len(content) % 16)
    return shapes, bytes(content), model


# ---- What the model itself tells ----
def own_stories(backend: LocalBackend, beginnings: Sequence[str]) -> list[list[int]]:
    """Stories of the model, as ids, each begun with the next of the beginnings."""
    most = backend.model.config.block_size // 2
    openings = [backend.encode(text)[:most] for text in beginnings or [""]]
    prompts = {(0, i): openings[i % len(openings)] for i in range(N_STORIES)}
    sampling = Sampling(TEMPERATURE, max_new_tokens=LONGEST)
    told = generate(backend.model, prompts, sampling, stop=backend.tokenizer.end_of_text)
    stories = {key: prompts[key] + tokens for key, tokens, _ in told}
    return [stories[key] for key in prompts]


@torch.no_grad()
def head_means(model: GPTNeo, stories: Sequence[list[int]]) -> torch.Tensor:
    """(n_layer, n_head, D): what the heads put out on average over the tokens of these stories."""
    sums = 0
    for ids in stories:
        cache = {}
        run(model, torch.tensor([ids]), cache)
        outputs = [cache[f"blocks.{layer}.z"] for layer in range(model.config.n_layer)]
        sums += torch.cat(outputs).sum(1)
    return sums / sum(map(len, stories))


# ---- The page ----
def story_page(
    name: str,
    backend: LocalBackend,
    facts: dict[str, str],
    title: str = "",
    introduction: str = "",
    has_headers: bool = False,
    openings: Sequence[str] = OPENINGS,
    language: str = "en",
) -> tuple[bytes, list[Lesson]]:
    """Returns the page, and the lessons that were tried: the page has those that hold.

    facts: about the model, for a table; introduction: in a sentence below the title;
    has_headers: whether it was trained on stories below headers; openings: first words of stories,
    to choose from. UserError if the model cannot be on a page.
    """
    check_page(name, backend.model)
    shapes, weights, model = pack(backend.model)
    tokenizer = backend.tokenizer
    stories = own_stories(LocalBackend(model, tokenizer, backend.prefix), openings)
    means = head_means(model, stories)
    words = [tokenizer.decode([id]) for id in range(tokenizer.vocab_size)]
    lessons = find_lessons(model, means, words, stories)
    engine = {
        "config": asdict(backend.model.config),
        "shapes": shapes,
        "means": means.flatten(1).tolist(),
        "kernel": base64.b64encode((TEMPLATES / "multiply.wasm").read_bytes()).decode(),
    }
    data = {
        "engine": engine,
        "vocabulary": {
            "tokens": [token.decode("latin-1") for token in tokenizer.ranks],
            "pattern": tokenizer.vocabulary["pattern"],
        },
        "prefix": backend.prefix,
        "openings": openings,
        "end_of_text": tokenizer.end_of_text,
        "lessons": [asdict(lesson) for lesson in lessons if lesson.holds],
        "fields": list(FIELDS.values()) if has_headers else [],
        "facts": facts,
        "language": language,
    }
    title = title or f"{name} tells stories"
    content = page(
        title,
        "story",
        data,
        scripts=["engine.js", "microscope.js", "lessons.js"],
        heading=html.escape(title),
        introduction=html.escape(introduction),
        weights=base64.b64encode(weights).decode(),
    )
    return content, lessons
