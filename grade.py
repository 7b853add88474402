"""
Grade completions, and say how far the grades can be believed: by a model that reads, or as a teacher would (GPT-Eval).

$ python grade.py out/ --judge lm:out/ts_33m                        # how likely a stronger model finds them: no key
$ python grade.py out/ --no_judge                                   # loss, endings, repetition, words
$ python grade.py out/ --judge gpt-4o-mini --controls --dry_run     # what it would ask, and at what cost
$ python grade.py out/ --judge gpt-4o-mini --controls --protocol ours paper scores --dry_run     # as others asked, too
$ python grade.py out/ --judge gpt-4o-mini --controls --price_in 0.15 --price_out 0.6 --max_cost 1   # OPENAI_API_KEY
$ python grade.py out/ --judge qwen --base_url http://localhost:8080/v1 --repeats 3                  # llama.cpp, vLLM

Every samples.jsonl below the directories is graded. Every reply is kept in grades.jsonl beside it as it comes: the same
command continues where it was, and asks only what this judge has not yet answered about these completions.
"""

import argparse
import contextlib
import itertools
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from common.cli import Parser, one_line_errors
from common.figures import png_bytes
from common.files import write_bytes
from grading import scoreboard, scores_plot, temperature_plot
from grading.chat_judge import ChatJudge, ask
from grading.chat_judge import dry_run as dry_run_of_chat
from grading.judge import Story
from grading.judge_controls import SAFE, TRUE, make_controls
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
from grading.protocols import PROTOCOLS
from grading.rubrics import reads, rubric_of
from grading.scores_table import report


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = Parser(__doc__)
    parser.add_argument("directories", nargs="+", type=Path, metavar="DIR", help="runs, or directories of runs")
    judge = "who grades: lm:RUN or lm:hf:ID, which reads, or a model behind an API, which is asked; may be repeated"
    parser.add_argument("--judge", action="append", default=[], metavar="MODEL", help=judge)
    parser.add_argument("--no_judge", action="store_true", help="only what needs no judge")
    controls = "also have true and spoiled endings graded: can it judge? (lm: judges always do)"
    parser.add_argument("--controls", action="store_true", help=controls)
    protocol = (
        "how judges are asked: by our question; in two turns, as in the paper; or for a bare array of three numbers"
    )
    parser.add_argument("--protocol", nargs="+", choices=PROTOCOLS, default=["ours"], help=protocol)
    parser.add_argument("--repeats", type=int, default=1, help="gradings by each judge that is asked")
    parser.add_argument("--temperature", type=float, help="of a judge that is asked (default: the API's)")
    parser.add_argument("--max_tokens", type=int, default=2000, help="longest reply, reasoning included")
    parser.add_argument("--dry_run", action="store_true", help="ask nothing: show a request, and how many at what cost")
    parser.add_shared("data", "markdown")
    parser.add_api("the judge's API")
    args = parser.parse_args(arguments)
    for name in ("repeats", "max_tokens"):
        parser.require(args, name, getattr(args, name) >= 1, "at least 1")
    parser.require(args, "temperature", args.temperature is None or args.temperature >= 0, "0 or more")
    if bool(args.judge) == args.no_judge:
        parser.error("name a --judge MODEL, or say --no_judge")
    args.judge = list(dict.fromkeys(args.judge))
    if all(map(reads, args.judge)) and args.judge:
        for name in ("protocol", "repeats", "temperature", "max_cost"):
            if getattr(args, name) != parser.get_default(name):
                parser.error(
                    f"--{name} is for judges that are asked: one that reads costs nothing, and says the same again"
                )
    args.api = parser.require_api(args)
    return args


def grade_runs(args: argparse.Namespace, retries) -> None:
    from common.files import lock
    from grading.metrics import compute_metrics  # here: --help need not wait for torch

    runs, directory = read_runs(args.directories)
    controls = make_controls([ending for run in runs for ending in run.true_endings])
    if args.controls and not controls[TRUE]:
        raise ValueError("--controls needs true endings, which `python sample.py --eval N` keeps; these have none")
    with contextlib.ExitStack() as locks:
        for run in runs if args.judge else []:
            locks.enter_context(lock(run.directory, ".grade.lock", "another grade.py is at work there; let it end"))
        ledgers = {run.name: Ledger(run.directory / "grades.jsonl") for run in runs}
        judges = make_judges(runs, args)
        requests, missing = plan(runs, controls, ledgers, judges, args)
        if args.dry_run:
            return dry_run(missing, ledgers, args)
        findings = compute_metrics(runs, controls[TRUE], args.data)  # first: an error here has cost nothing yet
        copy_shared_scores(requests, list(ledgers.values()))
        over_budget = grade_missing(missing, judges, args, retries)
    recorded, n_gone = plan_recorded(runs, controls, ledgers)  # paid for earlier: still in the table
    if n_gone:
        print(f"{n_gone:,} grades from earlier are of completions that are no longer in samples.jsonl, and left out")
    asked = {request.key for request in requests}
    requests += [request for request in recorded if request.key not in asked]
    safe = safe_endings(runs, ledgers)
    write_results(runs, controls, safe, requests, judges, findings, directory, args.markdown)
    if over_budget:
        raise over_budget


def make_judges(runs: Sequence[Run], args: argparse.Namespace) -> list[Judge]:
    """Those that read, which cost nothing, come first."""
    judges = []
    if any(map(reads, args.judge)):
        from grading.likelihood_judge import LikelihoodJudge

        judges += [LikelihoodJudge(name, runs) for name in args.judge if reads(name)]
    if not all(map(reads, args.judge)):
        from generation.api_client import endpoint_url, public_url

        url = public_url(endpoint_url(args.base_url))
        asked = itertools.product((name for name in args.judge if not reads(name)), dict.fromkeys(args.protocol))
        judges += [ChatJudge(name, url, args.temperature, args.repeats, protocol) for name, protocol in asked]
    return judges


def plan(
    runs: Sequence[Run],
    controls: Mapping[str, Sequence[Story]],
    ledgers: Mapping[str, Ledger],
    judges: Sequence[Judge],
    args: argparse.Namespace,
) -> tuple[list[Request], list[Request]]:
    """All that is to be graded; what of it no ledger has."""
    requests = []
    for judge in judges:
        own_controls = controls if args.controls or reads(judge.name) else {}
        if reads(judge.name) and not args.dry_run:
            own_controls = {**controls, SAFE: judge.safe_endings(runs, controls[TRUE], ledgers)}
        requests += plan_requests(runs, own_controls, ledgers, judge)
    missing = [request for request in requests if not find_ledger(request, ledgers.values())]
    # What failed before comes last: what fails again, several in a row, stops all.
    missing.sort(key=lambda request: any(request.key in ledger.failures for ledger in ledgers.values()))
    return requests, missing


def dry_run(missing: Sequence[Request], ledgers: Mapping[str, Ledger], args: argparse.Namespace) -> None:
    """Says what each judge would have to do."""
    for judge in dict.fromkeys(request.judge for request in missing if reads(request.judge.name)):
        print(judge.dry_run([request for request in missing if request.judge is judge]))
    to_ask = [request for request in missing if not reads(request.judge.name)]
    if to_ask:
        from generation.api_client import Budget

        print(dry_run_of_chat(to_ask, ledgers.values(), args.max_tokens, Budget(args.price_in, args.price_out)))
    if not missing:
        print("nothing to ask: all of it has been graded")


def grade_missing(
    missing: Sequence[Request], judges: Sequence[Judge], args: argparse.Namespace, retries
) -> ValueError | None:
    """Returns the error if the budget ran out; others are raised."""
    for judge in judges:
        if reads(judge.name):
            judge.grade([request for request in missing if request.judge is judge])
    to_ask = [request for request in missing if not reads(request.judge.name)]
    if not to_ask:
        return None
    from generation.api_client import ApiClient

    return ask(to_ask, ApiClient(**args.api, retries=retries), args.max_tokens)


def write_results(
    runs: Sequence[Run],
    controls: Mapping[str, Sequence[Story]],
    safe: Mapping[str, Sequence[Story]],  # of ledger.safe_endings
    requests: Sequence[Request],
    judges: Sequence[Judge],  # of this call: they come first
    metrics: Sequence[scoreboard.Finding],  # what needs no judge
    directory: Path,
    markdown: bool = False,
) -> None:
    """Prints the tables, writes grades.csv and grades.png to `directory`."""
    names, order = [run.name for run in runs], {judge.name: i for i, judge in enumerate(judges)}
    settings = sorted({r.setting for r in requests}, key=lambda s: (order.get(s.judge, len(order)), str(s)))
    scores, counts, findings = {}, {}, list(metrics)
    for setting, judge in name_settings(settings).items():
        own = [request for request in requests if request.setting == setting]
        sources = {run.name: run.stories for run in runs} | {**controls, SAFE: safe.get(setting.source, [])}
        scores[judge] = mean_scores(own)
        findings += scoreboard.compare(sources, names, scores[judge], list(rubric_of(judge).scores), judge)
        counts[judge], lines = failed_requests(own, judge)
        if len(models := served_models(own)) > 1:
            several = ", ".join(f"{model} ({n:,})" for model, n in models.items())
            print(f"WARNING several models have graded as {judge}: {several}; to grade anew, move grades.jsonl away")
        if selves := judged_by_themselves(runs, own):
            print(
                f"WARNING {judge} has itself written {', '.join(selves)}: what a model writes is what it finds likely"
            )
        for line in lines[:10] + [f"... and {len(lines) - 10:,} more, all in grades.jsonl"] * (len(lines) > 10):
            print(line)
    findings += scoreboard.agreement([story for run in runs for story in run.stories], scores)
    print(report(findings, [*names, *controls, SAFE], list(scores), counts, markdown))
    scoreboard.write_csv(directory / "grades.csv", findings)
    scores_plot.plot(directory / "grades.png", findings, names, list(scores))
    pictures = "grades.png"
    if panels := temperature_plot.collect(findings, directory):
        write_bytes(directory / "temperature.png", png_bytes(temperature_plot.temperature_figure(panels)))
        pictures += ", temperature.png"
    print(f"\nwrote {directory / 'grades.csv'}, with all intervals, and {pictures}; next: python report.py {directory}")


def main(arguments: Sequence[str] | None = None, retries=None) -> None:
    """retries: a generation.api_client.RetryPolicy, if not the usual one."""
    args = parse_arguments(arguments)
    sys.stdout.reconfigure(errors="replace")
    again = "run the same command to continue"
    with one_line_errors("grade.py", f"every reply so far is kept; {again}", f"make room or fix that, then {again}"):
        grade_runs(args, retries)


if __name__ == "__main__":
    main()
