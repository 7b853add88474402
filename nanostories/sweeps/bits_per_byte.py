"""
A model's size, its bits per byte on validation stories, and its seconds a story: for any model, on
the same text.

$ python -m nanostories.sweeps.bits_per_byte hf:roneneldan/TinyStories-8M \
      --data data/tinystories --out bits.json

Bits per byte by stories: each story is read alone, after what the model expects before a text, or
else an end of text; every byte of it and its end count once. Stories longer than the context are
read in windows that overlap by half. By windows of 256 tokens: the stories and their ends, one
after the other, are cut into windows, each read alone, as by others who publish bits per byte; the
first tokens of a window have little before them, so this is the higher figure.
"""

import itertools
import math
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from nanostories.checkpoints.models import Model, open_model
from nanostories.cli import Parser, UserError, one_line_errors
from nanostories.corpus.token_files import load_stories
from nanostories.results import Cell, Table, save
from nanostories.statistics import ratio
from nanostories.sweeps.plan import count_parameters_and_flops
from nanostories.training.config import TrainConfig

STORIES = 500  # at most
WINDOW = 256  # tokens
TIMED = 4  # stories with the same beginning, written one at a time


def measure(model: Model, data: Path) -> dict[str, Cell]:
    """{column: cell}; intervals are over stories."""
    from nanostories.generation.backends import load_backend

    backend = load_backend(model)
    stories = list(itertools.islice(load_stories(data, "val")[1], STORIES))
    require_lossless(backend.tokenizer, stories)
    config = backend.model.config
    facts = {
        "width": config.n_embd,
        "layers": config.n_layer,
        "heads": config.n_head,
        "parameters": backend.model.num_params(),
    }
    if model.kind == "run":
        # its stories may be among those read here
        facts["training corpus"] = model.corpus.name if model.corpus else "gone"
        trained = TrainConfig(**model.checkpoint["train_config"])
        vocab_size = backend.tokenizer.vocab_size
        _, flops_per_step = count_parameters_and_flops(trained, vocab_size)
        facts["training FLOPs"] = model.checkpoint["step"] * flops_per_step
    facts |= bits_per_byte(backend, stories)
    facts["seconds a story"] = seconds_a_story(backend, stories[0])
    return facts


def require_lossless(tokenizer, stories: Sequence[str]) -> None:
    """UserError if the tokenizer does not give the text back: then its bits are not those of the
    text."""
    for story in stories:
        if tokenizer.decode(tokenizer.encode(story)) != story:
            raise UserError(
                "the model's tokenizer loses characters (capitals, or unknown ones) of"
                f" {story[:50]!r}, so its bits are not those of the text; it cannot be compared"
            )


def seconds_a_story(backend, story: str) -> float:
    """One at a time, all with the same beginning, after one that is not timed: it may have to
    compile the decoder."""
    from nanostories.generation.prompts import Sampling

    beginning = " ".join(story.split()[:10])
    sampling = Sampling(max_new_tokens=200)
    list(backend.complete({(0, 0): beginning}, sampling))
    start = time.perf_counter()
    for j in range(TIMED):
        list(backend.complete({(0, 1 + j): beginning}, sampling))
    return (time.perf_counter() - start) / TIMED


def bits_per_byte(backend, stories: Sequence[str]) -> dict[str, Cell]:
    """By stories, and by windows."""
    end = backend.tokenizer.end_of_text
    ids = [[*backend.tokenizer.encode(story), end] for story in stories]
    n_bytes = np.array([len(story.encode()) for story in stories])
    by_stories = bits_of(backend, [(backend.prefix or [end], story) for story in ids])
    stream = [end, *itertools.chain.from_iterable(ids)]
    windows = [stream[i : i + WINDOW + 1] for i in range(0, len(stream) - 1, WINDOW)]
    by_windows = bits_of(backend, [(window[:1], window[1:]) for window in windows])
    return {
        "bits per byte by stories": ratio(by_stories, n_bytes).cell,
        f"bits per byte by windows of {WINDOW}": by_windows.sum() / n_bytes.sum(),
    }


def bits_of(backend, pairs: Sequence[tuple[list[int], list[int]]]) -> np.ndarray:
    """The bits of each text, given the ids before it."""
    from nanostories.generation.token_likelihoods import log_likelihoods

    nats = [own.double().sum().item() for own in log_likelihoods(backend, pairs)]
    return -np.array(nats) / math.log(2)


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("model", help="as in sample.py --model")
    parser.add_shared("data", required=True)
    parser.add_shared("out", required=True, help="the JSON file to write")
    args = parser.parse_args()
    with one_line_errors("nanostories.sweeps.bits_per_byte", interrupted="nothing was written"):
        model = open_model(args.model)
        cells = {"run": model.label(args.out.parent)} | measure(model, args.data)
        formats = {name: ".3f" for name in cells if name.startswith("bits per byte")}
        formats["training FLOPs"] = ".2e"
        facts = {"kind": "bits per byte"}
        table = Table("Bits per byte", [cells], formats, facts=facts)
        save(args.out, "bits_per_byte", [table], sources=model.files)


if __name__ == "__main__":
    main()
