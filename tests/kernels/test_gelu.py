"""nanostories/kernels/gelu.py against PyTorch in float64: the C++ kernel, and its fallback."""

import pytest
import torch
import torch.nn.functional as F

from nanostories.kernels import compile_cpp, gelu

needs_compiler = pytest.mark.skipif(
    compile_cpp.library("cpu_gelu") is None, reason="no C++ compiler that builds cpu_gelu.cpp"
)


@pytest.fixture(params=[pytest.param("C++", marks=needs_compiler), "PyTorch"])
def implementation(request, monkeypatch):
    if request.param == "PyTorch":
        monkeypatch.setattr(gelu, "has_kernel", lambda dtype: False)


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-6), (torch.bfloat16, 1e-2)])
@pytest.mark.parametrize("shape", [(3,), (16,), (5, 7, 9), (2, 3, 400)])
def test_values_and_gradients_are_exact(shape, dtype, tolerance):
    """In all places of a vector, far from zero as well, and with a gradient in other strides."""
    torch.manual_seed(0)
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


@needs_compiler
def test_very_large_numbers_stay_finite():
    x = torch.tensor([-1e9, -50.0, 0.0, 50.0, 1e9] * 4, requires_grad=True)
    y = gelu.gelu(x)
    y.sum().backward()
    torch.testing.assert_close(y[:5], torch.tensor([0, 0, 0, 50, 1e9]))
    torch.testing.assert_close(x.grad[:5], torch.tensor([0, 0, 0.5, 1, 1]))


@needs_compiler
def test_the_operators_keep_pytorchs_rules():
    torch.library.opcheck(gelu.gelu_in_cpp, (torch.randn(4, 20, requires_grad=True),))
