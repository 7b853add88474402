r"""
Write a data set: an LLM writes each story around a verb, a noun, an adjective and some features,
drawn at random as in the paper (section 2), so that the stories differ more than a high temperature
alone would make them.

$ python synthesize.py --model gpt-4o-mini --stories 1000 --name mine \
      --price_in 0.15 --price_out 0.6 --max_cost 2
$ python synthesize.py --model gpt-4o-mini --dry_run  # shows one request and the cost at most
# the control: no words, no features
$ python synthesize.py --model gpt-4o-mini --name plain --plain
$ python synthesize.py --model qwen3 --base_url http://localhost:8000/v1 \
      --language Hindi --words hindi.csv --name hindi
$ python synthesize.py --name mine  # only the table

Each reply is saved as it arrives: to data/NAME/stories.jsonl or, if it lacks what was requested, to
rejected.jsonl. A rejected story is requested again, up to three times in all. After a stop, the
same command continues.
"""

import argparse
import random
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
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
from nanostories.corpus.sources import split_file
from nanostories.corpus.word_forms import SPEECH, uses_word
from nanostories.files import PROMPTS, append_json, lock, read_json_lines
from nanostories.results import Table, save
from nanostories.tables import read_user_table
from nanostories.text import REFUSAL, split_sentences, words_of

KINDS = ("noun", "verb", "adjective")
P_FEATURE = 1 / 3  # probability of each feature
ATTEMPTS = 3  # requests for one story, until it is given up
WORDS = PROMPTS / "words.csv"
FEWEST_WORDS = 40  # refusals in any language are mostly shorter
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
    parser.add_argument(
        "--words", **files, default=WORDS, help="CSV: word, kind (default: English)"
    )
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
        "--dry_run", action="store_true", help="show one request and the cost at most; send nothing"
    )
    parser.add_shared("seed")
    parser.add_api("the API")
    args = parser.parse_args()
    args.api = parser.require_api(args)
    if args.language != "English" and args.words == WORDS and not args.plain:
        parser.error(f"--language {args.language} needs --words FILE, a CSV of its words and kinds")
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
    request: str  # the text


def draw_requests(args: argparse.Namespace) -> list[Request]:
    words = defaultdict(list)
    for where, row in read_user_table(args.words, ("word", "kind")):
        word = row["word"].strip()
        if not word:
            raise UserError(f"{where}: no word")
        words[row["kind"].strip()].append(word)
    for kind in KINDS:
        if kind not in words:
            raise UserError(f"{args.words}: no words of the kind {kind}")
    table = read_user_table(args.features, ("feature", "request"))
    features = {row["feature"]: row["request"] for _, row in table}
    template = [line.rstrip("\r") for line in split_file(args.template, "\n")]
    requests = []
    for index in range(args.stories):
        rng = random.Random(f"{args.seed}/{index}")
        drawn = {kind: rng.choice(words[kind]) for kind in KINDS}
        chosen = [feature for feature in features if rng.random() < P_FEATURE]
        if args.plain:
            drawn = {}
            chosen = []
        values = dict(
            language=args.language,
            features="; ".join(features[feature] for feature in chosen),
            summary=SUMMARY if args.summaries else "",
        )
        text = fill_in(template, values | dict.fromkeys(KINDS, "") | drawn)
        requests.append(Request(index, list(drawn.values()), chosen, text))
    return requests


def fill_in(template: Sequence[str], values: dict[str, str]) -> str:
    """The template's lines of which all {fields} have a value."""
    lines = []
    for line in template:
        fields = re.findall(r"\{(.*?)\}", line)
        if not values.keys() >= set(fields):
            raise UserError(f"--template: in {line!r} is another field than {', '.join(values)}")
        if all(values[field] for field in fields):
            lines.append(re.sub(r"\{(.*?)\}", lambda field: values[field[1]], line))
    return "\n".join(lines)


# ---- Replies ----
def read_story(reply: str, request: Request, args: argparse.Namespace) -> dict:
    """The row for stories.jsonl; under "rejected", why it is none."""
    text = re.sub(r"\n{2,}", "\n\n", reply.strip())
    row = asdict(request) | dict(language=args.language, text=text)
    if args.summaries:
        text, _, summary = text.rpartition(SUMMARY)
        text = re.sub(r"\s[*_#\s]*$", "", f"{text.rstrip()}\n")  # Markdown, as in **Summary:**
        summary = summary.strip("*_ \n")
        if not text or not summary:
            return row | dict(rejected="no summary")
        sentences = split_sentences(text) or [text]
        row["text"] = text
        row["summary"] = summary
        row["sentence"] = random.Random(text).choice(sentences).strip()
    if REFUSAL.match(text):
        return row | dict(rejected="refusal")
    if len(words_of(text)) < FEWEST_WORDS:
        return row | dict(rejected=f"shorter than {FEWEST_WORDS} words")
    # Inflections are known for English alone.
    if args.language == "English" and not all(uses_word(text, word) for word in request.words):
        return row | dict(rejected="lacks a word that was requested")
    return row


class DataSet:
    """stories.jsonl and rejected.jsonl of a data set, to which each reply is appended as it
    arrives. UserError if something else was requested before: two data sets must not get mixed."""

    def __init__(self, directory: Path, requests: Sequence[Request] = ()):
        self.directory = directory
        self.requests = requests
        stories = read_json_lines(directory / "stories.jsonl")
        self.stories = {row["index"]: row for row in stories}
        self.rejected = list(read_json_lines(directory / "rejected.jsonl"))
        self.rejections = Counter(row["index"] for row in self.rejected)
        texts = {request.index: request.request for request in requests}
        for row in [*self.stories.values(), *self.rejected]:
            if row["request"] != texts.get(row["index"], row["request"]):
                raise UserError(
                    f"{directory}: story {row['index']} had another request; choose another --name,"
                    " or all flags as before"
                )

    def is_missing(self, request: Request) -> bool:
        return request.index not in self.stories and self.rejections[request.index] < ATTEMPTS

    def add(self, row: dict) -> None:
        if "rejected" in row:
            append_json(self.directory / "rejected.jsonl", row)
            self.rejected.append(row)
            self.rejections[row["index"]] += 1
        else:
            append_json(self.directory / "stories.jsonl", row)
            self.stories[row["index"]] = row

    def describe_rejections(self) -> str:
        reasons = Counter(row["rejected"] for row in self.rejected)
        listed = [f"{reason}: {n:,}" for reason, n in reasons.most_common()]
        n_given_up = list(self.rejections.values()).count(ATTEMPTS)
        if n_given_up:
            remedy = "delete rejected.jsonl to request them again"
            listed.append(f"stories given up: {n_given_up:,} ({remedy})")
        return f"rejected: {'; '.join(listed) or 'none'}"


# ---- Asking ----
def api_request(request: Request, data: DataSet, args: argparse.Namespace) -> dict:
    """Several models take turns. Each attempt at a story has a seed of its own."""
    rng = random.Random(f"{args.seed}/{request.index}/{data.rejections[request.index]}")
    return dict(
        model=args.model[request.index % len(args.model)],
        messages=[dict(role="user", content=request.request)],
        max_tokens=args.max_new_tokens,
        temperature=args.temperature,
        seed=rng.getrandbits(31),
    )


def ask(data: DataSet, args: argparse.Namespace) -> None:
    """Requests each story until it is there or given up. UserError if the budget or the endpoint
    ends it, or if requests failed."""
    # here, as `import openai` takes over a second
    from nanostories.generation.api_client import ApiClient, BadReply

    client = ApiClient(**args.api)
    missing = [request for request in data.requests if data.is_missing(request)]
    if args.dry_run:
        asked = [api_request(request, data, args) for request in missing]
        print(client.preview(asked, ATTEMPTS))
        return

    async def write(request: Request) -> None:
        while data.is_missing(request):
            try:
                reply = await client.chat(**api_request(request, data, args))
                problem = {}
            except BadReply as bad:
                reply = bad.reply
                problem = dict(rejected=str(bad))
            row = read_story(reply.text, request, args) | problem
            data.add(row | dict(model=reply.model))

    failures = []
    bar = tqdm(client.map(write, missing), total=len(missing), unit="story", disable=None)
    try:
        for _, failure in bar:
            if failure:
                failures.append(failure)
            bar.set_postfix_str(f"{len(data.rejected)} rejected, ${client.ledger.spent:.4f}")
    finally:
        if args.price_in is not None:
            print(f"this command spent ${client.ledger.spent:.4f}")
    if failures:
        n = f"{len(failures):,} of {len(missing):,} requests failed"
        raise UserError(f"{n}; run it again to retry them: {failures[0]}")


# ---- What was requested ----
def show(args: argparse.Namespace) -> None:
    """Prints the table; writes requests.json next to the stories."""
    data = DataSet(args.data_dir / args.name)
    print(f"{data.directory}: {data.describe_rejections()}")
    if not data.stories:
        remedy = "write some with --model (rejected ones are in rejected.jsonl)"
        raise UserError(f"{data.directory}: no stories in it; {remedy}")
    table = describe(args.name, data.stories.values())
    save(data.directory / "requests.json", "synthesize.py", [table])


def describe(name: str, stories: Collection[dict]) -> Table:
    """Whether they have dialogue where it was requested, and otherwise: of the features, rules can
    tell that alone. (English stories that lack a word were rejected.)"""
    checks = {"dialogue if requested": [], "dialogue otherwise": []}
    for story in stories:
        when = "if requested" if "Dialogue" in story["features"] else "otherwise"
        checks[f"dialogue {when}"].append(SPEECH.search(story["text"]) is not None)
    row = {"data": name, "stories": len(stories)}
    for column, values in checks.items():
        row[column] = sum(values) / len(values) if values else None
    formats = dict.fromkeys(checks, ".1%")
    return Table("Requests", [row], formats, facts={"kind": "requests"})


def write_stories(directory: Path, args: argparse.Namespace) -> None:
    requests = draw_requests(args)
    if args.dry_run:
        ask(DataSet(directory, requests), args)
        return
    busy = "another synthesize.py is writing there; let it finish"
    with lock(directory, ".synthesize.lock", busy):
        data = DataSet(directory, requests)
        try:
            ask(data, args)
        except UserError:
            if data.stories:  # The stories so far are shown, and the error after them.
                show(args)
            raise


def main() -> None:
    args = parse_arguments()
    directory = args.data_dir / args.name
    kept = f"every story so far is in {directory}; run the same command to continue"
    with one_line_errors("synthesize.py", kept, f"free space or fix that; {kept}"):
        if args.model:
            write_stories(directory, args)
        if args.dry_run:
            return
        show(args)
    file = directory / "stories.jsonl"
    row = next(read_json_lines(file))
    command = f"python prepare.py --input {file} --name {args.name}-tokens"
    if row["words"] or "summary" in row:
        command += " --headers"
    if row["language"] != "English":
        command += " --vocabulary=bpe"
    wrote = f"wrote {file}; " if args.model else ""
    print(f"{wrote}next: {command}")


if __name__ == "__main__":
    main()
