"""
The models that the benches measure, all of one shape with random weights: ours, transformers', a
nanoGPT-style one.
"""

import tempfile

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from benches.measure import DEVICE
from model import GPTNeo, GPTNeoConfig
from nanostories.checkpoints.huggingface import save_hf
from nanostories.corpus.tokenizer import GPT2_VOCAB_SIZE, cut

SHAPE = dict(vocab_size=10_000, block_size=512, n_layer=8, n_head=16, n_embd=256)


def our_model(**shape) -> GPTNeo:
    torch.manual_seed(0)
    return GPTNeo(GPTNeoConfig(**SHAPE | shape)).eval().to(DEVICE)


def their_model(dtype: torch.dtype = torch.float32):
    """transformers' GPTNeo with our weights."""
    from transformers import AutoModelForCausalLM  # a peer, not a dependency

    with tempfile.TemporaryDirectory() as directory:
        save_hf(our_model(), directory, cut(np.zeros(GPT2_VOCAB_SIZE), SHAPE["vocab_size"]))
        return AutoModelForCausalLM.from_pretrained(directory, dtype=dtype).eval().to(DEVICE)


class PlainGPT(nn.Module):
    """A nanoGPT-style GPT: nanoGPT's initialization, PyTorch's own modules, biases everywhere, all
    logits at once, no cache. Unlike ours, every layer attends to the whole context."""

    def __init__(self, vocab_size: int, block_size: int, n_layer: int, n_head: int, n_embd: int):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab_size, n_embd), nn.Embedding(block_size, n_embd)
        self.blocks = nn.ModuleList(PlainBlock(n_head, n_embd) for _ in range(n_layer))
        self.ln_f = nn.LayerNorm(n_embd)
        self.head = nn.Linear(n_embd, vocab_size, bias=False)
        self.head.weight = self.wte.weight
        for (
            name,
            parameter,
        ) in self.named_parameters():  # with PyTorch's defaults, gradients are denormal: slow
            if parameter.dim() == 2:
                nn.init.normal_(
                    parameter,
                    std=0.02 / (2 * n_layer) ** 0.5 if name.endswith("_out.weight") else 0.02,
                )
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        """The loss; without targets, logits (B, vocab_size) of the next token."""
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.size(1), device=tokens.device))
        for block in self.blocks:
            x = block(x)
        x = self.ln_f(x)
        if targets is None:
            return self.head(x[:, -1])
        return F.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())


class PlainBlock(nn.Module):
    def __init__(self, n_head: int, n_embd: int):
        super().__init__()
        self.n_head = n_head
        self.ln_1, self.ln_2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.qkv, self.attention_out = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)
        self.mlp_in, self.mlp_out = nn.Linear(n_embd, 4 * n_embd), nn.Linear(4 * n_embd, n_embd)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            y.unflatten(2, (self.n_head, -1)).transpose(1, 2)
            for y in self.qkv(self.ln_1(x)).chunk(3, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # (B, H, T, D)
        x = x + self.attention_out(y.transpose(1, 2).flatten(2))
        return x + self.mlp_out(F.gelu(self.mlp_in(self.ln_2(x))))


def random_tokens(n: int, length: int) -> torch.Tensor:
    """(n, length)"""
    return torch.randint(
        SHAPE["vocab_size"] - 1, (n, length), generator=torch.Generator().manual_seed(0)
    )
