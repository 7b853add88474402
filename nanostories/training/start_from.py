"""--start_from: the weights, shape and vocabulary of a run of ours, of a checkpoint, or of a
published model; and --bigram_init: embeddings from counts."""

from collections.abc import Mapping
from dataclasses import replace

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


def load_source(config: TrainConfig) -> tuple[tuple[GPTNeo, Tokenizer], TrainConfig]:
    """((model, tokenizer) of config.start_from, the config with its shape)."""
    model, tokenizer = load_model(config.start_from)
    architecture = next(name for name, cls in MODELS.items() if type(model) is cls)
    if type(model) is GPTNeo and model.config.qkv_bias:
        architecture = "gpt2"
    if model.config.scale_attention != model.config.qkv_bias:
        raise UserError(
            f"{config.start_from}: train.py has no architecture with biases and without scaled"
            " attention"
        )
    return (model, tokenizer), with_shape(
        config, vars(model.config) | dict(architecture=architecture)
    )


def with_shape(config: TrainConfig, shape: Mapping) -> TrainConfig:
    """The config with the shape of its source. A smaller block_size stays: later positions are cut
    off."""
    block_size = min(config.block_size, shape["block_size"])
    shape = {name: shape[name] for name in SHAPE} | dict(
        block_size=block_size, copy_init=0.0, bigram_init=0.0
    )
    return replace(config, **shape)


def copy_weights(
    model: GPTNeo, source: tuple[GPTNeo, Tokenizer], tokenizer: Tokenizer, config: TrainConfig
) -> None:
    """UserError if the corpus, whose tokenizer is given, has another vocabulary."""
    if source[1].vocabulary != tokenizer.vocabulary:
        remedy = f"prepare it under another name with --vocabulary_of {config.start_from}"
        raise UserError(
            f"data={config.data} has another vocabulary than {config.start_from}; {remedy}"
        )
    weights = source[0].state_dict()
    weights["wpe.weight"] = weights["wpe.weight"][: config.block_size]
    model.load_state_dict(weights)


def add_bigram_embeddings(model: GPTNeo, tokens: np.ndarray, size: float, ranks: Ranks) -> None:
    """To the embeddings of all ranks: the first one computes them."""
    vectors = torch.zeros_like(model.wte.weight)
    if ranks.rank == 0:
        vectors += bigram_embeddings(tokens, *vectors.shape).to(vectors.device)
    ranks.sum([vectors])
    model.wte.weight.data += size * vectors


def bigram_embeddings(tokens: np.ndarray, vocab_size: int, n_embd: int) -> torch.Tensor:
    """(vocab_size, n_embd), rows of mean square 1: tokens are similar if similar tokens follow
    them, or precede them.

    These are the left and the right singular vectors of the positive pointwise mutual information
    of adjacent tokens, weighted by the square roots of both counts."""
    from scipy.sparse import coo_matrix
    from scipy.sparse.linalg import svds

    tokens = np.asarray(tokens[:COUNTED_TOKENS], dtype=np.int32)
    counts = np.bincount(tokens, minlength=vocab_size).astype(float)
    pairs = coo_matrix(
        (np.ones(len(tokens) - 1), (tokens[:-1], tokens[1:])), (vocab_size, vocab_size)
    )
    pairs.sum_duplicates()
    products = counts[pairs.row] * counts[pairs.col]
    information = np.log(pairs.data / (products / len(tokens) + 1)).clip(
        0
    )  # + 1: rare pairs say little
    pairs.data = information * np.sqrt(products)
    left, sizes, right = svds(pairs.tocsr(), (n_embd + 1) // 2, random_state=0)
    vectors = (np.hstack([left, right.T]) * np.tile(np.sqrt(sizes), 2))[:, :n_embd]
    vectors /= np.sqrt((vectors**2).mean(1, keepdims=True)).clip(1e-9)
    return torch.from_numpy(vectors).float()
