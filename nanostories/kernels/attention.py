"""
Causal attention without 1/sqrt(d), as in GPT-Neo. `first_key` says which keys a query attends to: a
window, only its own packed story, or both.

>>> starts = story_starts(tokens, end_of_text)                        # only for packed stories
>>> y = causal_attention(q, k, v, first_keys(T, 256, tokens.device, starts))

On a CPU this is cpu_attention.cpp, as PyTorch is slow for the 16 narrow heads of the published
models; on an NVIDIA GPU flex_attention. In all other cases it is scaled_dot_product_attention with
a mask.
"""

import ctypes

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from nanostories.kernels import compile_cpp

# in the C++ kernel; for wider heads PyTorch is faster with AMX in bfloat16 (figures: LOG.md)
MAX_HEAD_WIDTH = 128


def story_starts(tokens: torch.Tensor, end_of_text: int) -> torch.Tensor:
    """tokens (B, T) -> (B, T) int32, the position in its window at which each token's story starts.
    end_of_text comes before each story and belongs to it; a window may also begin inside a story,
    which then starts at 0."""
    positions = torch.arange(tokens.size(1), device=tokens.device)
    return torch.where(tokens == end_of_text, positions, 0).cummax(1).values.int()


def first_keys(
    T: int, window: int, device, story_starts: torch.Tensor | None = None
) -> torch.Tensor | None:
    """The first key that each of T queries attends to, if it sees at most `window` keys, its own
    included, and with story_starts (B, T) none before its story. int32, (T,) or (B, T); None if
    that is the first one for all."""
    if T <= window:
        return story_starts
    first_key = torch.arange(1 - window, T - window + 1, dtype=torch.int32, device=device).clamp(
        min=0
    )
    return first_key if story_starts is None else torch.maximum(first_key, story_starts)


def implementation(
    device_type: str, dtype: torch.dtype, head_width: int, dropout: float, compiled: bool = True
) -> str:
    """The implementation that causal_attention uses: "C++", "flex_attention" or
    "scaled_dot_product_attention".

    compiled: inside torch.compile; outside it, flex_attention would hold all T x T weights. A GPU's
    layers without a window or stories always use scaled_dot_product_attention, which needs no mask
    for them.
    """
    if dropout:
        return "scaled_dot_product_attention"
    if device_type == "cpu" and dtype in (torch.float32, torch.bfloat16) and kernels(head_width):
        return "C++"
    if device_type == "cuda" and compiled and torch.cuda.get_device_capability() >= (8, 0):
        return "flex_attention"
    return "scaled_dot_product_attention"


# torch.compile takes the answer as a constant: it cannot trace how kernels are built. (This is all
# that torch.compiler.assume_constant_result does, but that imports the compiler, which takes a
# second.)
implementation._dynamo_marked_constant = True


def causal_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    first_key: torch.Tensor | None = None,
    dropout: float = 0.0,
) -> torch.Tensor:
    """Query t attends to keys first_key[t] to t. q, k, v and the result: (B, T, H, D).

    first_key: int32, (T,) or (B, T), at most t and never decreasing along T; None: 0 for all.
    """
    chosen = implementation(
        q.device.type, q.dtype, q.size(3), dropout, torch.compiler.is_compiling()
    )
    if chosen == "C++":
        return torch.ops.nanostories.attention(q, k, v, first_key)[0]
    if chosen == "flex_attention" and first_key is not None:
        return flex_attention(q, k, v, first_key)
    return sdp_attention(q, k, v, first_key, dropout)


# ---- PyTorch's ----
def padded(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """Each (…, D) -> (…, 16 or more), in steps of 8, as fused GPU kernels need it. Zeros change
    nothing in q times k, and only append zeros to the output."""
    D = tensors[0].size(-1)
    width = max(16, -(-D // 8) * 8)
    return [F.pad(x, (0, width - D)) for x in tensors] if width > D else list(tensors)


def flex_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, first_key: torch.Tensor
) -> torch.Tensor:
    """causal_attention in one GPU kernel, which skips the blocks of keys that no query of a block
    attends to. The block mask is part of the compiled graph; in training all layers of one window
    share it."""
    from torch.nn.attention import flex_attention as flex  # here, as only a GPU needs it

    B, T, _, D = q.shape

    def visible(b, h, query, key):
        first = first_key[query] if first_key.dim() == 1 else first_key[b, query]
        return (key <= query) & (key >= first)

    mask = flex.create_block_mask(
        visible, B if first_key.dim() == 2 else None, None, T, T, device=q.device
    )
    q, k, v = (x.transpose(1, 2) for x in padded(q, k, v))  # (B, T, H, D) -> (B, H, T, D)
    return flex.flex_attention(q, k, v, block_mask=mask, scale=1.0).transpose(1, 2)[..., :D]


def sdp_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    first_key: torch.Tensor | None = None,
    dropout: float = 0.0,
) -> torch.Tensor:
    """causal_attention by scaled_dot_product_attention, with a mask of T x T where there is a
    first_key."""
    T, D = q.size(1), q.size(3)
    q, k, v = (x.transpose(1, 2) for x in (padded(q, k, v) if q.is_cuda else (q, k, v)))
    if first_key is None:
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0, dropout_p=dropout)
    else:
        key = torch.arange(T, device=q.device)
        mask = (key <= key[:, None]) & (key >= first_key[..., None])  # (T, T) or (B, T, T)
        # Not cuDNN's, whose backward pass can give NaN with a mask: pytorch issue 196678
        with sdpa_kernel(
            [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
        ):
            y = F.scaled_dot_product_attention(
                q, k, v, attn_mask=mask.view(-1, 1, T, T), scale=1.0, dropout_p=dropout
            )
    return y.transpose(1, 2)[..., :D]


# ---- cpu_attention.cpp, as an operator of PyTorch ----
def kernels(head_width: int) -> ctypes.CDLL | None:
    """cpu_attention.cpp, compiled for heads of this width; None where it cannot be, or beyond
    MAX_HEAD_WIDTH."""
    return (
        compile_cpp.library("cpu_attention", HEAD_WIDTH=head_width)
        if head_width <= MAX_HEAD_WIDTH
        else None
    )


class Shape(ctypes.Structure):
    _fields_ = [(name, ctypes.c_long) for name in ("B", "T", "H")]
    _fields_ += [("first_key", ctypes.c_void_p), ("row", ctypes.c_long)]


class Heads(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p)] + [(name, ctypes.c_long) for name in ("b", "t", "h")]


def call(
    name: str, first_key: torch.Tensor | None, lse: torch.Tensor, *tensors: torch.Tensor
) -> None:
    """Calls forward or backward of cpu_attention.cpp. tensors: (B, T, H, D) each, with any
    strides."""
    B, T, H, D = tensors[0].shape
    tensors = [x if x.stride(3) == 1 else x.contiguous() for x in tensors]
    shape = Shape(B, T, H)
    if first_key is not None:
        first_key = (
            first_key.contiguous()
        )  # a local name, so that the copy lives until the call is over
        shape = Shape(B, T, H, first_key.data_ptr(), T if first_key.dim() == 2 else 0)
    heads = [Heads(x.data_ptr(), x.stride(0), x.stride(1), x.stride(2)) for x in tensors]
    function = getattr(kernels(D), f"{name}_{compile_cpp.dtype_name(tensors[0].dtype)}")
    function(shape, compile_cpp.pointer(lse), *heads)


# torch.compile keeps graphs on disk by an operator's name: one whose arguments change needs a new
# name.
@torch.library.custom_op("nanostories::attention", mutates_args=())
def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, first_key: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """-> causal_attention, and the log of each query's sum of exponentials, (B, H, T), for the
    backward pass."""
    B, T, H, D = q.shape
    out, lse = torch.empty(B, T, H, D, dtype=q.dtype), torch.empty(B, H, T)
    call("forward", first_key, lse, q, k, v, out)
    return out, lse


@attention.register_fake
def _(q, k, v, first_key):
    B, T, H, D = q.shape
    return q.new_empty(B, T, H, D), q.new_empty(B, H, T, dtype=torch.float32)


@torch.library.custom_op("nanostories::attention_backward", mutates_args=())
def attention_backward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    first_key: torch.Tensor | None,
    out: torch.Tensor,
    lse: torch.Tensor,
    dout: torch.Tensor,
) -> torch.Tensor:
    """(B, T, 3, H, D): the gradients of q, k and v in one tensor, the layout of the projection's
    gradient."""
    B, T, H, D = q.shape
    grad = torch.empty(B, T, 3, H, D, dtype=q.dtype)
    call("backward", first_key, lse, q, k, v, out, dout, *grad.unbind(2))
    return grad


@attention_backward.register_fake
def _(q, k, v, first_key, out, lse, dout):
    B, T, H, D = q.shape
    return q.new_empty(B, T, 3, H, D)


def setup_context(ctx, inputs, output):
    ctx.save_for_backward(*inputs, *output)


def backward(ctx, dout, _):
    grad = torch.ops.nanostories.attention_backward(*ctx.saved_tensors, dout)
    return *grad.unbind(2), None


attention.register_autograd(backward, setup_context=setup_context)
