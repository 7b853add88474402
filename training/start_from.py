"""--start_from: the weights, shape and vocabulary of a run of ours, of a checkpoint, or of a published model."""

import dataclasses
from collections.abc import Collection

from checkpoints.checkpoint import load_run
from checkpoints.huggingface import load_hf, load_hf_tokenizer, model_directory
from corpus.sources import CORPORA
from corpus.tokenizer import GPT2_VOCAB_SIZE, Tokenizer
from model import GPTNeo
from training.config import ConfigError, TrainConfig
from variants import MODELS

SHAPE = ("architecture", "block_size", "n_layer", "n_head", "n_embd", "window_size", "copy_init")


def load_source(config: TrainConfig, given: Collection[str]) -> tuple[tuple[GPTNeo, Tokenizer], TrainConfig]:
    """((model, tokenizer) of config.start_from, the config with its shape); given: settings that it must not change.

    A smaller block_size than the model's stays: later positions are cut off."""
    name = config.start_from
    if name.startswith("hf:"):
        directory = model_directory(name.removeprefix("hf:"))
        model, tokenizer = load_hf(directory), load_hf_tokenizer(directory)
    else:
        model, tokenizer = load_run(name)
    shape = {key: value for key, value in vars(model.config).items() if key in SHAPE}
    shape["architecture"] = next(name for name, cls in MODELS.items() if type(model) is cls)
    shape |= dict(block_size=min(config.block_size, model.config.block_size), copy_init=0.0)
    if model.config.qkv_bias:
        shape |= dict(architecture="gpt2", window_size=shape["block_size"])
    config = with_shape(config, shape, given)
    wanted = {key: value for key, value in config.model_shape().items() if key not in ("block_size", "window_size")}
    if different := {key for key, value in wanted.items() if value != getattr(model.config, key)} - {"dropout"}:
        raise ConfigError(f"{name}: train.py has no architecture with its {', '.join(sorted(different))}")
    return (model, tokenizer), config


def with_shape(config: TrainConfig, shape: dict, given: Collection[str]) -> TrainConfig:
    """The config with this shape. ConfigError if it contradicts one of the settings `given`."""
    for key, value in shape.items():
        if key in given and getattr(config, key) != value:
            raise ConfigError(f"{key}={getattr(config, key)}: {config.start_from} has {key}={value}; leave --{key} out")
    return dataclasses.replace(config, **shape)


def copy_weights(model: GPTNeo, source: tuple[GPTNeo, Tokenizer], tokenizer: Tokenizer, config: TrainConfig) -> None:
    """ConfigError if the corpus, whose tokenizer is given, has another vocabulary."""
    if source[1].gpt2_ids != tokenizer.gpt2_ids:
        corpus = config.data if config.data in CORPORA else "--input FILE"
        whole = source[1].vocab_size == GPT2_VOCAB_SIZE
        vocabulary = f"--vocab_size {GPT2_VOCAB_SIZE}" if whole else f"--vocabulary_of {config.start_from}"
        command = f"python prepare.py {corpus} {vocabulary} --name NAME --data_dir {config.data_dir}"
        raise ConfigError(f"data={config.data} has another vocabulary than {config.start_from}; to make it fit: {command}")
    weights = source[0].state_dict()
    weights["wpe.weight"] = weights["wpe.weight"][: config.block_size]
    model.load_state_dict(weights)
