"""
The optimizers and their learning rate: AdamW as published, or Muon for the matrices inside the blocks.
"""

import torch

from model import GPTNeo
from training.config import TrainConfig
from training.muon import Muon


def learning_rate(step: int, progress: float, config: TrainConfig) -> float:
    """Linear warm-up over steps, then constant, then linear decay to zero over the last part of the run.

    progress: how much of the run is done, 0 to 1.
    """
    warmup = min(1.0, (step + 1) / (config.warmup_steps + 1))
    warmdown = min(1.0, (1 - progress) / config.warmdown) if config.warmdown else 1.0
    return config.learning_rate * min(warmup, warmdown)


class AllOptimizers:
    """Several optimizers as one, so that float16's scaler skips the step of all when any of their gradients overflows.

    On its own, each would check only its own gradients, though clipping by the global norm spreads NaNs to all of them.
    """

    def __init__(self, optimizers: list[torch.optim.Optimizer]):
        self.optimizers = optimizers

    @property
    def param_groups(self) -> list[dict]:
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    def step(self) -> None:
        for optimizer in self.optimizers:
            optimizer.step()

    def zero_grad(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def state_dicts(self) -> list[dict]:
        return [optimizer.state_dict() for optimizer in self.optimizers]

    def load_state_dicts(self, states: list[dict]) -> None:
        for optimizer, state in zip(self.optimizers, states):
            optimizer.load_state_dict(state)


def make_optimizers(
    model: GPTNeo, config: TrainConfig, muon_dtype: torch.dtype = torch.bfloat16, compile_muon: bool = False
) -> list[torch.optim.Optimizer]:
    """AdamW, as published; or Muon for the matrices of the blocks, and AdamW for the rest."""
    kinds = [[getattr(b, name).weight for b in model.blocks] for name in ("qkv", "attention_out", "mlp_in", "mlp_out")]
    embeddings = [model.wte.weight, model.wpe.weight]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    lr, decay, none = config.learning_rate, dict(weight_decay=config.weight_decay), dict(weight_decay=0.0)
    groups = [dict(params=vectors, **none), dict(params=embeddings, lr_factor=config.embedding_lr_factor, **decay)]
    optimizers = []
    if config.optimizer == "muon":
        groups_of_kinds = [dict(params=kind) for kind in kinds]
        settings = dict(momentum=config.beta1, dtype=muon_dtype, compiled=compile_muon)
        optimizers.append(Muon(groups_of_kinds, lr=lr, **settings, **decay))
    else:
        groups.append(dict(params=sum(kinds, []), **decay))
    fused = model.wte.weight.device.type in ("cuda", "cpu")
    return [*optimizers, torch.optim.AdamW(groups, lr=lr, betas=(config.beta1, config.beta2), fused=fused)]
