"""
The compressor as one reproduction of the paper describes it: an encoder takes the tokens two at a
time and gives one vector for each pair. These are the source of a decoder, whose target is the
sequence, and which decodes the next two tokens.

    encoder   the two embeddings of a pair, joined, through a linear map; then blocks, causal over
              pairs
    decoder   blocks whose queries come from the tokens and whose keys and values come from the
              source: the two tokens of a pair are decoded from all pairs before it, the second one
              from the first one, too

So every token is predicted from all before it, as in model.py, and loss and bpb can be compared.
The blocks are GPT-2's, as all of that reproduction's are. It gives widths and batch sizes only; the
rest is decided so:

- n_layer counts all blocks: half are the encoder's (one fewer if odd), half the decoder's. Their
  parameters are those of a GPT-2 of the same shape; the linear map and the vectors around it add
  2 C² + 4 C.
- Pairs see earlier pairs in the encoder. The decoder has no self-attention: earlier tokens are in
  the source, and attention over all T tokens would take back the memory that pairs save.

>>> logits, loss = Compressor(GPTNeoConfig(n_embd=256, n_layer=8, n_head=16))(tokens, targets)
$ python train.py configs/ts_8m.py --architecture=compressor
"""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model import Attend, Block, GPTNeo, GPTNeoConfig, gelu_new


class DecoderBlock(Block):
    """A block whose queries come from the tokens, and whose keys and values come from a source."""

    def forward(self, x: Tensor, layer: int, attend: Attend, source: Tensor) -> Tensor:
        """x: (B, 2 P, C), two tokens for each position of the source. source: (B, P, C)."""
        B, P, C = source.shape
        q_weight, kv_weight = self.qkv.weight.split([C, 2 * C])
        q_bias, kv_bias = self.qkv.bias.split([C, 2 * C])
        q = F.linear(self.ln_1(x), q_weight, q_bias) * self.scale
        kv = F.linear(source, kv_weight, kv_bias)
        heads = (B, P, 2, self.n_head, -1)
        k, v = kv.view(heads).unbind(2)  # (B, P, H, D) each

        # The first tokens of all pairs, then the second: both see the source up to their position.
        outputs = [attend(layer, queries, k, v) for queries in q.view(heads).unbind(2)]
        y = torch.stack(outputs, dim=2).view_as(x)  # (B, 2 P, C)

        x = x + self.dropout(self.attention_out(y))
        hidden = gelu_new(self.mlp_in(self.ln_2(x)))
        return x + self.dropout(self.mlp_out(hidden))


class Compressor(GPTNeo):
    def __init__(self, config: GPTNeoConfig):
        config = replace(
            config,
            scale_attention=True,
            qkv_bias=True,
            window_size=config.block_size,
        )
        super().__init__(config)
        C = config.n_embd
        self.n_encoder = config.n_layer // 2
        for layer in range(self.n_encoder, config.n_layer):
            self.blocks[layer] = DecoderBlock(config)
        self.pair = nn.Linear(2 * C, C)
        self.start = nn.Parameter(0.02 * torch.randn(C))  # the source before the first pair
        self.ln_source = nn.LayerNorm(C)
        self.apply(self._init_weights)

    def hidden(self, tokens: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """The residual stream after the last LayerNorm, (B, T, C). positions: (T,) or (B, T)."""
        x = self.dropout(self.wte(tokens) + self.wpe(positions))
        B, T, C = x.shape

        # Encoder: from pairs to a source whose position i has seen the first i of them.
        # An odd last token has no pair yet.
        pairs = x[:, : T - T % 2].reshape(B, T // 2, 2 * C)
        start = self.start.expand(B, 1, C)
        source = torch.cat([start, self.pair(pairs)], dim=1)  # (B, P, C), P = T // 2 + 1
        for layer in range(self.n_encoder):
            source = self.blocks[layer](source, layer, attend)
        source = self.ln_source(source)

        # Decoder: from position i of the source, token 2 i - 1 predicts the first token of pair i,
        # and token 2 i the second. Zeros stand for token -1, and for the last one if T is even.
        x = F.pad(x, (0, 0, 1, 1 - T % 2))  # (B, 2 P, C)
        for layer in range(self.n_encoder, self.config.n_layer):
            x = self.blocks[layer](x, layer, attend, source)
        return self.ln_f(x[:, 1 : T + 1])  # without the padding

    def flops_per_token(self, T: int) -> int:
        """As model.py counts."""
        C = self.config.n_embd
        P = T // 2 + 1
        n_decoder = self.config.n_layer - self.n_encoder
        # A block has 12 C² weights. In the decoder two tokens at each of the P positions go through
        # them, but for the 2 C² of keys and values.
        blocks = (12 * self.n_encoder + 22 * n_decoder) * C * C * P
        pairs = self.pair.weight.numel() * (P - 1)
        visible = P * (P + 1) / 2  # (query, key) pairs that the causal mask allows
        attention = 2 * C * (self.n_encoder + 2 * n_decoder) * visible
        head = self.head.weight.numel() * T
        return round(3 * 2 * (blocks + pairs + attention + head) / T)
