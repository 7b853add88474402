"""nanostories/kernels/gelu.py against PyTorch in float64."""

import pytest
import torch
import torch.nn.functional as F
from test_compile_cpp import needs_compiler

from nanostories.kernels import gelu


def assert_exact(shape, dtype, tolerance):
    """In all places of a vector, far from zero as well, and with a gradient in other strides."""
    x = (5 * torch.randn(shape)).to(dtype).requires_grad_()
    exact_x = x.detach().double().requires_grad_()
    upstream = torch.randn(shape[::-1]).to(dtype).permute(*reversed(range(len(shape))))
    y = gelu.gelu(x)
    y.backward(upstream)
    exact = F.gelu(exact_x, approximate="tanh")
    exact.backward(upstream.double())
    assert y.dtype == x.grad.dtype == dtype
    assert (y - exact).norm() < tolerance * exact.norm()
    assert (x.grad - exact_x.grad).norm() < tolerance * exact_x.grad.norm()


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-6), (torch.bfloat16, 1e-2)])
@pytest.mark.parametrize("shape", [(3,), (16,), (5, 7, 9), (2, 3, 400)])
def test_values_and_gradients_are_exact(shape, dtype, tolerance):
    assert_exact(shape, dtype, tolerance)


@needs_compiler
def test_very_large_numbers_stay_finite():
    x = torch.tensor([-1e9, 1e9] * 8, requires_grad=True)
    y = gelu.gelu(x)
    y.sum().backward()
    torch.testing.assert_close(y, torch.tensor([0, 1e9] * 8))
    torch.testing.assert_close(x.grad, torch.tensor([0.0, 1] * 8))
