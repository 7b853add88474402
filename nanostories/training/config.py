"""The settings of a run: from a config file of plain assignments and from the command line."""

import ast
import contextlib
import dataclasses
import difflib
import inspect
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from model import GPTNeoConfig
from nanostories.cli import UserError

ROOT = Path(__file__).parents[2]
# The settings of a recipe, unless the config file or the command line sets it otherwise. LOG.md has
# the measurements. The defaults of TrainConfig, which are the recipe adamw, are from
# https://huggingface.co/roneneldan/TinyStories-33M: block_size, batch_size, grad_accum_steps, a
# constant learning_rate, weight_decay and betas. The length (an author speaks of about 20 epochs in
# its discussion 8, which is 9.4 billion tokens) and grad_clip are ours.
RECIPES = {
    "adamw": {},
    "fast": dict(
        optimizer="muon",
        learning_rate=8e-3,
        beta2=0.99,
        align_stories=True,
        warmup_steps=10,
        warmdown=0.6,
    ),
}


@dataclass
class TrainConfig:
    name: str = "run"  # default: that of the config file
    out_dir: str = "out"  # the run is written to out_dir/name
    seed: int = 0  # for the initial weights, the data order and dropout
    recipe: Literal["adamw", "fast"] = (
        "adamw"  # fast: other defaults for the optimizer and align_stories (RECIPES)
    )
    start_from: str = (
        ""  # weights and shape: a run, a checkpoint, or hf:ID-or-directory of GPT-Neo or GPT-2
    )
    # data
    data: str = "tinystories"  # a directory under data_dir, made by prepare.py
    data_dir: str = "data"
    align_stories: bool = (
        False  # start every window with a story; otherwise the text is cut every block_size tokens
    )
    attend_within_story: bool = (
        False  # tokens attend only within their own story; positions restart at 0
    )
    short_window_steps: int = (
        0  # the first steps read four times as many windows of a quarter of block_size
    )
    loss_on: Literal["all", "story"] = (
        "all"  # story: a header is read, but its tokens are not targets
    )
    # model
    architecture: Literal["gptneo", "gpt2", "compressor"] = (
        "gptneo"  # nanostories/variants/compressor.py
    )
    block_size: int = 512  # context, in tokens
    n_layer: int = 8
    n_head: int = 16
    n_embd: int = 256
    window_size: int = 256  # reach of the local layers, in tokens; gpt2 and compressor have none
    dropout: float = 0.0
    bigram_init: float = (
        0.0  # if above 0, embeddings of this size start from counts of adjacent tokens
    )
    copy_init: float = (
        0.0  # if above 0, heads start as copiers of this strength: GPTNeo.init_copying
    )
    # one optimizer step sees batch_size * grad_accum_steps sequences of block_size tokens
    batch_size: int = 80  # sequences in one forward pass; lower it if memory runs out
    grad_accum_steps: int = 16
    max_steps: int = 10_000
    epochs: float = 0.0  # if above 0, max_steps is computed: this many times the training tokens
    # training time, without compiling and validation; above 0, the schedule follows the clock
    max_minutes: float = 0.0
    # take at least this many, even after max_minutes, so that a slow machine gets a good model too
    min_steps: int = 0
    # optimizer
    optimizer: Literal["adamw", "muon"] = (
        "adamw"  # muon: for the matrices of the blocks, AdamW for everything else
    )
    learning_rate: float = 5e-4
    warmup_steps: int = 0
    # the last fraction of the run, where the learning rate falls linearly to zero; 0: constant
    warmdown: float = 0.0
    weight_decay: float = 0.1  # on matrices and embeddings, not on biases and LayerNorms
    beta1: float = 0.9  # AdamW's; for Muon, its momentum
    beta2: float = 0.95
    grad_clip: float = 1.0  # largest norm of the gradient; 0: no clipping
    # objective
    contrast: Literal["none", "published"] = "none"  # nanostories/variants/contrastive.py
    contrast_alpha: float = 5.0  # weight of the contrastive part of the loss
    # logging and checkpoints
    log_interval: int = 10  # steps
    eval_interval: int = 250  # steps; the checkpoint is saved then, too
    keep_checkpoints: int = 0  # also keep the weights this many times along the way, evenly spread
    eval_tokens: int = 500_000  # from the start of the validation split: the same for every run
    # machine
    device: str = "auto"  # auto, cpu, cuda, cuda:1, mps
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"  # for matrix products
    compile: bool = True  # if a compiler is found

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value, choices = getattr(self, field.name), get_args(field.type)
            if choices and value not in choices:
                raise UserError(f"{field.name} must be one of {', '.join(choices)}, not {value!r}")
            low, high = BOUNDS.get(field.name, (0, math.inf))
            if type(value) in (int, float) and not low <= value <= high:
                raise UserError(f"{field.name} must be between {low} and {high}, not {value}")
        if self.architecture == "gpt2":
            self.window_size = self.block_size
        try:  # an impossible shape is an error before any data is prepared
            GPTNeoConfig(**self.model_shape())
        except ValueError as error:
            raise UserError(str(error)) from None
        if self.contrast != "none" and self.loss_on == "story":
            raise UserError(f"contrast={self.contrast} shuffles headers, too: it needs loss_on=all")
        if self.attend_within_story and self.architecture not in ("gptneo", "gpt2"):
            raise UserError(
                f"attend_within_story: not with {self.architecture}, which pairs tokens across"
                " stories"
            )
        if self.name == ".." or Path(self.name).name != self.name:
            raise UserError(
                f"name must be a plain directory name, not {self.name!r}; out_dir says where it"
                " goes"
            )

    @property
    def sequences_per_step(self) -> int:
        return self.batch_size * self.grad_accum_steps

    @property
    def tokens_per_step(self) -> int:
        return self.sequences_per_step * self.block_size

    def model_shape(self) -> dict:
        """The fields of GPTNeoConfig that a run may set; the vocabulary comes with the data."""
        names = {field.name for field in dataclasses.fields(GPTNeoConfig)}
        shape = {name: value for name, value in vars(self).items() if name in names}
        return shape | dict.fromkeys(("scale_attention", "qkv_bias"), self.architecture == "gpt2")


SHAPE = ("architecture", "n_layer", "n_head", "n_embd", "window_size")  # that start_from brings
# Least and largest values; those of other numbers are 0 and infinity.
BOUNDS = {"seed": (0, 2**63 - 1)} | dict.fromkeys(("warmdown", "beta1", "beta2"), (0, 1))
BOUNDS |= dict.fromkeys(
    ("batch_size", "grad_accum_steps", "max_steps", "log_interval", "eval_interval"), (1, math.inf)
)


def settings_line(config: TrainConfig) -> str:
    """The recipe, and which of its values the run does not use: 'recipe=fast, but
    learning_rate=0.006'."""
    names = dict.fromkeys(name for recipe in RECIPES.values() for name in recipe)
    expected = vars(TrainConfig()) | RECIPES[config.recipe]
    others = [
        f"{name}={getattr(config, name)}"
        for name in names
        if getattr(config, name) != expected[name]
    ]
    return f"recipe={config.recipe}" + (f", but {', '.join(others)}" if others else "")


def parse_setting(text: str) -> tuple[str, object]:
    """(key, value) of `key = value`, the value of its field's type; a text may be in quotes. Never
    executed."""
    key, equals, text = (part.strip() for part in text.partition("="))
    default, value = vars(TrainConfig()).get(key), text
    if not equals:
        raise UserError("expected a setting, key=value (only --resume takes no value)")
    if default is None:
        near = difflib.get_close_matches(key, vars(TrainConfig()), n=1)
        raise UserError(
            f"unknown setting {key!r}; " + (f"did you mean {near[0]!r}?" if near else "see --help")
        )
    with contextlib.suppress(ValueError, SyntaxError):
        value = ast.literal_eval(text)
    if type(default) is str and type(value) is not str:
        value = text  # as in --data=007
    if type(default) is float and type(value) is int:
        value = float(value)
    if type(value) is not type(default):
        raise UserError(f"{key} must be {type(default).__name__}, not {text}")
    return key, value


def parse_settings(sources: dict[str, str]) -> dict:
    """sources: where each setting stands -> its text."""
    settings = {}
    for where, text in sources.items():
        try:
            settings |= [parse_setting(text)]
        except UserError as error:
            raise UserError(f"{where}: {error}") from None
    return settings


def parse_command_line(args: list[str], usage: str = "") -> tuple[TrainConfig, bool]:
    """[CONFIG.py] [--key=value ...] [--resume] -> (config, resume); or --help: `usage`, then all
    settings."""
    if {"-h", "--help"} & set(args):
        print(
            f"{usage}\nSettings, for config files (a line each, # begins a comment) and as"
            " --key=value:\n"
        )
        print(inspect.getsource(TrainConfig).partition(":\n")[2].partition("\n\n")[0])
        sys.exit()
    flags = [arg for arg in args if arg.startswith("-")]
    path, *others = [Path(arg) for arg in args if arg not in flags] or [
        ROOT / "configs" / "demo.py"
    ]
    if not path.is_file():
        known = ", ".join(sorted(file.name for file in (ROOT / "configs").glob("*.py")))
        raise UserError(f"{path}: no such config file; configs/ has {known}")
    if others:
        raise UserError(
            f"{others[0]}: a second config file; give one, and settings with =, as in --data=real"
        )
    lines = [line.partition("#")[0] for line in path.read_text(encoding="utf-8").splitlines()]
    from_file = parse_settings(
        {f"{path}:{number}": line for number, line in enumerate(lines, 1) if line.strip()}
    )
    given = parse_settings({flag: flag.removeprefix("--") for flag in flags if flag != "--resume"})
    settings = {"name": path.stem} | from_file | given
    config = TrainConfig(**RECIPES.get(settings.get("recipe"), {}) | settings)
    if config.epochs and "max_steps" in given:
        raise UserError(
            f"max_steps={config.max_steps} and epochs={config.epochs} both set the length; give one"
        )
    if config.start_from and (shape := given.keys() & {*SHAPE, "copy_init", "bigram_init"}):
        raise UserError(
            f"{', '.join(shape)}: leave it out: start_from={config.start_from} brings shape and"
            " weights"
        )
    if config.architecture in ("gpt2", "compressor") and "window_size" in settings:
        raise UserError(
            f"window_size={settings['window_size']}: architecture={config.architecture} has no"
            " windows"
        )
    return config, "--resume" in flags
