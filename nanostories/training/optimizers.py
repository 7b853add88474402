"""The optimizers and their learning rate: AdamW, or Muon for the matrices inside the blocks."""

import torch

from nanostories.training.config import TrainConfig

NEWTON_SCHULZ_STEPS = 5


def learning_rate(step: int, done: float, config: TrainConfig) -> float:
    """Linear warm-up over steps, then constant, then linear decay to zero.

    done: the fraction of the run before this step, 0 to 1."""
    warmup = min(1.0, (step + 1) / (config.warmup_steps + 1))
    warmdown = 1.0
    if config.warmdown:
        warmdown = min(1.0, (1 - done) / config.warmdown)
    return config.learning_rate * min(warmup, warmdown)


def make_optimizers(
    model: torch.nn.Module, config: TrainConfig, dtype=torch.float32, compiled: bool = False
) -> list[torch.optim.Optimizer]:
    """AdamW for everything; or Muon for the matrices of the blocks, AdamW for the rest.

    dtype: of the run's matrix products; compiled: whether the run is."""
    not_decayed = []
    decayed = []
    for_muon = {}  # by name: the blocks of a compressor's decoder have more than the others
    for name, parameter in model.named_parameters():
        if parameter.dim() < 2:
            not_decayed.append(parameter)
        elif config.optimizer == "muon" and name.startswith("blocks.") and parameter.dim() == 2:
            _, _, name_in_block = name.split(".", 2)
            for_muon.setdefault(name_in_block, []).append(parameter)
        else:
            decayed.append(parameter)
    groups = [
        {"params": not_decayed, "weight_decay": 0.0},
        {"params": decayed, "weight_decay": config.weight_decay},
    ]
    betas = (config.beta1, config.beta2)
    has_fused_kernel = next(model.parameters()).device.type in ("cuda", "cpu")
    adamw = torch.optim.AdamW(groups, lr=config.learning_rate, betas=betas, fused=has_fused_kernel)
    if for_muon:
        return [Muon(list(for_muon.values()), config, dtype, compiled), adamw]
    return [adamw]


class Muon(torch.optim.Optimizer):
    """Momentum with orthogonalized updates (Jordan et al. 2024), as
    torch.optim.Muon(adjust_lr_fn="match_rms_adamw"), for all matrices of a group, of one shape, at
    once: launching small products one by one costs more than they do."""

    def __init__(self, groups: list[list], config: TrainConfig, dtype, compiled: bool = False):
        """groups: matrices of one shape each. dtype: of the run's matrix products.

        compiled: on a GPU, where launches take longer than small products, the orthogonalization is
        compiled, once for each shape."""
        defaults = {
            "lr": config.learning_rate,
            "momentum": config.beta1,
            "weight_decay": config.weight_decay,
        }
        super().__init__([{"params": matrices} for matrices in groups], defaults)
        # bfloat16 is precise enough; but the range of float16 is too small for gradients.
        self.dtype = torch.float32 if dtype == torch.float16 else dtype
        self.orthogonalize = orthogonalized
        if compiled and groups[0][0].is_cuda:
            self.orthogonalize = torch.compile(orthogonalized, dynamic=False)

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            matrices = group["params"]
            gradients = torch.stack([p.grad for p in matrices])  # (N, rows, columns)
            state = self.state[matrices[0]]  # that of the whole group
            if not state:
                state["momentum_buffer"] = torch.zeros_like(gradients)
            average = state["momentum_buffer"]
            beta = group["momentum"]
            average.lerp_(gradients, 1 - beta)
            # Nesterov's; in place, as gradients are our own copy
            updates = gradients.lerp_(average, beta)
            updates = self.orthogonalize(updates.to(self.dtype)).float()
            # Scaled to the size of AdamW's updates (Liu et al. 2025), so that one learning rate
            # serves both.
            scale = 0.2 * max(updates.shape[1:]) ** 0.5
            torch._foreach_mul_(matrices, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_add_(matrices, list(updates), alpha=-group["lr"] * scale)


def orthogonalized(matrices: torch.Tensor) -> torch.Tensor:
    """(N, rows, columns) -> the same with singular values of roughly 1, by the Newton-Schulz
    iteration with Jordan's coefficients, which bring them to between 0.7 and 1.2 in a few steps
    instead of to 1 in many."""
    a, b, c = 3.4445, -4.7750, 2.0315
    is_tall = matrices.size(1) > matrices.size(2)
    x = matrices.mT if is_tall else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)  # no singular value above 1
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = x @ x.mT
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)
    return x.mT if is_tall else x
