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
from torch.nn.parallel import DistributedDataParallel

from training.config import ConfigError, TrainConfig

TIMEOUT = datetime.timedelta(minutes=10)  # for a rank that hangs; one that dies is noticed at once


@dataclass(frozen=True)
class Ranks:
    """This process among those of the run. In a single process every collective returns its own argument."""

    rank: int = 0
    world_size: int = 1
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
        """(micro-batches, sequences in each) of every rank in a step.

        Whole micro-batches if they can be dealt out evenly, else equal parts of them: all ranks have equally many
        sequences, so that the mean over ranks is the mean over the step.
        """
        whole = math.gcd(config.grad_accum_steps, self.world_size)
        if config.batch_size * whole % self.world_size:
            raise ConfigError(
                f"grad_accum_steps={config.grad_accum_steps} micro-batches of batch_size={config.batch_size} cannot be "
                f"divided among {self.world_size} processes; make one of them a multiple of {self.world_size}"
            )
        return config.grad_accum_steps // whole, config.batch_size * whole // self.world_size

    def device_name(self, name: str) -> str:
        """The device of this rank, given the config's."""
        if self.world_size == 1:
            return name
        if name == "auto":
            name = "cuda" if torch.cuda.is_available() else "cpu"
        if name not in ("cuda", "cpu"):
            raise ConfigError(f"several processes need device=cuda (a GPU each) or cpu, not {name}")
        if name == "cuda" and self.local_rank >= torch.cuda.device_count():
            raise ConfigError(f"{torch.cuda.device_count()} GPUs here: --nproc_per_node must not be more")
        return name if name == "cpu" else f"cuda:{self.local_rank}"

    @contextlib.contextmanager
    def process_group(self, device: torch.device):
        """Connects the ranks. If one dies, whatever the others are waiting for raises an error."""
        if self.world_size == 1:
            yield
            return
        # What the host decides goes through gloo even with GPUs, so that it need not wait for the device.
        dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo", timeout=TIMEOUT)
        yield
        self.barrier()  # torchrun kills all ranks as soon as one fails: none may leave before the first has saved
        dist.destroy_process_group()

    @contextlib.contextmanager
    def first_goes_first(self):
        """The first rank runs the block, then the first rank of every other machine, which may have its own disk, then
        the rest."""
        turn = 0 if self.is_first else 1 if self.local_rank == 0 else 2
        for _ in range(turn):
            self.barrier()
        yield
        for _ in range(2 - turn):
            self.barrier()

    def barrier(self):
        """Waits until all ranks are here."""
        self.all_reduce_sum(torch.zeros(1))

    def broadcast(self, value):
        """The first rank's value, of plain types and tensors on the CPU, on every rank."""
        if self.world_size == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values)
        return values[0]

    def all_reduce_sum(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.world_size > 1:
            dist.all_reduce(tensor)
        return tensor

    def all_reduce_min(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.world_size > 1:
            dist.all_reduce(tensor, dist.ReduceOp.MIN)
        return tensor

    def agree(self, seconds: float, stop: bool) -> tuple[float, bool]:
        """All use the first rank's clock, and stop together when any of them is told to."""
        if self.world_size == 1:
            return seconds, stop
        both = torch.tensor([seconds if self.is_first else 0.0, stop], dtype=torch.float64)
        dist.all_reduce(both, dist.ReduceOp.MAX)
        return both[0].item(), both[1].item() > 0

    def data_parallel(self, forward: torch.nn.Module) -> torch.nn.Module:
        """A module whose backward pass leaves every rank with the mean of all ranks' gradients."""
        return forward if self.world_size == 1 else DistributedDataParallel(forward)

    def gradient_sync(self, forward: torch.nn.Module, now: bool):
        """A context for a forward and backward pass: gradients are averaged over ranks now, or only accumulated."""
        return contextlib.nullcontext() if self.world_size == 1 or now else forward.no_sync()


SINGLE_PROCESS = Ranks()


def is_lost_rank(error: RuntimeError) -> bool:
    """Whether this is what gloo or nccl raises when another rank has died."""
    return isinstance(error, dist.DistError) or "gloo" in str(error)
