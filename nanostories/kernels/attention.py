"""
Causal attention without 1/sqrt(d), as in GPT-Neo, in a window of the last tokens, within each
packed story, or both.

>>> starts = story_starts(tokens, end_of_text)                        # only for packed stories
>>> y = causal_attention(q, k, v, visibility(q, 256, starts))

On a CPU this is cpu_attention.cpp, as PyTorch is slow for the 16 narrow heads of the published
models; else scaled_dot_product_attention.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from nanostories.kernels import compile_cpp

# Wider heads go to PyTorch: it was faster there, measured before our kernel used AMX's tiles
# (LOG.md).
MAX_HEAD_WIDTH = 128


# ---- Which keys a query attends to ----
def story_starts(tokens, end_of_text):
    """tokens (B, T) -> (B, T) int32, the position in its window at which each token's story starts.
    end_of_text comes before each story and belongs to it; a window may also begin inside a story,
    which then starts at 0."""
    positions = torch.arange(tokens.size(1), device=tokens.device)
    return torch.where(tokens == end_of_text, positions, 0).cummax(1).values.int()


def visibility(q, window, story_starts=None):
    """For causal_attention of queries q (B, T, H, D) that see at most `window` keys, their own
    included, and with story_starts (B, T) none before their story.

    For C++ it is the first key that each query attends to, (T,) or (B, T) int32; for PyTorch a
    mask, (1 or B, 1, T, T) bool, or None if each query sees all keys before it."""
    T = q.size(1)
    keys = torch.arange(T, dtype=torch.int32, device=q.device)
    first_keys = (keys - window + 1).clamp(min=0)
    if story_starts is not None:
        first_keys = torch.maximum(first_keys, story_starts)
    if uses_cpp(q.device.type, q.dtype, q.size(3)):
        return first_keys
    if T <= window and story_starts is None:
        return None
    mask = (keys <= keys[:, None]) & (keys >= first_keys[..., None])
    return mask.view(-1, 1, T, T)


def uses_cpp(device_type, dtype, head_width):
    """Whether attention is cpu_attention.cpp."""
    if device_type != "cpu" or head_width > MAX_HEAD_WIDTH:
        return False
    return kernel("forward", dtype, head_width) is not None


uses_cpp._dynamo_marked_constant = True  # see compile_cpp.py


def causal_attention(q, k, v, visible, dropout=0.0):
    """Each query attends to its own key and those before it that are visible (see visibility). q,
    k, v and the result: (B, T, H, D). dropout: the share of the weights that are dropped, while the
    others are divided by 1 - dropout."""
    if visible is not None and visible.dtype == torch.int32:
        seed = torch.zeros(1, dtype=torch.int64)
        if dropout:
            seed = torch.randint(2**32, (1,))
        return attention(q, k, v, visible, seed, dropout)[0]
    D = q.size(3)
    if q.is_cuda and D % 8:
        # Fused kernels need widths in steps of 8. Zeros change nothing in q times k, and only
        # append zeros to the output.
        q, k, v = (F.pad(x, (0, -D % 8)) for x in (q, k, v))
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # (B, T, H, D) -> (B, H, T, D)
    causal = visible is None
    y = F.scaled_dot_product_attention(q, k, v, visible, dropout, causal, scale=1.0)
    return y.transpose(1, 2)[..., :D]


# ---- cpu_attention.cpp, as an operator of PyTorch ----
ELEMENTS = {torch.float32: "float", torch.bfloat16: "bf16"}


def kernel(name, dtype, head_width):
    """A function of cpu_attention.cpp, compiled for tensors of this dtype and heads of this width;
    None where that is not possible."""
    if dtype not in ELEMENTS:
        return None
    flags = (f"-DELEMENT={ELEMENTS[dtype]}", f"-DHEAD_WIDTH={head_width}")
    return getattr(compile_cpp.library("cpu_attention", *flags), f"attention_{name}", None)


def call(name, first_keys, seed, dropout, lse, *tensors):
    """tensors: (B, T, H, D) each, with any strides."""
    B, T, H, D = tensors[0].shape
    function = kernel(name, tensors[0].dtype, D)
    n_dropped = round(2**32 * dropout)  # of 2^32 equally likely hashes
    first_keys = first_keys.expand(B, T).contiguous()
    tensors = [x if x.stride(3) == 1 else x.contiguous() for x in tensors]
    heads = torch.stack([compile_cpp.struct(x, *x.stride()[:3]) for x in tensors])
    compile_cpp.call(function, B, T, H, first_keys, int(seed), n_dropped, lse, heads)


# torch.compile keeps graphs on disk by an operator's name: one whose arguments change needs a new
# name.
@torch.library.custom_op("nanostories::cpp_attention", mutates_args=())
def attention(
    q: Tensor, k: Tensor, v: Tensor, first_keys: Tensor, seed: Tensor, dropout: float
) -> tuple[Tensor, Tensor]:
    """-> causal_attention, and the log of each query's sum of exponentials, (B, H, T), for the
    backward pass. seed (1,): decides which weights are dropped, there as here"""
    out, lse = empty_outputs(q)
    call("forward", first_keys, seed, dropout, lse, q, k, v, out)
    return out, lse


@attention.register_fake
def empty_outputs(q, *_):
    B, T, H, D = q.shape
    return q.new_empty(B, T, H, D), q.new_empty(B, H, T, dtype=torch.float32)


@torch.library.custom_op("nanostories::cpp_attention_gradient", mutates_args=())
def attention_gradient(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    first_keys: Tensor,
    seed: Tensor,
    out: Tensor,
    lse: Tensor,
    dout: Tensor,
    dropout: float,
) -> Tensor:
    """(B, T, 3, H, D): the gradients of q, k and v in one tensor, the layout of the projection's
    gradient."""
    gradient = empty_gradient(q)
    call("backward", first_keys, seed, dropout, lse, q, k, v, out, dout, *gradient.unbind(2))
    return gradient


@attention_gradient.register_fake
def empty_gradient(q, *_):
    B, T, H, D = q.shape
    return q.new_empty(B, T, 3, H, D)


def setup_context(ctx, inputs, output):
    *tensors, ctx.dropout = inputs
    ctx.save_for_backward(*tensors, *output)


def backward(ctx, dout, _):
    gradient = attention_gradient(*ctx.saved_tensors, dout, ctx.dropout)
    return *gradient.unbind(2), None, None, None


attention.register_autograd(backward, setup_context=setup_context)
