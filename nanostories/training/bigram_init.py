"""--bigram_init: embeddings that begin with what counts of adjacent tokens say."""

import numpy as np
import torch

from model import GPTNeo
from nanostories.cli import UserError
from nanostories.training.distributed import Ranks

COUNTED_TOKENS = 20_000_000  # from the start of the training stories


def add_bigram_embeddings(model: GPTNeo, tokens: np.ndarray, size: float, ranks: Ranks) -> None:
    """Adds bigram_embeddings times `size` to the embeddings. The first process computes them."""
    vectors = torch.zeros_like(model.wte.weight)
    if ranks.rank == 0:
        vectors += bigram_embeddings(tokens, *vectors.shape).to(vectors.device)
    ranks.sum([vectors])  # the others have zeros, so all get those of the first
    model.wte.weight.data += size * vectors


def bigram_embeddings(tokens: np.ndarray, vocab_size: int, n_embd: int) -> torch.Tensor:
    """(vocab_size, n_embd), rows of mean square 1: tokens are similar if similar tokens follow
    them, or precede them.

    These are the left and the right singular vectors of the positive pointwise mutual information
    of adjacent tokens, weighted by the square roots of both counts."""
    from scipy.sparse import coo_matrix
    from scipy.sparse.linalg import svds

    n_vectors = (n_embd + 1) // 2
    if n_vectors >= vocab_size:
        raise UserError(
            f"bigram_init: a vocabulary of {vocab_size} is too small for n_embd={n_embd}; set"
            " --bigram_init=0"
        )
    tokens = np.asarray(tokens[:COUNTED_TOKENS], dtype=np.int32)
    n_tokens = len(tokens)
    ones = np.ones(n_tokens - 1)
    pairs = coo_matrix((ones, (tokens[:-1], tokens[1:])), (vocab_size, vocab_size))
    pairs.sum_duplicates()
    counts = np.bincount(tokens, minlength=vocab_size).astype(float)
    products = counts[pairs.row] * counts[pairs.col]
    # Pointwise mutual information; + 1 in the denominator, as rare pairs say little
    information = np.log(pairs.data / (products / n_tokens + 1)).clip(0)
    pairs.data = information * np.sqrt(products)
    left, sizes, right = svds(pairs.tocsr(), n_vectors, random_state=0)
    vectors = np.hstack([left, right.T]) * np.tile(np.sqrt(sizes), 2)
    vectors = vectors[:, :n_embd]
    root_mean_square = np.sqrt((vectors**2).mean(1, keepdims=True))
    return torch.from_numpy(vectors / root_mean_square.clip(1e-9)).float()
