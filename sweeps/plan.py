"""
The runs of an experiment: how long each trains, and what that costs in FLOPs, counted.

>>> plan_runs(SCALES["small"].lists["grid"], SCALES["small"], 1, dict(data="sample"), load_meta(Path("data/sample")))
"""

import functools
import itertools
import math
from dataclasses import dataclass
from pathlib import Path

import torch

from model import GPTNeoConfig
from training.config import TrainConfig, parse_command_line
from training.optimizers import Muon, make_optimizers
from variants import MODELS
from variants.contrastive import n_shuffled

ROOT = Path(__file__).parent.parent
EVAL_INTERVALS = (100, 250)  # steps, fewest and most: every 100 takes an eighth of the time; a kill loses up to 250


@dataclass(frozen=True, eq=False)
class Run:
    variant: str
    args: list[str]  # of train.py
    config: TrainConfig
    parameters: int
    flops: int  # of the whole training
    budget: float | None  # FLOPs that the training is cut to

    @property
    def directory(self) -> Path:
        return Path(self.config.out_dir, self.config.name)

    @property
    def tokens(self) -> int:
        return self.config.max_steps * self.config.tokens_per_step


def plan_runs(experiment, scale, n_seeds: int, common: dict, meta: dict) -> list[Run]:
    """The runs in order. experiment, scale: those of experiments.py; common: settings of all runs, such as data and
    out_dir; meta: the corpus' meta.json."""
    runs, n_tokens = [], meta["splits"]["train"]["tokens"]
    for seed, budget in itertools.product(range(n_seeds), experiment.budgets or [None]):
        flops_of = {}
        for variant, settings in experiment.variants.items():
            settings = settings | common | dict(seed=seed)
            flops = budget or flops_of.get(settings.pop("flops_of", None))
            name = f"{budget:.1e}-{variant}_{seed}".replace("+", "") if budget else f"{variant}_{seed}"
            if scale.learning_rate:
                settings["learning_rate"] = min(scale.learning_rate, 1 / settings.get("n_embd", 64))
            args = [str(ROOT / "configs" / scale.config), *flags(dict(name=name) | settings)]
            parameters, flops_per_step = count_parameters_and_flops(parse_command_line(args)[0], meta["vocab_size"])
            steps = max(1, round(flops / flops_per_step)) if flops else experiment.steps
            fewest, most = EVAL_INTERVALS
            schedule = dict(max_steps=steps, warmup_steps=round(scale.warmup * steps))
            args += flags(schedule | dict(eval_interval=min(most, max(fewest, math.ceil(steps / 4)))))
            run = Run(variant, args, parse_command_line(args)[0], parameters, steps * flops_per_step, budget)
            flops_of[variant] = run.flops
            if not budget or steps >= scale.fewest_steps and run.tokens <= scale.most_epochs * n_tokens:
                runs.append(run)
    return runs


def flags(settings: dict) -> list[str]:
    return [f"--{key}={value}" for key, value in settings.items()]


def count_parameters_and_flops(config: TrainConfig, vocab_size: int) -> tuple[int, int]:
    """Parameters; FLOPs of one training step: of the model, the objective and Muon."""
    shape = GPTNeoConfig(vocab_size=vocab_size, **config.model_shape())
    parameters, flops_per_token, flops_of_muon = count_model_and_muon(config.architecture, shape, config.optimizer)
    n_sequences = config.sequences_per_step
    if config.contrast != "none":
        n_sequences += config.grad_accum_steps * n_shuffled(config.contrast, config.batch_size)
    return parameters, n_sequences * config.block_size * flops_per_token + flops_of_muon


@functools.cache  # many runs share few shapes
def count_model_and_muon(architecture: str, shape: GPTNeoConfig, optimizer: str) -> tuple[int, int, int]:
    """Parameters; FLOPs of the model for a token, in training; and of a step of Muon, if that is the optimizer."""
    with torch.device("meta"):  # only shapes are needed
        model = MODELS[architecture](shape)
    optimizers = make_optimizers(model, TrainConfig(optimizer=optimizer))
    flops_of_muon = sum(o.flops_per_step() for o in optimizers if isinstance(o, Muon))
    return model.num_params(), model.flops_per_token(shape.block_size), flops_of_muon
