"""What the benches have in common: a shape, the peers' models with random weights (transformers'
GPTNeo, and a nanoGPT-style GPT), training steps, and stories."""

import math
from functools import partial

import torch
import torch.nn as nn
import torch.nn.functional as F

from benches.measure import DEVICE
from model import GPTNeo, GPTNeoConfig
from nanostories.checkpoints.huggingface import config_to_hf
from nanostories.generation.generation_loop import generate
from nanostories.generation.prompts import Sampling
from nanostories.training.config import TrainConfig
from nanostories.training.state import TrainingState
from train import train_step

SHAPE = GPTNeoConfig()  # that of the published 8M


def random_tokens(n: int, length: int) -> torch.Tensor:
    """(n, length)"""
    return torch.randint(SHAPE.vocab_size, (n, length), device=DEVICE)


# ---- What is timed ----
def next_token_loss(model, inputs, targets):
    return model(inputs, targets)[1]


def training_steps(model: nn.Module, config: TrainConfig, n: int, loss=next_token_loss):
    """A function that takes n steps of train.py, of one micro-batch of random tokens."""
    state = TrainingState(model, config)
    loss_of = partial(loss, state.compiled_model)
    tokens = random_tokens(config.batch_size, config.block_size + 1).to(state.device)
    micro_batches = [(tokens[:, :-1], tokens[:, 1:], 1.0)]

    def take_steps():
        for _ in range(n):
            train_step(state, loss_of, micro_batches)

    return take_steps


def tell_stories(model: GPTNeo, prompts: torch.Tensor, n_tokens: int, top_k=None) -> None:
    """prompts: (N, T); equal ones are read once."""
    by_key = {(i, 0): prompt for i, prompt in enumerate(prompts.tolist())}
    sampling = Sampling(top_k=top_k, max_new_tokens=n_tokens)
    assert all(len(story) == n_tokens for _, story, _ in generate(model, by_key, sampling))


# ---- Models ----
def transformers_gptneo(shape: GPTNeoConfig, dtype: str = "float32") -> nn.Module:
    import transformers  # a peer, not a dependency

    settings = config_to_hf(shape) | {"bos_token_id": None, "eos_token_id": None}
    config = transformers.GPTNeoConfig(**settings)
    return transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)


class PlainGPT(nn.Module):
    """A nanoGPT-style GPT: nanoGPT's initialization, PyTorch's own modules, biases everywhere, all
    logits at once, no cache. Unlike ours, every layer attends to the whole context."""

    def __init__(self, shape: GPTNeoConfig):
        super().__init__()
        self.wte = nn.Embedding(shape.vocab_size, shape.n_embd)
        self.wpe = nn.Embedding(shape.block_size, shape.n_embd)
        self.blocks = nn.ModuleList(PlainBlock(shape) for _ in range(shape.n_layer))
        self.ln_f = nn.LayerNorm(shape.n_embd)
        self.head = nn.Linear(shape.n_embd, shape.vocab_size, bias=False)
        self.head.weight = self.wte.weight
        # With PyTorch's own initialization, gradients are denormal numbers, which are slow.
        self.apply(GPTNeo._init_weights)
        for block in self.blocks:
            block.attention_out.weight.data /= math.sqrt(2 * shape.n_layer)
            block.mlp_out.weight.data /= math.sqrt(2 * shape.n_layer)

    def forward(self, tokens, targets=None, story_starts=None):
        """(B, T) -> the next tokens' logits (B, vocab_size), None; with targets: None, loss."""
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.size(1), device=tokens.device))
        for block in self.blocks:
            x = block(x)
        x = self.ln_f(x)
        if targets is None:
            return self.head(x[:, -1]), None
        return None, F.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())


class PlainBlock(nn.Module):
    def __init__(self, shape: GPTNeoConfig):
        super().__init__()
        C = shape.n_embd
        self.n_head = shape.n_head
        self.qkv = nn.Sequential(nn.LayerNorm(C), nn.Linear(C, 3 * C))
        self.attention_out = nn.Linear(C, C)
        self.mlp_in = nn.Sequential(nn.LayerNorm(C), nn.Linear(C, 4 * C), nn.GELU())
        self.mlp_out = nn.Linear(4 * C, C)

    def forward(self, x):
        qkv = self.qkv(x).chunk(3, dim=2)
        # (B, T, C) -> (B, H, T, D)
        q, k, v = [y.unflatten(2, (self.n_head, -1)).transpose(1, 2) for y in qkv]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attention_out(y.transpose(1, 2).flatten(2))
        return x + self.mlp_out(self.mlp_in(x))
