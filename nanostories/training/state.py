"""A run in memory, and what of it a checkpoint holds."""

import math

import torch

from nanostories.checkpoints.checkpoint import CHECKPOINT_FORMAT
from nanostories.cli import UserError
from nanostories.device import choose_dtype, no_compile_reason
from nanostories.training.config import TrainConfig
from nanostories.training.data_order import Corpus
from nanostories.training.optimizers import make_optimizers


def compile_options(device: torch.device, config: TrainConfig) -> dict | None:
    """Of Inductor. On a GPU small kernels that need not wait for each other are launched together
    (casts of weights, sums of gradients): a third fewer launches (docs/results/gpu-by-count.md).
    """
    if device.type != "cuda":
        return None
    return {
        "combo_kernels": True,
        "combo_kernel_max_num_nodes": 64,
        "triton.mix_order_reduction": False,  # its sums would be launches of their own
        "triton.cudagraphs": config.cuda_graphs,
    }


class TrainingState:
    """The model and all that its steps change. (Data order, dropout and contrast need no state.)

    corpus: may be left out by who neither evaluates nor saves."""

    def __init__(self, model: torch.nn.Module, config: TrainConfig, corpus: Corpus | None = None):
        self.model = model
        self.config = config
        self.corpus = corpus
        self.device = next(model.parameters()).device
        # What is printed after "compiled": "no (why)"; None if it is
        self.why_eager = "no (compile=False)"
        if config.compile:
            self.why_eager = no_compile_reason(self.device)
        is_compiled = self.why_eager is None
        self.compiled_model = model
        if is_compiled:
            options = compile_options(self.device, config)
            self.compiled_model = torch.compile(
                model, dynamic=False, fullgraph=True, options=options
            )
        self.dtype = choose_dtype(config.dtype, self.device)  # of matrix products
        uses_autocast = self.dtype != torch.float32
        self.autocast = torch.autocast(self.device.type, self.dtype, enabled=uses_autocast)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.dtype == torch.float16)
        self.optimizers = make_optimizers(model, config, self.dtype, is_compiled)
        self.step = 0
        self.finished = False  # its end has been evaluated
        self.seconds = 0.0  # of training, without compiling, validation and saving
        self.best_val_loss = math.inf
        # Loss, gradient norm and number of steps, summed since the log's last row. They stay on the
        # device: reading them waits for it.
        self.sums = torch.zeros(3, device=self.device)

    @property
    def fraction_done(self) -> float:
        """By steps or by the clock, whichever ends the run first."""
        fraction = self.step / self.config.max_steps
        if self.config.max_minutes:
            fraction = max(fraction, self.seconds / (60 * self.config.max_minutes))
        return min(1.0, fraction)

    def check_finite(self) -> None:
        """Waits for the device. UserError if the loss or a gradient is infinite or NaN."""
        loss, norm, _ = self.sums.tolist()
        self.require_finite("loss or gradient", loss + norm)
        if self.scaler.is_enabled() and self.scaler.get_scale() < 1:
            # as if it were infinite: it was at every scale from 1 on
            self.require_finite("gradient in float16, at any scale,", math.inf)

    def require_finite(self, name: str, value: float) -> None:
        if not math.isfinite(value):
            problem = f"{name} became infinite or NaN by step {self.step}; nothing was saved since"
            remedy = "--resume with a lower --learning_rate, or with --dtype=float32"
            raise UserError(f"{problem}: {remedy}")

    # ---- Checkpoints ----
    def for_sampling(self) -> dict:
        return {
            "format": CHECKPOINT_FORMAT,
            "architecture": self.config.architecture,
            "model_config": vars(self.model.config),
            "train_config": vars(self.config),
            "vocabulary": self.corpus.tokenizer.vocabulary,
            "data_sha256": self.corpus.sha256,
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
            "finished": self.finished,
        }

    def restore(self, checkpoint: dict) -> None:
        """All but the weights: train() loads those, as it does for --start_from."""
        for optimizer, state in zip(self.optimizers, checkpoint["optimizers"]):
            optimizer.load_state_dict(state)
        if checkpoint["scaler"]:  # empty if the run was not in float16 before
            self.scaler.load_state_dict(checkpoint["scaler"])
        self.sums += torch.tensor(checkpoint["sums"], device=self.device)
        self.step = checkpoint["step"]
        self.seconds = checkpoint["seconds"]
        # not if the run was made longer
        self.finished = checkpoint["finished"] and self.fraction_done == 1
        self.best_val_loss = checkpoint["best_val_loss"]
