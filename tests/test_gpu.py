"""On a GPU: kernels and the model against the CPU in float32, or formulas in float64. None of it runs without one."""

import pytest
import torch
import torch.nn.functional as F

from kernels.attention import causal_attention, first_keys, story_starts
from kernels.cross_entropy import head_loss
from model import GPTNeo, GPTNeoConfig

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU that PyTorch can use"),
]
HALF = torch.bfloat16 if torch.cuda.is_available() and torch.cuda.is_bf16_supported(False) else torch.float16


@pytest.fixture(autouse=True)
def no_tf32():
    """So that float32 is compared with float32."""
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(precision)
    torch._dynamo.reset()


def relative(x: torch.Tensor, reference: torch.Tensor) -> float:
    x, reference = x.detach().double().cpu(), reference.detach().double().cpu()
    return ((x - reference).norm() / reference.norm()).item()


def compiled_if(compiled: bool, function):
    return torch.compile(function, dynamic=False, fullgraph=True) if compiled else function


@pytest.mark.parametrize("dtype, limit", [(HALF, 0.02), (torch.float32, 1e-4)])
@pytest.mark.parametrize("width", [4, 16, 24, 64])
@pytest.mark.parametrize("T", [256, 320, 512])  # 320: there cuDNN's backward pass with a mask gives NaN
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
def test_attention_equals_the_formula(compiled, packed, T, width, dtype, limit):
    torch.manual_seed(0)
    qkv = torch.randn(4, T, 3, 16, width).to("cuda", dtype).requires_grad_()
    upstream = torch.randn(4, T, 16, width).to("cuda", dtype)
    starts = story_starts((torch.rand(4, T, device="cuda") < 1 / 60).long(), end_of_text=1) if packed else None

    exact = qkv.detach().double().requires_grad_()
    q, k, v = (x.transpose(1, 2) for x in exact.unbind(2))
    key = torch.arange(T, device="cuda")
    hidden = (key > key[:, None]) | (key <= key[:, None] - 256)
    if packed:
        hidden = hidden | (key < starts[:, None, :, None])
    reference = ((q @ k.mT).masked_fill(hidden, -torch.inf).softmax(-1) @ v).transpose(1, 2)
    reference.backward(upstream.double())

    def attend(qkv, starts):
        return causal_attention(*qkv.unbind(2), first_keys(T, 256, qkv.device, starts))

    y = compiled_if(compiled, attend)(qkv, starts)
    y.backward(upstream)
    assert relative(y, reference) < limit and relative(qkv.grad, exact.grad) < limit


@pytest.mark.parametrize("width", [4, 16])  # of the heads: the published 1M and 8M
@pytest.mark.parametrize("compiled, packed", [(False, False), (True, False), (True, True)])
def test_loss_and_gradients_of_the_model_are_those_of_a_cpu(width, compiled, packed):
    torch.manual_seed(0)
    model = GPTNeo(GPTNeoConfig(vocab_size=2000, n_layer=4, n_head=16, n_embd=16 * width))
    tokens = torch.randint(1, 2000, (2, 513))
    tokens[:, 5::70] = 0
    results = []
    for device in ("cpu", "cuda"):
        model, tokens = model.to(device), tokens.to(device)
        starts = story_starts(tokens[:, :-1], end_of_text=0) if packed else None
        forward = compiled_if(compiled and device == "cuda", model)
        model.zero_grad()
        with torch.autocast(device, HALF, enabled=device == "cuda"):
            _, loss = forward(tokens[:, :-1], tokens[:, 1:], starts)
        loss.backward()
        results.append((loss, torch.cat([p.grad.flatten().float().cpu() for p in model.parameters()])))
    assert all(relative(ours, reference) < 0.03 for reference, ours in zip(*results))


@pytest.mark.parametrize("compiled", [False, True])
def test_the_loss_equals_plain_cross_entropy_and_never_holds_all_logits(compiled):
    torch.manual_seed(0)
    x = torch.randn(20_480, 256, device="cuda").requires_grad_()
    weight = (0.1 * torch.randn(10_000, 256, device="cuda")).requires_grad_()
    targets = torch.randint(10_000, (len(x),), device="cuda")
    targets[::5] = -100
    loss_of = compiled_if(compiled, head_loss)

    def run():
        with torch.autocast("cuda", HALF):
            loss = loss_of(x, weight, targets)
        return loss, *torch.autograd.grad(loss, (x, weight))

    run()  # compiles
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    ours = run()
    assert torch.cuda.max_memory_allocated() - held < 0.9 * len(x) * len(weight) * HALF.itemsize
    x, weight = (y.detach().double().requires_grad_() for y in (x, weight))
    loss = F.cross_entropy(x @ weight.T, targets)
    theirs = loss, *torch.autograd.grad(loss, (x, weight))
    assert all(relative(a, b) < 0.02 for a, b in zip(ours, theirs))


@pytest.mark.parametrize("packed", [False, True])
def test_forward_and_backward_never_wait_for_the_device(packed):
    model = GPTNeo(GPTNeoConfig(vocab_size=2000, n_layer=2)).cuda()
    forward, tokens = compiled_if(True, model), torch.randint(2000, (2, 513)).cuda()

    def step():
        starts = story_starts(tokens[:, :-1], end_of_text=0) if packed else None
        with torch.autocast("cuda", HALF):
            forward(tokens[:, :-1], tokens[:, 1:], starts)[1].backward()

    step()  # compiles
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
