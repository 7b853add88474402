"""A model whose heads and neurons do what was planted in its weights, and the stories that it
reads."""

import functools

import numpy as np
import pytest
import torch
from random_models import random_model

from model import GPTNeo, GPTNeoConfig
from nanostories.corpus.builtin_stories import ROLES
from nanostories.interpretation.reading import Reading, read_activations
from nanostories.interpretation.word_classes import TaggedCorpus, TaggedStory, kind_of

T = 40
WORDS = []
for kind in ("noun", "verb", "adjective"):
    WORDS += sorted(word for word in ROLES if ROLES[word][0] == kind)[:30]
WORDS += "Tom Mia Ben Sue Max Leo Ivy Ann Sam Fay Zoe Ada".split()
WORDS += '. , ! ? " ; : - !" ."'.split()
NAMES = frozenset(WORDS[90:102])
V = len(WORDS)
# Every second layer has a window of 7; or attention is scaled, and its matrices have biases.
SHAPES = {
    "GPT-Neo": {},
    "GPT-2": {"scale_attention": True, "qkv_bias": True, "window_size": T},
}
for_both_models = pytest.mark.parametrize(
    "any_model", [random_model(vocab_size=V, **shape) for shape in SHAPES.values()], ids=SHAPES
)


def planted_corpus(n: int = 60) -> TaggedCorpus:
    """Stories of words drawn at random, each a token; a quarter of each repeats what came
    before."""
    rng = np.random.default_rng(0)
    stories = []
    for _ in range(n):
        ids = rng.integers(V, size=T + 1 - rng.integers(10))
        ids[-10:] = ids[5:15]
        ids = torch.from_numpy(ids)
        tokens = ids[:-1]
        stories.append(TaggedStory(tokens, ids[1:], words=tokens, ends=tokens >= 0))
    names = frozenset(map(str.lower, NAMES))
    return TaggedCorpus(stories, WORDS, [kind_of(word, names) for word in WORDS])


@torch.no_grad()
def planted_model() -> GPTNeo:
    """Weights by hand. The residual stream holds the token, its position, and in layer 1 the token
    before it.

    Heads: 0.0 looks at the previous token and copies it, 0.1 at the first; 1.0 at what followed the
    token before, and writes it, so does induction; 1.1 attends uniformly. Neurons: 0.3 fires on
    token 7, 0.5 on names; others at random.
    """
    torch.manual_seed(0)
    C = 2 * V + T
    config = GPTNeoConfig(vocab_size=V, block_size=T, n_layer=2, n_head=2, n_embd=C, window_size=T)
    model = GPTNeo(config).eval()
    token, position, before = slice(0, V), slice(V, V + T), slice(V + T, C)
    for name, parameter in model.named_parameters():
        if "ln" not in name and "mlp_in" not in name:
            parameter.zero_()
    model.wte.weight[:, token] = torch.eye(V)
    model.wpe.weight[:, position] = torch.eye(T)
    D = C // 2
    (q0, k0, v0), (q1, k1, v1) = (block.qkv.weight.view(3, 2, D, C) for block in model.blocks)
    q0[0, : T - 1, position] = torch.eye(T)[1:]  # position i asks for i - 1
    k0[0, :T, position] = torch.eye(T)
    v0[0, :V, token] = torch.eye(V)
    model.blocks[0].attention_out.weight[before, :V] = torch.eye(V)
    q0[1, 0, position] = 1.0  # any position asks for the first
    k0[1, 0, V] = 1.0
    q1[0, :V, token] = torch.eye(V)
    k1[0, :V, before] = torch.eye(V)
    v1[0, :V, token] = torch.eye(V)
    model.blocks[1].attention_out.weight[token, :V] = 5 * torch.eye(V)
    neurons = model.blocks[0].mlp_in.weight
    neurons[[3, 5]] = 0.0
    neurons[3, 7] = 1.0
    neurons[5, 90:102] = 1.0
    return model


@functools.cache
def planted_reading() -> Reading:
    return read_activations(planted_model(), planted_corpus())


class Alphabet:
    """A tokenizer of WORDS."""

    end_of_text = -1

    def decode(self, ids) -> str:
        return WORDS[ids[0]]

    def decode_bytes(self, ids) -> bytes:
        return f" {WORDS[ids[0]]}".encode()
