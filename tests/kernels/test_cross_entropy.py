"""nanostories/kernels/cross_entropy.py against PyTorch's cross-entropy on all logits at once, in
float64."""

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from conftest import ROOT

from nanostories.kernels import compile_cpp, cross_entropy
from nanostories.kernels.cross_entropy import head_loss

is_missing = compile_cpp.library("cpu_cross_entropy") is None
needs_compiler = pytest.mark.skipif(
    is_missing, reason="no C++ compiler that builds cpu_cross_entropy.cpp"
)


@pytest.fixture(params=[pytest.param("C++", marks=needs_compiler), "PyTorch", "as on a GPU"])
def implementation(request, monkeypatch):
    if request.param != "C++":
        monkeypatch.setattr(cross_entropy, "cross_entropy_", cross_entropy.pytorch_cross_entropy_)
    if request.param == "as on a GPU":
        monkeypatch.setattr(cross_entropy, "operator_for", lambda _: cross_entropy.chunked_loss)


def plain(x, weight, targets):
    """In float64, with gradients by x and weight."""
    x, weight = (y.detach().double().requires_grad_() for y in (x, weight))
    value = F.cross_entropy(x @ weight.T, targets)
    return value, *torch.autograd.grad(value, (x, weight))


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize("N, V", [(1, 16), (7, 97), (100, 1000), (70, 4096)])
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 2e-6), (torch.bfloat16, 1e-2)])
@pytest.mark.parametrize("compiled", [False, True])
def test_loss_and_gradients_equal_plain_cross_entropy(
    monkeypatch, N, V, dtype, tolerance, compiled
):
    """Several chunks, the last one short; some targets do not count, and lie in strided memory."""
    monkeypatch.setattr(cross_entropy, "CHUNK", 32)
    torch._dynamo.reset()
    function = (
        torch.compile(head_loss, backend="aot_eager", fullgraph=True) if compiled else head_loss
    )
    torch.manual_seed(0)
    x, weight = torch.randn(N, 24).requires_grad_(), torch.randn(V, 24).requires_grad_()
    targets = torch.randint(V, (N, 3))[:, 1]
    targets[1::5] = -100
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        value = function(x, weight, targets)
        with torch.no_grad():
            assert function(x, weight, targets).equal(value)
    (3 * value).backward()
    expected, dx, dweight = plain(x, weight, targets)
    assert value.dtype == torch.float32
    assert abs(value - expected) < tolerance * expected.abs()
    for gradient, reference in ((x.grad, dx), (weight.grad, dweight)):
        assert (gradient - 3 * reference).norm() < tolerance * (3 * reference).norm()


@pytest.mark.usefixtures("implementation")
def test_without_targets_there_is_nothing_to_learn():
    """A window that holds nothing but a header."""
    x, weight = torch.randn(7, 8).requires_grad_(), torch.randn(33, 8).requires_grad_()
    value = head_loss(x, weight, torch.full((7,), -100))
    value.backward()
    assert value == 0 and not x.grad.any() and not weight.grad.any()


@pytest.mark.usefixtures("implementation")
def test_large_logits_neither_overflow_nor_vanish():
    x = torch.tensor([[300.0], [-300.0]]).requires_grad_()
    weight, targets = torch.arange(-20.0, 21.0)[:, None], torch.tensor([40, 40])
    value = head_loss(x, weight, targets)
    value.backward()
    expected = plain(x, weight, targets)
    torch.testing.assert_close(value.double(), expected[0])
    torch.testing.assert_close(x.grad.double(), expected[1])


PEAKS = """
import resource, torch
from nanostories.kernels import cross_entropy
for operator in (cross_entropy.head_loss_operator, cross_entropy.chunked_loss):
    cross_entropy.operator_for = lambda _: operator
    for n in (512, 5120):
        x = torch.randn(n, 16, requires_grad=True)
        weight = torch.randn(10_000, 16, requires_grad=True)
        cross_entropy.head_loss(x, weight, torch.zeros(n, dtype=torch.long)).backward()
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def test_all_logits_together_are_never_held():
    """Peak memory, in MB, after a call that has 20 MB of logits, and after one that has 200, of
    both operators."""
    lines = subprocess.check_output([sys.executable, "-c", PEAKS], cwd=ROOT, text=True).split()
    assert float(lines[-1]) - float(lines[0]) < 100
