"""
Train a storyteller.

$ python train.py                                   # the demo: built-in stories, two minutes, then it tells one
$ python train.py configs/ts_8m.py                  # a published size on a data set made by prepare.py
$ python train.py configs/ts_8m.py --batch_size=32 --device=cpu
$ python train.py configs/ts_8m.py --resume         # go on where a stopped run left off
$ torchrun --standalone --nproc_per_node=8 train.py configs/ts_8m.py             # the same run on eight GPUs
$ python train.py --plot out/ts_8m out/ts_1m        # their curves in one picture
"""

import contextlib
import dataclasses
import functools
import importlib.util
import io
import itertools
import json
import math
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from checkpoints.checkpoint import CHECKPOINT_FORMAT
from corpus import instruct_headers
from corpus.preparation import prepare_builtin
from corpus.sources import BUILTIN
from corpus.token_files import load_meta, load_tokens
from corpus.tokenizer import Tokenizer
from generation.backends import Sampling, load_backend, stream_story
from kernels import attention, autotune, compile_cpp, cpu_features
from kernels.cross_entropy import implementation as loss_implementation
from model import GPTNeo, GPTNeoConfig
from training.config import ConfigError, TrainConfig, parse_command_line
from training.distributed import ALONE, Ranks, is_lost_rank
from training.muon import Muon
from training.run_directory import (
    PREVIOUS,
    Log,
    TrainingError,
    claim,
    load_resumable,
    plot_loss,
    plot_runs,
    write_run_file,
)
from variants.compressor import MODELS
from variants.contrastive import Contrastive

# ---- Data ----


class TokenStream:
    """The token stream of a split, held on the device, from which windows of block_size tokens are read.

    counted: (tokens,) bool, which of them are to be predicted; None: all.
    """

    def __init__(self, tokens: np.ndarray, block_size: int, device: torch.device, counted: np.ndarray | None = None):
        # int16 is all that every device can index; ids above 32767 come back by masking the sign away
        self.tokens = torch.from_numpy(np.array(tokens).view(np.int16)).to(device)
        self.span = torch.arange(block_size + 1, device=device)
        self.counted = counted  # here, too: how many targets a step has is asked without waiting for the device
        self.is_target = None if counted is None else torch.from_numpy(counted).to(device)

    def read(self, starts: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """inputs and targets (the inputs' successors; -100: does not count), each (len(starts), block_size) int64"""
        positions = torch.from_numpy(starts).to(self.tokens.device, non_blocking=True)[:, None] + self.span
        tokens = self.tokens[positions].long() & 0xFFFF
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        if self.is_target is not None:
            targets = targets.where(self.is_target[positions[:, 1:]], -100)
        return inputs, targets

    def shares(self, starts: np.ndarray) -> np.ndarray:
        """How much each micro-batch counts in the mean over a step's targets: 1, where all have as many of them.

        starts: (ranks, micro-batches, sequences) -> (ranks, micro-batches)
        """
        if self.counted is None:
            return np.ones(starts.shape[:2])
        targets = self.counted[starts[..., None] + np.arange(1, len(self.span))].sum((-1, -2))
        return targets / (targets.mean() or 1.0)


def flat_windows(tokens: np.ndarray, block_size: int) -> np.ndarray:
    """Where windows start that lie side by side, with room left to shift them all by up to block_size."""
    return np.arange(len(tokens) // block_size - 1) * block_size


def story_windows(tokens: np.ndarray, block_size: int, end_of_text: int) -> np.ndarray:
    """Where windows start that begin with a story, at the <|endoftext|> before it.

    They overlap just so far that every story stands whole in one of them: where the end of a window cuts a story, the
    next one begins with that story. A story longer than a window goes on in the next.
    """
    stories = np.append(0, np.flatnonzero(tokens == end_of_text))
    starts = [0]
    while (limit := starts[-1] + block_size) < len(tokens):
        story = int(stories[np.searchsorted(stories, limit, side="right") - 1])  # the last one that this window begins
        starts.append(story if story > starts[-1] else limit)
    return np.array(starts[:-1])


@functools.lru_cache(maxsize=2)
def epoch_order(n_windows: int, seed: int, epoch: int) -> tuple[np.ndarray, float]:
    """A fresh order of the windows for this epoch, and by what share of their shift to move them."""
    rng = np.random.default_rng([seed, epoch])
    return rng.permutation(n_windows), rng.random()


def batch_starts(windows: np.ndarray, shift: int, n_sequences: int, seed: int, step: int) -> np.ndarray:
    """Where the sequences of `step` start: windows drawn without replacement within an epoch, all of them moved by
    the same number of tokens below `shift`. A pure function of its arguments, so that any step can be taken up again.
    """
    starts = np.empty(n_sequences, dtype=np.int64)
    for i in range(n_sequences):
        epoch, place = divmod(step * n_sequences + i, len(windows))
        order, share = epoch_order(len(windows), seed, epoch)
        starts[i] = windows[order[place]] + int(share * shift)
    return starts


def dropout_seed(seed: int, step: int, micro_batch: int) -> int:
    """What the dropout of a micro-batch is drawn from; again a pure function, so there is no random state to keep.

    Where whole micro-batches are dealt out to several processes, each is dropped as one process alone would; where a
    micro-batch is cut in parts, each part has a number of its own, and the run is another draw of the same dropout.
    """
    return int(np.random.SeedSequence([seed, step, micro_batch]).generate_state(1, np.uint64)[0])


# ---- Optimisation ----


def learning_rate(step: int, progress: float, config: TrainConfig) -> float:
    """Linear warm-up over steps, then constant, then a linear way down to zero over the last share of the run.

    progress: how much of the run is over, 0 to 1.
    """
    warmup = min(1.0, (step + 1) / (config.warmup_steps + 1))
    warmdown = min(1.0, (1 - progress) / config.warmdown) if config.warmdown else 1.0
    return config.learning_rate * min(warmup, warmdown)


def make_optimizers(
    model: GPTNeo, config: TrainConfig, muon_dtype: torch.dtype = torch.bfloat16
) -> list[torch.optim.Optimizer]:
    """AdamW, as published; or Muon for the matrices of the blocks, and AdamW for the rest."""
    kinds = [[getattr(b, name).weight for b in model.blocks] for name in ("qkv", "attention_out", "mlp_in", "mlp_out")]
    embeddings = [model.wte.weight, model.wpe.weight]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    lr, decay, none = config.learning_rate, dict(weight_decay=config.weight_decay), dict(weight_decay=0.0)
    groups = [dict(params=vectors, **none), dict(params=embeddings, lr_factor=config.embedding_lr_factor, **decay)]
    optimizers = []
    if config.optimizer == "muon":
        groups_of_kinds = [dict(params=kind) for kind in kinds]
        optimizers.append(Muon(groups_of_kinds, lr=lr, momentum=config.beta1, dtype=muon_dtype, **decay))
    else:
        groups.append(dict(params=sum(kinds, []), **decay))
    fused = model.wte.weight.device.type in ("cuda", "cpu")
    return [*optimizers, torch.optim.AdamW(groups, lr=lr, betas=(config.beta1, config.beta2), fused=fused)]


# ---- Machine ----

# Dense bf16 (fp16 where there is no bf16) matrix products, in FLOP/s, from the vendors' data sheets.
GPU_PEAK_FLOPS = {
    "B200": 2250e12, "H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "L40": 181e12, "L4": 121e12,
    "A10": 125e12, "RTX 5090": 209e12, "RTX 4090": 165e12, "RTX 3090": 71e12, "V100": 125e12, "T4": 65e12,
}  # fmt: skip


def choose_device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    if name.partition(":")[0] not in ("cuda", "mps", "cpu"):
        raise ConfigError(f"device must be auto, cpu, cuda, cuda:1 (…) or mps, not {name!r}")
    try:
        return torch.zeros(1, device=name).device
    except (RuntimeError, AssertionError) as error:  # an AssertionError where torch was built without CUDA
        raise ConfigError(f"device {name!r} cannot be used here ({str(error).splitlines()[0]})") from error


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """bfloat16 on a GPU that has it, else float16 (with a loss scaler); on a CPU bfloat16 or float32, as measured."""
    if name != "auto":
        return getattr(torch, name)
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.get_device_capability(device)[0] >= 8 else torch.float16
    if device.type == "cpu":
        return autotune.fast_dtype()
    return torch.float32


def why_not_compile(device: torch.device) -> str | None:
    """What torch.compile lacks on this machine; None if it can work."""
    if device.type == "mps":
        return "torch.compile is not ready for mps"
    if device.type == "cuda" and importlib.util.find_spec("triton") is None:
        return "the package triton is not installed"
    compiler = os.environ.get("CXX", {"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++"))
    if not shutil.which(compiler):
        return f"no C++ compiler ({compiler}) found"
    try:  # on a CPU it must have OpenMP, as Apple's has not; and it takes Python's headers
        torch.compile(lambda x: x.sin() + 1)(torch.zeros(64, 64, device=device))
    except RuntimeError as error:
        lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        return next((line for line in lines if "error:" in line), lines[-1])
    return None


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def kernels_line(device: torch.device, dtype: torch.dtype, config: TrainConfig, shape: GPTNeoConfig) -> str:
    """What a CPU computes attention and the loss with: cpp/, or PyTorch where that is faster, as measured here."""
    if device.type != "cpu" or config.model != "gptneo":
        return ""
    width = shape.n_embd // shape.n_head
    if attention.kernels(width) is None:
        return "attention and loss: PyTorch (no C++ compiler that builds cpp/); "
    chosen = {}
    for window in sorted({min(shape.window(layer), shape.block_size) for layer in range(shape.n_layer)}):
        kind = attention.implementation(shape.block_size, shape.n_head, width, window, dtype)
        chosen[f"attention (window {window})"] = "pytorch" if config.dropout else kind
    chosen["loss"] = loss_implementation(shape.vocab_size, dtype)
    names = dict(kernel="cpp/", pytorch="PyTorch")
    return "".join(f"{part}: {names[kind]}; " for part, kind in chosen.items())


def peak_flops(device: torch.device, dtype: torch.dtype) -> float:
    """FLOP/s that MFU is measured against: of the data sheet on a known GPU, else what a matrix product reaches."""
    if device.type == "cuda":
        for name, peak in GPU_PEAK_FLOPS.items():
            if name in torch.cuda.get_device_name(device):
                return peak
    n = 1024 if device.type == "cpu" else 4096  # large enough to keep all of the device at work
    rates = []
    for kind in {dtype, torch.float32}:
        a = torch.randn(n, n, device=device).to(kind)
        times = []  # the best of many: the first warms up, and others may be at work here
        while sum(times) < 0.1 or len(times) < 2:
            start = time.perf_counter()
            (a @ a)[0, 0].item()
            times.append(time.perf_counter() - start)
        rates.append(2 * n**3 / min(times))
    return max(rates)  # float32 where the processor only emulates the other


# ---- What is measured and written ----


@torch.no_grad()
def evaluate(
    model: GPTNeo, stream: TokenStream, windows: np.ndarray, tokenizer: Tokenizer, autocast, ranks: Ranks = ALONE
) -> dict:
    """Loss (nats per token) and bits per UTF-8 byte over story_windows, every token that counts taken once.

    Where windows overlap, it is the later one that counts: there the story is read from its beginning. The ranks take
    batches by turns; all get the same figures, bit by bit those of one process alone.
    """
    block_size = len(stream.span) - 1
    n_new = torch.from_numpy(np.diff(windows, append=windows[-1] + block_size)).to(stream.span.device)
    byte_lengths = torch.from_numpy(tokenizer.byte_lengths()).to(stream.span.device)
    batches = range(0, len(windows), EVAL_BATCH_SIZE)
    counts = torch.zeros(len(batches), 3, dtype=torch.float64)  # nats, tokens and bytes of each
    model.eval()
    for batch in range(ranks.rank, len(batches), ranks.size):
        i = batches[batch]
        inputs, targets = stream.read(windows[i : i + EVAL_BATCH_SIZE])
        targets = targets.where(stream.span[:-1] < n_new[i : i + EVAL_BATCH_SIZE, None], -100)
        with autocast():
            _, loss = model(inputs, targets)
        counted = targets >= 0
        n_tokens = counted.sum().item()
        counts[batch] = torch.tensor([loss.item() * n_tokens, n_tokens, byte_lengths[targets[counted]].sum().item()])
    model.train()
    nats, n_tokens, n_bytes = ranks.total(counts).sum(0).tolist()
    return dict(val_loss=nats / n_tokens, bpb=nats / math.log(2) / n_bytes)


EVAL_BATCH_SIZE = 16  # windows


class StopSignal:
    """True once Ctrl-C or SIGTERM came, so that the step in hand can end and be saved. A second one is not held.

    Under torchrun it is: some systems tell every process, and torchrun tells its own again. It has its own patience.
    """

    def __init__(self, ranks: Ranks):
        self.received, self.ranks = False, ranks
        self.handlers = {number: signal.signal(number, self.receive) for number in (signal.SIGINT, signal.SIGTERM)}

    def receive(self, number, frame):
        if self.ranks.first and not self.received:
            hint = " (once more: at once)" if self.ranks.size == 1 else ""
            print(f"\nstopping after this step{hint}", file=sys.stderr)
        self.received = True
        if self.ranks.size == 1:
            self.restore()

    def restore(self):
        for number, handler in self.handlers.items():
            signal.signal(number, handler)

    def __bool__(self):
        return self.received


# ---- The loop ----


def load_data(config: TrainConfig) -> tuple[dict, np.ndarray, np.ndarray]:
    """-> meta.json, training tokens, the validation tokens that are looked at"""
    directory = Path(config.data_dir) / config.data
    if config.data in BUILTIN and not directory.exists():
        prepare_builtin(config.data_dir, corpus=config.data)
    meta = load_meta(directory)
    if config.loss_on == "story" and "headers" not in meta:
        raise ConfigError(f"{directory}: its stories have no headers, which loss_on=story would leave out; use all")
    train_tokens, val_tokens = load_tokens(directory, "train"), load_tokens(directory, "val")[: config.eval_tokens]
    for split, tokens, least in (
        ("train", train_tokens, 2 * config.block_size + 1),
        ("val", val_tokens, config.block_size + 1),
    ):
        if len(tokens) < least:
            raise ConfigError(
                f"{directory}: {len(tokens):,} tokens of {split} are too few for block_size={config.block_size}, which "
                f"takes {least:,}; lower it, or prepare more text (a larger --val_share, for val)"
            )
    return meta, train_tokens, val_tokens


def train(config: TrainConfig, resume: bool, ranks: Ranks = ALONE) -> tuple[Path, bool]:
    """Train as the config says. Returns the directory of the run and whether it came to its end.

    `ranks` have the same weights at every step: each takes its share of the sequences, and their gradients are summed.
    With other numbers of them the losses are the same up to the order in which floats are added.
    """
    device = choose_device(ranks.device_name(config.device))
    with contextlib.ExitStack() as held:
        held.enter_context(ranks.together(device))
        return train_on(device, config, resume, ranks, held)


def train_on(
    device: torch.device, config: TrainConfig, resume: bool, ranks: Ranks, held: contextlib.ExitStack
) -> tuple[Path, bool]:
    """train(), on this device; what must be let go of at the end goes into `held`."""
    run = Path(config.out_dir) / config.name
    n_micro_batches, micro_batch_size = ranks.share(config)
    checkpoint, resumed_from = ranks.from_first(load_resumable(run, config) if resume and ranks.first else (None, None))
    if device.type == "cpu":
        compile_cpp.keep_freed_memory()
    with ranks.first_goes_ahead():  # it may have to make the data, and to measure what is fast here
        meta, train_tokens, val_tokens = load_data(config)
        tokenizer = Tokenizer(meta["gpt2_ids"])
        model_config = GPTNeoConfig(vocab_size=tokenizer.vocab_size, **config.model_shape())
        fast_dtype = choose_dtype("auto", device)
        if checkpoint and device.type == "cpu":  # what was measured when the run began
            fast_dtype = getattr(torch, checkpoint.get("fast_dtype", dtype_name(fast_dtype)))
        dtype = fast_dtype if config.dtype == "auto" else choose_dtype(config.dtype, device)
        kernels = kernels_line(device, dtype, config, model_config)
    fast_dtype, dtype = ranks.from_first((fast_dtype, dtype))
    data_sha256 = meta["splits"]["train"]["sha256"]
    train_counted = instruct_headers.story_tokens(train_tokens, tokenizer) if config.loss_on == "story" else None
    # Of validation stories under headers the stories alone, whatever loss_on is: so runs can be compared.
    val_counted = instruct_headers.story_tokens(val_tokens, tokenizer) if "headers" in meta else None
    train_stream = TokenStream(train_tokens, config.block_size, device, train_counted)
    val_stream = TokenStream(val_tokens, config.block_size, device, val_counted)
    val_windows = story_windows(val_tokens, config.block_size, tokenizer.end_of_text)
    if config.align_stories:
        windows, shift = story_windows(train_tokens, config.block_size, tokenizer.end_of_text), 1
    else:
        windows, shift = flat_windows(train_tokens, config.block_size), config.block_size
    if checkpoint and checkpoint["data_sha256"] != data_sha256:
        raise ConfigError(f"{run} was trained on other data than what {config.data} is now; use another --name")
    log = None  # and nothing else is written, but by the first rank
    if ranks.first:
        held.enter_context(claim(run, resumed_from))
        with write_run_file(run / "config.json") as temporary:
            temporary.write_text(json.dumps(dataclasses.asdict(config), indent=2) + "\n")
        log = Log(run / "log.csv", checkpoint["step"] if checkpoint else 0)
    row_step = ranks.from_first(log.last_step if log else None)  # where the last row of the log stands

    torch.manual_seed(config.seed)
    model = MODELS[config.model](model_config)
    if config.copy_init:
        model.init_copying(config.copy_init)
    model = model.to(device)
    optimizers = make_optimizers(model, config, fast_dtype if device.type == "cpu" else torch.bfloat16)
    scaler = torch.amp.GradScaler(device.type, enabled=dtype == torch.float16)
    step, seconds, best_val_loss = 0, 0.0, math.inf
    sums = torch.zeros(3, device=device)  # since that row: loss, norm of the gradient, steps with both of them finite
    if checkpoint:
        model.load_state_dict(checkpoint["model"])
        for optimizer, state in zip(optimizers, checkpoint["optimizers"]):
            optimizer.load_state_dict(state)
        scaler.load_state_dict(checkpoint["scaler"])
        step, seconds, best_val_loss = checkpoint["step"], checkpoint["seconds"], checkpoint["best_val_loss"]
        sums += torch.tensor([*checkpoint["sums"], step - row_step], device=device)

    obstacle = why_not_compile(device) if config.compile else "compile=False"
    objective = model if obstacle else torch.compile(model, dynamic=False)
    if config.contrast != "none":
        objective = Contrastive(
            objective, tokenizer, config.contrast, config.contrast_alpha, config.contrast_margin, config.contrast_share
        )
    forward = ranks.data_parallel(objective.to(device))
    autocast = functools.partial(torch.autocast, device.type, dtype, enabled=dtype != torch.float32)
    tokens_per_step = config.sequences_per_step * config.block_size
    peak = peak_flops(device, dtype) * ranks.size
    if ranks.first:
        print(
            f"{run}: {model.num_params():,} parameters, {len(train_tokens):,} training tokens of {config.data}, "
            f"{tokens_per_step:,} tokens a step\n"
            + (f"{ranks.size} processes, " if ranks.size > 1 else "")
            + (f"cpu ({cpu_features.isa()})" if device.type == "cpu" else device.type)
            + f", {dtype_name(dtype)}; {kernels}"
            + (f"not compiled: {obstacle}" if obstacle else "compiling at the first step (up to a minute)"),
            flush=True,
        )

    def save(name: str, previous: Path | None = None, **training_state):
        if not ranks.first:
            return
        state = dict(
            format=CHECKPOINT_FORMAT,
            model_class=config.model,
            model_config=dataclasses.asdict(model_config),
            train_config=dataclasses.asdict(config),
            gpt2_ids=tokenizer.gpt2_ids,
            data_sha256=data_sha256,
            model=model.state_dict(),
            step=step,
            best_val_loss=best_val_loss,
        )
        buffer = io.BytesIO()  # torch.save to a full disk fails without saying so clearly; writing bytes does
        torch.save(state | training_state, buffer)
        with write_run_file(run / name, previous) as temporary:
            temporary.write_bytes(buffer.getbuffer())

    def save_last(sums: list[float]):
        states = [optimizer.state_dict() for optimizer in optimizers]
        state = dict(seconds=seconds, sums=sums, optimizers=states, scaler=scaler.state_dict())
        state |= dict(fast_dtype=dtype_name(fast_dtype))
        save("ckpt.pt", previous=run / PREVIOUS, **state)

    def sums_of_all() -> list[float]:
        """Loss and norm, mean over ranks; a TrainingError if one was not finite. Nothing is saved without it."""
        loss, norm = (ranks.total(sums[:2].clone()) / ranks.size).tolist()  # here alone the host waits for the device
        n_finite = round(ranks.least(sums[2].clone()).item())
        if n_finite < step - row_step:
            raise TrainingError(
                f"at step {row_step + n_finite + 1} the loss or its gradient became infinite or NaN; what {run} has is "
                "from before that; try a lower learning_rate or dtype=float32"
            )
        return [loss, norm]

    def progress() -> float:
        by_clock = seconds / (60 * config.max_minutes) if config.max_minutes else 0.0
        if config.min_steps:
            by_clock = min(by_clock, step / config.min_steps)
        return min(1.0, max(step / config.max_steps, by_clock))

    stop, stopping = StopSignal(ranks), False
    held.callback(stop.restore)
    layout = "{percentage:3.0f}% |{bar:20}| {elapsed}<{remaining}{postfix}"
    hidden = None if ranks.first else True  # None: no bar where there is no terminal
    bar = tqdm(total=1.0, initial=progress(), bar_format=layout, disable=hidden)
    first_step, logged_step, logged_seconds, first_row = step, step, seconds, ranks.first
    model.train()
    clock = time.perf_counter()
    while progress() < 1 and not stopping:
        lr = learning_rate(step, progress(), config)
        for group in itertools.chain.from_iterable(optimizer.param_groups for optimizer in optimizers):
            group["lr"] = lr * group.get("lr_factor", 1.0)
        starts = batch_starts(windows, shift, config.sequences_per_step, config.seed, step)
        starts = starts.reshape(ranks.size, n_micro_batches, micro_batch_size)
        shares = train_stream.shares(starts)[ranks.rank].tolist()
        for i, (micro_batch, share) in enumerate(zip(starts[ranks.rank], shares)):
            if config.dropout or config.contrast != "none":
                torch.manual_seed(dropout_seed(config.seed, step, ranks.rank * n_micro_batches + i))
            inputs, targets = train_stream.read(micro_batch)
            with ranks.summing(forward, now=i == n_micro_batches - 1):
                with autocast():
                    _, loss = forward(inputs, targets)
                    loss = loss * share / n_micro_batches
                sums[0] += loss.detach()
                scaler.scale(loss).backward()
        for optimizer in optimizers:
            scaler.unscale_(optimizer)
        sums[1] += torch.nn.utils.clip_grad_norm_(model.parameters(), config.grad_clip or math.inf)
        # float16 may overflow in the gradient: the scaler then skips the step
        sums[2] += sums[: 1 if scaler.is_enabled() else 2].isfinite().all()
        for optimizer in optimizers:
            scaler.step(optimizer)
            optimizer.zero_grad()
        scaler.update()
        step += 1

        now = time.perf_counter()
        if step == first_step + 1:  # compiling it is not counted
            logged_step, clock = step, now
        (seconds, stopping), clock = ranks.agree(seconds + now - clock, bool(stop)), now
        evaluating = step % config.eval_interval == 0 or progress() >= 1
        if evaluating or step % config.log_interval == 0:
            train_loss, grad_norm = (total / (step - row_step) for total in sums_of_all())
            now = time.perf_counter()
            (seconds, _), clock = ranks.agree(seconds + now - clock, False), now
            evaluating = evaluating or progress() >= 1  # the time may have run out meanwhile
            sums.zero_()
            row = dict(step=step, tokens=step * tokens_per_step, train_loss=f"{train_loss:.5f}")
            row |= dict(learning_rate=f"{lr:.3g}", grad_norm=f"{grad_norm:.4g}")
            if step > logged_step:
                tokens_per_s = (step - logged_step) * tokens_per_step / (seconds - logged_seconds)
                flops_per_s = tokens_per_s * model.flops_per_token(config.block_size)
                peak = max(peak, flops_per_s)  # it may have been measured while the machine was busy
                row |= dict(tokens_per_s=f"{tokens_per_s:.0f}", mfu=f"{flops_per_s / peak:.4f}")
                if config.max_minutes and first_row:
                    step_minutes = tokens_per_step / tokens_per_s / 60
                    minutes = max(config.max_minutes, config.min_steps * step_minutes)
                    left = min(minutes, config.max_steps * step_minutes) - seconds / 60
                    bar.write(f"{tokens_per_s:,.0f} tokens/s on this machine: about {left:.1f} minutes to go")
                    first_row = False
                bar.set_postfix_str(f" step {step}, loss {train_loss:.3f}, {tokens_per_s:,.0f} tok/s")
            if evaluating:
                result = evaluate(model, val_stream, val_windows, tokenizer, autocast, ranks)
                row |= dict(val_loss=f"{result['val_loss']:.5f}", bpb=f"{result['bpb']:.5f}")
                if not math.isfinite(result["val_loss"]):
                    raise TrainingError(
                        f"at step {step} the validation loss is {row['val_loss']}; what {run} has is from before that; "
                        "try a lower learning_rate or dtype=float32"
                    )
            if log:
                log.append(**row)
            row_step, logged_step, logged_seconds = step, step, seconds
            if evaluating:
                if log:
                    bar.write(
                        f"step {step:>6}  {step * tokens_per_step / 1e6:8.2f} M tokens  train {train_loss:.3f}  "
                        f"val {result['val_loss']:.3f}  bpb {result['bpb']:.3f}"
                    )
                if result["val_loss"] < best_val_loss:
                    best_val_loss = result["val_loss"]
                    save("best.pt")
                save_last([0.0, 0.0])
                if log:
                    plot_loss(run / "loss.png", {run.name: log.rows})
            clock = time.perf_counter()  # what was written meanwhile is not counted
        bar.n = progress()
        bar.refresh()
    if stopping:
        save_last(sums_of_all())  # the rows of the log do not depend on where a run was stopped
    bar.close()
    return run, not stopping


def main():
    # A log file can be followed while the run goes on, and no terminal is too old for a story.
    sys.stdout.reconfigure(line_buffering=True, errors="replace")
    ranks = Ranks.of_torchrun()
    name = "train.py" if ranks.size == 1 else f"train.py, process {ranks.rank}"
    args = sys.argv[1:]
    try:
        if "--plot" in args:
            print(f"wrote {plot_runs([Path(arg) for arg in args if arg != '--plot'])}")
            return
        config, resume = parse_command_line(args, __doc__)
        run, ended = train(config, resume, ranks)
        if not ended:
            message = f"Stopped; saved. The same command with --resume goes on from {run / 'ckpt.pt'}"
            sys.exit(message if ranks.first else 1)
        if ranks.first:
            print()
            prompt, next_prompt = "", '--prompt "Once upon a time, there was a little fox"'
            if "headers" in load_meta(Path(config.data_dir, config.data)):
                prompt, next_prompt = (
                    instruct_headers.write(dict(words="hide, fox, little")),
                    '--words "jump, frog, red"',
                )
            stream_story(load_backend(str(run)), prompt, Sampling(temperature=0.6, seed=config.seed))
            print(
                f"\nEverything is in {run}/ (the curve: loss.png). Next: python sample.py --model {run} "
                f"--temperature 0.6 {next_prompt}"
            )
    except (ValueError, OSError) as error:
        sys.exit(f"{name}: {error}")
    except (RuntimeError, MemoryError) as error:
        # On a GPU it is an OutOfMemoryError, which is a RuntimeError; on a CPU it is just that.
        if isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "can't allocate memory" in str(error):
            sys.exit(f"{name}: out of memory; halve batch_size and double grad_accum_steps, which gives the same run")
        if ranks.size == 1 or not is_lost_rank(error):
            raise
        directory = Path(config.out_dir) / config.name
        sys.exit(f"{name}: another process has ended, see its message; --resume goes on from what {directory} has")
    except KeyboardInterrupt:
        sys.exit(f"{name}: stopped")


if __name__ == "__main__":
    main()
