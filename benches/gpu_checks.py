"""
Is the GPU path right? What a GPU computes, against the CPU in float32 and against formulas in float64.

tests/test_gpu.py runs the same checks one by one; `python bench.py gpu` runs them first.
"""

import tempfile
import types
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

import train
from benches.gpu_setup import Error, Setup
from corpus.preparation import prepare_builtin
from generation.generation_loop import beam_search, generate
from kernels.attention import causal_attention
from kernels.cross_entropy import head_loss
from kernels.packed_stories import max_stories_per_window, packed_stories
from model import GPTNeo, GPTNeoConfig
from training.config import TrainConfig
from training.data_order import Batches, Corpus
from training.device_and_dtype import prepare_gpu
from training.distributed import SINGLE_PROCESS
from training.run_directory import read_log
from training.state import TrainingState
from variants.within_story import WithinStory


def checks(setup: Setup) -> Iterator[tuple[str, Callable[[], Error]]]:
    for name, check in every_check(setup):
        yield name, partial(as_in_training, setup, check)


def as_in_training(setup: Setup, check: Callable[[], Error]) -> Error:
    """With PyTorch set up as for training, but without TF32, to compare float32 with float32."""
    precision = torch.get_float32_matmul_precision()
    prepare_gpu(setup.device)
    torch.set_float32_matmul_precision("highest")
    try:
        return check()
    finally:
        torch.set_float32_matmul_precision(precision)


def every_check(setup: Setup) -> Iterator[tuple[str, Callable[[], Error]]]:
    for size, shape in setup.shapes().items():
        yield f"gradients and loss of {size}", partial(gradients, setup, shape, compiled=False)
        if size in ("1m", "8m"):  # heads of 4, and of 16
            yield f"gradients and loss of {size}, compiled", partial(gradients, setup, shape, compiled=True)
            within = partial(gradients, setup, shape, compiled=True, within_story=True)
            yield f"gradients and loss of {size} within stories, compiled", within
    for width in (4, 8, 16, 64):
        for T in (320, 512):  # 320: cuDNN's backward pass with a mask gives NaN there (pytorch issue 196678)
            yield f"local layer, heads of {width}, {T} tokens", partial(local_layer, setup, width, T, setup.dtype)
    yield "local layer, float32", partial(local_layer, setup, 4, 512, torch.float32)
    for width in (4, 16):
        for T in (256, 320, 512):  # 256: as a global layer, whose window is the whole text
            within = partial(local_layer, setup, width, T, setup.dtype, story_length=60)
            yield f"layer within stories, heads of {width}, {T} tokens", within
    yield "layer within stories, float32", partial(local_layer, setup, 4, 320, torch.float32, story_length=60)
    yield "loss in chunks", partial(loss_in_chunks, setup, compiled=False)
    yield "loss in chunks, compiled", partial(loss_in_chunks, setup, compiled=True)
    yield "memory of the compiled loss, as a share of all logits", partial(loss_memory, setup)
    yield "greedy texts that differ from the CPU's", partial(texts, setup, greedy)
    yield "beam-search texts that differ from the CPU's", partial(texts, setup, beams)
    yield "share of sampled texts that depend on their batch", partial(company, setup)
    yield "a step that never waits for the device", partial(no_synchronisation, setup, within_story=False)
    yield "a step within stories that never waits for the device", partial(no_synchronisation, setup, within_story=True)
    yield "a resumed run", partial(resume, setup, setup.device, 2e-3)
    yield "a run resumed on the CPU", partial(resume, setup, torch.device("cpu"), 0.05)
    yield "DistributedDataParallel of one process", partial(data_parallel, setup)


def relative(x: torch.Tensor, reference: torch.Tensor) -> float:
    x, reference = x.detach().double().cpu(), reference.detach().double().cpu()
    return ((x - reference).norm() / reference.norm()).item()


def gradient_of(model: GPTNeo) -> torch.Tensor:
    return torch.cat([parameter.grad.flatten().float().cpu() for parameter in model.parameters()])


def gradients(setup: Setup, shape: GPTNeoConfig, compiled: bool, within_story: bool = False) -> Error:
    """The larger of the errors of loss and gradient, of 2 sequences, under autocast, against float32 on the CPU."""
    model, tokens = setup.model(shape), setup.tokens(shape, 2)
    read = model
    if within_story:
        tokens[:, 5::70] = 0
        read = WithinStory(model, 0, max_stories_per_window(tokens.flatten().numpy(), shape.block_size, 0))
    _, reference = read(tokens[:, :-1], tokens[:, 1:])
    reference.backward()
    expected = gradient_of(model)
    model.zero_grad()
    read, tokens = read.to(setup.device), tokens.to(setup.device)
    with setup.autocast():
        _, loss = (setup.compiled(read) if compiled else read)(tokens[:, :-1], tokens[:, 1:])
    loss.backward()
    return Error(max(relative(loss, reference), relative(gradient_of(model), expected)), 0.03)


def local_layer(setup: Setup, width: int, T: int, dtype: torch.dtype, story_length: int = 0) -> Error:
    """Output and gradient of attention with a window of 256, against the formula in float64.
    story_length: mean length of stories that are masked from each other, in tokens; 0: no stories."""
    B, H, window = (1, 2, 24) if setup.dry_run else (4, 16, 256)
    if setup.dry_run:
        T, story_length = T // 8, story_length // 8
    generator = torch.Generator().manual_seed(0)
    qkv = torch.randn(B, T, 3, H, width, generator=generator).to(setup.device, dtype).requires_grad_()
    upstream = torch.randn(B, T, H, width, generator=generator).to(setup.device, dtype)
    exact = qkv.detach().double().requires_grad_()
    q, k, v = (x.transpose(1, 2) for x in exact.unbind(2))
    i, j = torch.arange(T, device=setup.device)[:, None], torch.arange(T, device=setup.device)[None]
    hidden, stories = (j > i) | (j <= i - window), None
    if story_length:
        begins = (torch.rand(B, T, generator=generator) < 1 / story_length).long().to(setup.device)
        stories = packed_stories(begins, end_of_text=1, max_stories=T)
        hidden = hidden | (j < stories.starts[:, None, :, None])
    weights = (q @ k.mT).masked_fill(hidden, -torch.inf).softmax(-1)
    reference = (weights @ v).transpose(1, 2)
    reference.backward(upstream.double())
    y = causal_attention(*qkv.unbind(2), window, stories=stories)
    y.backward(upstream)
    return Error(max(relative(y, reference), relative(qkv.grad, exact.grad)), 1e-4 if dtype == torch.float32 else 0.02)


def loss_in_chunks(setup: Setup, compiled: bool) -> Error:
    """The head's loss and its gradients, against cross-entropy of all logits in float64."""
    x, weight, targets = loss_inputs(setup, 20_000)
    targets[::5] = -100
    with setup.autocast():
        loss = (setup.compiled(head_loss) if compiled else head_loss)(x, weight, targets)
    ours = loss, *torch.autograd.grad(loss, (x, weight))
    x, weight = (y.detach().double().requires_grad_() for y in (x, weight))
    loss = F.cross_entropy(x @ weight.T, targets)
    theirs = loss, *torch.autograd.grad(loss, (x, weight))
    return Error(max(relative(a, b) for a, b in zip(ours, theirs)), 0.02)


def loss_inputs(setup: Setup, n: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x (N, C), weight (V, C), targets (N,)"""
    N, C, V = (50, 16, 300) if setup.dry_run else (n, 256, 10_000)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N, C, generator=generator).to(setup.device).requires_grad_()
    weight = (0.1 * torch.randn(V, C, generator=generator)).to(setup.device).requires_grad_()
    return x, weight, torch.randint(V, (N,), generator=generator).to(setup.device)


def loss_memory(setup: Setup) -> Error:
    """Peak memory that the compiled loss and its gradients add, for 80 x 512 tokens: below what all logits take."""
    x, weight, targets = loss_inputs(setup, 80 * 512)
    loss_of = setup.compiled(head_loss)

    def run():
        with setup.autocast():
            loss = loss_of(x, weight, targets)
        torch.autograd.grad(loss, (x, weight))

    run()  # compiles
    if setup.device.type == "cpu":
        return Error(0.0, 0.9)
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    run()
    all_logits = len(x) * len(weight) * setup.dtype.itemsize  # bytes
    return Error((torch.cuda.max_memory_allocated() - held) / all_logits, 0.9)


def story_model(setup: Setup) -> GPTNeo:
    """Weights that make some continuations much likelier than others, as training does."""
    return setup.model(GPTNeoConfig(vocab_size=300, block_size=96, n_layer=4, n_head=4, n_embd=64, window_size=32), 0.1)


def greedy(model: GPTNeo, prompts: list[list[int]]) -> list[list[int]]:
    completions = generate(model, prompts, temperature=0, stop=0, batch_size=5)
    return [completion.tokens for completion in sorted(completions, key=lambda completion: completion.index)]


def beams(model: GPTNeo, prompts: list[list[int]]) -> list[list[int]]:
    return [completion.tokens for completion in beam_search(model, prompts[:4], beams=4, max_new_tokens=40, stop=0)]


def texts(setup: Setup, write: Callable) -> Error:
    model = story_model(setup).eval()
    prompts = [
        row[: 3 + 5 * i].tolist() for i, row in enumerate(setup.tokens(model.config, 4 if setup.dry_run else 12))
    ]
    expected = write(model, prompts)
    return Error(sum(a != b for a, b in zip(write(model.to(setup.device), prompts), expected)), 0)


def company(setup: Setup) -> Error:
    """In bfloat16, another batch size may round a close draw differently; most texts should be the same."""
    model = story_model(setup).eval().to(setup.device)
    prompts = setup.tokens(model.config, 6 if setup.dry_run else 64, 10).tolist()
    written = []
    for batch_size in (1, len(prompts)):
        completions = generate(model, prompts, max_new_tokens=40, top_k=50, batch_size=batch_size)
        written.append({completion.index: completion.tokens for completion in completions})
    return Error(sum(written[0][i] != written[1][i] for i in written[0]) / len(prompts), 0.5)


def no_synchronisation(setup: Setup, within_story: bool) -> Error:
    """Two steps of train.py with two micro-batches; CUDA raises an error if one would wait."""
    shape = setup.shapes()["1m"]
    tokenizer = types.SimpleNamespace(gpt2_ids=[], end_of_text=0)
    corpus = Corpus(tokenizer, False, "", np.arange(8 * shape.block_size, dtype=np.uint16) % 300, None)
    fields = {name: getattr(shape, name) for name in ("block_size", "n_layer", "n_head", "n_embd", "window_size")}
    config = TrainConfig(**fields, optimizer="muon", batch_size=2, grad_accum_steps=2)
    batches = Batches(corpus, config, SINGLE_PROCESS, setup.device)
    on_gpu = setup.device.type == "cuda"
    state = TrainingState(config, shape, corpus, setup.device, torch.bfloat16, torch.bfloat16, compile_muon=on_gpu)
    model = state.model
    if within_story:
        model = WithinStory(model, 0, max_stories_per_window(corpus.train, shape.block_size, 0))
    step = partial(train.train_step, state, model, setup.autocast, batches)
    step()  # the first two are a warm-up
    step()
    if not on_gpu:
        return Error(0.0, 0.0)
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return Error(0.0, 0.0)


def resume(setup: Setup, device: torch.device, limit: float) -> Error:
    """The last logged loss of a run that was stopped and resumed on `device`, against an uninterrupted run. On a GPU,
    sums are taken in another order each time, so unlike on a CPU the two are not bit-identical."""
    with tempfile.TemporaryDirectory() as directory:
        prepare_builtin(Path(directory, "builtin"), n_stories=300, vocab_size=400)
        settings = dict(data="builtin", data_dir=directory, out_dir=str(Path(directory, "out")), compile=False)
        settings |= dict(n_layer=2, n_head=4, n_embd=32, block_size=64, window_size=16)
        settings |= dict(batch_size=4, grad_accum_steps=1, log_interval=10, eval_interval=10, eval_tokens=2000)
        # Dropout draws differently on another device, so the two runs could not be compared.
        settings |= dict(optimizer="muon", dropout=0.1 if device == setup.device else 0.0, learning_rate=1e-3)
        for name, resumed, n_steps in (("piece", False, 20), ("parts", False, 10), ("parts", True, 20)):
            place = str(device if resumed else setup.device)
            train.train(TrainConfig(**settings, name=name, max_steps=n_steps, device=place), resumed)
        rows = [read_log(Path(directory, "out", name, "log.csv"))[-1] for name in ("piece", "parts")]
    return Error(max(abs(float(rows[0][key]) - float(rows[1][key])) for key in ("train_loss", "val_loss")), limit)


def data_parallel(setup: Setup) -> Error:
    """Gradients through DistributedDataParallel (nccl on a GPU) of one process, against those without it."""
    shape = setup.shapes()["1m"]
    model, tokens = setup.model(shape).to(setup.device), setup.tokens(shape, 2).to(setup.device)
    model(tokens[:, :-1], tokens[:, 1:])[1].backward()
    expected = gradient_of(model)
    model.zero_grad()
    with tempfile.TemporaryDirectory() as directory:
        backend = "gloo" if setup.device.type == "cpu" else "cpu:gloo,cuda:nccl"
        dist.init_process_group(backend, init_method=f"file://{directory}/meeting", rank=0, world_size=1)
        parallel = DistributedDataParallel(model)
        parallel(tokens[:, :-1], tokens[:, 1:])[1].backward()
        error = Error(relative(gradient_of(model), expected), 1e-4)
        del parallel
        dist.destroy_process_group()
    return error
