"""
The memory of a training step by batch size: of the GPU as PyTorch allocates it, or on a CPU of the whole process.

$ python -m sweeps.memory memory.json 10000 12000 configs/ts_8m.py --n_embd=128       # vocab_size, limit in MB

Two steps of AdamW on random tokens, not compiled, each batch size in a process of its own. Above the limit, or what
there is, it is "oom".
"""

import contextlib
import multiprocessing
import re
import sys
from pathlib import Path

import torch

from common.files import write_json
from model import GPTNeoConfig
from sweeps.plan import MODELS
from training.config import TrainConfig, parse_command_line
from training.device_and_dtype import choose_dtype

BATCHES = (2, 4, 8, 16, 32)


def measure(config: TrainConfig, vocab_size: int, batch: int, pipe) -> None:
    """Sends the peak of the GPU in MB, or of this process; nothing if the GPU has too little."""
    with contextlib.suppress(torch.OutOfMemoryError):
        two_steps(config, vocab_size, batch)
        pipe.send(torch.cuda.max_memory_allocated() / 1e6 if torch.cuda.is_available() else resident_mb("self"))


def two_steps(config: TrainConfig, vocab_size: int, batch: int) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype, shape = choose_dtype(config.dtype, device), GPTNeoConfig(vocab_size=vocab_size, **config.model_shape())
    model = MODELS[config.architecture](shape).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(vocab_size, (batch, config.block_size + 1), device=device)
    for _ in range(2):  # the first makes the optimizer's state
        with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            loss = model(tokens[:, :-1], tokens[:, 1:])[1]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def resident_mb(pid: int | str) -> float:
    """The peak so far of a process, imports included."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) * 1024 / 1e6 if found else 0.0  # it has ended


def peak(config: TrainConfig, vocab_size: int, batch: int, limit: float) -> float | str:
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=measure, args=(config, vocab_size, batch, sender), daemon=True)
    process.start()
    while process.is_alive() and not receiver.poll(0.02):
        if not torch.cuda.is_available() and resident_mb(process.pid) > limit:
            process.kill()
    found = receiver.recv() if receiver.poll() else float("inf")
    process.join()
    if process.exitcode > 0:  # not killed, by us or by the system
        sys.exit("sweeps.memory: a step failed: see above")
    return found if found <= limit else "oom"


def main() -> None:
    out, vocab_size, limit, *settings = sys.argv[1:]
    config = parse_command_line(settings)[0]
    if not torch.cuda.is_available() and not Path("/proc/self/status").exists():
        sys.exit("sweeps.memory: without a GPU, memory is measured on Linux alone")
    peaks = {f"MB, batch {n}": peak(config, int(vocab_size), n, float(limit)) for n in BATCHES}
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    write_json(Path(out), peaks)


if __name__ == "__main__":
    main()
