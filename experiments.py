"""
Experiments: one list of runs for each question, trained one after another, then a table and a plot.

$ python experiments.py grid                 # width x depth x heads; half an hour at most, on two cores
$ python experiments.py scaling              # the best loss that a number of training FLOPs can buy
$ python experiments.py contrast --dry_run   # the train.py commands and what they cost; runs nothing
$ python experiments.py dropout --only dropout-0.1 --seeds 3
$ python experiments.py grid --probe --grade lm:out/cpu_8m      # also probe the runs, and grade them with a larger one
$ python experiments.py compressor --scale published --data tinystories-v2    # the published sizes, for a GPU

Needs data/sample (docs/data.md) or --data. Everything is written to out/<experiment>/ (out/<experiment>-published/). If
it was stopped or killed, the same command resumes: finished runs are kept, others continue from their last checkpoint.
The table shows all finished runs, including those of earlier commands.
"""

import argparse
import fnmatch
import shlex
import signal
from dataclasses import dataclass
from pathlib import Path

from common.cli import Parser, one_line_errors, positive


def shapes(names: str) -> dict[str, dict]:
    """Settings by name; a name is width-layers-heads."""
    return {name: dict(zip(("n_embd", "n_layer", "n_head"), map(int, name.split("-")))) for name in names.split()}


@dataclass(frozen=True)
class Experiment:
    """A list of runs that differ in a few settings and train on the same number of tokens, with two exceptions: a
    variant with `flops_of` trains for as many FLOPs as the variant it names, and with `budgets` every variant trains
    once for each budget of FLOPs that suits its size."""

    variants: dict[str, dict]  # {name: settings of train.py that differ from the config's}
    steps: int = 0  # of each run
    seeds: int = 1  # runs of each variant
    budgets: tuple[float, ...] = ()  # training FLOPs
    probe_order: bool = False  # also measure what the model knows of the order of sentences


@dataclass(frozen=True)
class Scale:
    """What the runs of all experiments have in common."""

    config: str
    lists: dict[str, Experiment]
    warmup: float  # share of the steps
    learning_rate: float | None  # upper limit: wide models get 1 / width (LOG.md); None: the config's
    fewest_steps: int  # within a budget; with fewer, the batch size matters more than the model size
    most_epochs: float = 4  # within a budget; more would measure repetition


GRID = "128-8-4 128-12-4 256-8-2 256-8-4 256-8-8 256-12-4 512-8-4 512-12-4"  # one reproduction's eight shapes
SHALLOW = "256-1-4 256-2-4 512-1-4 512-2-4"
SCALING = "16-2-4 32-2-4 64-2-4 64-8-4 128-2-8 128-8-8 256-4-16 256-12-16 512-2-32 512-12-32 1024-2-64 1024-12-64"
WIDE = " ".join(f"{width}-{depth}-16" for width in (64, 128, 256, 512, 768, 1024, 2048) for depth in (1, 2, 4, 8))
DROPOUT = {f"dropout-{p}": shapes("128-8-4")["128-8-4"] | dict(dropout=p) for p in (0.0, 0.1, 0.2, 0.3)}
CONTRAST = {
    "plain": {},
    "reciprocal": dict(flops_of="plain", contrast="reciprocal"),
    "margin-0.1": dict(flops_of="plain", contrast="margin", contrast_margin=0.1),
    "margin-0.3": dict(flops_of="plain", contrast="margin", contrast_margin=0.3),
    "margin-1.0": dict(flops_of="plain", contrast="margin", contrast_margin=1.0),
    "margin-0.1-alpha-1": dict(flops_of="plain", contrast="margin", contrast_margin=0.1, contrast_alpha=1.0),
    "margin-0.1-alpha-0.2": dict(flops_of="plain", contrast="margin", contrast_margin=0.1, contrast_alpha=0.2),
}
COMPRESSOR = {}
for width in (128, 256, 512):
    plain, compressor = dict(n_embd=width, n_layer=8, n_head=16), dict(architecture="pair_compressor")
    COMPRESSOR[f"plain-{width}"] = plain
    COMPRESSOR[f"compressor-{width}"] = plain | compressor
    COMPRESSOR[f"compressor-{width}-equal-flops"] = plain | compressor | dict(flops_of=f"plain-{width}")

SCALES = {
    "small": Scale(  # two CPU cores and 1.4 M tokens: minutes, an hour at most
        config="experiment.py",
        lists={
            "grid": Experiment(shapes(f"{GRID} {SHALLOW}"), steps=160),
            "scaling": Experiment(shapes(SCALING), budgets=(1.5e12, 3e12, 6e12, 1.2e13, 2.4e13)),
            "dropout": Experiment(DROPOUT, steps=2000),
            "contrast": Experiment(CONTRAST, steps=600, seeds=2, probe_order=True),
            "compressor": Experiment(COMPRESSOR, steps=120),
        },
        warmup=0.05,
        learning_rate=8e-3,
        fewest_steps=20,
    ),
    "published": Scale(  # a GPU; a step has 655,360 tokens, so 720 steps are one epoch of TinyStories
        config="experiment_published.py",
        lists={
            "grid": Experiment(shapes(f"{WIDE} {GRID}"), steps=720),
            "scaling": Experiment(shapes(WIDE), budgets=(1e16, 3e16, 1e17, 3e17, 1e18)),
            "dropout": Experiment(DROPOUT, steps=2880, seeds=3),
            "contrast": Experiment(CONTRAST, steps=2880, seeds=3, probe_order=True),
            "compressor": Experiment(COMPRESSOR, steps=720),
        },
        warmup=0.0,
        learning_rate=None,
        fewest_steps=60,
    ),
}
PUBLISHED_META = dict(vocab_size=10_000, splits=dict(train=dict(tokens=470_000_000)))  # to count without the data
GPU_FLOPS = 0.4 * 312e12  # per second: a guess for an A100, 40% of what it can do in bfloat16


def parse_arguments() -> argparse.Namespace:
    parser = Parser(__doc__)
    parser.add_argument("experiment", choices=SCALES["small"].lists)
    parser.add_argument("--scale", choices=SCALES, default="small", help="two cores and minutes, or a GPU and hours")
    parser.add_argument("--only", nargs="+", metavar="RUN", default=["*"], help="names or patterns, such as '512-*'")
    parser.add_argument("--seeds", type=positive, metavar="N", help="runs of each variant (default: the list's own)")
    parser.add_argument("--dry_run", action="store_true", help="print the commands and what they cost; run nothing")
    parser.add_shared("data", help="a corpus made by prepare.py, such as data/tinystories (default: the config's own)")
    parser.add_argument("--data_dir", default="data", help="parent of --data if that is only a name, as in train.py")
    parser.add_argument("--out_dir", default="out", help="results go to OUT_DIR/<experiment>/")
    parser.add_argument("--probe", action="store_true", help="also run probe.py: facts, reasoning, context")
    grade = "also run grade.py --judge JUDGE, on completions of 50 validation stories by each run; may be repeated"
    parser.add_argument("--grade", action="append", default=[], metavar="JUDGE", help=grade)
    parser.add_api("the API of the --grade judge")
    args = parser.parse_args()
    api = parser.require_api(args)
    given = (f"--{name}={value}" for name, value in api.items() if value != parser.get_default(name))
    args.judge_flags = [*(f"--judge={judge}" for judge in args.grade), *given]
    return args


def main():
    args = parse_arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with one_line_errors("experiments.py", interrupted="run the same command to resume"):
        run_experiment(args)


def run_experiment(args: argparse.Namespace) -> None:
    """Plans the runs, trains those that are not finished, measures and tabulates all that are."""
    from corpus.token_files import load_meta  # here, so that --help need not wait for torch
    from sweeps import results, runner
    from sweeps.plan import ROOT, plan_runs
    from training.config import ConfigError, parse_command_line

    scale = SCALES[args.scale]
    experiment = scale.lists[args.experiment]
    directory = Path(args.out_dir, args.experiment + "-published" * (args.scale == "published"))
    if (directory / "ckpt.pt").exists():
        raise ConfigError(f"{directory} is a run of train.py; move it away, or choose another --out_dir")
    data = args.data or Path(parse_command_line([str(ROOT / "configs" / scale.config)])[0].data)
    data = data if data.parent.name else Path(args.data_dir, data)
    planned_only = args.dry_run and args.scale == "published" and not (data / "meta.json").exists()
    meta = PUBLISHED_META if planned_only else load_meta(data)

    common = dict(data=data.name, data_dir=str(data.parent), out_dir=str(directory))
    n_seeds = args.seeds or experiment.seeds
    planned = plan_runs(experiment, scale, max(n_seeds, runner.count_seeds(directory)), common, meta)
    names = {run: (run.variant, run.config.name) for run in planned if run.config.seed < n_seeds}
    runs = [run for run, own in names.items() if any(fnmatch.filter(own, pattern) for pattern in args.only)]
    if not runs:
        raise ConfigError(f"--only {' '.join(args.only)}: no such run of {args.experiment}; --dry_run lists them")
    if args.dry_run:
        show_costs(runs, scale, on_gpu=args.scale == "published")
        return

    directory.mkdir(parents=True, exist_ok=True)
    failed = runner.train_all(runs, meta, directory / "experiment.log")
    finished = runner.finished(planned, meta)  # including those of earlier commands
    if finished and not failed:
        if args.probe or experiment.probe_order:
            runner.probe(directory, finished, *["--sentence_order"] * experiment.probe_order)
        if args.grade:
            runner.grade(directory, finished, args.judge_flags)
    if finished:
        results.show(args.experiment, directory, finished)
        print(f"\nwrote {directory}/experiment.csv, .md and .png; next: python report.py {args.out_dir}")
    if failed:
        raise ConfigError(
            f"{len(failed)} of {len(runs)} runs failed ({', '.join(failed)}), see {directory / 'experiment.log'}; "
            "run the same command to retry them"
        )


def show_costs(runs: list, scale: Scale, on_gpu: bool) -> None:
    """Prints the command of each run, then a table of what they cost."""
    from common.tables import table_text

    head, rows = ["run", "parameters", "tokens", "training FLOPs", *["GPU hours"] * on_gpu], []
    for run in runs:
        print("python train.py", shlex.join([f"configs/{scale.config}", *run.args[1:]]))
        cost = [f"{run.parameters:,}", f"{run.tokens / 1e6:,.1f} M", f"{run.flops:.2e}"]
        rows.append([run.config.name, *cost, *[f"{run.flops / GPU_FLOPS / 3600:.2g}"] * on_gpu])
    print(f"\n{table_text(head, rows)}\n")
    flops = sum(run.flops for run in runs)
    hours = f", {flops / GPU_FLOPS / 3600:.1f} GPU hours at {GPU_FLOPS / 1e12:.0f} TFLOP/s, a guess for an A100"
    print(f"{len(runs)} runs, {flops:.2e} FLOPs{hours * on_gpu}")


if __name__ == "__main__":
    main()
