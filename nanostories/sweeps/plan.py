"""
The runs of a list: how long each trains, and how many FLOPs that takes, counted.

>>> plan_runs(EXPERIMENTS["heads"].small, SCALES["small"], 1, Path("out/heads"), corpora)
"""

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from model import GPTNeoConfig
from nanostories.sweeps.lists import Runs, Scale
from nanostories.training.config import SHAPE, TrainConfig, parse_command_line
from nanostories.training.optimizers import NEWTON_SCHULZ_STEPS, make_optimizers
from nanostories.variants import MODELS
from nanostories.variants.contrastive import n_shuffled

ROOT = Path(__file__).parents[2]
# Steps, fewest and most: an evaluation takes time, and a kill loses the steps since
EVAL_INTERVALS = (50, 250)


@dataclass(frozen=True, eq=False)
class Run:
    variant: str
    args: list[str]  # for train.py
    config: TrainConfig
    parameters: int
    flops: int  # for the whole training
    budget: float | None  # FLOPs that the training is cut to

    @property
    def directory(self) -> Path:
        return Path(self.config.out_dir, self.config.name)

    @property
    def tokens(self) -> int:
        return self.config.max_steps * self.config.tokens_per_step

    @property
    def data(self) -> Path:
        return Path(self.config.data_dir, self.config.data)


def plan_runs(
    listed: Runs, scale: Scale, n_seeds: int, out: Path, data: str, corpora: Mapping
) -> list[Run]:
    """The runs in order. out: where they go; data: the corpus of variants that do not name one;
    corpora: {name: (its directory, its meta.json)}."""
    runs = []
    budgets = listed.budgets or [None]
    for seed, budget, variant in itertools.product(range(n_seeds), budgets, listed.variants):
        settings = dict(listed.variants[variant], seed=seed, out_dir=str(out))
        corpus, meta = corpora[settings.pop("data", data)]
        settings |= dict(data=corpus.name, data_dir=str(corpus.parent))
        name = f"{variant}_{seed}"
        if budget:
            name = f"{budget:.1e}-{name}".replace("+", "")
        source = settings.pop("start_from", "")
        args = [str(ROOT / "configs" / scale.config), *flags(dict(name=name) | settings)]
        config = parse_command_line(args)[0]
        parameters, flops_per_step = count_parameters_and_flops(config, meta["vocab_size"])
        steps = max(1, listed.steps)  # 0 if nothing is trained
        if budget:
            steps = max(1, round(budget / flops_per_step))
        args += flags(schedule(steps, config.n_embd, scale))
        config = parse_command_line(args)[0]
        if source in listed.variants:
            source = str(out / f"{source}_{seed}")
        if source:
            config = replace(config, start_from=source)
            args = [*without_shape(args), f"--start_from={source}"]
        run = Run(variant, args, config, parameters, steps * flops_per_step, budget)
        if not budget or fits_budget(run, scale, meta):
            runs.append(run)
    return runs


def without_shape(args: Sequence[str]) -> list[str]:
    """The weights to start from bring it."""
    shape = tuple(f"--{key}=" for key in SHAPE)
    return [arg for arg in args if not arg.startswith(shape)]


def fits_budget(run: Run, scale: Scale, meta: Mapping) -> bool:
    most_tokens = scale.max_epochs * meta["splits"]["train"]["tokens"]
    return run.config.max_steps >= scale.min_steps and run.tokens <= most_tokens


def schedule(steps: int, width: int, scale: Scale) -> dict:
    fewest, most = EVAL_INTERVALS
    settings = {
        "max_steps": steps,
        "warmup_steps": round(scale.warmup * steps),
        "eval_interval": min(most, max(fewest, math.ceil(steps / 4))),
    }
    if scale.learning_rate:
        settings["learning_rate"] = min(scale.learning_rate, 1 / width)
    return settings


def flags(settings: dict) -> list[str]:
    return [f"--{key}={value}" for key, value in settings.items()]


def count_parameters_and_flops(config: TrainConfig, vocab_size: int) -> tuple[int, int]:
    """Parameters; FLOPs of one training step: of the model, the objective and Muon."""
    shape = GPTNeoConfig(vocab_size=vocab_size, **config.model_shape())
    parameters, flops_per_token, flops_of_muon = count_model_and_muon(
        config.architecture, shape, config.optimizer
    )
    n_sequences = config.sequences_per_step
    if config.contrast != "none":
        n_sequences += config.grad_accum_steps * n_shuffled(config.batch_size)
    return parameters, n_sequences * config.block_size * flops_per_token + flops_of_muon


@functools.cache  # many runs share few shapes
def count_model_and_muon(
    architecture: str, shape: GPTNeoConfig, optimizer: str
) -> tuple[int, int, int]:
    """Parameters; FLOPs of the model for a token, in training; and of a step of Muon, if that is
    the optimizer."""
    with torch.device("meta"):  # only shapes are needed
        model = MODELS[architecture](shape)
    flops_of_muon = 0
    if optimizer == "muon":
        muon, _ = make_optimizers(model, TrainConfig(optimizer="muon"))
        matrices = [matrix for group in muon.param_groups for matrix in group["params"]]
        flops_of_muon = sum(flops_of_orthogonalizing(matrix.shape) for matrix in matrices)
    return model.num_params(), model.flops_per_token(shape.block_size), flops_of_muon


def flops_of_orthogonalizing(shape: tuple[int, int]) -> int:
    """FLOPs of the matrix products, which in steps of few tokens exceed the model's."""
    short, long = sorted(shape)
    return NEWTON_SCHULZ_STEPS * (4 * short**2 * long + 2 * short**3)
