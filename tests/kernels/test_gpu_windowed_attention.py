"""Attention with a window as a GPU computes it, against the formula in float64: all but FlashAttention itself."""

import pytest
import torch
from test_attention import random_stories, relative_error, written_out

from kernels import gpu_windowed_attention as windowed_attention
from kernels.gpu_windowed_attention import banded_attention, flash_attention, padded


def exact(qkv: torch.Tensor, window: int, upstream: torch.Tensor, starts=None) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and gradient, in float64."""
    qkv = qkv.detach().double().requires_grad_()
    y = written_out(*qkv.unbind(2), window, starts)
    return y, torch.autograd.grad(y, qkv, upstream.double())[0]


def flash_on_a_cpu(q, k, v, starts_q, starts_k, max_q, max_k, *, scale, window_size):
    """What PyTorch documents of varlen_attn: packed sequences; a query sees `left` keys before its own."""
    assert q.size(2) % 8 == 0 and q.dtype == torch.bfloat16 and starts_q.dtype == torch.int32 and window_size[1] == 0
    assert scale == 1 and max_q == max_k >= starts_q.diff().max() and torch.equal(starts_q, starts_k)
    assert starts_q[0] == 0 and starts_q.diff().min() >= 0 and starts_q[-1] == len(q) == len(k)
    window = window_size[0] + 1 if window_size[0] >= 0 else max_k  # -1: all
    sequences = [x.tensor_split(starts_q[1:-1].long()) for x in (q, k, v)]
    return torch.cat([written_out(*(x[None] for x in qkv), window)[0] for qkv in zip(*sequences)]).to(q)


@pytest.mark.parametrize("D", [4, 6, 16])
@pytest.mark.parametrize(
    "B, T, H, window", [(2, 512, 2, 256), (3, 37, 2, 8), (1, 40, 1, 39), (2, 20, 3, 1), (2, 20, 2, 256)]
)
@pytest.mark.parametrize("flash", [False, True])
@pytest.mark.parametrize("length", [None, 3, 20])
def test_output_and_gradients_are_those_of_the_formula(monkeypatch, B, T, H, D, window, flash, length):
    monkeypatch.setattr(windowed_attention, "flash_takes_a_window", lambda: flash)
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", flash_on_a_cpu)
    torch.manual_seed(0)
    qkv = torch.randn(B, T, 3, H, D).to(torch.bfloat16 if flash else torch.float32).requires_grad_()
    upstream = torch.randn(B, T, H, D).to(qkv.dtype)
    stories = random_stories(B, T, length) if length else None
    y = windowed_attention.windowed_attention(*qkv.unbind(2), window, stories=stories)
    reference, gradient = exact(qkv, window, upstream, stories.starts if length else None)
    y.backward(upstream)
    tolerance = 2e-2 if flash else 3e-6
    assert relative_error(y, reference) < tolerance
    assert (qkv.grad - gradient).norm() < tolerance * gradient.norm()


@pytest.mark.parametrize("dtype, widths", [(torch.bfloat16, [8, 8, 8, 16]), (torch.float32, [4, 4, 8, 12])])
def test_heads_are_padded_to_16_bytes(dtype, widths):
    for width, wide in zip((3, 4, 8, 12), widths):
        x = torch.randn(2, 5, 3, width).to(dtype)
        (y,) = padded(x)
        assert y.size(3) == wide and y[..., :width].equal(x) and not y[..., width:].any()


@pytest.mark.parametrize("window", [8, 256])
def test_the_fused_kernels_get_padded_heads_with_and_without_a_window(monkeypatch, window):
    widths, real = [], windowed_attention.attend
    monkeypatch.setattr(windowed_attention, "flash_takes_a_window", lambda: False)
    monkeypatch.setattr(
        windowed_attention, "attend", lambda q, *args, **masking: widths.append(q.size(3)) or real(q, *args, **masking)
    )
    q, k, v = torch.randn(3, 1, 40, 2, 4).bfloat16()
    assert windowed_attention.windowed_attention(q, k, v, window).shape == q.shape
    assert set(widths) == {8}


def test_no_mask_is_as_large_as_the_text():
    sizes = []
    real = torch.ones

    def ones(*shape, **settings):
        sizes.append(shape)
        return real(*shape, **settings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "ones", ones)
        banded_attention(*torch.randn(3, 1, 64, 2, 8), window=8)
    assert sizes == [(8, 16)]


def test_dropout_never_takes_flash_attention_which_has_none(monkeypatch):
    monkeypatch.setattr(windowed_attention, "flash_takes_a_window", lambda: True)
    monkeypatch.setattr(windowed_attention, "flash_attention", lambda *args: 1 / 0)
    q, k, v = torch.randn(3, 1, 40, 2, 8).bfloat16()
    assert windowed_attention.windowed_attention(q, k, v, 8, dropout=0.5).shape == q.shape


def test_pytorchs_own_varlen_attn_takes_what_it_is_given():
    """On the meta device: arguments and shapes, forward and backward, of the operator that runs on a GPU."""
    qkv = torch.zeros(2, 32, 3, 4, 8, dtype=torch.bfloat16, device="meta", requires_grad=True)
    y = flash_attention(*qkv.unbind(2), window=8)
    within = flash_attention(*qkv.unbind(2), 32, torch.zeros(20, dtype=torch.int32, device="meta"))
    assert y.shape == within.shape == (2, 32, 4, 8)
    (y + within).sum().backward()
    assert qkv.grad.shape == qkv.shape
    compiled = torch.compile(flash_attention, fullgraph=True, backend="eager")  # an import inside breaks no graph
    assert compiled(*qkv.unbind(2), window=8).shape == y.shape
