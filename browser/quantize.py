"""
Weights rounded to fewer bits and packed for engine.js; and what the rounding costs, measured.

>>> pack(model, "int8")                            # ([("wte.weight", 4096, 160), …], bytes)
>>> quality(model, texts, byte_lengths)            # {"int8": {"bpb": 0.51, "kl": 6e-05}, …}
"""

import copy
import math
from collections.abc import Sequence

import numpy as np
import torch
from tqdm import tqdm

from kernels.attention import pytorch_attention
from model import GPTNeo

DTYPES = ("float32", "float16", "int8")


def int8_rows(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(rows, columns) -> int8 of that shape, and the bfloat16 scale of each row, whose largest entry becomes ±127."""
    scale = (weight.abs().amax(1).clamp(min=1e-30) / 127).bfloat16()
    return (weight / scale[:, None].float()).round().clamp(-127, 127).to(torch.int8), scale


def pack(model: GPTNeo, dtype: str) -> tuple[list[tuple], bytes]:
    """([(name, rows, columns) or (name, length)], their bytes in this order, each padded to four).

    Matrices are of `dtype`, as int8 with the bfloat16 scales of their rows before them; vectors stay float32. The head
    is the embedding, stored once.
    """
    shapes, parts = [], []
    for name, parameter in model.named_parameters():
        tensor = parameter.detach().float().cpu()
        if not tensor.isfinite().all():
            raise ValueError("the model's weights are not finite: its training diverged")
        shapes.append((name, *tensor.shape))
        if tensor.dim() == 2 and dtype == "int8":
            rows, scale = int8_rows(tensor)
            arrays = [scale.view(torch.int16).numpy(), rows.numpy()]
        else:
            arrays = [tensor.to(getattr(torch, dtype) if tensor.dim() == 2 else torch.float32).numpy()]
            if not np.isfinite(arrays[0]).all():
                raise ValueError(
                    f"{name}: a weight of {tensor.abs().max():.3g} is too large for {dtype}: --dtype float32"
                )
        for array in arrays:
            data = array.astype(array.dtype.newbyteorder("<")).tobytes()
            parts.append(data + bytes(-len(data) % 4))
    return shapes, b"".join(parts)


@torch.no_grad()
def rounded(model: GPTNeo, dtype: str) -> GPTNeo:
    """A copy with the weights that the browser has, as float32."""
    model = copy.deepcopy(model).float().cpu()
    for parameter in model.parameters():
        if parameter.dim() == 2 and dtype == "int8":
            rows, scale = int8_rows(parameter)
            parameter.copy_(rows * scale[:, None].float())
        elif parameter.dim() == 2 and dtype == "float16":
            parameter.copy_(parameter.half())
    return model


def logits_by_pytorch(model: GPTNeo, tokens: torch.Tensor) -> torch.Tensor:
    """(B, T) -> (B, T, vocab_size), by PyTorch's attention: each text has its own length, so timing which attention is
    faster would not pay off."""

    def attend(layer, q, k, v):
        return pytorch_attention(q, k, v, model.config.window(layer))

    return model.head(model.hidden(tokens, torch.arange(tokens.size(1)), attend))


def log_probabilities(model: GPTNeo, ids: torch.Tensor) -> torch.Tensor:
    """(T,) -> (T, vocab_size) float64: of the token after each."""
    return torch.log_softmax(logits_by_pytorch(model, ids[None])[0].double(), -1)


@torch.inference_mode()
def quality(model: GPTNeo, texts: Sequence[tuple], byte_lengths: np.ndarray) -> dict[str, dict]:
    """For each dtype its bpb (bits per byte) and kl: mean KL divergence from the unrounded model, in nats per token.

    texts: (ids, bool: which of them count); the first can never count. byte_lengths: of each id.
    """
    models = {dtype: rounded(model, dtype) for dtype in DTYPES}
    sums = {dtype: np.zeros(2) for dtype in DTYPES}  # nats of loss and of divergence
    n_tokens = n_bytes = 0
    for ids, counted in tqdm(texts, "measuring the rounding", unit="story", disable=None, delay=1, leave=False):
        ids = torch.from_numpy(ids.astype(np.int64))
        targets, rows = ids[1:], torch.from_numpy(counted[1:])
        n_tokens, n_bytes = n_tokens + int(rows.sum()), n_bytes + int(byte_lengths[targets[rows]].sum())
        expected = log_probabilities(models["float32"], ids[:-1])[rows]
        for dtype, of_dtype in models.items():
            found = log_probabilities(of_dtype, ids[:-1])[rows] if dtype != "float32" else expected
            loss = -found.gather(1, targets[rows, None]).sum()
            sums[dtype] += [loss.item(), (expected.exp() * (expected - found)).sum().item()]
    return {
        dtype: dict(bpb=loss / math.log(2) / n_bytes, kl=divergence / n_tokens)
        for dtype, (loss, divergence) in sums.items()
    }
