"""
Decoders run the model one token at a time: they cache the keys and values of many stories and
return the logits of the next token. generation_loop.py draws the tokens.

>>> decoder = make_decoder(model, n_slots=64, context=512, exact=False)  # 64 texts of 512 tokens

Each decoder has the same three methods:

>>> logits = decoder.read(3, prompt)  # a prompt into a slot; logits (vocab_size,) of the next token
>>> decoder.copy([3], [5])  # the texts of some slots into others
>>> logits = decoder.step([3, 5], [11, 22])  # one more token in these; (2, vocab_size)

What step() returns is overwritten by the next one.
"""

import copy
import ctypes

import torch
import torch.nn.functional as F

from model import GPTNeo
from nanostories.checkpoints.other_architectures import OtherDecoder, OtherModel
from nanostories.device import choose_dtype
from nanostories.kernels import compile_cpp

CHUNK = 64  # tokens of a prompt that CppDecoder reads at once


def make_decoder(model: GPTNeo, n_slots: int, context: int, exact: bool):
    """The decoder for this model on its device. exact: for greedy and beam search, which compare
    close calls, in float32. Otherwise CppDecoder keeps weights and cache in bfloat16, and so does a
    GPU, in its half precision: half as much to read (docs/sampling.md)."""
    if isinstance(model, OtherModel):
        return OtherDecoder(model)
    if type(model) is not GPTNeo:
        return RereadingDecoder(model)
    device = model.wte.weight.device
    if device.type == "cpu" and compile_cpp.library("decode_step"):
        return CppDecoder(model, n_slots, context, torch.float32 if exact else torch.bfloat16)
    is_half = device.type == "cuda" and not exact
    dtype = choose_dtype("auto" if is_half else "float32", device)
    return TorchDecoder(model, n_slots, context, dtype)


class RereadingDecoder:
    """For models without a cache: reads a whole text again for each of its tokens."""

    def __init__(self, model: GPTNeo):
        self.model = model
        self.texts = {}  # by slot

    def read(self, slot, prompt):
        self.texts[slot] = prompt
        logits, _ = self.model(torch.tensor([prompt], device=self.model.wte.weight.device))
        return logits[0, -1]

    def copy(self, sources, targets):
        self.texts |= {to: self.texts[source] for source, to in zip(sources, targets)}

    def step(self, slots, tokens):
        pairs = zip(slots, tokens)
        return torch.stack([self.read(slot, [*self.texts[slot], token]) for slot, token in pairs])


class TorchDecoder:
    """For a GPU, and for a CPU without a C++ compiler. Every slot takes part in every step, which
    on a GPU is a CUDA graph, whose shapes are fixed: the kernels of so small a model take longer to
    launch than to run."""

    def __init__(self, model: GPTNeo, n_slots: int, context: int, dtype=torch.float32):
        """dtype: of the matrix products and the cache."""
        config = model.config
        device = model.wte.weight.device
        self.model = model
        if dtype != torch.float32:
            self.model = with_products_in(dtype, model)
        self.autocast = torch.autocast(device.type, dtype, enabled=dtype != torch.float32)
        self.context = context
        self.lengths = torch.zeros(n_slots, dtype=torch.long)
        shape = (config.n_layer, n_slots, config.n_head, context, config.n_embd // config.n_head)
        self.cache = torch.zeros(2, *shape, device=device, dtype=dtype)  # keys and values
        # What a step reads: each slot's token, and its position.
        self.inputs = torch.zeros(2, n_slots, 1, dtype=torch.long, device=device)
        self.graph = None

    def read(self, slot, prompt):
        self.lengths[slot] = len(prompt)
        tokens = torch.tensor([prompt], device=self.cache.device)
        positions = torch.arange(len(prompt), device=tokens.device)[None]
        return self.forward(tokens, positions, slice(slot, slot + 1))[0]

    def copy(self, sources, targets):
        self.cache[:, :, targets] = self.cache[:, :, sources]
        self.lengths[targets] = self.lengths[sources]

    def step(self, slots, tokens):
        inputs = torch.zeros_like(self.inputs, device="cpu")
        inputs[0, slots, 0] = torch.tensor(tokens)
        # Idle slots write the keys of token 0 behind their text.
        inputs[1, :, 0] = self.lengths.clamp(max=self.context - 1)
        self.inputs.copy_(inputs)
        self.lengths[slots] += 1
        if not self.inputs.is_cuda:
            return self.step_all()[slots]
        if not self.graph:
            self.step_all()  # the libraries' set-up, which must not be recorded
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.logits = self.step_all()
        self.graph.replay()
        return self.logits[slots]

    def step_all(self):
        return self.forward(*self.inputs, slice(None))

    def forward(self, tokens, positions, slots: slice):
        """Appends tokens (B, T) to these slots at positions (B, T); the logits (B, vocab_size)
        after the last."""
        config = self.model.config
        row = torch.arange(len(tokens), device=tokens.device)[:, None]
        key = torch.arange(self.context, device=tokens.device)
        query = positions[:, None, :, None]
        masks = {}
        for window in (config.block_size, config.window_size):
            masks[window] = (key <= query) & (key > query - window)  # (B, 1, T, context)

        def attend(layer, q, k, v):
            keys, values = self.cache[:, layer, slots]  # (B, H, context, D) each
            keys[row, :, positions] = k
            values[row, :, positions] = v
            q = q.transpose(1, 2)  # (B, T, H, D) -> (B, H, T, D)
            mask = masks[config.window(layer)]
            y = F.scaled_dot_product_attention(q, keys, values, mask, scale=1.0)
            return y.transpose(1, 2)

        with self.autocast:
            x = self.model.hidden(tokens, positions, attend)
            return self.model.head(x[:, -1])


def with_products_in(dtype: torch.dtype, model: GPTNeo) -> GPTNeo:
    """A copy whose linear layers are in dtype. Embeddings and LayerNorms stay in float32: the head
    is no longer tied."""
    model = copy.deepcopy(model)
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            for name, parameter in list(module.named_parameters()):
                half = torch.nn.Parameter(parameter.to(dtype), requires_grad=False)
                setattr(module, name, half)
    return model


class CppDecoder:
    """nanostories/kernels/decode_step.cpp, which describes its structs: weights and cache in its
    layout, all widths padded with zeros to whole vectors."""

    def __init__(self, model: GPTNeo, n_slots: int, context: int, dtype: torch.dtype):
        config = model.config
        library = compile_cpp.library("decode_step")
        self.kernel = compile_cpp.kernel("decode_step", "forward", dtype)
        self.lanes = ctypes.c_int.in_dll(library, "n_lanes").value  # floats in a vector register
        self.dtype = dtype
        self.vocab_size = config.vocab_size
        self.lengths = torch.zeros(n_slots, dtype=torch.long)
        self.caches = []  # of each layer: keys and values
        layers = []
        for i, block in enumerate(model.blocks):
            window = config.window(i)
            # Enough that a chunk of a prompt never overwrites keys that its own first token still
            # attends to.
            blocks = -(-min(window + CHUNK - 1, context) // self.lanes)
            shape = (n_slots, config.n_head, blocks, config.n_embd // config.n_head, self.lanes)
            cache = torch.zeros(2, *shape, dtype=dtype)
            self.caches.append(cache)
            layers += self.norm(block.ln_1)
            layers += self.norm(block.ln_2)
            layers += self.linear(block.qkv, scale_q=block.scale or 1.0)
            layers += self.linear(block.attention_out)
            layers += self.linear(block.mlp_in)
            layers += self.linear(block.mlp_out)
            layers += [*cache, window, blocks]
        fields = [
            config.n_layer,
            config.n_head,
            config.n_embd,
            self.padded(model.wte.weight),
            self.padded(model.wpe.weight),
            compile_cpp.struct(*layers),
            *self.norm(model.ln_f),
            *self.linear(model.head),
        ]
        self.model = compile_cpp.struct(*fields)
        self.kept = layers + fields  # tensors that C++ points to
        padded_width = len(self.padded(model.ln_f.weight))
        self.work = torch.empty(9 * max(n_slots, CHUNK) * padded_width)
        self.logits = torch.empty(n_slots, fields[-1])

    def padded(self, x):
        """A float32 copy, padded with zeros to the next multiple of `lanes` in each dimension."""
        padding = []  # as F.pad wants it: before and after, the last dimension first
        for size in reversed(x.shape):
            padding += [0, -size % self.lanes]
        return F.pad(x.detach().float(), padding)

    def norm(self, norm):
        return [self.padded(norm.weight), self.padded(norm.bias)]

    def linear(self, linear, scale_q=1.0):
        weight = self.padded(linear.weight)
        bias = torch.zeros(len(weight)) if linear.bias is None else self.padded(linear.bias)
        n_queries = linear.in_features  # the first rows of qkv
        weight[:n_queries] *= scale_q
        bias[:n_queries] *= scale_q
        n_out, n_in = weight.shape
        group = 4 // self.dtype.itemsize
        weight = weight.to(self.dtype).view(-1, self.lanes, n_in // group, group)
        return [weight.transpose(1, 2).contiguous(), bias, n_in, n_out]

    def read(self, slot, prompt):
        logits = torch.empty(1, self.logits.size(1))
        for start in range(0, len(prompt), CHUNK):
            chunk = prompt[start : start + CHUNK]
            positions = range(start, start + len(chunk))
            self.forward([slot] * len(chunk), chunk, positions, logits)
        self.lengths[slot] = len(prompt)
        return logits[0, : self.vocab_size]

    def copy(self, sources, targets):
        blocks = -(-self.lengths[sources].max().item() // self.lanes)
        for x in self.caches:
            x[:, targets, :, :blocks] = x[:, sources, :, :blocks]
        self.lengths[targets] = self.lengths[sources]

    def step(self, slots, tokens):
        logits = self.logits[: len(slots)]
        self.forward(slots, tokens, self.lengths[slots].tolist(), logits)
        self.lengths[slots] += 1
        return logits[:, : self.vocab_size]

    def forward(self, slots, tokens, positions, logits):
        """Appends tokens[i] to slots[i] at positions[i]; fills `logits` for the last len(logits) of
        them."""
        rows = torch.tensor([tokens, slots, positions], dtype=torch.int32).T.contiguous()
        compile_cpp.call(self.kernel, self.model, rows, len(rows), logits, len(logits), self.work)
