"""A run in memory, and what of it a checkpoint holds."""

import math
from dataclasses import asdict

import torch

from nanostories.checkpoints.checkpoint import CHECKPOINT_FORMAT
from nanostories.cli import UserError
from nanostories.device import choose_dtype, environment, no_compile_reason
from nanostories.training.config import TrainConfig
from nanostories.training.data_order import Corpus
from nanostories.training.distributed import Ranks
from nanostories.training.optimizers import make_optimizers


class TrainingState:
    """A run, as ckpt.pt holds it: what steps change, and constants. (The data order and dropout
    need no state.)"""

    def __init__(self, model: torch.nn.Module, config: TrainConfig):
        self.model = model
        self.config = config
        self.device = next(model.parameters()).device
        self.compiled_model = model
        self.no_compile = no_compile_reason(self.device) if config.compile else "compile=False"
        if not self.no_compile:
            self.compiled_model = torch.compile(model, dynamic=False, fullgraph=True)
        self.dtype = choose_dtype(config.dtype, self.device)  # of matrix products
        device_type = self.device.type
        uses_autocast = self.dtype != torch.float32
        self.autocast = torch.autocast(device_type, self.dtype, enabled=uses_autocast)
        self.scaler = torch.amp.GradScaler(device_type, enabled=self.dtype == torch.float16)
        compiled = not self.no_compile
        self.optimizers = make_optimizers(model, config, self.dtype, compiled)
        self.constants = {}
        self.step = 0
        self.seconds = 0.0  # of training, without compiling, validation and saving
        self.best_val_loss = math.inf
        # Loss, gradient norm and number of steps, summed since the log's last row. They stay on the
        # device: reading them waits for it.
        self.sums = torch.zeros(3, device=self.device)

    @property
    def done(self) -> float:
        """The fraction of the run, by steps or by the clock, whichever ends it first."""
        done = self.step / self.config.max_steps
        if self.config.max_minutes:
            done = max(done, self.seconds / (60 * self.config.max_minutes))
        return min(1.0, done)

    def means(self) -> tuple[float, float]:
        """Loss and gradient norm since the log's last row. Waits for the device. UserError if they
        are not finite: nothing is saved then."""
        loss, norm, steps = self.sums.tolist()
        self.require_finite("loss or gradient", loss + norm)
        return loss / max(steps, 1), norm / max(steps, 1)

    def require_finite(self, name: str, value: float) -> None:
        if not math.isfinite(value):
            remedy = "--resume from before that with a lower learning_rate, or with dtype=float32"
            raise UserError(f"{name} became infinite or NaN by step {self.step}; {remedy}")

    def for_sampling(self) -> dict:
        return self.constants | {
            "model": self.model.state_dict(),
            "step": self.step,
            "best_val_loss": self.best_val_loss,
        }

    def for_resuming(self) -> dict:
        return self.for_sampling() | {
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "scaler": self.scaler.state_dict(),
            "sums": self.sums.tolist(),
            "seconds": self.seconds,
        }

    def restore(self, checkpoint: dict) -> None:
        self.model.load_state_dict(checkpoint["model"])
        for optimizer, state in zip(self.optimizers, checkpoint["optimizers"]):
            optimizer.load_state_dict(state)
        if checkpoint["scaler"]:  # empty if the run was not in float16 before
            self.scaler.load_state_dict(checkpoint["scaler"])
        self.sums += torch.tensor(checkpoint["sums"], device=self.device)
        self.step = checkpoint["step"]
        self.seconds = checkpoint["seconds"]
        self.best_val_loss = checkpoint["best_val_loss"]


def checkpoint_constants(state: TrainingState, corpus: Corpus, ranks: Ranks) -> dict:
    """What does not change from step to step."""
    config = state.config
    return {
        "format": CHECKPOINT_FORMAT,
        "architecture": config.architecture,
        "model_config": asdict(state.model.config),
        "train_config": asdict(config),
        "vocabulary": corpus.tokenizer.vocabulary,
        "data_sha256": corpus.sha256,
        "environment": environment(
            state.device,
            state.dtype,
            config.n_embd // config.n_head,
            config.dropout,
            ranks.size,
            state.no_compile,
        ),
    }
