"""
Runs a model and reads its activations by name, or replaces (patches) some of them.

>>> logits, cache = run_with_cache(model, tokens)                     # tokens (B, T)
>>> cache["blocks.2.pattern"]  # (B, H, T, T), [query, key]; rows sum to 1
>>> run(model, tokens, patches={"blocks.2.z": lambda z: z * 0})  # the model without layer 2's heads

The names are TransformerLens's short names, in the order in which a block computes them:

resid_pre    (B, T, C)     the residual stream before the block
q, k, v      (B, T, H, D)  queries (scaled, where the model scales attention), keys and values
pattern      (B, H, T, T)  attention; only with_pattern: model.py's fused one never has it
z            (B, T, H, D)  each head's values, weighted by its attention
attn_out     (B, T, C)     the sum of all heads' writes, with the bias
post         (B, T, 4C)    the neurons, after their GELU
mlp_out      (B, T, C)     the MLP's write, with the bias
resid_post   (B, T, C)     the residual stream after the block
"""

import contextlib
from collections.abc import Callable, Mapping

import torch

from model import GPTNeo
from nanostories.cli import UserError

Patch = Callable[[torch.Tensor], torch.Tensor]  # the activations -> their replacement


def visible_keys(T: int, window: int, device: torch.device) -> torch.Tensor:
    """(T, T) bool: which keys (columns) each query may attend to."""
    return torch.ones(T, T, dtype=torch.bool, device=device).tril().triu(1 - window)


@contextlib.contextmanager
def hooked(model: GPTNeo, hook: Callable[[str, torch.Tensor], torch.Tensor]):
    """All activations but those of attention go through `hook`, which returns those to continue
    with."""
    handles = contextlib.ExitStack()

    def hook_input(name: str, part: torch.nn.Module) -> None:
        def replace(_, args):
            return hook(name, args[0]), *args[1:]

        handles.enter_context(part.register_forward_pre_hook(replace))

    def hook_output(name: str, part: torch.nn.Module) -> None:
        def replace(_, args, output):
            return hook(name, output)

        handles.enter_context(part.register_forward_hook(replace))

    with handles:
        for i, block in enumerate(model.blocks):
            hook_input(f"blocks.{i}.resid_pre", block)
            hook_input(f"blocks.{i}.post", block.mlp_out)
            hook_output(f"blocks.{i}.attn_out", block.attention_out)
            hook_output(f"blocks.{i}.mlp_out", block.mlp_out)
            hook_output(f"blocks.{i}.resid_post", block)
        yield


def run(
    model: GPTNeo,
    tokens: torch.Tensor,
    cache: dict[str, torch.Tensor] | None = None,
    patches: Mapping[str, Patch] | None = None,
    with_pattern: bool = False,
) -> torch.Tensor:
    """tokens (B, T) -> the residual stream after the last LayerNorm, (B, T, C).

    cache: gets all activations, after patching. patches: {name: replacement}; UserError if there is
    nothing of this name to patch.
    """
    T = tokens.size(1)
    waiting = dict(patches or {})

    def hook(name: str, x: torch.Tensor) -> torch.Tensor:
        if name in waiting:
            x = waiting.pop(name)(x)
        if cache is not None:
            cache[name] = x
        return x

    attention = model.attention()

    def attend(layer, q, k, v):
        q, k, v = (hook(f"blocks.{layer}.{name}", x) for name, x in zip("qkv", (q, k, v)))
        if not with_pattern:
            return hook(f"blocks.{layer}.z", attention(layer, q, k, v))
        with torch.autocast(tokens.device.type, enabled=False):
            q, k, v = (x.float().transpose(1, 2) for x in (q, k, v))  # (B, T, H, D) -> (B, H, T, D)
            visible = visible_keys(q.size(2), model.config.window(layer), tokens.device)
            pattern = (q @ k.transpose(2, 3)).masked_fill_(~visible, -torch.inf).softmax(-1)
            pattern = hook(f"blocks.{layer}.pattern", pattern)
            z = (pattern @ v).transpose(1, 2)  # (B, H, T, D) -> (B, T, H, D)
            return hook(f"blocks.{layer}.z", z)

    with hooked(model, hook):
        hidden = model.hidden(tokens, torch.arange(T, device=tokens.device), attend)
    if waiting:
        raise UserError(
            f"no activations to patch: {', '.join(waiting)} (pattern: only if with_pattern=True)"
        )
    return hidden


@torch.no_grad()
def run_with_cache(
    model: GPTNeo, tokens: torch.Tensor, patches: Mapping[str, Patch] | None = None
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """tokens (B, T) -> logits (B, T, vocab_size), and all activations that the list above names."""
    cache = {}
    hidden = run(model, tokens, cache, patches, with_pattern=True)
    return model.head(hidden), cache
