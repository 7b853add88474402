"""
ROUGE-2 of 500 texts (second halves of held-out stories) with every one of 100,000 built-in training stories, beside
rouge-score-rs: pairs per second. And time and memory as the training set grows to a million stories. Takes ten minutes.

$ python bench.py rouge            # needs rouge-score-rs: pip install -r requirements-dev.txt
"""

import hashlib
import json
import os
import shutil
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from benches.measure import alone, alternating_medians, peak_mib
from corpus.preparation import prepare_builtin
from corpus.token_files import load_meta_and_tokens
from generation.prompts import evaluation_prompts
from novelty.corpus_words import Stories, open_stories
from novelty.ngram_search import search

N_TEXTS, N_STORIES, GROWTH = 500, 100_000, (10_000, 100_000, 1_000_000)


def write_first_stories(source: Path, directory: Path, n: int):
    """A copy of the corpus with only its first n training stories."""
    meta, tokens = load_meta_and_tokens(source, "train")
    tokens = tokens[: np.flatnonzero(tokens == len(meta["gpt2_ids"]))[n - 1] + 1]
    meta["splits"]["train"] |= dict(stories=n, tokens=len(tokens), sha256=hashlib.sha256(tokens).hexdigest())
    directory.mkdir()
    tokens.tofile(directory / "train.bin")
    shutil.copy(source / "val.bin", directory)
    (directory / "meta.json").write_text(json.dumps(meta))


def held_out_endings(directory: Path) -> list[str]:
    return [prompt.reference for prompt in evaluation_prompts(directory, N_TEXTS, cut=0.5)]


def find_nearest(stories: Stories, texts: list[str]) -> np.ndarray:
    return search(stories.encode(texts), stories.stream, k=2, counting="clipped").f


def build_words(directory: Path) -> Stories:
    shutil.rmtree(directory / "words", ignore_errors=True)
    return open_stories(directory)


def race(directory: Path, rounds: int) -> dict[str, float]:
    """Pairs per second. The peer gets a sample of the pairs, through both of its batch calls."""
    from rouge_score_rs.rouge_scorer import RougeScorer  # a peer, not a dependency

    scorer = RougeScorer(["rouge2"])
    stories, texts = build_words(directory), held_out_endings(directory)
    few = [stories.text(i) for i in range(400)]
    pairs = list(zip(*((story, text) for text in texts for story in few)))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        contestants = {
            "ours": lambda: find_nearest(stories, texts),
            "building": lambda: build_words(directory),
            "rouge-score-rs, score_batch": lambda: scorer.score_batch(*pairs),
            "rouge-score-rs, score_multi": lambda: list(pool.map(partial(scorer.score_multi, few), texts)),
        }
        seconds = alternating_medians(contestants, rounds)
        theirs = [best["rouge2"].fmeasure for best in pool.map(partial(scorer.score_multi, few), texts)]
    first = replace(stories.stream, starts=stories.stream.starts[:400], ends=stories.stream.ends[:400])
    assert np.allclose(find_nearest(replace(stories, stream=first), texts), theirs, rtol=0, atol=1e-12)
    building = seconds.pop("building")
    rates = {name: len(texts) * (len(stories) if name == "ours" else len(few)) / t for name, t in seconds.items()}
    return rates | {"ours, building included": len(texts) * len(stories) / (seconds["ours"] + building)}


def growth(directory: Path) -> dict[str, float]:
    """Seconds and memory to build, open and search the words of these stories."""
    start = time.perf_counter()
    build_words(directory)
    built = time.perf_counter()
    stories, texts = open_stories(directory), held_out_endings(directory)
    opened = time.perf_counter()
    find_nearest(stories, texts)
    moments = dict(build=built - start, open=opened - built, search=time.perf_counter() - opened)
    figures = {f"{what}, seconds": value for what, value in moments.items()} | {"peak MiB": peak_mib()}
    return figures | {"words on disk, MB": sum(path.stat().st_size for path in (directory / "words").iterdir()) / 1e6}


def bench(rounds: int) -> tuple[dict, dict]:
    figures = {}
    with tempfile.TemporaryDirectory() as temporary:
        source = Path(temporary, "all")
        prepare_builtin(source, n_stories=GROWTH[-1] + 3000, val_share=0.002)
        for n in GROWTH:
            write_first_stories(source, Path(temporary, f"{n}"), n)
        rates = race(Path(temporary, f"{N_STORIES}"), rounds)
        for n in GROWTH:
            grown = alone(growth, Path(temporary, f"{n}"))
            figures |= {f"{n:,} stories: {what}": value for what, value in grown.items()}
    peer = max(rate for name, rate in rates.items() if name.startswith("rouge-score-rs"))
    ratios = {"rouge-score-rs": rates["ours"] / peer}
    ratios["rouge-score-rs_building_included"] = rates["ours, building included"] / peer
    return ratios, {f"{name}, pairs/s": rate for name, rate in rates.items()} | figures
