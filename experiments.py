"""
Experiments: named lists of runs, trained one after another, each list with its table and its plot.

$ python experiments.py grid                 # width x depth x heads; half an hour at most, on two cores
$ python experiments.py scaling              # the best loss that a number of training FLOPs can buy
$ python experiments.py contrast --show      # what would be run, as commands of train.py
$ python experiments.py dropout --only dropout-0.1 --seeds 3
$ python experiments.py compressor --published --data tinystories-v2     # the published budgets, for a GPU

Needs data/sample (README, "ten minutes"), or --data. All is written to
out/<experiment>/ (--published: out/<experiment>-published/). Where a call was stopped, or
killed at any moment, the same call goes on: what is finished stands, what is not goes on from its last checkpoint. The
table is of all runs of the list that are finished, whichever were asked for now.
"""

import argparse
import contextlib
import dataclasses
import fnmatch
import io
import itertools
import json
import math
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from tqdm import tqdm

from checkpoints.checkpoint import load_checkpoint
from common.files import Busy, lock
from common.statistics import wilson
from common.tables import read_table, write_table
from corpus.token_files import load_meta
from grading.sentence_order import FILE
from model import GPTNeoConfig
from sweeps.plots import plot_variants, print_table
from sweeps.scaling_law import best_of_budgets, fit_power_law, plot_scaling, points
from training.config import ConfigError, TrainConfig, parse_command_line
from training.muon import Muon
from training.optimizers import make_optimizers
from training.run_directory import PREVIOUS, RESUME_MAY_CHANGE, TrainingError, read_log, training_seconds
from variants.compressor import MODELS
from variants.contrastive import n_shuffled

ROOT = Path(__file__).parent

# ---- What is run ----


def shape(name: str) -> dict:
    """Of width-layers-heads."""
    return dict(zip(("n_embd", "n_layer", "n_head"), map(int, name.split("-"))))


GRID = "128-8-4 128-12-4 256-8-2 256-8-4 256-8-8 256-12-4 512-8-4 512-12-4"  # as published
SHALLOW = "256-1-4 256-2-4 512-1-4 512-2-4"
SCALING = "64-2-4 64-8-4 128-2-8 128-8-8 256-4-16 256-12-16 512-2-32 512-12-32 1024-2-64 1024-12-64"
WIDTHS = (128, 256, 512)

# What each variant sets beside the config of its scale. All runs of a list have as many steps, so the same tokens; but
# `flops_of` names the variant whose training FLOPs a run is given instead, and those of "scaling" are cut to budgets.
VARIANTS = {
    "grid": {name: shape(name) for name in f"{GRID} {SHALLOW}".split()},
    "dropout": {f"dropout-{p}": shape("128-8-4") | dict(dropout=p) for p in (0.0, 0.1, 0.2, 0.3)},
    "scaling": {name: shape(name) for name in SCALING.split()},
    "contrast": {
        "plain": {},
        "reciprocal": dict(flops_of="plain", contrast="reciprocal"),  # alpha is 5, as published
        "margin-0.1": dict(flops_of="plain", contrast="margin", contrast_margin=0.1),
        "margin-0.3": dict(flops_of="plain", contrast="margin", contrast_margin=0.3),
        "margin-1.0": dict(flops_of="plain", contrast="margin", contrast_margin=1.0),
        "margin-0.1-alpha-1": dict(flops_of="plain", contrast="margin", contrast_margin=0.1, contrast_alpha=1.0),
        "margin-0.1-alpha-0.2": dict(flops_of="plain", contrast="margin", contrast_margin=0.1, contrast_alpha=0.2),
    },
    "compressor": {f"plain-{w}": shape(f"{w}-8-16") for w in WIDTHS}
    | {f"compressor-{w}": shape(f"{w}-8-16") | dict(model="compressor") for w in WIDTHS}
    | {
        f"compressor-{w}-equal-flops": shape(f"{w}-8-16") | dict(model="compressor", flops_of=f"plain-{w}")
        for w in WIDTHS
    },
}


@dataclass(frozen=True)
class Scale:
    config: str  # in configs/
    steps: dict[str, int]  # of the runs of a list
    seeds: dict[str, int]
    budgets: tuple[float, ...]  # of scaling, in training FLOPs
    least_steps: int  # of scaling; below, the size of the batch decides, not that of the model
    most_epochs: float  # of scaling; above, it would measure repetition
    warmup: float  # share of the steps
    learning_rate: float | None = None  # at the most: 1 / width where that is less; None: the config's


SMALL = Scale(
    config="experiment.py",
    steps=dict(grid=160, dropout=2000, contrast=600, compressor=120),
    seeds=dict(grid=1, scaling=1, dropout=1, contrast=2, compressor=1),
    budgets=(1.5e12, 3e12, 6e12, 1.2e13, 2.4e13),
    least_steps=20,
    most_epochs=4,
    warmup=0.05,
    learning_rate=8e-3,
)
PUBLISHED = Scale(
    config="experiment_published.py",
    steps=dict(grid=720, dropout=2880, contrast=2880, compressor=720),  # of 655,360 tokens: 1 and 4 epochs
    seeds=dict(grid=1, scaling=1, dropout=3, contrast=3, compressor=1),
    budgets=(1e16, 3e16, 1e17, 3e17, 1e18),
    least_steps=60,
    most_epochs=4,
    warmup=0.0,  # as published
)
EVAL_INTERVALS = (100, 250)  # steps, least and most: the first costs an eighth of the time, the second can be lost


@dataclass(frozen=True)
class Run:
    variant: str
    args: list[str]  # of train.py
    config: TrainConfig
    parameters: int
    flops: int  # of the whole training
    budget: float | None = None  # that it was cut to, in scaling

    @property
    def directory(self) -> Path:
        return Path(self.config.out_dir, self.config.name)

    @property
    def tokens(self) -> int:
        return self.config.max_steps * self.config.sequences_per_step * self.config.block_size


def count(config: TrainConfig, vocab_size: int) -> tuple[int, int]:
    """Parameters; and floating-point operations of a step of training: of the model, the objective and Muon."""
    with torch.device("meta"):  # shapes are all that is needed
        model = MODELS[config.model](GPTNeoConfig(vocab_size=vocab_size, **config.model_shape()))
    n_sequences = config.sequences_per_step
    if config.contrast != "none":
        n_sequences += config.grad_accum_steps * n_shuffled(config.batch_size, config.contrast_share)
    flops = n_sequences * config.block_size * model.flops_per_token(config.block_size)
    optimizers = make_optimizers(model, config)
    return model.num_params(), flops + sum(o.flops_per_step() for o in optimizers if isinstance(o, Muon))


def make_run(
    name: str, variant: str, settings: dict, scale: Scale, vocab_size: int, steps: int, flops: float | None
) -> Run:
    """flops: of the whole training, instead of so many steps."""
    args = [str(ROOT / "configs" / scale.config), f"--name={name}", *flags(settings)]
    config = parse_command_line(args)[0]
    parameters, flops_of_step = count(config, vocab_size)
    steps = max(1, round(flops / flops_of_step)) if flops else steps
    least, most = EVAL_INTERVALS
    interval = min(most, max(least, math.ceil(steps / 4)))
    args += flags(dict(max_steps=steps, warmup_steps=round(scale.warmup * steps), eval_interval=interval))
    return Run(variant, args, parse_command_line(args)[0], parameters, steps * flops_of_step)


def flags(settings: dict) -> list[str]:
    return [f"--{key}={value}" for key, value in settings.items()]


def plan(experiment: str, scale: Scale, n_seeds: int, common: dict, meta: dict) -> list[Run]:
    """The runs in their order. common: what all of them set, such as data and out_dir."""
    runs, n_tokens = [], meta["splits"]["train"]["tokens"]
    budgets = scale.budgets if experiment == "scaling" else [None]
    for seed, budget in itertools.product(range(n_seeds), budgets):
        flops_of = {}
        for variant, settings in VARIANTS[experiment].items():
            settings = settings | common | dict(seed=seed)
            if scale.learning_rate:  # what suits 64 is four times too much for 512 (LOG.md)
                settings["learning_rate"] = min(scale.learning_rate, 1 / settings.get("n_embd", 64))
            flops = budget or flops_of.get(settings.pop("flops_of", None))
            name = f"{budget:.1e}-{variant}_{seed}".replace("+", "") if budget else f"{variant}_{seed}"
            run = make_run(name, variant, settings, scale, meta["vocab_size"], scale.steps.get(experiment, 0), flops)
            run, flops_of[variant] = dataclasses.replace(run, budget=budget), run.flops
            fits = run.config.max_steps >= scale.least_steps and run.tokens <= scale.most_epochs * n_tokens
            if fits or not budget:
                runs.append(run)
    return runs


# ---- Running it ----

MAY_DIFFER = RESUME_MAY_CHANGE - {"max_steps", "min_steps", "max_minutes"}


def is_finished(run: Run, data_sha256: str) -> bool:
    """Whether nothing is left to train; a ConfigError if what stands in its directory is another run."""
    try:
        checkpoint = load_checkpoint(run.directory / "ckpt.pt")
    except ValueError:  # none yet, or a damaged one: train.py knows what to do
        return False
    before = dataclasses.asdict(TrainConfig()) | checkpoint["train_config"]
    remedy = "move it away, or choose another --out_dir"
    for key, value in dataclasses.asdict(run.config).items():
        if value != before[key] and key not in MAY_DIFFER:
            raise ConfigError(f"{run.directory}: trained with {key}={before[key]!r}, now {key}={value!r}; {remedy}")
    if checkpoint["data_sha256"] != data_sha256:
        raise ConfigError(f"{run.directory}: trained on other data than {run.config.data} is now; {remedy}")
    return checkpoint["step"] >= run.config.max_steps


@contextlib.contextmanager
def lock_when_free(directory: Path):
    """Keeps other calls out. Every train.py inherits the lock: where experiments.py alone was killed, the run in hand
    goes on to its end, and the next call waits for that.
    """
    with contextlib.ExitStack() as held:
        for tries in itertools.count():
            try:
                lock_file = held.enter_context(lock(directory))
                break
            except Busy:
                if not tries:
                    print(
                        f"{directory}: another call, or a train.py that it left behind, is at work; waiting", flush=True
                    )
                time.sleep(1)
        yield lock_file


def train_all(runs: list[Run], todo: list[Run], log: Path, lock_file: io.IOBase | None) -> dict[str, str]:
    """Trains `todo`, some of `runs`. Returns what went wrong, by the name of the run."""
    failures, start = {}, time.monotonic()
    total = sum(run.flops for run in runs)
    first = done = total - sum(run.flops for run in todo)
    with tqdm(initial=first, total=total, unit="FLOP", unit_scale=True, disable=None) as bar:
        for number, run in enumerate(todo, len(runs) - len(todo) + 1):
            bar.set_description(run.config.name)
            failure = train_one(run, log, lock_file, bar)
            done += run.flops
            bar.n = done
            if failure:
                failures[run.config.name] = failure
            what = failure or f"validation loss {float(log_of(run)[-1]['val_loss']):.3f}"
            minutes = (time.monotonic() - start) / (done - first) * (total - done) / 60
            bar.write(f"{number}/{len(runs)}  {run.config.name}: {what}; about {minutes:.0f} min left")
    return failures


def train_one(run: Run, log: Path, lock_file: io.IOBase | None, bar: tqdm) -> str | None:
    """Trains it, or trains it on. Returns what went wrong, in one line. What train.py says is appended to `log`."""
    resume = ["--resume"] * any((run.directory / name).exists() for name in ("ckpt.pt", PREVIOUS))
    command, before = [sys.executable, str(ROOT / "train.py"), *run.args, *resume], bar.n
    with log.open("a") as output:
        print("$", shlex.join(command), file=output, flush=True)
        # In a session of its own, so that Ctrl-C reaches us alone, and train.py once: the first saves, a second kills.
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            pass_fds=[lock_file.fileno()] if lock_file else [],
        )  # fmt: skip
    try:
        while process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.5)
            steps = max((int(row["step"]) for row in log_of(run)), default=0)
            bar.n = before + run.flops * steps // run.config.max_steps
            bar.refresh()
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
    if process.returncode < 0:
        return f"killed by signal {-process.returncode}" + " (out of memory?)" * (process.returncode == -signal.SIGKILL)
    return log.read_text(errors="replace").splitlines()[-1] if process.returncode else None


def log_of(run: Run) -> list[dict]:
    path = run.directory / "log.csv"
    return read_log(path) if path.exists() else []


# ---- What came of it ----

# What the runs of a list are measured by beside the loss: the scripts write it, each for all runs below a directory.
MEASURES = {"contrast": ("contrastive.py", "probe.py")}
OF_SCHEDULE = {"name", "seed", "max_steps", "warmup_steps", "eval_interval"}


def table(runs: list[Run], directory: Path) -> list[dict]:
    """A row for each run: the settings in which the runs differ, what it cost, what came of it."""
    settings = [dataclasses.asdict(run.config) for run in runs]
    differing = [key for key in settings[0] if key not in OF_SCHEDULE and len({s[key] for s in settings}) > 1]
    context = context_shares(directory / "probe.csv")
    rows = []
    for run, of_run in zip(runs, settings):
        log = log_of(run)
        row = dict(run=run.config.name, variant=run.variant, seed=run.config.seed)
        row |= {"budget": run.budget} if run.budget else {}
        row |= {key: of_run[key] for key in differing}
        row |= dict(parameters=run.parameters, steps=run.config.max_steps, tokens=run.tokens, flops=run.flops)
        row |= dict(seconds=round(training_seconds(log)[-1], 1))
        row |= {key: float(log[-1][key]) for key in ("train_loss", "val_loss", "bpb")}
        row |= dict(best_val_loss=min(float(r["val_loss"]) for r in log if r["val_loss"]))
        if (run.directory / FILE).exists():
            for order, told in json.loads((run.directory / FILE).read_text()).items():
                row |= {order: told["share"], f"{order}_low": told["low"], f"{order}_high": told["high"]}
        rows.append(row | context.get(str(run.directory), {}))
    return rows


def context_shares(path: Path) -> dict[str, dict]:
    """The share of context prompts that each run has right, with its interval, from probe.py's table."""
    if not path.exists():
        return {}
    rows = [row for row in read_table(path) if row["set"] == "context"]
    shares = {}
    for column in rows[0]:
        if column.endswith(" verdict"):
            right = sum(row[column] == "right" for row in rows)
            low, high = wilson(right / len(rows), len(rows))
            of_run = dict(context=right / len(rows), context_low=low, context_high=high)
            shares[column.removesuffix(" verdict")] = of_run
    return shares


def show_results(experiment: str, directory: Path, rows: list[dict]):
    write_table(directory / "experiment.csv", rows)
    print_table(rows)
    picture = directory / "experiment.png"
    if experiment != "scaling":
        plot_variants(picture, rows)
    else:
        of_all = points(rows)
        best = best_of_budgets(of_all)
        law = fit_power_law([p.flops for p in best], [p.loss for p in best]) if len(best) > 3 else None
        plot_scaling(picture, of_all, law)
        for p in best:
            sizes = [other.parameters for other in of_all if other.budget == p.budget]
            edge = {min(sizes): ", the smallest tried", max(sizes): ", the largest tried"}.get(p.parameters, "")
            print(f"best for {p.budget:.2g} FLOPs: {p.variant}, {p.parameters:,} parameters{edge}, loss {p.loss:.3f}")
        if law:
            print(f"loss = {law.a:.4g} * FLOPs^-b, b = {law.b:.4f}, 95 % interval [{law.low:.4f}, {law.high:.4f}]")
    print(f"\n{directory / 'experiment.csv'} has a row for each run, {picture} the plot")


# ---- The command line ----


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", choices=VARIANTS)
    parser.add_argument("--published", action="store_true", help="the published budgets, for a GPU")
    parser.add_argument("--data", help="a corpus that prepare.py made (default: that of the scale's config)")
    parser.add_argument("--only", nargs="+", metavar="RUN", default=["*"], help="names or patterns, such as '512-*'")
    parser.add_argument(
        "--seeds", type=int, help="runs of each variant, from seed 0 (default: see the top of the file)"
    )
    parser.add_argument("--show", action="store_true", help="print the commands and what they cost; run nothing")
    parser.add_argument("--data_dir", default="data", help="where prepare.py wrote it")
    parser.add_argument("--out_dir", default="out", help="OUT_DIR/<experiment>/ is written to")
    args = parser.parse_args()
    if args.seeds is not None and args.seeds < 1:
        parser.error(f"--seeds must be at least 1, not {args.seeds}")
    return args


def main():
    args = parse_arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        run_experiment(args)
    except KeyboardInterrupt:
        sys.exit("\nexperiments.py: stopped; the same command goes on")
    except (ValueError, OSError) as error:
        sys.exit(f"experiments.py: {error}")


def run_experiment(args: argparse.Namespace):
    scale = PUBLISHED if args.published else SMALL
    directory = Path(args.out_dir, args.experiment + "-published" * args.published)
    if (directory / "ckpt.pt").exists():
        raise ConfigError(f"{directory} is a run of train.py; move it away, or choose another --out_dir")
    data = args.data or parse_command_line([str(ROOT / "configs" / scale.config)])[0].data
    meta = load_meta(Path(args.data_dir, data))
    common = dict(data=data, data_dir=args.data_dir, out_dir=str(directory))
    n_seeds = args.seeds or scale.seeds[args.experiment]
    planned = plan(args.experiment, scale, max(n_seeds, seeds_on_disk(directory)), common, meta)
    runs = [run for run in planned if run.config.seed < n_seeds and any(named(run, each) for each in args.only)]
    if not runs:
        raise ConfigError(f"--only {' '.join(args.only)}: no run of {args.experiment} with {data}; --show lists them")
    if args.show:
        show(runs, scale)
        return
    with lock_when_free(directory) as lock_file:
        sha256 = meta["splits"]["train"]["sha256"]
        todo = [run for run in runs if not is_finished(run, sha256)]
        failures = train_all(runs, todo, directory / "experiment.log", lock_file)
        whole = list(finished(planned, sha256))  # those of earlier calls as well
        if not failures:
            measure(args.experiment, directory, whole)
        if whole:
            show_results(args.experiment, directory, table(whole, directory))
    if failures:
        raise TrainingError(
            f"{len(failures)} of {len(runs)} runs failed ({', '.join(failures)}), see {directory / 'experiment.log'}; "
            "the same command tries them again"
        )


def seeds_on_disk(directory: Path) -> int:
    seeds = (path.parent.name.rpartition("_")[2] for path in directory.glob("*/ckpt.pt"))
    return 1 + max((int(seed) for seed in seeds if seed.isdigit()), default=-1)


def finished(runs: list[Run], data_sha256: str) -> Iterator[Run]:
    """Those that came to their end, with these settings and data."""
    for run in runs:
        with contextlib.suppress(ConfigError):
            if is_finished(run, data_sha256):
                yield run


def named(run: Run, pattern: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for name in (run.variant, run.config.name))


def show(runs: list[Run], scale: Scale):
    for run in runs:
        print(f"# {run.parameters:,} parameters, {run.tokens / 1e6:.1f} M tokens, {run.flops:.2e} FLOPs")
        print("python train.py", shlex.join([f"configs/{scale.config}", *run.args[1:]]))
    print(f"# {len(runs)} runs, {sum(run.flops for run in runs):.2e} FLOPs")


def measure(experiment: str, directory: Path, runs: list[Run]):
    """Runs the scripts that the list is also measured by, unless they have been since the last run came to its end."""
    last, newest = directory / "probe.csv", max((run.directory / "ckpt.pt").stat().st_mtime for run in runs)
    if experiment not in MEASURES or (last.exists() and last.stat().st_mtime > newest):
        return
    for script in MEASURES[experiment]:
        if subprocess.run([sys.executable, ROOT / script, directory]).returncode:
            raise TrainingError(f"{script} failed; the same command tries it again")


if __name__ == "__main__":
    main()
