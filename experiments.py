"""
The tables and figures of the paper and its reproductions: a list of runs or models for each, trained, measured, drawn.

$ python experiments.py shapes                   # eight small shapes, minutes on two cores: table and picture
$ python experiments.py shapes --scale published --dry_run        # the real sizes: runs, hours, dollars; runs nothing
$ python experiments.py dropout --only 'zero-*' --seeds 3
$ python experiments.py heads --data data/real --steps 2000       # the small list, longer, on other stories
$ python experiments.py shapes --grade gpt-4o-mini --controls --n 10 --price_in 0.15 --price_out 0.6
$ python experiments.py baselines --models out/demo hf:roneneldan/TinyStories-8M --data data/real

Everything is written to out/<experiment>/ (published: out/<experiment>-published/). If it was stopped or killed, the
same command resumes: finished runs and measures are kept. The table shows all finished runs, also of earlier calls.
"""

import argparse
import fnmatch
import shlex
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from common.cli import Parser, existing_file, one_line_errors, positive
from sweeps.lists import EXPERIMENTS, SCALES

PROMPTS = 50  # validation stories that every run continues
ASSUMED = dict(builtin=(4096, 4.4e6))  # vocabulary and training tokens, to count without the data
GPU = "an A100 at 40% of its 312 TFLOP/s, a guess", 0.4 * 312e12
UTILIZATION = 0.5  # of the speed of matrix products alone, that a training step reaches on this machine
QUESTION_TOKENS, REPLY_TOKENS = 350, 100  # of a judge, beside the story


def parse_arguments() -> argparse.Namespace:
    parser = Parser(__doc__)
    parser.add_argument("experiment", choices=EXPERIMENTS)
    parser.add_argument("--scale", choices=SCALES, default="small", help="minutes, or a GPU and hours")
    parser.add_argument("--only", nargs="+", metavar="RUN", default=["*"], help="names or patterns, such as '512-*'")
    parser.add_argument("--seeds", type=positive, metavar="N", help="runs of each variant (default: the list's own)")
    parser.add_argument("--steps", type=positive, metavar="N", help="length of each run (default: the list's own)")
    parser.add_argument("--models", nargs="+", metavar="MODEL", help="compare these instead: runs, hf:ID or api:MODEL")
    parser.add_argument("--dry_run", action="store_true", help="print commands, hours and dollars; run nothing")
    parser.add_shared("data", help="a corpus made by prepare.py, such as data/real (default: the list's own)")
    parser.add_argument("--data_dir", type=Path, default=Path("data"), help="parent of corpora that are only named")
    parser.add_argument("--out_dir", type=Path, default=Path("out"), help="results go to OUT_DIR/<experiment>/")
    parser.add_argument("--memory_limit", type=positive, default=12_000, metavar="MB", help="of `memory`: more is oom")
    prompts = dict(nargs="+", type=existing_file, default=[], metavar="FILE")
    parser.add_argument("--prompts", **prompts, help="of `prompts`: also continue these, as probe.py --prompts")
    grading = parser.add_argument_group("passed on to sample.py and grade.py")
    judge = "a judge of the stories (default: the best run judges the others); may be repeated"
    grading.add_argument("--grade", action="append", default=[], metavar="JUDGE", help=judge)
    grading.add_argument("--controls", action="store_true", help="also grade spoiled endings, to test the judge")
    grading.add_argument("--protocol", nargs="+", default=[], help="how the judge is asked")
    grading.add_argument("--question", type=existing_file, metavar="FILE", help="a question of your own")
    grading.add_argument("--n", type=positive, help="completions of each story (default: 1; published: 10)")
    parser.add_api("the API of judges and api: models")
    args = parser.parse_args()
    api = parser.require_api(args)
    given = {name: value for name, value in api.items() if value != parser.get_default(name)}
    args.api_flags = [f"--{name}={value}" for name, value in given.items()]
    args.judge_flags = [*(f"--judge={judge}" for judge in args.grade), *args.api_flags, *["--controls"] * args.controls]
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
    from sweeps import measures, results, runner  # here, so that --help need not wait for torch
    from sweeps.plan import plan_runs
    from training.config import ConfigError

    scale, experiment = SCALES[args.scale], EXPERIMENTS[args.experiment]
    listed = getattr(experiment, args.scale)
    if args.models:
        listed = replace(listed, variants={}, models=tuple(args.models))
    if args.steps and listed.steps:
        listed = replace(listed, steps=args.steps)
    directory = args.out_dir / (args.experiment + "-published" * (args.scale == "published"))
    if (directory / "ckpt.pt").exists():
        raise ConfigError(f"{directory} is a run of train.py; move it away, or choose another --out_dir")
    corpora = find_corpora(args, experiment.data, listed, scale)
    n_seeds = args.seeds or listed.seeds
    planned = plan_runs(listed, scale, max(n_seeds, runner.count_seeds(directory)), directory, experiment.data, corpora)
    names = {run: (run.variant, run.config.name) for run in planned if run.config.seed < n_seeds}
    runs = [run for run, own in names.items() if any(fnmatch.filter(own, pattern) for pattern in args.only)]
    if not runs and not listed.models:
        raise ConfigError(f"--only {' '.join(args.only)}: no such run of {args.experiment}; --dry_run lists them")
    if args.dry_run:
        return show_costs(runs, listed, experiment, scale, corpora[experiment.data][1], args)

    directory.mkdir(parents=True, exist_ok=True)
    sha256 = {path: meta["splits"]["train"]["sha256"] for path, meta in corpora.values()}
    trains = bool(listed.steps or listed.budgets)
    failed = runner.train_all(runs, sha256, directory / "experiment.log") if trains else []
    done = runner.finished(planned, sha256) if trains else runs
    subjects = find_subjects(listed.models, done, experiment, directory, corpora)
    judge = args.judge_flags if args.grade or not listed.models else ["--no_judge"]
    call = measures.Call(directory, PROMPTS, args.n or scale.n, experiment.sample_flags, tuple(judge),
                         tuple(args.api_flags), tuple(map(str, args.prompts)), args.memory_limit)  # fmt: skip
    if subjects and not failed:
        runner.run_missing(measures.commands_of(experiment.measures, subjects, call), directory)
    if subjects:
        measured = measures.figures_of(experiment.measures, subjects, call)
        results.show(args.experiment, experiment, directory, subjects, measured)
        print(f"\nwrote {directory}/experiment.csv, .md and .png; next: python report.py {args.out_dir}")
    if failed:
        raise ConfigError(
            f"{len(failed)} of {len(runs)} runs failed ({', '.join(failed)}), see {directory / 'experiment.log'}; "
            "run the same command to retry them"
        )


def find_corpora(args: argparse.Namespace, main_corpus: str, listed, scale) -> dict[str, tuple[Path, dict]]:
    """{name in the lists: (directory, meta.json)}; built-in corpora that are missing are made."""
    from corpus.sources import BUILTIN
    from corpus.token_files import load_meta
    from sweeps.plan import ROOT
    from training.config import ConfigError

    found = {}
    for name in dict.fromkeys([main_corpus, *(own.get("data", main_corpus) for own in listed.variants.values())]):
        given = args.data if args.data and name == main_corpus else Path(scale.corpora.get(name, name))
        path = given if given.parent.name else args.data_dir / given
        is_missing = not (path / "meta.json").exists()
        if is_missing and args.dry_run and (path.name in BUILTIN or args.scale == "published"):
            vocab_size, tokens = ASSUMED.get(path.name.partition("-")[0], (10_000, 470e6))
            split = dict(tokens=int(tokens), stories=int(tokens / 220))
            found[name] = path, dict(vocab_size=vocab_size, splits=dict(train=split, val=split))
            continue
        if is_missing and path.name in BUILTIN:
            command = [sys.executable, ROOT / "prepare.py", path.name, "--data_dir", path.parent]
            if subprocess.run(command, stdout=subprocess.DEVNULL).returncode:
                raise ConfigError(f"{path} could not be prepared: see above")
        found[name] = path, load_meta(path)
    return found


def find_subjects(models, runs: list, experiment, directory: Path, corpora: dict) -> list:
    """What is compared: the finished runs, or the checkpoints that they kept, or existing models."""
    from checkpoints.checkpoint import directory_of, kept_checkpoints
    from sweeps.measures import Subject

    subjects = []
    headers = {path: "headers" in meta for path, meta in corpora.values()}
    for run in runs:
        own = Subject(run.config.name, str(run.directory), run.directory, run.data, headers[run.data], run, run.variant)
        subjects.append(own)
    for model in models:
        path = corpora[experiment.data][0]
        name = directory_of(model).name
        subjects.append(Subject(name, model, directory / name, path, headers[path], None, name))
    if not experiment.checkpoints:
        return subjects
    return [
        each._replace(name=f"{each.name}/{path.name}", model=str(path), directory=each.directory / path.name)
        for each in subjects
        for path in kept_checkpoints(each.model).values()
    ]


# ---- What it would cost ----


def show_costs(runs: list, listed, experiment, scale, meta: dict, args: argparse.Namespace) -> None:
    """Prints the command of each run, a table of what they cost, and what APIs would cost."""
    import torch

    from common.tables import table_text
    from training.device_and_dtype import choose_dtype, peak_flops

    machine, speed = GPU
    if args.scale == "small" or torch.cuda.is_available():
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        speed = UTILIZATION * peak_flops(device, choose_dtype("auto", device))
        machine = f"{UTILIZATION:.0%} of what matrix products reach on this machine now"
    if listed.steps or listed.budgets:
        rows = []
        for run in runs:
            print("python train.py", shlex.join([f"configs/{scale.config}", *run.args[1:]]))
            cost = [f"{run.parameters:,}", f"{run.tokens / 1e6:,.2f} M", f"{run.flops:.2e}"]
            rows.append([run.config.name, *cost, f"{run.flops / speed / 3600:.3f}"])
        print(f"\n{table_text(['run', 'parameters', 'tokens', 'training FLOPs', 'hours'], rows)}\n")
        flops = sum(run.flops for run in runs)
        hours = f"{flops / speed / 3600:.2f} hours at {speed:.2g} FLOP/s ({machine})"
        print(f"{len(runs)} runs, {flops:.2e} FLOPs: {hours}")
    n_models = len(runs) + len(listed.models)
    print(f"then {', '.join(experiment.measures) or 'no measures'} of {n_models} models, not counted in the hours")

    train = meta["splits"]["train"]
    stories, length = PROMPTS * (args.n or scale.n), train["tokens"] / train["stories"]
    judges = sum(not judge.startswith("lm:") for judge in args.grade) * max(1, len(args.protocol))
    graded = judges * stories * n_models * ("scores" in experiment.measures)
    written = stories * sum(model.startswith("api:") for model in listed.models)
    tokens_in = graded * (QUESTION_TOKENS + length) + written * length
    tokens_out = graded * REPLY_TOKENS + written * length / 2
    if graded or written:
        cost = "give --price_in and --price_out to see the cost"
        if args.price_in is not None:
            cost = f"about ${(tokens_in * args.price_in + tokens_out * args.price_out) / 1e6:.2f}"
        print(f"APIs: {graded + written:,} requests of {tokens_in:,.0f} tokens, {tokens_out:,.0f} in reply; {cost}")


if __name__ == "__main__":
    main()
