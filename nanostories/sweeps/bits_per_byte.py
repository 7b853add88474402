"""
A model's size, its bits per byte on validation stories, and its seconds a story: for any model, on
the same text.

$ python -m nanostories.sweeps.bits_per_byte hf:roneneldan/TinyStories-8M \
      --data data/tinystories --out bits.json

Bits per byte by stories: each story is read alone, after an end of text if the model expects one;
every byte of it and its end count once. Stories longer than the context are read in windows that
overlap by half. By windows of 256 tokens: the stories and their ends, one after the other, are cut
into windows, each read alone, as by others who publish bits per byte; the first tokens of a window
have little before them, so this is the higher figure.
"""

import itertools
import math
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from nanostories.checkpoints.checkpoint import find_training_corpus, load_checkpoint
from nanostories.cli import Parser, one_line_errors, positive
from nanostories.corpus.token_files import load_stories
from nanostories.files import write_json
from nanostories.statistics import bootstrap_ratio, interval
from nanostories.training.run_directory import read_log

WINDOW = 256  # tokens
TIMED = 4  # stories with the same beginning, written one at a time


def measure(name: str, data: Path, n_stories: int) -> dict:
    """{column: value, or its value and the ends of its 95% interval over stories}"""
    from nanostories.checkpoints.models import open_model
    from nanostories.generation.backends import load_backend
    from nanostories.generation.prompts import Sampling

    backend, stories = (
        load_backend(open_model(name)),
        list(itertools.islice(load_stories(data, "val")[1], n_stories)),
    )
    config = backend.model.config
    facts = dict(n_embd=config.n_embd, n_layer=config.n_layer, n_head=config.n_head)
    facts |= dict(parameters=backend.model.num_params())
    if (log := Path(name, "log.csv")).exists():
        checkpoint = load_checkpoint(name)
        corpus = find_training_corpus(checkpoint)
        tokens = next(
            int(row["tokens"]) for row in read_log(log) if int(row["step"]) == checkpoint["step"]
        )
        facts |= {
            "training corpus": corpus.name if corpus else "gone"
        }  # its stories may be among those read here
        facts |= dict(flops=tokens * backend.model.flops_per_token(config.block_size))
    facts |= bits_per_byte(backend, stories)
    start, beginning = time.perf_counter(), " ".join(stories[0].split()[:10])
    for j in range(TIMED):
        list(backend.complete([beginning], [(0, j)], Sampling(max_new_tokens=200)))
    return facts | {"seconds a story": (time.perf_counter() - start) / TIMED}


def bits_per_byte(backend, stories: Sequence[str]) -> dict:
    """By stories, with the ends of its 95% interval over stories, and by windows."""
    encode, end = backend.tokenizer.encode, backend.tokenizer.end_of_text
    ids, n_bytes = (
        [[*encode(story), end] for story in stories],
        np.array([len(story.encode()) for story in stories]),
    )
    bits = bits_of(backend, [(backend.prefix or [end], story) for story in ids])
    by_stories = interval(bootstrap_ratio(bits, n_bytes), len(stories))
    stream = [end, *itertools.chain.from_iterable(ids)]
    windows = [stream[i : i + WINDOW + 1] for i in range(0, len(stream) - 1, WINDOW)]
    by_windows = (
        bits_of(backend, [(window[:1], window[1:]) for window in windows]).sum() / n_bytes.sum()
    )
    found = {"bits per byte by stories": [float(value) for value in by_stories]}
    return found | {f"bits per byte by windows of {WINDOW}": float(by_windows)}


def bits_of(backend, pairs: Sequence[tuple[list[int], list[int]]]) -> np.ndarray:
    """The bits of each text, given the ids before it."""
    from nanostories.generation.token_likelihoods import log_likelihoods

    return np.array(
        [-nats.double().sum().item() / math.log(2) for nats in log_likelihoods(backend, pairs)]
    )


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("model", help="as in sample.py --model")
    parser.add_shared("data", required=True)
    parser.add_argument(
        "--stories", type=positive, default=500, help="validation stories to read (default: 500)"
    )
    parser.add_shared("out", required=True, help="the JSON file to write")
    args = parser.parse_args()
    with one_line_errors("nanostories.sweeps.bits_per_byte", interrupted="nothing was written"):
        args.out.parent.mkdir(parents=True, exist_ok=True)
        write_json(args.out, measure(args.model, args.data, args.stories))


if __name__ == "__main__":
    main()
