"""
Reads stories once, and sums what heads and neurons do on them.

>>> corpus = TaggedCorpus.from_texts(texts, tokenizer, prefix, block_size=512)
>>> reading = read_activations(model, corpus)
>>> rows = head_rows(reading.heads, induction_shares(model, corpus, prefix))
"""

import collections
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from tqdm import tqdm

from model import GPTNeo
from nanostories.interpretation.heads import HeadSums, key_features
from nanostories.interpretation.hooks import run, run_with_cache
from nanostories.interpretation.neurons import NeuronSums
from nanostories.interpretation.word_classes import TaggedCorpus


@dataclass
class Reading:
    heads: list[HeadSums]  # of each layer: the attention, summed by kind of key
    neurons: NeuronSums
    residual: NeuronSums  # coordinates of the residual stream after each layer
    # {"blocks.2.z": (H, D), before the output projection, "blocks.2.post": (4C,), after the GELU}
    means: dict[str, torch.Tensor]


@torch.no_grad()
def read_activations(model: GPTNeo, corpus: TaggedCorpus, n_ablation: int = 0) -> Reading:
    """The first n_ablation stories, which parts are ablated on, are left out of the means."""
    config = model.config
    device = model.wte.weight.device
    heads = [HeadSums(config.n_head, config.window(i), device) for i in range(config.n_layer)]
    neurons = NeuronSums((config.n_layer, 4 * config.n_embd), corpus, device)
    residual = NeuronSums((config.n_layer, config.n_embd), corpus, device)
    sums = collections.Counter()
    n = 0  # tokens in the means
    for number, story in enumerate(tqdm(corpus.stories, "reading", disable=None, delay=1)):
        cache = {}
        run(model, story.tokens[None], cache.__setitem__, with_pattern=True)
        features = key_features(story, corpus)
        for layer in range(config.n_layer):
            heads[layer].add(cache[f"blocks.{layer}.pattern"][0], features)
            neurons.add(layer, number, cache[f"blocks.{layer}.post"][0])
            residual.add(layer, number, cache[f"blocks.{layer}.resid_post"][0])
        if number >= n_ablation:
            n += len(story.tokens)
            for name in cache:
                if name.endswith((".z", ".post")):
                    sums[name] += cache[name][0].sum(0)
    means = {name: total / n for name, total in sums.items()}
    return Reading(heads, neurons, residual, means)


def attention_maps(model: GPTNeo, ids: Sequence[int]) -> np.ndarray:
    """(heads, query, key), in the order of heads.csv."""
    _, cache = run_with_cache(model, torch.tensor([ids], device=model.wte.weight.device))
    patterns = [cache[f"blocks.{layer}.pattern"][0] for layer in range(model.config.n_layer)]
    return torch.cat(patterns).cpu().numpy()
