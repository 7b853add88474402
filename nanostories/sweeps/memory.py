"""
The memory of a training step by batch size: of the GPU as PyTorch allocates it, or on Linux's CPUs
of this process.

# vocab_size, limit in MB
$ python -m nanostories.sweeps.memory memory.json 10000 12000 ours configs/ts_8m.py --n_embd=128
$ python -m nanostories.sweeps.memory memory.json 10000 12000 eager configs/ts_8m.py --n_embd=128

Two steps of AdamW on random tokens, not compiled. Above the limit, or the memory of the machine, it
is "oom". eager: attention keeps its weights, (B, H, T, T) in each layer, and the loss all logits,
as code does that has no kernels for them.
"""

import re
import sys
from pathlib import Path

import torch

from model import GPTNeoConfig
from nanostories.device import choose_dtype, set_up_device
from nanostories.interpretation.hooks import run
from nanostories.kernels.cross_entropy import plain_loss
from nanostories.results import Table, save
from nanostories.training.config import TrainConfig, parse_command_line
from nanostories.variants import MODELS

BATCHES = (2, 4, 8, 16, 32)


def peak(config: TrainConfig, vocab_size: int, kind: str, batch: int) -> float:
    """MB, since this process began: batches must grow. inf if there is too little."""
    try:
        two_steps(config, vocab_size, kind, batch)
    except MemoryError:
        return float("inf")
    except RuntimeError as error:  # PyTorch's
        if "memory" not in str(error):
            raise
        return float("inf")
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 1e6
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024 / 1e6


def two_steps(config: TrainConfig, vocab_size: int, kind: str, batch: int) -> None:
    device = set_up_device()
    dtype = choose_dtype(config.dtype, device)
    shape = GPTNeoConfig(vocab_size=vocab_size, **config.model_shape())
    model = MODELS[config.architecture](shape).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(vocab_size, (batch, config.block_size + 1), device=device)
    for _ in range(2):  # the first makes the optimizer's state
        with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            if kind == "eager":
                x = run(model, tokens[:, :-1], with_pattern=True)
                loss = plain_loss(x.flatten(0, 1), model.head.weight, tokens[:, 1:].flatten())
            else:
                loss = model(tokens[:, :-1], tokens[:, 1:])[1]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def main() -> None:
    out, vocab_size, limit, kind, *settings = sys.argv[1:]
    config, _ = parse_command_line(settings)
    if not torch.cuda.is_available():
        limit_memory(int(limit))
    row = {"run": config.name}
    for batch in BATCHES:
        mb = peak(config, int(vocab_size), kind, batch)
        row[f"MB, batch {batch}, {kind}"] = round(mb) if mb <= int(limit) else "oom"
    facts = {"kind": "memory"}
    save(Path(out), "memory", [Table("Memory of a training step", [row], facts=facts)])


def limit_memory(mb: int) -> None:
    """An error is better than swapping."""
    if sys.platform != "linux":
        sys.exit("sweeps.memory: without a GPU, memory is measured on Linux alone")
    import resource  # here, as Windows has none

    _, hard_limit = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (mb * 10**6, hard_limit))


if __name__ == "__main__":
    main()
