"""nanostories/kernels/attention.py against attention written out in float64: the C++ kernel, and
what PyTorch computes instead."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import flex_attention as flex

from nanostories.kernels import attention
from nanostories.kernels.attention import (
    causal_attention,
    first_keys,
    implementation,
    sdp_attention,
    story_starts,
)

needs_kernels = pytest.mark.skipif(
    not attention.kernels(4), reason="no C++ compiler that builds it"
)

# B, T, H, window
SHAPES = [
    (1, 1, 1, 1),
    (2, 37, 3, 100),
    (1, 64, 2, 64),
    (2, 65, 2, 17),
    (1, 130, 1, 64),
    (3, 50, 2, 1),
]


def written_out(q, k, v, first_key=None):
    """Softmax over the visible keys, in float64. (B, T, H, D)"""
    q, k, v = (x.double().transpose(1, 2) for x in (q, k, v))
    key = torch.arange(q.size(2), device=q.device)
    first_key = torch.zeros_like(key[:1]) if first_key is None else first_key
    hidden = (key > key[:, None]) | (
        key < first_key[..., None].expand(*first_key.shape[:-1], len(key), 1)
    )
    hidden = hidden if hidden.dim() == 2 else hidden[:, None]
    return ((q @ k.mT).masked_fill(hidden, -torch.inf).softmax(-1) @ v).transpose(1, 2)


def random_starts(B, T, length):
    """Story starts, for stories of about `length` tokens, other ones in every row."""
    tokens = (torch.rand(B, T, generator=torch.Generator().manual_seed(1)) < 1 / length).long()
    return story_starts(tokens, end_of_text=1)


def random_qkv(B, T, H, D):
    """With logits around 1: the rounding of larger ones comes close to any fixed tolerance."""
    return torch.randn(B, T, 3, H, D) * torch.tensor([D**-0.25, D**-0.25, 1.0])[:, None, None]


def kernel_attention(q, k, v, first_key=None):
    return torch.ops.nanostories.attention(q, k, v, first_key)[0]


def traced_flex_attention(q, k, v, first_key):
    """As torch.compile traces it for a GPU, mask and gradient included, but run by PyTorch's own
    operators."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flex, "_validate_device", lambda *_: None)  # it refuses gradients on a CPU
        return torch.compile(attention.flex_attention, backend="aot_eager", fullgraph=True)(
            q, k, v, first_key
        )


def assert_as_written_out(attend, qkv, first_key, tolerance):
    """Output and gradients. qkv: (B, T, 3, H, D)"""
    upstream = torch.randn_like(qkv[:, :, 0])
    exact, qkv = qkv.double().requires_grad_(), qkv.requires_grad_()
    reference = written_out(*exact.unbind(2), first_key)
    reference.backward(upstream.double())
    y = attend(*qkv.unbind(2), first_key)
    y.backward(upstream)
    assert y.dtype == qkv.dtype
    assert (y - reference).norm() < tolerance * reference.norm()
    # With one visible key the weights are 1 whatever q and k are: their gradient is nothing but
    # rounding.
    assert (qkv.grad - exact.grad).norm() < tolerance * exact.grad.norm()


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)])
@pytest.mark.parametrize("D", [1, 16, 80, 128])
@pytest.mark.parametrize(
    "attend", [pytest.param(kernel_attention, marks=needs_kernels), sdp_attention]
)
def test_output_and_gradients_equal_the_formula(attend, D, dtype, tolerance):
    torch.manual_seed(0)
    for B, T, H, window in SHAPES:
        for length in (None, 1, 3, 20):
            first_key = first_keys(T, window, "cpu", length and random_starts(B, T, length))
            assert_as_written_out(attend, random_qkv(B, T, H, D).to(dtype), first_key, tolerance)


def test_flex_attention_equals_the_formula(B=2, T=90, H=2, D=4, window=17, length=30):
    torch.manual_seed(0)
    first_key = first_keys(T, window, "cpu", length and random_starts(B, T, length))
    assert_as_written_out(traced_flex_attention, torch.randn(B, T, 3, H, D), first_key, 1e-5)


def test_first_keys_of_windows_and_stories_against_a_loop():
    tokens = torch.tensor(
        [[0, 5, 6, 0, 7, 8, 0, 0], [5, 6, 7, 8, 5, 6, 7, 0], [0, 5, 5, 5, 5, 5, 5, 5]]
    )
    starts = story_starts(tokens, end_of_text=0)
    assert starts.tolist() == [[0, 0, 0, 3, 3, 3, 6, 7], [0, 0, 0, 0, 0, 0, 0, 7], [0] * 8]
    for window in (1, 3, 7):
        expected = [
            [max(start, t - window + 1) for t, start in enumerate(row)] for row in starts.tolist()
        ]
        assert first_keys(8, window, "cpu", starts).tolist() == expected
        assert first_keys(8, window, "cpu").tolist() == expected[2] and starts.dtype == torch.int32
    assert first_keys(8, 8, "cpu") is None and first_keys(8, 8, "cpu", starts) is starts


@needs_kernels
@pytest.mark.parametrize("layout", ["scaled q", "heads last", "D not contiguous"])
def test_any_strides_reach_the_kernel(layout):
    """GPT-2 scales q, which then lies elsewhere than k and v; the gradient comes in any layout,
    too."""
    torch.manual_seed(0)
    q, k, v = (x.requires_grad_() for x in torch.randn(2, 30, 3, 2, 8).unbind(2))
    if layout == "scaled q":
        q = q * 0.35
    elif layout == "heads last":
        k = k.transpose(1, 2).contiguous().transpose(1, 2)
    else:
        v = v.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0)
    upstream, first_key = torch.randn(2, 2, 8, 30).permute(0, 3, 1, 2), first_keys(30, 7, "cpu")
    y, expected = causal_attention(q, k, v, first_key), written_out(q, k, v, first_key).float()
    assert "nanostories_attention" in y.grad_fn.name()
    torch.testing.assert_close(y, expected, atol=1e-5, rtol=1e-4)
    for ours, reference in zip(
        *(torch.autograd.grad(z, (q, k, v), upstream) for z in (y, expected))
    ):
        torch.testing.assert_close(ours, reference, atol=1e-5, rtol=1e-4)


@needs_kernels
def test_large_logits_do_not_overflow():
    """GPT-Neo does not scale its logits: a trained head can reach hundreds."""
    torch.manual_seed(0)
    q, k, v = 20 * torch.randn(3, 1, 60, 2, 16)
    torch.testing.assert_close(
        kernel_attention(q, k, v).double(), written_out(q, k, v), atol=1e-4, rtol=1e-4
    )


@needs_kernels
def test_the_operators_keep_pytorchs_rules():
    """Schema, fake tensors (shapes under torch.compile) and autograd registration, by PyTorch's own
    checker."""
    qkv = torch.randn(2, 20, 3, 2, 8, requires_grad=True)
    for first_key in (None, first_keys(20, 7, "cpu"), random_starts(2, 20, 5)):
        torch.library.opcheck(attention.attention, (*qkv.unbind(2), first_key))


def test_dropout_drops_attention_weights_and_keeps_their_mean():
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 30, 2, 8)
    first_key = first_keys(30, 5, "cpu")
    dropped = torch.stack([causal_attention(q, k, v, first_key, dropout=0.5) for _ in range(1000)])
    plain = written_out(q, k, v, first_key)
    assert (dropped[0] - plain).norm() > 0.1 * plain.norm() > (dropped.mean(0) - plain).norm()


@pytest.mark.parametrize(
    "capability, dropout, compiled, window, expected",
    [
        ((8, 0), 0.0, True, 7, "flex_attention"),
        ((9, 0), 0.0, True, 40, "sdp_attention"),  # no window: no mask
        ((8, 0), 0.0, False, 7, "sdp_attention"),
        ((7, 5), 0.0, True, 7, "sdp_attention"),  # before Ampere
        ((8, 0), 0.1, True, 7, "sdp_attention"),
    ],
)
def test_what_a_gpu_runs(monkeypatch, capability, dropout, compiled, window, expected):
    """With fake tensors: which function is called, not what it computes."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: compiled)
    ran = []
    for name in ("flex_attention", "sdp_attention"):
        monkeypatch.setattr(attention, name, lambda q, *_, name=name: ran.append(name) or q)
    with FakeTensorMode():
        q = torch.empty(2, 40, 3, 4, device="cuda", dtype=torch.bfloat16)
        causal_attention(q, q, q, first_keys(40, window, q.device), dropout)
    assert ran == [expected]


@needs_kernels
def test_what_a_cpu_runs():
    assert (
        implementation("cpu", torch.float32, 64, 0.0)
        == implementation("cpu", torch.bfloat16, 64, 0.0)
        == "C++"
    )
    for dtype, width, dropout in (
        (torch.float16, 64, 0.0),
        (torch.float32, 512, 0.0),
        (torch.float32, 64, 0.1),
    ):
        assert implementation("cpu", dtype, width, dropout) == "scaled_dot_product_attention"
