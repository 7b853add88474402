"""
Causal attention as in GPT-Neo: with a window, and without 1/sqrt(d). Optionally only within each packed story.

On a GPU this is gpu_windowed_attention.py, around PyTorch's kernels. On a CPU, PyTorch's is slow for the 16 narrow
heads of the published models, so cpu_attention.cpp is used if there is a C++ compiler and it measures faster.
"""

import ctypes
import functools

import torch

from kernels import autotune, compile_cpp
from kernels.compile_cpp import dtype_name
from kernels.gpu_windowed_attention import attend, windowed_attention
from kernels.packed_stories import PackedStories, visible_keys

STORY_TOKENS = 200  # length of the stories used to time the implementations, roughly the mean of TinyStories


def causal_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    window: int,
    dropout: float = 0.0,
    stories: PackedStories | None = None,
):
    """Each query attends to the last `window` keys, its own included; with `stories`, only to those of its own story.
    All (B, T, H, D)."""
    T, H, D = q.shape[1:]
    story_starts = None if stories is None else stories.starts
    on_cpu = q.device.type == "cpu" and q.dtype in (torch.float32, torch.bfloat16)
    alike = q.stride() == k.stride() == v.stride() and q.stride(3) == 1 and q.dtype == k.dtype == v.dtype
    if on_cpu and alike and not dropout and implementation(T, H, D, window, q.dtype, stories is not None) == "kernel":
        return torch.ops.nanostories.cpu_attention(q, k, v, min(window, T), story_starts)[0]
    if q.is_cuda:
        return windowed_attention(q, k, v, window, dropout, stories)
    return pytorch_attention(q, k, v, window, dropout, story_starts)


def pytorch_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    window: int,
    dropout: float = 0.0,
    story_starts: torch.Tensor | None = None,
):
    """causal_attention by PyTorch's own kernels. story_starts (B, T): see PackedStories."""
    T = q.size(1)
    if T <= window and story_starts is None:
        return attend(q, k, v, dropout, is_causal=True)
    return attend(q, k, v, dropout, attn_mask=visible_keys(T, window, story_starts, q.device))


# ---- Which implementation ----


def implementation(T: int, H: int, D: int, window: int, dtype: torch.dtype, packed: bool = False) -> str:
    """The faster of "kernel" and "pytorch" on this CPU, forward and backward, at the next power of two of T.
    packed: with several stories in a window, which do not see each other."""
    rounded = max(64, 1 << (T - 1).bit_length())
    return measured_implementation(rounded, H, D, min(window, rounded), dtype, packed)


# torch.compile must not trace the compiling and timing. This is all that torch.compiler.assume_constant_result does,
# but that imports torch.compile's tracer, which takes a second even in commands that compile nothing.
implementation._dynamo_marked_constant = True


@functools.cache
@torch.inference_mode(False)  # the caller may be in inference mode
@torch.enable_grad()
def measured_implementation(T: int, H: int, D: int, window: int, dtype: torch.dtype, packed: bool) -> str:
    if dtype not in (torch.float32, torch.bfloat16) or kernels(D) is None:
        return "pytorch"
    generator = torch.Generator().manual_seed(0)
    B = max(2, -(-2 * torch.get_num_threads() // H))  # enough heads for every thread, as in a batch
    qkv = torch.randn(B, T, 3, H, D, generator=generator).to(dtype).requires_grad_()
    story_starts = (torch.arange(T).int() // STORY_TOKENS * STORY_TOKENS).expand(B, T).contiguous() if packed else None

    def run(attention):
        attention(*qkv.unbind(2)).sum().backward()

    candidates = dict(
        kernel=lambda: run(lambda q, k, v: torch.ops.nanostories.cpu_attention(q, k, v, window, story_starts)[0]),
        pytorch=lambda: run(lambda q, k, v: pytorch_attention(q, k, v, window, story_starts=story_starts)),
    )
    built = kernels(D)._name  # a changed kernel is measured again
    what = f"attention{' within stories' if packed else ''}, {T} x {H} x {D}, window {window}, {dtype}, {built}"
    return autotune.fastest(what, candidates)


def kernels(D: int) -> ctypes.CDLL | None:
    """cpu_attention.cpp, compiled for heads of width D; None without a compiler."""
    return compile_cpp.library("cpu_attention", HEAD_WIDTH=D)


# ---- The kernel as an operator of PyTorch ----


def call(name: str, tensors: list[torch.Tensor | None], shape: tuple[int, ...], strided: list[torch.Tensor]):
    """Call a kernel with pointers (None: null), (B, T, H, window) and the (b, t, h) strides of each of `strided`."""
    pointers = [None if x is None else compile_cpp.pointer(x) for x in tensors]
    strides = [Strides(x.stride(0), x.stride(1), x.stride(2)) for x in strided]
    function = getattr(kernels(tensors[0].size(3)), f"{name}_{dtype_name(tensors[0].dtype)}")
    function(*pointers, Shape(*shape), *strides)


class Shape(ctypes.Structure):
    _fields_ = [(name, ctypes.c_long) for name in ("B", "T", "H", "window")]


class Strides(ctypes.Structure):
    _fields_ = [(name, ctypes.c_long) for name in ("b", "t", "h")]


@torch.library.custom_op("nanostories::cpu_attention", mutates_args=())
def cpu_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int, story_starts: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, T, H, D) each -> the same, and the log of each query's sum of exponentials (B, H, T) for backward.
    story_starts (B, T) int32: see PackedStories."""
    assert story_starts is None or (story_starts.dtype == torch.int32 and story_starts.is_contiguous())
    B, T, H, D = q.shape
    out, lse = torch.empty(B, T, H, D, dtype=q.dtype), torch.empty(B, H, T)
    call("forward", [q, k, v, story_starts, out, lse], (B, T, H, window), [q, out])
    return out, lse


@cpu_attention.register_fake
def _(q, k, v, window, story_starts=None):
    B, T, H, D = q.shape
    return q.new_empty(B, T, H, D), q.new_empty(B, H, T, dtype=torch.float32)


@torch.library.custom_op("nanostories::cpu_attention_backward", mutates_args=())
def cpu_attention_backward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    dout: torch.Tensor,
    lse: torch.Tensor,
    window: int,
    story_starts: torch.Tensor | None = None,
) -> torch.Tensor:
    """(B, T, 3, H, D): the gradients of q, k and v in one tensor, the layout of the projection's gradient."""
    B, T, H, D = q.shape
    grad = torch.empty(B, T, 3, H, D, dtype=q.dtype)
    dq, dk, dv = grad.unbind(2)
    tensors = [q, k, v, story_starts, out, dout.contiguous(), lse, dq, dk, dv]
    call("backward", tensors, (B, T, H, window), [q, out, dq])
    return grad


@cpu_attention_backward.register_fake
def _(q, k, v, out, dout, lse, window, story_starts=None):
    B, T, H, D = q.shape
    return q.new_empty(B, T, 3, H, D)


def setup_context(ctx, inputs, output):
    *qkv, ctx.window, story_starts = inputs
    ctx.save_for_backward(*qkv, *output, story_starts)


def backward(ctx, dout, _):
    q, k, v, out, lse, story_starts = ctx.saved_tensors
    grad = torch.ops.nanostories.cpu_attention_backward(q, k, v, out, dout, lse, ctx.window, story_starts)
    return *grad.unbind(2), None, None


cpu_attention.register_autograd(backward, setup_context=setup_context)
