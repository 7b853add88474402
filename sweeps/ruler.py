"""
A model's size, its bits per byte on validation stories, and its seconds a story: for any model, on the same text.

$ python -m sweeps.ruler hf:roneneldan/TinyStories-8M --data data/tinystories --out ruler.json

Each story is read alone, after an end of text if the model expects one; every byte of it and its end count once.
Stories longer than the context are read in windows that overlap by half.
"""

import itertools
import math
import time
from pathlib import Path

import numpy as np

from common.cli import Parser, one_line_errors, positive
from common.files import write_json
from common.statistics import bootstrap_ratio, interval
from corpus.token_files import load_stories

TIMED = 4  # stories of one beginning, written one at a time


def measure(name: str, data: Path, n_stories: int) -> dict:
    """{column: value, or its value and the ends of its 95% interval over stories}"""
    from generation.backends import load_backend
    from generation.prompts import Sampling, cut_story
    from generation.token_likelihoods import log_likelihoods

    backend, facts = load_backend(name), {}
    stories = list(itertools.islice(load_stories(data, "val")[1], n_stories))
    if not name.startswith("api:"):
        config, tokenizer = backend.model.config, backend.tokenizer
        facts |= dict(n_embd=config.n_embd, n_layer=config.n_layer, n_head=config.n_head)
        facts |= dict(parameters=backend.model.num_params())
        prefix = backend.prefix or [tokenizer.end_of_text]
        pairs = [(prefix, [*tokenizer.encode(story), tokenizer.end_of_text]) for story in stories]
        nats = np.array([nats.double().sum().item() for nats in log_likelihoods(backend, pairs)])
        n_bytes = np.array([len(story.encode()) for story in stories])
        bits = interval(bootstrap_ratio(-nats / math.log(2), n_bytes), len(stories))
        facts["bits per byte of validation stories"] = [float(value) for value in bits]
    start, beginning = time.perf_counter(), cut_story(stories[0], 0.5).text
    for j in range(TIMED):
        list(backend.complete([beginning], [(0, j)], Sampling(max_new_tokens=200)))
    return facts | {"seconds a story": (time.perf_counter() - start) / TIMED}


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("model", help="as in sample.py --model")
    parser.add_shared("data", required=True)
    parser.add_argument("--stories", type=positive, default=100, help="validation stories to read")
    parser.add_shared("out", required=True, help="the JSON file to write")
    args = parser.parse_args()
    with one_line_errors("sweeps.ruler", interrupted="nothing was written"):
        args.out.parent.mkdir(parents=True, exist_ok=True)
        write_json(args.out, measure(args.model, args.data, args.stories))


if __name__ == "__main__":
    main()
