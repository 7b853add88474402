"""
Causal attention as GPT-Neo has it: with a window, and without 1/sqrt(d).

On a GPU this is PyTorch's. On a CPU, PyTorch's kernel is slow at the 16 narrow heads that the published models have,
so cpp/attention.cpp serves where there is a C++ compiler.
"""

import ctypes

import torch
import torch.nn.functional as F

import native

HEAD_WIDTHS = (4, 8, 16, 32, 64)  # that attention.cpp is compiled for


def causal_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int, dropout: float = 0.0):
    """Each query meets the last `window` keys, its own included. All (B, T, H, D)."""
    T, D = q.shape[1], q.shape[3]
    on_cpu = q.device.type == "cpu" and q.dtype in (torch.float32, torch.bfloat16)
    alike = q.stride() == k.stride() == v.stride() and q.stride(3) == 1 and q.dtype == k.dtype == v.dtype
    if on_cpu and alike and D in HEAD_WIDTHS and not dropout and have_kernels():
        return torch.ops.nanostories.narrow_attention(q, k, v, min(window, T))[0]
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # (B, T, H, D) -> (B, H, T, D)
    if T <= window:
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0, dropout_p=dropout)
    else:
        mask = torch.ones(T, T, dtype=torch.bool, device=q.device).tril().triu(1 - window)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=1.0, dropout_p=dropout)
    return y.transpose(1, 2)


@torch.compiler.assume_constant_result  # torch.compile must not look into the building of it
def have_kernels() -> bool:
    return native.library("attention") is not None


def call(name: str, tensors: list[torch.Tensor], shape: tuple[int, ...], strided: list[torch.Tensor]):
    """Call a kernel with pointers, then (B, T, H, window), then the (b, t, h) strides of each of `strided`."""
    pointers = [native.pointer(x) for x in tensors]
    strides = [Strides(x.stride(0), x.stride(1), x.stride(2)) for x in strided]
    dtype = str(tensors[0].dtype).removeprefix("torch.")
    D = tensors[0].size(3)
    if getattr(native.library("attention"), f"{name}_{dtype}")(ctypes.c_long(D), *pointers, Shape(*shape), *strides):
        raise ValueError(f"attention.cpp is not compiled for heads of {D}, only for {HEAD_WIDTHS}")


class Shape(ctypes.Structure):
    _fields_ = [(name, ctypes.c_long) for name in ("B", "T", "H", "window")]


class Strides(ctypes.Structure):
    _fields_ = [(name, ctypes.c_long) for name in ("b", "t", "h")]


@torch.library.custom_op("nanostories::narrow_attention", mutates_args=())
def narrow_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, T, H, D) each -> the same, and the log of every query's sum of exponentials (B, H, T) for the way back."""
    B, T, H, D = q.shape
    out, lse = torch.empty(B, T, H, D, dtype=q.dtype), torch.empty(B, H, T)
    call("forward", [q, k, v, out, lse], (B, T, H, window), [q, out])
    return out, lse


@narrow_attention.register_fake
def _(q, k, v, window):
    B, T, H, D = q.shape
    return q.new_empty(B, T, H, D), q.new_empty(B, H, T, dtype=torch.float32)


@torch.library.custom_op("nanostories::narrow_attention_backward", mutates_args=())
def narrow_attention_backward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    dout: torch.Tensor,
    lse: torch.Tensor,
    window: int,
) -> torch.Tensor:
    """(B, T, 3, H, D): the gradients of q, k and v in one tensor, as the projection that made them wants them."""
    B, T, H, D = q.shape
    grad = torch.empty(B, T, 3, H, D, dtype=q.dtype)
    dq, dk, dv = grad.unbind(2)
    call("backward", [q, k, v, out, dout.contiguous(), lse, dq, dk, dv], (B, T, H, window), [q, out, dq])
    return grad


@narrow_attention_backward.register_fake
def _(q, k, v, out, dout, lse, window):
    B, T, H, D = q.shape
    return q.new_empty(B, T, 3, H, D)


def setup_context(ctx, inputs, output):
    *qkv, ctx.window = inputs
    ctx.save_for_backward(*qkv, *output)


def backward(ctx, dout, _):
    q, k, v, out, lse = ctx.saved_tensors
    grad = torch.ops.nanostories.narrow_attention_backward(q, k, v, out, dout, lse, ctx.window)
    return *grad.unbind(2), None


narrow_attention.register_autograd(backward, setup_context=setup_context)
