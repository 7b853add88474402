"""--start_from: the weights, shape and vocabulary of a run of ours, of a checkpoint, or of a
published model; and --bigram_init: embeddings from counts."""

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from model import GPTNeo
from nanostories.checkpoints.huggingface import load_model
from nanostories.cli import UserError
from nanostories.corpus.tokenizer import Tokenizer
from nanostories.training.config import SHAPE, TrainConfig
from nanostories.training.distributed import Ranks
from nanostories.variants import MODELS

COUNTED_TOKENS = 20_000_000  # from the start of the training stories


class Source(NamedTuple):
    """Where the weights of a run come from."""

    model: GPTNeo
    tokenizer: Tokenizer


def load_source(config: TrainConfig) -> tuple[Source, TrainConfig]:
    """What config.start_from names, and the config with that shape."""
    model, tokenizer = load_model(config.start_from)
    is_gpt2 = model.config.qkv_bias
    if model.config.scale_attention != is_gpt2:
        raise UserError(f"{config.start_from}: GPT-2 whose attention is not scaled")
    architecture = "gpt2" if is_gpt2 else "gptneo"
    if type(model) is MODELS["compressor"]:
        architecture = "compressor"
    shape = vars(model.config) | {"architecture": architecture}
    return Source(model, tokenizer), with_shape(config, shape)


def with_shape(config: TrainConfig, shape: Mapping) -> TrainConfig:
    """The config with the shape of its source. A smaller block_size stays: later positions are cut
    off."""
    settings = {name: shape[name] for name in SHAPE}
    block_size = min(config.block_size, shape["block_size"])
    return replace(config, **settings, block_size=block_size, copy_init=0.0, bigram_init=0.0)


def copy_weights(source: GPTNeo, model: GPTNeo) -> None:
    weights = source.state_dict()
    weights["wpe.weight"] = weights["wpe.weight"][: model.config.block_size]
    model.load_state_dict(weights)


def add_bigram_embeddings(model: GPTNeo, tokens: np.ndarray, size: float, ranks: Ranks) -> float:
    """To the embeddings of all ranks: the first one computes them. Returns the seconds that this
    took, which count as training."""
    start = time.perf_counter()
    vectors = torch.zeros_like(model.wte.weight)
    if ranks.rank == 0:
        vectors += bigram_embeddings(tokens, *vectors.shape).to(vectors.device)
    ranks.sum([vectors])  # the others have zeros, so all get those of the first
    model.wte.weight.data += size * vectors
    return ranks.max(time.perf_counter() - start)


def bigram_embeddings(tokens: np.ndarray, vocab_size: int, n_embd: int) -> torch.Tensor:
    """(vocab_size, n_embd), rows of mean square 1: tokens are similar if similar tokens follow
    them, or precede them.

    These are the left and the right singular vectors of the positive pointwise mutual information
    of adjacent tokens, weighted by the square roots of both counts."""
    from scipy.sparse import coo_matrix
    from scipy.sparse.linalg import svds

    tokens = np.asarray(tokens[:COUNTED_TOKENS], dtype=np.int32)
    n_tokens = len(tokens)
    ones = np.ones(n_tokens - 1)
    pairs = coo_matrix((ones, (tokens[:-1], tokens[1:])), (vocab_size, vocab_size))
    pairs.sum_duplicates()
    counts = np.bincount(tokens, minlength=vocab_size).astype(float)
    products = counts[pairs.row] * counts[pairs.col]
    # + 1: rare pairs say little
    information = np.log(pairs.data / (products / n_tokens + 1)).clip(0)
    pairs.data = information * np.sqrt(products)
    left, sizes, right = svds(pairs.tocsr(), (n_embd + 1) // 2, random_state=0)
    vectors = np.hstack([left, right.T]) * np.tile(np.sqrt(sizes), 2)
    vectors = vectors[:, :n_embd]
    root_mean_square = np.sqrt((vectors**2).mean(1, keepdims=True))
    return torch.from_numpy(vectors / root_mean_square.clip(1e-9)).float()
