"""
Muon (Jordan et al. 2024): momentum with orthogonalized updates, for the matrices inside a transformer's blocks.

>>> optimizer = Muon([dict(params=[block.mlp_in.weight for block in model.blocks])], lr=8e-3, momentum=0.9,
...                  weight_decay=0.1)

The same update as torch.optim.Muon(adjust_lr_fn="match_rms_adamw"), but for all matrices of one shape at once: in small
models they are so small that launching the products one by one costs more than the products.
"""

import torch

NEWTON_SCHULZ_STEPS = 5


class Muon(torch.optim.Optimizer):
    """All matrices of a group must have the same shape."""

    def __init__(
        self,
        groups: list[dict],
        lr: float,
        momentum: float,
        weight_decay: float,
        dtype: torch.dtype = torch.bfloat16,
        compiled: bool = False,
    ):
        """dtype: of the Newton-Schulz iteration. bfloat16 is precise enough; a CPU may multiply float32 faster.
        compiled: by torch.compile, once per shape; for a GPU, where launches take longer than small products."""
        super().__init__(groups, dict(lr=lr, weight_decay=weight_decay, momentum=momentum))
        self.dtype = dtype
        self.orthogonalized = torch.compile(orthogonalized, dynamic=False) if compiled else orthogonalized

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            matrices, lr = group["params"], group["lr"]
            gradients = torch.stack([p.grad for p in matrices])  # (N, rows, columns)
            state = self.state[matrices[0]]
            if not state:
                state["momentum_buffer"] = torch.zeros_like(gradients)  # of the whole group
            state["momentum_buffer"].lerp_(gradients, 1 - group["momentum"])
            updates = gradients.lerp_(state["momentum_buffer"], group["momentum"])  # Nesterov's
            # Scaled to the size of AdamW's updates (Liu et al. 2025), so that one learning rate serves both.
            scale = 0.2 * max(updates.shape[1:]) ** 0.5
            torch._foreach_mul_(matrices, 1 - lr * group["weight_decay"])
            torch._foreach_add_(matrices, list(self.orthogonalized(updates.to(self.dtype)).float()), alpha=-lr * scale)

    def flops_per_step(self) -> int:
        """Floating-point operations of the matrix products. In steps of few tokens they exceed the model's."""
        flops = 0
        for group in self.param_groups:
            short, long = sorted(group["params"][0].shape)
            flops += len(group["params"]) * NEWTON_SCHULZ_STEPS * (4 * short**2 * long + 2 * short**3)
        return flops


def orthogonalized(matrices: torch.Tensor) -> torch.Tensor:
    """
    (N, rows, columns) -> the same with singular values of roughly 1, by the Newton-Schulz iteration with Jordan's
    coefficients, which bring them to between 0.7 and 1.2 in a few steps instead of to 1 in many.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = matrices.size(1) > matrices.size(2)
    x = matrices.mT if tall else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)  # no singular value above 1
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = x @ x.mT
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)
    return x.mT if tall else x
