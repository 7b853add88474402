"""
Decoders run the model one token at a time: they cache the keys and values of many stories and return the logits of the
next token. (generation_loop.py draws the tokens and decides which story continues when.)

NativeDecoder is kernels/decode_step.cpp, for a CPU with a C++ compiler. TorchDecoder is the same in PyTorch, for all
other machines (on a GPU, only for beam search: sampling uses gpu_decoder.py). RereadingDecoder is for models without a
cache.

A decoder has `n_slots` slots, each with room for a text of `context` tokens, and one extra slot, SCRATCH, into which a
prompt is read once and then copied:

>>> decoder = make_decoder(model, n_slots=64, context=512, exact=False)
>>> logits = decoder.read(SCRATCH, prompt)             # a prompt into a slot; logits (vocab_size,) of the next token
>>> decoder.copy(SCRATCH, 3)
>>> logits = decoder.step([3, 5], [token_3, token_5])  # one more token in these slots; logits (2, vocab_size)
"""

import copy
import ctypes
import functools

import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence

from generation.gpu_decoder import captured
from kernels import autotune, compile_cpp
from model import GPTNeo, GPTNeoConfig
from variants.compressor import Compressor

SCRATCH = -1
CHUNK = 64  # tokens of a prompt that NativeDecoder reads at once


def make_decoder(model: GPTNeo, n_slots: int, context: int, exact: bool):
    """The decoder for this model and its device. exact: in float32; otherwise in bfloat16 where that measures faster on
    this machine (docs/sampling.md says how little that changes the distribution)."""
    device = model.wte.weight.device.type
    if isinstance(model, Compressor):
        return RereadingDecoder(model, n_slots)
    if device == "cpu" and compile_cpp.library("decode_step"):
        return NativeDecoder(model, n_slots, context, torch.float32 if exact else faster_dtype(model.config))
    return TorchDecoder(model, n_slots, context, torch.float32)


@functools.cache
def faster_dtype(config: GPTNeoConfig) -> torch.dtype:
    """The faster of float32 and bfloat16 for NativeDecoder: weights and cache are half as large in bfloat16, but not
    every processor can multiply it. Measured with a fixed number of stories, so that `n_slots` never changes a text.
    """
    n_slots, length, decoders = 8, min(64, config.block_size), {}

    def step(dtype: torch.dtype):
        if dtype not in decoders:  # built only now, as autotune may already know the answer
            with torch.random.fork_rng([]):
                decoders[dtype] = NativeDecoder(GPTNeo(config).eval(), n_slots, length, dtype)
        decoders[dtype].lengths = [length - 1] * (n_slots + 1)
        decoders[dtype].step(list(range(n_slots)), [0] * n_slots)

    candidates = dict(float32=lambda: step(torch.float32), bfloat16=lambda: step(torch.bfloat16))
    measurement = f"decoding, {config}, {compile_cpp.library('decode_step')._name}"
    return getattr(torch, autotune.fastest(measurement, candidates))


class TorchDecoder:
    """In PyTorch. A local layer keeps only its window, as a ring buffer: position p is at index p % window."""

    def __init__(self, model: GPTNeo, n_slots: int, context: int, dtype: torch.dtype):
        config, device = model.config, model.wte.weight.device
        self.n_slots = n_slots
        self.lengths = [0] * (n_slots + 1)
        self.context = context
        self.model = copy.deepcopy(model).to(device, dtype).eval()
        shapes = [
            (n_slots + 1, config.n_head, min(config.window(layer), context), config.n_embd // config.n_head)
            for layer in range(config.n_layer)
        ]
        self.k, self.v = ([torch.zeros(shape, device=device, dtype=dtype) for shape in shapes] for _ in range(2))
        self.tokens_and_positions = torch.zeros(2, n_slots, dtype=torch.long, device=device)
        self.graph = None

    def read(self, slot: int, prompt: list[int]) -> torch.Tensor:
        T, device = len(prompt), self.k[0].device

        def attend(layer, q, k, v):
            capacity = self.k[layer].size(2)
            kept = torch.arange(max(0, T - capacity), T, device=device)
            self.k[layer][slot, :, kept % capacity] = k[0, kept].transpose(0, 1)  # (T, H, D) -> (H, T, D)
            self.v[layer][slot, :, kept % capacity] = v[0, kept].transpose(0, 1)
            return self.model.attend(layer, q, k, v)

        x = self.model.hidden(torch.tensor([prompt], device=device), torch.arange(T, device=device), attend)
        self.lengths[slot] = T
        return self.model.head(x[0, -1]).float()

    def copy(self, source: int, target: int):
        for x in self.k + self.v:
            x[target] = x[source]
        self.lengths[target] = self.lengths[source]

    def step(self, slots: list[int], tokens: list[int]) -> torch.Tensor:
        # A CUDA graph has a fixed shape, so all slots take part. Idle ones get a 0 where their next token will be.
        tokens_and_positions = torch.zeros(2, self.n_slots, dtype=torch.long)
        tokens_and_positions[0, slots] = torch.tensor(tokens)
        tokens_and_positions[1] = torch.tensor(self.lengths[:-1]).clamp(max=self.context - 1)
        self.tokens_and_positions.copy_(tokens_and_positions)
        for slot in slots:
            self.lengths[slot] += 1
        if self.tokens_and_positions.is_cuda:
            if self.graph is None:
                self.graph = captured(functools.partial(self.forward, self.context), self.tokens_and_positions.device)
            self.graph.replay()
        else:
            self.forward(longest=max(self.lengths))
        return self.logits[slots].float()

    def forward(self, longest: int) -> None:
        tokens, positions = self.tokens_and_positions
        slots = torch.arange(self.n_slots, device=tokens.device)

        def attend(layer, q, k, v):
            capacity = self.k[layer].size(2)
            self.k[layer][slots, :, positions % capacity] = k[:, 0]
            self.v[layer][slots, :, positions % capacity] = v[:, 0]
            used = min(longest, capacity)
            # A full ring buffer holds exactly the window; until it is full, positions after the text must be masked.
            mask = torch.arange(used, device=tokens.device) <= positions[:, None, None, None]  # (B, 1, 1, used)
            keys, values = self.k[layer][: self.n_slots, :, :used], self.v[layer][: self.n_slots, :, :used]
            y = F.scaled_dot_product_attention(q.transpose(1, 2), keys, values, attn_mask=mask, scale=1.0)
            return y.transpose(1, 2)

        self.logits = self.model.head(self.model.hidden(tokens[:, None], positions[:, None], attend)[:, 0])


class RereadingDecoder:
    """For models without a cache: reads the whole text again for every token."""

    def __init__(self, model: Compressor, n_slots: int):
        self.model, self.texts = model, [[] for _ in range(n_slots + 1)]

    def read(self, slot: int, prompt: list[int]) -> torch.Tensor:
        self.texts[slot] = list(prompt)
        return self.logits([slot])[0]

    def copy(self, source: int, target: int):
        self.texts[target] = list(self.texts[source])

    def step(self, slots: list[int], tokens: list[int]) -> torch.Tensor:
        for slot, token in zip(slots, tokens):
            self.texts[slot].append(token)
        return self.logits(slots)

    def logits(self, slots: list[int]) -> torch.Tensor:
        device, texts = self.model.wte.weight.device, [torch.tensor(self.texts[slot]) for slot in slots]
        tokens = pad_sequence(texts, batch_first=True).to(device)  # attention is causal: padding does no harm
        x = self.model.hidden(tokens, torch.arange(tokens.size(1), device=device), self.model.attend)
        last = torch.tensor([len(text) - 1 for text in texts])
        return self.model.head(x[torch.arange(len(slots)), last]).float()


class NativeDecoder:
    """In C++: weights and cache in the layout of kernels/decode_step.cpp."""

    def __init__(self, model: GPTNeo, n_slots: int, context: int, dtype: torch.dtype):
        config = model.config
        self.dtype, self.vocab_size = dtype, config.vocab_size
        # All widths are padded to a multiple of the number of floats in a vector register.
        self.lanes = ctypes.c_int.in_dll(compile_cpp.library("decode_step"), "n_lanes").value
        self.lengths = [0] * (n_slots + 1)
        self.kept: list[torch.Tensor] = []  # tensors that C++ points to, so that Python does not free them
        self.k, self.v = [], []
        layers = []
        for i, block in enumerate(model.blocks):
            # Enough that a chunk of a prompt never overwrites what its own first token still attends to.
            positions = min(config.window(i) + CHUNK - 1, context)
            blocks = -(-positions // self.lanes)
            shape = (n_slots + 1, config.n_head, blocks, config.n_embd // config.n_head, self.lanes)
            for cache in (self.k, self.v):
                cache.append(torch.zeros(shape, dtype=dtype))
            layers.append(
                Layer(
                    *(self.norm(norm) for norm in (block.ln_1, block.ln_2)),
                    self.linear(block.qkv, block.scale or 1.0),
                    *(self.linear(linear) for linear in (block.attention_out, block.mlp_in, block.mlp_out)),
                    *(compile_cpp.pointer(cache[i]) for cache in (self.k, self.v)),
                    config.window(i),
                    blocks,
                )
            )
        self.layers = (Layer * config.n_layer)(*layers)
        self.model = Model(
            config.n_layer,
            config.n_head,
            config.n_embd,
            *(self.keep(self.padded(embedding.weight, 1)) for embedding in (model.wte, model.wpe)),
            self.layers,
            self.norm(model.ln_f),
            self.linear(model.head),
        )
        self.work = torch.empty(9 * max(n_slots, CHUNK) * self.padded(model.wte.weight[:1], 1).numel())
        self.logits = torch.empty(n_slots, self.model.head.n_out)

    def keep(self, x: torch.Tensor) -> ctypes.c_void_p:
        self.kept.append(x)
        return compile_cpp.pointer(x)

    def padded(self, x: torch.Tensor, dim: int) -> torch.Tensor:
        """A float32 copy, padded with zeros to the next multiple of `lanes`."""
        shape = list(x.shape)
        shape[dim] = -(-shape[dim] // self.lanes) * self.lanes
        result = x.new_zeros(shape, dtype=torch.float32)
        result.narrow(dim, 0, x.size(dim)).copy_(x)
        return result.detach()

    def norm(self, norm: torch.nn.LayerNorm) -> "Norm":
        return Norm(*(self.keep(self.padded(x, 0)) for x in (norm.weight, norm.bias)))

    def linear(self, linear: torch.nn.Linear, scale_q: float = 1.0) -> "Linear":
        weight = self.padded(self.padded(linear.weight, 0), 1)
        bias = torch.zeros(len(weight)) if linear.bias is None else self.padded(linear.bias, 0)
        for x in (weight, bias):
            x[: linear.in_features] *= scale_q
        n_out, n_in = weight.shape
        group = 4 // self.dtype.itemsize
        weight = weight.to(self.dtype).view(-1, self.lanes, n_in // group, group).transpose(1, 2).contiguous()
        return Linear(self.keep(weight), self.keep(bias), n_in, n_out)

    def read(self, slot: int, prompt: list[int]) -> torch.Tensor:
        for start in range(0, len(prompt), CHUNK):
            chunk = prompt[start : start + CHUNK]
            logits = torch.empty(1, self.model.head.n_out)
            self.forward([slot] * len(chunk), chunk, range(start, start + len(chunk)), logits)
        self.lengths[slot] = len(prompt)
        return logits[0, : self.vocab_size]

    def copy(self, source: int, target: int):
        blocks = -(-self.lengths[source] // self.lanes)
        for x in self.k + self.v:
            x[target, :, :blocks] = x[source, :, :blocks]
        self.lengths[target] = self.lengths[source]

    def step(self, slots: list[int], tokens: list[int]) -> torch.Tensor:
        """The logits stay valid until the next step."""
        logits = self.logits[: len(slots)]
        self.forward(slots, tokens, [self.lengths[slot] for slot in slots], logits)
        for slot in slots:
            self.lengths[slot] += 1
        return logits[:, : self.vocab_size]

    def forward(self, slots, tokens, positions, logits: torch.Tensor) -> None:
        """Appends tokens[i] to slots[i] at positions[i]; fills `logits` for the last len(logits) of them."""
        n_slots = len(self.lengths)
        rows = torch.tensor([tokens, [slot % n_slots for slot in slots], positions], dtype=torch.int32).T.contiguous()
        function = getattr(compile_cpp.library("decode_step"), f"forward_{compile_cpp.dtype_name(self.dtype)}")
        function(
            ctypes.byref(self.model),
            compile_cpp.pointer(rows),
            ctypes.c_long(len(rows)),
            compile_cpp.pointer(logits),
            ctypes.c_long(len(logits)),
            compile_cpp.pointer(self.work),
        )


class Linear(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ("weight", "bias")]
    _fields_ += [(name, ctypes.c_long) for name in ("n_in", "n_out")]


class Norm(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ("weight", "bias")]


class Layer(ctypes.Structure):
    _fields_ = [(name, Norm) for name in ("ln_1", "ln_2")]
    _fields_ += [(name, Linear) for name in ("qkv", "attention_out", "mlp_in", "mlp_out")]
    _fields_ += [(name, ctypes.c_void_p) for name in ("k", "v")]
    _fields_ += [(name, ctypes.c_long) for name in ("window", "blocks")]


class Model(ctypes.Structure):
    _fields_ = [(name, ctypes.c_long) for name in ("n_layer", "n_head", "n_embd")]
    _fields_ += [(name, ctypes.c_void_p) for name in ("wte", "wpe")]
    _fields_ += [("layers", ctypes.POINTER(Layer)), ("ln_f", Norm), ("head", Linear)]
