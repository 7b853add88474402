"""
Causal attention on a GPU, with a window or within stories, without a T x T mask where possible.

FlashAttention can do it, through PyTorch's varlen_attn; that needs bfloat16 or float16, an Ampere GPU or newer, and a
PyTorch whose varlen_attn takes a window (2.12 and 2.13 do). Otherwise, and for dropout, there is banded_attention;
stories then need a mask after all.
"""

import inspect

import torch
import torch.nn.functional as F

from kernels.packed_stories import PackedStories, visible_keys

HEAD_BYTES = 16  # the fused kernels need the width of a head to be a multiple of this


def padded_width(width: int, dtype: torch.dtype) -> int:
    multiple = HEAD_BYTES // dtype.itemsize
    return -(-width // multiple) * multiple


def padded(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """Each (…, D) -> (…, padded_width). Zeros change nothing in q times k, and only append zeros to the output."""
    n_zeros = padded_width(tensors[0].size(-1), tensors[0].dtype) - tensors[0].size(-1)
    return [F.pad(x, (0, n_zeros)) for x in tensors] if n_zeros else list(tensors)


def windowed_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    window: int,
    dropout: float = 0.0,
    stories: PackedStories | None = None,
):
    """Each query attends to the last `window` keys, its own included; with `stories`, only to those of its own story.
    All (B, T, H, D)."""
    T, D = q.size(1), q.size(3)
    q, k, v = padded(q, k, v)
    if T <= window and stories is None:
        return attend(q, k, v, dropout, is_causal=True)[..., :D]
    if q.dtype in (torch.bfloat16, torch.float16) and not dropout and flash_takes_a_window():
        return flash_attention(q, k, v, window, stories and stories.cu_seqlens)[..., :D]
    if stories is not None:
        return attend(q, k, v, dropout, attn_mask=visible_keys(T, window, stories.starts, q.device))[..., :D]
    return banded_attention(q, k, v, window, dropout)[..., :D]


def flash_takes_a_window() -> bool:
    from torch.nn.attention.varlen import varlen_attn  # imported here: it takes a second, and only a GPU needs it

    return "window_size" in inspect.signature(varlen_attn).parameters and torch.cuda.get_device_capability() >= (8, 0)


flash_takes_a_window._dynamo_marked_constant = True  # as in attention.py


def flash_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int, cu_seqlens: torch.Tensor | None = None
) -> torch.Tensor:
    """windowed_attention in half precision, D a multiple of 8: the batch as packed sequences, B of T tokens, or its
    stories, as bounded by PackedStories.cu_seqlens. (Backward, an empty sequence takes the memory of 128 tokens.)"""
    from torch.nn.attention.varlen import varlen_attn

    B, T = q.shape[:2]
    if cu_seqlens is None:
        cu_seqlens = torch.arange(0, B * T + 1, T, dtype=torch.int32, device=q.device)
    # window_size: keys to the left and right of a query's own; (0, 0) is only that one, -1 all of them.
    reach = (-1 if window >= T else window - 1, 0)
    packed = (x.flatten(0, 1) for x in (q, k, v))
    return varlen_attn(*packed, cu_seqlens, cu_seqlens, T, T, scale=1.0, window_size=reach).unflatten(0, (B, T))


def banded_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int, dropout: float = 0.0):
    """windowed_attention, window < T, in blocks of `window` queries: the first is plain causal attention, each of the
    others sees two blocks of keys under one mask of window x 2 window."""
    B, T = q.shape[:2]
    first = attend(*(x[:, :window] for x in (q, k, v)), dropout, is_causal=True)
    q, k, v = (F.pad(x, (0, 0, 0, 0, 0, -T % window)).unflatten(1, (-1, window)) for x in (q, k, v))  # (B, N, W, H, D)
    k, v = (torch.cat([x[:, :-1], x[:, 1:]], dim=2).flatten(0, 1) for x in (k, v))  # (B * (N - 1), 2W, H, D)
    mask = torch.ones(window, 2 * window, dtype=torch.bool, device=q.device).tril(window).triu(1)
    others = attend(q[:, 1:].flatten(0, 1), k, v, dropout, attn_mask=mask).unflatten(0, (B, -1)).flatten(1, 2)
    return torch.cat([first, others], dim=1)[:, :T]


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropout: float, **masking) -> torch.Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # (B, T, H, D) -> (B, H, T, D)
    return F.scaled_dot_product_attention(q, k, v, scale=1.0, dropout_p=dropout, **masking).transpose(1, 2)
