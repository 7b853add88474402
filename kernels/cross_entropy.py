"""
The loss at the head, forward and backward, without ever holding all logits.

The logits are the largest thing in a step: 16 x 512 tokens of 10,000 ids are 330 MB in float32, with a gradient of the
same size. Here they are computed for CHUNK tokens at a time, turned into their own gradient in place, and dropped.
"""

import ctypes
import functools

import torch

from kernels import autotune, compile_cpp
from kernels.compile_cpp import dtype_name
from kernels.gpu_cross_entropy import traced_loss

CHUNK = 1024  # tokens


def head_loss(x: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy, in nats, of targets (N,) int64 under the logits x (N, C) @ weight (V, C).T.

    Negative targets are ignored; if no others are left, the loss is 0. Under autocast the matrix products use its
    dtype, the sums float32.
    """
    device = x.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
    if x.is_cuda:
        return traced_loss(x, weight, targets, dtype)
    return chunked_loss(x, weight, targets, dtype, torch.is_grad_enabled())[0]


@torch.library.custom_op("nanostories::chunked_loss", mutates_args=())
def chunked_loss(
    x: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, dtype: torch.dtype, with_grad: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """-> loss, its gradients with respect to x and weight (empty without `with_grad`)."""
    head = weight.to(dtype)
    losses = torch.empty(len(x), dtype=torch.float32, device=x.device)
    dx, dweight = (torch.zeros_like(y) if with_grad else y.new_empty(0) for y in (x, weight))
    for start in range(0, len(x), CHUNK):
        chunk = slice(start, start + CHUNK)
        inputs = x[chunk].to(dtype)
        logits = inputs @ head.T
        losses[chunk] = cross_entropy_(logits, targets[chunk])
        if with_grad:
            dx[chunk] = logits @ head
            dweight += logits.T @ inputs
    n_targets = (targets >= 0).sum().clamp(min=1)
    return losses.sum() / n_targets, dx.div_(n_targets), dweight.div_(n_targets)


def cross_entropy_(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """(N, V), (N,) -> losses (N,); the logits are overwritten with their gradients."""
    if logits.device.type == "cpu" and implementation(logits.size(1), logits.dtype) == "kernel":
        return kernel_cross_entropy_(logits, targets)
    return pytorch_cross_entropy_(logits, targets)


def kernel_cross_entropy_(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    losses = torch.empty(len(logits))
    function = getattr(compile_cpp.library("cpu_cross_entropy"), f"cross_entropy_{dtype_name(logits.dtype)}")
    tensors = [compile_cpp.pointer(tensor) for tensor in (logits, targets.contiguous(), losses)]
    function(*tensors, *(ctypes.c_long(size) for size in logits.shape))
    return losses


def pytorch_cross_entropy_(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    target_mask, rows = targets >= 0, torch.arange(len(targets), device=targets.device)
    log_probabilities = torch.log_softmax(logits.float(), -1)
    losses = torch.where(target_mask, -log_probabilities[rows, targets.clamp(min=0)], 0.0)
    gradient = log_probabilities.exp_()
    gradient[rows, targets.clamp(min=0)] -= 1
    logits.copy_(gradient * target_mask[:, None])
    return losses


@functools.cache
def implementation(V: int, dtype: torch.dtype) -> str:
    """The faster of "kernel" and "pytorch" on this CPU."""
    if dtype not in (torch.float32, torch.bfloat16) or compile_cpp.library("cpu_cross_entropy") is None:
        return "pytorch"
    logits = torch.randn(128, V, generator=torch.Generator().manual_seed(0)).to(dtype)
    targets = torch.zeros(len(logits), dtype=torch.long)
    question = f"cross-entropy, {V} ids, {dtype}, {compile_cpp.library('cpu_cross_entropy')._name}"
    candidates = dict(kernel=kernel_cross_entropy_, pytorch=pytorch_cross_entropy_)
    return autotune.fastest(question, {name: lambda f=f: f(logits, targets) for name, f in candidates.items()})


@chunked_loss.register_fake
def _(x, weight, targets, dtype, with_grad):
    dx, dweight = (torch.empty_like(y) if with_grad else y.new_empty(0) for y in (x, weight))
    return x.new_empty((), dtype=torch.float32), dx, dweight


def setup_context(ctx, inputs, output):
    ctx.save_for_backward(*output[1:])


def backward(ctx, dloss, *_):
    dx, dweight = ctx.saved_tensors
    return dx * dloss, dweight * dloss, None, None, None


chunked_loss.register_autograd(backward, setup_context=setup_context)
