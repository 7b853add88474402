"""What a run writes and shows while it trains: log.csv, a progress bar, its speed."""

import contextlib
import time
from pathlib import Path

import torch
from tqdm import tqdm

from nanostories.device import peak_flops, processor_name
from nanostories.kernels.attention import uses_cpp
from nanostories.kernels.cpu_features import free_cores
from nanostories.training import run_directory
from nanostories.training.distributed import Ranks
from nanostories.training.state import TrainingState

SHOWN = ("step", "tokens", "train_loss", "val_loss", "bpb", "tokens_per_s")  # on the screen


class TrainingLog:
    """log.csv, the progress bar, and the clock of training."""

    def __init__(self, run: Path, state: TrainingState, ranks: Ranks):
        self.run = run
        self.state = state
        self.config = state.config
        self.ranks = ranks
        # The first step compiles, or warms up; so does the first that reads longer windows.
        self.uncounted_steps = {state.step, self.config.short_window_steps}
        self.peak_flops = peak_flops(state.device, state.dtype)
        self.timed_steps = 0  # since the last row
        self.seconds_at_last_row = state.seconds
        self.bar = tqdm(
            total=1.0,
            initial=state.fraction_done,
            bar_format="{percentage:3.0f}% |{bar:20}| {elapsed}<{remaining}",
            disable=None if ranks.rank == 0 else True,  # None: shown only in a terminal
        )

    @contextlib.contextmanager
    def clock(self):
        """Times a step of training, unless it is one that does not count."""
        if self.state.step in self.uncounted_steps:
            self.wait_and_check()  # for the steps before it, which count
            yield
            self.state.check_finite()  # waits for the device: this step's work does not count
        else:
            start = time.perf_counter()
            yield
            self.state.seconds += self.ranks.max(time.perf_counter() - start)
            self.timed_steps += 1
        self.bar.update(self.state.fraction_done - self.bar.n)

    def wait_and_check(self) -> None:
        """Waits for the device, whose work on the steps so far is part of training. UserError if
        the loss or a gradient is not finite: nothing is saved after that."""
        start = time.perf_counter()
        self.state.check_finite()
        self.state.seconds += self.ranks.max(time.perf_counter() - start)

    def write_row(self, done: float, lr: float, losses: dict[str, float]) -> dict[str, str]:
        """Writes and returns the row for the steps since the last one; begins a new period. Only
        the first process writes.

        done: fraction of the run, before it waited. losses: of evaluate(), or none."""
        state = self.state
        loss, norm, n_steps = state.sums.tolist()
        row = {
            "step": str(state.step),
            "tokens": str(state.step * self.config.tokens_per_step),
            "done": f"{done:.6f}",
            "train_loss": f"{loss / n_steps:.5f}",
            "learning_rate": f"{lr:.3g}",
            "grad_norm": f"{norm / n_steps:.4g}",
            "seconds": f"{state.seconds:.2f}",
        }
        for name, value in losses.items():
            row[name] = f"{value:.5f}"
        step_seconds = None  # if all steps of this period compiled
        if self.timed_steps:
            step_seconds = (state.seconds - self.seconds_at_last_row) / self.timed_steps
            tokens_per_s = self.config.tokens_per_step / step_seconds
            row["tokens_per_s"] = f"{tokens_per_s:.0f}"
            if self.peak_flops and state.step > self.config.short_window_steps:
                flops_per_s = tokens_per_s * state.model.flops_per_token(self.config.block_size)
                row["mfu"] = f"{flops_per_s / (self.peak_flops * self.ranks.size):.4f}"
        state.sums.zero_()
        self.timed_steps = 0
        self.seconds_at_last_row = state.seconds
        if self.ranks.rank == 0:
            run_directory.append_row(self.run / "log.csv", row)
            if losses or state.step == self.config.log_interval:
                self.show(row, step_seconds)
        return row

    def show(self, row: dict[str, str], step_seconds: float | None) -> None:
        """Prints a row: those of evaluations, and the first, which tells how long it will take."""
        shown = [f"{name} {row[name]}" for name in SHOWN if name in row]
        if step_seconds is not None:
            seconds_left = (self.config.max_steps - self.state.step) * step_seconds
            if self.config.max_minutes:
                seconds_left = min(seconds_left, 60 * self.config.max_minutes - self.state.seconds)
            shown.append(f"{tqdm.format_interval(max(0, seconds_left))} to go")
        self.bar.write(", ".join(shown))


def print_settings(run: Path, state: TrainingState, ranks: Ranks) -> None:
    """The size and place of the run, and what decides its speed and how sums are rounded: with all
    equal, a resumed run is the same bit for bit on a CPU."""
    config = state.config
    head_width = config.n_embd // config.n_head
    attention = "scaled_dot_product_attention"
    if uses_cpp(state.device.type, state.dtype, head_width):
        attention = "C++"
    facts = {
        "parameters": f"{state.model.num_params():,}",
        "training tokens": f"{len(state.corpus.train.tokens):,} of {config.data}",
        "tokens per step": f"{config.tokens_per_step:,}",
        "from step": state.step,
        "device": processor_name(state.device),
        "dtype": state.dtype,
        "attention": attention,
        "compiled": state.why_eager or "yes (the first step takes up to a minute)",
        "threads": torch.get_num_threads(),
        "processes": ranks.size,
        "torch": torch.__version__,
    }
    if config.max_minutes:
        length = f"{config.max_minutes:g} minutes or {config.max_steps:,} steps"
        facts["length"] = f"{length}, whichever comes first (--max_minutes=0: the steps alone)"
    print(f"{run}:", ", ".join(f"{name} {value}" for name, value in facts.items()))
    n_free = free_cores()
    if state.device.type == "cpu" and n_free < torch.get_num_threads():
        remedy = f"stop, and run it again with OMP_NUM_THREADS={n_free}"
        print(f"Other programs are using the CPU; fewer threads may be much faster: {remedy}")
