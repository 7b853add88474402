"""
ROUGE-2 of 500 texts (second halves of held-out stories) with every one of 99,000 built-in training
stories, against rouge-score-rs, which gets 400 of the stories: pairs per second.

$ python bench.py rouge            # needs rouge-score-rs: pip install -r requirements-dev.txt
"""

import itertools
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from benches.measure import alternating_medians, run_command
from nanostories.generation.prompts import evaluation_prompts
from nanostories.novelty.search import search
from nanostories.novelty.words import WordCorpus, open_corpus

N_TEXTS = 500
N_STORIES = 100_000  # of which prepare.py holds out one in a hundred
N_PEER_STORIES = 400


def make_stories(data_dir: str) -> None:
    run_command("prepare.py", "builtin", f"--stories={N_STORIES}", f"--data_dir={data_dir}")


def build_words(directory: Path) -> WordCorpus:
    """From train.bin, with an empty cache."""
    with tempfile.TemporaryDirectory() as cache:
        os.environ["XDG_CACHE_HOME"] = cache
        return open_corpus(directory)


def bench(rounds=3):
    from rouge_score_rs.rouge_scorer import RougeScorer  # a peer, not a dependency

    scorer = RougeScorer(["rouge2"])

    def search_all():
        return search([corpus.encode(text) for text in texts], corpus.stream, 2, "clipped")

    with tempfile.TemporaryDirectory() as data_dir, ThreadPoolExecutor(os.cpu_count()) as pool:
        make_stories(data_dir)
        directory = Path(data_dir, "builtin")
        corpus = build_words(directory)
        texts = [prompt.reference for prompt in evaluation_prompts(directory, N_TEXTS, cut=0.5)]
        stories = [corpus.text(i) for i in range(N_PEER_STORIES)]
        story_of_pair, text_of_pair = zip(*itertools.product(stories, texts))
        contestants = {
            "ours": search_all,
            "building": lambda: build_words(directory),
            "score_batch": lambda: scorer.score_batch(story_of_pair, text_of_pair),
            "score_multi": lambda: list(pool.map(partial(scorer.score_multi, stories), texts)),
        }
        seconds = alternating_medians(contestants, rounds)

    n_pairs = len(texts) * len(corpus)
    n_peer_pairs = len(texts) * len(stories)
    ours = n_pairs / seconds["ours"]
    with_building = n_pairs / (seconds["ours"] + seconds["building"])
    batch = n_peer_pairs / seconds["score_batch"]
    multi = n_peer_pairs / seconds["score_multi"]
    peer = max(batch, multi)
    figures = {
        "ours, pairs/s": ours,
        "ours, building included, pairs/s": with_building,
        "rouge-score-rs, score_batch, pairs/s": batch,
        "rouge-score-rs, score_multi, pairs/s": multi,
    }
    ratios = {
        "rouge-score-rs": ours / peer,
        "rouge-score-rs_building_included": with_building / peer,
    }
    return ratios, figures
