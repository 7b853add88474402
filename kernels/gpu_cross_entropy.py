"""
The loss at the head on a GPU, in plain PyTorch that torch.compile traces: inductor fuses what is between the matrix
products into a few kernels. As in cross_entropy.py, logits are turned into their gradient one chunk at a time.
Uncompiled, neither the forward nor the backward pass ever holds all of them; benches/gpu_checks.py measures what
inductor makes of it.
"""

import torch

CHUNK_LOGITS = 2**26  # per chunk: 6,710 tokens of 10,000 ids, 134 MB in bfloat16


def traced_loss(x: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """head_loss of cross_entropy.py, with matrix products of `dtype`."""
    if torch.is_grad_enabled():
        return TracedLoss.apply(x, weight, targets, dtype)
    return loss_and_gradients(x, weight, targets, dtype, with_grad=False)[0]


class TracedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, targets, dtype):
        loss, dx, dweight = loss_and_gradients(x, weight, targets, dtype, with_grad=True)
        ctx.save_for_backward(dx, dweight)
        return loss

    @staticmethod
    def backward(ctx, dloss):
        dx, dweight = ctx.saved_tensors
        return dx * dloss, dweight * dloss, None, None


def loss_and_gradients(
    x: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, dtype: torch.dtype, with_grad: bool
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """x (N, C), weight (V, C), targets (N,) -> the mean loss, its gradients with respect to x and weight."""
    head = weight.to(dtype)
    n_chunks = -(-len(x) * len(weight) // CHUNK_LOGITS)
    losses, dx, dweight = [], [], torch.zeros_like(weight) if with_grad else None
    for inputs, ids in zip(x.tensor_split(n_chunks), targets.tensor_split(n_chunks)):
        inputs, target_mask, ids = inputs.to(dtype), ids >= 0, ids.clamp(min=0)
        logits = inputs @ head.T  # (n, V); float32 only inside the kernels below
        log_sum = logits.float().logsumexp(-1)
        losses.append(torch.where(target_mask, log_sum - logits.gather(1, ids[:, None])[:, 0].float(), 0.0).sum())
        if with_grad:
            is_target = torch.arange(len(weight), device=x.device) == ids[:, None]
            dlogits = ((logits.float() - log_sum[:, None]).exp() - is_target.float()) * target_mask[:, None]
            dlogits = dlogits.to(dtype)
            dx.append((dlogits @ head).to(x.dtype))
            dweight = dweight + dlogits.T @ inputs
    n_targets = (targets >= 0).sum().clamp(min=1)
    loss = torch.stack(losses).sum() / n_targets
    return (loss, torch.cat(dx) / n_targets, dweight / n_targets) if with_grad else (loss, None, None)
