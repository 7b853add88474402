"""
Our own compressor (compressor.py has the published one): two tokens become one vector, so that the trunk of the model
runs at half the length.

The first block is the encoder: it reads a pair of tokens and a summary token, whose output stands for the pair. The
blocks between, the trunk, are GPT-Neo's, causal over pairs. The last one is the decoder: from the trunk's output it
predicts the first token of the next pair, and from that output and the first token, the second. So every token is
predicted from all before it, as in model.py, and loss and bpb can be compared. The parameters are those of a GPTNeo of
the same shape, plus two vectors.

>>> logits, loss = PairCompressor(GPTNeoConfig(n_embd=256, n_layer=8, n_head=16))(tokens, targets)
$ python train.py configs/compressor_256.py --architecture=pair_compressor
"""

import functools

import torch
import torch.nn as nn

from kernels.attention import causal_attention, first_keys
from model import Attend, GPTNeo, GPTNeoConfig


class PairCompressor(GPTNeo):
    def __init__(self, config: GPTNeoConfig):
        if config.n_layer < 3:
            raise ValueError(f"n_layer must be at least 3 (encoder, trunk, decoder), not {config.n_layer}")
        super().__init__(config)
        self.summary, self.start = (nn.Parameter(0.02 * torch.randn(config.n_embd)) for _ in range(2))

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        first_key = first_keys(q.size(1), -(-self.config.window(layer) // 2), q.device)  # the window, in pairs
        return causal_attention(q, k, v, first_key, self.config.dropout if self.training else 0.0)

    def hidden(self, tokens: torch.Tensor, positions: torch.Tensor, attend: Attend) -> torch.Tensor:
        """The residual stream after the last LayerNorm, (B, T, C). positions: (T,) or (B, T). attend: in the trunk."""
        (B, T), C = tokens.shape, self.config.n_embd
        encoder, *trunk, decoder = self.blocks
        x = self.dropout(self.wte(tokens) + self.wpe(positions))
        x = nn.functional.pad(x, (0, 0, 0, 2 + T % 2))  # to whole pairs, and one more to predict
        x = x.view(B, -1, 2, C)  # (B, P + 1, 2, C)
        slots = torch.cat([x[:, :-1], self.summary.expand(B, x.size(1) - 1, 1, C)], dim=2)  # (B, P, 3, C)
        pairs = encoder(slots.flatten(0, 1), 0, attend_to_all)[:, -1].view(B, -1, C)
        y = torch.cat([self.start.expand(B, 1, C), pairs], dim=1)  # (B, P + 1, C): the i-th has seen i pairs
        for layer, block in enumerate(trunk, start=1):
            y = block(y, layer, attend)
        # Slot 0 predicts a pair's first token. It does not see slot 1, which holds that token and predicts the second.
        slots = torch.stack([y, x[:, :, 0]], dim=2)  # (B, P + 1, 2, C)
        y = decoder(slots.flatten(0, 1), len(trunk) + 1, attend_to_past).view(B, -1, C)
        return self.ln_f(y[:, 1 : T + 1])  # the very first token has nothing to be predicted from

    def flops_per_token(self, T: int) -> int:
        """As model.py counts: a pair has three slots in the encoder, one in the trunk and two in the decoder."""
        C, pairs, layers = self.config.n_embd, -(-T // 2), range(1, len(self.blocks) - 1)
        steps = pairs + 1  # positions of the trunk and the decoder, which begin with the start vector
        block = sum(m.weight.numel() for m in self.blocks[0].modules() if isinstance(m, nn.Linear))
        linear = (3 * pairs + len(layers) * steps + 2 * steps) * block / T + self.head.weight.numel()
        attention = 2 * C * (3 * 3 * pairs + 2 * 2 * steps) / T  # computed in full, masked or not
        for layer in layers:
            window = min(-(-self.config.window(layer) // 2), steps)
            visible = window * (steps - window) + window * (window + 1) / 2
            attention += 2 * C * visible / T
        return round(3 * 2 * (linear + attention))


def attend_to_all(_, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = False) -> torch.Tensor:
    """Attention among the few slots of a pair, (N, S, H, D)."""
    later = torch.ones(q.size(1), k.size(1), dtype=torch.bool, device=q.device).triu(1) & causal  # (queries, keys)
    scores = torch.einsum("nqhd,nkhd->nhqk", q, k).float().masked_fill(later, -torch.inf)
    return torch.einsum("nhqk,nkhd->nqhd", scores.softmax(-1).to(v.dtype), v)


attend_to_past = functools.partial(attend_to_all, causal=True)
