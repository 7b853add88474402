"""
Grade completions as a teacher would, by a language model (GPT-Eval), and say how far that can be believed.

$ python grade.py out/ --no-judge                                   # loss, endings, repetition, words: no key needed
$ python grade.py out/ --judge gpt-4o-mini --controls --dry-run     # what it would ask, and at what cost
$ python grade.py out/ --judge gpt-4o-mini --controls --price-in 0.15 --price-out 0.6 --max-cost 1   # OPENAI_API_KEY
$ python grade.py out/ --judge qwen --base-url http://localhost:8080/v1 --repeats 3                  # llama.cpp, vLLM

Every samples.jsonl below the directories is graded. Every reply is kept in grades.jsonl beside it, as it comes: the
same call goes on where it was, and asks only for what is not there for just this judge, question and completion.
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tqdm import tqdm

from corpus.tokenizer import gpt2
from generation.api_client import OPENAI, Bill, Endpoint, OverBudget, Patience, Stop, Unanswered, public, request_body
from grading import scoreboard
from grading.controls import TRUE, controls
from grading.judge import BadReply, Story, question, read_reply, response_format
from grading.ledger import Grading, Ledger, Run, owner_of, plan, read_runs, share_out
from grading.metrics import judge_free
from training.run_directory import lock

REPLY_TOKENS = 100  # what --dry-run takes a reply for, where none has come yet

# ---- The judge at work ----


async def grade(grading: Grading, endpoint: Endpoint) -> None:
    """Asks until there are scores, or patience ends. Whatever comes is kept."""
    story = grading.story
    facts = dict(key=grading.key, judge=grading.judge, base_url=endpoint.url, repeat=grading.repeat)

    def keep(**reply):
        for ledger, place in grading.places.items():
            ledger.append(facts | place | dict(time=round(time.time())) | reply)

    for _ in range(endpoint.patience.replies):
        try:
            reply = await endpoint.ask(grading.judge, question(story), response_format(story))
        except Unanswered as error:
            keep(text=None, scores=None, failure=str(error), tokens_in=None, tokens_out=None)
            return
        scores, failure = None, reply.problem
        if not failure:
            try:
                scores = read_reply(reply.text, list(story.scores))
            except BadReply as error:
                failure = str(error)
        tokens = dict(tokens_in=reply.tokens_in, tokens_out=reply.tokens_out)
        keep(text=reply.text, scores=scores, failure=failure, **tokens)
        if scores:
            return


async def grade_all(gradings: Sequence[Grading], endpoint: Endpoint, concurrency: int) -> None:
    """So many at a time. At Ctrl-C, or when no more can be asked, what is on its way is still waited for and kept."""
    loop, queue = asyncio.get_running_loop(), iter(gradings)
    bar = tqdm(desc="grading", total=len(gradings), unit="grade", disable=None)

    def interrupt(*_):
        print("\nstopping when the replies on their way are here (once more: at once)", file=sys.stderr)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        loop.call_soon_threadsafe(endpoint.stop, KeyboardInterrupt())

    async def work():
        for grading in queue:
            try:
                await grade(grading, endpoint)
            except (Stop, OSError) as error:
                endpoint.stop(error)
            if endpoint.why:
                return
            bar.set_postfix_str(f"{endpoint.bill}, {endpoint.retries} tried again", refresh=False)
            bar.update()

    handler = signal.signal(signal.SIGINT, interrupt)
    with bar:
        await asyncio.gather(*(work() for _ in range(concurrency)))
    signal.signal(signal.SIGINT, handler)
    await endpoint.client.close()


def ask(missing: Sequence[Grading], patience: Patience, args: argparse.Namespace) -> Exception | None:
    """Has them graded; what stopped it, if anything did."""
    if not missing:
        return None
    bill = Bill(args.price_in, args.price_out, args.max_cost)
    endpoint = Endpoint(args.base_url, bill, patience, args.rate, args.max_tokens, args.temperature)
    asyncio.run(grade_all(missing, endpoint, args.concurrency))
    print(f"this call: {bill}", file=sys.stderr)
    return endpoint.why


def dry_run(missing: Sequence[Grading], ledgers: Mapping[str, Ledger], args: argparse.Namespace) -> None:
    """Prints one whole request, as the endpoint would get it first, and how many there would be, at what cost."""
    if not missing:
        print("nothing to ask: all of it has been graded")
        return
    judge, story = missing[0].judge, missing[0].story
    body = request_body(judge, "(above)", response_format(story), args.max_tokens, args.temperature)
    print(f"{question(story)}\n\n{json.dumps(body, indent=2)}\n")
    seen = [n for ledger in ledgers.values() for judge in args.judge for n in ledger.reply_tokens.get(judge, [])]
    each, source = (sum(seen) / len(seen), "as so far") if seen else (REPLY_TOKENS, "a guess")
    tokens_in = sum(len(ids) for ids in map(gpt2().encode, (question(grading.story) for grading in missing)))
    cost = "give --price-in and --price-out to see the cost"
    if args.price_in is not None:
        bill = Bill(args.price_in, args.price_out)
        likely, most = (bill.cost(tokens_in, n * len(missing)) for n in (each, args.max_tokens))
        cost = f"about ${likely:.2f}, and ${most:.2f} if every reply took all of --max-tokens"
    print(
        f"{len(missing):,} requests to {public(args.base_url)}: about {tokens_in:,} tokens in (by GPT-2's tokenizer), "
        f"{each * len(missing):,.0f} out ({each:.0f} a reply, {source}); {cost}"
    )


# ---- What is made of it ----


def scores_of(gradings: Iterable[Grading], judges: Sequence[str]) -> dict[str, dict[Story, dict[str, float]]]:
    """judge -> story -> its scores, the mean over the repeats that came."""
    repeats = {judge: {} for judge in judges}
    for grading in gradings:
        ledger, *_ = grading.places
        if scores := ledger.scores.get(grading.key):
            repeats[grading.judge].setdefault(grading.story, []).append(scores)
    return {judge: {story: mean_scores(several) for story, several in repeats[judge].items()} for judge in judges}


def mean_scores(several: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: sum(scores[name] for scores in several) / len(several) for name in several[0]}


def failures(gradings: Sequence[Grading], judge: str) -> tuple[str, list[str]]:
    """How many gradings of this judge there are, and a line for each that failed."""
    mine = [grading for grading in gradings if grading.judge == judge]
    lines, n_missing = [], 0
    for grading in mine:
        ledger, place = next(iter(grading.places.items()))
        n_missing += grading.key not in ledger.scores
        if grading.key in ledger.failures:
            which = f"completion {place['sample_index']}" if place["kind"] == "completion" else place["kind"]
            where = f"{place['run']}, prompt {place['prompt_index']}, {which}"
            lines.append(f"{judge}, {where}: {ledger.failures[grading.key]}")
    n = f"{len(mine) - n_missing:,} of {len(mine):,} gradings"
    return n + (f"; {len(lines):,} failed and are not counted" if lines else ""), lines


def conclude(
    runs: Sequence[Run],
    kinds: Mapping[str, Sequence[Story]],
    gradings: Sequence[Grading],
    findings: Sequence[scoreboard.Finding],
    common: Path,
    args: argparse.Namespace,
) -> None:
    """The table, grades.csv and grades.png. findings: what could be said without a judge."""
    names = [run.name for run in runs]
    sources = {run.name: run.stories for run in runs} | (kinds if args.controls else {})
    grades, facts, findings = scores_of(gradings, args.judge), {}, list(findings)
    for judge in args.judge:
        findings += scoreboard.compare(sources, names, grades[judge], scoreboard.ASPECTS, judge)
        facts[judge], lines = failures(gradings, judge)
        for line in lines[:10] + [f"... and {len(lines) - 10:,} more, all in grades.jsonl"] * (len(lines) > 10):
            print(line)
    completions = [story for run in runs for story in run.stories]
    findings += scoreboard.agreement(completions, grades)
    shown = [*names, *(kinds if args.controls else [TRUE] if kinds[TRUE] else [])]
    print(scoreboard.report(findings, shown, args.judge, facts))
    scoreboard.write_csv(common / "grades.csv", findings)
    scoreboard.plot(common / "grades.png", findings, names, args.judge)
    print(f"\nAll of it, with intervals, is in {common / 'grades.csv'}; {common / 'grades.png'} shows it.")


# ---- The command line ----


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directories", nargs="+", type=Path, metavar="DIR", help="runs, or directories of runs")
    parser.add_argument("--judge", action="append", default=[], metavar="MODEL", help="who grades; may be repeated")
    parser.add_argument("--no-judge", action="store_true", help="only what needs no judge")
    parser.add_argument("--base-url", help="OpenAI-compatible endpoint (default: OPENAI_BASE_URL, or OpenAI's own)")
    parser.add_argument(
        "--controls", action="store_true", help="also grade true and spoiled endings: is the judge any good?"
    )
    parser.add_argument("--repeats", type=int, default=1, help="gradings of each completion by each judge")
    parser.add_argument("--temperature", type=float, help="of the judge (default: the endpoint's)")
    parser.add_argument("--max-tokens", type=int, default=2000, help="longest reply, thoughts included")
    parser.add_argument("--concurrency", type=int, default=8, help="requests on their way at a time")
    parser.add_argument("--rate", type=float, help="requests per minute, at most")
    parser.add_argument("--timeout", type=float, default=120, help="seconds for a reply")
    parser.add_argument("--price-in", type=float, help="of a million tokens that the judge reads")
    parser.add_argument("--price-out", type=float, help="of a million tokens that it writes")
    parser.add_argument("--max-cost", type=float, help="what this call may cost; it stops before")
    parser.add_argument("--dry-run", action="store_true", help="ask nothing: show a request, and how many at what cost")
    parser.add_argument("--data", type=Path, help="corpus whose words are known (default: that of each run)")
    args = parser.parse_args(arguments)
    for name, least in (("repeats", 1), ("max_tokens", 1), ("concurrency", 1), ("price_in", 0), ("price_out", 0),
                        ("temperature", 0)):  # fmt: skip
        if (value := getattr(args, name)) is not None and value < least:
            parser.error(f"--{name.replace('_', '-')} must be at least {least}, not {value}")
    for name in ("rate", "timeout", "max_cost"):
        if (value := getattr(args, name)) is not None and value <= 0:
            parser.error(f"--{name.replace('_', '-')} must be above 0, not {value}")
    if bool(args.judge) == args.no_judge:
        parser.error("name a --judge MODEL, or say --no-judge")
    if args.base_url and not args.base_url.startswith(("http://", "https://")):
        parser.error("--base-url must begin with http:// or https://")
    if (args.price_in is None) != (args.price_out is None):
        parser.error("--price-in and --price-out belong together")
    if args.max_cost is not None and args.price_in is None:
        parser.error("--max-cost needs --price-in and --price-out, in dollars per million tokens")
    args.judge = list(dict.fromkeys(args.judge))
    args.base_url = (args.base_url or os.environ.get("OPENAI_BASE_URL") or OPENAI).rstrip("/")
    return args


def grade_runs(args: argparse.Namespace, patience: Patience) -> None:
    runs, common = read_runs(args.directories)
    kinds = controls([ending for run in runs for ending in run.true_endings])
    if args.controls and not kinds[TRUE]:
        raise ValueError(
            "--controls needs true endings, which `python sample.py --eval N` keeps; these samples have none"
        )
    with contextlib.ExitStack() as held:
        for run in runs if args.judge else []:
            held.enter_context(lock(run.directory, ".grade.lock", "another grade.py is at work there; let it end"))
        ledgers = {run.name: Ledger(run.directory / "grades.jsonl") for run in runs if args.judge}
        gradings = plan(runs, kinds if args.controls else {}, ledgers, args)
        missing = [grading for grading in gradings if not owner_of(grading, ledgers)]
        if args.dry_run:
            return dry_run(missing, ledgers, args)
        findings = judge_free(runs, kinds[TRUE], args.data)  # first: what fails here costs nothing yet
        share_out(gradings, ledgers)
        why = ask(missing, patience, args)
    if why and not isinstance(why, OverBudget):
        raise why
    conclude(runs, kinds, gradings, findings, common, args)
    if why:
        raise why


def main(arguments: Sequence[str] | None = None, patience: Patience | None = None) -> None:
    args = parse_arguments(arguments)
    sys.stdout.reconfigure(errors="replace")
    try:
        grade_runs(args, patience or Patience(timeout=args.timeout))
    except KeyboardInterrupt:
        sys.exit("grade.py: stopped; every reply that came is kept, the same call goes on")
    except BrokenPipeError:  # `| head` has seen enough
        sys.stderr.close()
        sys.exit(1)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        sys.exit(f"grade.py: {where}{error.strerror}; mend that (make room?), then repeat the call: it goes on")
    except (ValueError, Stop) as error:
        sys.exit(f"grade.py: {error}")


if __name__ == "__main__":
    main()
