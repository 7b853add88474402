"""
The runs of a list: how long each trains, and how many FLOPs that takes, counted.

>>> runs = EXPERIMENTS["heads"].small
>>> plan_runs(runs, SCALES["small"], 1, Path("out/heads"), "tinystories", corpora)
"""

import functools
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from model import GPTNeoConfig
from nanostories.files import ROOT
from nanostories.sweeps.lists import Runs, Scale
from nanostories.training.config import SHAPE, TrainConfig, read_config
from nanostories.training.optimizers import NEWTON_SCHULZ_STEPS, make_optimizers
from nanostories.variants import MODELS
from nanostories.variants.contrastive import n_shuffled

# Steps, fewest and most: an evaluation takes time, and a kill loses the steps since.
EVAL_INTERVALS = (50, 250)
MAX_EPOCHS = 4  # within a budget; more would measure repetition


@dataclass(frozen=True, eq=False)
class PlannedRun:
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
) -> list[PlannedRun]:
    """The runs in order. out: where they go; data: the corpus of variants that do not name one;
    corpora: {name: (its directory, ids, training tokens)}."""
    config_file = ROOT / "configs" / scale.config
    runs = []
    for seed, budget, variant in itertools.product(
        range(n_seeds), listed.budgets or [None], listed.variants
    ):
        settings = dict(listed.variants[variant])
        corpus, vocab_size, corpus_tokens = corpora[settings.pop("data", data)]
        settings |= {
            "name": name_of(variant, seed, budget),
            "seed": seed,
            "out_dir": str(out),
            "data": corpus.name,
            "data_dir": str(corpus.parent),
        }
        if settings.get("start_from") in listed.variants:
            settings["start_from"] = str(out / f"{settings['start_from']}_{seed}")
        config = TrainConfig(**read_config(config_file) | settings)
        parameters, flops_per_step = count_parameters_and_flops(config, vocab_size)
        steps = listed.steps
        if budget:
            steps = round(budget / flops_per_step)
        schedule_settings = schedule(max(1, steps), config.n_embd, scale)
        settings |= schedule_settings
        if config.start_from:  # the weights bring their shape
            settings = {name: value for name, value in settings.items() if name not in SHAPE}
        args = [str(config_file), *(f"--{name}={value}" for name, value in settings.items())]
        config = replace(config, **schedule_settings)
        flops = config.max_steps * flops_per_step
        run = PlannedRun(variant, args, config, parameters, flops, budget)
        if not budget or fits(run, scale, corpus_tokens):
            runs.append(run)
    return runs


def name_of(variant: str, seed: int, budget: float | None) -> str:
    if not budget:
        return f"{variant}_{seed}"
    flops = f"{budget:.1e}".replace("+", "")
    return f"{flops}-{variant}_{seed}"


def schedule(steps: int, width: int, scale: Scale) -> dict:
    fewest, most = EVAL_INTERVALS
    settings = {
        "max_steps": steps,
        "warmup_steps": round(scale.warmup * steps),
        "eval_interval": min(most, max(fewest, math.ceil(steps / 4))),
    }
    if scale.highest_learning_rate:
        settings["learning_rate"] = min(scale.highest_learning_rate, 1 / width)
    return settings


def fits(run: PlannedRun, scale: Scale, corpus_tokens: int) -> bool:
    """Whether a budget gives a run of this size enough steps, and not too many epochs."""
    few_epochs = run.tokens <= MAX_EPOCHS * corpus_tokens
    return few_epochs and run.config.max_steps >= scale.min_steps


def count_parameters_and_flops(config: TrainConfig, vocab_size: int) -> tuple[int, int]:
    """Parameters; FLOPs of one training step: of the model, the objective and Muon."""
    shape = GPTNeoConfig(vocab_size=vocab_size, **config.model_shape())
    model = model_without_weights(config.architecture, shape)
    n_windows = config.windows_per_step
    if config.contrast != "none":
        n_windows += config.grad_accum_steps * n_shuffled(config.batch_size)
    flops = n_windows * config.block_size * model.flops_per_token(config.block_size)
    if config.optimizer == "muon":
        muon, _ = make_optimizers(model, config)
        for group in muon.param_groups:
            flops += sum(flops_of_orthogonalizing(matrix.shape) for matrix in group["params"])
    return model.num_params(), flops


@functools.cache  # many runs share few shapes
def model_without_weights(architecture: str, shape: GPTNeoConfig) -> torch.nn.Module:
    with torch.device("meta"):
        return MODELS[architecture](shape)


def flops_of_orthogonalizing(shape: tuple[int, int]) -> int:
    """FLOPs of the matrix products, which in steps of few tokens exceed the model's."""
    short, long = sorted(shape)
    return NEWTON_SCHULZ_STEPS * (4 * short**2 * long + 2 * short**3)
