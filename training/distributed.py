"""
The processes ("ranks") of a run: one by itself, or as many as torchrun started, each with its share of every step.

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

PATIENCE = datetime.timedelta(minutes=10)  # with a rank that hangs; one that dies is noticed at once


@dataclass(frozen=True)
class Ranks:
    """This process among those of the run. One by itself gets back what it gives, and waits for nobody."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0  # among those on the same machine

    @classmethod
    def of_torchrun(cls) -> "Ranks":
        if not dist.is_torchelastic_launched():
            return cls()
        return cls(*(int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")))

    @property
    def first(self) -> bool:
        """Whether this is the one that reads and writes the run's directory, and speaks."""
        return self.rank == 0

    def share(self, config: TrainConfig) -> tuple[int, int]:
        """(micro-batches, sequences in each) that fall to every rank in a step.

        Whole micro-batches where they can be dealt out, else equal parts of them: all have as many sequences, so that
        the mean over ranks is the mean over the step.
        """
        dealt = math.gcd(config.grad_accum_steps, self.size)
        if config.batch_size * dealt % self.size:
            raise ConfigError(
                f"grad_accum_steps={config.grad_accum_steps} micro-batches of batch_size={config.batch_size} cannot be "
                f"divided among {self.size} processes; make one of them a multiple of {self.size}"
            )
        return config.grad_accum_steps // dealt, config.batch_size * dealt // self.size

    def device_name(self, name: str) -> str:
        """Of this rank, for what the config calls its device."""
        if self.size == 1:
            return name
        if name == "auto":
            name = "cuda" if torch.cuda.is_available() else "cpu"
        if name not in ("cuda", "cpu"):
            raise ConfigError(f"several processes run on cuda (a GPU each) or cpu, not on device={name}")
        if name == "cuda" and self.local_rank >= torch.cuda.device_count():
            raise ConfigError(f"{torch.cuda.device_count()} GPUs here: --nproc_per_node can be no more")
        return name if name == "cpu" else f"cuda:{self.local_rank}"

    @contextlib.contextmanager
    def together(self, device: torch.device):
        """The ranks find each other on entry. A rank that dies meanwhile breaks whatever the others wait for."""
        if self.size == 1:
            yield
            return
        if device.type == "cuda":
            torch.cuda.set_device(device)
        # What the host decides goes through gloo even on GPUs: the device need not be waited for.
        dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo", timeout=PATIENCE)
        yield
        self.wait()  # torchrun ends all ranks as soon as one ends badly: none leaves before the first has saved
        dist.destroy_process_group()

    @contextlib.contextmanager
    def first_goes_ahead(self):
        """What is inside is done by the first rank, then by the others."""
        if not self.first:
            self.wait()
        yield
        if self.first:
            self.wait()

    def wait(self):
        """Until all ranks are here."""
        self.total(torch.zeros(1))

    def from_first(self, value):
        """What the first rank has here, plain types and tensors on the CPU; the others' own is not looked at."""
        if self.size == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values)
        return values[0]

    def total(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def least(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.size > 1:
            dist.all_reduce(tensor, dist.ReduceOp.MIN)
        return tensor

    def agree(self, seconds: float, stop: bool) -> tuple[float, bool]:
        """All go by the first one's clock, and stop together when any of them is told to."""
        if self.size == 1:
            return seconds, stop
        said = torch.tensor([seconds if self.first else 0.0, stop], dtype=torch.float64)
        dist.all_reduce(said, dist.ReduceOp.MAX)
        return said[0].item(), said[1].item() > 0

    def data_parallel(self, forward: torch.nn.Module) -> torch.nn.Module:
        """A module whose backward pass leaves every rank with the mean of all ranks' gradients."""
        return forward if self.size == 1 else DistributedDataParallel(forward)

    def summing(self, forward: torch.nn.Module, now: bool):
        """A context for a forward and backward pass: gradients are summed over the ranks now, or only gathered."""
        return contextlib.nullcontext() if self.size == 1 or now else forward.no_sync()


ALONE = Ranks()


def is_lost_rank(error: RuntimeError) -> bool:
    """Whether this is what gloo or nccl raises when another rank has gone."""
    return isinstance(error, dist.DistError) or "gloo" in str(error)
