"""
Sampling on a GPU: the stories of a batch grow on the device, and the host looks at them every BURST tokens.

A step draws a token for every slot and runs the model on it. It is one CUDA graph and never waits for the host: a slot
whose story has ended keeps writing until the host notices, and the surplus is dropped.

Matrix products inside the blocks use `dtype`; the residual stream, the logits and the sampling are in float32, so that
bfloat16 changes few draws. (Beam search and other devices use the decoders in decoders.py.)
"""

import copy
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils.rnn import pad_sequence

from kernels.gpu_windowed_attention import padded, padded_width
from model import GPTNeo

BURST = 16  # tokens
PROMPTS_AT_ONCE = 64  # in one forward pass


class GpuDecoder:
    """A local layer keeps only its window, as a ring buffer: position p is at index p % window."""

    def __init__(
        self,
        model: GPTNeo,
        n_slots: int,
        context: int,
        max_new_tokens: int,
        draw: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        dtype: torch.dtype,
    ):
        """draw: logits (n_slots, vocab_size) and uniform numbers (n_slots,) -> ids (n_slots,)"""
        config, device = model.config, model.wte.weight.device
        self.draw, self.dtype, self.context = draw, dtype, context
        self.model = copy.deepcopy(model).float().eval()
        self.model.blocks.to(dtype)
        for name, module in self.model.blocks.named_modules():
            if "ln_" in name:
                module.float()
        zeros, self.head_width = torch.zeros, config.n_embd // config.n_head
        width = padded_width(self.head_width, dtype)
        windows = [min(config.window(layer), context) for layer in range(config.n_layer)]
        shapes = [(n_slots, config.n_head, window, width) for window in windows]
        self.k, self.v = ([zeros(shape, device=device, dtype=dtype) for shape in shapes] for _ in range(2))
        self.logits = zeros(n_slots, config.vocab_size, device=device)  # of every slot's next token
        # The last column takes whatever a slot writes after its end.
        self.uniform = zeros(n_slots, max_new_tokens + 1, device=device)
        self.written = zeros(n_slots, max_new_tokens + 1, dtype=torch.long, device=device)
        self.n_written, self.lengths = (zeros(n_slots, dtype=torch.long, device=device) for _ in range(2))
        self.graph = captured(self.step, device) if device.type == "cuda" else None

    def start(self, slots: list[int], prompts: list[list[int]], uniform: np.ndarray) -> None:
        """Starts texts in these slots. uniform: (len(slots), max_new_tokens), the random numbers for their draws."""
        for i in range(0, len(slots), PROMPTS_AT_ONCE):
            part = slice(i, i + PROMPTS_AT_ONCE)
            self.start_together(slots[part], prompts[part], uniform[part])

    def start_together(self, slots: list[int], prompts: list[list[int]], uniform: np.ndarray) -> None:
        # Attention is causal: padding does no harm.
        tokens, device = pad_sequence(list(map(torch.tensor, prompts)), batch_first=True), self.logits.device
        lengths, rows = torch.tensor([len(prompt) for prompt in prompts]), torch.tensor(slots)
        tokens, lengths, rows = (x.to(device) for x in (tokens, lengths, rows))

        def attend(layer, q, k, v):
            for cache, x in zip((self.k[layer], self.v[layer]), padded(k, v)):
                window = cache.size(2)
                index = torch.arange(window, device=device)
                # The newest position of each text that maps to this index; arbitrary where the text is shorter.
                newest = index + window * torch.div(lengths[:, None] - 1 - index, window, rounding_mode="floor")
                newest = newest.clamp(min=0)[..., None, None].expand(-1, -1, *x.shape[2:])  # (rows, window, H, D)
                cache[rows] = x.gather(1, newest).transpose(1, 2)
            return self.model.attend(layer, q, k, v)

        last = self.hidden(tokens, torch.arange(tokens.size(1), device=device), attend)
        last = last[torch.arange(len(slots), device=device), lengths - 1]
        self.logits[rows] = F.linear(last, self.model.head.weight)
        if not self.logits[rows].isfinite().all():
            raise ValueError("the model's logits are not finite: its training diverged or its weights are bad")
        self.uniform[rows, :-1] = torch.from_numpy(uniform).to(device)
        self.n_written[rows], self.lengths[rows] = 0, lengths

    def hidden(self, tokens: torch.Tensor, positions: torch.Tensor, attend) -> torch.Tensor:
        """(B, T, C), float32"""
        enabled = self.dtype != torch.float32
        with torch.autocast(tokens.device.type, self.dtype, enabled=enabled, cache_enabled=False):
            return self.model.hidden(tokens, positions, attend).float()

    def run(self, n_steps: int) -> np.ndarray:
        """Draws n_steps more tokens in every slot; returns all ids since each slot's start, (n_slots, …)."""
        for _ in range(n_steps):
            self.graph.replay() if self.graph else self.step()
        return self.written.cpu().numpy()

    def step(self) -> None:
        at = self.n_written.clamp(max=self.written.size(1) - 1)[:, None]
        tokens = self.draw(self.logits, self.uniform.gather(1, at)[:, 0])
        self.written.scatter_(1, at, tokens[:, None])
        positions = self.lengths.clamp(max=self.context - 1)
        slots = torch.arange(len(tokens), device=tokens.device)

        def attend(layer, q, k, v):
            keys, values = self.k[layer], self.v[layer]
            q, k, v = padded(q, k, v)
            index = positions % keys.size(2)
            keys[slots, :, index], values[slots, :, index] = k[:, 0], v[:, 0]
            # A full ring buffer holds exactly the window; until it is full, positions after the text must be masked.
            mask = torch.arange(keys.size(2), device=q.device) <= positions[:, None, None, None]  # (B, 1, 1, window)
            with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
                y = F.scaled_dot_product_attention(q.transpose(1, 2), keys, values, attn_mask=mask, scale=1.0)
            return y.transpose(1, 2)[..., : self.head_width]

        x = self.hidden(tokens[:, None], positions[:, None], attend)[:, 0]
        self.logits.copy_(F.linear(x, self.model.head.weight))
        self.n_written += 1
        self.lengths += 1


def captured(step: Callable[[], None], device: torch.device) -> torch.cuda.CUDAGraph:
    """A step as a CUDA graph: for models this small, kernels take longer to launch than to run."""
    with torch.cuda.device(device):  # streams and graphs belong to the current device
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # warm-up, so that nothing is set up or allocated while recording
            step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
    return graph
