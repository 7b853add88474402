"""
The tables and figures of the paper and its reproductions: a list of runs or models for each,
trained, measured, drawn.

$ python experiments.py shapes  # eight small shapes, minutes on two cores: table and picture
# the real sizes: runs and hours; runs nothing
$ python experiments.py shapes --scale published --dry_run
$ python experiments.py dropout --only 'zero-*' --seeds 3
# on real stories (docs/data.md says which), eight times as long
$ python experiments.py heads --scale real --seeds 3
# flags for each sample.py and grade.py
$ python experiments.py shapes --sample "--n 10" --grade "--judge gpt-4o-mini --controls"
$ python experiments.py baselines --models api:gpt-3.5-turbo  # beside those of the list
$ python experiments.py baselines --only_models out/demo hf:gpt2 --data data/real  # in their place

Everything is written to out/<experiment>/ (other scales: out/<experiment>-<scale>/). If it was
stopped or killed, the same command resumes: finished runs and measures are kept. URLs and keys of
APIs come from the environment (OPENAI_BASE_URL, OPENAI_API_KEY, JUDGE_…: docs/sampling.md).
"""

import argparse
import fnmatch
import shlex
import signal
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from nanostories.cli import (
    Parser,
    UserError,
    existing_file,
    existing_model,
    one_line_errors,
    positive,
    positive_float,
)
from nanostories.sweeps.lists import (
    EXPERIMENTS,
    PREPARED,
    PUBLISHED_STORIES,
    SCALES,
    Experiment,
    Runs,
)

A100 = 0.4 * 312e12  # FLOP/s: a guess that training reaches 40%
# Share of the speed of matrix products alone that a training step reaches on this machine
UTILIZATION = 0.5
# (ids, training tokens) of a corpus that is not there yet, for a plan: about what it will have
EXPECTED = {"builtin": (4096, 4_430_000), PUBLISHED_STORIES: (50_257, 470_000_000)}
OTHERS = (10_000, 470_000_000)


def parse_arguments() -> argparse.Namespace:
    parser = Parser(__doc__)
    parser.add_argument("experiment", choices=EXPERIMENTS)
    parser.add_argument(
        "--scale",
        choices=SCALES,
        default="small",
        help="small: minutes, built-in stories; real: about an hour, data/real; published: the"
        " documents' sizes, hours on a GPU",
    )
    parser.add_argument(
        "--only", nargs="+", metavar="RUN", default=["*"], help="names or patterns, such as '512-*'"
    )
    parser.add_argument(
        "--seeds", type=positive, metavar="N", default=1, help="runs of each variant"
    )
    parser.add_argument(
        "--steps", type=positive, metavar="N", help="length of each run (default: the list's own)"
    )
    parser.add_argument(
        "--budgets",
        type=positive_float,
        nargs="+",
        metavar="FLOPS",
        default=[],
        help="training FLOPs (`scaling`)",
    )
    models = dict(nargs="+", type=existing_model, metavar="MODEL", default=[])
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--models", help="compare these, too: runs, hf:ID or api:MODEL", **models)
    either.add_argument("--only_models", help="compare these alone, and train nothing", **models)
    parser.add_argument(
        "--dry_run", action="store_true", help="print commands and hours; run nothing"
    )
    parser.add_shared(
        "data", help="a corpus made by prepare.py, such as data/real (default: the list's own)"
    )
    parser.add_argument(
        "--data_dir", type=Path, default=Path("data"), help="parent of the lists' own corpora"
    )
    parser.add_argument(
        "--out_dir", type=Path, default=Path("out"), help="results go to OUT_DIR/<experiment>/"
    )
    parser.add_argument(
        "--memory_limit",
        type=positive,
        default=12_000,
        metavar="MB",
        help="`memory`: more is oom (out of memory)",
    )
    parser.add_argument(
        "--prompts",
        type=existing_file,
        metavar="FILE",
        help="lines of text: continue these instead of validation stories or of our three"
        " beginnings",
    )
    parser.add_argument(
        "--sample",
        type=shlex.split,
        default=[],
        metavar="FLAGS",
        help='for each sample.py, such as "--n 10" (one word needs =: --sample=--n=10)',
    )
    parser.add_argument(
        "--grade",
        type=shlex.split,
        default=[],
        metavar="FLAGS",
        help='for each grade.py, such as "--judge gpt-4o-mini --controls" (default: the best run'
        " judges, by likelihood; of models that were all there before, none does)",
    )
    return parser.parse_args()


def main():
    args = parse_arguments()
    # Children have a session of their own, so whatever ends this process must be passed on. A
    # shell's background jobs ignore SIGINT, and so would they.
    stops = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:  # no nohup
        stops.append(signal.SIGHUP)
    for number in stops:
        signal.signal(number, signal.default_int_handler)
    with one_line_errors("experiments.py", interrupted="run the same command to resume"):
        run_experiment(args)


def run_experiment(args: argparse.Namespace) -> None:
    """Plans the runs, trains those that are not finished, measures and tabulates all that are."""
    # here, so that --help need not wait for torch
    from nanostories.sweeps import results, runner
    from nanostories.sweeps.measures import Settings
    from nanostories.sweeps.plan import plan_runs

    experiment = EXPERIMENTS[args.experiment]
    scale = SCALES[args.scale]
    listed = choose_runs(experiment, args)
    keys = missing_keys(listed, args)
    if keys and not args.dry_run:
        raise UserError(f"it calls an API: set {' and '.join(keys)} in the environment")
    corpora = find_corpora(experiment, listed, args)
    directory = args.out_dir / args.experiment
    if args.scale != "small":
        directory = args.out_dir / f"{args.experiment}-{args.scale}"
    runs = plan_runs(listed, scale, args.seeds, directory, experiment.data, corpora)
    runs = [run for run in runs if is_wanted(run.config.name, args.only)]
    if listed.variants and not runs:
        raise UserError(
            f"{args.experiment}: no run matches --only {' '.join(args.only)} (and --budgets);"
            " --dry_run without these lists its runs"
        )
    if args.dry_run:
        if listed.trains:
            show_costs(runs, args.scale)
        measures = ", ".join(experiment.measures) or "no measures"
        print(f"then {measures}, whose time is not counted")
        for key in keys:
            print(f"missing: {key}")
        return

    directory.mkdir(parents=True, exist_ok=True)
    failed = []
    problems = []
    if listed.trains:
        log = directory / "experiment.log"
        failed = runner.train_all(runs, log)
        if failed:
            counts = f"{len(failed)} of {len(runs)} runs failed"
            problems.append(f"{counts} ({', '.join(failed)}), see {log}")
    finished = [run for run in runs if run.config.name not in failed]
    data = corpora[experiment.data][0]
    subjects = find_subjects(listed, finished, experiment, directory, data)
    settings = Settings(
        directory,
        n=scale.n,
        sample=[*experiment.sample_flags, *args.sample],
        grade=grade_flags(listed, data, args),
        prompts=args.prompts or listed.prompts,
        memory_limit=args.memory_limit,
    )
    if subjects:
        problems += measure(experiment, subjects, settings)
        results.show(args.experiment, experiment, subjects, settings)
        wrote = f"wrote {directory}/experiment.json and .csv, beside pictures"
        print(f"\n{wrote}; next: python report.py {args.out_dir}")
    if problems:
        raise UserError(f"{'; '.join(problems)}; the same command retries them")


def measure(experiment: Experiment, subjects: Sequence, settings) -> list[str]:
    """Calls the commands whose results are not there yet. Returns a line for each that failed."""
    from nanostories.sweeps import measures, runner

    problems = []
    todo = []
    for command in measures.commands(experiment.measures, subjects, settings):
        if command not in todo:  # two measures may need the same stories
            todo.append(command)
    # Stories and grades first: results that are older than stories are made again
    for command in sorted(todo, key=lambda command: command.result is not None):
        if not runner.is_current(command) and runner.call(command.arguments):
            problems.append(f"{command.arguments[0]} failed, see above")
    return list(dict.fromkeys(problems))


# ---- The runs or models of a list ----
def choose_runs(experiment: Experiment, args: argparse.Namespace) -> Runs:
    listed = experiment.runs(args.scale)
    models = args.models or args.only_models
    if models and (experiment.picture == "law" or "memory" in experiment.measures):
        raise UserError(
            f"{args.experiment} needs runs of its own: leave out --models and --only_models"
        )
    if args.only_models:
        listed = Runs({}, prompts=listed.prompts)
    if (args.steps and not listed.steps) or (args.budgets and not listed.budgets):
        raise UserError(
            f"{args.experiment}: --budgets is for `scaling`, --steps for other lists that train"
        )
    return replace(
        listed,
        steps=args.steps or listed.steps,
        budgets=args.budgets or listed.budgets,
        models=(*listed.models, *models),
    )


def find_corpora(
    experiment: Experiment, listed: Runs, args: argparse.Namespace
) -> dict[str, tuple[Path, int, int]]:
    """{name in the list: (directory, ids, training tokens)}. One that is missing is made, or
    downloaded; in a dry run, its sizes are guessed."""
    from nanostories.corpus.token_files import load_meta

    names = {experiment.data}
    names |= {settings.get("data", experiment.data) for settings in listed.variants.values()}
    found = {}
    for name in sorted(names):
        path = args.data_dir / SCALES[args.scale].corpora.get(name, name)
        if args.data and name == experiment.data:
            path = args.data
        elif not (path / "meta.json").exists():
            make_corpus(path, args.dry_run)
            if args.dry_run:
                sizes = EXPECTED.get(path.name.partition("-instruct")[0], OTHERS)
                found[name] = (path, *sizes)
                continue
        meta = load_meta(path)
        found[name] = (path, meta["vocab_size"], meta["splits"]["train"]["tokens"])
    return found


def make_corpus(path: Path, dry_run: bool) -> None:
    from nanostories.sweeps.runner import call

    flags = [*PREPARED.get(path.name, [path.name]), f"--name={path.name}"]
    flags.append(f"--data_dir={path.parent}")
    command = f"python prepare.py {shlex.join(flags)}"
    if "--input" in flags:
        made = f"make it of your stories by {command} (docs/data.md)"
        raise UserError(f"missing: {path}; {made}, or give --data")
    print(f"missing: {path}, which is made first by {command}")
    if not dry_run and call(["prepare.py", *flags]):
        raise UserError(f"{command} failed: see above")


def is_wanted(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


def find_subjects(
    listed: Runs, runs: Sequence, experiment: Experiment, directory: Path, data: Path
) -> list:
    """The models to compare: the finished runs, or the checkpoints that they kept, or existing
    models."""
    from nanostories.checkpoints.checkpoint import kept_checkpoints
    from nanostories.checkpoints.models import open_model
    from nanostories.sweeps.measures import Subject

    subjects = []
    for run in runs:
        model = open_model(str(run.directory))
        corpus = run.data if experiment.own_prompts else data
        subjects.append(Subject(run.config.name, model, run.directory, corpus, run))
    for name in listed.models:
        model = open_model(name)
        # its path below out/, so that equal names of steps are told apart
        label = "--".join(model.directory.parts[-2:]).removeprefix("out--")
        subjects.append(Subject(label, model, directory / label, data))
    if not experiment.checkpoints:
        return subjects
    kept = []
    for subject in subjects:
        steps = kept_checkpoints(subject.model.name).values()
        for path in steps:
            name = f"{subject.name}/{path.name}"
            place = subject.directory / path.name
            kept.append(replace(subject, name=name, model=open_model(str(path)), directory=place))
        if not steps:  # an existing model, as it is
            kept.append(subject)
    return kept


# ---- Judges and keys ----
def grade_flags(listed: Runs, data: Path, args: argparse.Namespace) -> list[str]:
    """The flags of each grade.py. Where nothing is trained here: also the corpus, which samples
    that lie apart from their model do not tell, and no judge unless one is named."""
    flags = list(args.grade)
    if not listed.variants:
        flags.append(f"--data={data}")
        if not api_flags(args.grade).judge:
            flags.append("--no_judge")
    return flags


def missing_keys(listed: Runs, args: argparse.Namespace) -> list[str]:
    """The variables that must be set before the APIs can be asked."""
    asked = {}  # role: the flags of its command
    if any(name.startswith("api:") for name in listed.models):
        asked["OPENAI"] = args.sample
    if any(name != "human" and not name.startswith("lm:") for name in api_flags(args.grade).judge):
        asked["JUDGE"] = args.grade
    missing = []
    for role, flags in asked.items():
        # here, as `import openai` takes over a second
        from nanostories.generation.api_client import find_endpoint

        _, key = find_endpoint(role, api_flags(flags).base_url)
        if not key:
            missing.append(f"{role}_API_KEY")
    return missing


def api_flags(flags: Sequence[str]) -> argparse.Namespace:
    """Those of sample.py and grade.py that say whom they ask."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--judge", action="append", default=[])
    parser.add_argument("--base_url", default="")
    return parser.parse_known_args(flags)[0]


# ---- What it would cost ----
def show_costs(runs: Sequence, scale: str) -> None:
    """Prints the command of each run, and a table of their costs."""
    from nanostories.tables import table_text

    speed, machine = training_speed(scale)
    rows = []
    for run in runs:
        print("python train.py", shlex.join([f"configs/{Path(run.args[0]).name}", *run.args[1:]]))
        cost = [f"{run.parameters:,}", f"{run.tokens / 1e6:,.2f} M", f"{run.flops:.2e}"]
        rows.append([run.config.name, *cost, str(timedelta(seconds=run.flops // speed))])
    print(f"\n{table_text(['run', 'parameters', 'tokens', 'training FLOPs', 'h:mm:ss'], rows)}\n")
    flops = sum(run.flops for run in runs)
    total = timedelta(seconds=flops // speed)
    print(f"{len(rows)} runs, {flops:.2e} FLOPs: {total} at {speed:.2g} FLOP/s ({machine})")


def training_speed(scale: str) -> tuple[float, str]:
    """(FLOP/s, where from)"""
    import torch

    from nanostories.device import choose_dtype, measured_flops, peak_flops, set_up_device

    if scale == "published" and not torch.cuda.is_available():
        return A100, "an A100, a guess"
    device = set_up_device()
    dtype = choose_dtype("auto", device)
    speed = peak_flops(device, dtype) or measured_flops(device, dtype)
    about = f"{UTILIZATION:.0%} of the speed of matrix products on this machine now"
    return UTILIZATION * speed, about


if __name__ == "__main__":
    main()
