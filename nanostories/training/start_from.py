"""--start_from: the weights, shape and vocabulary of a run of ours, of a checkpoint, or of a
published model."""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from model import GPTNeo
from nanostories.checkpoints.huggingface import load_model
from nanostories.cli import UserError
from nanostories.corpus.tokenizer import Tokenizer
from nanostories.training.config import SHAPE, TrainConfig
from nanostories.variants import MODELS


class Source(NamedTuple):
    """Where the weights of a run come from."""

    model: GPTNeo
    tokenizer: Tokenizer


def load_source(config: TrainConfig) -> tuple[Source, TrainConfig]:
    """What config.start_from names, and the config with that shape."""
    model, tokenizer = load_model(config.start_from)
    is_gpt2 = model.config.qkv_bias
    if model.config.scale_attention != is_gpt2:
        raise UserError(f"{config.start_from}: GPT-2 whose attention is not scaled")
    architecture = "gpt2" if is_gpt2 else "gptneo"
    if type(model) is MODELS["compressor"]:
        architecture = "compressor"
    shape = vars(model.config) | {"architecture": architecture}
    return Source(model, tokenizer), with_shape(config, shape)


def with_shape(config: TrainConfig, shape: Mapping) -> TrainConfig:
    """The config with the shape of its source. A smaller block_size stays: later positions are cut
    off."""
    settings = {name: shape[name] for name in SHAPE}
    block_size = min(config.block_size, shape["block_size"])
    return replace(config, **settings, block_size=block_size, copy_init=0.0, bigram_init=0.0)


def copy_weights(source: GPTNeo, model: GPTNeo) -> None:
    weights = source.state_dict()
    weights["wpe.weight"] = weights["wpe.weight"][: model.config.block_size]
    model.load_state_dict(weights)
