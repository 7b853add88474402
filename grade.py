"""
Grade completions, by likelihood or with a chat model (GPT-Eval), and test how far the judge can be trusted.

$ python grade.py out/                                              # the best run judges the others: no key needed
$ python grade.py out/ --judge lm:out/ts_33m                        # how likely this model finds what they wrote
$ python grade.py out/ --no_judge                                   # loss, endings, repetition, words
$ python grade.py out/ --judge gpt-4o-mini --controls --dry_run     # what it would ask, and at what cost
$ python grade.py out/ --judge gpt-4o-mini --controls --price_in 0.15 --price_out 0.6 --max_cost 1   # OPENAI_API_KEY
$ python grade.py out/ --judge qwen --base_url http://localhost:8080/v1 --repeats 3                  # llama.cpp, vLLM
$ python grade.py out/ --import teacher.csv                          # grades made elsewhere, next to the metrics

Grades every samples.jsonl below the directories. Every reply is saved as it comes, to grades.jsonl in the directory of
runs, so nothing is paid for twice: the same command continues where it stopped, and asks only what is new.
"""

import argparse
import contextlib
import itertools
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from common.cli import Parser, non_negative_float, one_line_errors, positive
from common.files import lock
from common.tables import publish
from grading.chat_judge import PROTOCOLS, ChatJudge, show_request
from grading.controls import make_controls
from grading.imported_grades import imported_rows
from grading.scores import IMPORTED, SAFE, TRUE, is_likelihood_judge
from grading.stories import Row, Run, Story, by_prompts, read_runs

# The chat judge that a bare `python grade.py out/` adds if there is a key or an endpoint. The prices are OpenAI's for
# this model (2024), in dollars per million tokens; for another endpoint they are only an assumption.
CHAT_JUDGE, PRICE_IN, PRICE_OUT, MAX_COST = "gpt-4o-mini", 0.15, 0.60, 1.0


def parse_arguments() -> argparse.Namespace:
    parser = Parser(__doc__)
    parser.add_argument("directories", nargs="+", type=Path, metavar="DIR", help="runs, or directories of runs")
    either = parser.add_mutually_exclusive_group()
    judge = "lm:RUN or lm:hf:ID, to judge by likelihood, or a chat model behind an API; may be given several times"
    either.add_argument("--judge", action="append", default=[], metavar="MODEL", help=judge)
    either.add_argument("--no_judge", action="store_true", help="compute only the metrics that need no judge")
    imports = "grades made elsewhere: a CSV of run, prompt, sample, judge and scores (docs/grading.md)"
    parser.add_argument("--import", nargs="+", type=Path, default=[], dest="imports", metavar="FILE", help=imports)
    controls = "also grade true and deliberately spoiled endings, to test the judge (lm: judges always do)"
    parser.add_argument("--controls", action="store_true", help=controls)
    protocol = "how chat judges are asked: our question; the paper's two turns; or for a bare array of three scores"
    parser.add_argument("--protocol", nargs="+", choices=PROTOCOLS, default=["ours"], help=protocol)
    parser.add_argument("--repeats", type=positive, default=1, help="how often each chat judge grades a completion")
    parser.add_argument(
        "--temperature", type=non_negative_float, help="sampling temperature of chat judges (default: the API's)"
    )
    parser.add_argument("--max_tokens", type=positive, default=2000, help="longest reply, reasoning included")
    parser.add_argument("--no_schema", action="store_true", help="for an endpoint that takes no response_format")
    parser.add_argument("--dry_run", action="store_true", help="ask nothing: show one request, their number and cost")
    parser.add_shared("data")
    parser.add_api("the judge's API")
    args = parser.parse_args()
    args.api = parser.require_api(args)
    for name in args.judge:
        if Path(name).exists():
            parser.error(f"{name} is a directory here: to judge by its likelihoods, --judge lm:{name}")
    args.judge = list(dict.fromkeys(name.rstrip("/") for name in args.judge))
    args.is_bare = not args.judge and not args.no_judge and not args.imports
    if args.is_bare and (args.base_url or os.environ.get("OPENAI_BASE_URL") or os.environ.get("OPENAI_API_KEY")):
        args.judge, args.controls = [CHAT_JUDGE], True
        if args.price_in is None:
            args.api |= dict(price_in=PRICE_IN, price_out=PRICE_OUT)
        args.api["max_cost"] = args.max_cost or MAX_COST
        print(f"also asks {CHAT_JUDGE}, for at most ${args.api['max_cost']:g} (--max_cost, --price_in, --price_out; "
              "without OPENAI_API_KEY and OPENAI_BASE_URL, no API is asked)")  # fmt: skip
    return args


class Cache(dict):
    """{key: what a judge replied}, kept in grades.jsonl: one JSON object a line, appended as it comes.

    The files of runs below the directory, and of the directory above, are read, too: what was paid for is found."""

    def __init__(self, directory: Path):
        self.path = directory / "grades.jsonl"
        for path in sorted({directory.resolve().parent / self.path.name, *directory.rglob(self.path.name)}):
            with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
                for line in file:
                    with contextlib.suppress(ValueError, KeyError):  # cut by a kill, or of an earlier version
                        entry = json.loads(line)
                        self[entry["key"]] = entry

    def add(self, key: str, entry: dict) -> None:
        line = json.dumps(dict(key=key) | entry, ensure_ascii=False).encode(errors="replace")
        with self.path.open("ab") as file:
            file.write(b"\n" * bool(file.tell()) + line)  # the line above may have been cut
        self[key] = entry


# ---- A grade: this story, by this judge ----


def grade_by_chat(
    judge: ChatJudge, sources: Mapping[str, Sequence[Story]], cache: Cache, args: argparse.Namespace
) -> tuple[list[Row], str, ValueError | None]:
    """sources: {run or kind of control: stories} -> their grades; how many succeeded; why asking stopped, if it did."""
    jobs = list(itertools.product(dict.fromkeys(itertools.chain(*sources.values())), range(args.repeats)))
    missing = [job for job in jobs if not judge.look_up(*job, cache)[0]]
    missing.sort(key=lambda job: judge.key([dict(content=f"{job[0]}")], job[1]))  # runs and controls mixed: blind
    if args.dry_run:
        return [], show_request(judge, missing, args.price_in, args.price_out), None
    failures, stopped = ask(judge, missing, cache, args) if missing else ({}, None)
    grades = {job: judge.look_up(*job, cache)[0] or {} for job in jobs}
    rows = [
        Row(judge.name, source, story, score, value)
        for source, stories in sources.items()
        for story, repeat in itertools.product(stories, range(args.repeats))
        for score, value in grades[story, repeat].items()
    ]
    lines = [f"{sum(map(bool, grades.values())):,} of {len(jobs):,} gradings"]
    lines[0] += f"; {len(failures):,} failed and are not counted, such as" * bool(failures)
    for story, repeat in itertools.islice(failures, 10):
        source = next(source for source, stories in sources.items() if story in stories)
        lines.append(f"{source}, …{story.prompt[-40:]}: {failures[story, repeat]}")
    return rows, "\n\n".join(lines), stopped


def ask(judge: ChatJudge, jobs: Sequence[tuple[Story, int]], cache: Cache, args: argparse.Namespace):
    """Asks for these gradings, many at a time -> {(story, repeat): why it failed}, why asking stopped, if it did."""
    from tqdm import tqdm

    from generation.api_client import ApiClient, StopAsking  # here, as `import openai` takes over a second

    client, failures = ApiClient(judge.model, **args.api), {}
    try:
        with tqdm(desc=f"{judge.name} grades", total=len(jobs), unit="grade", disable=None, delay=1) as bar:
            for job, failed in client.map(lambda job: judge.grade(*job, client, cache), jobs):
                if why := failed or judge.look_up(*job, cache)[2]:
                    failures[job] = why
                bar.set_postfix_str(f"${client.spent:.4f}", refresh=False)
                bar.update()
    except StopAsking as error:
        return failures, error
    finally:
        if args.api["max_cost"]:  # what is left of it for the next judge
            args.api["max_cost"] = max(args.api["max_cost"] - client.spent, 1e-9)
        if args.api["price_in"] is not None:
            print(f"{judge.name}: this call cost ${client.spent:.4f}", file=sys.stderr)
    return failures, None


def grade_by_likelihood(
    name: str, runs: Sequence[Run], controls: Mapping[str, Sequence[Story]], cache: Cache, args: argparse.Namespace
) -> tuple[list[Row], str]:
    """The scores of all stories; how many were read, and what to know about them."""
    from grading.likelihood_judge import LikelihoodJudge, with_other_beginnings  # here, as torch takes seconds

    judge, tasks = LikelihoodJudge(name), set().union(*(run.tasks for run in runs))
    controls = {kind: [story for story in stories if story.task in tasks] for kind, stories in controls.items()}
    if not args.dry_run:
        controls = {**controls, SAFE: judge.safe_endings(controls[TRUE], cache)}
    jobs = with_other_beginnings(runs, controls, args.data)
    if args.dry_run:
        return [], f"{len(jobs):,} stories to read, each after several beginnings; on this machine, at no cost"
    judge.read([job[1:] for job in jobs], cache)
    rows = [
        Row(judge.name, source, story, score, value)
        for source, story, others in jobs
        for score, value in judge.scores(story, others, cache).items()
    ]
    count = f"{len(jobs):,} stories read"
    if own := [run.name for run in runs if run.rows[0].get("weights") == judge.weights]:
        count += f"\n\nWARNING {name} wrote the stories of {', '.join(own)} itself, and a model likes its own words"
    return rows, count


# ---- All judges, all tables ----


def grade_runs(args: argparse.Namespace) -> None:
    from grading.metrics import metric_rows

    by_likelihood = choose(args) if args.is_bare else {}
    runs, directory = read_runs(args.directories)
    groups = by_prompts(runs)
    controls = {}
    for group in groups.values():
        for kind, stories in make_controls([ending for run in group for ending in run.true_endings]).items():
            controls[kind] = controls.get(kind, []) + stories
    if args.controls and not args.is_bare and not controls[TRUE]:
        raise ValueError("--controls needs true endings, which `python sample.py --eval N` keeps; there are none")
    by_likelihood |= {name: runs for name in args.judge if is_likelihood_judge(name)}
    sources = {run.name: run.stories for run in runs} | (controls if args.controls else {})
    rows, counts, stops = [], {}, []
    with lock(directory, ".grade.lock", "another grade.py is running there; let it finish"):
        cache = Cache(directory)
        if not args.dry_run:  # first, so that an error here costs nothing
            rows += [*metric_rows(runs, groups, controls[TRUE], args.data), *imported_rows(args.imports, runs)]
        for name, graded in by_likelihood.items():
            new, counts[name] = grade_by_likelihood(name, graded, controls, cache, args)
            rows += new
        for judge in chat_judges(args):
            new, counts[judge.name], stopped = grade_by_chat(judge, sources, cache, args)
            rows, stops = rows + new, stops + [stopped] * bool(stopped)
    if args.dry_run:
        return print("\n\n".join(f"{name}: {count}" for name, count in counts.items()))
    counts |= {row.judge: "imported" for row in rows if row.judge.endswith(IMPORTED)}
    write_results(rows, groups, counts, directory)
    if stops:
        raise stops[0]


def choose(args: argparse.Namespace) -> dict[str, list[Run]]:
    """Without --judge: {judge: the runs that it grades}; writes missing samples first."""
    from grading.judge_choice import choose_judges, trained_runs, write_missing_samples

    trained = trained_runs(args.directories)
    write_missing_samples(trained, args.data, args.dry_run)
    return choose_judges(trained, read_runs(args.directories)[0])


def chat_judges(args: argparse.Namespace) -> list[ChatJudge]:
    """Each model, asked by each protocol."""
    names = [name for name in args.judge if not is_likelihood_judge(name)]
    if not names:
        return []
    from generation.api_client import endpoint_url, public_url

    url = public_url(endpoint_url(args.base_url))
    how = dict(temperature=args.temperature, max_tokens=args.max_tokens, has_schema=not args.no_schema)
    return [ChatJudge(name, url, protocol, **how) for name in names for protocol in dict.fromkeys(args.protocol)]


def write_results(
    rows: Sequence[Row], groups: Mapping[str, Sequence[Run]], counts: Mapping[str, str], directory: Path
) -> None:
    from common.figures import save_figure
    from grading.findings import compare, write_csv
    from grading.pictures import scores_figure, several_temperatures, temperature_figure
    from grading.tables import report

    findings = compare(rows, groups)
    publish(directory / "grades.md", report(findings, groups, counts))
    write_csv(directory / "grades.csv", findings)
    pictures = {"grades.png": scores_figure(findings, groups, list(counts))}
    if several_temperatures(groups):
        pictures["temperature.png"] = temperature_figure(findings, groups)
    for name, figure in pictures.items():
        save_figure(figure, directory / name)
    files = ", ".join(["grades.md", *pictures])
    print(f"\nwrote {directory / 'grades.csv'}, with all intervals, {files}; next: python report.py {directory}")


def main() -> None:
    args = parse_arguments()
    sys.stdout.reconfigure(errors="replace")
    again = "run the same command to continue"
    with one_line_errors("grade.py", f"every reply so far is kept; {again}", f"free space or fix that, then {again}"):
        grade_runs(args)


if __name__ == "__main__":
    main()
