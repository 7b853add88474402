"""The optimizers and their learning rate: AdamW, or Muon for the matrices inside the blocks."""

import torch

from model import GPTNeo
from nanostories.training.config import TrainConfig

NEWTON_SCHULZ_STEPS = 5


def learning_rate(step: int, progress: float, config: TrainConfig) -> float:
    """Linear warm-up over steps, then constant, then linear decay to zero. progress: how much is
    done, 0 to 1."""
    warmup = min(1.0, (step + 1) / (config.warmup_steps + 1))
    warmdown = min(1.0, (1 - progress) / config.warmdown) if config.warmdown else 1.0
    return config.learning_rate * min(warmup, warmdown)


def make_optimizers(
    model: GPTNeo, config: TrainConfig, dtype=torch.float32, compiled=False
) -> list:
    """AdamW for everything; or Muon for the matrices of the blocks, AdamW for the rest. dtype,
    compiled: the run's."""
    names = ("qkv", "attention_out", "mlp_in", "mlp_out") if config.optimizer == "muon" else ()
    kinds = [[getattr(block, name).weight for block in model.blocks] for name in names]
    others = {*model.parameters()} - {matrix for kind in kinds for matrix in kind}
    vectors, matrices = (
        [p for p in model.parameters() if p in others and p.dim() == n] for n in (1, 2)
    )
    groups = [
        dict(params=vectors, weight_decay=0.0),
        dict(params=matrices, weight_decay=config.weight_decay),
    ]
    fused, lr = model.wte.weight.device.type in ("cuda", "cpu"), config.learning_rate
    adamw = torch.optim.AdamW(groups, lr=lr, betas=(config.beta1, config.beta2), fused=fused)
    if not kinds:
        return [adamw]
    dtype = (
        torch.float32 if dtype == torch.float16 else dtype
    )  # whose range is too small for gradients
    compiled = compiled and model.wte.weight.is_cuda  # on a CPU it takes longer than it saves
    muon = Muon(
        [dict(params=kind) for kind in kinds],
        lr,
        config.beta1,
        config.weight_decay,
        dtype,
        compiled,
    )
    return [muon, adamw]


class Muon(torch.optim.Optimizer):
    """Momentum with orthogonalized updates (Jordan et al. 2024), as
    torch.optim.Muon(adjust_lr_fn="match_rms_adamw"), for all matrices of a group, of one shape, at
    once: launching small products one by one costs more than they do."""

    def __init__(
        self,
        groups: list[dict],
        lr,
        momentum,
        weight_decay,
        dtype=torch.bfloat16,
        compiled: bool = False,
    ):
        """dtype: of the Newton-Schulz iteration. bfloat16 is precise enough; a CPU may multiply
        float32 faster. compiled: by torch.compile, once per shape; for a GPU, where launches take
        longer than small products."""
        super().__init__(groups, dict(lr=lr, weight_decay=weight_decay, momentum=momentum))
        self.dtype = dtype
        self.orthogonalized = (
            torch.compile(orthogonalized, dynamic=False) if compiled else orthogonalized
        )

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            matrices, lr = group["params"], group["lr"]
            gradients = torch.stack([p.grad for p in matrices])  # (N, rows, columns)
            state = self.state[matrices[0]]
            if not state:
                state["momentum_buffer"] = torch.zeros_like(gradients)  # for the whole group
            state["momentum_buffer"].lerp_(gradients, 1 - group["momentum"])
            updates = gradients.lerp_(state["momentum_buffer"], group["momentum"])  # Nesterov's
            # Scaled to the size of AdamW's updates (Liu et al. 2025), so that one learning rate
            # serves both.
            scale = 0.2 * max(updates.shape[1:]) ** 0.5
            torch._foreach_mul_(matrices, 1 - lr * group["weight_decay"])
            torch._foreach_add_(
                matrices,
                list(self.orthogonalized(updates.to(self.dtype)).float()),
                alpha=-lr * scale,
            )

    def flops_per_step(self) -> int:
        """FLOPs of the matrix products, which in steps of few tokens exceed the model's."""
        shapes = [sorted(matrix.shape) for group in self.param_groups for matrix in group["params"]]
        return NEWTON_SCHULZ_STEPS * sum(
            4 * short**2 * long + 2 * short**3 for short, long in shapes
        )


def orthogonalized(matrices: torch.Tensor) -> torch.Tensor:
    """(N, rows, columns) -> the same with singular values of roughly 1, by the Newton-Schulz
    iteration with Jordan's coefficients, which bring them to between 0.7 and 1.2 in a few steps
    instead of to 1 in many."""
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = matrices.size(1) > matrices.size(2)
    x = matrices.mT if tall else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)  # no singular value above 1
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = x @ x.mT
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)
    return x.mT if tall else x
