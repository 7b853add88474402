"""kernels/cpu_attention.cpp against attention written out in float64, and against PyTorch's own."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernels import attention
from kernels.attention import causal_attention, pytorch_attention
from kernels.packed_stories import packed_stories

needs_kernels = pytest.mark.skipif(not attention.kernels(4), reason="no C++ compiler that builds it")

SHAPES = [  # B, T, H, window
    (1, 1, 1, 1),
    (2, 37, 3, 100),
    (1, 64, 2, 64),
    (2, 65, 2, 17),
    (1, 130, 1, 64),
    (3, 50, 2, 1),
]


def written_out(q, k, v, window, starts=None):
    """Softmax over the visible keys, in float64. (B, T, H, D); starts (B, T): of the stories"""
    T = q.size(1)
    q, k, v = (x.double().transpose(1, 2) for x in (q, k, v))
    i, j = torch.arange(T)[:, None], torch.arange(T)[None]
    hidden = (j > i) | (j <= i - window)
    if starts is not None:
        hidden = hidden | (j < starts[:, None, :, None])
    return ((q @ k.mT).masked_fill(hidden, -torch.inf).softmax(-1) @ v).transpose(1, 2)


def random_stories(B, T, length):
    """PackedStories of about `length` tokens each, other ones in every row."""
    tokens = (torch.rand(B, T, generator=torch.Generator().manual_seed(1)) < 1 / length).long()
    return packed_stories(tokens, end_of_text=1, max_stories=T)


def kernel_attention(q, k, v, window, story_starts=None):
    return torch.ops.nanostories.cpu_attention(q, k, v, min(window, q.size(1)), story_starts)[0]


def relative_error(x, reference):
    return ((x - reference).norm() / reference.norm()).item()


@needs_kernels
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 3e-6), (torch.bfloat16, 1e-2)])
@pytest.mark.parametrize("D", [1, 4, 6, 16, 32, 64, 80])
@pytest.mark.parametrize("B, T, H, window", SHAPES)
def test_output_and_gradients_are_those_of_the_formula(B, T, H, D, window, dtype, tolerance):
    torch.manual_seed(0)
    qkv = torch.randn(B, T, 3, H, D).to(dtype).requires_grad_()
    upstream = torch.randn(B, T, H, D).to(dtype)
    exact = qkv.detach().double().requires_grad_()
    reference = written_out(*exact.unbind(2), window)
    reference.backward(upstream.double())

    y = kernel_attention(*qkv.unbind(2), window)
    y.backward(upstream)
    assert y.dtype == dtype
    assert relative_error(y, reference) < tolerance
    # With one visible key the weights are 1 whatever q and k are: their gradient is nothing but rounding.
    assert (qkv.grad - exact.grad).norm() < tolerance * exact.grad.norm()


@pytest.mark.parametrize("length", [1, 3, 20, 90])
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 3e-6), (torch.bfloat16, 1e-2)])
@pytest.mark.parametrize("D", [4, 6, 16, 64])
@pytest.mark.parametrize("B, T, H, window", SHAPES)
@pytest.mark.parametrize("attend", [pytest.param(kernel_attention, marks=needs_kernels), pytorch_attention])
def test_a_story_sees_itself_alone_as_in_the_formula(attend, B, T, H, D, window, dtype, tolerance, length):
    torch.manual_seed(0)
    starts = random_stories(B, T, length).starts
    qkv = torch.randn(B, T, 3, H, D).to(dtype).requires_grad_()
    upstream = torch.randn(B, T, H, D).to(dtype)
    exact = qkv.detach().double().requires_grad_()
    reference = written_out(*exact.unbind(2), window, starts)
    reference.backward(upstream.double())
    y = attend(*qkv.unbind(2), window, story_starts=starts)
    y.backward(upstream)
    assert relative_error(y, reference) < tolerance
    assert (qkv.grad - exact.grad).norm() < tolerance * exact.grad.norm()


@needs_kernels
def test_one_story_is_computed_as_without_stories():
    """Bit by bit: what is trained within stories tells a story as any other model."""
    torch.manual_seed(0)
    qkv = torch.randn(2, 70, 3, 3, 16)
    one = torch.zeros(2, 70, dtype=torch.int32)
    assert kernel_attention(*qkv.unbind(2), 20, one).equal(kernel_attention(*qkv.unbind(2), 20))


@needs_kernels
def test_large_logits_do_not_overflow():
    """GPT-Neo does not scale its logits: a trained head can reach hundreds."""
    torch.manual_seed(0)
    q, k, v = 20 * torch.randn(3, 1, 60, 2, 16)
    y = kernel_attention(q, k, v, 60)
    assert relative_error(y, written_out(q, k, v, 60)) < 1e-5


@needs_kernels
def test_threads_share_the_work_and_change_nothing(two_threads):
    torch.manual_seed(0)
    results = []
    qkv = torch.randn(3, 70, 3, 5, 16).requires_grad_()
    for n_threads in (2, 1):
        torch.set_num_threads(n_threads)
        y = kernel_attention(*qkv.unbind(2), 20)
        results.append(torch.cat([y.flatten(), *(x.flatten() for x in torch.autograd.grad(y.sin().sum(), qkv))]))
    assert torch.equal(*results)


def test_a_type_that_the_kernel_has_not_takes_pytorchs():
    assert attention.implementation(64, 2, 8, 64, torch.float16) == "pytorch"


@needs_kernels
def test_another_story_does_not_count_however_large_it_is():
    starts = (torch.arange(60) // 25 * 25).int()[None]
    q, k, v = (torch.randn(1, 60, 2, 8).requires_grad_() for _ in range(3))
    alone = [x[:, 25:50].detach().clone() for x in (q, k, v)]
    with torch.no_grad():
        k[:, :25], v[:, :25] = 1e4, 1e4
    y = kernel_attention(q, k, v, 60, starts)[:, 25:50]
    assert relative_error(y, written_out(*alone, 60)) < 1e-5
    assert all(g[:, 25:50].isfinite().all() for g in torch.autograd.grad(y.sum(), (q, k, v)))


@needs_kernels
def test_what_is_out_of_sight_does_not_count():
    q, k, v = torch.randn(3, 1, 40, 2, 8)
    before = kernel_attention(q, k, v, window=10)
    for x in (k, v):
        x[0, 21:], x[0, :11] = torch.randn(19, 2, 8), 1e4
    assert torch.equal(kernel_attention(q, k, v, window=10)[0, 20], before[0, 20])


@needs_kernels
def test_the_operators_keep_pytorchs_rules():
    """Schema, fake tensors (shapes under torch.compile) and autograd registration, by PyTorch's own checker."""
    qkv = torch.randn(2, 20, 3, 2, 8, requires_grad=True)
    torch.library.opcheck(attention.cpu_attention, (*qkv.unbind(2), 7))
    torch.library.opcheck(attention.cpu_attention, (*qkv.unbind(2), 7, random_stories(2, 20, 5).starts))


def test_dropout_takes_pytorchs_kernel():
    q, k, v = torch.randn(3, 2, 30, 2, 8)
    assert relative_error(causal_attention(q, k, v, 5, dropout=0.5), written_out(q, k, v, 5)) > 0.1


def test_keys_in_another_layout_give_the_same():
    """What does not lie as the kernel expects it goes to PyTorch's."""
    q, k, v = torch.randn(3, 2, 30, 2, 8)
    elsewhere = k.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0)
    assert relative_error(causal_attention(q, elsewhere, v, 2**40), written_out(q, k, v, 30)) < 1e-5


@pytest.mark.parametrize("window", [5, 12, 50, 80])
def test_pytorchs_kernel_means_the_same_by_a_window(window):
    q, k, v = torch.randn(3, 1, 50, 2, 16)
    assert relative_error(pytorch_attention(q, k, v, window), written_out(q, k, v, window)) < 1e-5


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("faster", ["kernel", "pytorch"])
def test_the_faster_one_is_taken_as_measured(monkeypatch, faster, packed):
    """Whatever the measurement says is what runs."""
    if attention.kernels(16) is None:
        pytest.skip("no C++ compiler that builds it")
    calls = []
    monkeypatch.setattr(attention.autotune, "fastest", lambda question, contestants: calls.append(question) or faster)
    real, by_pytorch = attention.pytorch_attention, []
    monkeypatch.setattr(attention, "pytorch_attention", lambda *args: by_pytorch.append(args) or real(*args))
    attention.measured_implementation.cache_clear()
    q, k, v = torch.randn(3, 1, 50, 2, 16)
    stories = random_stories(1, 50, 8) if packed else None
    y = causal_attention(q, k, v, 12, stories=stories)
    attention.measured_implementation.cache_clear()
    assert len(calls) == 1 and "64 x 2 x 16, window 12" in calls[0] and ("within stories" in calls[0]) == packed
    assert bool(by_pytorch) == (faster == "pytorch")
    assert relative_error(y, written_out(q, k, v, 12, stories.starts if packed else None)) < 1e-5


def test_measuring_is_not_traced_and_breaks_no_graph():
    attention.measured_implementation.cache_clear()
    q, k, v = torch.randn(1, 70, 3, 2, 16).unbind(2)
    compiled = torch.compile(causal_attention, fullgraph=True, backend="eager")
    assert torch.equal(compiled(q, k, v, 8), causal_attention(q, k, v, 8))


def test_commands_that_compile_nothing_do_not_wait_for_the_compiler():
    imported = "import sys, interpret, probe, report; sys.exit('torch._dynamo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", imported], cwd=Path(attention.__file__).parent.parent).returncode == 0
