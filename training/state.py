"""
Everything that a training step changes. ckpt.pt holds it, so that a resumed run continues exactly.
(The order of the data needs no state: data_order.py.)
"""

import dataclasses
import math

import torch

from checkpoints.checkpoint import CHECKPOINT_FORMAT
from kernels.compile_cpp import dtype_name
from model import GPTNeoConfig
from training.config import TrainConfig
from training.data_order import Corpus
from training.distributed import Ranks
from training.optimizers_and_schedule import AllOptimizers, make_optimizers
from training.run_directory import TrainingError
from variants.compressor import MODELS


class TrainingState:
    def __init__(
        self,
        config: TrainConfig,
        shape: GPTNeoConfig,
        corpus: Corpus,
        device: torch.device,
        dtype: torch.dtype,
        fast_dtype: torch.dtype,
        compile_muon: bool = False,
    ):
        """Before the first step. dtype: of the model's matrix products; fast_dtype: of Muon's, unless it is float16,
        whose range is too small for the gradients."""
        torch.manual_seed(config.seed)
        model = MODELS[config.model](shape)
        if config.copy_init:
            model.init_copying(config.copy_init)
        self.model = model.to(device)
        muon_dtype = torch.float32 if fast_dtype == torch.float16 else fast_dtype
        self.optimizers = AllOptimizers(make_optimizers(model, config, muon_dtype, compile_muon))
        self.scaler = torch.amp.GradScaler(device.type, enabled=dtype == torch.float16)
        self.step, self.seconds, self.best_val_loss = 0, 0.0, math.inf
        self.logged_step = 0  # the step of the log's last row
        # Sums since that row: loss, gradient norm, steps with both finite. On the device, as reading them waits for it.
        self.sums = torch.zeros(3, device=device)
        self.constants = dict(
            format=CHECKPOINT_FORMAT,
            model_class=config.model,
            model_config=dataclasses.asdict(shape),
            train_config=dataclasses.asdict(config),
            gpt2_ids=corpus.tokenizer.gpt2_ids,
            data_sha256=corpus.sha256,
        )
        self.fast_dtype = dtype_name(fast_dtype)

    def restore(self, checkpoint: dict, logged_step: int) -> None:
        """logged_step: the last row of log.csv, for checkpoints that are older than their own logged_step."""
        self.model.load_state_dict(checkpoint["model"])
        self.optimizers.load_state_dicts(checkpoint["optimizers"])
        if checkpoint["scaler"]:  # empty if the run was not in float16 before: then the scale is found again
            self.scaler.load_state_dict(checkpoint["scaler"])
        self.step, self.seconds = checkpoint["step"], checkpoint["seconds"]
        self.best_val_loss = checkpoint["best_val_loss"]
        self.logged_step = checkpoint.get("logged_step", logged_step)
        self.sums += torch.tensor([*checkpoint["sums"], self.step - self.logged_step], device=self.sums.device)

    def for_sampling(self) -> dict:
        """best.pt: all that it takes to use the model."""
        model = self.model.state_dict()
        return self.constants | dict(model=model, step=self.step, best_val_loss=self.best_val_loss)

    def for_resuming(self, sums: list[float]) -> dict:
        """ckpt.pt. sums: of loss and gradient norm since the last row of the log, mean over ranks."""
        return self.for_sampling() | dict(
            seconds=self.seconds,
            sums=sums,
            logged_step=self.logged_step,
            optimizers=self.optimizers.state_dicts(),
            scaler=self.scaler.state_dict(),
            fast_dtype=self.fast_dtype,
            device=self.sums.device.type,
        )

    def set_learning_rate(self, learning_rate: float) -> None:
        for group in self.optimizers.param_groups:
            group["lr"] = learning_rate * group.get("lr_factor", 1.0)

    def optimizer_step(self, grad_clip: float) -> None:
        """Uses the accumulated gradients. In float16 they may overflow: the scaler then skips the step."""
        self.scaler.unscale_(self.optimizers)
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), grad_clip or math.inf)
        if self.scaler.is_enabled():
            norm = norm.nan_to_num(nan=0.0, posinf=0.0)  # of a step that will be skipped
        self.sums[1] += norm
        self.sums[2] += self.sums[:2].isfinite().all()
        self.scaler.step(self.optimizers)
        self.optimizers.zero_grad()
        self.scaler.update()
        self.step += 1

    def log_was_written(self) -> None:
        """Starts a new row."""
        self.sums.zero_()
        self.logged_step = self.step

    def sums_over_ranks(self, ranks: Ranks) -> list[float]:
        """Sums of loss and gradient norm since the last row of the log, mean over ranks.

        A TrainingError if one was not finite: nothing is saved without calling this.
        """
        loss, norm = (ranks.all_reduce_sum(self.sums[:2].clone()) / ranks.world_size).tolist()  # waits for the device
        n_finite = round(ranks.all_reduce_min(self.sums[2].clone()).item())
        if n_finite < self.step - self.logged_step:
            raise TrainingError(
                f"at step {self.logged_step + n_finite + 1} the loss or its gradient became infinite or NaN; the "
                "checkpoints are from before that; try a lower learning_rate or dtype=float32"
            )
        return [loss, norm]
