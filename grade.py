"""
Grade completions, by likelihood or with a chat model (GPT-Eval), and test how far the judge can be trusted.

$ python grade.py out/                                              # the best run judges the others: no key needed
$ python grade.py out/ --judge lm:out/ts_33m                        # how likely this model finds what they wrote
$ python grade.py out/ --no_judge                                   # loss, endings, repetition, words
$ python grade.py out/ --judge gpt-4o-mini --controls --dry_run     # what it would ask, and at what cost
$ python grade.py out/ --judge gpt-4o-mini --controls --protocol ours paper scores --dry_run     # as others ask, too
$ python grade.py out/ --judge gpt-4o-mini --controls --price_in 0.15 --price_out 0.6 --max_cost 1   # OPENAI_API_KEY
$ python grade.py out/ --import teacher.csv                          # grades made elsewhere, next to those made here
$ python grade.py out/ --judge qwen --base_url http://localhost:8080/v1 --repeats 3                  # llama.cpp, vLLM

Grades every samples.jsonl below the directories. Every reply is saved at once, to grades.jsonl next to it, so the same
command continues where it stopped, and asks only what this judge has not yet answered about these completions.
"""

import argparse
import contextlib
import itertools
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from common.cli import Parser, one_line_errors
from common.figures import png_bytes
from common.files import lock, write_bytes
from grading import compare_models, imported_grades, scores_plot, temperature_plot
from grading.chat_judge import ChatJudge, ask
from grading.chat_judge import dry_run as dry_run_of_chat
from grading.judge_controls import SAFE, TRUE, make_controls
from grading.judge_questions import PROTOCOLS
from grading.ledger import (
    Judge,
    Ledger,
    Request,
    Run,
    copy_shared_scores,
    failed_requests,
    find_ledger,
    judged_by_themselves,
    mean_scores,
    name_settings,
    plan_recorded,
    plan_requests,
    read_runs,
    safe_endings,
    served_models,
)
from grading.rubrics import is_likelihood_judge, rubric_of
from grading.scores_table import report
from grading.story import Story

# The chat judge that a bare `python grade.py out/` adds if there is a key or an endpoint. The prices are OpenAI's for
# this model (2024), in dollars per million tokens; for another endpoint they are only an assumption.
CHAT_JUDGE, PRICES, MAX_COST = "gpt-4o-mini", dict(price_in=0.15, price_out=0.60), 1.0


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = Parser(__doc__)
    parser.add_argument("directories", nargs="+", type=Path, metavar="DIR", help="runs, or directories of runs")
    judge = "lm:RUN or lm:hf:ID, to judge by likelihood, or a chat model behind an API; may be given several times"
    parser.add_argument("--judge", action="append", default=[], metavar="MODEL", help=judge)
    imports = "grades made elsewhere: a CSV of run, prompt, sample, judge and scores, or of means (docs/grading.md)"
    parser.add_argument("--import", nargs="+", type=Path, default=[], dest="imports", metavar="FILE", help=imports)
    parser.add_argument("--no_judge", action="store_true", help="compute only the metrics that need no judge")
    controls = "also grade true and deliberately spoiled endings, to test the judge (lm: judges always do)"
    parser.add_argument("--controls", action="store_true", help=controls)
    protocol = "how chat judges are asked: our question; the paper's two turns; or for a bare array of three scores"
    parser.add_argument("--protocol", nargs="+", choices=PROTOCOLS, default=["ours"], help=protocol)
    parser.add_argument("--repeats", type=int, default=1, help="how often each chat judge grades a completion")
    parser.add_argument("--temperature", type=float, help="sampling temperature of chat judges (default: the API's)")
    parser.add_argument("--max_tokens", type=int, default=2000, help="longest reply, reasoning included")
    parser.add_argument("--dry_run", action="store_true", help="ask nothing: show one request, their number and cost")
    parser.add_shared("data", "markdown")
    parser.add_api("the judge's API")
    args = parser.parse_args(arguments)
    for name in ("repeats", "max_tokens"):
        parser.require(args, name, getattr(args, name) >= 1, "at least 1")
    parser.require(args, "temperature", args.temperature is None or args.temperature >= 0, "0 or more")
    if args.judge and args.no_judge:
        parser.error("give either --judge MODEL or --no_judge")
    args.judge = list(dict.fromkeys(args.judge))
    args.is_bare = not args.judge and not args.no_judge and not args.imports
    if args.is_bare and (args.base_url or os.environ.get("OPENAI_BASE_URL") or os.environ.get("OPENAI_API_KEY")):
        args.judge, args.controls = [CHAT_JUDGE], True
        if args.price_in is None and args.price_out is None:
            args.price_in, args.price_out = PRICES["price_in"], PRICES["price_out"]
        args.max_cost = args.max_cost or MAX_COST
    if all(map(is_likelihood_judge, args.judge)) and not args.no_judge:
        for name in ("protocol", "repeats", "temperature", "max_cost"):
            if getattr(args, name) != parser.get_default(name):
                parser.error(
                    f"--{name} is for chat judges: a likelihood judge costs nothing, and its scores are always the same"
                )
    args.api = parser.require_api(args)
    return args


def grade_runs(args: argparse.Namespace, retries) -> None:
    from grading.judge_choice import choose_judges  # here, so that --help need not wait for torch
    from grading.metrics import compute_metrics

    trained = prepare_bare(args) if args.is_bare else []
    runs, directory = read_runs(args.directories)
    controls = make_controls([ending for run in runs for ending in run.true_endings])
    if args.controls and not args.is_bare and not controls[TRUE]:
        raise ValueError("--controls needs true endings, which `python sample.py --eval N` keeps; there are none")
    by_likelihood = {name: runs for name in args.judge if is_likelihood_judge(name)}
    if args.is_bare:
        by_likelihood = choose_judges(trained, runs)
    with contextlib.ExitStack() as locks:
        for run in runs if args.judge or by_likelihood or args.imports else []:
            locks.enter_context(lock(run.directory, ".grade.lock", "another grade.py is running there; let it finish"))
        ledgers = {run.name: Ledger(run.directory / "grades.jsonl") for run in runs}
        judges = make_judges(by_likelihood, runs, args)
        requests, missing = plan(judges, controls, ledgers, args)
        if args.dry_run:
            return dry_run(missing, ledgers, args)
        imported = {run.name: Ledger(run.directory / imported_grades.FILE) for run in runs}
        for path in args.imports:
            summary = imported_grades.add_grades(path, runs, imported)
            print(f"{summary}, kept in {imported_grades.FILE} next to each run's samples.jsonl")
        findings = compute_metrics(runs, controls[TRUE], args.data)  # first, so that an error here costs nothing
        copy_shared_scores(requests, list(ledgers.values()))
        error = grade_missing(missing, judges, args, retries)
    recorded, n_gone = plan_recorded(runs, controls, ledgers)  # from earlier calls: paid for, so still in the table
    elsewhere, n_gone_elsewhere = plan_recorded(runs, {}, imported)
    n_gone += n_gone_elsewhere
    if n_gone:
        print(f"{n_gone:,} earlier grades are left out: their completions are no longer in samples.jsonl")
    asked = {request.key for request in requests}
    requests += [request for request in recorded if request.key not in asked] + elsewhere
    findings += imported_grades.imported_means(runs, imported)
    safe = safe_endings(runs, ledgers)
    write_results(runs, controls, safe, requests, list(judges), findings, directory, args.markdown)
    if error:
        raise error


def prepare_bare(args: argparse.Namespace) -> list[Path]:
    """Without --judge: announces what an API will be asked, and writes missing samples. Returns the trained runs."""
    from grading.judge_choice import trained_runs, write_missing_samples

    if args.judge:
        from generation.api_client import endpoint_url, public_url

        print(
            f"also asks {CHAT_JUDGE} at {public_url(endpoint_url(args.base_url))}, for at most ${args.max_cost:g}, "
            f"at ${args.price_in:g} and ${args.price_out:g} per million tokens in and out (--max_cost, --price_in and "
            "--price_out change that; without OPENAI_API_KEY and OPENAI_BASE_URL, no API is asked)"
        )
    trained = trained_runs(args.directories)
    write_missing_samples(trained, args.data, args.dry_run)
    return trained


def make_judges(
    by_likelihood: Mapping[str, Sequence[Run]], runs: Sequence[Run], args: argparse.Namespace
) -> dict[Judge, Sequence[Run]]:
    """{judge: the runs that it grades}; likelihood judges, which cost nothing, come first."""
    judges = {}
    if by_likelihood:
        from grading.likelihood_judge import LikelihoodJudge

        judges |= {LikelihoodJudge(name, runs): graded for name, graded in by_likelihood.items()}
    if names := [name for name in args.judge if not is_likelihood_judge(name)]:
        from generation.api_client import endpoint_url, public_url

        url = public_url(endpoint_url(args.base_url))
        for name, protocol in itertools.product(names, dict.fromkeys(args.protocol)):
            judges[ChatJudge(name, url, args.temperature, args.repeats, protocol)] = runs
    return judges


def plan(
    judges: Mapping[Judge, Sequence[Run]],
    controls: Mapping[str, Sequence[Story]],
    ledgers: Mapping[str, Ledger],
    args: argparse.Namespace,
) -> tuple[list[Request], list[Request]]:
    """All requests, and those of them whose scores are in no ledger yet."""
    requests = []
    for judge, graded in judges.items():
        own_controls = controls if args.controls or is_likelihood_judge(judge.name) else {}
        if is_likelihood_judge(judge.name) and not args.dry_run:
            true_endings = list(dict.fromkeys(ending for run in graded for ending in run.true_endings))
            own_controls = {**controls, SAFE: judge.safe_endings(graded, true_endings, ledgers)}
        requests += plan_requests(graded, own_controls, ledgers, judge)
    missing = [request for request in requests if not find_ledger(request, ledgers.values())]
    # Requests that failed before come last, as several failures in a row stop everything.
    missing.sort(key=lambda request: any(request.key in ledger.failures for ledger in ledgers.values()))
    return requests, missing


def dry_run(missing: Sequence[Request], ledgers: Mapping[str, Ledger], args: argparse.Namespace) -> None:
    """Prints what each judge would have to do."""
    for judge in dict.fromkeys(request.judge for request in missing if is_likelihood_judge(request.judge.name)):
        print(judge.dry_run([request for request in missing if request.judge is judge]))
    to_ask = [request for request in missing if not is_likelihood_judge(request.judge.name)]
    if to_ask:
        from generation.api_client import Budget

        print(dry_run_of_chat(to_ask, ledgers.values(), args.max_tokens, Budget(args.price_in, args.price_out)))
    if not missing:
        print("nothing to ask: everything has been graded")


def grade_missing(
    missing: Sequence[Request], judges: Iterable[Judge], args: argparse.Namespace, retries
) -> ValueError | None:
    """Returns an error to raise after the tables: a spent budget or, without --judge, any error of the API."""
    for judge in judges:
        if is_likelihood_judge(judge.name):
            judge.grade([request for request in missing if request.judge is judge])
    to_ask = [request for request in missing if not is_likelihood_judge(request.judge.name)]
    if not to_ask:
        return None
    from generation.api_client import ApiClient

    try:
        return ask(to_ask, ApiClient(**args.api, retries=retries), args.max_tokens)
    except ValueError as error:
        if args.is_bare:  # the user did not name this judge, so its errors must not prevent the tables
            return error
        raise


def write_results(
    runs: Sequence[Run],
    controls: Mapping[str, Sequence[Story]],
    safe: Mapping[str, Sequence[Story]],  # from ledger.safe_endings
    requests: Sequence[Request],
    judges: Sequence[Judge],  # of this call; they come first
    known: Sequence[compare_models.Finding],  # metrics, and imported means
    directory: Path,
    markdown: bool = False,
) -> None:
    """Prints the tables, writes grades.csv and grades.png to `directory`."""
    names, order = [run.name for run in runs], {judge.name: i for i, judge in enumerate(judges)}
    settings = sorted({r.setting for r in requests}, key=lambda s: (order.get(s.judge, len(order)), str(s)))
    scores, counts, findings = {}, {}, list(known)
    for setting, judge in name_settings(settings).items():
        own = [request for request in requests if request.setting == setting]
        sources = {run.name: run.stories for run in runs} | {**controls, SAFE: safe.get(setting.source, [])}
        scores[judge] = mean_scores(own)
        findings += compare_models.compare(sources, names, scores[judge], list(rubric_of(judge).scores), judge)
        counts[judge], lines = failed_requests(own, judge)
        if len(models := served_models(own)) > 1:
            several = ", ".join(f"{model} ({n:,})" for model, n in models.items())
            print(f"WARNING several models have answered as {judge}: {several}; to start over, move grades.jsonl away")
        if selves := judged_by_themselves(runs, own):
            print(f"WARNING {judge} wrote the stories of {', '.join(selves)} itself, and a model likes its own words")
        for line in lines[:10] + [f"... and {len(lines) - 10:,} more, all in grades.jsonl"] * (len(lines) > 10):
            print(line)
    counts |= {f.judge: "means only, no single gradings" for f in known if f.judge}
    findings += compare_models.agreement([story for run in runs for story in run.stories], scores)
    print(report(findings, [*names, *controls, SAFE], counts, markdown))
    compare_models.write_csv(directory / "grades.csv", findings)
    scores_plot.plot(directory / "grades.png", findings, names, list(counts))
    pictures = "grades.png"
    if panels := temperature_plot.collect(findings, directory):
        write_bytes(directory / "temperature.png", png_bytes(temperature_plot.temperature_figure(panels)))
        pictures += ", temperature.png"
    print(f"\nwrote {directory / 'grades.csv'}, with all intervals, and {pictures}; next: python report.py {directory}")


def main(arguments: Sequence[str] | None = None, retries=None) -> None:
    """retries: a generation.api_client.RetryPolicy, if not the default."""
    args = parse_arguments(arguments)
    sys.stdout.reconfigure(errors="replace")
    again = "run the same command to continue"
    with one_line_errors("grade.py", f"every reply so far is kept; {again}", f"make room or fix that, then {again}"):
        grade_runs(args, retries)


if __name__ == "__main__":
    main()
