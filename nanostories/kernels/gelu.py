"""
GELU, tanh approximation, on a CPU by cpu_gelu.cpp: compiled by PyTorch, its gradient takes twice as
long.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from nanostories.kernels import compile_cpp

WIDEST_VECTOR = 16  # numbers; the kernel takes no fewer


def gelu(x):
    fits = x.device.type == "cpu" and x.numel() >= WIDEST_VECTOR
    if fits and compile_cpp.has_kernel("cpu_gelu", "gelu", x.dtype):
        return gelu_in_cpp(x)
    return F.gelu(x, approximate="tanh")


# torch.compile keeps graphs on disk by an operator's name: one whose arguments change needs a new
# name.
@torch.library.custom_op("nanostories::gelu_in_cpp", mutates_args=())
def gelu_in_cpp(x: Tensor) -> Tensor:
    x = x.contiguous()
    y = torch.empty_like(x)
    kernel = compile_cpp.kernel("cpu_gelu", "gelu", x.dtype)
    compile_cpp.call(kernel, x, y, x.numel())
    return y


@torch.library.custom_op("nanostories::gelu_gradient_in_cpp", mutates_args=())
def gelu_gradient_in_cpp(x: Tensor, dy: Tensor) -> Tensor:
    x = x.contiguous()
    dx = torch.empty_like(x)
    kernel = compile_cpp.kernel("cpu_gelu", "gelu_gradient", x.dtype)
    compile_cpp.call(kernel, x, dy.contiguous(), dx, x.numel())
    return dx


@gelu_in_cpp.register_fake
@gelu_gradient_in_cpp.register_fake
def _(x, *_):
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def setup_context(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def backward(ctx, dy):
    return gelu_gradient_in_cpp(*ctx.saved_tensors, dy)


gelu_in_cpp.register_autograd(backward, setup_context=setup_context)
