"""
The model that the benches measure: random weights, the same for us and for transformers.
"""

import numpy as np
import torch

from benches.measure import DEVICE
from model import GPTNeo, GPTNeoConfig
from tokenizer import GPT2_VOCAB_SIZE, cut

SHAPE = dict(vocab_size=10_000, block_size=512, n_layer=8, n_head=16, n_embd=256)


def export_random_model(directory: str, **shape):
    torch.manual_seed(0)
    GPTNeo(GPTNeoConfig(**SHAPE | shape)).to_hf(directory, cut(np.zeros(GPT2_VOCAB_SIZE), SHAPE["vocab_size"]))


def our_model(directory: str) -> GPTNeo:
    return GPTNeo.from_hf(directory).to(DEVICE)


def their_model(directory: str, dtype: torch.dtype = torch.float32):
    from transformers import AutoModelForCausalLM  # a peer, not a dependency

    return AutoModelForCausalLM.from_pretrained(directory, dtype=dtype).eval().to(DEVICE)


def random_tokens(n: int, length: int) -> torch.Tensor:
    """(n, length)"""
    return torch.randint(SHAPE["vocab_size"] - 1, (n, length), generator=torch.Generator().manual_seed(0))
