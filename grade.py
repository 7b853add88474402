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
$ python grade.py out/ --set beginnings  # those of `sample.py --prompts prompts/beginnings.txt`
$ python grade.py out/ --judge human  # a page to grade them by hand, blind: out/read.html

Every reply is saved as it comes, to grades.jsonl: the same command continues, and requests only new
grades.
"""

import argparse
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path

from nanostories.cli import Parser, UserError, one_line_errors, positive
from nanostories.corpus.token_files import load_meta
from nanostories.files import append_json, lock, read_json_lines
from nanostories.generation.samples_file import result_name
from nanostories.grading.chat_judge import ChatJudge, read_question
from nanostories.grading.comparisons import FEWEST_PROMPTS, Comparison, compare, definitions
from nanostories.grading.groups import Group, group_runs
from nanostories.grading.metrics import metrics_of
from nanostories.grading.people import agreement, by_people
from nanostories.grading.scores import HUMAN, TRUE_ENDING, is_likelihood_judge
from nanostories.grading.stories import Run, Story, read_runs, warn_of_other_weights
from nanostories.results import save


def parse_arguments() -> argparse.Namespace:
    parser = Parser(__doc__)
    parser.add_argument(
        "directories", nargs="+", type=Path, metavar="DIR", help="runs, or directories of runs"
    )
    either = parser.add_mutually_exclusive_group()
    either.add_argument(
        "--judge",
        action="append",
        default=[],
        metavar="MODEL",
        help="lm:RUN or lm:hf:ID, to judge by likelihood (default: the best run); human, to grade"
        " on a page of its own; or a chat model behind an API; may be given several times",
    )
    either.add_argument(
        "--no_judge", action="store_true", help="compute only the metrics that need no judge"
    )
    parser.add_argument(
        "--controls",
        action="store_true",
        help="test the judge: also grade true endings and damaged ones (lm: judges always do)",
    )
    parser.add_argument(
        "--question",
        nargs="+",
        default=["ours"],
        metavar="NAME",
        help="how to ask chat judges. ours (default): our question; paper: the paper's, in two"
        " turns; scores: ask for numbers only; or a text file with {beginning} and {completion} in"
        " it (docs/grading.md)",
    )
    parser.add_argument(
        "--repeats", type=positive, default=1, help="how often each chat judge grades a completion"
    )
    parser.add_argument(
        "--prompts",
        type=positive,
        metavar="N",
        help="grade only the stories of the first N prompts (default: all); with fewer than"
        f" {FEWEST_PROMPTS}, --controls can rarely tell whether a judge can be trusted",
    )
    parser.add_argument(
        "--dry_run",
        action="store_true",
        help="send nothing: show one request, their number and cost",
    )
    parser.add_shared("data", "set")
    parser.add_shared("out", help="where to write (default: the directory that holds them all)")
    parser.add_api("the judge's API")
    args = parser.parse_args()
    args.api = parser.require_api(args)
    for name in args.judge:
        if Path(name).exists():
            parser.error(
                f"{name} is a file or directory here: to judge by its likelihoods, --judge"
                f" lm:{name}"
            )
        if name.startswith(f"{HUMAN}:"):
            parser.error(
                f"{name}: people's grades are read from the files that they saved, without --judge"
                f" (docs/grading.md); --judge {HUMAN} makes the page"
            )
    # api:gpt-4o-mini is gpt-4o-mini (sample.py --model wants api:); lm:out/a/ is lm:out/a
    names = [name.rstrip("/").removeprefix("api:") for name in args.judge]
    args.judge = list(dict.fromkeys(names))
    return args


def grade_runs(args: argparse.Namespace) -> None:
    """The runs' stories, in groups that share their prompts; each judge's scores of each group;
    tables and a picture."""
    if args.data:
        load_meta(args.data)  # UserError: no corpus
    runs, directory = read_runs(args.directories, args.set, args.prompts, args.out)
    groups = group_runs(runs, args.data)
    if args.controls and not any(group.controls[TRUE_ENDING] for group in groups):
        raise UserError(
            "--controls needs true endings, which `python sample.py --eval N` keeps; there are none"
        )
    stories = []  # for chat judges: controls cost as much as others, so only with --controls
    for group in groups:
        stories += group.stories(args.controls)
    if args.dry_run:
        preview(make_chat_judges(args, Cache(directory)), stories, args)
        return
    with lock(directory, ".grade.lock", "another grade.py is running there; let it finish"):
        cache = Cache(directory)
        chat_judges = make_chat_judges(args, cache)
        # First what costs nothing, so that an error there costs nothing
        if HUMAN in args.judge:
            from nanostories.pages.reading_page import write_page  # here, as it is rarely needed

            page = write_page(groups, directory)
            print(f"open {page}; the file that it saves goes to {directory}/, beside it")
        comparisons = [compare("", group, metrics_of) for group in groups]
        if not args.no_judge:
            people = by_people(groups, directory)
            if args.judge == [HUMAN] and not people:
                return  # no grades yet: keep the tables of other judges
            comparisons += people
            comparisons += by_likelihood(groups, cache, args)
        problems = ask_chat_judges(chat_judges, stories, args)
        by_chat = []
        for judge, group in itertools.product(chat_judges, groups):
            graded = compare(judge.name, group, judge.scores, judge.wrote, args.controls)
            by_chat.append(graded)
    path = directory / f"{result_name('grades', args.set)}.json"
    if problems and path.exists() and not any(graded.scores for graded in by_chat):
        raise UserError("; ".join(problems))  # such as a wrong name: what was found before stays
    comparisons += by_chat
    write_results(path, args.set, runs, comparisons)
    if not problems and any(comparison.n_failed for comparison in comparisons):
        problems.append("some gradings failed: see above; the same command asks for these again")
    if problems:
        raise UserError("; ".join(problems))


class Cache(dict):
    """{key: a judge's reply}, kept in grades.jsonl: one JSON object a line, appended as it comes.

    Also reads those of its subdirectories, its ancestors and its siblings: no reply is paid for
    twice."""

    def __init__(self, directory: Path):
        self.path = directory / "grades.jsonl"
        here = directory.resolve()
        paths = [*here.rglob("grades.jsonl"), *here.parent.glob("*/grades.jsonl")]
        paths += [parent / "grades.jsonl" for parent in here.parents]
        for path in paths:
            for entry in read_json_lines(path):
                if "key" in entry:
                    self[entry["key"]] = entry

    def add(self, key: str, entry: dict) -> None:
        append_json(self.path, {"key": key} | entry)
        self[key] = entry


# ---- By likelihood ----
def by_likelihood(
    groups: Sequence[Group], cache: Cache, args: argparse.Namespace
) -> list[Comparison]:
    """Each ending is scored after its own beginning and after those of other stories: a consistent
    one is likelier after its own."""
    names = [name for name in args.judge if is_likelihood_judge(name)]
    # here, as torch takes seconds
    from nanostories.grading.likelihood_judge import LikelihoodJudge, default_judges

    graded_by = dict.fromkeys(names, groups) if names else default_judges(groups)
    comparisons = []
    for name, judged in graded_by.items():
        judge = LikelihoodJudge(name)
        for group in judged:
            corpus = group.corpus
            if not corpus or not (corpus / "meta.json").exists():
                problem = "no consistency scores, as the corpus of these prompts was not found"
                print(f"{group.title}: {problem}; pass it with --data")
                corpus = None
            scores = judge.grade(group.stories(with_controls=True), corpus, cache)
            comparisons.append(compare(name, group, scores.get, judge.wrote))
    return comparisons


# ---- By chat models ----
def make_chat_judges(args: argparse.Namespace, cache: Cache) -> list[ChatJudge]:
    """A judge for each pair of model and question."""
    names = [name for name in args.judge if name != HUMAN and not is_likelihood_judge(name)]
    if not names:
        return []
    # here, as `import openai` takes over a second
    from nanostories.generation.api_client import ApiClient

    client = ApiClient("JUDGE", **args.api)
    questions = [read_question(name) for name in dict.fromkeys(args.question)]
    pairs = itertools.product(names, questions)
    return [ChatJudge(name, question, client, cache, args.repeats) for name, question in pairs]


def ask_chat_judges(
    judges: Sequence[ChatJudge], stories: Sequence[Story], args: argparse.Namespace
) -> list[str]:
    """Asks for the grades that the cache lacks. Returns what ended it early, by judge."""
    problems = []
    for judge in judges:
        spent_before = judge.client.ledger.spent
        try:
            judge.grade(stories)
        except UserError as error:
            problems.append(str(error))
        if args.price_in is not None:
            dollars = judge.client.ledger.spent - spent_before
            print(f"{judge.name}: this command spent ${dollars:.4f}", file=sys.stderr)
    return problems


def preview(judges: Sequence[ChatJudge], stories: Sequence[Story], args) -> None:
    """For --dry_run: the first request of each judge, how many there are, and the cost of all."""
    if not judges:
        print("no chat judge: nothing is sent")
        return
    total = 0.0
    for judge in judges:
        shown, dollars = judge.preview(stories)
        total += dollars
        print(f"{judge.name}: {shown}\n")
    if args.price_in is None:
        print("--price_in and --price_out show the cost")
    else:
        print(f"in all about ${total:.4f}; --max_cost limits it, for all judges together")
    if args.max_cost:
        left = judges[0].client.ledger.left()  # they have one client
        print(f"${left:.4f} of --max_cost is left; --prompts N grades fewer stories")


# ---- Tables and a picture ----
def write_results(
    path: Path, name: str, runs: Sequence[Run], comparisons: Sequence[Comparison]
) -> None:
    """name: of the set that was graded."""
    # here, as matplotlib and torch take seconds
    from nanostories.grading.pictures import scores_figure
    from nanostories.training.run_directory import warn_of_partly_trained

    tables = []
    warnings = warn_of_partly_trained({run.name: run.model.directory for run in runs if run.model})
    for run in runs:
        warnings += [f"{run.name}: {text}" for text in warn_of_other_weights(run.rows)]
    for comparison in comparisons:
        tables += comparison.tables()
        warnings += comparison.warnings()
    judges_agree = agreement(comparisons)
    if judges_agree.rows:
        tables.append(judges_agree)
    tables.append(definitions(comparisons))
    for table in tables:
        table.facts["set"] = name
    sources = [run.samples for run in runs]
    save(path, "grade.py", tables, warnings, sources, scores_figure(comparisons))
    wrote = f"wrote {path} and {path.stem}.png, of the set {name} (runs: {len(runs)})"
    print(f"\n{wrote}; next: python report.py {path.parent}")


def main() -> None:
    args = parse_arguments()
    again = "run the same command to continue"
    with one_line_errors(
        "grade.py", f"every usable reply so far is kept; {again}", f"free disk space, then {again}"
    ):
        grade_runs(args)


if __name__ == "__main__":
    main()
