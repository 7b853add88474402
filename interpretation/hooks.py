"""
A model's activations while it reads: attention weights, what each head outputs, what each neuron outputs.

>>> logits, cache = run_with_cache(model, tokens)        # tokens (B, T)
>>> cache["blocks.2.attention"]                          # (B, H, T, T), [query, key]; rows sum to 1

Attention weights take an explicit, slow path here, because model.py's fused attention never materializes them.
"""

import contextlib
from collections.abc import Callable

import torch

from model import GPTNeo

Record = Callable[[str, torch.Tensor], None]  # called with a name such as "blocks.2.attention", and the activations


def visible_keys(T: int, window: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """(T, T) bool: which keys (columns) each query may attend to."""
    return torch.ones(T, T, dtype=torch.bool, device=device).tril().triu(1 - window)


@contextlib.contextmanager
def recording(model: GPTNeo, record: Record):
    """Calls `record` with the residual stream (B, T, C) before every layer, "blocks.0.input", and after the last,
    "output"; and with the neurons after their GELU, "blocks.0.mlp" (B, T, 4C)."""
    parts = [(f"blocks.{i}.input", block) for i, block in enumerate(model.blocks)]
    parts += [(f"blocks.{i}.mlp", block.mlp_out) for i, block in enumerate(model.blocks)]
    parts += [("output", model.ln_f)]
    handles = [part.register_forward_pre_hook(lambda _, args, name=name: record(name, args[0])) for name, part in parts]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def run_fast(model: GPTNeo, tokens: torch.Tensor, record: Record) -> torch.Tensor:
    """tokens (B, T) -> the residual stream after the last LayerNorm, (B, T, C). Records what `recording` says."""
    with recording(model, record):
        return model.hidden(tokens, torch.arange(tokens.size(1), device=tokens.device), model.attend)


@torch.no_grad()
def run_explicit(model: GPTNeo, tokens: torch.Tensor, record: Record) -> torch.Tensor:
    """The same with attention written out: also records "blocks.0.attention" (B, H, T, T) and the output of each head,
    "blocks.0.heads" (B, T, H, D)."""
    T = tokens.size(1)

    def attend(layer, q, k, v):
        with torch.autocast(tokens.device.type, enabled=False):
            q, k, v = (x.float().transpose(1, 2) for x in (q, k, v))  # (B, T, H, D) -> (B, H, T, D)
            visible = visible_keys(T, model.config.window(layer), tokens.device)
            attention = (q @ k.transpose(2, 3)).masked_fill_(~visible, -torch.inf).softmax(-1)
            heads = (attention @ v).transpose(1, 2)
            record(f"blocks.{layer}.attention", attention)
            record(f"blocks.{layer}.heads", heads)
        return heads

    with recording(model, record):
        return model.hidden(tokens, torch.arange(T, device=tokens.device), attend)


@torch.no_grad()
def run_with_cache(model: GPTNeo, tokens: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """tokens (B, T) -> logits (B, T, vocab_size), and everything that `run_explicit` records, by name."""
    cache = {}
    hidden = run_explicit(model, tokens, cache.__setitem__)
    return model.head(hidden), cache
