"""nanostories/kernels/attention.py against attention written out in float64: the C++ kernel, and
what PyTorch computes instead."""

import pytest
import torch
from test_compile_cpp import implementation, needs_compiler  # noqa: F401
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.library import opcheck

from nanostories.kernels import attention, cross_entropy, embedding, gelu
from nanostories.kernels.attention import causal_attention, story_starts, visibility

# B, T, H, window
SHAPES = [
    (1, 1, 1, 1),
    (1, 2, 1, 1),
    (2, 37, 3, 100),
    (2, 65, 2, 17),
    (2, 200, 1, 150),
    (3, 50, 2, 1),
]
PRECISIONS = [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)]  # dtype, tolerance


def attend(q, k, v, window, starts=None):
    return causal_attention(q, k, v, visibility(q, window, starts))


def written_out(q, k, v, window, starts=None, factors=1):
    """Softmax over the visible keys, times factors (B, H, T, T), in float64. (B, T, H, D)"""
    q, k, v = (x.double().transpose(1, 2) for x in (q, k, v))
    key = torch.arange(q.size(2), device=q.device)
    query = key[:, None]
    visible = (key <= query) & (key > query - window)
    if starts is not None:
        visible = visible & (key >= starts[:, None, :, None])
    logits = (q @ k.mT).masked_fill(~visible, -torch.inf)
    return (logits.softmax(-1) * factors @ v).transpose(1, 2)


def random_starts(B, T, length):
    """Story starts, for stories of about `length` tokens, other ones in every row."""
    return story_starts((torch.rand(B, T) < 1 / length).long(), end_of_text=1)


def random_qkv(B, T, H, D):
    """With logits around 1: the rounding of larger ones comes close to any fixed tolerance."""
    return torch.randn(B, T, 3, H, D) * torch.tensor([D**-0.25, D**-0.25, 1.0])[:, None, None]


def assert_as_written_out(qkv, window, starts, tolerance, attend=attend, factors=1):
    """Output and gradients. qkv: (B, T, 3, H, D)"""
    upstream = torch.randn_like(qkv[:, :, 0])
    exact = qkv.double().requires_grad_()
    qkv = qkv.requires_grad_()
    reference = written_out(*exact.unbind(2), window, starts, factors)
    reference.backward(upstream.double())
    y = attend(*qkv.unbind(2), window, starts)
    y.backward(upstream)
    assert y.dtype == qkv.dtype
    assert (y - reference).norm() < tolerance * reference.norm()
    # With one visible key the weights are 1 whatever q and k are: their gradient is nothing but
    # rounding.
    assert (qkv.grad - exact.grad).norm() < tolerance * exact.grad.norm()


def assert_as_written_out_in_all_shapes(D, dtype, tolerance):
    for B, T, H, window in SHAPES:
        for starts in (None, random_starts(B, T, 3), random_starts(B, T, 60)):
            qkv = random_qkv(B, T, H, D).to(dtype)
            assert_as_written_out(qkv, window, starts, tolerance)


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize("dtype, tolerance", PRECISIONS)
@pytest.mark.parametrize("D", [1, 16, 32, 80])
def test_output_and_gradients_equal_the_formula(D, dtype, tolerance):
    assert_as_written_out_in_all_shapes(D, dtype, tolerance)


@needs_compiler
@pytest.mark.parametrize("order", [(0, 1, 2, 4, 3), (4, 3, 2, 1, 0)])
def test_any_strides_reach_the_kernel(order):
    """GPT-2 scales q, which then lies elsewhere than k and v; the gradient comes in any layout,
    too."""
    qkv = random_qkv(2, 30, 2, 8).permute(order).contiguous().permute(order)

    def attend_elsewhere(q, *others):
        return attend(q.contiguous(), *others)

    assert_as_written_out(qkv, 7, None, 1e-5, attend_elsewhere)


@pytest.mark.usefixtures("implementation")
def test_large_logits_do_not_overflow():
    """GPT-Neo does not scale its logits: a trained head can reach hundreds."""
    assert_as_written_out(20 * torch.randn(1, 60, 3, 2, 16), 60, None, 1e-3)


@needs_compiler
def test_our_operators_keep_pytorchs_rules():
    """Schema, fake tensors (shapes under torch.compile) and autograd registration, by PyTorch's own
    checker."""
    x = torch.randn(5, 4, requires_grad=True)
    weight = torch.randn(9, 4, requires_grad=True)
    targets = torch.tensor([3, -100, 8, 0, 0])
    q, k, v = torch.randn(2, 20, 3, 2, 8, requires_grad=True).unbind(2)
    ids = torch.randint(9, (2, 5))
    for starts in (None, random_starts(2, 20, 5)):
        for dropout in (0.0, 0.5):
            visible = visibility(q, 7, starts)
            opcheck(attention.attention, (q, k, v, visible, torch.tensor([5]), dropout))
    opcheck(gelu.gelu_in_cpp, (torch.randn(4, 20, requires_grad=True),))
    opcheck(cross_entropy.chunked_loss, (x, weight, targets, torch.float32, True))
    opcheck(embedding.embedding_gradient, (torch.randn(2, 5, 4), ids, 9))


# ---- Dropout ----
def factors_of_dropout(shape, window, dropout):
    """What each attention weight is multiplied by, (B, H, T, T): where q and k are 0, all visible
    keys have the same weight, and where v is the identity, the output is the weights."""
    B, T, H = shape
    zeros = torch.zeros(B, T, H, T)
    v = torch.eye(T)[:, None].expand(B, T, H, T)
    visible = visibility(zeros, window)
    dropped = causal_attention(zeros, zeros, v, visible, dropout).transpose(1, 2)
    plain = causal_attention(zeros, zeros, v, visible).transpose(1, 2)
    return torch.where(plain > 0, dropped / plain, 1)


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize("dropout", [0.1, 0.5])
def test_dropout_drops_a_share_of_the_weights_and_scales_the_others(dropout):
    """Others in each sequence, head and call; the same again after the same seed."""
    torch.manual_seed(0)
    factors = factors_of_dropout((2, 64, 3), 40, dropout)
    is_dropped = factors == 0
    visible = torch.ones(64, 64).tril().triu(-39).bool()
    assert torch.allclose(factors[visible & ~is_dropped], torch.tensor(1 / (1 - dropout)))
    drawn = is_dropped[..., visible].double()  # (B, H, weights)
    # At most four standard deviations of a share
    n = visible.sum()
    spread = (dropout * (1 - dropout) / n) ** 0.5
    assert ((drawn.mean(-1) - dropout).abs() < 4 * spread).all()
    others = factors_of_dropout((2, 64, 3), 40, dropout) == 0
    all_drawn = torch.cat([drawn.flatten(0, 1), others[..., visible].double().flatten(0, 1)])
    correlation = torch.corrcoef(all_drawn) - torch.eye(len(all_drawn))
    assert correlation.abs().max() < 4.5 / n**0.5
    torch.manual_seed(0)
    assert factors.equal(factors_of_dropout((2, 64, 3), 40, dropout))


def assert_dropout_as_written_out(D, dtype, tolerance):
    """Output and gradients, with the factors that the same seed draws."""
    B, T, H, window = 2, 65, 3, 40
    torch.manual_seed(1)
    factors = factors_of_dropout((B, T, H), window, 0.3)

    def attend_with_dropout(q, k, v, window, starts):
        torch.manual_seed(1)
        return causal_attention(q, k, v, visibility(q, window), 0.3)

    qkv = random_qkv(B, T, H, D).to(dtype)
    assert_as_written_out(qkv, window, None, tolerance, attend_with_dropout, factors)


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize("dtype, tolerance", PRECISIONS)
def test_dropout_and_its_gradients_equal_the_formula(dtype, tolerance):
    assert_dropout_as_written_out(16, dtype, tolerance)


@needs_compiler
def test_dropout_is_the_same_backward_under_torch_compile():
    """The output is linear in v, if the factors are the same: so its product with any upstream
    gradient is that of v with its own."""
    attend = torch.compile(causal_attention)
    q, k, v = random_qkv(2, 30, 2, 8).unbind(2)
    v.requires_grad_()
    upstream = torch.randn_like(v)
    y = attend(q, k, v, visibility(q, 30), 0.5)
    y.backward(upstream)
    assert torch.allclose((upstream * y).sum(), (v.grad * v).sum(), rtol=1e-4)


def test_a_gpu_gets_heads_in_steps_of_eight(monkeypatch):
    """With fake tensors: which function is called, not what it computes."""
    widths = []

    def sdpa(q, *_, scale):
        widths.append(q.size(3))
        return torch.empty(q.shape)  # on a CPU, as PyTorch may be built without CUDA

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", sdpa)
    with FakeTensorMode():
        for width in (4, 16, 20):
            q = torch.empty(2, 40, 3, width, device="cuda")
            assert causal_attention(q, q, q, None).shape == q.shape
    assert widths == [8, 16, 24]
