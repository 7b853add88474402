"""
GPT-Neo, as in TinyStories: the whole model in one file.

Pre-LayerNorm transformer with learned positions. Odd layers see only the last 256 tokens, attention
logits are not scaled by 1/sqrt(d), q, k and v have no bias, and the head is tied to the embedding.
The reference is transformers.GPTNeoForCausalLM; tests/test_model.py compares this file with it.
GPT-2 is the same model with the scale, the bias and no window. Hugging Face weights of both are
read and written by nanostories/checkpoints/huggingface.py.

# the published 8M; configs/ts_*.py have all sizes
>>> model = GPTNeo(GPTNeoConfig(n_embd=256, n_layer=8, n_head=16))
>>> logits, loss = model(tokens, targets)
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn as nn

from nanostories.cli import UserError
from nanostories.kernels.attention import causal_attention, visibility
from nanostories.kernels.cross_entropy import head_loss
from nanostories.kernels.embedding import Embedding
from nanostories.kernels.gelu import gelu


@dataclass(frozen=True)
class GPTNeoConfig:
    vocab_size: int = 10_000
    block_size: int = 512  # longest sequence, in tokens
    n_layer: int = 8
    n_head: int = 16
    n_embd: int = 256
    window_size: int = 256  # how far back the odd ("local") layers see, the current token included
    dropout: float = 0.0  # on the embedding, the attention weights and both residual branches
    # GPT-2 is this model with both of these, and a window as wide as the block
    scale_attention: bool = False  # attention logits times 1/sqrt(d)
    qkv_bias: bool = False

    def __post_init__(self):
        if self.n_embd % self.n_head:
            raise UserError(f"n_embd ({self.n_embd}) must be a multiple of n_head ({self.n_head})")

    def window(self, layer: int) -> int:
        """How far back `layer` sees: local and global attention alternate, global first."""
        return self.window_size if layer % 2 else self.block_size


# Attention as an argument: (layer, q, k, v) -> output, all (B, T, H, D). Training, generation with
# a KV cache, and code that reads attention weights each pass their own; the rest of the model is
# the same for all of them.
Attend = Callable[..., torch.Tensor]


class Block(nn.Module):
    def __init__(self, config: GPTNeoConfig):
        super().__init__()
        self.n_head = config.n_head
        self.scale = (config.n_embd // config.n_head) ** -0.5 if config.scale_attention else None
        self.ln_1 = nn.LayerNorm(config.n_embd)
        self.qkv = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.qkv_bias)
        self.attention_out = nn.Linear(config.n_embd, config.n_embd)
        self.ln_2 = nn.LayerNorm(config.n_embd)
        self.mlp_in = nn.Linear(config.n_embd, 4 * config.n_embd)
        self.mlp_out = nn.Linear(4 * config.n_embd, config.n_embd)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x, layer, attend: Attend):
        x = self.add_attention(x, layer, attend)
        return self.add_mlp(x)

    def add_attention(self, x, layer, attend: Attend):
        B, T, C = x.shape
        qkv = self.qkv(self.ln_1(x)).view(B, T, 3, self.n_head, C // self.n_head)
        q, k, v = qkv.unbind(2)  # (B, T, H, D) each
        if self.scale:  # applied to q, so that no attention function needs to know about it
            q = q * self.scale
        y = attend(layer, q, k, v).flatten(2)  # (B, T, H, D) -> (B, T, C)
        return x + self.dropout(self.attention_out(y))

    def add_mlp(self, x):
        return x + self.dropout(self.mlp_out(gelu(self.mlp_in(self.ln_2(x)))))


class GPTNeo(nn.Module):
    def __init__(self, config: GPTNeoConfig):
        super().__init__()
        self.config = config
        self.wte = Embedding(config.vocab_size, config.n_embd)
        self.wpe = Embedding(config.block_size, config.n_embd)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.ln_f = nn.LayerNorm(config.n_embd)
        self.head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.head.weight = self.wte.weight
        self.apply(self._init_weights)

    @staticmethod
    def _init_weights(module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    @torch.no_grad()
    def init_copying(self, gain: float):
        """Start every head as a copier: whatever token it attends to becomes likelier as the next
        token.

        The product of a layer's value and output matrices becomes `gain` times the identity (as
        seen if all heads attend to the same token); since the output head is tied to the embedding,
        tokens that are attended to are predicted. From a random start a small model takes millions
        of tokens to learn to repeat its hero's name. Not in the paper.
        """
        C = self.config.n_embd
        for block in self.blocks:
            values = nn.init.orthogonal_(torch.empty(C, C), gain=gain**0.5)
            block.qkv.weight[2 * C :] = values
            block.attention_out.weight.copy_(values.T)

    def forward(self, tokens, targets=None, story_starts=None):
        """tokens (B, T) int64 -> logits (B, T, vocab_size), None; with targets (B, T): None, loss.

        The loss is the mean, in nats, over targets that are not -100. With
        kernels.attention.story_starts (B, T), tokens attend only within their own story, and
        positions restart at 0 in each.
        """
        positions = torch.arange(tokens.size(1), device=tokens.device)
        if story_starts is not None:
            positions = positions - story_starts
        x = self.hidden(tokens, positions, self.attention(story_starts))
        if targets is None:
            return self.head(x), None
        return None, head_loss(x.flatten(0, 1), self.head.weight, targets.flatten())

    def attention(self, story_starts=None) -> Attend:
        """The model's own attention, for one forward pass."""
        dropout = self.config.dropout if self.training else 0.0
        visible = {}  # by window and length: layers that have the same share it

        def attend(layer, q, k, v):
            window = self.config.window(layer)
            shape = (window, q.size(1))
            if shape not in visible:
                visible[shape] = visibility(q, window, story_starts)
            return causal_attention(q, k, v, visible[shape], dropout)

        return attend

    def hidden(self, tokens, positions, attend: Attend):
        """tokens (B, T), positions (T,) or (B, T) -> the residual stream after the last LayerNorm,
        (B, T, C)."""
        x = self.dropout(self.wte(tokens) + self.wpe(positions))
        for layer, block in enumerate(self.blocks):
            x = block(x, layer, attend)
        return self.ln_f(x)

    def num_params(self) -> int:
        """All parameters; the tied head counts once."""
        return sum(p.numel() for p in self.parameters())

    def flops_per_token(self, T: int) -> int:
        """Floating-point operations of the forward and backward pass, per token of a sequence of T.

        Counted, not estimated: each matrix product of m x k by k x n is 2mkn, the backward pass
        does two for each one of the forward pass, and attention counts the (query, key) pairs that
        the causal mask and the window allow (as if one story filled the sequence: with story_starts
        there are fewer).
        """
        config = self.config
        linear = sum(m.weight.numel() for m in self.modules() if isinstance(m, nn.Linear))
        attention = 0.0
        for layer in range(config.n_layer):
            window = min(config.window(layer), T)
            # (query, key) pairs that the mask allows
            pairs = window * (T - window) + window * (window + 1) / 2
            # q times k, and the weights times v
            attention += 2 * config.n_embd * pairs / T
        return round(3 * 2 * (linear + attention))
