"""
Experiments: named lists of runs that are trained one after another. Each experiment gets a table and a plot.

$ python experiments.py grid                 # width x depth x heads; half an hour at most, on two cores
$ python experiments.py scaling              # the best loss that a number of training FLOPs can buy
$ python experiments.py contrast --show      # print the train.py commands, but run nothing
$ python experiments.py grid --published --show --markdown      # every published shape, and what it costs on a GPU
$ python experiments.py dropout --only dropout-0.1 --seeds 3
$ python experiments.py compressor --published --data data/tinystories-v2     # the published budgets, for a GPU
$ python experiments.py grid --probe --grade lm:out/cpu_8m      # also probe the runs, and grade them with a larger one
$ python experiments.py grid --markdown      # finished runs are not retrained: prints the table

Needs data/sample (see docs/data.md) or --data. Everything is written to out/<experiment>/ (with --published, to
out/<experiment>-published/). If an experiment was stopped or killed, the same command resumes it: finished runs are
kept, and unfinished ones continue from their last checkpoint. The table shows all finished runs of the experiment,
including those of earlier commands.
"""

import argparse
import fnmatch
import shlex
import signal
from pathlib import Path

from common.cli import Parser, one_line_errors
from common.tables import table_text
from corpus.token_files import load_meta
from sweeps import plans
from sweeps.experiment_tables_and_plots import show_results, tabulate
from sweeps.runner import count_seeds_on_disk, finished, grade_runs, is_finished, lock_when_free, probe_runs, train_all
from training.config import ConfigError, parse_command_line
from training.run_directory import TrainingError


def parse_arguments() -> argparse.Namespace:
    parser = Parser(__doc__)
    parser.add_argument("experiment", choices=plans.VARIANTS)
    parser.add_argument("--published", action="store_true", help="the published budgets, for a GPU")
    parser.add_argument("--only", nargs="+", metavar="RUN", default=["*"], help="names or patterns, such as '512-*'")
    parser.add_argument("--seeds", type=int, metavar="N", help="runs of each variant (default: see sweeps/plans.py)")
    parser.add_argument("--show", action="store_true", help="print the commands and what they cost; run nothing")
    parser.add_shared("data", help="a corpus made by prepare.py, such as data/tinystories (default: the config's own)")
    parser.add_argument("--data_dir", default="data", help="parent of --data if that is only a name, as in train.py")
    parser.add_argument("--out_dir", default="out", help="results go to OUT_DIR/<experiment>/")
    parser.add_argument("--probe", action="store_true", help="also run probe.py: facts, reasoning, context")
    grade = "also run grade.py --judge JUDGE, on completions of 50 validation stories by each run; may be repeated"
    parser.add_argument("--grade", action="append", default=[], metavar="JUDGE", help=grade)
    parser.add_shared("markdown")
    parser.add_api("the API of the --grade judge")
    args = parser.parse_args()
    parser.require(args, "seeds", args.seeds is None or args.seeds >= 1, "at least 1")
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
    scale = plans.PUBLISHED if args.published else plans.SMALL
    directory = Path(args.out_dir, args.experiment + "-published" * args.published)
    if (directory / "ckpt.pt").exists():
        raise ConfigError(f"{directory} is a run of train.py; move it away, or choose another --out_dir")
    data = args.data or Path(parse_command_line([str(plans.ROOT / "configs" / scale.config)])[0].data)
    data = data if data.parent.name else Path(args.data_dir, data)
    planned_only = args.show and args.published and not (data / "meta.json").exists()
    meta = plans.PUBLISHED_META if planned_only else load_meta(data)
    common = dict(data=data.name, data_dir=str(data.parent), out_dir=str(directory))
    n_seeds = args.seeds or scale.seeds[args.experiment]
    planned = plans.plan_runs(args.experiment, scale, max(n_seeds, count_seeds_on_disk(directory)), common, meta)
    runs = [run for run in planned if run.config.seed < n_seeds and is_wanted(run, args.only)]
    if not runs:
        raise ConfigError(f"--only {' '.join(args.only)}: no such run of {args.experiment}; --show lists them")
    if args.show:
        show_commands(runs, scale, args.markdown)
        return
    with lock_when_free(directory) as lock_file:
        sha256 = meta["splits"]["train"]["sha256"]
        unfinished = [run for run in runs if not is_finished(run, sha256)]
        failures = train_all(runs, unfinished, directory / "experiment.log", lock_file)
        complete = list(finished(planned, sha256))  # including those of earlier commands
        if not failures and (args.probe or args.experiment == "contrast"):
            probe_runs(directory, complete, *["--sentence_order"] * (args.experiment == "contrast"))
        if not failures and args.grade:
            grade_runs(directory, complete, args.judge_flags)
        if complete:
            show_results(args.experiment, directory, tabulate(complete, directory), args.markdown)
            print(f"\nwrote {directory}/experiment.csv and .png; next: python report.py {args.out_dir}")
    if failures:
        raise TrainingError(
            f"{len(failures)} of {len(runs)} runs failed ({', '.join(failures)}), see {directory / 'experiment.log'}; "
            "run the same command to retry them"
        )


def is_wanted(run: plans.Run, patterns: list[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, each) for name in (run.variant, run.config.name) for each in patterns)


def show_commands(runs: list[plans.Run], scale: plans.Scale, markdown: bool) -> None:
    """Prints each run's cost as a comment above its command; or with `markdown`, all costs as a table."""
    on_gpu = scale is plans.PUBLISHED
    rows = []
    for run in runs:
        cost = [f"{run.parameters:,}", f"{run.tokens / 1e6:,.1f} M", f"{run.flops:.2e}"]
        cost += [f"{run.flops / plans.GPU_FLOPS / 3600:.2g}"] * on_gpu
        rows.append([run.config.name, *cost])
    head = ["parameters", "tokens", "FLOPs", *["GPU hours"] * on_gpu]
    if markdown:
        print(table_text(["", *head], rows, markdown))
    for run, (_, *cost) in zip(runs, rows if not markdown else []):
        print("#", ", ".join(f"{value} {what}" for value, what in zip(cost, head)))
        print("python train.py", shlex.join([f"configs/{scale.config}", *run.args[1:]]))
    total = f"# {len(runs)} runs, {sum(run.flops for run in runs):.2e} FLOPs"
    if on_gpu:
        hours = sum(run.flops for run in runs) / plans.GPU_FLOPS / 3600
        total += f", {hours:.1f} GPU hours at {plans.GPU_FLOPS / 1e12:.0f} TFLOP/s, a guess for wide models on an A100"
    print(total)


if __name__ == "__main__":
    main()
