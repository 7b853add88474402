"""What a run writes and shows while it trains: log.csv, a progress bar, its speed."""

import time
from pathlib import Path

import torch
from tqdm import tqdm

from nanostories.device import peak_flops
from nanostories.kernels.cpu_features import free_cores
from nanostories.training import run_directory
from nanostories.training.distributed import Ranks
from nanostories.training.state import TrainingState


class TrainingLog:
    """log.csv, the progress bar, and the clock of training."""

    def __init__(self, run: Path, state: TrainingState, ranks: Ranks):
        self.run = run
        self.state = state
        self.config = state.config
        self.ranks = ranks
        # The first step compiles, and so does the first one that reads windows of another length.
        self.compiling_steps = (state.step, self.config.short_window_steps)
        self.peak_flops = peak_flops(state.device, state.dtype)
        self.timed_steps = 0  # since the last row
        self.seconds_at_last_row = state.seconds
        self.shows_time_left = True  # once
        self.bar = tqdm(
            total=1.0,
            initial=state.fraction_done,
            bar_format="{percentage:3.0f}% |{bar:20}| {elapsed}<{remaining}{postfix}",
            disable=None if ranks.rank == 0 else True,  # None: shown only in a terminal
        )

    @property
    def columns(self) -> list[str]:
        mfu = ["mfu"] if self.peak_flops else []
        return [*run_directory.LOG_COLUMNS, *mfu]

    # ---- The clock: a step that compiles does not count ----
    def start_step(self) -> None:
        self.compiles = self.state.step in self.compiling_steps
        if self.compiles:
            self.state.means()  # waits for the steps before it, which count
        self.step_start = time.perf_counter()

    def end_step(self) -> None:
        step = self.state.step
        row_is_due = step % self.config.log_interval == 0 or step % self.config.eval_interval == 0
        if self.compiles or row_is_due or step == self.config.max_steps:
            self.state.means()  # waits for the device
        seconds = self.ranks.max(time.perf_counter() - self.step_start)
        if not self.compiles:
            self.state.seconds += seconds
            self.timed_steps += 1
        self.bar.update(self.state.fraction_done - self.bar.n)

    # ---- The rows ----
    def write_row(self, lr: float, losses: dict[str, float]) -> dict[str, str]:
        """Of all steps since the last row -> the cells. Only the first process writes them.

        losses: of evaluate(), or none."""
        state = self.state
        train_loss, grad_norm = state.means()
        n_tokens = state.step * self.config.tokens_per_step
        row = {
            "step": str(state.step),
            "tokens": str(n_tokens),
            "done": f"{state.fraction_done:.4f}",
            "train_loss": f"{train_loss:.5f}",
            "learning_rate": f"{lr:.3g}",
            "grad_norm": f"{grad_norm:.4g}",
            "seconds": f"{state.seconds:.2f}",
        }
        for name, loss in losses.items():
            row[name] = f"{loss:.5f}"
        if self.timed_steps:
            row.update(self.speed(train_loss))
        state.sums.zero_()
        self.timed_steps = 0
        self.seconds_at_last_row = state.seconds
        if self.ranks.rank == 0:
            run_directory.append_row(self.run / "log.csv", row)
        if losses:
            shown = f"train {train_loss:.3f}  val {losses['val_loss']:.3f}  bpb {losses['bpb']:.3f}"
            self.bar.write(f"step {state.step:>6}  {n_tokens / 1e6:8.2f} M tokens  {shown}")
        return row

    def speed(self, train_loss: float) -> dict[str, str]:
        """tokens_per_s, and mfu where the GPU's peak is known; also shown beside the bar."""
        step_seconds = (self.state.seconds - self.seconds_at_last_row) / self.timed_steps
        tokens_per_s = self.config.tokens_per_step / step_seconds
        shown = f" step {self.state.step}, loss {train_loss:.3f}, {tokens_per_s:,.0f} tok/s"
        self.bar.set_postfix_str(shown, refresh=False)
        if self.shows_time_left and self.ranks.rank == 0 and self.state.fraction_done < 1:
            left = tqdm.format_interval(self.seconds_left(step_seconds))
            self.bar.write(f"{tokens_per_s:,.0f} tokens/s on this machine: about {left} to go")
            self.shows_time_left = False
        cells = {"tokens_per_s": f"{tokens_per_s:.0f}"}
        if self.peak_flops:
            flops_per_token = self.state.model.flops_per_token(self.config.block_size)
            mfu = tokens_per_s * flops_per_token / (self.peak_flops * self.ranks.size)
            cells["mfu"] = f"{mfu:.4f}"
        return cells

    def seconds_left(self, step_seconds: float) -> float:
        left = (self.config.max_steps - self.state.step) * step_seconds
        if self.config.max_minutes:
            left = min(left, 60 * self.config.max_minutes - self.state.seconds)
        return left


def print_settings(run: Path, state: TrainingState, checkpoint: dict | None) -> None:
    """The size and place of the run, what decides its speed and rounding, and what has changed
    since its checkpoint."""
    config = state.config
    size = f"{state.model.num_params():,} parameters"
    data = f"{len(state.corpus.train):,} training tokens of {config.data}"
    print(f"{run}: {size}, {data}, {config.tokens_per_step:,} tokens per step, {config.optimizer}")
    print(", ".join(f"{name}: {value}" for name, value in state.environment().items()))
    if state.device.type == "cpu" and free_cores() < torch.get_num_threads():
        print(f"Other programs are using the CPU: OMP_NUM_THREADS={free_cores()} may be faster")
    if not checkpoint:
        return
    now = {"environment": state.environment(), "train_config": vars(config)}
    for part, values in now.items():
        for name, value in values.items():
            before = checkpoint[part][name]
            if value != before:
                print(f"changed since the checkpoint: {name}={value} (was {before})")
    if now["environment"] != checkpoint["environment"]:
        print("So results may differ in rounding from those of an uninterrupted run")
