"""
Reads stories once, and sums what heads and neurons do on them.

>>> corpus = TaggedCorpus.from_texts(texts, tokenizer, prefix, block_size=512)
>>> reading = read_activations(model, corpus)
>>> rows = head_rows(reading.heads, induction_shares(model, corpus, prefix))
"""

import collections
from dataclasses import dataclass

import torch
from tqdm import tqdm

from model import GPTNeo
from nanostories.interpretation.heads import HeadSums, key_features
from nanostories.interpretation.hooks import run
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
def read_activations(model: GPTNeo, corpus: TaggedCorpus, n_ablated: int = 0) -> Reading:
    """The first n_ablated stories, which parts are ablated on, are left out of the means."""
    config = model.config
    heads = [HeadSums(config.window(layer)) for layer in range(config.n_layer)]
    neurons = NeuronSums((config.n_layer, 4 * config.n_embd), corpus)
    residual = NeuronSums((config.n_layer, config.n_embd), corpus)
    sums = collections.Counter()  # of tensors: a missing one counts as 0
    n = 0  # tokens in the means
    for number, story in enumerate(tqdm(corpus.stories, "reading", disable=None, delay=1)):
        cache = {}
        run(model, story.tokens[None], cache, with_pattern=True)
        features = key_features(story, corpus)
        for layer in range(config.n_layer):
            heads[layer].add(cache[f"blocks.{layer}.pattern"][0], features)
            neurons.add(layer, number, cache[f"blocks.{layer}.post"][0])
            residual.add(layer, number, cache[f"blocks.{layer}.resid_post"][0])
        if number >= n_ablated:
            n += len(story.tokens)
            for name in cache:
                if name.endswith((".z", ".post")):
                    sums[name] += cache[name][0].sum(0)
    means = {name: total / n for name, total in sums.items()}
    return Reading(heads, neurons, residual, means)
