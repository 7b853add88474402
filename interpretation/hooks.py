"""
A model watched while it reads: who looks at whom, what each head finds there, what each neuron says.

>>> logits, cache = run_with_cache(model, tokens)        # tokens (B, T)
>>> cache["blocks.2.attention"]                          # (B, H, T, T), [query, key]; rows sum to 1

This is the explicit, slow path: it changes nothing in model.py, whose attention never holds these weights.
"""

import contextlib
from collections.abc import Callable

import torch

from model import GPTNeo

See = Callable[[str, torch.Tensor], None]  # is told what was computed: a name such as "blocks.2.attention", a tensor


def visible(T: int, window: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """(T, T) bool: which keys (columns) each query may look at."""
    return torch.ones(T, T, dtype=torch.bool, device=device).tril().triu(1 - window)


@contextlib.contextmanager
def watching(model: GPTNeo, see: See):
    """While it lasts, `see` is told of the residual stream (B, T, C) before every layer, "blocks.0.input", and behind
    the last, "output"; and of the neurons, "blocks.0.mlp" (B, T, 4C), after their GELU."""
    parts = [(f"blocks.{i}.input", block) for i, block in enumerate(model.blocks)]
    parts += [(f"blocks.{i}.mlp", block.mlp_out) for i, block in enumerate(model.blocks)]
    parts += [("output", model.ln_f)]
    handles = [part.register_forward_pre_hook(lambda _, args, name=name: see(name, args[0])) for name, part in parts]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def run_fast(model: GPTNeo, tokens: torch.Tensor, see: See) -> torch.Tensor:
    """tokens (B, T) -> the residual stream behind the last LayerNorm, (B, T, C); `see` is told what `watching` says."""
    with watching(model, see):
        return model.hidden(tokens, torch.arange(tokens.size(1), device=tokens.device), model.attend)


@torch.no_grad()
def run(model: GPTNeo, tokens: torch.Tensor, see: See) -> torch.Tensor:
    """The same with attention written out: `see` is also told of "blocks.0.attention" (B, H, T, T), and of what each
    head read there, "blocks.0.heads" (B, T, H, D)."""
    T = tokens.size(1)

    def attend(layer, q, k, v):
        with torch.autocast(tokens.device.type, enabled=False):
            q, k, v = (x.float().transpose(1, 2) for x in (q, k, v))  # (B, T, H, D) -> (B, H, T, D)
            seen = visible(T, model.config.window(layer), tokens.device)
            attention = (q @ k.transpose(2, 3)).masked_fill_(~seen, -torch.inf).softmax(-1)
            heads = (attention @ v).transpose(1, 2)
            see(f"blocks.{layer}.attention", attention)
            see(f"blocks.{layer}.heads", heads)
        return heads

    with watching(model, see):
        return model.hidden(tokens, torch.arange(T, device=tokens.device), attend)


@torch.no_grad()
def run_with_cache(model: GPTNeo, tokens: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """tokens (B, T) -> logits (B, T, vocab_size), and all that `run` shows, by name."""
    cache = {}
    hidden = run(model, tokens, cache.__setitem__)
    return model.head(hidden), cache
