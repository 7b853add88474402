"""
Decoders run the model one token at a time: they cache the keys and values of many stories and
return the logits of the next token. generation_loop.py draws the tokens.

# for 64 texts of at most 512 tokens
>>> decoder = make_decoder(model, n_slots=64, context=512, exact=False)
>>> logits = decoder.read(3, prompt)  # a prompt into a slot; logits (vocab_size,) of the next token
>>> decoder.copy([3], [5])
# one more token in these; (2, vocab_size), until the next
>>> logits = decoder.step([3, 5], [token_3, token_5])
"""

import ctypes

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from model import GPTNeo
from nanostories.checkpoints.other_architectures import OtherDecoder, OtherModel
from nanostories.kernels import compile_cpp

CHUNK = 64  # tokens of a prompt that CppDecoder reads at once


def make_decoder(model: GPTNeo, n_slots: int, context: int, exact: bool):
    """The decoder for this model on its device. exact: for greedy and beam search, which compare
    close calls, in float32. Otherwise CppDecoder keeps weights and cache in bfloat16: half as much
    to read (docs/sampling.md)."""
    if isinstance(model, OtherModel):
        return OtherDecoder(model)
    if type(model) is not GPTNeo:
        return RereadingDecoder(model)
    if model.wte.weight.device.type == "cpu" and compile_cpp.library("decode_step"):
        return CppDecoder(model, n_slots, context, torch.float32 if exact else torch.bfloat16)
    return TorchDecoder(model, n_slots, context)


class TorchDecoder:
    """For a GPU, and for a CPU without a C++ compiler. Every slot takes part in every step, which
    on a GPU is a CUDA graph, whose shapes are fixed: the kernels of so small a model take longer to
    launch than to run."""

    def __init__(self, model: GPTNeo, n_slots: int, context: int):
        config = model.config
        device = model.wte.weight.device
        self.model = model
        self.context = context
        self.graph = None
        self.lengths = torch.zeros(n_slots, dtype=torch.long)
        shape = (2, config.n_layer, n_slots, config.n_head, context, config.n_embd // config.n_head)
        self.cache = torch.zeros(shape, device=device)  # keys and values
        # each slot's token and its position
        self.inputs = torch.zeros(2, n_slots, 1, dtype=torch.long, device=device)

    def read(self, slot: int, prompt: list[int]) -> Tensor:
        self.lengths[slot] = len(prompt)
        tokens = torch.tensor([prompt], device=self.cache.device)
        positions = torch.arange(len(prompt), device=tokens.device)[None]
        return self.forward(tokens, positions, slice(slot, slot + 1))[0]

    def copy(self, sources: list[int], targets: list[int]):
        self.cache[:, :, targets] = self.cache[:, :, sources]
        self.lengths[targets] = self.lengths[sources]

    def step(self, slots: list[int], tokens: list[int]) -> Tensor:
        inputs = torch.zeros_like(self.inputs, device="cpu")
        inputs[0, slots, 0] = torch.tensor(tokens)
        # Idle slots write the keys of token 0 behind their text.
        inputs[1, :, 0] = self.lengths.clamp(max=self.context - 1)
        self.inputs.copy_(inputs)
        self.lengths[slots] += 1
        if self.inputs.is_cuda and self.graph is None:
            self.record_graph()
        if self.graph:
            self.graph.replay()
        else:
            self.logits = self.forward(*self.inputs, slice(None))
        return self.logits[slots]

    def record_graph(self) -> None:
        self.forward(*self.inputs, slice(None))  # the libraries' set-up, which must not be recorded
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):  # computes nothing
            self.logits = self.forward(*self.inputs, slice(None))

    def forward(self, tokens: Tensor, positions: Tensor, slots: slice) -> Tensor:
        """Appends tokens (B, T) to these slots at positions (B, T); the logits (B, vocab_size)
        after the last."""
        config = self.model.config
        rows = torch.arange(len(tokens), device=tokens.device)[:, None]
        key = torch.arange(self.context, device=tokens.device)
        query = positions[:, None, :, None]
        masks = {}
        for window in (config.block_size, config.window_size):
            masks[window] = (key <= query) & (key > query - window)  # (B, 1, T, context)

        def attend(layer, q, k, v):
            keys, values = self.cache[:, layer, slots]  # (B, H, context, D) each
            keys[rows, :, positions] = k
            values[rows, :, positions] = v
            mask = masks[config.window(layer)]
            q = q.transpose(1, 2)  # (B, T, H, D) -> (B, H, T, D)
            y = F.scaled_dot_product_attention(q, keys, values, mask, scale=1.0)
            return y.transpose(1, 2)

        return self.model.head(self.model.hidden(tokens, positions, attend)[:, -1])


class RereadingDecoder:
    """For models without a cache: reads a whole text again for each of its tokens."""

    def __init__(self, model: GPTNeo):
        self.model = model
        self.texts = {}  # by slot

    def read(self, slot: int, prompt: list[int]) -> Tensor:
        self.texts[slot] = prompt
        tokens = torch.tensor([prompt], device=self.model.wte.weight.device)
        positions = torch.arange(len(prompt), device=tokens.device)
        x = self.model.hidden(tokens, positions, self.model.attention())
        return self.model.head(x[0, -1])

    def copy(self, sources: list[int], targets: list[int]):
        texts = [self.texts[source] for source in sources]
        self.texts.update(zip(targets, texts))

    def step(self, slots: list[int], tokens: list[int]) -> Tensor:
        logits = []
        for slot, token in zip(slots, tokens):
            logits.append(self.read(slot, [*self.texts[slot], token]))
        return torch.stack(logits)


class CppDecoder:
    """nanostories/kernels/decode_step.cpp: weights and cache in its layout, all widths padded with
    zeros to whole vectors. Its structs, whose fields are pointers and long integers, are tensors of
    int64 here."""

    def __init__(self, model: GPTNeo, n_slots: int, context: int, dtype: torch.dtype):
        config = model.config
        library = compile_cpp.library("decode_step")
        self.kernel = compile_cpp.kernel("decode_step", "forward", dtype)
        self.lanes = ctypes.c_int.in_dll(library, "n_lanes").value  # floats in a vector register
        self.dtype = dtype
        self.vocab_size = config.vocab_size
        self.lengths = torch.zeros(n_slots, dtype=torch.long)
        self.caches: list[Tensor] = []  # keys and values of each layer
        # tensors that C++ points to, so that Python does not free them
        self.kept: list[Tensor] = []
        layers = []
        for i, block in enumerate(model.blocks):
            layers += self.norm(block.ln_1)
            layers += self.norm(block.ln_2)
            layers += self.linear(block.qkv, scale_q=block.scale or 1.0)
            layers += self.linear(block.attention_out)
            layers += self.linear(block.mlp_in)
            layers += self.linear(block.mlp_out)
            layers += self.layer_cache(config, config.window(i), n_slots, context)
        fields = [config.n_layer, config.n_head, config.n_embd]
        fields += [
            self.keep(self.padded(model.wte.weight)),
            self.keep(self.padded(model.wpe.weight)),
        ]
        fields += [self.keep(torch.tensor(layers))]
        fields += self.norm(model.ln_f)
        fields += self.linear(model.head)
        self.model = torch.tensor(fields)
        width = len(self.padded(model.ln_f.weight))
        self.work = torch.empty(9 * max(n_slots, CHUNK) * width)
        self.logits = torch.empty(n_slots, fields[-1])

    # ---- The fields of its structs ----
    def keep(self, x: Tensor) -> int:
        self.kept.append(x)
        return x.data_ptr()

    def padded(self, x: Tensor) -> Tensor:
        """A float32 copy, padded with zeros to the next multiple of `lanes` in each dimension."""
        padding = []  # as F.pad wants it: before and after, the last dimension first
        for size in reversed(x.shape):
            padding += [0, -size % self.lanes]
        return F.pad(x.detach().float(), padding)

    def norm(self, norm: nn.LayerNorm) -> list[int]:
        return [self.keep(self.padded(norm.weight)), self.keep(self.padded(norm.bias))]

    def linear(self, linear: nn.Linear, scale_q: float = 1.0) -> list[int]:
        weight = self.padded(linear.weight)
        bias = torch.zeros(len(weight)) if linear.bias is None else self.padded(linear.bias)
        weight[: linear.in_features] *= scale_q
        bias[: linear.in_features] *= scale_q
        n_out, n_in = weight.shape
        group = 4 // self.dtype.itemsize
        weight = weight.to(self.dtype).view(-1, self.lanes, n_in // group, group)
        return [self.keep(weight.transpose(1, 2).contiguous()), self.keep(bias), n_in, n_out]

    def layer_cache(self, config, window: int, n_slots: int, context: int) -> list[int]:
        # Enough that a chunk of a prompt never overwrites keys that its own first token still
        # attends to.
        blocks = -(-min(window + CHUNK - 1, context) // self.lanes)
        shape = (n_slots, config.n_head, blocks, config.n_embd // config.n_head, self.lanes)
        keys = torch.zeros(shape, dtype=self.dtype)
        values = torch.zeros_like(keys)
        self.caches += [keys, values]
        return [keys.data_ptr(), values.data_ptr(), window, blocks]

    # ---- Decoding ----
    def read(self, slot: int, prompt: list[int]) -> Tensor:
        logits = torch.empty(1, self.logits.size(1))
        for start in range(0, len(prompt), CHUNK):
            chunk = prompt[start : start + CHUNK]
            positions = range(start, start + len(chunk))
            self.forward([slot] * len(chunk), chunk, positions, logits)
        self.lengths[slot] = len(prompt)
        return logits[0, : self.vocab_size]

    def copy(self, sources: list[int], targets: list[int]):
        blocks = -(-self.lengths[sources].max().item() // self.lanes)
        for x in self.caches:
            x[targets, :, :blocks] = x[sources, :, :blocks]
        self.lengths[targets] = self.lengths[sources]

    def step(self, slots: list[int], tokens: list[int]) -> Tensor:
        logits = self.logits[: len(slots)]
        self.forward(slots, tokens, self.lengths[slots].tolist(), logits)
        self.lengths[slots] += 1
        return logits[:, : self.vocab_size]

    def forward(self, slots, tokens, positions, logits: Tensor) -> None:
        """Appends tokens[i] to slots[i] at positions[i]; fills `logits` for the last len(logits) of
        them."""
        rows = torch.tensor([tokens, slots, positions], dtype=torch.int32).T.contiguous()
        compile_cpp.call(self.kernel, self.model, rows, len(rows), logits, len(logits), self.work)
