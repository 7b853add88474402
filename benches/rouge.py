"""
ROUGE-2 of 500 texts (second halves of held-out stories) with every one of 100,000 built-in training stories, beside
rouge-score-rs: pairs per second.

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
from generation.prompts import evaluation_prompts
from novelty.search import search
from novelty.words import Corpus, open_corpus

N_TEXTS, N_STORIES = 500, 100_000


def make_stories(directory: Path, n: int) -> None:
    """About n training stories."""
    flags = ["--stories", str(n + 3 * N_TEXTS), "--val_share", str(3 * N_TEXTS / (n + 3 * N_TEXTS))]
    command = [sys.executable, ROOT / "prepare.py", "builtin", "--data_dir", directory.parent, "--name", directory.name]
    subprocess.run([*command, *flags], check=True, stdout=2)


def held_out_endings(directory: Path) -> list[str]:
    return [prompt.reference for prompt in evaluation_prompts(directory, N_TEXTS, cut=0.5)]


def nearest_f(corpus: Corpus, texts: list[str], n_stories: int | None = None) -> np.ndarray:
    first = slice(0, n_stories)
    stories = corpus.stream._replace(starts=corpus.stream.starts[first], ends=corpus.stream.ends[first])
    return search(corpus.encode(texts), stories, k=2, counting="clipped").f


def build_words(directory: Path) -> Corpus:
    """From train.bin, with an empty cache."""
    with tempfile.TemporaryDirectory() as cache:
        os.environ["XDG_CACHE_HOME"] = cache
        return open_corpus(directory)


def race(directory: Path, rounds: int) -> dict[str, float]:
    """Pairs per second. The peer gets a sample of the pairs, through both of its batch calls."""
    from rouge_score_rs.rouge_scorer import RougeScorer  # a peer, not a dependency

    scorer, corpus, texts = RougeScorer(["rouge2"]), build_words(directory), held_out_endings(directory)
    few = [corpus.text(i) for i in range(400)]
    pairs = list(zip(*((story, text) for text in texts for story in few)))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        contestants = {
            "ours": lambda: nearest_f(corpus, texts),
            "building": lambda: build_words(directory),
            "rouge-score-rs, score_batch": lambda: scorer.score_batch(*pairs),
            "rouge-score-rs, score_multi": lambda: list(pool.map(partial(scorer.score_multi, few), texts)),
        }
        seconds = alternating_medians(contestants, rounds)
        theirs = [best["rouge2"].fmeasure for best in pool.map(partial(scorer.score_multi, few), texts)]
    assert np.allclose(nearest_f(corpus, texts, len(few)), theirs, rtol=0, atol=1e-12)
    building = seconds.pop("building")
    rates = {name: len(texts) * (len(corpus) if name == "ours" else len(few)) / t for name, t in seconds.items()}
    return rates | {"ours, building included": len(texts) * len(corpus) / (seconds["ours"] + building)}


def bench(rounds: int = 3) -> tuple[dict, dict]:
    with tempfile.TemporaryDirectory() as temporary:
        make_stories(Path(temporary, "stories"), N_STORIES)
        rates = race(Path(temporary, "stories"), rounds)
    peer = max(rate for name, rate in rates.items() if name.startswith("rouge-score-rs"))
    ratios = {"rouge-score-rs": rates["ours"] / peer}
    ratios["rouge-score-rs_building_included"] = rates["ours, building included"] / peer
    return ratios, {f"{name}, pairs/s": rate for name, rate in rates.items()}
