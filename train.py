"""
Train a storyteller.

$ python train.py                                   # the demo: two minutes on built-in stories, then it tells one
$ python train.py configs/ts_8m.py                  # a published size on a data set made by prepare.py
$ python train.py configs/ts_8m.py --batch_size=32 --device=cpu
$ python train.py configs/ts_8m.py --keep_checkpoints=10      # keeps weights along the way: out/ts_8m/step-1000, ...
$ python train.py configs/ts_8m.py --resume         # continue a run that was stopped
$ torchrun --standalone --nproc_per_node=8 train.py configs/ts_8m.py             # the same run on eight GPUs
$ python train.py --plot out/ts_8m out/ts_1m        # one figure: their losses, and scores of kept weights
"""

import contextlib
import functools
import math
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from tqdm import tqdm

from kernels.compile_cpp import dtype_name, keep_freed_memory
from kernels.cpu_features import isa
from kernels.packed_stories import max_stories_per_window
from model import GPTNeoConfig
from training.clock import Clock, minutes_left, progress
from training.config import ConfigError, TrainConfig, parse_command_line
from training.data_order import Batches, load_corpus
from training.device_and_dtype import (
    choose_device,
    choose_dtypes,
    describe_kernels,
    no_compile_reason,
    peak_flops,
    prepare_gpu,
)
from training.distributed import SINGLE_PROCESS, Ranks, is_lost_rank
from training.evaluation import evaluate, validation_windows
from training.optimizers_and_schedule import learning_rate
from training.run_directory import (
    PREVIOUS,
    Log,
    TrainingError,
    claim,
    keep_weights,
    load_resumable,
    plot_loss,
    save_checkpoint,
)
from training.state import TrainingState
from training.stop_signal import StopSignal
from variants.contrastive import Contrastive
from variants.within_story import WithinStory


def train(config: TrainConfig, resume: bool, ranks: Ranks = SINGLE_PROCESS) -> tuple[Path, bool]:
    """Train as the config says. Returns the run's directory and whether the run finished.

    All ranks have the same weights at every step: each takes its share of the sequences, and gradients are averaged.
    Without dropout or contrast, another number of ranks changes only the order in which floats are added.
    """
    device = choose_device(ranks.device_name(config.device))
    prepare_gpu(device)
    with ranks.process_group(device):
        return train_in_group(config, resume, ranks, device)


def train_in_group(config: TrainConfig, resume: bool, ranks: Ranks, device: torch.device) -> tuple[Path, bool]:
    """A function of its own, so that all users of the process group, such as DistributedDataParallel, are freed first.

    Otherwise the last of them would destroy the group and deadlock: it waits for gloo's threads, and they for the GIL.
    """
    with contextlib.ExitStack() as cleanup:
        # Data and dtypes
        run = Path(config.out_dir) / config.name
        loaded = load_resumable(run, config) if resume and ranks.is_first else (None, None)
        checkpoint, checkpoint_path = ranks.broadcast(loaded)
        if device.type == "cpu":
            keep_freed_memory()
        with ranks.first_goes_first():  # it may have to prepare the data, and time the kernels
            corpus = load_corpus(config)
            shape = GPTNeoConfig(vocab_size=corpus.tokenizer.vocab_size, **config.model_shape())
            dtype, fast_dtype = choose_dtypes(config, device, checkpoint)
            kernels = describe_kernels(device, dtype, config, shape)
        dtype, fast_dtype = ranks.broadcast((dtype, fast_dtype))
        batches = Batches(corpus, config, ranks, device)
        if checkpoint and checkpoint["data_sha256"] != corpus.sha256:
            raise ConfigError(f"{run} was trained on other data than {config.data} holds now; use another --name")

        # The run's files, which only the first rank writes
        log = None
        if ranks.is_first:
            last_step = checkpoint["step"] if checkpoint else 0
            log = cleanup.enter_context(claim(run, config, last_step, checkpoint_path))

        # Model and optimizers
        not_compiled = no_compile_reason(device) if config.compile else "compile=False"
        compile_more = device.type == "cuda" and not not_compiled  # on a CPU it takes longer than it saves
        state = TrainingState(config, shape, corpus, device, dtype, fast_dtype, compile_more)
        logged_step = ranks.broadcast(log.last_step if log else None)
        if checkpoint:
            state.restore(checkpoint, logged_step)
        model = state.model
        if config.attend_within_story:
            end_of_text, splits = corpus.tokenizer.end_of_text, (corpus.train, corpus.val)
            max_stories = max(max_stories_per_window(tokens, config.block_size, end_of_text) for tokens in splits)
            model = WithinStory(model, end_of_text, max_stories)
        compiled = model if not_compiled else torch.compile(model, dynamic=False)
        objective = compiled
        if config.contrast != "none":
            form = config.contrast, config.contrast_alpha, config.contrast_margin, config.contrast_share
            objective = Contrastive(objective, corpus.tokenizer, *form)
        forward = ranks.data_parallel(objective.to(device))
        autocast = functools.partial(torch.autocast, device.type, dtype, enabled=dtype != torch.float32)
        windows = validation_windows(corpus, config.block_size, device)
        evaluated = compiled if compile_more else model
        validate = functools.partial(evaluate, evaluated, *windows, corpus.tokenizer, autocast, ranks, compile_more)

        if ranks.is_first:
            processor = f"cpu ({isa()})" if device.type == "cpu" else device.type
            print(
                f"{run}: {state.model.num_params():,} parameters, {len(corpus.train):,} training tokens of "
                f"{config.data}, {config.tokens_per_step:,} tokens per step\n"
                + (f"{ranks.world_size} processes, " if ranks.world_size > 1 else "")
                + f"{processor}, {dtype_name(dtype)}; {kernels}"
                + (f"not compiled: {not_compiled}" if not_compiled else "compiling at the first step (up to a minute)"),
                flush=True,
            )
        stop = StopSignal(ranks)
        cleanup.callback(stop.restore)
        peak = peak_flops(device, dtype) * ranks.world_size
        return run, train_loop(config, state, forward, autocast, batches, validate, ranks, stop, log, peak)


def train_loop(
    config: TrainConfig,
    state: TrainingState,
    forward: torch.nn.Module,
    autocast: Callable,
    batches: Batches,
    validate: Callable[[], dict],
    ranks: Ranks,
    stop: StopSignal,
    log: Log | None,  # only on the first rank
    peak: float,  # FLOP/s that MFU is measured against
) -> bool:
    """Trains until the run is finished or told to stop; returns whether it is finished."""
    clock = Clock(state, ranks, stop)
    layout = "{percentage:3.0f}% |{bar:20}| {elapsed}<{remaining}{postfix}"
    disable = None if log else True  # None: tqdm shows the bar only in a terminal
    done = progress(config, state)
    bar = tqdm(total=1.0, initial=done, bar_format=layout, disable=disable)
    show_minutes = config.max_minutes > 0
    state.model.train()
    while done < 1 and not clock.should_stop:
        lr = learning_rate(state.step, done, config)
        state.set_learning_rate(lr)
        train_step(state, forward, autocast, batches, ranks, config.grad_clip)
        clock.tick()
        before, done = done, progress(config, state)

        evaluating = config.keeps(state.step, before, done) or state.step % config.eval_interval == 0 or done >= 1
        if evaluating or state.step % config.log_interval == 0:
            sums = state.sums_over_ranks(ranks)
            clock.tick(after_step=False)
            done = progress(config, state)  # the time may have run out meanwhile
            keeping = config.keeps(state.step, before, done)
            evaluating = evaluating or keeping or done >= 1
            train_loss, grad_norm = (total / (state.step - state.logged_step) for total in sums)
            row = dict(step=state.step, tokens=state.step * config.tokens_per_step, train_loss=f"{train_loss:.5f}")
            row |= dict(learning_rate=f"{lr:.3g}", grad_norm=f"{grad_norm:.4g}")
            if steps_per_second := clock.steps_per_second():
                tokens_per_s = steps_per_second * config.tokens_per_step
                flops_per_s = tokens_per_s * state.model.flops_per_token(config.block_size)
                peak = max(peak, flops_per_s)  # a measured peak is too low if the machine was busy
                row |= dict(tokens_per_s=f"{tokens_per_s:.0f}", mfu=f"{flops_per_s / peak:.4f}")
                bar.set_postfix_str(f" step {state.step}, loss {train_loss:.3f}, {tokens_per_s:,.0f} tok/s")
                if show_minutes and log:
                    left = minutes_left(config, state, steps_per_second)
                    bar.write(f"{tokens_per_s:,.0f} tokens/s on this machine: about {left:.1f} minutes to go")
                    show_minutes = False
            if evaluating:
                result = validate()
                row |= {name: f"{value:.5f}" for name, value in result.items()}
                if not math.isfinite(result["val_loss"]):
                    raise TrainingError(
                        f"at step {state.step} the validation loss is {row['val_loss']}; the checkpoints are from "
                        "before that; try a lower learning_rate or dtype=float32"
                    )
            state.log_was_written()
            if log:
                log.append(**row)
            if log and evaluating:
                bar.write(
                    f"step {state.step:>6}  {row['tokens'] / 1e6:8.2f} M tokens  train {train_loss:.3f}  "
                    f"val {result['val_loss']:.3f}  bpb {result['bpb']:.3f}"
                )
                save_all(log.path.parent, state, result["val_loss"], log, config if keeping else None)
            clock.restart()
        bar.n = done
        bar.refresh()
    if clock.should_stop:
        sums = state.sums_over_ranks(ranks)  # saved, so that the log's rows do not depend on where a run was stopped
        if log:
            save_last(log.path.parent, state, sums)
    bar.close()
    return not clock.should_stop


def train_step(
    state: TrainingState,
    forward: torch.nn.Module,
    autocast: Callable,
    batches: Batches,
    ranks: Ranks = SINGLE_PROCESS,
    grad_clip: float = 1.0,
) -> None:
    """One step of the optimizers. On a GPU nothing here waits for the device."""
    for i, (inputs, targets, weight) in enumerate(batches.of_step(state.step)):
        with ranks.gradient_sync(forward, now=i == batches.n_micro_batches - 1):
            with autocast():
                _, loss = forward(inputs, targets)
                loss = loss * weight
            state.sums[0] += loss.detach()
            state.scaler.scale(loss).backward()
    state.optimizer_step(grad_clip)


def save_all(run: Path, state: TrainingState, val_loss: float, log: Log, keep: TrainConfig | None) -> None:
    """keep: the run's config, if these weights are also to be kept in a directory of their own."""
    if keep:
        keep_weights(run, state.for_sampling(), keep, log.rows[-1])  # before ckpt.pt: a resumed run would skip them
    if val_loss < state.best_val_loss:
        state.best_val_loss = val_loss
        save_checkpoint(run / "best.pt", state.for_sampling())
    save_last(run, state, [0.0, 0.0])
    plot_loss(run / "loss.png", {run.name: log.rows})


def save_last(run: Path, state: TrainingState, sums: list[float]) -> None:
    save_checkpoint(run / "ckpt.pt", state.for_resuming(sums), previous=run / PREVIOUS)


def tell_a_story(run: Path, config: TrainConfig) -> None:
    """Shows what the model has learned, and what to do next."""
    from corpus import instruct_headers  # imported here because generation takes a second to import
    from generation.backends import Sampling, load_backend, stream_story

    backend, prompt = load_backend(str(run)), ""
    next_prompt = '--prompt "Once upon a time, there was a little fox"'
    if load_corpus(config).has_headers:
        prompt, next_prompt = instruct_headers.write(dict(words="hide, fox, little")), '--words "jump, frog, red"'
    stream_story(backend, prompt, Sampling(temperature=0.6, seed=config.seed))
    print(
        f"\nEverything is in {run}/ (loss curve: loss.png). Next: python sample.py --model {run} "
        f"--temperature 0.6 {next_prompt}\n"
        f"For a web page that tells stories in any browser: python export.py {run}"
    )


def main():
    # Write line by line, so that a log file can be followed, and replace characters that a terminal cannot show.
    sys.stdout.reconfigure(line_buffering=True, errors="replace")
    ranks = Ranks.from_environment()
    name = "train.py" if ranks.world_size == 1 else f"train.py, process {ranks.rank}"
    args = sys.argv[1:]
    try:
        if "--plot" in args:
            from pages.during_training import plot_runs  # imported here because training does not need it

            print(f"wrote {plot_runs([Path(arg) for arg in args if arg != '--plot'])}")
            return
        config, resume = parse_command_line(args, __doc__)
        run, finished = train(config, resume, ranks)
        if not finished:
            message = f"Stopped and saved. Run the same command with --resume to continue from {run / 'ckpt.pt'}"
            sys.exit(message if ranks.is_first else 1)
        if ranks.is_first:
            print()
            tell_a_story(run, config)
    except (ValueError, OSError) as error:
        sys.exit(f"{name}: {error}")
    except (RuntimeError, MemoryError) as error:
        # Out of memory is an OutOfMemoryError (a RuntimeError) on a GPU, and a plain RuntimeError on a CPU.
        if isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "can't allocate memory" in str(error):
            # With dropout or contrast, the random numbers depend on how the step is cut into micro-batches.
            same = "" if config.dropout or config.contrast != "none" else ", which gives the same run"
            sys.exit(f"{name}: out of memory; halve batch_size and double grad_accum_steps{same}")
        if ranks.world_size == 1 or not is_lost_rank(error):
            raise
        directory = Path(config.out_dir) / config.name
        sys.exit(f"{name}: another process has failed, see its message; --resume continues from what {directory} has")
    except KeyboardInterrupt:
        sys.exit(f"{name}: stopped")


if __name__ == "__main__":
    main()
