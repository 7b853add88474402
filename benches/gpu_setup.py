"""
What `python bench.py gpu` runs on and where its results go: one line per result, as soon as it is known.
"""

import json
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch._dynamo.exc import FailOnRecompileLimitHit

from common.files import write_bytes
from common.tables import table_text
from model import GPTNeo, GPTNeoConfig
from training.config import parse_command_line

CONFIGS = Path(__file__).parent.parent / "configs"
SIZES = ("8m", "33m", "28m", "1m", "3m", "1l_21m", "2l_33m")  # most informative first: a run may be cut short
# For a dry run on a CPU: just enough heads and layers to exercise the same code.
TOY = dict(vocab_size=300, block_size=48, window_size=16)
TOY_SIZES = {
    "8m": dict(n_layer=2, n_head=4, n_embd=32),
    "1m": dict(n_layer=2, n_head=4, n_embd=16),
}


# What a GPU, a driver or an older PyTorch may raise: one part of the bench fails, but the others still run.
FAILURES = (
    *(RuntimeError, ValueError, TypeError, LookupError, AssertionError, ImportError, AttributeError, OSError),
    FailOnRecompileLimitHit,
)


@dataclass(frozen=True)
class Setup:
    """The machine, and the sizes of everything."""

    dry_run: bool

    @property
    def device(self) -> torch.device:
        return torch.device("cpu" if self.dry_run else "cuda:0")

    @property
    def dtype(self) -> torch.dtype:
        """float16 on GPUs before Ampere, as train.py chooses."""
        fast = self.dry_run or torch.cuda.get_device_capability()[0] >= 8
        return torch.bfloat16 if fast else torch.float16

    @property
    def hardware(self) -> str:
        if self.dry_run:
            return "dry run on a CPU"
        gpu = torch.cuda.get_device_properties(0)
        return f"{gpu.name}, {gpu.total_memory / 2**30:.0f} GiB"

    def shapes(self) -> dict[str, GPTNeoConfig]:
        """{size: its shape}: the published ones with 10,000 ids, or toys."""
        if self.dry_run:
            return {size: GPTNeoConfig(**TOY, **shape) for size, shape in TOY_SIZES.items()}
        published = {size: parse_command_line([str(CONFIGS / f"ts_{size}.py")])[0] for size in SIZES}
        return {size: GPTNeoConfig(vocab_size=10_000, **config.model_shape()) for size, config in published.items()}

    def model(self, shape: GPTNeoConfig, std: float = 0.0) -> GPTNeo:
        """On the CPU, the same at every call. std: of the weights, if they are to be far from their initialization."""
        torch.manual_seed(0)
        model = GPTNeo(shape)
        for name, parameter in model.named_parameters() if std else ():
            torch.nn.init.normal_(parameter, mean=1.0 if "ln" in name and "weight" in name else 0.0, std=std)
        return model

    def tokens(self, shape: GPTNeoConfig, n: int, length: int | None = None) -> torch.Tensor:
        """(n, length) on the CPU; length: by default one more than a block"""
        generator = torch.Generator().manual_seed(1)
        return torch.randint(shape.vocab_size - 1, (n, length or shape.block_size + 1), generator=generator)

    def compiled(self, function: Callable, **settings) -> Callable:
        """A dry run only traces what a GPU would compile."""
        if self.dry_run:
            return torch.compile(function, dynamic=False, backend="eager")
        return torch.compile(function, dynamic=False, **settings)

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, self.dtype)


@dataclass
class Report:
    """Results so far: in memory, on the screen, and in out/gpu (results.jsonl, table.md, errors.txt)."""

    directory: Path
    seconds: float  # what has not started by then is skipped
    started: float = field(default_factory=time.perf_counter)
    results: list[dict] = field(default_factory=list)

    def __post_init__(self):
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / "results.jsonl").write_text("")
        (self.directory / "errors.txt").unlink(missing_ok=True)

    def run(self, section: str, items: Iterable[tuple[str, Callable[[], object]]], until: float = 1.0) -> None:
        """Each item returns a dict of figures or an Error; if one fails, this is noted and the next one runs.

        until: an item starts only before this share of all the time has passed.
        """
        for name, function in items:
            if time.perf_counter() - self.started > until * self.seconds:
                self.add(section, name, note="skipped: out of time")
                continue
            try:
                result = function()
            except FAILURES as error:
                with (self.directory / "errors.txt").open("a") as file:
                    file.write(f"{section}: {name}\n{traceback.format_exc()}\n")
                line = (str(error).splitlines() or [""])[0]
                self.add(section, name, passed=False, note=f"{type(error).__name__}: {line}"[:200])
                continue
            if isinstance(result, Error):
                passed = result.value <= result.limit
                note = f"≤ {result.limit:g}" if passed else f"{result.value:.4g} > {result.limit:g}"
                self.add(section, name, result.value, passed, note)
            for figure, value in (result if isinstance(result, dict) else {}).items():
                self.add(section, f"{name}: {figure}", value)

    def add(self, section: str, name: str, value: float | None = None, passed: bool | None = None, note: str = ""):
        result = dict(section=section, name=name, value=value, passed=passed, note=note)
        result["after_seconds"] = round(time.perf_counter() - self.started, 1)
        self.results.append(result)
        with (self.directory / "results.jsonl").open("a") as file:
            file.write(json.dumps(result) + "\n")
        write_bytes(self.directory / "table.md", (self.table() + "\n").encode())
        print(" ".join(row_of(result)), flush=True)

    def table(self) -> str:
        return table_text(["", "", "", "limit"], [row_of(result) for result in self.results], markdown=True)

    def failed(self) -> list[str]:
        return [result["name"] for result in self.results if result["passed"] is False]


@dataclass(frozen=True)
class Error:
    """How far off something is, and how far it may be. A NaN is never within the limit."""

    value: float
    limit: float


def row_of(result: dict) -> list[str]:
    value, verdict = result["value"], {True: "ok", False: "FAILED", None: ""}[result["passed"]]
    cell = "" if value is None else f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return [f"{result['section']}: {result['name']}", cell, verdict, result["note"]]
