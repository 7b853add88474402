"""What a run writes and shows while it trains: log.csv, a progress bar, its speed."""

import time
from pathlib import Path

import torch
from tqdm import tqdm

from nanostories.device import peak_flops
from nanostories.kernels.cpu_features import free_cores
from nanostories.training import run_directory
from nanostories.training.config import TrainConfig
from nanostories.training.distributed import Ranks
from nanostories.training.state import TrainingState


class TrainingLog:
    """log.csv, the progress bar, and the clock."""

    def __init__(self, run: Path, config: TrainConfig, state: TrainingState, ranks: Ranks):
        self.run = run
        self.config = config
        self.state = state
        self.ranks = ranks
        # The first step compiles, and so does the first one that reads windows of another length.
        self.compiling_steps = (state.step, config.short_window_steps)
        self.peak_flops = peak_flops(state.device, state.dtype)
        self.timed_steps = 0  # since the last row
        self.seconds_at_last_row = state.seconds
        self.shows_time_left = ranks.rank == 0  # once
        self.bar = tqdm(
            total=1.0,
            initial=state.done,
            bar_format="{percentage:3.0f}% |{bar:20}| {elapsed}<{remaining}{postfix}",
            disable=None if ranks.rank == 0 else True,  # None: shown only in a terminal
        )

    def opened(self, is_resumed: bool):
        """The run's directory, locked, with an empty log or that of the steps that are done."""
        columns = list(run_directory.LOG_COLUMNS)
        if self.peak_flops:
            columns.append("mfu")
        last_step = self.state.step if is_resumed else None
        return run_directory.lock_and_prepare(self.run, self.config, columns, last_step)

    def start_clock(self) -> None:
        self.clock = time.perf_counter()

    def read_clock(self) -> None:
        """After each step. One that compiles does not count."""
        compiled = self.state.step - 1 in self.compiling_steps
        if compiled or self.state.step % self.config.log_interval == 0:
            self.state.means()  # waits for the device
        seconds = self.ranks.max(time.perf_counter() - self.clock)
        self.start_clock()
        if not compiled:
            self.state.seconds += seconds
            self.timed_steps += 1
        self.bar.update(self.state.done - self.bar.n)

    def make_row(self, lr: float) -> dict[str, str]:
        """The row of all steps since the last one."""
        state = self.state
        train_loss, grad_norm = state.means()
        row = {
            "step": str(state.step),
            "tokens": str(state.step * self.config.tokens_per_step),
            "done": f"{state.done:.4f}",
            "train_loss": f"{train_loss:.5f}",
            "learning_rate": f"{lr:.3g}",
            "grad_norm": f"{grad_norm:.4g}",
            "seconds": f"{state.seconds:.2f}",
        }
        if self.timed_steps:
            row |= self.speed(train_loss)
        state.sums.zero_()
        self.timed_steps = 0
        self.seconds_at_last_row = state.seconds
        return row

    def speed(self, train_loss: float) -> dict[str, str]:
        """tokens_per_s, and mfu where the GPU's peak is known; also shown beside the bar."""
        step_seconds = (self.state.seconds - self.seconds_at_last_row) / self.timed_steps
        tokens_per_s = self.config.tokens_per_step / step_seconds
        shown = f" step {self.state.step}, loss {train_loss:.3f}, {tokens_per_s:,.0f} tok/s"
        self.bar.set_postfix_str(shown, refresh=False)
        if self.shows_time_left and self.state.done < 1:
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

    def write(self, row: dict[str, str], losses: dict[str, float]) -> None:
        """losses: of evaluate(), or none. Comes before ckpt.pt is saved, so that a resumed run
        cannot miss this row."""
        row.update({name: f"{loss:.5f}" for name, loss in losses.items()})
        run_directory.append_row(self.run / "log.csv", row)
        if losses:
            tokens = f"{int(row['tokens']) / 1e6:8.2f} M tokens"
            train_and_val = f"train {float(row['train_loss']):.3f}  val {losses['val_loss']:.3f}"
            bpb = f"bpb {losses['bpb']:.3f}"
            self.bar.write(f"step {row['step']:>6}  {tokens}  {train_and_val}  {bpb}")


def print_settings(run: Path, state: TrainingState, n_tokens: int, checkpoint: dict | None) -> None:
    """The size and place of the run, what decides its speed and rounding, and what has changed
    since its checkpoint."""
    config = state.config
    environment_now = state.constants["environment"]
    size = f"{state.model.num_params():,} parameters, {n_tokens:,} training tokens of {config.data}"
    step = f"{config.tokens_per_step:,} tokens per step, {config.optimizer}"
    print(f"{run}: {size}, {step}")
    print(", ".join(f"{name}: {value}" for name, value in environment_now.items()))
    if state.device.type == "cpu":
        n_free = free_cores()
        if n_free < torch.get_num_threads():
            print(f"Other programs use the processor: OMP_NUM_THREADS={n_free} may be much faster")
    if not checkpoint:
        return
    for part in ("environment", "train_config"):
        for name, before in checkpoint[part].items():
            now = state.constants[part][name]
            if now != before:
                print(f"changed since the checkpoint: {name}={now} (was {before})")
    if environment_now != checkpoint["environment"]:
        print("So results may differ in rounding from those of an uninterrupted run")
