"""What a run starts from: its own last checkpoint (--resume), or the weights, shape and vocabulary
of another run, a checkpoint, or a published model (--start_from)."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from nanostories.checkpoints.checkpoint import load_checkpoint
from nanostories.checkpoints.huggingface import load_model
from nanostories.cli import UserError
from nanostories.training.config import SHAPE, TrainConfig
from nanostories.variants import MODELS

# Settings that may change when a run is resumed; any other would make it another run. A lower
# learning_rate and another dtype are the remedies for a loss that became infinite, smaller batches
# for too little memory.
RESUME_MAY_CHANGE = set(
    "name out_dir data data_dir max_steps epochs max_minutes learning_rate dtype batch_size"
    " grad_accum_steps log_interval eval_interval keep_checkpoints device compile"
    " cuda_graphs".split()
)


def load_resumable(run: Path, config: TrainConfig) -> tuple[dict, TrainConfig]:
    """The run's last checkpoint, and the config, with the shape that start_from gave the run.
    UserError if the config asks for another run."""
    path = run / "ckpt.pt"
    checkpoint = load_checkpoint(path)
    trained = TrainConfig(**checkpoint["train_config"])
    if config.start_from:
        config = with_shape(config, vars(trained))
    # Batches may be smaller or larger, but not what a step reads in all
    for name in ["windows_per_step", *vars(config)]:
        before = getattr(trained, name)
        now = getattr(config, name)
        if now != before and name not in RESUME_MAY_CHANGE:
            shown = name.replace("windows_per_step", "batch_size * grad_accum_steps")
            problem = f"trained with {shown}={before!r}"
            raise UserError(f"{path}: {problem}; it cannot be resumed with {shown}={now!r}")
    minutes = checkpoint["seconds"] / 60
    if config.max_minutes != trained.max_minutes and 0 < config.max_minutes <= minutes:
        problem = f"was trained for {minutes:.1f} minutes, which --max_minutes counts, too"
        raise UserError(f"{path}: {problem}; set it higher")
    return checkpoint, config


def load_source(config: TrainConfig) -> tuple[dict, TrainConfig]:
    """The weights and the vocabulary of what config.start_from names, as in a checkpoint, and the
    config with that shape."""
    run = Path(config.out_dir, config.name).resolve()
    if Path(config.start_from).resolve().is_relative_to(run):
        problem = "the new run would take its place"
        raise UserError(f"start_from={config.start_from}: {problem}; give it another --name")
    model, tokenizer = load_model(config.start_from)
    is_gpt2 = model.config.qkv_bias
    if model.config.scale_attention != is_gpt2:
        raise UserError(f"{config.start_from}: GPT-2 whose attention is not scaled")
    architecture = "gpt2" if is_gpt2 else "gptneo"
    if type(model) is MODELS["compressor"]:
        architecture = "compressor"
    config = with_shape(config, vars(model.config) | {"architecture": architecture})
    weights = model.state_dict()
    weights["wpe.weight"] = weights["wpe.weight"][: config.block_size]
    return {"model": weights, "vocabulary": tokenizer.vocabulary}, config


def with_shape(config: TrainConfig, shape: Mapping) -> TrainConfig:
    """The config with the shape of its source. A smaller block_size stays: later positions are cut
    off."""
    settings = {name: shape[name] for name in SHAPE}
    block_size = min(config.block_size, shape["block_size"])
    return replace(config, **settings, block_size=block_size)
