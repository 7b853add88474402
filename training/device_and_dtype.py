"""
Which dtype a model computes in on this machine.
"""

import torch

from kernels import autotune


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """bfloat16 on a GPU that has it, else float16 (with a loss scaler); on a CPU bfloat16 or float32, as measured."""
    if name != "auto":
        return getattr(torch, name)
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.get_device_capability(device)[0] >= 8 else torch.float16
    if device.type == "cpu":
        return autotune.fast_dtype()
    return torch.float32
