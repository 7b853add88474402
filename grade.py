"""
Grade completions, by likelihood or with a chat model (GPT-Eval), and test how far the judge can be
trusted.

$ python grade.py out/  # judge: the run with the lowest bits per byte
$ python grade.py out/ --judge lm:out/ts_33m                        # by likelihood under this model
$ python grade.py out/ --no_judge  # only metrics: bits per byte, repetition, …
# shows a request, how many, and the cost
$ python grade.py out/ --judge gpt-4o-mini --controls --dry_run
# needs OPENAI_API_KEY
$ python grade.py out/ --judge gpt-4o-mini --price_in 0.15 --price_out 0.6 --max_cost 1
# llama.cpp, vLLM
$ python grade.py out/ --judge qwen --base_url http://localhost:8080/v1 --repeats 3
$ python grade.py out/ --judge gpt-4o-mini --question mine.txt  # your own question: docs/grading.md
$ python grade.py out/ --import teacher.csv  # grades made elsewhere, next to the metrics

Every reply is saved as it comes, to grades.jsonl: the same command continues, and requests only new
grades.
"""

import argparse
import itertools
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from nanostories.cli import (
    Parser,
    UserError,
    existing_file,
    non_negative_float,
    one_line_errors,
    positive,
)
from nanostories.corpus.token_files import text_identity
from nanostories.files import append_json, lock, read_json_lines, write_bytes
from nanostories.grading.chat_judge import PROTOCOLS, ChatJudge, read_question, show_requests
from nanostories.grading.controls import make_controls
from nanostories.grading.findings import compare, report, summary
from nanostories.grading.scores import IMPORTED, TRUE_ENDING, is_likelihood_judge
from nanostories.grading.stories import Row, Run, Story, endings_by_text, imported_rows, read_runs
from nanostories.tables import write_table

Sources = Mapping[
    str, Sequence[Story]
]  # {a run's name, or a control's, such as "(true ending)": stories}


def parse_arguments() -> argparse.Namespace:
    parser = Parser(__doc__)
    parser.add_argument(
        "directories", nargs="+", type=Path, metavar="DIR", help="runs, or directories of runs"
    )
    either = parser.add_mutually_exclusive_group()
    judge = (
        "lm:RUN or lm:hf:ID, to judge by likelihood, or a chat model behind an API; may be given"
        " several times"
    )
    either.add_argument("--judge", action="append", default=[], metavar="MODEL", help=judge)
    either.add_argument(
        "--no_judge", action="store_true", help="compute only the metrics that need no judge"
    )
    imports = dict(nargs="+", type=Path, default=[], dest="imports", metavar="FILE")
    parser.add_argument(
        "--import", **imports, help="grades made elsewhere: a CSV (docs/grading.md)"
    )
    controls = "test the judge: also grade true endings and damaged ones (lm: judges always do)"
    parser.add_argument("--controls", action="store_true", help=controls)
    protocol = (
        "how to ask chat judges. ours (default): our question; paper: the paper's, in two turns;"
        " scores: "
    )
    protocol += "ask for numbers only"
    parser.add_argument("--protocol", nargs="+", choices=PROTOCOLS, default=[], help=protocol)
    question = (
        "your own question: a text file with {beginning} and {completion} in it (docs/grading.md)"
    )
    parser.add_argument(
        "--question", nargs="+", type=existing_file, default=[], metavar="FILE", help=question
    )
    schema = "do not send a JSON schema, for endpoints without response_format"
    parser.add_argument("--no_schema", action="store_true", help=schema)
    parser.add_argument(
        "--repeats", type=positive, default=1, help="how often each chat judge grades a completion"
    )
    parser.add_argument(
        "--temperature", type=non_negative_float, help="for chat judges (default: the API's)"
    )
    parser.add_argument(
        "--max_tokens", type=positive, default=2000, help="longest reply, reasoning included"
    )
    parser.add_argument(
        "--dry_run",
        action="store_true",
        help="send nothing: show one request, their number and cost",
    )
    parser.add_shared("data")
    parser.add_api("the judge's API")
    args = parser.parse_args()
    args.api = parser.require_api(args)
    for name in filter(lambda name: Path(name).exists(), args.judge):
        parser.error(
            f"{name} is a file or directory here: to judge by its likelihoods, --judge lm:{name}"
        )
    args.judge = list(dict.fromkeys(name.rstrip("/") for name in args.judge))
    return args


class Cache(dict):
    """{key: a judge's reply}, kept in grades.jsonl: one JSON object a line, appended as it comes.

    Also reads those of its subdirectories, its ancestors and its siblings: no reply is paid for
    twice."""

    def __init__(self, directory: Path):
        self.path, above = directory / "grades.jsonl", directory.resolve().parents
        paths = [
            *(each / "grades.jsonl" for each in above),
            *directory.resolve().rglob("grades.jsonl"),
        ]
        paths += [path for each in above[:1] for path in each.glob("*/grades.jsonl")]
        for path in sorted(
            filter(Path.is_file, dict.fromkeys(paths)), key=lambda path: path.stat().st_mtime
        ):
            self |= {entry["key"]: entry for entry in read_json_lines(path) if "key" in entry}

    def add(self, key: str, entry: dict) -> None:
        append_json(self.path, dict(key=key) | entry)
        self[key] = entry


# ---- Grading by a chat judge or a likelihood judge ----
def grade_by_chat(
    judge: ChatJudge, sources: Sources, cache: Cache, args: argparse.Namespace
) -> tuple[list[Row], str, Exception | None]:
    """Rows of scores; how many gradings succeeded, in words (under --dry_run: what would be asked,
    at what cost); the error that ended the requests early, if any."""
    jobs = list(
        itertools.product(dict.fromkeys(itertools.chain(*sources.values())), range(args.repeats))
    )
    missing = [job for job in jobs if not judge.look_up(*job, cache).grades]
    random.Random(0).shuffle(missing)  # so that a budget that runs out does not favor a run
    if args.dry_run:
        return (
            [],
            show_requests(judge, [story for story, _ in missing], args.price_in, args.price_out),
            None,
        )
    failures, fatal = ask(judge, missing, cache, args) if missing else ({}, None)
    grades = {job: judge.look_up(*job, cache).grades or {} for job in jobs}
    rows = [
        Row(judge.name, source, story, score_name, score)
        for source, stories in sources.items()
        for story, repeat in itertools.product(stories, range(args.repeats))
        for score_name, score in grades[story, repeat].items()
    ]
    status = f"{sum(map(bool, grades.values())):,} of {len(jobs):,} gradings"
    if failures:
        status += f"; {len(failures):,} failed and are not counted: {next(iter(failures.values()))}"
    return rows, status, fatal


def ask(
    judge: ChatJudge, jobs: Sequence[tuple[Story, int]], cache: Cache, args: argparse.Namespace
):
    """Requests gradings, many at a time. Returns {grading: why it failed} and the error that ended
    them all, if any."""
    from tqdm import tqdm

    # here, as `import openai` takes over a second
    from nanostories.generation.api_client import StopAsking

    client = args.client
    spent_before = client.ledger.spent
    failures = {}
    fatal = None
    with tqdm(
        desc=f"{judge.name} grades", total=len(jobs), unit="grade", disable=None, delay=1
    ) as bar:
        try:
            for job, error in client.map(lambda job: judge.grade(*job, client, cache), jobs):
                if why := error or judge.look_up(*job, cache).problem:
                    failures[job] = why
                bar.set_postfix_str(f"${client.ledger.spent - spent_before:.4f}", refresh=False)
                bar.update()
        except StopAsking as error:
            hint = "; if the endpoint cannot take a JSON schema: --no_schema"
            fatal = UserError(
                f"{error}{hint}" if judge.schema and "HTTP 400" in str(error) else str(error)
            )
    if args.price_in is not None:
        dollars = client.ledger.spent - spent_before
        print(f"{judge.name}: this command spent ${dollars:.4f}", file=sys.stderr)
    return failures, fatal


def grade_by_likelihood(
    name: str, runs: Sequence[Run], controls: Sources, cache: Cache, args: argparse.Namespace
) -> tuple[list[Row], str, list[str]]:
    """Rows of scores of all stories; how many were scored, with warnings (under --dry_run: how many
    would be); the runs whose stories the judge wrote itself, perhaps at another step. Each ending
    is scored after its own beginning and after those of other stories: a consistent one is likelier
    after its own."""
    from nanostories.grading.likelihood_judge import (  # here, as torch takes seconds
        LikelihoodJudge,
        jobs_of,
    )

    judge, jobs = LikelihoodJudge(name), jobs_of(runs, controls, args.data)
    if args.dry_run:
        return (
            [],
            (
                f"{len(jobs):,} endings to score, after their own and other beginnings; on this"
                " machine, free"
            ),
            [],
        )
    print(f"{name} reads {len(jobs):,} stories", file=sys.stderr)
    scores = judge.score([job[1:] for job in jobs], cache)
    rows = [
        Row(judge.name, source, story, score_name, score)
        for source, story, other_beginnings in jobs
        for score_name, score in scores[story, other_beginnings].items()
    ]
    status = f"{len(jobs):,} stories scored"
    path, places = (
        Path(name.partition(":")[2]).resolve(),
        {run.name: run.model.resolve() for run in runs},
    )
    self_judged = [
        run
        for run, place in places.items()
        if place.is_relative_to(path) or path.is_relative_to(place)
    ]
    self_judged += [
        run.name for run in runs if run.rows[0].get("weights") == judge.weights
    ]  # their checksums
    if self_judged := list(dict.fromkeys(self_judged)):
        written = f"also wrote the stories of {', '.join(self_judged)} (perhaps at another step)"
        status += f"\n\nWARNING {name} {written}, and a model likes its own words"
    judge_text = text_identity(judge.corpus) if judge.corpus else None
    if others := [run.name for run in runs if judge_text and run.text and run.text != judge_text]:
        learned = f"{judge.corpus}, and may have learned stories that {', '.join(others)} continue"
        status += f"\n\nWARNING {name} was trained on {learned}"
    if len({run.rows[0].get("temperature") for run in runs}) > 1:
        status += (
            f"\n\nWARNING {name} prefers likely text, and so a lower temperature: compare runs at"
            " one temperature"
        )
    return rows, status, self_judged


# ---- All judges, all tables ----
def grade_runs(args: argparse.Namespace) -> None:
    from nanostories.figures import save_figure  # here, as Matplotlib and torch take seconds
    from nanostories.grading.metrics import metric_rows
    from nanostories.grading.pictures import scores_figure
    from nanostories.training.run_directory import partly_trained

    runs, directory = read_runs(args.directories)
    by_likelihood = {name: runs for name in args.judge if is_likelihood_judge(name)}
    if not args.judge and not args.no_judge and not args.imports:
        from nanostories.grading.likelihood_judge import default_judges

        if not (by_likelihood := default_judges(runs)):
            print(
                "no run of train.py here that could judge by likelihood; name one: --judge lm:RUN"
            )
    chat_judges, self_judged = make_chat_judges(args), set()
    controls = make_controls(*endings_by_text(runs))
    if args.controls and not controls[TRUE_ENDING]:
        raise UserError(
            "--controls needs true endings, which `python sample.py --eval N` keeps; there are none"
        )
    sources = {run.name: run.stories for run in runs} | (controls if args.controls else {})
    rows, statuses, fatal = [], {}, None
    with lock(directory, ".grade.lock", "another grade.py is running there; let it finish"):
        cache = Cache(directory)
        if not args.dry_run:  # first, so that an error here costs nothing
            rows += [*metric_rows(runs, controls[TRUE_ENDING]), *imported_rows(args.imports, runs)]
        for name, runs_to_grade in by_likelihood.items():
            new_rows, statuses[name], own_runs = grade_by_likelihood(
                name, runs_to_grade, controls, cache, args
            )
            rows, self_judged = rows + new_rows, self_judged | {(name, run) for run in own_runs}
        for judge in chat_judges:
            new_rows, statuses[judge.name], error = grade_by_chat(judge, sources, cache, args)
            rows, fatal = rows + new_rows, fatal or error
    if args.dry_run:
        print("\n\n".join(f"{name}: {status}" for name, status in statuses.items()))
        return
    statuses |= {row.judge: "imported" for row in rows if row.judge.endswith(IMPORTED)}
    # Whether a judge's own stories score above true endings says nothing of them: it likes its own
    # words.
    biased = {("difference_from_true_ending", judge, run) for judge, run in self_judged}
    findings = [f for f in compare(rows, runs) if (f.kind, f.judge, f.subject) not in biased]
    text = summary(findings, statuses, runs)
    if notes := [run.name + note for run in runs if (note := partly_trained(run.model))]:
        text = f"WARNING stopped, or still being trained: {', '.join(notes)}\n\n{text}"
    longest = {
        run.text: max(each.longest for each in runs if each.text == run.text) for run in runs
    }
    if short := [
        f"{run.name} (at most {run.longest} words)"
        for run in runs
        if run.longest < 0.8 * longest[run.text]
    ]:
        why = (
            "what stands beside them may be longer, and most scores depend on the length:"
            " --max_new_tokens"
        )
        text = f"WARNING the context ended stories of {', '.join(short)}; {why}\n\n{text}"
    write_bytes(directory / "grades.md", f"{text}\n\n{report(findings, statuses)}\n".encode())
    print(text)
    write_table(directory / "grades.csv", [finding._asdict() for finding in findings])
    save_figure(scores_figure(findings, statuses, runs), directory / "grades.png")
    files = (
        f"grades.md (also differences between runs), .csv and .png, of these {len(runs)} sets of"
        " stories"
    )
    print(f"\nwrote {files}, to {directory}; next: python report.py {directory}")
    if fatal:
        raise fatal


def make_chat_judges(args: argparse.Namespace) -> list[ChatJudge]:
    """A judge for each pair of model and question."""
    names = [name for name in args.judge if not is_likelihood_judge(name)]
    if not names:
        return []
    # here, as `import openai` takes over a second
    from nanostories.generation.api_client import ApiClient

    args.client = ApiClient("JUDGE", **args.api)
    url = args.client.public_url
    question_names = args.protocol + [str(path) for path in args.question]
    questions = [read_question(name) for name in dict.fromkeys(question_names or ["ours"])]
    settings = (args.temperature, args.max_tokens, not args.no_schema)
    return [ChatJudge(name, url, question, *settings) for name in names for question in questions]


def main() -> None:
    args = parse_arguments()
    sys.stdout.reconfigure(errors="replace")
    again = "run the same command to continue"
    with one_line_errors(
        "grade.py", f"every reply so far is kept; {again}", f"free disk space, then {again}"
    ):
        grade_runs(args)


if __name__ == "__main__":
    main()
