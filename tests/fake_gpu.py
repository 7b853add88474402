"""Runs the GPU path on fake CUDA tensors: nothing is computed, but devices, dtypes and waits are a
GPU's. test_fake_gpu.py starts it in a process of its own, as it changes PyTorch.

$ python tests/fake_gpu.py LIBRARY   # fake_gpu.cpp, compiled
"""

import collections
import contextlib
import ctypes
import sys
import traceback
from functools import partial
from pathlib import Path
from types import SimpleNamespace

ctypes.CDLL(sys.argv[1])  # before torch
ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.cuda.amp.common  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves, tree_map_only  # noqa: E402

import train  # noqa: E402
from model import GPTNeoConfig  # noqa: E402
from nanostories.corpus.tokenizer import Tokenizer, gpt2  # noqa: E402
from nanostories.generation.decoders import make_decoder  # noqa: E402
from nanostories.generation.generation_loop import draw  # noqa: E402
from nanostories.generation.prompts import Sampling  # noqa: E402
from nanostories.training.config import TrainConfig  # noqa: E402
from nanostories.training.data_order import Batches, Corpus, TokenStream  # noqa: E402
from nanostories.training.distributed import SINGLE_PROCESS  # noqa: E402
from nanostories.training.state import TrainingState  # noqa: E402
from nanostories.variants import MODELS  # noqa: E402

torch.autograd.set_multithreading_enabled(False)
torch.cuda.amp.common.amp_definitely_not_available = lambda: False
torch.cuda.is_bf16_supported = lambda *_: True
torch.cuda.get_device_capability = lambda *_: (9, 0)
torch.cuda.CUDAGraph = lambda: SimpleNamespace(replay=lambda: None)
torch.cuda.graph = lambda _: contextlib.nullcontext()
FakeTensorMode.avoid_device_init = property(lambda _: True)
CUDA = torch.device("cuda", 0)
PRODUCTS = {"mm", "addmm", "bmm", "baddbmm"}
TOKENIZER = Tokenizer(gpt2().vocabulary["tokens"][:299])  # and the end of text
N_STEPS = 2


# ---- What is watched ----
class Watch(TorchDispatchMode):
    """Counts, by the function of ours that makes them: waits for the GPU, copies from the host to
    it, products in float32, and masks. What the host asks the GPU for is answered with 1."""

    def __init__(self):
        super().__init__()
        self.found = collections.Counter()

    def add(self, what: str) -> None:
        frames = traceback.extract_stack()[:-2]  # without add and __torch_dispatch__
        names = [frame.name for frame in frames if Path(frame.filename).is_relative_to(ROOT)]
        self.found[f"{what} in {names[-1]}"] += 1

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        inputs = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        if name == "_local_scalar_dense":
            if inputs[0].is_cuda:
                self.add("wait")
            return {torch.bool: True, torch.int64: 1}.get(inputs[0].dtype, 1.0)
        out = func(*args, **kwargs)
        outputs = [x for x in tree_leaves(out) if isinstance(x, torch.Tensor)]
        if name in ("_to_copy", "copy_"):
            source = inputs[-1]
            if source.is_cuda and not outputs[0].is_cuda:
                self.add("wait")
            if outputs[0].is_cuda and not source.is_cuda and not kwargs.get("non_blocking"):
                self.add("copy from the host")
        elif name in PRODUCTS and outputs[0].dtype == torch.float32:
            self.add("float32 product")
        elif name == "bitwise_and" and outputs[0].dtype == torch.bool:
            self.add("mask")
        return out


def watched(function) -> dict:
    """{what: times}. A tensor on the wrong device is an error."""
    with FakeTensorMode(allow_non_fake_inputs=True), Watch() as watch:
        function()
    del watch.found["copy from the host in __init__"]  # of the corpus
    return watch.found


# ---- What is run ----
def corpus() -> Corpus:
    tokens = np.random.default_rng(0).integers(0, TOKENIZER.vocab_size, 2000).astype(np.uint16)
    stream = TokenStream(tokens, np.ones(len(tokens), dtype=bool), 64, CUDA)
    return Corpus(TOKENIZER, "", stream, stream)


def new_state(**settings) -> TrainingState:
    small = dict(n_layer=4, n_head=4, n_embd=32, block_size=64, window_size=16)
    config = TrainConfig(**small, **settings, batch_size=4, grad_accum_steps=2, compile=False)
    shape = GPTNeoConfig(TOKENIZER.vocab_size, **config.model_shape())
    with torch.device(CUDA):  # as fake tensors do not move
        model = MODELS[config.architecture](shape)
    return TrainingState(model, config, corpus())


def require_on_gpu(state: TrainingState) -> None:
    tensors = [state.sums, *state.model.parameters()]
    for optimizer in state.optimizers:
        tensors += [x for values in optimizer.state.values() for x in values.values()]
    assert all(x.is_cuda and x.dtype == torch.float32 for x in tensors)


def train_steps(**settings) -> TrainingState:
    state = new_state(**settings)
    loss_of = train.training_loss(state)
    batches = Batches(state.corpus, state.config, SINGLE_PROCESS)
    for step in range(N_STEPS):
        train.train_step(state, loss_of, batches.for_step(step))
    require_on_gpu(state)
    return state


def evaluation() -> None:
    train.evaluate(new_state())


def resume() -> None:
    state = train_steps(optimizer="muon")
    saved = tree_map_only(torch.Tensor, torch.Tensor.cpu, state.for_resuming())
    resumed = new_state(optimizer="muon")
    resumed.restore(saved)
    require_on_gpu(resumed)


def decode() -> None:
    model = new_state().model.eval()
    with torch.no_grad():
        decoder = make_decoder(model, n_slots=3, context=64, exact=False)
        decoder.read(0, [1, 2, 3])
        decoder.copy([0], [1])
        for _ in range(N_STEPS):
            logits = decoder.step([0, 1], [4, 5])
            assert draw(logits, torch.zeros(2), Sampling(top_k=50)).is_cuda


# In four forward passes of two steps; a window's mask is made once in each.
MASKS = {"mask in visibility": 4}
MORE_MASKS = {"mask in visibility": 8}  # of packed stories: without a window, too
# The overflow check waits; the products are those of two steps, 4 shapes, 5 iterations of 3.
IN_FLOAT16 = {"wait in clip_and_update": 2, "float32 product in orthogonalized": 120}
IN_EVALUATION = {
    "copy from the host in evaluate": 9,  # one for each batch
    "mask in visibility": 9,
    "wait in evaluate": 1,
}

CASES = {  # what is run, and all that is found then
    partial(train_steps, optimizer="muon"): MASKS,
    partial(train_steps, optimizer="muon", dtype="float16"): MASKS | IN_FLOAT16,
    partial(train_steps, attend_within_story=True): MORE_MASKS,
    partial(train_steps, architecture="gpt2"): {},
    partial(train_steps, architecture="compressor"): {},
    partial(train_steps, contrast="published"): MORE_MASKS
    | {"copy from the host in training_loss": 1},
    evaluation: IN_EVALUATION,
}

if __name__ == "__main__":
    for function, expected in CASES.items():
        found = watched(function)
        assert found == expected, (function, found)
    for function in (resume, decode):  # which have to wait
        watched(function)
