"""--start_from: the weights, shape and vocabulary of a run of ours, of a checkpoint, or of a published model."""

from collections.abc import Mapping
from dataclasses import replace

from checkpoints.huggingface import load_model
from corpus.tokenizer import Tokenizer
from model import GPTNeo
from training.config import SHAPE, ConfigError, TrainConfig
from variants import MODELS


def load_source(config: TrainConfig) -> tuple[tuple[GPTNeo, Tokenizer], TrainConfig]:
    """((model, tokenizer) of config.start_from, the config with its shape)."""
    model, tokenizer = load_model(config.start_from)
    architecture = next(name for name, cls in MODELS.items() if type(model) is cls)
    if type(model) is GPTNeo and model.config.qkv_bias:
        architecture = "gpt2"
    if model.config.scale_attention != model.config.qkv_bias:
        raise ConfigError(f"{config.start_from}: train.py has no architecture with biases and without scaled attention")
    return (model, tokenizer), with_shape(config, vars(model.config) | dict(architecture=architecture))


def with_shape(config: TrainConfig, shape: Mapping) -> TrainConfig:
    """The config with the shape of its source. A smaller block_size stays: later positions are cut off."""
    block_size = min(config.block_size, shape["block_size"])
    return replace(config, **{name: shape[name] for name in SHAPE}, block_size=block_size, copy_init=0.0)


def copy_weights(model: GPTNeo, source: tuple[GPTNeo, Tokenizer], tokenizer: Tokenizer, config: TrainConfig) -> None:
    """ConfigError if the corpus, whose tokenizer is given, has another vocabulary."""
    if source[1].vocabulary != tokenizer.vocabulary:
        remedy = f"prepare it under another name with --vocabulary_of {config.start_from}"
        raise ConfigError(f"data={config.data} has another vocabulary than {config.start_from}; {remedy}")
    weights = source[0].state_dict()
    weights["wpe.weight"] = weights["wpe.weight"][: config.block_size]
    model.load_state_dict(weights)
