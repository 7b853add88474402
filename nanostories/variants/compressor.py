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
import torch.nn as nn
import torch.nn.functional as F

from model import Attend, Block, GPTNeo, GPTNeoConfig, gelu_new


class DecoderBlock(Block):
    """A block that attends to a source, with two queries for each position of it."""

    def forward(
        self, x: torch.Tensor, layer: int, attend: Attend, source: torch.Tensor
    ) -> torch.Tensor:
        """x: (B, 2 P, C). source: (B, P, C); its position i is seen from 2 i on."""
        (B, P, C), heads = source.shape, (self.n_head, source.size(2) // self.n_head)
        weights, biases = self.qkv.weight.split([C, 2 * C]), self.qkv.bias.split([C, 2 * C])
        q = F.linear(self.ln_1(x), weights[0], biases[0]).view(B, P, 2, *heads) * self.scale
        k, v = (
            F.linear(source, weights[1], biases[1]).view(B, P, 2, *heads).unbind(2)
        )  # (B, P, H, D) each
        y = torch.stack([attend(layer, queries, k, v) for queries in q.unbind(2)], dim=2).view(
            B, 2 * P, C
        )
        x = x + self.dropout(self.attention_out(y))
        return x + self.dropout(self.mlp_out(gelu_new(self.mlp_in(self.ln_2(x)))))


class Compressor(GPTNeo):
    def __init__(self, config: GPTNeoConfig):
        super().__init__(
            replace(config, scale_attention=True, qkv_bias=True, window_size=config.block_size)
        )
        self.n_encoder = config.n_layer // 2
        for layer in range(self.n_encoder, config.n_layer):
            self.blocks[layer] = DecoderBlock(self.config)
        self.pair = nn.Linear(2 * config.n_embd, config.n_embd)
        self.start = nn.Parameter(
            0.02 * torch.randn(config.n_embd)
        )  # the source before the first pair
        self.ln_source = nn.LayerNorm(config.n_embd)
        self.apply(self._init_weights)

    def hidden(self, tokens: torch.Tensor, positions: torch.Tensor, attend: Attend) -> torch.Tensor:
        """The residual stream after the last LayerNorm, (B, T, C). positions: (T,) or (B, T)."""
        (B, T), C = tokens.shape, self.config.n_embd
        x = self.dropout(self.wte(tokens) + self.wpe(positions))
        pairs = self.pair(
            x[:, : T - T % 2].reshape(B, T // 2, 2 * C)
        )  # an odd last token has no pair yet
        source = torch.cat(
            [self.start.expand(B, 1, C), pairs], dim=1
        )  # (B, P, C): position i has seen i pairs
        for layer in range(self.n_encoder):
            source = self.blocks[layer](source, layer, attend)
        source = self.ln_source(source)
        # Pair i is decoded from tokens 2 i - 1, which predicts its first one, and 2 i, which
        # predicts its second one.
        x = F.pad(x, (0, 0, 1, 1 - T % 2))  # (B, 2 P, C)
        for layer in range(self.n_encoder, len(self.blocks)):
            x = self.blocks[layer](x, layer, attend, source)
        return self.ln_f(x[:, 1 : T + 1])  # the very first token has nothing to be predicted from

    def flops_per_token(self, T: int) -> int:
        """As model.py counts: a pair has one position in the encoder and the source, and two in the
        decoder."""
        C, P, n_decoder = self.config.n_embd, T // 2 + 1, len(self.blocks) - self.n_encoder
        block, keys_and_values = 12 * C * C, 2 * C * C  # weights of its matrices
        linear = T // 2 * self.pair.weight.numel() + self.n_encoder * P * block
        linear += n_decoder * (2 * P * (block - keys_and_values) + P * keys_and_values)
        attention = 2 * C * (self.n_encoder + 2 * n_decoder) * P * (P + 1) / 2
        return round(3 * 2 * ((linear + attention) / T + self.head.weight.numel()))
