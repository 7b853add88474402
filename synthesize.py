"""
Write a data set: an LLM writes each story around a verb, a noun, an adjective and some features,
drawn at random as in the paper (section 2), so that the stories differ more than a high temperature
alone would make them.

$ python synthesize.py --model gpt-4o-mini --stories 1000 --name mine \
      --price_in 0.15 --price_out 0.6 --max_cost 2
$ python synthesize.py --model gpt-4o-mini --dry_run  # shows one request and the cost of all
# the control: no words, no features
$ python synthesize.py --model gpt-4o-mini --name plain --plain
$ python synthesize.py --model qwen3 --base_url http://localhost:8000/v1 \
      --language Hindi --words hindi.csv --name hindi
$ python synthesize.py --name mine --compare plain  # only the table and the picture

Each reply is saved as it arrives: to data/NAME/stories.jsonl or, if it lacks what was requested, to
rejected.jsonl. A rejected story is requested again, up to three times in all. After a stop, the
same command continues.
"""

import argparse
import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from nanostories.cli import (
    Parser,
    UserError,
    existing_file,
    non_negative_float,
    one_line_errors,
    positive,
)
from nanostories.corpus.builtin_stories import split_sentences
from nanostories.corpus.word_forms import uses_word
from nanostories.files import append_json, lock, read_json_lines
from nanostories.tables import print_and_save, read_user_table, write_table

PROMPTS = Path(__file__).parent / "prompts"
KINDS = ("noun", "verb", "adjective")
P_FEATURE = 1 / 3  # probability of each feature
ATTEMPTS = 3  # requests for one story, until it is given up
FEWEST_WORDS = (
    40  # refusals are shorter; four characters count as a word, for scripts without spaces
)
SUMMARY = "Summary:"  # as in the published Instruct texts


def parse_arguments() -> argparse.Namespace:
    parser = Parser(__doc__)
    parser.add_argument(
        "--model", nargs="+", default=[], metavar="NAME", help="several share the stories"
    )
    parser.add_argument(
        "--stories", type=positive, default=1000, metavar="N", help="total number (default: 1000)"
    )
    parser.add_argument(
        "--name", default="stories", help="the data set, in data_dir/NAME (default: stories)"
    )
    parser.add_argument("--data_dir", type=Path, default=Path("data"), help="default: data")
    files = dict(type=existing_file, metavar="FILE")
    parser.add_argument("--words", **files, default=PROMPTS / "words.csv", help="CSV: word, kind")
    parser.add_argument(
        "--features", **files, default=PROMPTS / "features.csv", help="CSV: feature, request"
    )
    template = "text of the request; a line with an unused {field} is dropped"
    parser.add_argument("--template", **files, default=PROMPTS / "synthesize.txt", help=template)
    parser.add_argument(
        "--plain", action="store_true", help="request neither words nor features: the control"
    )
    parser.add_argument(
        "--summaries", action="store_true", help="also request a summary, to train on instructions"
    )
    parser.add_argument("--language", default="English", help="default: English")
    parser.add_argument("--temperature", type=non_negative_float, default=1.0, help="default: 1")
    parser.add_argument(
        "--max_new_tokens", type=positive, default=700, help="limit of a reply (default: 700)"
    )
    parser.add_argument(
        "--compare",
        nargs="+",
        default=[],
        metavar="NAME",
        help="more data sets in table and picture",
    )
    parser.add_argument(
        "--dry_run", action="store_true", help="show one request and the total cost; send nothing"
    )
    parser.add_shared("seed")
    parser.add_api("the API")
    args = parser.parse_args()
    args.api = parser.require_api(args)
    if args.dry_run and not args.model:
        parser.error("--dry_run needs a --model")
    return args


# ---- Requests ----
@dataclass(frozen=True)
class Request:
    """Story number `index`: its words and features depend on the seed and this number alone."""

    index: int
    words: list[str]  # a noun, a verb, an adjective; none if plain
    features: list[str]
    text: str


def draw_requests(args: argparse.Namespace) -> list[Request]:
    rows = [row for _, row in read_user_table(args.words, ("word", "kind"))]
    words = {kind: [row["word"] for row in rows if row["kind"] == kind] for kind in KINDS}
    if empty := [kind for kind in KINDS if not words[kind]]:
        raise UserError(
            f"{args.words}: no words with the kind {empty[0]}; the kinds are {', '.join(KINDS)}"
        )
    features = {
        row["feature"]: row["request"]
        for _, row in read_user_table(args.features, ("feature", "request"))
    }
    lines = args.template.read_text(encoding="utf-8").splitlines()
    requests = []
    for index in range(args.stories):
        rng = random.Random(f"{args.seed}/{index}")
        drawn = {kind: rng.choice(words[kind]) for kind in KINDS}
        chosen = [feature for feature in features if rng.random() < P_FEATURE]
        if args.plain:
            drawn, chosen = {}, []
        values = drawn | dict(
            language=args.language, features="; ".join(features[name] for name in chosen)
        )
        values["summary"] = SUMMARY * args.summaries
        kept = [
            line
            for line in lines
            if all(values.get(field) for field in fields_of(line, args.template))
        ]
        requests.append(
            Request(
                index,
                list(drawn.values()),
                chosen,
                "\n".join(line.format(**values) for line in kept),
            )
        )
    return requests


def fields_of(line: str, template: Path) -> list[str]:
    """The names in {braces}; ValueError for an unknown one."""
    fields, known = re.findall(r"\{(.*?)\}", line), (*KINDS, "features", "language", "summary")
    if unknown := set(fields) - set(known):
        raise UserError(
            f"{template}: unknown field {{{unknown.pop()}}}; the fields are {', '.join(known)}"
        )
    return fields


# ---- Replies ----
def read_story(
    reply: str, finish_reason: str, request: Request, args: argparse.Namespace
) -> tuple[dict, str]:
    """The row for stories.jsonl; why it is rejected, or ""."""
    text, summary = re.sub(r"\n{2,}", "\n\n", reply.strip()), ""
    if args.summaries:
        text, _, summary = (part.strip() for part in text.rpartition(SUMMARY))
        text, summary = (text, summary) if text else (summary, "")
    row = dict(index=request.index, text=text, words=request.words, features=request.features)
    row |= dict(language=args.language, request=request.text)
    if args.summaries:
        row |= dict(
            summary=summary,
            sentence=random.Random(text).choice(split_sentences(text) or [text]).strip(),
        )
    if finish_reason == "length":
        return row, "cut off at --max_new_tokens"
    if finish_reason == "content_filter" or max(len(text.split()), len(text) // 4) < FEWEST_WORDS:
        return row, "refused or too short"
    if args.language == "English" and not all(uses_word(text, word) for word in request.words):
        return row, "without all of its words"  # other languages' inflections are not known here
    return row, "without a summary" if args.summaries and not summary else ""


class DataSet:
    """stories.jsonl and rejected.jsonl of a data set, to which each reply is appended as it
    arrives."""

    def __init__(self, directory: Path):
        self.directory = directory
        self.stories = {row["index"]: row for row in read_json_lines(directory / "stories.jsonl")}
        self.rejected = list(read_json_lines(directory / "rejected.jsonl"))
        self.attempts = Counter(row["index"] for row in self.rejected)

    def check(self, requests: Sequence[Request]) -> None:
        """ValueError if something else was requested before: two data sets must not get mixed."""
        texts = {request.index: request.text for request in requests}
        for row in (*self.stories.values(), *self.rejected):
            if row.get("request") != texts.get(row["index"], row.get("request")):
                remedy = "choose another --name, or all flags as before"
                raise UserError(
                    f"{self.directory}: story {row['index']} had another request; {remedy}"
                )

    def missing(self, requests: Sequence[Request]) -> list[Request]:
        missing = [request for request in requests if request.index not in self.stories]
        return [request for request in missing if self.attempts[request.index] < ATTEMPTS]

    def add(self, row: dict, reason: str) -> None:
        if reason:
            row |= dict(rejected=reason)
            self.rejected.append(row)
            self.attempts[row["index"]] += 1
        else:
            self.stories[row["index"]] = row
        append_json(self.directory / ("rejected.jsonl" if reason else "stories.jsonl"), row)

    def rejections(self) -> str:
        reasons = Counter(row["rejected"] for row in self.rejected).most_common()
        n = sum(n >= ATTEMPTS for index, n in self.attempts.items() if index not in self.stories)
        given_up = (
            f"; {n:,} stories given up after {ATTEMPTS} attempts (delete rejected.jsonl to request"
            " them again)"
        )
        return (
            "rejected: "
            + (", ".join(f"{n:,} {reason}" for reason, n in reasons) or "none")
            + given_up * bool(n)
        )


# ---- Asking ----
def ask(data: DataSet, requests: Sequence[Request], args: argparse.Namespace) -> None:
    """Requests each story until it is there or given up; StopAsking if the budget or the endpoint
    ends it."""
    from nanostories.generation.api_client import (
        ApiClient,  # here, as `import openai` takes over a second
    )

    async def write(request: Request) -> bool:
        seed = random.Random(
            f"{args.seed}/{request.index}/{data.attempts[request.index]}"
        ).getrandbits(31)
        messages, settings = (
            [dict(role="user", content=request.text)],
            dict(temperature=args.temperature, seed=seed),
        )
        reply = await client.chat(messages, args.max_new_tokens, **settings)
        row, reason = read_story(reply.text, reply.finish_reason, request, args)
        data.add(row | dict(model=reply.model), reason)
        return not reason

    done, spent = len(requests) - len(data.missing(requests)), 0.0
    with tqdm(initial=done, total=len(requests), unit="story", disable=None) as bar:
        for _ in range(ATTEMPTS):
            failures, missing = [], data.missing(requests)
            for i, model in enumerate(args.model):
                client = ApiClient(model, **args.api)
                client.spent = spent  # one budget for all models
                for _, result in client.map(write, missing[i :: len(args.model)]):
                    failures += [result] * isinstance(result, Exception)
                    bar.update(result is True)
                    bar.set_postfix_str(
                        f"{len(data.rejected)} rejected, ${client.spent:.4f}", refresh=False
                    )
                spent = client.spent
    if failures:
        n = f"{len(failures):,} of {len(requests):,} requests failed; run it again to retry them"
        raise UserError(f"{n}: {failures[0]}")


def show_request(requests: Sequence[Request], args: argparse.Namespace) -> None:
    from nanostories.corpus.tokenizer import gpt2

    tokens_in, tokens_out = (
        sum(len(gpt2().encode(request.text)) for request in requests),
        250 * len(requests),
    )
    cost = "give --price_in and --price_out to see the cost"
    if args.price_in is not None:
        cost = f"about ${(tokens_in * args.price_in + tokens_out * args.price_out) / 1e6:.4f}"
    print(requests[0].text if requests else "nothing to request: each story is there or given up")
    print(
        f"\n{len(requests):,} requests: about {tokens_in:,} tokens in, {tokens_out:,} out; {cost}"
    )


# ---- The data set beside others ----
def show(args: argparse.Namespace) -> None:
    """Prints the table; writes diversity.md, .csv, .png and .svg next to the stories."""
    from nanostories.figures import save_figure
    from nanostories.novelty.diversity import describe, draw

    sets = {name: DataSet(args.data_dir / name) for name in (args.name, *args.compare)}
    for data in sets.values():
        if not data.stories:
            raise UserError(
                f"{data.directory}: no stories there ({data.rejections()}); write some with --model"
            )
    stories = {name: list(data.stories.values()) for name, data in sets.items()}
    rows, text = describe(stories)
    directory = sets[args.name].directory
    print_and_save(directory / "diversity.md", f"{text}\n\n{sets[args.name].rejections()}")
    write_table(directory / "diversity.csv", rows)
    save_figure(draw(stories), directory / "diversity.png")


def main() -> None:
    args = parse_arguments()
    directory = args.data_dir / args.name
    kept = f"every story so far is in {directory}; run the same command to continue"
    with one_line_errors("synthesize.py", kept, f"free space or fix that; {kept}"):
        stopped = None
        if args.model:
            with lock(
                directory,
                ".synthesize.lock",
                "another synthesize.py is writing there; let it finish",
            ):
                data, requests = DataSet(directory), draw_requests(args)
                data.check(requests)
                if args.dry_run:
                    return show_request(data.missing(requests), args)
                try:
                    ask(data, requests, args)
                except (
                    ValueError
                ) as error:  # the budget or the endpoint; the stories so far are shown first
                    stopped = error
        if not stopped or data.stories:
            show(args)
        if stopped:
            raise stopped
    file = directory / "stories.jsonl"
    row = next(read_json_lines(file))
    flags = "--headers " * bool(row["words"]) + "--vocabulary=bpe " * (
        row.get("language", "English") != "English"
    )
    print(f"wrote {file}; next: python prepare.py --input {file} {flags}--name {args.name}-tokens")


if __name__ == "__main__":
    main()
