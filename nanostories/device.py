"""The device of a run, its dtype, compiled or not, and the peak FLOP/s that MFU is measured
against."""

import re
import timeit

import torch

from nanostories.cli import UserError
from nanostories.kernels import attention, cpu_features
from nanostories.kernels.compile_cpp import dtype_name, keep_freed_memory
from nanostories.training.config import TrainConfig
from nanostories.training.distributed import SINGLE_PROCESS, Ranks

# Dense bf16 (fp16 on a T4) matrix products, in FLOP/s, from the data sheets. Full names, as the
# driver reports them, without "NVIDIA", "Tesla" and "GeForce": a slice of an A100 (MIG) or a
# laptop's GPU differs.
GPU_PEAK_FLOPS = {
    "B200": 2250e12,
    "H200|H100 80GB HBM3": 989e12,
    r"A100.(SXM4.\d+GB|PCIE.40GB|80GB PCIe)": 312e12,
    "L40S": 362e12,
    "L4": 121e12,
    "A10G": 70e12,
    "RTX 4090": 165e12,
    "RTX 3090": 71e12,
    "T4": 65e12,
}


def set_up_device(name: str, ranks: Ranks = SINGLE_PROCESS) -> torch.device:
    """The device of this process, PyTorch set up for it. Several processes have a GPU each, or
    share the CPU."""
    if name == "auto":
        name = (
            "cuda"
            if torch.cuda.is_available()
            else "mps"
            if torch.backends.mps.is_available()
            else "cpu"
        )
    kind = name.partition(":")[0]
    if kind not in ("cuda", "mps", "cpu") or ranks.size > 1 and name not in ("cuda", "cpu"):
        raise UserError(
            f"device={name}: must be cpu or cuda, or for a single process cuda:1 (…) or mps"
        )
    if ranks.size > 1 and kind == "cuda":
        name = f"cuda:{ranks.local_rank}"
    try:
        device = torch.zeros(1, device=name).device
    except (
        RuntimeError,
        AssertionError,
    ) as error:  # an AssertionError where torch was built without CUDA
        raise UserError(
            f"device {name!r} cannot be used here ({str(error).splitlines()[0]})"
        ) from error
    if kind == "cpu":
        keep_freed_memory()
    if kind == "cuda":
        torch.cuda.set_device(
            device
        )  # streams, graphs and kernels use the current device, so cuda:1 must be it
        torch.set_float32_matmul_precision(
            "high"
        )  # TF32 for all matrix products that are in float32
    return device


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """bfloat16 on a GPU that has it, else float16 (with a loss scaler); on a CPU as cpu_features.py
    decides."""
    if name != "auto":
        return getattr(torch, name)
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.get_device_capability(device)[0] >= 8 else torch.float16
    return cpu_features.fast_dtype() if device.type == "cpu" else torch.float32


def no_compile_reason(device: torch.device) -> str | None:
    """Why torch.compile does not work on this machine; None if it works."""
    if device.type == "mps":
        return "torch.compile does not support mps well yet"
    # it needs triton on a GPU; on a CPU a compiler, OpenMP (which Apple's compiler lacks) and
    # Python's headers
    try:
        torch.compile(lambda x: x.sin() + 1)(torch.zeros(64, 64, device=device))
    except RuntimeError as error:
        lines = str(error).splitlines() or [type(error).__name__]
        return next((line for line in lines if "error:" in line), lines[0])
    return None


def describe(
    config: TrainConfig, device: torch.device, dtype: torch.dtype, size: int, no_compile: str | None
) -> dict:
    """The facts that decide how sums are rounded: with all equal, a resumed run is the same bit for
    bit on a CPU."""
    names = dict(
        cpu=f"cpu ({cpu_features.isa()})",
        cuda=device.type == "cuda" and torch.cuda.get_device_name(device),
    )
    width = config.n_embd // config.n_head
    facts = dict(device=names.get(device.type, device.type), dtype=dtype_name(dtype))
    facts["attention"] = attention.implementation(
        device.type, dtype, width, config.dropout, not no_compile
    )
    facts["compiled"] = (
        f"no ({no_compile})" if no_compile else "yes (the first step takes up to a minute)"
    )
    return facts | dict(
        threads=torch.get_num_threads(), processes=size, torch=str(torch.__version__)
    )


def peak_flops(device: torch.device, dtype: torch.dtype) -> float:
    """FLOP/s that MFU is measured against: the data sheet's for a known GPU, else measured with a
    matrix product."""
    if device.type == "cuda":
        own_name = re.sub("NVIDIA |Tesla |GeForce ", "", torch.cuda.get_device_name(device))
        if known := [peak for name, peak in GPU_PEAK_FLOPS.items() if re.fullmatch(name, own_name)]:
            return known[0]
    n = 1024 if device.type == "cpu" else 4096  # large enough to keep the whole device busy
    a = torch.randn(n, n, device=device).to(dtype)
    # the best of some: the first warms up, and other work may be running
    return 2 * n**3 / min(timeit.repeat(lambda: (a @ a)[0, 0].item(), number=1, repeat=8))
