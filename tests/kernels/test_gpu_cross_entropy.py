"""The loss as a GPU computes it, traced by torch.compile, against PyTorch's cross-entropy on all logits at once."""

import pytest
import torch
from test_cross_entropy import plain
from torch.utils._python_dispatch import TorchDispatchMode

from kernels import gpu_cross_entropy
from kernels.gpu_cross_entropy import traced_loss


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 2e-6), (torch.bfloat16, 1e-2)])
def test_loss_and_gradients_are_those_of_plain_cross_entropy(monkeypatch, dtype, tolerance, traced):
    """Several chunks, the last one short; some targets do not count. fullgraph: nothing falls out of the graph."""
    monkeypatch.setattr(gpu_cross_entropy, "CHUNK_LOGITS", 3000)
    function = torch.compile(traced_loss, backend="aot_eager", fullgraph=True) if traced else traced_loss
    torch.manual_seed(0)
    x, weight, targets = torch.randn(100, 24).requires_grad_(), torch.randn(97, 24).requires_grad_(), torch.arange(100)
    targets[97:], targets[1::5] = 3, -100
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        value = function(x, weight, targets, dtype)
        with torch.no_grad():
            assert function(x, weight, targets, dtype).equal(value)
    (3 * value).backward()
    expected, dx, dweight = plain(x, weight, targets)
    assert value.dtype == torch.float32 and abs(value - expected) < tolerance * expected.abs()
    for gradient, reference in ((x.grad, dx), (weight.grad, dweight)):
        assert (gradient - 3 * reference).norm() < tolerance * (3 * reference).norm()


def test_all_logits_are_never_there_at_once(monkeypatch):
    class Largest(TorchDispatchMode):
        n = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            out = function(*args, **kwargs or {})
            self.n = max(self.n, out.numel() if isinstance(out, torch.Tensor) else 0)
            return out

    monkeypatch.setattr(gpu_cross_entropy, "CHUNK_LOGITS", 1000)
    with Largest() as largest:
        x, weight = torch.randn(64, 8, requires_grad=True), torch.randn(100, 8, requires_grad=True)
        traced_loss(x, weight, torch.arange(64), torch.float32).backward()
    assert largest.n <= 1000


def test_without_a_target_that_counts_the_loss_is_0():
    x, weight = torch.randn(5, 8, requires_grad=True), torch.randn(11, 8, requires_grad=True)
    value = traced_loss(x, weight, torch.full((5,), -100), torch.float32)
    value.backward()
    assert value == 0 and not x.grad.any() and not weight.grad.any()
