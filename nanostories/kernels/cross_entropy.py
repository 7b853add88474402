"""
The loss at the head.

The logits are the largest thing in a step: 16 x 512 tokens of 10,000 ids are 330 MB in float32,
with a gradient of the same size. On a CPU (with a C++ compiler) they are never all in memory: they
are computed for CHUNK tokens at a time, turned into their own gradient in place, and dropped.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from nanostories.kernels import compile_cpp

CHUNK = 1024  # tokens
KERNEL = ("cpu_cross_entropy", "cross_entropy")  # source and function


def head_loss(x, weight, targets):
    """Mean cross-entropy, in nats, of targets (N,) int64 under the logits x (N, C) @ weight (V,
    C).T.

    Targets of -100 are ignored; if no others are left, the loss is 0. Under autocast the matrix
    products use its dtype, the sums float32.
    """
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype
    if x.device.type != "cpu" or not compile_cpp.has_kernel(*KERNEL, dtype):
        return plain_loss(x, weight, targets)
    return chunked_loss(x, weight, targets, dtype, torch.is_grad_enabled())[0]


def plain_loss(x, weight, targets):
    """head_loss with all logits at once."""
    logits = F.linear(x, weight).float()
    n_targets = (targets >= 0).sum().clamp(min=1)
    return F.cross_entropy(logits, targets, reduction="sum") / n_targets


# torch.compile keeps graphs on disk by an operator's name: one whose arguments change needs a new
# name.
@torch.library.custom_op("nanostories::chunked_loss", mutates_args=())
def chunked_loss(
    x: Tensor, weight: Tensor, targets: Tensor, dtype: torch.dtype, with_gradients: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """-> the mean loss, its gradients with respect to x and weight (zero without
    `with_gradients`)."""
    head = weight.to(dtype)
    losses = []
    dx = torch.zeros_like(x)
    dweight = torch.zeros_like(weight)
    for i in range(0, len(x), CHUNK):
        chunk = slice(i, i + CHUNK)
        inputs = x[chunk].to(dtype)
        logits = inputs @ head.T
        losses.append(cross_entropy_(logits, targets[chunk]))
        if with_gradients:
            dx[chunk] = logits @ head
            dweight += logits.T @ inputs
    n_targets = (targets >= 0).sum().clamp(min=1)
    loss = torch.cat(losses).sum() / n_targets
    return loss, dx.div_(n_targets), dweight.div_(n_targets)


@chunked_loss.register_fake
def _(x, weight, targets, dtype, with_gradients):
    return x.new_empty((), dtype=torch.float32), torch.empty_like(x), torch.empty_like(weight)


def setup_context(ctx, inputs, output):
    ctx.save_for_backward(*output[1:])


def backward(ctx, dloss, *_):
    dx, dweight = ctx.saved_tensors
    return dx * dloss, dweight * dloss, None, None, None


chunked_loss.register_autograd(backward, setup_context=setup_context)


def cross_entropy_(logits, targets):
    """(N, V), (N,) -> losses (N,); the logits are overwritten with their gradients."""
    losses = torch.empty(len(logits))
    kernel = compile_cpp.kernel(*KERNEL, logits.dtype)
    compile_cpp.call(kernel, logits, targets.contiguous(), losses, *logits.shape)
    return losses
