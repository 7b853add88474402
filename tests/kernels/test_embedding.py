"""kernels/embedding.py: PyTorch's numbers, and the same bits in every run of a compiled model on two threads."""

import pytest
import torch
import torch.nn.functional as F

from kernels.attention import story_starts
from kernels.embedding import Embedding, embedding_gradient
from model import GPTNeo, GPTNeoConfig


@pytest.mark.parametrize("shape", [(7,), (3, 50), (0,)])
def test_rows_and_gradients_equal_pytorchs(shape):
    torch.manual_seed(0)
    ours, ids, upstream = Embedding(11, 6), torch.randint(11, shape), torch.randn(*shape, 6)
    weight = ours.weight.detach().clone().requires_grad_()
    (ours(ids) * upstream).sum().backward()
    (F.embedding(ids, weight) * upstream).sum().backward()
    assert ours(ids).equal(F.embedding(ids, weight))
    torch.testing.assert_close(ours.weight.grad, weight.grad)


def test_the_operator_keeps_pytorchs_rules():
    torch.library.opcheck(embedding_gradient, (torch.randn(2, 5, 4), torch.randint(9, (2, 5)), 9))


@pytest.mark.slow
def test_a_compiled_model_has_the_same_gradients_twice_on_two_threads(two_threads):
    """Of packed stories: then positions repeat, and wpe's gradient has as many collisions as wte's."""
    torch.manual_seed(0)
    model = GPTNeo(GPTNeoConfig(vocab_size=2000, block_size=128, n_layer=1, n_head=4, n_embd=64, window_size=32))
    tokens = (torch.rand(16, 129) ** 4 * 2000).long()  # few ids are most of a text, as in any
    starts, compiled = story_starts(tokens[:, :-1], end_of_text=3), torch.compile(model, fullgraph=True, dynamic=False)
    gradients = []
    for _ in range(6):
        _, loss = compiled(tokens[:, :-1], tokens[:, 1:], starts)
        gradients.append(torch.autograd.grad(loss, list(model.parameters())))
    assert all(x.equal(first) for each in gradients for x, first in zip(each, gradients[0]))
