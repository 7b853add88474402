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
        config, device = model.config, model.wte.weight.device
        self.model, self.context, self.graph = model, context, None
        self.lengths = torch.zeros(n_slots, dtype=torch.long)
        shape = (2, config.n_layer, n_slots, config.n_head, context, config.n_embd // config.n_head)
        self.cache = torch.zeros(shape, device=device)  # keys and values
        self.inputs = torch.zeros(
            2, n_slots, 1, dtype=torch.long, device=device
        )  # each slot's token and position

    def read(self, slot: int, prompt: list[int]) -> torch.Tensor:
        self.lengths[slot] = len(prompt)
        tokens = torch.tensor([prompt], device=self.cache.device)
        return self.forward(
            tokens, torch.arange(len(prompt), device=tokens.device)[None], slice(slot, slot + 1)
        )[0]

    def copy(self, sources: list[int], targets: list[int]):
        self.cache[:, :, targets] = self.cache[:, :, sources]
        self.lengths[targets] = self.lengths[sources]

    def step(self, slots: list[int], tokens: list[int]) -> torch.Tensor:
        inputs = torch.zeros_like(
            self.inputs, device="cpu"
        )  # idle slots write a 0 behind their text
        inputs[0, slots, 0] = torch.tensor(tokens)
        inputs[1, :, 0] = self.lengths.clamp(max=self.context - 1)
        self.inputs.copy_(inputs)
        self.lengths[slots] += 1
        if not self.graph:
            self.logits = self.forward(*self.inputs, slice(None))
        if (
            self.inputs.is_cuda and not self.graph
        ):  # the step above did the set-up, which must not be recorded
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):  # computes nothing
                self.logits = self.forward(*self.inputs, slice(None))
        if self.graph:
            self.graph.replay()
        return self.logits[slots]

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor, slots: slice) -> torch.Tensor:
        """Appends tokens (B, T) to these slots at positions (B, T); the logits (B, vocab_size)
        after the last."""
        rows, keys = (torch.arange(n, device=tokens.device) for n in (len(tokens), self.context))
        past = keys <= positions[..., None]  # (B, T, context)

        def attend(layer, q, k, v):
            cache = self.cache[:, layer, slots]  # (2, B, H, context, D)
            for own, x in zip(cache, (k, v)):
                own[rows[:, None], :, positions] = x
            mask = past & (keys > positions[..., None] - self.model.config.window(layer))
            return F.scaled_dot_product_attention(
                q.transpose(1, 2), *cache, mask[:, None], scale=1.0
            ).transpose(1, 2)

        return self.model.head(self.model.hidden(tokens, positions, attend)[:, -1])


class RereadingDecoder:
    """For models without a cache: reads a whole text again for each of its tokens."""

    def __init__(self, model: GPTNeo):
        self.model, self.texts = model, {}  # by slot

    def read(self, slot: int, prompt: list[int]) -> torch.Tensor:
        self.texts[slot] = prompt
        tokens = torch.tensor([prompt], device=self.model.wte.weight.device)
        x = self.model.hidden(
            tokens, torch.arange(len(prompt), device=tokens.device), self.model.attend
        )
        return self.model.head(x[0, -1])

    def copy(self, sources: list[int], targets: list[int]):
        self.texts |= zip(targets, [self.texts[source] for source in sources])

    def step(self, slots: list[int], tokens: list[int]) -> torch.Tensor:
        return torch.stack(
            [self.read(slot, self.texts[slot] + [token]) for slot, token in zip(slots, tokens)]
        )


class CppDecoder:
    """nanostories/kernels/decode_step.cpp: weights and cache in its layout, all widths padded with
    zeros to whole vectors. Its structs, whose fields are pointers and long integers, are tensors of
    int64 here."""

    def __init__(self, model: GPTNeo, n_slots: int, context: int, dtype: torch.dtype):
        config, library = model.config, compile_cpp.library("decode_step")
        self.run = getattr(library, f"forward_{compile_cpp.dtype_name(dtype)}")
        self.lanes = ctypes.c_int.in_dll(library, "n_lanes").value  # floats in a vector register
        self.dtype, self.vocab_size, self.lengths = (
            dtype,
            config.vocab_size,
            torch.zeros(n_slots, dtype=torch.long),
        )
        self.kept: list[
            torch.Tensor
        ] = []  # tensors that C++ points to, so that Python does not free them
        self.caches: list[torch.Tensor] = []  # keys and values of each layer
        layers = []
        for i, block in enumerate(model.blocks):
            # Enough that a chunk of a prompt never overwrites keys that its own first token still
            # attends to.
            blocks = -(-min(config.window(i) + CHUNK - 1, context) // self.lanes)
            shape = (n_slots, config.n_head, blocks, config.n_embd // config.n_head, self.lanes)
            self.caches += torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype)
            layers += (
                self.norm(block.ln_1)
                + self.norm(block.ln_2)
                + self.linear(block.qkv, block.scale or 1.0)
            )
            for linear in (block.attention_out, block.mlp_in, block.mlp_out):
                layers += self.linear(linear)
            layers += [*map(self.keep, self.caches[-2:]), config.window(i), blocks]
        parts = [config.n_layer, config.n_head, config.n_embd]
        parts += [self.keep(self.padded(x.weight)) for x in (model.wte, model.wpe)] + [
            self.keep(torch.tensor(layers))
        ]
        self.model = torch.tensor(parts + self.norm(model.ln_f) + self.linear(model.head))
        self.work = torch.empty(9 * max(n_slots, CHUNK) * self.padded(model.ln_f.weight).numel())
        self.logits = torch.empty(n_slots, self.model[-1])

    def keep(self, x: torch.Tensor) -> int:
        self.kept.append(x)
        return x.data_ptr()

    def padded(self, x: torch.Tensor) -> torch.Tensor:
        """A float32 copy, padded with zeros to the next multiple of `lanes` in each dimension."""
        return F.pad(
            x.detach().float(), [n for size in reversed(x.shape) for n in (0, -size % self.lanes)]
        )

    def norm(self, norm: nn.LayerNorm) -> list[int]:
        return [self.keep(self.padded(x)) for x in (norm.weight, norm.bias)]

    def linear(self, linear: nn.Linear, scale_q: float = 1.0) -> list[int]:
        weight = self.padded(linear.weight)
        bias = torch.zeros(len(weight)) if linear.bias is None else self.padded(linear.bias)
        for x in (weight, bias):
            x[: linear.in_features] *= scale_q
        (n_out, n_in), group = weight.shape, 4 // self.dtype.itemsize
        weight = (
            weight.to(self.dtype)
            .view(-1, self.lanes, n_in // group, group)
            .transpose(1, 2)
            .contiguous()
        )
        return [self.keep(weight), self.keep(bias), n_in, n_out]

    def read(self, slot: int, prompt: list[int]) -> torch.Tensor:
        for start in range(0, len(prompt), CHUNK):
            chunk = prompt[start : start + CHUNK]
            logits = torch.empty(1, self.logits.size(1))
            self.forward([slot] * len(chunk), chunk, range(start, start + len(chunk)), logits)
        self.lengths[slot] = len(prompt)
        return logits[0, : self.vocab_size]

    def copy(self, sources: list[int], targets: list[int]):
        blocks = -(-self.lengths[sources].max().item() // self.lanes)
        for x in self.caches:
            x[targets, :, :blocks] = x[sources, :, :blocks]
        self.lengths[targets] = self.lengths[sources]

    def step(self, slots: list[int], tokens: list[int]) -> torch.Tensor:
        logits = self.logits[: len(slots)]
        self.forward(slots, tokens, self.lengths[slots].tolist(), logits)
        self.lengths[slots] += 1
        return logits[:, : self.vocab_size]

    def forward(self, slots, tokens, positions, logits: torch.Tensor) -> None:
        """Appends tokens[i] to slots[i] at positions[i]; fills `logits` for the last len(logits) of
        them."""
        rows = torch.tensor([tokens, slots, positions], dtype=torch.int32).T.contiguous()
        sizes, pointer = (ctypes.c_long(len(rows)), ctypes.c_long(len(logits))), compile_cpp.pointer
        self.run(
            pointer(self.model),
            pointer(rows),
            sizes[0],
            pointer(logits),
            sizes[1],
            pointer(self.work),
        )
