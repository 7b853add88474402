"""nanostories/kernels/cross_entropy.py against PyTorch's cross-entropy on all logits at once, in
float64."""

import pytest
import torch
import torch.nn.functional as F
from test_compile_cpp import implementation, needs_compiler  # noqa: F401

from nanostories.kernels import cross_entropy
from nanostories.kernels.cross_entropy import head_loss


def random_inputs(N, V):
    """Some targets do not count, and lie in strided memory."""
    targets = torch.randint(V, (N, 3))[:, 1]
    targets[1::5] = -100
    return torch.randn(N, 24), torch.randn(V, 24), targets


def assert_exact(x, weight, targets, dtype, tolerance):
    exact_x = x.double().requires_grad_()
    exact_weight = weight.double().requires_grad_()
    x = x.requires_grad_()
    weight = weight.requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        loss = head_loss(x, weight, targets)
        with torch.no_grad():
            assert head_loss(x, weight, targets).equal(loss)
    (3 * loss).backward()
    expected = F.cross_entropy(exact_x @ exact_weight.T, targets)
    (3 * expected).backward()
    assert loss.dtype == torch.float32
    assert abs(loss - expected) < tolerance * expected.abs()
    for ours, exact in ((x, exact_x), (weight, exact_weight)):
        assert (ours.grad - exact.grad).norm() < tolerance * exact.grad.norm()


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize("N, V", [(1, 16), (70, 1003)])
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 2e-6), (torch.bfloat16, 1e-2)])
def test_loss_and_gradients_are_exact(monkeypatch, N, V, dtype, tolerance):
    """In several chunks, the last one short."""
    monkeypatch.setattr(cross_entropy, "CHUNK", 32)
    assert_exact(*random_inputs(N, V), dtype, tolerance)


@pytest.mark.usefixtures("implementation")
def test_large_logits_neither_overflow_nor_vanish():
    x = torch.tensor([[300.0], [-300.0]])
    weight = torch.arange(-20.0, 21.0)[:, None]
    assert_exact(x, weight, torch.tensor([40, 40]), torch.float32, 2e-6)


@pytest.mark.usefixtures("implementation")
def test_without_targets_there_is_nothing_to_learn():
    """A window that holds nothing but a header."""
    x, weight, targets = random_inputs(7, 33)
    loss = head_loss(x.requires_grad_(), weight, targets.fill_(-100))
    loss.backward()
    assert loss == 0 and not x.grad.any()


@needs_compiler
def test_a_cpu_never_holds_all_logits_together(monkeypatch):
    cross_entropy_ = cross_entropy.cross_entropy_
    chunks = []

    def watched(logits, targets):
        chunks.append(len(logits))
        return cross_entropy_(logits, targets)

    monkeypatch.setattr(cross_entropy, "CHUNK", 32)
    monkeypatch.setattr(cross_entropy, "cross_entropy_", watched)
    head_loss(torch.randn(100, 16), torch.randn(97, 16), torch.zeros(100, dtype=torch.long))
    assert chunks == [32, 32, 32, 4]
