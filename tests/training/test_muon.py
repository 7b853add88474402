"""Our Muon beside PyTorch's, which takes one matrix at a time."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from training.muon import Muon, orthogonalized


def weights_with_gradients(shape: tuple[int, int], n: int = 3) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    weights = [torch.nn.Parameter(torch.randn(shape, generator=generator)) for _ in range(n)]
    for weight in weights:
        weight.grad = torch.randn(shape, generator=generator)
    return weights


@pytest.mark.parametrize("shape", [(16, 16), (64, 16), (16, 64)])
def test_equals_pytorchs(shape):
    settings = dict(lr=0.02, weight_decay=0.1, momentum=0.95)
    ours, theirs, before = (weights_with_gradients(shape) for _ in range(3))
    optimizers = [Muon([dict(params=ours)], **settings)]
    optimizers.append(torch.optim.Muon(theirs, adjust_lr_fn="match_rms_adamw", **settings))
    for step in range(4):
        for optimizer in optimizers:
            optimizer.step()
        for a, b in zip(ours, theirs):
            a.grad = b.grad = torch.sin(7 * a.grad + step)  # something new
    for a, b, c in zip(ours, theirs, before):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-4)
        assert (a - c).abs().mean() > 0.01  # about 4 steps of 0.2 * lr


@pytest.mark.parametrize("shape", [(5, 32, 32), (2, 64, 24), (1, 8, 40)])
def test_orthogonalized_keeps_the_directions_and_evens_out_the_sizes(shape):
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    u, singular, vh = torch.linalg.svd(matrices, full_matrices=False)
    result = u.mT @ orthogonalized(matrices).float() @ vh.mT  # would be diagonal, were the iteration exact
    sizes = result.diagonal(dim1=1, dim2=2)
    large = singular > 0.1 * singular[:, :1]  # tiny ones take longer
    assert 0.5 < sizes[large].min() and sizes.max() < 1.4
    off_diagonal = result - torch.diag_embed(sizes)
    assert off_diagonal.norm() < 0.1 * sizes.norm()


def test_state_survives_saving():
    states = []
    for save in (False, True):
        weights = weights_with_gradients((8, 8))
        optimizer = Muon([dict(params=weights)], lr=0.1, momentum=0.9, weight_decay=0.0)
        optimizer.step()
        if save:
            saved = optimizer.state_dict()
            optimizer = Muon([dict(params=weights)], lr=0.1, momentum=0.9, weight_decay=0.0)
            optimizer.load_state_dict(saved)
        optimizer.step()
        states.append(torch.stack([w.detach() for w in weights]))
    assert torch.equal(*states)


def test_muons_flops_are_those_that_pytorch_counts():
    weights = [torch.nn.Parameter(torch.randn(shape)) for shape in [(48, 16)] * 3 + [(16, 16), (16, 64)]]
    for weight in weights:
        weight.grad = torch.randn_like(weight)
    optimizer = Muon([dict(params=weights[:3]), dict(params=weights[3:4]), dict(params=weights[4:])], 0.1, 0.9, 0.1)
    with FlopCounterMode(display=False) as counter:
        optimizer.step()
    assert optimizer.flops_per_step() == counter.get_total_flops()


@pytest.mark.slow
def test_compiled_it_is_the_same():
    states = []
    for compiled in (False, True):
        weights = weights_with_gradients((8, 24))
        settings = dict(lr=0.1, momentum=0.9, weight_decay=0.0, dtype=torch.float32)
        Muon([dict(params=weights)], **settings, compiled=compiled).step()
        states.append(torch.stack([weight.detach() for weight in weights]))
    torch.testing.assert_close(*states, atol=1e-5, rtol=0)
