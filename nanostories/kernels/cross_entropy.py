"""
The loss at the head, forward and backward, without ever holding all logits.

The logits are the largest thing in a step: 16 x 512 tokens of 10,000 ids are 330 MB in float32,
with a gradient of the same size. Here they are computed for CHUNK tokens at a time, turned into
their own gradient in place, and dropped.
"""

import ctypes

import torch

from nanostories.kernels import compile_cpp

CHUNK = 1024  # tokens; in bfloat16, 20 MB of logits of 10,000 ids: they stay in a GPU's L2 cache


def head_loss(x: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy, in nats, of targets (N,) int64 under the logits x (N, C) @ weight (V,
    C).T.

    Negative targets are ignored; if no others are left, the loss is 0. Under autocast the matrix
    products use its dtype, the sums float32.
    """
    device = x.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
    if torch.is_grad_enabled():
        return HeadLoss.apply(x, weight, targets, dtype)
    return operator_for(device)(x, weight, targets, dtype, False)[0]


class HeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, targets, dtype):
        loss, dx, dweight = operator_for(x.device.type)(x, weight, targets, dtype, True)
        ctx.save_for_backward(dx, dweight)
        return loss

    @staticmethod
    def backward(ctx, dloss):
        dx, dweight = ctx.saved_tensors
        return dx * dloss, dweight * dloss, None, None


def operator_for(device_type: str):
    """On a GPU torch.compile traces the chunks, and fuses all between matrix products into a few
    kernels. On a CPU they are one operator that it does not look into."""
    return chunked_loss if device_type == "cuda" else torch.ops.nanostories.head_loss


def chunked_loss(
    x: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    dtype: torch.dtype,
    with_gradients: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """-> the mean loss, its gradients with respect to x and weight (empty without
    `with_gradients`)."""
    head = weight.to(dtype)
    losses, dx, dweight = (
        [],
        [],
        torch.zeros_like(weight) if with_gradients else weight.new_empty(0),
    )
    for inputs, ids in zip(x.to(dtype).split(CHUNK), targets.split(CHUNK)):
        logits = inputs @ head.T
        losses.append(cross_entropy_(logits, ids))
        if with_gradients:
            dx.append((logits @ head).to(x.dtype))
            dweight += logits.T @ inputs
    n_targets = (targets >= 0).sum().clamp(min=1)
    dx = torch.cat(dx).div_(n_targets) if with_gradients else x.new_empty(0)
    return torch.cat(losses).sum() / n_targets, dx, dweight.div_(n_targets)


# torch.compile keeps graphs on disk by an operator's name: one whose arguments change needs a new
# name.
head_loss_operator = torch.library.custom_op(
    "nanostories::head_loss", chunked_loss, mutates_args=()
)


@head_loss_operator.register_fake
def _(x, weight, targets, dtype, with_gradients):
    dx, dweight = (torch.empty_like(y) if with_gradients else y.new_empty(0) for y in (x, weight))
    return x.new_empty((), dtype=torch.float32), dx, dweight


def cross_entropy_(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """(N, V), (N,) -> losses (N,); the logits are overwritten with their gradients."""
    on_cpu = logits.device.type == "cpu" and logits.dtype in (torch.float32, torch.bfloat16)
    if on_cpu and (library := compile_cpp.library("cpu_cross_entropy")):
        losses, targets = torch.empty(len(logits)), targets.contiguous()
        function = getattr(library, f"cross_entropy_{compile_cpp.dtype_name(logits.dtype)}")
        tensors = (compile_cpp.pointer(tensor) for tensor in (logits, targets, losses))
        function(*tensors, *(ctypes.c_long(size) for size in logits.shape))
        return losses
    return pytorch_cross_entropy_(logits, targets)


def pytorch_cross_entropy_(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    counts, ids = targets >= 0, targets.clamp(min=0)[:, None]
    log_sum = logits.float().logsumexp(-1)
    losses = torch.where(counts, log_sum - logits.gather(1, ids)[:, 0].float(), 0.0)
    is_target = (
        torch.arange(logits.size(1), device=logits.device) == ids
    )  # no scatter, which would be a kernel alone
    logits.copy_(((logits.float() - log_sum[:, None]).exp() - is_target.float()) * counts[:, None])
    return losses
