"""
The compressor as the IIIT reproduction (B in docs/reproduce.md) describes it: an encoder takes the
tokens two at a time and gives one vector for each pair. These are the source of a decoder, whose
target is the sequence, and which decodes the next two tokens.

    encoder   the two embeddings of a pair, joined, through a linear map; then blocks, causal over
              pairs
    decoder   blocks of attention to the tokens so far, attention to the source, and an MLP: the two
              tokens of a pair are decoded from all pairs before it, the second one from the first
              one, too

So every token is predicted from all before it, as in model.py, and loss and bpb can be compared.
The decoder is that of Vaswani et al. (2017), which "source" and "target" suggest. The blocks are
GPT-2's, as all of that reproduction's are. It gives widths and batch sizes only; the rest is
decided by us:

- n_layer counts all blocks: half are the encoder's (one fewer if odd), half the decoder's. A block
  of the decoder has 4 C² parameters more than one of GPT-2 of the same shape.
- The pairs that a token may see are those that are complete, itself included: else it would see
  what it predicts. In the encoder, too, pairs see earlier pairs only.
- The first source is a learned vector, before any pair is complete.
- Encoder and decoder share the embeddings of tokens and positions.

>>> logits, loss = Compressor(GPTNeoConfig(n_embd=256, n_layer=8, n_head=16))(tokens, targets)
$ python train.py configs/ts_8m.py --architecture=compressor
"""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model import Attend, Block, GPTNeo, GPTNeoConfig


class DecoderBlock(Block):
    """A block with attention to a source between its own attention and its MLP."""

    def __init__(self, config: GPTNeoConfig):
        super().__init__(config)
        C = config.n_embd
        self.ln_source = nn.LayerNorm(C)
        self.q_source = nn.Linear(C, C)
        self.kv_source = nn.Linear(C, 2 * C)
        self.source_out = nn.Linear(C, C)

    def forward(self, x: Tensor, layer: int, attend: Attend, source: Tensor) -> Tensor:
        """x: (B, T, C). source: (B, P, C), P = T // 2 + 1."""
        x = self.add_attention(x, layer, attend)
        B, T, C = x.shape
        P = source.size(1)
        q = self.q_source(self.ln_source(x)) * self.scale
        # At position i of the source, token 2 i - 1 predicts the first token of pair i, and token
        # 2 i the second. Zeros stand for token -1, and for the last one if T is even.
        q = F.pad(q, (0, 0, 1, 1 - T % 2))  # (B, 2 P, C)
        heads = (B, P, 2, self.n_head, -1)
        k, v = self.kv_source(source).view(heads).unbind(2)  # (B, P, H, D) each
        # The first tokens of all pairs, then the second: both see the source up to their position.
        outputs = [attend(layer, queries, k, v) for queries in q.view(heads).unbind(2)]
        y = torch.stack(outputs, dim=2).view(B, 2 * P, C)[:, 1 : T + 1]  # without the padding
        x = x + self.dropout(self.source_out(y))
        return self.add_mlp(x)


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

        for layer in range(self.n_encoder, self.config.n_layer):
            x = self.blocks[layer](x, layer, attend, source)
        return self.ln_f(x)

    def flops_per_token(self, T: int) -> int:
        """As model.py counts."""
        C = self.config.n_embd
        P = T // 2 + 1
        n_decoder = self.config.n_layer - self.n_encoder
        # A block has 12 C² weights for each of its positions. Attention to the source has 2 C² more
        # for each token, and 2 C² for each position of the source.
        blocks = 12 * self.n_encoder * P + n_decoder * (14 * T + 2 * P)
        pairs = 2 * (P - 1)
        # (query, key) pairs that the causal mask allows
        of_pairs = P * (P + 1) / 2
        of_tokens = T * (T + 1) / 2
        attention = 2 * C * (self.n_encoder * of_pairs + n_decoder * (of_tokens + 2 * of_pairs))
        head = self.head.weight.numel() * T
        return round(3 * 2 * ((blocks + pairs) * C * C + attention + head) / T)
