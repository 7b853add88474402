"""
The processes of a run: a single one, or as many as torchrun started, each with its share of every step.

$ torchrun --standalone --nproc_per_node=2 train.py configs/ts_8m.py
"""

import contextlib
import datetime
import math
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist

from training.config import ConfigError, TrainConfig

TIMEOUT = datetime.timedelta(minutes=10)  # for a rank that hangs; one that dies is noticed at once


@dataclass(frozen=True)
class Ranks:
    """This process among those of the run. In a single process every collective returns its own argument."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0  # among those on the same machine

    @classmethod
    def from_environment(cls) -> "Ranks":
        """As torchrun set it; without torchrun, a single process."""
        if not dist.is_torchelastic_launched():
            return cls()
        return cls(*(int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")))

    @property
    def is_first(self) -> bool:
        """Whether this is the rank that reads and writes the run's directory, and prints."""
        return self.rank == 0

    def divide_step(self, config: TrainConfig) -> tuple[int, int]:
        """(micro-batches, sequences in each) of every rank in a step: whole micro-batches if they can be dealt out
        evenly, else equal parts of them."""
        whole = math.gcd(config.grad_accum_steps, self.size)
        if config.batch_size * whole % self.size:
            raise ConfigError(
                f"grad_accum_steps={config.grad_accum_steps} micro-batches of batch_size={config.batch_size} cannot be "
                f"divided among {self.size} processes; make one of them a multiple of {self.size}"
            )
        return config.grad_accum_steps // whole, config.batch_size * whole // self.size

    @contextlib.contextmanager
    def connected(self, device: torch.device):
        """If a rank dies, whatever the others are waiting for raises an error."""
        if self.size == 1:
            yield
            return
        # What the host decides goes through gloo even with GPUs, so that it need not wait for the device.
        dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo", timeout=TIMEOUT)
        yield
        self.barrier()  # torchrun kills all ranks as soon as one fails: none may leave before the first has saved
        dist.destroy_process_group()

    def barrier(self) -> None:
        self.sum(torch.zeros(1))

    def broadcast(self, value):
        """The first rank's value, of plain types and tensors on the CPU, on every rank."""
        if self.size == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values)
        return values[0]

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """In place, over all ranks."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def max(self, value: float) -> float:
        if self.size == 1:
            return value
        tensor = torch.tensor(value, dtype=torch.float64)
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
        return tensor.item()

    def sum_gradients(self, model: torch.nn.Module) -> None:
        """In one message, as there are many small ones."""
        if self.size > 1:
            gradients = [p.grad for p in model.parameters()]
            flat = self.sum(torch.cat([gradient.flatten() for gradient in gradients]))
            parts = flat.split([gradient.numel() for gradient in gradients])
            torch._foreach_copy_(gradients, [part.view_as(gradient) for part, gradient in zip(parts, gradients)])


SINGLE_PROCESS = Ranks()


def is_lost_rank(error: RuntimeError) -> bool:
    """Whether this is what gloo or nccl raises when another rank has died."""
    return isinstance(error, dist.DistError) or "gloo" in str(error)
