"""nanostories/kernels/embedding.py: PyTorch's numbers. (tests/training: the same bits in every
compiled run on two threads.)"""

import pytest
import torch
import torch.nn.functional as F

from nanostories.kernels.embedding import Embedding, embedding_gradient


@pytest.mark.parametrize("shape", [(7,), (3, 50), (0,)])
def test_rows_and_gradients_equal_pytorchs(shape):
    torch.manual_seed(0)
    ours = Embedding(11, 6)
    ids = torch.randint(11, shape)
    upstream = torch.randn(*shape, 6)
    weight = ours.weight.detach().clone().requires_grad_()
    (ours(ids) * upstream).sum().backward()
    (F.embedding(ids, weight) * upstream).sum().backward()
    assert ours(ids).equal(F.embedding(ids, weight))
    torch.testing.assert_close(ours.weight.grad, weight.grad)


def test_the_operator_keeps_pytorchs_rules():
    torch.library.opcheck(embedding_gradient, (torch.randn(2, 5, 4), torch.randint(9, (2, 5)), 9))
