"""
Causal language models of other architectures (Llama, Qwen, GPT-NeoX, …), run by Hugging Face's
transformers, for sampling and for likelihoods. GPT-Neo and GPT-2 are read into our own model
(huggingface.py).

>>> model, tokenizer = load_other("SimpleStories/SimpleStories-1.25M")   # or a directory
"""

import copy
from collections.abc import Sequence
from types import SimpleNamespace

import torch
from torch import Tensor, nn

from model import GPTNeo
from nanostories.checkpoints.checkpoint import UNREADABLE
from nanostories.cli import UserError


class OtherModel(nn.Module):
    """A model of transformers, with the names that generation/ uses of model.py's GPTNeo."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model
        self.wte = model.get_input_embeddings()
        config = model.config.get_text_config()
        self.config = SimpleNamespace(
            block_size=config.max_position_embeddings,
            n_layer=config.num_hidden_layers,
            n_head=config.num_attention_heads,
            n_embd=config.hidden_size,
        )

    def attention(self) -> None:
        """Its attention is its own, and no argument of hidden()."""

    num_params = GPTNeo.num_params

    def hidden(self, tokens: Tensor, positions: Tensor, attend: None) -> Tensor:
        """Tokens (B, T) -> logits (B, T, V). Some architectures scale or cap them after the head,
        so the head's work is done here."""
        return self.model(tokens).logits

    def head(self, logits: Tensor) -> Tensor:
        return logits.float()


class OtherDecoder:
    """The interface of nanostories/generation/decoders.py. Each slot has a cache of transformers
    of its own, and is read by itself."""

    def __init__(self, model: OtherModel):
        self.model = model
        self.caches = {}  # by slot

    def read(self, slot: int, tokens: list[int], cache=None) -> Tensor:
        """Tokens that follow those in the cache -> logits (V,) of the next one."""
        inputs = torch.tensor([tokens], device=self.model.wte.weight.device)
        output = self.model.model(inputs, past_key_values=cache, use_cache=True)
        self.caches[slot] = output.past_key_values
        return output.logits[0, -1].float()

    def copy(self, sources: list[int], targets: list[int]) -> None:
        # All are copied before any is replaced: a slot may be among sources and targets.
        copies = [copy.deepcopy(self.caches[source]) for source in sources]
        self.caches.update(zip(targets, copies))

    def step(self, slots: list[int], tokens: list[int]) -> Tensor:
        """One token for each slot -> logits (slots, V) of the next ones."""
        pairs = zip(slots, tokens)
        logits = [self.read(slot, [token], self.caches[slot]) for slot, token in pairs]
        return torch.stack(logits)


class OtherTokenizer:
    """A tokenizer of transformers, with the names that generation/ and grading/ use of
    nanostories/corpus/tokenizer.py's Tokenizer."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.end_of_text = tokenizer.eos_token_id
        # The token that begins every text, for the models that have one
        self.prefix = [i for i in tokenizer("").input_ids[:1] if i == tokenizer.bos_token_id]
        # SentencePiece puts a space before each text.
        self.adds_space = tokenizer.tokenize("a")[0].startswith("▁")

    def encode(self, text: str) -> list[int]:
        if self.adds_space:
            text = text.removeprefix(" ")
        return self.tokenizer.encode(text, add_special_tokens=False)

    def decode_bytes(self, ids: Sequence[int]) -> bytes:
        return self.decode(ids).encode()

    def decode(self, ids: Sequence[int]) -> str:
        # Decoded after another token, so that a space in front is kept.
        before = self.encode("a")
        text = self.tokenizer.decode([*before, *ids])
        return text.removeprefix(self.tokenizer.decode(before))


def load_other(path_or_id: str) -> tuple[OtherModel, OtherTokenizer]:
    """The model in float32, in eval mode. UserError if transformers is missing, or cannot load
    it."""
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer, logging
    except ImportError:
        raise UserError(
            f"{path_or_id}: neither GPT-Neo nor GPT-2; to run it: pip install transformers"
        ) from None
    logging.disable_progress_bar()
    try:
        model = AutoModelForCausalLM.from_pretrained(path_or_id, dtype=torch.float32)
        # Without cleaning up, which would decode "Oh ." as "Oh."
        tokenizer = AutoTokenizer.from_pretrained(path_or_id, clean_up_tokenization_spaces=False)
        if tokenizer.eos_token_id is None:
            raise ValueError("its tokenizer has no token that ends a text (eos_token)")
        return OtherModel(model).eval(), OtherTokenizer(tokenizer)
    except (*UNREADABLE, AttributeError, ImportError) as error:
        # The last two: its config lacks a size, such as a context, or it needs another package.
        reason = str(error).partition("\n")[0]
        raise UserError(f"{path_or_id}: transformers cannot load it: {reason}") from None
