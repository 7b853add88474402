"""
Grade completions as a teacher would, by a language model (GPT-Eval), and say how far that can be believed.

$ python grade.py out/ --no_judge                                   # loss, endings, repetition, words: no key needed
$ python grade.py out/ --judge gpt-4o-mini --controls --dry_run     # what it would ask, and at what cost
$ python grade.py out/ --judge gpt-4o-mini --controls --price_in 0.15 --price_out 0.6 --max_cost 1   # OPENAI_API_KEY
$ python grade.py out/ --judge qwen --base_url http://localhost:8080/v1 --repeats 3                  # llama.cpp, vLLM

Every samples.jsonl below the directories is graded. Every reply is kept in grades.jsonl beside it as it comes: the same
command continues where it was, and asks only what this judge has not yet answered about these completions.
"""

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tqdm import tqdm

from common.cli import Parser, one_line_errors
from common.figures import png_bytes
from common.files import write_bytes
from corpus.tokenizer import gpt2
from grading import scoreboard, scores_plot, temperature_plot
from grading.judge import BadReply, Story, question, read_reply, request_body
from grading.judge_controls import TRUE, make_controls
from grading.ledger import (
    Ledger,
    Request,
    Run,
    copy_shared_scores,
    failed_requests,
    find_ledger,
    hash_of,
    hash_of_question,
    mean_scores,
    name_settings,
    plan_recorded,
    plan_requests,
    read_runs,
    served_models,
)

REPLY_TOKENS = 100  # --dry_run's guess for a reply, before there are any


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = Parser(__doc__)
    parser.add_argument("directories", nargs="+", type=Path, metavar="DIR", help="runs, or directories of runs")
    parser.add_argument("--judge", action="append", default=[], metavar="MODEL", help="who grades; may be repeated")
    parser.add_argument("--no_judge", action="store_true", help="only what needs no judge")
    parser.add_argument("--controls", action="store_true", help="also grade true and spoiled endings: can it judge?")
    parser.add_argument("--repeats", type=int, default=1, help="gradings of each completion by each judge")
    parser.add_argument("--temperature", type=float, help="of the judge (default: the API's)")
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
        requests, missing = plan(runs, controls if args.controls else {}, ledgers, args) if args.judge else ([], [])
        if args.dry_run:
            return dry_run(missing, ledgers.values(), args)
        findings = compute_metrics(runs, controls[TRUE], args.data)  # first: an error here has cost nothing yet
        copy_shared_scores(requests, list(ledgers.values()))
        over_budget = ask(missing, args, retries) if missing else None
    recorded, n_gone = plan_recorded(runs, controls, ledgers)  # paid for earlier: still in the table
    if n_gone:
        print(f"{n_gone:,} grades from earlier are of completions that are no longer in samples.jsonl, and left out")
    asked = {request.key for request in requests}
    requests += [request for request in recorded if request.key not in asked]
    write_results(runs, controls, requests, findings, directory, args)
    if over_budget:
        raise over_budget


def plan(
    runs: Sequence[Run], controls: Mapping, ledgers: Mapping[str, Ledger], args: argparse.Namespace
) -> tuple[list[Request], list[Request]]:
    """All that is to be graded; what of it no ledger has."""
    from generation.api_client import endpoint_url, public_url

    url = public_url(endpoint_url(args.base_url))
    requests = plan_requests(runs, controls, ledgers, args.judge, url, args.temperature, args.repeats)
    missing = [request for request in requests if not find_ledger(request, ledgers.values())]
    # What failed before comes last: what fails again, several in a row, stops all.
    missing.sort(key=lambda request: any(request.key in ledger.failures for ledger in ledgers.values()))
    return requests, missing


def dry_run(missing: Sequence[Request], ledgers: Iterable[Ledger], args: argparse.Namespace) -> None:
    """Prints one whole request, as the API would get it first, and how many there would be, at what cost."""
    from generation.api_client import Budget, endpoint_url, public_url

    if not missing:
        print("nothing to ask: all of it has been graded")
        return
    body = request_body(missing[0].setting.judge, missing[0].story, args.max_tokens, args.temperature)
    body["messages"][0]["content"] = "(above)"
    print(f"{question(missing[0].story)}\n\n{json.dumps(body, indent=2)}\n")
    seen = [n for ledger in ledgers for judge in args.judge for n in ledger.reply_tokens.get(judge, [])]
    each, source = (sum(seen) / len(seen), "as so far") if seen else (REPLY_TOKENS, "a guess")
    tokens_in = sum(len(gpt2().encode(question(request.story))) for request in missing)
    cost = "give --price_in and --price_out to see the cost"
    if args.price_in is not None:
        budget = Budget(args.price_in, args.price_out)
        likely, most = (budget.cost(tokens_in, n * len(missing)) for n in (each, args.max_tokens))
        cost = f"about ${likely:.2f}, and ${most:.2f} if every reply took all of --max_tokens"
    print(
        f"{len(missing):,} requests to {public_url(endpoint_url(args.base_url))}: about {tokens_in:,} tokens in (by "
        f"GPT-2's tokenizer), {each * len(missing):,.0f} out ({each:.0f} a reply, {source}); {cost}"
    )


def ask(missing: Sequence[Request], args: argparse.Namespace, retries) -> ValueError | None:
    """Has them graded. Returns the error if the budget ran out; others are raised."""
    from generation.api_client import ApiClient, OverBudget

    client = ApiClient(**args.api, retries=retries)
    bar = tqdm(desc="grading", total=len(missing), unit="grade", disable=None)
    try:
        for _ in client.run(grade(request, client, args) for request in missing):
            bar.set_postfix_str(f"{client.budget}, {client.n_retries} retries", refresh=False)
            bar.update()
    except OverBudget as error:
        return error
    finally:
        bar.close()
        print(f"this call: {client.budget}", file=sys.stderr)


async def grade(request: Request, client, args: argparse.Namespace) -> None:
    """Asks until there are scores, or too many replies were unusable. All replies go to the ledgers."""
    from generation.api_client import RequestFailed

    def keep(**reply):
        metadata = dict(key=request.key, judge=request.setting.judge, base_url=client.url, repeat=request.repeat)
        metadata |= dict(temperature=args.temperature, text_sha256=hash_of(request.story))
        metadata |= dict(question_sha256=hash_of_question())
        for ledger, entry in request.entries.items():
            ledger.append(metadata | entry | dict(time=round(time.time())) | reply)

    body = request_body(request.setting.judge, request.story, args.max_tokens, args.temperature)
    failures = {
        "length": f"cut off at {args.max_tokens} tokens: raise --max_tokens",
        "content_filter": "filtered",
        "refusal": "refused",
        "not text": "its content is not text",
    }
    for _ in range(client.retries.replies):
        try:
            reply = await client.ask(body)
        except RequestFailed as error:
            keep(text=None, scores=None, failure=str(error), tokens_in=None, tokens_out=None)
            return
        scores, failure = None, failures.get(reply.finish_reason)
        if not failure:
            try:
                scores = read_reply(reply.text, list(request.story.scores))
            except BadReply as error:
                failure = str(error)
        tokens = dict(tokens_in=reply.tokens_in, tokens_out=reply.tokens_out, model=reply.model)
        keep(text=reply.text, scores=scores, failure=failure, **tokens)
        if scores:
            return


def write_results(
    runs: Sequence[Run],
    controls: Mapping[str, Sequence[Story]],
    requests: Sequence[Request],
    metrics: Sequence[scoreboard.Finding],
    directory: Path,
    args: argparse.Namespace,
) -> None:
    """Prints the tables, writes grades.csv and grades.png to `directory`. metrics: what needs no judge."""
    names, order = [run.name for run in runs], {judge: i for i, judge in enumerate(args.judge)}
    settings = sorted({r.setting for r in requests}, key=lambda s: (order.get(s.judge, len(order)), str(s)))
    judges = name_settings(settings)
    if not any(entry["kind"] in controls for request in requests for entry in request.entries.values()):
        controls = {TRUE: controls[TRUE]} if controls[TRUE] else {}
    sources = {run.name: run.stories for run in runs} | controls
    scores, counts, findings = {}, {}, list(metrics)
    for setting, judge in judges.items():
        own = [request for request in requests if request.setting == setting]
        scores[judge] = mean_scores(own)
        findings += scoreboard.compare(sources, names, scores[judge], scoreboard.ASPECTS, judge)
        counts[judge], lines = failed_requests(own, judge)
        if len(models := served_models(own)) > 1:
            several = ", ".join(f"{model} ({n:,})" for model, n in models.items())
            print(f"WARNING several models have graded as {judge}: {several}; to grade anew, move grades.jsonl away")
        for line in lines[:10] + [f"... and {len(lines) - 10:,} more, all in grades.jsonl"] * (len(lines) > 10):
            print(line)
    findings += scoreboard.agreement([story for run in runs for story in run.stories], scores)
    print(scoreboard.report(findings, [*names, *controls], list(scores), counts, args.markdown))
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
