"""
Train a storyteller.

$ python train.py  # the demo: two minutes on built-in stories, then it tells one
$ python train.py configs/ts_8m.py  # a published model size, on a corpus made by prepare.py
# saves ten on the way: out/ts_8m/step-1000, ...
$ python train.py configs/ts_8m.py --keep_checkpoints=10
$ python train.py configs/ts_8m.py --resume         # continue a run that was stopped
# from published weights
$ python train.py configs/ts_33m.py --start_from=hf:roneneldan/TinyStories-33M --epochs=1
$ torchrun --standalone --nproc_per_node=8 train.py configs/ts_8m.py  # the same run on eight GPUs
"""

import contextlib
import itertools
import math
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from tqdm import tqdm

from model import GPTNeoConfig
from nanostories.checkpoints.checkpoint import CHECKPOINT_FORMAT, find_training_corpus
from nanostories.cli import UserError, one_line_errors
from nanostories.corpus import instruct_headers
from nanostories.corpus.sources import BUILTIN
from nanostories.corpus.token_files import load_meta
from nanostories.device import choose_dtype, describe, no_compile_reason, peak_flops, set_up_device
from nanostories.generation.backends import load_backend, stream_story
from nanostories.generation.prompts import Sampling, openings
from nanostories.kernels.attention import story_starts
from nanostories.kernels.cpu_features import free_cores
from nanostories.training import run_directory
from nanostories.training.config import TrainConfig, parse_command_line, settings_line
from nanostories.training.data_order import Batches, Corpus, TokenStream, load_corpus, story_windows
from nanostories.training.distributed import SINGLE_PROCESS, Ranks, stop_signal
from nanostories.training.optimizers import learning_rate, make_optimizers
from nanostories.training.start_from import add_bigram_embeddings, copy_weights, load_source
from nanostories.variants import MODELS
from nanostories.variants.contrastive import Contrastive, sentence_ends

EVAL_BATCH_SIZE = 32  # windows
Loss = Callable[
    [torch.Tensor, torch.Tensor], torch.Tensor
]  # (inputs, targets), (B, T) each -> mean loss in nats


def train(config: TrainConfig, resume: bool, ranks: Ranks = SINGLE_PROCESS) -> tuple[Path, bool]:
    """Train as the config says. Returns the run's directory and whether the run finished.

    All ranks have the same weights at every step: each takes its share of the sequences, and
    gradients are added up. Without dropout or the contrastive loss, another number of ranks only
    changes the order of floating-point sums."""
    device, run = set_up_device(config.device, ranks), Path(config.out_dir, config.name)
    with contextlib.ExitStack() as cleanup:
        cleanup.enter_context(ranks.connected(device))

        # Data
        checkpoint, source = None, None
        if resume:
            checkpoint, config = run_directory.load_resumable(run, config)
        elif config.start_from:
            source, config = load_source(config)
        if ranks.local_rank == 0:  # every machine may have its own disk
            make_builtin(config)
        ranks.barrier()  # the other ranks wait until the data is there
        corpus = load_corpus(config)
        if checkpoint and checkpoint["data_sha256"] != corpus.sha256:
            current_path = find_training_corpus(checkpoint)
            remedy = f"--data={current_path.name}" if current_path else "another --name"
            raise UserError(
                f"{run} was trained on other data than {config.data} holds now; use {remedy}"
            )
        if config.epochs:
            config = replace(
                config,
                max_steps=math.ceil(config.epochs * len(corpus.train) / config.tokens_per_step),
            )
        batches = Batches(corpus, config, ranks, device)

        # Model, loss and optimizers
        dtype, end_of_text = choose_dtype(config.dtype, device), corpus.tokenizer.end_of_text
        torch.manual_seed(config.seed)
        shape = GPTNeoConfig(vocab_size=corpus.tokenizer.vocab_size, **config.model_shape())
        model, start = MODELS[config.architecture](shape).to(device), time.perf_counter()
        if config.copy_init:
            model.init_copying(config.copy_init)  # each head predicts the tokens it attends to
        if source:
            copy_weights(model, source, corpus.tokenizer, config)
        elif config.bigram_init and not checkpoint:
            add_bigram_embeddings(model, corpus.train, config.bigram_init, ranks)
        seconds = ranks.max(time.perf_counter() - start)  # counts as training
        if ranks.rank == 0:
            step = checkpoint["step"] if checkpoint else 0
            cleanup.enter_context(run_directory.lock_and_prepare(run, config, step, resume))
        not_compiled_because = no_compile_reason(device) if config.compile else "compile=False"
        compiled = (
            model if not_compiled_because else torch.compile(model, dynamic=False, fullgraph=True)
        )
        loss_of = loss_function(compiled, config, end_of_text)
        if config.contrast != "none":  # raise the loss of stories whose sentences are shuffled
            ends = sentence_ends(corpus.tokenizer).to(device)
            loss_of = Contrastive(loss_of, ends, end_of_text, config.contrast_alpha)
        optimizers = make_optimizers(model, config, dtype, compiled=not not_compiled_because)

        # Everything that a checkpoint holds
        environment = describe(config, device, dtype, ranks.size, not_compiled_because)
        constants = dict(
            format=CHECKPOINT_FORMAT,
            data_sha256=corpus.sha256,
            vocabulary=corpus.tokenizer.vocabulary,
        )
        constants |= dict(
            architecture=config.architecture,
            model_config=asdict(shape),
            train_config=asdict(config),
        )
        state = TrainingState(
            model, optimizers, dtype, constants | dict(environment=environment), seconds=seconds
        )
        if checkpoint:
            state.restore(checkpoint)

        if ranks.rank == 0:
            size = (
                f"{model.num_params():,} parameters, {len(corpus.train):,} training tokens of"
                f" {config.data}"
            )
            print(
                f"{run}: {size}, {config.tokens_per_step:,} tokens per step;"
                f" {settings_line(config)}"
            )
            print(", ".join(f"{key}: {value}" for key, value in environment.items()))
            if device.type == "cpu" and (free := free_cores()) < torch.get_num_threads():
                print(
                    f"Other programs are using the processor: OMP_NUM_THREADS={free} may be several"
                    " times as fast"
                )
            before = checkpoint["environment"] if checkpoint else environment
            if changed := [
                f"{key} (was {before[key]})"
                for key in environment
                if environment[key] != before[key]
            ]:
                effect = "results may differ in rounding from an uninterrupted run"
                print(f"changed since the checkpoint: {', '.join(changed)}; {effect}")
            for key, value in checkpoint["train_config"].items() if checkpoint else ():
                if value != vars(config)[key]:
                    print(
                        f"changed since the checkpoint: {key}={vars(config)[key]!r} (was {value!r})"
                    )
        # An evaluation is not compiled: for its few batches that would take longer than it saves.
        validate = partial(
            evaluate, loss_function(model, config, end_of_text), state, corpus, config.block_size
        )
        if source and ranks.rank == 0:
            start = f"starts from {config.start_from}, block_size {config.block_size}"
            print(f"{start}: validation loss {validate()['val_loss']:.5f}")
        should_stop = cleanup.enter_context(stop_signal(ranks))
        return run, train_loop(config, state, loss_of, batches, validate, should_stop)


def train_loop(config, state, loss_of, batches, validate, should_stop) -> bool:
    """Trains until the run is finished or told to stop; returns whether it is finished. train()
    makes the arguments."""
    run, ranks = Path(config.out_dir, config.name), batches.ranks
    peak = peak_flops(state.device, state.dtype) * ranks.size  # the denominator of MFU
    fraction_done = run_directory.progress(config, state.step, state.seconds)
    first_step, clock = state.step + 1, time.perf_counter()
    layout = "{percentage:3.0f}% |{bar:20}| {elapsed}<{remaining}{postfix}"
    # disable=None shows the bar only in a terminal
    bar = tqdm(
        total=1.0,
        initial=fraction_done,
        bar_format=layout,
        disable=None if ranks.rank == 0 else True,
    )
    stream = remaining_micro_batches(batches, config, state)
    row_step, row_seconds = state.step, state.seconds  # at the last row of the log
    state.model.train()
    while fraction_done < 1:
        lr = learning_rate(state.step, fraction_done, config)
        for group in itertools.chain.from_iterable(
            optimizer.param_groups for optimizer in state.optimizers
        ):
            group["lr"] = lr
        step_batches = itertools.islice(stream, batches.n_micro_batches)
        if not train_step(state, loss_of, step_batches, config.grad_clip, ranks, should_stop):
            break

        # The clock
        if state.step in (
            first_step,
            config.short_window_steps + 1,
        ):  # with compiling, which does not count
            state.means()  # waits for the device
            clock, row_step, row_seconds = time.perf_counter(), state.step, state.seconds
        now = time.perf_counter()
        state.seconds, clock = ranks.max(state.seconds + now - clock), now
        before, fraction_done = (
            fraction_done,
            run_directory.progress(config, state.step, state.seconds),
        )
        bar.update(fraction_done - before)
        is_checkpoint_due = run_directory.checkpoint_due(config, before, fraction_done)
        evaluating = (
            is_checkpoint_due or fraction_done >= 1 or state.step % config.eval_interval == 0
        )
        if state.step % config.log_interval and not evaluating:
            continue

        # The log
        train_loss, grad_norm = (
            state.means()
        )  # waits for the device, whose work has not been counted yet
        now = time.perf_counter()
        state.seconds, clock = ranks.max(state.seconds + now - clock), now
        row = dict(
            step=state.step,
            tokens=state.step * config.tokens_per_step,
            train_loss=f"{train_loss:.5f}",
        )
        row |= dict(
            learning_rate=f"{lr:.3g}", grad_norm=f"{grad_norm:.4g}", seconds=f"{state.seconds:.2f}"
        )
        if state.step > row_step:
            tokens_per_s = (
                (state.step - row_step) * config.tokens_per_step / (state.seconds - row_seconds)
            )
            flops_per_s = tokens_per_s * state.model.flops_per_token(config.block_size)
            peak = max(
                peak, flops_per_s
            )  # the peak, measured at the start, is too low if the machine was busy
            row |= dict(tokens_per_s=f"{tokens_per_s:.0f}", mfu=f"{flops_per_s / peak:.4f}")
            bar.set_postfix_str(
                f" step {state.step}, loss {train_loss:.3f}, {tokens_per_s:,.0f} tok/s",
                refresh=False,
            )
        row_step, row_seconds = state.step, state.seconds
        state.sums.zero_()
        if ranks.rank == 0:
            result = validate() if evaluating else {}
            row |= {name: f"{value:.5f}" for name, value in result.items()}
            run_directory.append_row(
                run / "log.csv", row
            )  # before ckpt.pt, so that a resumed run cannot miss this row
            if evaluating:
                losses = (
                    f"train {train_loss:.3f}  val {result['val_loss']:.3f}  bpb {result['bpb']:.3f}"
                )
                bar.write(f"step {state.step:>6}  {row['tokens'] / 1e6:8.2f} M tokens  {losses}")
                save(run, config, state, row, result["val_loss"], is_checkpoint_due)
        clock = time.perf_counter()
    bar.close()
    if fraction_done < 1 and ranks.rank == 0:
        state.means()  # raises if the loss is NaN, so that nothing is saved
        run_directory.save_checkpoint(
            run / "ckpt.pt", state.for_resuming(), previous=run / run_directory.PREVIOUS
        )
    return fraction_done >= 1


# ---- The state, a step, an evaluation ----
@dataclass
class TrainingState:
    """A run, as ckpt.pt holds it: what steps change, and constants. (The data order and dropout
    need no state.)"""

    model: torch.nn.Module
    optimizers: list[torch.optim.Optimizer]
    dtype: torch.dtype = torch.float32  # dtype of matrix products
    constants: dict = field(default_factory=dict)  # the rest of a checkpoint: settings, vocabulary
    step: int = 0
    seconds: float = (
        0.0  # spent in training, with bigram_init; without compiling, validation and saving
    )
    best_val_loss: float = math.inf

    def __post_init__(self):
        self.device = next(self.model.parameters()).device
        self.autocast = torch.autocast(
            self.device.type, self.dtype, enabled=self.dtype != torch.float32
        )
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.dtype == torch.float16)
        # Sums of loss, gradient norm and steps since the log's last row. On the device: reading
        # them waits for it.
        self.sums = torch.zeros(3, device=self.device)

    def means(self) -> tuple[float, float]:
        """Loss and gradient norm since the log's last row. ValueError if they are not finite:
        nothing is saved then."""
        loss, norm, steps = self.sums.tolist()
        self.require_finite("loss or gradient", loss + norm)
        return loss / max(steps, 1), norm / max(steps, 1)

    def require_finite(self, name: str, value: float) -> None:
        if not math.isfinite(value):
            remedy = (
                "the checkpoints are from before that; try a lower learning_rate or dtype=float32"
            )
            raise UserError(f"{name} became infinite or NaN by step {self.step}; {remedy}")

    def for_sampling(self) -> dict:
        return self.constants | dict(
            model=self.model.state_dict(), step=self.step, best_val_loss=self.best_val_loss
        )

    def for_resuming(self) -> dict:
        more = dict(
            scaler=self.scaler.state_dict(), since_log=self.sums.tolist(), seconds=self.seconds
        )
        return (
            self.for_sampling()
            | more
            | dict(optimizers=[optimizer.state_dict() for optimizer in self.optimizers])
        )

    def restore(self, checkpoint: dict) -> None:
        self.model.load_state_dict(checkpoint["model"])
        for optimizer, state in zip(self.optimizers, checkpoint["optimizers"]):
            optimizer.load_state_dict(state)
        if checkpoint[
            "scaler"
        ]:  # empty if the run was not in float16 before: then the scale is found again
            self.scaler.load_state_dict(checkpoint["scaler"])
        self.sums += torch.tensor(checkpoint["since_log"], device=self.device)
        self.step, self.seconds, self.best_val_loss = (
            checkpoint[key] for key in ("step", "seconds", "best_val_loss")
        )


def train_step(
    state: TrainingState,
    loss_of: Loss,
    micro_batches: Iterable,
    grad_clip: float = 1.0,
    ranks: Ranks = SINGLE_PROCESS,
    should_stop: Callable[[], bool] = lambda: False,
) -> bool:
    """One step of the optimizers. False if it was told to stop: then weights and optimizers are as
    before.

    micro_batches: (inputs, targets, weight); the weight is its share of the step's mean loss. No
    host-device sync on a GPU, except for the overflow check in float16."""
    total = torch.zeros((), device=state.device)
    for inputs, targets, weight in micro_batches:
        if should_stop():
            return False
        with state.autocast:
            loss = loss_of(inputs, targets) * weight
        total += loss.detach()
        state.scaler.scale(loss).backward()
    ranks.sum([total, *(parameter.grad for parameter in state.model.parameters())])
    for optimizer in state.optimizers:
        state.scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(state.model.parameters(), grad_clip or math.inf)
    if state.scaler.is_enabled() and not norm.isfinite():
        norm = torch.zeros_like(
            norm
        )  # a gradient has overflowed: no optimizer takes this step, and the scale shrinks
    else:
        for optimizer in state.optimizers:
            state.scaler.step(optimizer)
    state.scaler.update()
    for optimizer in state.optimizers:
        # frees them: filling them with zeros and adding to those would take longer
        optimizer.zero_grad()
    state.sums += torch.stack([total, norm, torch.ones_like(total)])
    state.step += 1
    return True


@torch.no_grad()
def evaluate(loss_of: Loss, state: TrainingState, corpus: Corpus, block_size: int) -> dict:
    """val_loss (nats per token) and bpb (bits per UTF-8 byte) over the validation tokens, in
    windows that each begin with a story. Where they overlap, a token counts in the later one; but
    the last window, which ends with the split, counts only what the one before did not reach.
    Headers (instructions) never count, so that runs compare."""
    target_mask = (
        instruct_headers.story_tokens(corpus.val, corpus.tokenizer) if corpus.has_headers else None
    )
    stream = TokenStream(corpus.val, state.device, target_mask)
    windows = story_windows(corpus.val, block_size, corpus.tokenizer.end_of_text)
    first, end = np.zeros_like(windows), np.diff(windows, append=windows[-1] + block_size)
    if len(windows) > 1:  # each window counts its positions from `first` to before `end`
        first[-1], end[-2] = windows[-2] + block_size - windows[-1], block_size
    position, byte_lengths = (
        np.arange(block_size),
        torch.from_numpy(corpus.tokenizer.byte_lengths()).to(state.device),
    )
    counted = torch.from_numpy((first[:, None] <= position) & (position < end[:, None])).to(
        state.device
    )
    # (loss, tokens, bytes) of each batch, on the device: reading them would wait for it
    per_batch = []
    state.model.eval()
    for i in range(0, len(windows), EVAL_BATCH_SIZE):
        batch = slice(i, i + EVAL_BATCH_SIZE)
        inputs, targets = stream.read(windows[batch], block_size)
        targets = targets.where(counted[batch], -100)
        with state.autocast:
            loss = loss_of(inputs, targets)
        n_bytes = byte_lengths[targets.clamp(min=0)].where(targets >= 0, 0).sum()
        per_batch.append(torch.stack([loss, (targets >= 0).sum(), n_bytes]))
    state.model.train()
    losses, n_tokens, n_bytes = torch.stack(per_batch).cpu().double().T
    nats = losses @ n_tokens
    return dict(
        val_loss=(nats / n_tokens.sum()).item(), bpb=(nats / math.log(2) / n_bytes.sum()).item()
    )


def remaining_micro_batches(
    batches: Batches, config: TrainConfig, state: TrainingState
) -> Iterator[tuple]:
    """All micro-batches from here on. Says once, after three of them and five seconds, how long the
    run will take."""
    n, start = 0, math.inf
    for step in itertools.count(state.step):
        for micro_batch in batches.step_batches(step):
            yield micro_batch
            n += 1
            if n == 1:  # it includes compiling
                start = time.perf_counter()
            elif n >= 3 and time.perf_counter() > start + 5 and batches.ranks.rank == 0:
                step_seconds = (time.perf_counter() - start) / (n - 1) * batches.n_micro_batches
                left, start = (config.max_steps - step) * step_seconds, math.inf
                if config.max_minutes:
                    left = min(
                        left,
                        max(60 * config.max_minutes, config.min_steps * step_seconds)
                        - state.seconds,
                    )
                speed = f"{config.tokens_per_step / step_seconds:,.0f} tokens/s on this machine"
                tqdm.write(f"{speed}: about {tqdm.format_interval(left)} to go")


# ---- Data, files, the first story ----
def make_builtin(config: TrainConfig) -> None:
    if config.data in BUILTIN and not Path(config.data_dir, config.data).exists():
        command = [
            sys.executable,
            Path(__file__).with_name("prepare.py"),
            config.data,
            "--data_dir",
            config.data_dir,
        ]
        if subprocess.run(command, stdout=subprocess.DEVNULL).returncode:
            raise UserError(f"{config.data} could not be prepared: see above")


def loss_function(model: torch.nn.Module, config: TrainConfig, end_of_text: int) -> Loss:
    starts_of = story_starts if config.attend_within_story else lambda *_: None
    return lambda inputs, targets: model(inputs, targets, starts_of(inputs, end_of_text))[1]


def save(
    run: Path, config: TrainConfig, state: TrainingState, row: dict, val_loss: float, keep: bool
) -> None:
    """Saves checkpoints and the loss plot after an evaluation. ValueError if its loss is not
    finite."""
    state.require_finite("validation loss", val_loss)
    if keep:
        run_directory.keep_weights(
            run, state.for_sampling(), config, row
        )  # first: if killed now, it is done again
    if val_loss < state.best_val_loss:
        state.best_val_loss = val_loss
        run_directory.save_checkpoint(run / "best.pt", state.for_sampling())
    run_directory.save_checkpoint(
        run / "ckpt.pt", state.for_resuming(), previous=run / run_directory.PREVIOUS
    )
    plot_run(run, config)


def plot_run(run: Path, config: TrainConfig) -> None:
    from nanostories.figures import (
        save_figure,  # imported here because matplotlib takes a while to import
    )
    from nanostories.pages.runs import loss_figure, read_curve

    save_figure(
        loss_figure({run.name: read_curve(run / "log.csv")}, {run.name: config.data}),
        run / "loss.png",
    )


def tell_a_story(run: Path, config: TrainConfig) -> None:
    """Shows what the model has learned, and what to do next."""
    data = Path(config.data_dir, config.data)
    prompt, flags = "", "".join(f"--prompt {shlex.quote(opening)}" for opening in openings(data, 1))
    if "headers" in load_meta(data):
        prompt, flags = (
            instruct_headers.format_header(dict(words="hide, fox, little")),
            '--words "jump, frog, red"',
        )
    print()
    stream_story(load_backend(str(run)), prompt, Sampling(temperature=0.6, seed=config.seed))
    warnings = run_directory.busy_machine_warning(run) + run_directory.overfitting_warning(run)
    print(f"\n{warnings}Everything is in {run}/ (loss curve: loss.png)")
    print(f"Next: python sample.py --model {run} --temperature 0.6 {flags}")


def main():
    # Write line by line, so that a log file can be followed, and replace characters that a terminal
    # cannot show.
    sys.stdout.reconfigure(line_buffering=True, errors="replace")
    ranks, args = Ranks.from_environment(), sys.argv[1:]
    name = "train.py" if ranks.size == 1 else f"train.py, process {ranks.rank}"
    resume_hint = "--resume continues from the last checkpoint, if there is one"
    with one_line_errors(
        name, interrupted=resume_hint, remedy=f"free disk space or fix the problem; {resume_hint}"
    ):
        config, resume = parse_command_line(args, __doc__)
        try:
            run, finished = train(config, resume, ranks)
        except (RuntimeError, MemoryError) as error:
            # Out of memory is an OutOfMemoryError (a RuntimeError) on a GPU, and a plain
            # RuntimeError on a CPU.
            if isinstance(
                error, (torch.OutOfMemoryError, MemoryError)
            ) or "can't allocate memory" in str(error):
                sys.exit(f"{name}: out of memory; halve batch_size and double grad_accum_steps")
            if "CppCompileError" in repr(error):
                cause = next(
                    (line for line in str(error).splitlines() if "error:" in line), "it was stopped"
                )
                sys.exit(
                    f"{name}: compiling failed: {cause.strip()}; try again, or --compile=False"
                )
            if ranks.size > 1 and (isinstance(error, dist.DistError) or "gloo" in str(error)):
                sys.exit(f"{name}: another process has failed, see its message; {resume_hint}")
            raise
        if not finished:
            remedy = f"Run the same command with --resume to continue from {run / 'ckpt.pt'}"
            sys.exit(f"Stopped and saved. {remedy}" if ranks.rank == 0 else 1)
        if ranks.rank == 0:
            tell_a_story(run, config)


if __name__ == "__main__":
    main()
