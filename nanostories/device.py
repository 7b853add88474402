"""The device of a run, its dtype, compiled or not, and the peak FLOP/s that MFU is measured
against."""

import ctypes
import os
import platform
import re
import timeit

import torch

from nanostories.cli import UserError
from nanostories.kernels import cpu_features

# Dense matrix products in half precision, in FLOP/s, from the data sheets. The names are whole, as
# the driver reports them, without "NVIDIA", "Tesla" and "GeForce": a slice of an A100 (MIG) or a
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


def set_up_device(name: str = "auto", local_rank: int | None = None) -> torch.device:
    """The device of this process, PyTorch set up for it. Each command that computes calls this
    first.

    local_rank: this process's place on its machine, if the run has several processes: they have a
    GPU each, or share the CPU. None: a single process.
    """
    # of $NANOSTORIES_ISA; the libraries read them when they first compute
    os.environ.update(cpu_features.instruction_set().limits)
    if name == "auto":
        name = "cpu"
        if torch.backends.mps.is_available() and local_rank is None:
            name = "mps"
        if torch.cuda.is_available():
            name = "cuda"
    if local_rank is not None:
        if name not in ("cpu", "cuda"):
            raise UserError(f"device={name}: must be cpu or cuda where a run has several processes")
        if name == "cuda":
            name = f"cuda:{local_rank}"
    try:
        device = torch.zeros(1, device=name).device
    except (RuntimeError, AssertionError) as error:
        # an AssertionError where torch was built without CUDA
        reason = str(error).splitlines()[0]
        raise UserError(f"device {name!r} cannot be used here ({reason})") from error
    if device.type == "cpu":
        keep_freed_memory()
    if device.type == "cuda":
        # streams, graphs and kernels use the current device, so cuda:1 must be it
        torch.cuda.set_device(device)
        # TF32 for all matrix products that are in float32
        torch.set_float32_matmul_precision("high")
        # cuDNN's backward pass of attention can give NaN with a mask: pytorch issue 196678
        torch.backends.cuda.enable_cudnn_sdp(False)
    return device


def keep_freed_memory() -> None:
    """Tell glibc to keep freed memory. By default it returns large blocks to the system at once,
    and every step would fault in a gigabyte of fresh pages: 15% of its time, on two cores."""
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(-4, 0)  # M_MMAP_MAX
        libc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """bfloat16 on a GPU that has it, else float16 (with a loss scaler); on a CPU as cpu_features.py
    decides."""
    if name != "auto":
        return getattr(torch, name)
    if device.type == "cuda":
        has_bfloat16 = torch.cuda.get_device_capability(device) >= (8, 0)
        return torch.bfloat16 if has_bfloat16 else torch.float16
    return cpu_features.fast_dtype() if device.type == "cpu" else torch.float32


def no_compile_reason(device: torch.device) -> str | None:
    """ "no (…)", why torch.compile does not work on this machine; None if it works."""
    if device.type == "mps":
        return "no (torch.compile does not support mps well yet)"
    # It needs triton on a GPU; on a CPU a compiler, OpenMP (which Apple's compiler lacks) and
    # Python's headers.
    try:
        torch.compile(lambda x: x.sin() + 1)(torch.zeros(64, 64, device=device))
    except RuntimeError as error:
        lines = str(error).splitlines()
        errors = [line for line in lines if "error:" in line]
        return f"no ({[*errors, *lines][0]})"
    return None


def processor_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type == "cpu":
        return f"{cpu_features.cpu_info('model name')}, as {cpu_features.instruction_set().name}"
    return device.type


def peak_flops(device: torch.device, dtype: torch.dtype) -> float | None:
    """FLOP/s that MFU is measured against: the data sheet's, for a GPU in the table."""
    if device.type != "cuda" or dtype == torch.float32:
        return None
    gpu = re.sub("NVIDIA |Tesla |GeForce ", "", torch.cuda.get_device_name(device))
    for name, flops in GPU_PEAK_FLOPS.items():
        if re.fullmatch(name, gpu):
            return flops
    return None


def measured_flops(device: torch.device, dtype: torch.dtype) -> float:
    """FLOP/s of a matrix product, large enough to keep the whole device busy, now."""
    n = 2048
    a = torch.randn(n, n, device=device).to(dtype)
    # the best of some: the first warms up, and other work may be running
    seconds = min(timeit.repeat(lambda: (a @ a)[0, 0].item(), number=1, repeat=8))
    return 2 * n**3 / seconds
