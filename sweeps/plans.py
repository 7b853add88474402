"""
Which runs an experiment has: its variants, how long each trains, and what that costs in FLOPs.

>>> meta = load_meta(Path("data/sample"))
>>> plan_runs("grid", SMALL, 1, dict(data="sample", out_dir="out/grid"), meta)[0].flops
"""

import dataclasses
import functools
import itertools
import math
from dataclasses import dataclass, field
from pathlib import Path

import torch

from model import GPTNeoConfig
from training.config import TrainConfig, parse_command_line
from training.muon import Muon
from training.optimizers_and_schedule import make_optimizers
from variants.compressor import MODELS
from variants.contrastive import n_shuffled

ROOT = Path(__file__).parent.parent


def shape(name: str) -> dict:
    """The settings behind a name of the form width-layers-heads."""
    return dict(zip(("n_embd", "n_layer", "n_head"), map(int, name.split("-"))))


GRID = "128-8-4 128-12-4 256-8-2 256-8-4 256-8-8 256-12-4 512-8-4 512-12-4"  # as published
SHALLOW = "256-1-4 256-2-4 512-1-4 512-2-4"
# Every width and depth of the published tables, all with the 16 heads of the published models.
PUBLISHED_SHAPES = [
    f"{n_embd}-{n_layer}-16" for n_embd in (64, 128, 256, 512, 768, 1024, 2048) for n_layer in (1, 2, 4, 8)
]
SCALING = "16-2-4 32-2-4 64-2-4 64-8-4 128-2-8 128-8-8 256-4-16 256-12-16 512-2-32 512-12-32 1024-2-64 1024-12-64"
WIDTHS = (128, 256, 512)

# What each variant changes in the config of its scale. All runs of an experiment train for the same number of steps, so
# on the same number of tokens, with two exceptions: `flops_of` names the variant whose training FLOPs a run gets
# instead, and the runs of "scaling" are cut to budgets.
VARIANTS = {
    "grid": {name: shape(name) for name in f"{GRID} {SHALLOW}".split()},
    "dropout": {f"dropout-{p}": shape("128-8-4") | dict(dropout=p) for p in (0.0, 0.1, 0.2, 0.3)},
    "scaling": {name: shape(name) for name in SCALING.split()},
    "contrast": {
        "plain": {},
        "reciprocal": dict(flops_of="plain", contrast="reciprocal"),  # alpha is 5, as published
        "margin-0.1": dict(flops_of="plain", contrast="margin", contrast_margin=0.1),
        "margin-0.3": dict(flops_of="plain", contrast="margin", contrast_margin=0.3),
        "margin-1.0": dict(flops_of="plain", contrast="margin", contrast_margin=1.0),
        "margin-0.1-alpha-1": dict(flops_of="plain", contrast="margin", contrast_margin=0.1, contrast_alpha=1.0),
        "margin-0.1-alpha-0.2": dict(flops_of="plain", contrast="margin", contrast_margin=0.1, contrast_alpha=0.2),
    },
    "compressor": {f"plain-{w}": shape(f"{w}-8-16") for w in WIDTHS}
    | {f"compressor-{w}": shape(f"{w}-8-16") | dict(model="compressor") for w in WIDTHS}
    | {
        f"compressor-{w}-equal-flops": shape(f"{w}-8-16") | dict(model="compressor", flops_of=f"plain-{w}")
        for w in WIDTHS
    },
}


@dataclass(frozen=True)
class Scale:
    config: str  # in configs/
    steps: dict[str, int]  # of each experiment's runs
    seeds: dict[str, int]  # runs of each variant
    budgets: tuple[float, ...]  # of scaling, in training FLOPs
    least_steps: int  # of scaling; with fewer, the batch size matters more than the model size
    most_epochs: float  # of scaling; more would measure repetition
    warmup: float  # share of the steps
    learning_rate: float | None = None  # upper limit: wide models get 1 / width; None: the config's
    shapes: dict[str, list[str]] = field(default_factory=dict)  # of an experiment, in place of those of VARIANTS


SMALL = Scale(
    config="experiment.py",
    steps=dict(grid=160, dropout=2000, contrast=600, compressor=120),
    seeds=dict(grid=1, scaling=1, dropout=1, contrast=2, compressor=1),
    budgets=(1.5e12, 3e12, 6e12, 1.2e13, 2.4e13),
    least_steps=20,
    most_epochs=4,
    warmup=0.05,
    learning_rate=8e-3,
)
PUBLISHED = Scale(
    config="experiment_published.py",
    steps=dict(grid=720, dropout=2880, contrast=2880, compressor=720),  # of 655,360 tokens: 1 and 4 epochs
    seeds=dict(grid=1, scaling=1, dropout=3, contrast=3, compressor=1),
    budgets=(1e16, 3e16, 1e17, 3e17, 1e18),
    least_steps=60,
    most_epochs=4,
    warmup=0.0,  # as published
    shapes=dict(grid=PUBLISHED_SHAPES + GRID.split(), scaling=PUBLISHED_SHAPES),
)
PUBLISHED_META = dict(vocab_size=10_000, splits=dict(train=dict(tokens=470_000_000)))  # to plan without the data
GPU_FLOPS = 0.4 * 312e12  # per second: a guess for an A100, 40% of what it can do in bfloat16
EVAL_INTERVALS = (100, 250)  # steps, fewest and most: every 100 takes an eighth of the time; a kill loses up to 250


@dataclass(frozen=True)
class Run:
    variant: str
    args: list[str]  # of train.py
    config: TrainConfig
    parameters: int
    flops: int  # of the whole training
    budget: float | None = None  # FLOPs that it is cut to, in scaling

    @property
    def directory(self) -> Path:
        return Path(self.config.out_dir, self.config.name)

    @property
    def tokens(self) -> int:
        return self.config.max_steps * self.config.sequences_per_step * self.config.block_size


def count_parameters_and_flops(config: TrainConfig, vocab_size: int) -> tuple[int, int]:
    """Parameters; FLOPs of one training step: of the model, the objective and Muon."""
    shape = GPTNeoConfig(vocab_size=vocab_size, **config.model_shape())
    parameters, flops_per_token, flops_of_muon = count_model_and_muon(config.model, shape, config.optimizer)
    n_sequences = config.sequences_per_step
    if config.contrast != "none":
        n_sequences += config.grad_accum_steps * n_shuffled(config.batch_size, config.contrast_share)
    return parameters, n_sequences * config.block_size * flops_per_token + flops_of_muon


@functools.cache  # many runs share few shapes
def count_model_and_muon(model_class: str, shape: GPTNeoConfig, optimizer: str) -> tuple[int, int, int]:
    """Parameters; FLOPs of the model for a token, in training; and of a step of Muon, if that is the optimizer."""
    with torch.device("meta"):  # only shapes are needed
        model = MODELS[model_class](shape)
    optimizers = make_optimizers(model, TrainConfig(optimizer=optimizer))
    flops_of_muon = sum(o.flops_per_step() for o in optimizers if isinstance(o, Muon))
    return model.num_params(), model.flops_per_token(shape.block_size), flops_of_muon


def make_run(
    name: str, variant: str, settings: dict, scale: Scale, vocab_size: int, steps: int, flops: float | None
) -> Run:
    """flops: of the whole training; where given, they replace `steps`."""
    args = [str(ROOT / "configs" / scale.config), f"--name={name}", *flags(settings)]
    config = parse_command_line(args)[0]
    parameters, flops_per_step = count_parameters_and_flops(config, vocab_size)
    steps = max(1, round(flops / flops_per_step)) if flops else steps
    fewest, most = EVAL_INTERVALS
    interval = min(most, max(fewest, math.ceil(steps / 4)))
    args += flags(dict(max_steps=steps, warmup_steps=round(scale.warmup * steps), eval_interval=interval))
    return Run(variant, args, parse_command_line(args)[0], parameters, steps * flops_per_step)


def flags(settings: dict) -> list[str]:
    return [f"--{key}={value}" for key, value in settings.items()]


def plan_runs(experiment: str, scale: Scale, n_seeds: int, common: dict, meta: dict) -> list[Run]:
    """The runs in order. common: settings of all of them, such as data and out_dir; meta: the corpus' meta.json."""
    runs, n_tokens = [], meta["splits"]["train"]["tokens"]
    budgets = scale.budgets if experiment == "scaling" else [None]
    variants = {name: shape(name) for name in scale.shapes.get(experiment, [])} or VARIANTS[experiment]
    for seed, budget in itertools.product(range(n_seeds), budgets):
        flops_of = {}
        for variant, settings in variants.items():
            settings = settings | common | dict(seed=seed)
            if scale.learning_rate:  # what suits width 64 is four times too high for 512 (LOG.md)
                settings["learning_rate"] = min(scale.learning_rate, 1 / settings.get("n_embd", 64))
            flops = budget or flops_of.get(settings.pop("flops_of", None))
            name = f"{budget:.1e}-{variant}_{seed}".replace("+", "") if budget else f"{variant}_{seed}"
            run = make_run(name, variant, settings, scale, meta["vocab_size"], scale.steps.get(experiment, 0), flops)
            run, flops_of[variant] = dataclasses.replace(run, budget=budget), run.flops
            fits = run.config.max_steps >= scale.least_steps and run.tokens <= scale.most_epochs * n_tokens
            if fits or not budget:
                runs.append(run)
    return runs
