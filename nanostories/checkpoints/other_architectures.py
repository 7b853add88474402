"""
Causal language models of other architectures (Llama, Qwen, GPT-NeoX, …), run by Hugging Face's
transformers, for sampling and for likelihoods. GPT-Neo and GPT-2 are read into our own model
(huggingface.py).

# or a directory that transformers wrote
>>> model, tokenizer = load_other("SimpleStories/SimpleStories-1.25M")
"""

import copy
from collections.abc import Sequence
from types import SimpleNamespace

import torch
import torch.nn as nn

from nanostories.cli import UserError


class OtherModel(nn.Module):
    """The names that generation/ uses of model.py's GPTNeo."""

    attend = None

    def __init__(self, model: nn.Module):
        super().__init__()
        config = model.config.get_text_config()
        sizes = dict(
            n_embd=config.hidden_size,
            n_layer=config.num_hidden_layers,
            n_head=config.num_attention_heads,
        )
        self.config = SimpleNamespace(
            **sizes, block_size=config.max_position_embeddings, vocab_size=config.vocab_size
        )
        self.model, self.wte = model, model.get_input_embeddings()

    def num_params(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())  # shared ones once

    def hidden(self, tokens: torch.Tensor, positions: torch.Tensor, attend: None) -> torch.Tensor:
        """(B, T) -> logits (B, T, V): some architectures scale or cap them after the head, so
        head() has no work."""
        return self.model(tokens).logits

    def head(self, logits: torch.Tensor) -> torch.Tensor:
        return logits.float()


class OtherDecoder:
    """As in nanostories/generation/decoders.py, with transformers' cache for each slot; one slot
    after the other."""

    def __init__(self, model: OtherModel):
        self.model, self.caches = model, {}

    def read(self, slot: int, prompt: list[int], cache=None) -> torch.Tensor:
        tokens = torch.tensor([prompt], device=self.model.wte.weight.device)
        output = self.model.model(tokens, past_key_values=cache, use_cache=True)
        self.caches[slot] = output.past_key_values
        return output.logits[0, -1].float()

    def copy(self, sources: list[int], targets: list[int]) -> None:
        self.caches |= zip(targets, [copy.deepcopy(self.caches[source]) for source in sources])

    def step(self, slots: list[int], tokens: list[int]) -> torch.Tensor:
        return torch.stack(
            [self.read(slot, [token], self.caches[slot]) for slot, token in zip(slots, tokens)]
        )


class OtherTokenizer:
    """The names that generation/ and grading/ use of nanostories/corpus/tokenizer.py's
    Tokenizer."""

    def __init__(self, tokenizer):
        self.tokenizer, self.end_of_text, self.vocab_size = (
            tokenizer,
            tokenizer.eos_token_id,
            len(tokenizer),
        )
        ids = tokenizer("").input_ids
        self.prefix = ids[:1] if ids[:1] == [tokenizer.bos_token_id] else []
        self.adds_space = tokenizer.tokenize("a")[0].startswith(
            "▁"
        )  # SentencePiece's put one before each text

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(
            text.removeprefix(" " * self.adds_space), add_special_tokens=False
        )

    def decode(self, ids: Sequence[int]) -> str:
        """Decoded after another token, so that a space in front is kept."""
        before = self.encode("a")
        texts = [
            self.tokenizer.decode(x, clean_up_tokenization_spaces=False)
            for x in (before, [*before, *ids])
        ]
        return texts[1].removeprefix(texts[0])

    def decode_bytes(self, ids: Sequence[int]) -> bytes:
        return self.decode(ids).encode()


def load_other(path_or_id: str) -> tuple[OtherModel, OtherTokenizer]:
    """ValueError if transformers is missing, or cannot load it."""
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer, logging
    except ImportError:
        raise UserError(
            f"{path_or_id}: neither GPT-Neo nor GPT-2; to run it: pip install transformers"
        ) from None
    try:
        logging.disable_progress_bar()
        model = OtherModel(AutoModelForCausalLM.from_pretrained(path_or_id, dtype=torch.float32))
        return model.eval(), OtherTokenizer(AutoTokenizer.from_pretrained(path_or_id))
    except (
        OSError,
        ValueError,
        AttributeError,
        ImportError,
    ) as error:  # of a config with other names, of a package
        raise UserError(
            f"{path_or_id}: transformers cannot load it: {str(error).partition(chr(10))[0]}"
        ) from None
