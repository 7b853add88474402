"""The processes of a run: a single one, or as many as torchrun started, each with its share of
every step."""

import contextlib
import os
import signal
import sys
from dataclasses import dataclass

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class Ranks:
    """This process among those of the run. In a single process, sum and max change nothing."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0  # among those on the same machine

    @classmethod
    def from_environment(cls) -> "Ranks":
        """As torchrun sets it; without torchrun, a single process."""
        if "WORLD_SIZE" not in os.environ:  # a scheduler may have set RANK for itself
            return cls()
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
        return cls(*(int(os.environ.get(name, 0)) for name in names))

    @contextlib.contextmanager
    def connected(self, device: torch.device):
        """Joins the processes while the block runs. If a rank dies, whatever the others are waiting
        for raises an error."""
        if self.size == 1:
            yield
            return
        # CPU tensors use gloo, so that decisions of the host never wait for a GPU.
        dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
        yield
        # After an error this is not reached: the others could not answer. torchrun kills all ranks
        # as soon as one fails, so none may leave before the first has saved.
        self.barrier()
        dist.destroy_process_group()

    def sum(self, tensors: list[torch.Tensor]) -> None:
        """In place, over all ranks, in one message, as there are many small ones."""
        if self.size == 1:
            return
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        dist.all_reduce(flat)
        parts = flat.split([tensor.numel() for tensor in tensors])
        views = [part.view_as(tensor) for part, tensor in zip(parts, tensors)]
        torch._foreach_copy_(tensors, views)

    def max(self, value: float) -> float:
        """The largest of all ranks' values. All wait for the last of them."""
        if self.size == 1:
            return value
        tensor = torch.tensor(value, dtype=torch.float64)
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
        return tensor.item()

    def barrier(self) -> None:
        """Waits until all ranks are here."""
        self.max(0.0)


SINGLE_PROCESS = Ranks()


@contextlib.contextmanager
def stop_signal(ranks: Ranks):
    """Yields a function: has Ctrl-C or SIGTERM arrived at any rank?

    A second one ends a single process at once, but not one of several: torchrun forwards signals,
    so they may get the same one twice."""
    received = []

    def receive(number, frame):
        if ranks.rank == 0 and not received:
            hint = "; Ctrl-C again ends at once" if ranks.size == 1 else ""
            print(f"\nstopping after this step{hint}", file=sys.stderr)
        received.append(number)
        if ranks.size == 1:
            signal.signal(number, signal.SIG_DFL)

    handlers = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        handlers[number] = signal.signal(number, receive)
    try:
        yield lambda: ranks.max(len(received)) > 0
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
