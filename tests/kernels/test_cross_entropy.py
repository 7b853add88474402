"""cross_entropy.py and cpu_cross_entropy.cpp against PyTorch's cross-entropy on all logits at once."""

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from conftest import ROOT

from kernels import compile_cpp, cross_entropy
from kernels.cross_entropy import head_loss

needs_compiler = pytest.mark.skipif(
    compile_cpp.library("cpu_cross_entropy") is None, reason="no C++ compiler that builds cpu_cross_entropy.cpp"
)


@pytest.fixture(params=[pytest.param("kernel", marks=needs_compiler), "pytorch"], autouse=True)
def implementation(request, monkeypatch):
    monkeypatch.setattr(cross_entropy, "implementation", lambda V, dtype: request.param)


def plain(x, weight, targets):
    """In float64, with gradients by x and weight."""
    x, weight = (y.detach().double().requires_grad_() for y in (x, weight))
    value = F.cross_entropy(x @ weight.T, targets)
    return value, *torch.autograd.grad(value, (x, weight))


@pytest.mark.parametrize("N, V", [(1, 16), (7, 97), (100, 1000), (70, 4096)])
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 2e-6), (torch.bfloat16, 1e-2)])
def test_loss_and_gradients_are_those_of_plain_cross_entropy(monkeypatch, N, V, dtype, tolerance):
    """Several chunks, the last one short; some targets do not count; under autocast or not."""
    monkeypatch.setattr(cross_entropy, "CHUNK", 32)
    torch.manual_seed(0)
    x, weight = torch.randn(N, 24).requires_grad_(), torch.randn(V, 24).requires_grad_()
    targets = torch.randint(V, (N,))
    targets[1::5] = -100
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        value = head_loss(x, weight, targets)
    (3 * value).backward()
    expected, dx, dweight = plain(x, weight, targets)
    assert value.dtype == torch.float32
    assert abs(value - expected) < tolerance * expected.abs()
    for gradient, reference in ((x.grad, dx), (weight.grad, dweight)):
        assert (gradient - 3 * reference).norm() < tolerance * (3 * reference).norm()


def test_threads_share_the_work_and_change_nothing(two_threads):
    torch.manual_seed(0)
    x, weight, targets = torch.randn(50, 8, requires_grad=True), torch.randn(333, 8), torch.randint(333, (50,))
    results = []
    for n_threads in (2, 1):
        torch.set_num_threads(n_threads)
        value = head_loss(x, weight, targets)
        results.append(torch.cat([value[None], torch.autograd.grad(value, x)[0].flatten()]))
    torch.testing.assert_close(*results)


def test_without_gradients_there_is_the_same_loss():
    x, weight, targets = torch.randn(50, 8), torch.randn(33, 8), torch.randint(33, (50,))
    with torch.no_grad():
        torch.testing.assert_close(head_loss(x, weight, targets), F.cross_entropy(x @ weight.T, targets))


def test_without_targets_there_is_nothing_to_learn():
    """A window that holds nothing but a header."""
    x, weight = torch.randn(7, 8).requires_grad_(), torch.randn(33, 8).requires_grad_()
    value = head_loss(x, weight, torch.full((7,), -100))
    value.backward()
    assert value == 0 and not x.grad.any() and not weight.grad.any()


def test_large_logits_neither_overflow_nor_vanish():
    x = torch.tensor([[300.0], [-300.0]]).requires_grad_()
    weight, targets = torch.arange(-20.0, 21.0)[:, None], torch.tensor([40, 40])
    value = head_loss(x, weight, targets)
    value.backward()
    expected = plain(x, weight, targets)
    torch.testing.assert_close(value.double(), expected[0])
    torch.testing.assert_close(x.grad.double(), expected[1])


def test_the_operator_keeps_pytorchs_rules():
    x, weight = torch.randn(20, 8, requires_grad=True), torch.randn(33, 8, requires_grad=True)
    arguments = (x, weight, torch.randint(33, (20,)), torch.float32, True)
    torch.library.opcheck(cross_entropy.chunked_loss, arguments, test_utils=("test_schema", "test_faketensor"))


def test_all_logits_together_are_never_held():
    """Peak memory of a call that has 400 MB of logits: in a process of its own, beside one with a tenth of them."""
    code = (
        "import sys, torch; from kernels.cross_entropy import head_loss; n = int(sys.argv[1]); "
        "x = torch.randn(n, 16, requires_grad=True);"
        "head_loss(x, torch.randn(10_000, 16, requires_grad=True), torch.zeros(n, dtype=torch.long)).backward();"
        "print(open('/proc/self/status').read().split('VmHWM:')[1].split()[0])"
    )
    peaks = [
        int(subprocess.run([sys.executable, "-c", code, n], cwd=ROOT, capture_output=True, check=True).stdout) / 1024
        for n in ("1024", "10240")
    ]
    assert peaks[1] - peaks[0] < 100
