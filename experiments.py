"""
The tables and figures of the paper and its reproductions: a list of runs or models for each,
trained, measured, drawn.

$ python experiments.py shapes  # eight small shapes, minutes on two cores: table and picture
# the real sizes: runs, hours, dollars; runs nothing
$ python experiments.py shapes --scale published --dry_run
$ python experiments.py dropout --only 'zero-*' --seeds 3
# the small list, longer, on other stories
$ python experiments.py heads --data data/real --steps 2000
$ python experiments.py shapes --grade gpt-4o-mini --controls --n 10 --price_in 0.15 --price_out 0.6
$ python experiments.py baselines --models out/demo hf:roneneldan/TinyStories-8M --data data/real

Everything is written to out/<experiment>/ (published: out/<experiment>-published/). If it was
stopped or killed, the same command resumes: finished runs and measures are kept. The table shows
all finished runs, also of earlier calls.
"""

import argparse
import fnmatch
import json
import shlex
import signal
from dataclasses import replace
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
from nanostories.grading.chat_judge import PROTOCOLS
from nanostories.sweeps.lists import EXPERIMENTS, SCALES, Experiment, Runs, Scale

PROMPTS = 50  # validation stories that every run continues
A100 = 0.4 * 312e12  # FLOP/s: a guess that training reaches 40%
UTILIZATION = (
    0.5  # share of the speed of matrix products alone that a training step reaches on this machine
)
REQUEST_TOKENS, STORY_TOKENS = (
    570,
    400,
)  # guesses: of a question to a judge; also the limit of an API model's story


def parse_arguments() -> argparse.Namespace:
    parser = Parser(__doc__)
    parser.add_argument("experiment", choices=EXPERIMENTS)
    parser.add_argument(
        "--scale", choices=SCALES, default="small", help="minutes on two cores, or hours on a GPU"
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
        help="training FLOPs (`scaling`)",
    )
    models = "compare these instead: runs, hf:ID or api:MODEL"
    parser.add_argument("--models", nargs="+", type=existing_model, metavar="MODEL", help=models)
    parser.add_argument(
        "--dry_run", action="store_true", help="print commands, hours and dollars; run nothing"
    )
    parser.add_shared(
        "data", help="a corpus made by prepare.py, such as data/real (default: the list's own)"
    )
    parser.add_argument(
        "--data_dir", type=Path, default=Path("data"), help="parent of corpora that are only named"
    )
    parser.add_argument(
        "--out_dir", type=Path, default=Path("out"), help="results go to OUT_DIR/<experiment>/"
    )
    parser.add_argument(
        "--memory_limit", type=positive, default=12_000, metavar="MB", help="`memory`: more is oom"
    )
    prompts = dict(nargs="+", type=existing_file, default=[], metavar="FILE")
    parser.add_argument(
        "--prompts", **prompts, help="for `prompts`: also continue these, as probe.py --prompts"
    )
    grading = parser.add_argument_group("passed on to each sample.py and grade.py")
    judge = (
        "a judge of the stories (default: the best run, by likelihood; none with --models); may be"
        " repeated"
    )
    grading.add_argument("--grade", action="append", default=[], metavar="JUDGE", help=judge)
    grading.add_argument(
        "--controls", action="store_true", help="also grade spoiled endings, to test the judge"
    )
    grading.add_argument(
        "--protocol", nargs="+", choices=PROTOCOLS, default=[], help="as in grade.py"
    )
    grading.add_argument(
        "--question", type=existing_file, metavar="FILE", help="a question of your own"
    )
    grading.add_argument(
        "--n", type=positive, help="completions of each story (default: 1; published: 10)"
    )
    parser.add_api("the API of judges and api: models (--max_cost: of each command that asks it)")
    args = parser.parse_args()
    api = parser.require_api(args)
    if "extra" in api:
        api["extra"] = json.dumps(api["extra"])
    args.api_flags = [
        f"--{name}={value}" for name, value in api.items() if value != parser.get_default(name)
    ]
    args.story_flags = [*args.api_flags, f"--max_new_tokens={STORY_TOKENS}"]
    args.judge_flags = [
        *(f"--judge={judge}" for judge in args.grade),
        *args.api_flags,
        *["--controls"] * args.controls,
    ]
    args.judge_flags += ["--protocol", *args.protocol] if args.protocol else []
    args.judge_flags += [f"--question={args.question}"] if args.question else []
    return args


def main():
    args = parse_arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with one_line_errors("experiments.py", interrupted="run the same command to resume"):
        run_experiment(args)


def run_experiment(args: argparse.Namespace) -> None:
    """Plans the runs, trains those that are not finished, measures and tabulates all that are."""
    from nanostories.sweeps import (  # here, so that --help need not wait for torch
        measures,
        results,
        runner,
    )
    from nanostories.sweeps.plan import plan_runs

    scale, experiment = SCALES[args.scale], EXPERIMENTS[args.experiment]
    listed = getattr(experiment, args.scale)
    if args.models and (experiment.picture == "law" or "memory" in experiment.measures):
        raise UserError(f"{args.experiment} needs runs of its own: leave out --models")
    listed = Runs({}, models=tuple(args.models)) if args.models else listed
    if (args.steps and not listed.steps) or (args.budgets and not listed.budgets):
        raise UserError(
            f"{args.experiment}: --budgets is for `scaling`, --steps for other lists that train"
        )
    listed = replace(
        listed, steps=args.steps or listed.steps, budgets=tuple(args.budgets or listed.budgets)
    )
    directory = args.out_dir / (args.experiment + "-published" * (args.scale == "published"))
    names = {
        experiment.data,
        *(settings.get("data", experiment.data) for settings in listed.variants.values()),
    }
    corpora = {
        name: find_corpus(name, args.data if name == experiment.data else None, scale, args)
        for name in names
    }
    planned = plan_runs(listed, scale, args.seeds, directory, experiment.data, corpora)
    wanted = [
        pattern + end for pattern in args.only for end in ("", "_[0-9]*")
    ]  # with or without the seed
    runs = [
        run
        for run in planned
        if any(fnmatch.fnmatch(run.config.name, pattern) for pattern in wanted)
    ]
    if not runs and not listed.models:
        raise UserError(
            f"--only {' '.join(args.only)}: no such run of {args.experiment}; --dry_run lists them"
        )
    args.n = args.n or scale.n
    if args.dry_run:
        return show_costs(runs, listed, experiment, args)

    directory.mkdir(parents=True, exist_ok=True)
    failed, finished = [], runs
    if listed.steps or listed.budgets:
        sha256 = {path: meta["splits"]["train"]["sha256"] for path, meta in corpora.values()}
        failed, finished = runner.train_all(runs, planned, sha256, directory)
    subjects = find_subjects(
        listed.models, finished, experiment, directory, corpora[experiment.data][0]
    )
    if subjects:
        args.prompt_count, args.sample_flags = PROMPTS, experiment.sample_flags
        if (
            listed.models
        ):  # their samples lie apart from them, and do not say which corpus they continue
            args.judge_flags += [
                f"--data={corpora[experiment.data][0]}",
                *["--no_judge"] * (not args.grade),
            ]
        runner.run_missing(
            measures.commands_of(experiment.measures, subjects, directory, args), directory
        )
        measured = measures.figures_of(experiment.measures, subjects, directory)
        results.show(args.experiment, experiment, directory, subjects, measured)
        print(
            f"\nwrote {directory}/experiment.csv, .md and .png; next: python report.py"
            f" {args.out_dir}"
        )
    elif experiment.checkpoints and not failed:
        raise UserError(
            f"{args.experiment} compares kept checkpoints: train with --keep_checkpoints=10"
        )
    if failed:
        which = (
            f"{len(failed)} of {len(runs)} runs failed ({', '.join(failed)}), see"
            f" {directory / 'experiment.log'}"
        )
        raise UserError(
            f"{which}; the same command retries them; for other settings take another --out_dir"
        )


def find_corpus(
    name: str, given: Path | None, scale: Scale, args: argparse.Namespace
) -> tuple[Path, dict]:
    """(directory, meta.json) of a corpus that the lists name; a built-in one that is missing is
    made."""
    from nanostories.corpus.sources import BUILTIN
    from nanostories.corpus.token_files import load_meta
    from nanostories.sweeps.runner import call

    path = given or Path(scale.corpora.get(name, name))
    path = path if path.parent.name else args.data_dir / path
    if not given and not (path / "meta.json").exists():
        if args.dry_run:
            vocab_size, tokens = (
                (4096, 4_400_000) if path.name in BUILTIN else (10_000, 470_000_000)
            )
            return path, dict(vocab_size=vocab_size, splits=dict(train=dict(tokens=tokens)))
        if path.name in BUILTIN:
            call(["prepare.py", path.name, "--data_dir", str(path.parent)])
    return path, load_meta(path)


def find_subjects(models, runs: list, experiment: Experiment, directory: Path, data: Path) -> list:
    """The models to compare: the finished runs, or the checkpoints that they kept, or existing
    models."""
    from nanostories.checkpoints.checkpoint import directory_of, kept_checkpoints
    from nanostories.sweeps.measures import Subject

    subjects = [
        Subject(run.config.name, str(run.directory), run.directory, run.data, run) for run in runs
    ]
    names = {directory_of(model).name: model for model in models}
    subjects += [Subject(name, model, directory / name, data) for name, model in names.items()]
    if not experiment.checkpoints:
        return subjects
    kept = [(each, path) for each in subjects for path in kept_checkpoints(each.model).values()]
    return [
        each._replace(
            name=f"{each.name}/{path.name}", model=str(path), directory=each.directory / path.name
        )
        for each, path in kept
    ]


def show_costs(runs: list, listed: Runs, experiment: Experiment, args: argparse.Namespace) -> None:
    """Prints the command of each run, a table of their costs, and the cost of APIs."""
    import torch

    from nanostories.device import choose_dtype, measured_flops, peak_flops, set_up_device
    from nanostories.grading.chat_judge import REPLY_TOKENS, read_question
    from nanostories.tables import table_text

    speed, machine = A100, "an A100, a guess"
    if args.scale == "small" or torch.cuda.is_available():
        device = set_up_device("cuda" if torch.cuda.is_available() else "cpu")
        dtype = choose_dtype("auto", device)
        speed = UTILIZATION * (peak_flops(device, dtype) or measured_flops(device, dtype))
        machine = f"{UTILIZATION:.0%} of the speed of matrix products on this machine now"
    rows = []
    for run in runs if listed.steps or listed.budgets else ():
        print("python train.py", shlex.join([f"configs/{Path(run.args[0]).name}", *run.args[1:]]))
        cost = [f"{run.parameters:,}", f"{run.tokens / 1e6:,.2f} M", f"{run.flops:.2e}"]
        rows.append([run.config.name, *cost, f"{run.flops / speed / 3600:.3f}"])
    if rows:
        print(f"\n{table_text(['run', 'parameters', 'tokens', 'training FLOPs', 'hours'], rows)}\n")
        flops = sum(run.flops for run in runs)
        hours = f"{flops / speed / 3600:.2f} hours at {speed:.2g} FLOP/s ({machine})"
        print(f"{len(rows)} runs, {flops:.2e} FLOPs: {hours}")
    n_models = sum(
        max(1, run.config.keep_checkpoints * experiment.checkpoints) for run in runs
    ) + len(listed.models)
    print(
        f"then {', '.join(experiment.measures) or 'no measures'} of {n_models} models, not counted"
        " in the hours"
    )
    n_judges = len([judge for judge in args.grade if not judge.startswith("lm:")])
    questions = [*args.protocol, *([str(args.question)] if args.question else [])] or ["ours"]
    scores, beginnings = (name in experiment.measures for name in ("scores", "beginnings"))
    stories = PROMPTS * args.n * scores + 30 * beginnings  # of a model
    graded = n_models * stories + 4 * PROMPTS * (args.controls and scores)
    judged = n_judges * graded * sum(len(read_question(name).turns) for name in questions)
    written = stories * len([model for model in listed.models if model.startswith("api:")])
    if judged or written:
        cost = "give --price_in and --price_out to see the cost"
        if args.price_in is not None:
            tokens_in = judged * REQUEST_TOKENS
            tokens_out = judged * REPLY_TOKENS + written * STORY_TOKENS
            dollars = (tokens_in * args.price_in + tokens_out * args.price_out) / 1e6
            cost = f"about ${dollars:.2f}"
        print(f"APIs: {judged:,} questions to judges, {written:,} stories; {cost}")


if __name__ == "__main__":
    main()
