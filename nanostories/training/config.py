"""The settings of a run: from config files of plain assignments and from the command line."""

import ast
import dataclasses
import difflib
import inspect
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from model import GPTNeoConfig
from nanostories.cli import UserError
from nanostories.files import ROOT, read_json

SHORTER = 4  # short windows are a quarter as long, and four times as many


# Defaults: https://huggingface.co/roneneldan/TinyStories-33M has block_size, batch_size, betas,
# grad_accum_steps, weight_decay and a constant learning_rate. The length (an author speaks of about
# 20 epochs in its discussion 8, which is 9.4 billion tokens) and grad_clip are ours.
@dataclass
class TrainConfig:
    name: str = "run"  # default: the config files' names; with another --data, also the corpus's
    out_dir: str = "out"  # the run is written to out_dir/name
    seed: int = 0  # for the initial weights, the data order and dropout
    # weights and shape of a run, a checkpoint, or hf:ID (GPT-Neo, GPT-2), in place of initial ones,
    # so that bigram_init and copy_init change nothing
    start_from: str = ""
    # data
    data: str = "tinystories"  # a corpus of prepare.py in data_dir; as a flag, also its path
    data_dir: str = "data"
    align_stories: bool = False  # begin windows with stories; else cut text every block_size tokens
    attend_within_story: bool = False  # a token sees its own story alone; positions restart at 0
    # the first steps that read four times as many windows, of block_size / 4 tokens; 0: none
    short_window_steps: int = 0
    loss_on: Literal["all", "story"] = "all"  # story: headers are read, but are not targets
    # model
    architecture: Literal["gptneo", "gpt2", "compressor"] = "gptneo"  # see nanostories/variants/
    block_size: int = 512  # context, in tokens
    n_layer: int = 8
    n_head: int = 16
    n_embd: int = 256
    window_size: int = 256  # reach of the local layers, in tokens; only gptneo has them
    dropout: float = 0.0
    bigram_init: float = 0.0  # scale of bigram statistics in the first embeddings; 0: none
    copy_init: float = 0.0  # strength of heads that start as copiers: GPTNeo.init_copying
    # length: an optimizer step reads batch_size * grad_accum_steps windows of block_size tokens
    batch_size: int = 80  # windows in one forward pass; lower it if memory runs out
    grad_accum_steps: int = 16  # forward passes in an optimizer step, of all processes together
    max_steps: int = 10_000
    epochs: float = 0.0  # if above 0, max_steps is computed: passes over the training windows
    # if above 0, stop after so many minutes of training, earlier parts of a resumed run included
    # (compiling and validation do not count); learning rates follow this clock, too
    max_minutes: float = 0.0
    # optimizer
    optimizer: Literal["adamw", "muon"] = "adamw"  # muon: for matrices inside blocks only
    learning_rate: float = 5e-4
    warmup_steps: int = 0
    warmdown: float = 0.0  # last fraction of the run, in which learning rates fall linearly to 0
    weight_decay: float = 0.1  # on matrices and embeddings, not on biases and LayerNorms
    beta1: float = 0.9  # AdamW's; for Muon, its momentum
    beta2: float = 0.95
    grad_clip: float = 1.0  # largest norm of the gradient; 0: no clipping
    # objective
    contrast: Literal["none", "published"] = "none"  # nanostories/variants/contrastive.py
    contrast_alpha: float = 5.0  # weight of the contrastive part of the loss
    # log and checkpoints
    log_interval: int = 10  # steps
    eval_interval: int = 250  # steps; the checkpoint is saved then, too
    keep_checkpoints: int = 0  # save the weights at so many evenly spaced points, the end the last
    eval_tokens: int = 500_000  # from the start of the validation split
    # machine
    device: str = "auto"  # auto, cpu, cuda, cuda:1, mps
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"  # for matrix products
    compile: bool = True  # with torch.compile, where it works
    # on a GPU: launch a compiled micro-batch at once; experimental, never run on a GPU
    cuda_graphs: bool = False

    def __post_init__(self):
        for field in dataclasses.fields(self):
            check_value(field, getattr(self, field.name))
        if self.architecture == "gpt2":
            self.window_size = self.block_size
        # An impossible shape is an error before data is prepared.
        GPTNeoConfig(**self.model_shape())
        if self.contrast != "none" and self.loss_on == "story":
            raise UserError(f"contrast={self.contrast} shuffles headers, too: it needs loss_on=all")
        if self.attend_within_story and self.architecture == "compressor":
            raise UserError("attend_within_story: not with compressor, whose pairs cross stories")
        if self.short_window_steps and self.block_size % SHORTER:
            raise UserError(
                f"short_window_steps needs a block_size that is a multiple of {SHORTER}"
            )
        # step-5 is how kept checkpoints are called
        if not re.fullmatch(r"(?!\.\.?$|step-\d)[^/\\]+", self.name):
            raise UserError(
                f"name={self.name}: must be a plain directory name, and not like step-5"
            )

    @property
    def windows_per_step(self) -> int:
        return self.batch_size * self.grad_accum_steps

    @property
    def tokens_per_step(self) -> int:
        return self.windows_per_step * self.block_size

    def model_shape(self) -> dict:
        """The fields of GPTNeoConfig that a run may set; the vocabulary comes with the data."""
        names = vars(GPTNeoConfig())
        shape = {name: value for name, value in vars(self).items() if name in names}
        is_gpt2 = self.architecture == "gpt2"
        return shape | {"scale_attention": is_gpt2, "qkv_bias": is_gpt2}


AT_MOST = {"dropout": 0.9999, "warmdown": 1, "beta1": 0.9999, "beta2": 0.9999}
# The settings that start_from brings
SHAPE = ("architecture", "n_layer", "n_head", "n_embd", "window_size")
# Settings, and the one that computes them: on the command line they would contradict each other
COMPUTED = dict.fromkeys(SHAPE, "start_from") | {"max_steps": "epochs"}


def check_value(field: dataclasses.Field, value) -> None:
    """UserError if a setting is not one of its choices, or out of bounds."""
    choices = get_args(field.type)
    if choices and value not in choices:
        raise UserError(f"{field.name} must be one of {', '.join(choices)}, not {value!r}")
    if field.type not in (int, float):
        return
    # A whole number is at least 1, unless its default is 0 (off, or the seed).
    low = 1 if field.type is int and field.default else 0
    high = AT_MOST.get(field.name, 2**63 - 1)
    if not low <= value <= high:  # also rejects NaN
        bounds = f"between {low} and {high}" if field.name in AT_MOST else f"{low} or more"
        raise UserError(f"{field.name} must be {bounds}, not {value}")


# ---- Config files and the command line ----
DEFAULTS = vars(TrainConfig())


def parse_setting(name: str, text: str, place: str) -> object:
    """The value of a setting. place: where it stands, for messages."""
    if name not in DEFAULTS:
        similar = difflib.get_close_matches(name, DEFAULTS, n=1)
        remedy = f"did you mean {similar[0]}?" if similar else "see --help"
        raise UserError(f"{place}: unknown setting {name!r}; {remedy}")
    kind = type(DEFAULTS[name])
    try:
        return {"True": True, "False": False}[text] if kind is bool else kind(text)
    except (KeyError, ValueError):
        wanted = "True or False" if kind is bool else kind.__name__
        raise UserError(f"{place}: {name} must be {wanted}, not {text}") from None


def read_config(path: Path) -> dict:
    """The settings of a file of `name = value` lines in Python's syntax; nothing is executed."""
    if path.is_dir():
        raise UserError(f"{path}: a directory; to continue a run: --resume {path}")
    if not path.is_file():
        raise UserError(f"{path}: no such config file (see configs/) or run (see out/)")
    try:
        statements = ast.parse(path.read_bytes()).body
    except (SyntaxError, ValueError) as error:  # ValueError: a NUL, before Python 3.12
        line = getattr(error, "lineno", None) or 1
        raise UserError(f"{path}:{line}: expected name = value, in UTF-8") from None
    settings = {}
    for statement in statements:
        place = f"{path}:{statement.lineno}"
        match statement:
            case ast.Assign([ast.Name(name)], ast.Constant(value)):
                settings[name] = parse_setting(name, str(value), place)
            case _:
                raise UserError(f"{place}: expected name = value")
    return settings


def read_run(run: Path) -> dict:
    """The settings of a run."""
    path = run / "config.json"
    if run.match("step-[0-9]*"):
        raise UserError(
            f"{run}: only weights; to train on from them: --start_from={run} --name=NEW"
        )
    if not path.exists():
        raise UserError(f"{run}: no run (it has no config.json)")
    settings = read_json(path)
    unknown = sorted(settings.keys() - DEFAULTS.keys())
    if unknown:
        raise UserError(f"{path}: of another version, with the settings {', '.join(unknown)}")
    settings["name"] = run.name
    settings["out_dir"] = str(run.parent)
    return settings


def corpus_of(settings: dict) -> Path:
    settings = DEFAULTS | settings
    return Path(settings["data_dir"], settings["data"])


def parse_command_line(args: list[str], usage: str = "") -> tuple[TrainConfig, bool]:
    """[CONFIG.py ...] [--name=value ...] [--resume] -> (config, resume). Later files win over
    earlier ones, and the command line over all. With --resume, the directory of a run may stand in
    place of the files. --help prints `usage` and all settings."""
    if "-h" in args or "--help" in args:
        print(f"{usage}\nSettings, for config files (a line each) and as --name=value:\n")
        print(inspect.getsource(TrainConfig).partition("    def __post_init__")[0])
        sys.exit()
    resume = "--resume" in args
    paths = []
    given = {}
    for arg in args:
        name, equals, text = arg.removeprefix("--").partition("=")
        if not arg.startswith("-"):
            paths.append(Path(arg))
        elif name in DEFAULTS and not equals:
            raise UserError(f"{arg}: needs a value, as {arg}=VALUE")
        elif name == "resume" and equals:
            raise UserError(f"{arg}: takes no value; to continue a run: --resume out/RUN")
        elif arg != "--resume":
            given[name] = parse_setting(name, text, arg)
    if not paths:
        paths = [ROOT / "configs" / "demo.py"]
    settings = {}
    for path in paths:
        settings |= read_run(path) if resume and path.is_dir() else read_config(path)
    parts = [path.stem for path in paths]
    if "data" in given:
        corpus = Path(given["data"])
        given["data"] = str(corpus)
        if corpus.name != str(corpus) and "data_dir" not in given:  # a path, as of other commands
            given |= {"data": corpus.name, "data_dir": str(corpus.parent)}
        if corpus_of(settings | given) != corpus_of(settings):
            parts.append(corpus.name)  # so that each corpus has a run of its own
    settings.setdefault("name", "-".join(parts))
    config = TrainConfig(**settings | given)
    for name, source in COMPUTED.items():
        value = getattr(config, source)
        if value and name in given:
            remedy = f"change {source}, or leave {name} out"
            raise UserError(f"{name}: {source}={value} sets it; {remedy}")
    return config, resume
