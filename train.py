"""
Train a storyteller.

$ python train.py                                     # the demo, on built-in stories; tells one
$ python train.py configs/ts_8m.py                    # a published size, on a corpus of prepare.py
$ python train.py configs/ts_8m.py configs/fast.py    # settings that reach the same loss sooner
$ python train.py --resume out/ts_8m                  # continue a run that was stopped
$ python train.py configs/ts_8m.py --keep_checkpoints=10   # also keeps out/ts_8m/step-1000, …
$ python train.py configs/ts_33m.py --start_from=hf:roneneldan/TinyStories-33M --epochs=1
$ torchrun --standalone --nproc_per_node=8 train.py configs/ts_8m.py    # the same on eight GPUs
"""

import contextlib
import math
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from model import GPTNeo, GPTNeoConfig
from nanostories.checkpoints.checkpoint import save_checkpoint
from nanostories.checkpoints.models import open_model
from nanostories.cli import UserError, one_line_errors
from nanostories.corpus import instruct_headers
from nanostories.corpus.sources import BUILTIN
from nanostories.corpus.token_files import load_meta
from nanostories.device import set_up_device
from nanostories.generation.backends import load_backend, stream_story
from nanostories.generation.prompts import Sampling, header_words, openings
from nanostories.kernels.attention import story_starts
from nanostories.training import run_directory
from nanostories.training.bigram_init import add_bigram_embeddings
from nanostories.training.config import TrainConfig, parse_command_line
from nanostories.training.data_order import (
    IGNORED,
    Batches,
    Corpus,
    load_corpus,
    story_windows,
)
from nanostories.training.distributed import SINGLE_PROCESS, Ranks, stop_signal
from nanostories.training.log import TrainingLog, print_settings
from nanostories.training.optimizers import learning_rate
from nanostories.training.start_from import load_resumable, load_source
from nanostories.training.state import TrainingState
from nanostories.variants import MODELS
from nanostories.variants.contrastive import Loss, sentence_ends, with_contrast

EVAL_BATCH_SIZE = 32  # windows in a batch of an evaluation, unless batch_size is smaller
EXAMPLE_WORDS = ("hide, fox, little", "jump, frog, red")  # where no header asks for words
MEMORY_ERRORS = ("can't allocate memory", "not enough memory", "out of memory")
RESUME_HINT = "--resume continues from the last checkpoint, if there is one"


def train(config: TrainConfig, resume: bool, ranks: Ranks = SINGLE_PROCESS) -> tuple[Path, bool]:
    """Train as the config says. Returns the run's directory and whether the run finished.

    Each rank takes its share of a step's windows, and gradients are summed over ranks. So the
    result does not depend on how many ranks there are, but for rounding, and for what dropout and
    contrast draw."""
    run = Path(config.out_dir, config.name)
    device = set_up_device(config.device, ranks.local_rank if ranks.size > 1 else None)
    with contextlib.ExitStack() as cleanup:
        cleanup.enter_context(ranks.connected(device))

        # Where the weights come from: a checkpoint of this run, another model, or chance
        checkpoint = None
        if resume:
            checkpoint, config = load_resumable(run, config)
        elif config.start_from:
            checkpoint, config = load_source(config)

        # Data
        make_builtin(config, ranks)
        corpus = load_corpus(config, device)
        if checkpoint:
            require_same_corpus(corpus, config, checkpoint)
        batches = Batches(corpus, config, ranks)
        if config.epochs:
            config = replace(config, max_steps=batches.steps_in(config.epochs))

        # Model and optimizers
        model = make_model(config, corpus, device)
        state = TrainingState(model, config, corpus)
        if checkpoint:
            model.load_state_dict(checkpoint["model"])
            if resume:
                state.restore(checkpoint)
            del checkpoint  # else its tensors, now copied, stay in memory all through the run
        elif config.bigram_init:
            start = time.perf_counter()
            add_bigram_embeddings(model, corpus.train.tokens, config.bigram_init, ranks)
            state.seconds = ranks.max(time.perf_counter() - start)  # counts as training

        loss_of = training_loss(state)
        log = TrainingLog(run, state, ranks)
        cleanup.callback(log.bar.close)
        if ranks.rank == 0:
            last_step = state.step if resume else None
            cleanup.enter_context(run_directory.open_run_directory(run, vars(config), last_step))
            print_settings(run, state, ranks)
            if state.finished:
                steps = f"{state.step:,} of {config.max_steps:,} steps"
                remedy = "a larger --max_steps, --epochs or --max_minutes continues it"
                print(f"already finished: {steps}, {state.seconds / 60:.1f} minutes; {remedy}")
            if config.start_from and not resume:
                print(f"{config.start_from}: val_loss {evaluate(state)['val_loss']:.5f}")
        should_stop = cleanup.enter_context(stop_signal(ranks))
        return run, train_loop(state, loss_of, batches, log, should_stop)


def train_loop(
    state: TrainingState,
    loss_of: Loss,
    batches: Batches,
    log: TrainingLog,
    should_stop: Callable[[], bool],
) -> bool:
    """Trains until the run is finished or told to stop; returns whether it is finished."""
    config = state.config
    state.model.train()
    # At least one step: the bigrams of a short run may have taken all of its time
    done = state.fraction_done if state.step else 0.0
    while not state.finished and not should_stop():
        lr = learning_rate(state.step, done, config)
        for optimizer in state.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = lr
        with log.clock():
            train_step(state, loss_of, batches.for_step(state.step), batches.ranks)
        done_before = done
        done = state.fraction_done
        state.finished = done >= 1
        keep = run_directory.checkpoint_due(config.keep_checkpoints, done_before, done)
        if keep or state.finished or state.step % config.eval_interval == 0:
            evaluate_and_save(state, log, done, lr, keep)
        elif state.step % config.log_interval == 0:
            log.wait_and_check()
            log.write_row(done, lr, {})
    if not state.finished:
        log.wait_and_check()
        if batches.ranks.rank == 0:
            save_checkpoint(log.run / "ckpt.pt", state.for_resuming())
    return state.finished


def evaluate_and_save(
    state: TrainingState, log: TrainingLog, done: float, lr: float, keep: bool
) -> None:
    """Saves checkpoints and the loss plot after an evaluation. UserError if a loss is not finite.

    done: fraction of the run; keep: also the weights of this step"""
    log.wait_and_check()
    losses = {}
    if log.ranks.rank == 0:
        losses = evaluate(state)
    # Before ckpt.pt, so that a resumed run cannot miss this row
    row = log.write_row(done, lr, losses)
    if log.ranks.rank > 0:
        return
    val_loss = losses["val_loss"]
    state.require_finite("validation loss", val_loss)
    if keep:  # first: if the run is killed now, this is done again
        run_directory.keep_weights(log.run, state.for_sampling(), row)
    if val_loss < state.best_val_loss:
        state.best_val_loss = val_loss
        save_checkpoint(log.run / "best.pt", state.for_sampling())
    save_checkpoint(log.run / "ckpt.pt", state.for_resuming())
    plot_run(log.run, state.config)


def plot_run(run: Path, config: TrainConfig) -> None:
    # Imported here because matplotlib takes a while to import.
    from nanostories.figures import save_figure
    from nanostories.training.curves import loss_figure, read_curve

    curves = {run.name: read_curve(run / "log.csv")}
    save_figure(loss_figure(curves, {run.name: config.data}), run / "loss.png")


# ---- A step, an evaluation ----
def train_step(state: TrainingState, loss_of: Loss, micro_batches, ranks=SINGLE_PROCESS) -> None:
    """One step of the optimizers.

    micro_batches: (inputs, targets, weight); the weight is its share of the step's mean loss. The
    host does not wait for a GPU here, except for the overflow check in float16."""
    loss, gradients = loss_and_gradients(state, loss_of, micro_batches)
    ranks.sum([loss, *gradients])
    for parameter, gradient in zip(state.model.parameters(), gradients):
        parameter.grad = gradient
    norm = clip_and_update(state)
    state.sums += torch.stack([loss, norm, torch.ones_like(loss)])
    state.step += 1


def loss_and_gradients(state: TrainingState, loss_of: Loss, micro_batches) -> tuple:
    """The mean loss, and its gradients (float16: scaled)."""
    total = torch.zeros((), device=state.device)
    parameters = list(state.model.parameters())
    gradients = None
    for inputs, targets, weight in micro_batches:
        with state.autocast:
            loss = loss_of(inputs, targets) * weight
        total += loss.detach()
        # Not backward(), which adds to each parameter's .grad by a launch of its own
        new_gradients = torch.autograd.grad(state.scaler.scale(loss), parameters)
        if gradients:
            torch._foreach_add_(gradients, new_gradients)
        elif state.config.cuda_graphs:
            # A copy, as the graph's next replay writes to its own.
            gradients = torch._foreach_mul(new_gradients, 1)
        else:
            gradients = new_gradients
    return total, gradients


def clip_and_update(state: TrainingState) -> torch.Tensor:
    """Clips the gradients, updates the weights; returns the norm before clipping. A gradient beyond
    float16 stops all of the optimizers for this step, and the loss is scaled less from then on."""
    for optimizer in state.optimizers:
        state.scaler.unscale_(optimizer)
    largest_norm = state.config.grad_clip or math.inf
    norm = torch.nn.utils.clip_grad_norm_(state.model.parameters(), largest_norm)
    overflow = state.scaler.is_enabled() and not norm.isfinite()
    for optimizer in state.optimizers:
        if not overflow:  # not scaler.step, which looks at the gradients of one optimizer alone
            optimizer.step()
        # Frees the gradients: filling them with zeros and adding to those would take longer.
        optimizer.zero_grad()
    state.scaler.update()
    # 0: an infinite norm would make the mean in the log infinite
    return torch.zeros_like(norm) if overflow else norm


@torch.no_grad()
def evaluate(state: TrainingState) -> dict[str, float]:
    """val_loss (nats per token) and bpb (bits per UTF-8 byte) over the validation tokens, in
    windows that begin with stories wherever they can. Where windows overlap, a token counts in the
    later one. Headers (instructions) never count, so that runs compare."""
    # Not compiled: for so few batches, that takes longer than it saves
    loss_of = next_token_loss(state, state.model)
    block_size = state.config.block_size
    tokenizer = state.corpus.tokenizer
    stream = state.corpus.val
    starts = story_windows(stream.tokens, block_size, tokenizer.end_of_text)
    # a window's first targets, up to where the next window begins
    n_scored = np.diff(starts, append=len(stream.tokens))
    positions = torch.arange(block_size, device=state.device)
    # (loss, tokens) of each batch, on the device: reading them would wait for it
    per_batch = []
    state.model.eval()
    batch_size = min(EVAL_BATCH_SIZE, state.config.batch_size)
    for i in range(0, len(starts), batch_size):
        batch = slice(i, i + batch_size)
        inputs, targets = stream.read(starts[batch], block_size)
        is_before_next = positions < torch.from_numpy(n_scored[batch, None]).to(state.device)
        targets = targets.where(is_before_next, IGNORED)
        with state.autocast:
            loss = loss_of(inputs, targets)
        per_batch.append(torch.stack([loss, (targets != IGNORED).sum()]))
    state.model.train()
    losses, n_tokens = torch.stack(per_batch).cpu().double().T
    nats = (losses * n_tokens).sum().item()
    bits = nats / math.log(2)
    scored = stream.tokens[1:][stream.is_target[1 : len(stream.tokens)]]  # each of them once
    n_bytes = tokenizer.byte_lengths()[scored].sum()
    return {"val_loss": nats / len(scored), "bpb": bits / n_bytes.item()}


# ---- Model and losses ----
def make_model(config: TrainConfig, corpus: Corpus, device: torch.device) -> GPTNeo:
    torch.manual_seed(config.seed)
    shape = GPTNeoConfig(vocab_size=corpus.tokenizer.vocab_size, **config.model_shape())
    model = MODELS[config.architecture](shape).to(device)
    if config.copy_init:
        model.init_copying(config.copy_init)
    return model


def next_token_loss(state: TrainingState, model: torch.nn.Module) -> Loss:
    """model: that of the state, compiled or not."""
    end_of_text = state.corpus.tokenizer.end_of_text

    def loss_of(inputs, targets):
        starts = None
        if state.config.attend_within_story:
            starts = story_starts(inputs, end_of_text)
        return model(inputs, targets, starts)[1]

    return loss_of


def training_loss(state: TrainingState) -> Loss:
    loss_of = next_token_loss(state, state.compiled_model)
    if state.config.contrast == "none":
        return loss_of
    tokenizer = state.corpus.tokenizer
    ends = sentence_ends(tokenizer).to(state.device)
    return with_contrast(loss_of, ends, tokenizer.end_of_text, state.config.contrast_alpha)


# ---- Data ----
def make_builtin(config: TrainConfig, ranks: Ranks) -> None:
    """Makes a built-in corpus that is not there yet; the first process does."""
    directory = Path(config.data_dir, config.data)
    if ranks.rank == 0 and config.data in BUILTIN and not directory.exists():
        prepare = Path(__file__).with_name("prepare.py")
        command = [sys.executable, prepare, config.data, "--data_dir", config.data_dir]
        if subprocess.run(command, stdout=subprocess.DEVNULL).returncode:
            raise UserError(f"preparing {config.data} failed: see above")
    ranks.barrier()


def require_same_corpus(corpus: Corpus, config: TrainConfig, checkpoint: dict) -> None:
    """UserError if a run that is resumed was trained on another corpus, or the source of its
    weights has another vocabulary."""
    # The source of --start_from has no checksum: it may have learned other stories
    if checkpoint.get("data_sha256", corpus.sha256) != corpus.sha256:
        problem = f"was trained on different data from what {config.data} holds now"
        remedy = (
            f"name its own corpus with --data (perhaps {config.data}-1, as prepare.py keeps what it"
            " replaces), or train a new run"
        )
        raise UserError(f"{config.name} {problem}; {remedy}")
    if checkpoint["vocabulary"] != corpus.tokenizer.vocabulary:
        source = config.start_from or Path(config.out_dir, config.name)
        problem = f"data={config.data} has a different vocabulary from {source}"
        remedy = f"prepare it under another name with --vocabulary_of {source}"
        raise UserError(f"{problem}; {remedy}")


# ---- The command ----
def tell_a_story(run: Path, config: TrainConfig) -> None:
    """Shows what the model has learned, and what to do next."""
    data = Path(config.data_dir, config.data)
    prompt = ""
    if "headers" in load_meta(data):
        examples = [*header_words(data, 2), *EXAMPLE_WORDS]
        words, other_words = examples[:2]  # of this story, and of the command to try next
        prompt = instruct_headers.format_header({"words": words})
        flags = f"--words {shlex.quote(other_words)}"
    else:
        (opening,) = openings(data, 1)
        flags = f"--prompt {shlex.quote(opening)}"
    print()
    backend = load_backend(open_model(str(run)), config.device)
    stream_story(backend, prompt, Sampling(temperature=0.6, seed=config.seed))
    print(f"\nEverything is in {run}/ (loss curve: loss.png)")
    print(f"Next: python sample.py --model {shlex.quote(str(run))} --temperature 0.6 {flags}")


def remedy_for(error: RuntimeError | MemoryError, ranks: Ranks) -> str | None:
    """What happened, and what to do, if the error is no fault of this code; None for any other."""
    reason = str(error).partition("\n")[0]
    # Out of memory is a RuntimeError of PyTorch's, on a CPU and on a Mac's GPU a plain one.
    if isinstance(error, MemoryError) or any(text in str(error) for text in MEMORY_ERRORS):
        smaller = "halve --batch_size and double --grad_accum_steps, or take a smaller model"
        return f"out of memory; {smaller} ({reason})"
    if ranks.size > 1 and (isinstance(error, dist.DistError) or "gloo" in str(error)):
        return f"another process failed, or cannot be reached; {RESUME_HINT} ({reason})"
    return None


def main():
    # line by line, so that a log file can be followed
    sys.stdout.reconfigure(line_buffering=True)
    ranks = Ranks.from_environment()
    name = "train.py" if ranks.size == 1 else f"train.py, process {ranks.rank}"
    disk_remedy = f"free disk space or fix the problem; {RESUME_HINT}"
    with one_line_errors(name, interrupted=RESUME_HINT, remedy=disk_remedy):
        config, resume = parse_command_line(sys.argv[1:], __doc__)
        try:
            run, finished = train(config, resume, ranks)
        except (RuntimeError, MemoryError) as error:
            remedy = remedy_for(error, ranks)
            if not remedy:
                raise
            sys.exit(f"{name}: {remedy}")
        if ranks.rank == 0 and finished:
            tell_a_story(run, config)
        elif ranks.rank == 0:
            command = f"python train.py --resume {shlex.quote(str(run))}"
            if ranks.size > 1:
                command = "the same command with --resume"
            print(f"Stopped and saved; to continue: {command}")
        sys.exit(0 if finished else 1)


if __name__ == "__main__":
    main()
