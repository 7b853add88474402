"""
ROUGE-2 of 500 texts (second halves of held-out stories) with every one of 100,000 built-in training
stories, against rouge-score-rs: pairs per second.

$ python bench.py rouge            # needs rouge-score-rs: pip install -r requirements-dev.txt
"""

import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np

from benches.measure import ROOT, alternating_medians
from nanostories.generation.prompts import evaluation_prompts
from nanostories.novelty.search import search
from nanostories.novelty.words import WordCorpus, open_corpus

N_TEXTS, N_STORIES = 500, 100_000


def make_stories(directory: Path, n: int) -> None:
    """About n training stories."""
    flags = ["--stories", str(n + 3 * N_TEXTS), "--val_share", str(3 * N_TEXTS / (n + 3 * N_TEXTS))]
    command = [
        sys.executable,
        ROOT / "prepare.py",
        "builtin",
        "--data_dir",
        directory.parent,
        "--name",
        directory.name,
    ]
    subprocess.run([*command, *flags], check=True, stdout=2)


def nearest_f(corpus: WordCorpus, texts: list[str], n_stories: int | None = None) -> np.ndarray:
    first = slice(0, n_stories)
    stories = corpus.stream._replace(
        starts=corpus.stream.starts[first], ends=corpus.stream.ends[first]
    )
    return search(corpus.encode(texts), stories, k=2, counting="clipped").f


def build_words(directory: Path) -> WordCorpus:
    """From train.bin, with an empty cache."""
    with tempfile.TemporaryDirectory() as cache:
        os.environ["XDG_CACHE_HOME"] = cache
        return open_corpus(directory)


def bench(rounds: int = 3) -> tuple[dict, dict]:
    """Pairs per second. The peer gets a sample of the pairs, through both of its batch calls."""
    from rouge_score_rs.rouge_scorer import RougeScorer  # a peer, not a dependency

    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(os.cpu_count()) as pool:
        directory, scorer = Path(temporary, "stories"), RougeScorer(["rouge2"])
        make_stories(directory, N_STORIES)
        corpus = build_words(directory)
        texts = [prompt.reference for prompt in evaluation_prompts(directory, N_TEXTS, cut=0.5)]
        few = [corpus.text(i) for i in range(400)]
        pairs = list(zip(*((story, text) for text in texts for story in few)))
        contestants = {
            "ours": lambda: nearest_f(corpus, texts),
            "building": lambda: build_words(directory),
            "rouge-score-rs, score_batch": lambda: scorer.score_batch(*pairs),
            "rouge-score-rs, score_multi": lambda: list(
                pool.map(partial(scorer.score_multi, few), texts)
            ),
        }
        seconds = alternating_medians(contestants, rounds)
        theirs = [
            best["rouge2"].fmeasure for best in pool.map(partial(scorer.score_multi, few), texts)
        ]
        assert np.allclose(nearest_f(corpus, texts, len(few)), theirs, rtol=0, atol=1e-12)
    seconds["ours, building included"] = seconds["ours"] + seconds.pop("building")
    n_stories = {name: len(corpus if name.startswith("ours") else few) for name in seconds}
    rates = {name: len(texts) * n_stories[name] / seconds[name] for name in seconds}
    peer = max(rate for name, rate in rates.items() if name.startswith("rouge-score-rs"))
    ratios = {"rouge-score-rs": rates["ours"] / peer}
    ratios["rouge-score-rs_building_included"] = rates["ours, building included"] / peer
    return ratios, {f"{name}, pairs/s": rate for name, rate in rates.items()}
