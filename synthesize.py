"""
Write a data set: an LLM tells each story with three words and some features that were drawn for it, as in the paper
(section 2). The words bring a diversity that a high temperature alone does not.

$ python synthesize.py --model gpt-4o-mini --stories 1000 --name mine --price_in 0.15 --price_out 0.6 --max_cost 2
$ python synthesize.py --model gpt-4o-mini --dry_run                     # one request, and the cost of all
$ python synthesize.py --model gpt-4o-mini --name plain --plain          # the control: no words, no features
$ python synthesize.py --model qwen3 --base_url http://localhost:8000/v1 --language Hindi --words hindi.csv --name hindi
$ python synthesize.py --name mine --compare plain                       # only the table and the picture

Each reply is saved as it comes: to data/NAME/stories.jsonl or, if it does not meet the request, to rejected.jsonl. The
same command continues where it stopped. A story that was rejected is asked for again, up to three times in all.
"""

import argparse
import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from common.cli import Parser, existing_file, non_negative_float, one_line_errors, positive
from common.files import append_json, lock, read_json_lines
from common.tables import publish, read_user_table, write_table
from corpus.builtin_stories import split_sentences
from corpus.word_forms import uses_word

PROMPTS = Path(__file__).parent / "prompts"
KINDS = ("noun", "verb", "adjective")
P_FEATURE = 1 / 3  # probability of each feature
ATTEMPTS = 3  # at one story
FEWEST_WORDS = 40  # or as many characters, in scripts without spaces; a refusal has fewer
SUMMARY = "Summary:"  # as in the published Instruct texts


def parse_arguments() -> argparse.Namespace:
    parser = Parser(__doc__)
    models = "names of models; several take turns. None: only describe the data set"
    parser.add_argument("--model", nargs="+", default=[], metavar="NAME", help=models)
    parser.add_argument("--stories", type=positive, default=1000, metavar="N", help="in all (default: 1000)")
    parser.add_argument("--name", default="stories", help="writes to data_dir/NAME (default: stories)")
    parser.add_argument("--data_dir", type=Path, default=Path("data"), help="default: data")
    files = dict(type=existing_file, metavar="FILE")
    parser.add_argument("--words", **files, default=PROMPTS / "words.csv", help="a CSV with the columns word, kind")
    features = "a CSV with the columns feature, request"
    parser.add_argument("--features", **files, default=PROMPTS / "features.csv", help=features)
    template = "the request; a line with a {field} that has no value is left out"
    parser.add_argument("--template", **files, default=PROMPTS / "synthesize.txt", help=template)
    parser.add_argument("--plain", action="store_true", help="ask for stories without words and features: the control")
    parser.add_argument("--summaries", action="store_true", help="ask for a summary, too, to train on instructions")
    parser.add_argument("--language", default="English", help="language of the stories (default: English)")
    parser.add_argument("--temperature", type=non_negative_float, default=1.0, help="default: 1")
    parser.add_argument("--max_new_tokens", type=positive, default=700, help="in a reply (default: 700)")
    parser.add_argument("--compare", nargs="+", default=[], metavar="NAME", help="other data sets, for the table")
    parser.add_argument("--dry_run", action="store_true", help="show one request and the cost; ask nothing")
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
    """Story number `index`: everything drawn for it depends on the seed and its number alone."""

    index: int
    words: dict[str, str]  # kind -> word
    features: tuple[str, ...]
    text: str


def draw_requests(args: argparse.Namespace) -> list[Request]:
    words = [(row["word"], row["kind"]) for _, row in read_user_table(args.words, ("word", "kind"))]
    by_kind = {kind: [word for word, of_kind in words if of_kind == kind] for kind in KINDS}
    if empty := [kind for kind in KINDS if not by_kind[kind]]:
        raise ValueError(f"{args.words}: no word of the kind {empty[0]}; the kinds are {', '.join(KINDS)}")
    features = {row["feature"]: row["request"] for _, row in read_user_table(args.features, ("feature", "request"))}
    lines = args.template.read_text(encoding="utf-8").splitlines()
    requests = []
    for index in range(args.stories):
        rng = random.Random(f"{args.seed}/{index}")
        drawn = {kind: rng.choice(by_kind[kind]) for kind in KINDS}
        chosen = tuple(feature for feature in features if rng.random() < P_FEATURE)
        if args.plain:
            drawn, chosen = {}, ()
        values = drawn | dict(language=args.language, features="; ".join(features[name] for name in chosen))
        values["summary"] = SUMMARY * args.summaries
        kept = [line for line in lines if all(values.get(field) for field in fields_of(line, args.template))]
        requests.append(Request(index, drawn, chosen, "\n".join(line.format(**values) for line in kept)))
    return requests


def fields_of(line: str, template: Path) -> list[str]:
    """ValueError: a field that has no meaning here."""
    fields, known = re.findall(r"\{(.*?)\}", line), (*KINDS, "features", "language", "summary")
    if unknown := set(fields) - set(known):
        raise ValueError(f"{template}: {{{unknown.pop()}}} is no field; the fields are {', '.join(known)}")
    return fields


# ---- Replies ----


def read_story(reply: str, finish_reason: str, request: Request, args: argparse.Namespace) -> tuple[dict, str]:
    """A row of stories.jsonl; why it is rejected, or ""."""
    text, summary = re.sub(r"\n{2,}", "\n\n", reply.strip()), ""
    if args.summaries:
        text, _, summary = (part.strip() for part in text.rpartition(SUMMARY))
        text, summary = (text, summary) if text else (summary, "")
    sentences = split_sentences(text)
    row = dict(index=request.index, text=text, words=list(request.words.values()), features=list(request.features))
    row |= dict(summary=summary) if args.summaries else {}
    row |= dict(sentence=random.Random(text).choice(sentences).strip()) if sentences else {}
    missing = [word for word in request.words.values() if not uses_word(text, word)]
    if finish_reason == "length":
        return row, "cut off at --max_new_tokens"
    if max(len(text.split()), len(text) // 4) < FEWEST_WORDS:
        return row, "too short"
    if missing and args.language == "English":  # elsewhere words have forms that are not known here
        return row, f"without {', '.join(missing)}"
    if args.summaries and not summary:
        return row, "no summary"
    return row, ""


class DataSet:
    """stories.jsonl and rejected.jsonl of a data set, a line for each reply, appended as it comes."""

    def __init__(self, directory: Path):
        self.directory = directory
        self.stories = {row["index"]: row for row in read_json_lines(directory / "stories.jsonl")}
        self.rejected = list(read_json_lines(directory / "rejected.jsonl"))
        self.attempts = Counter(row["index"] for row in self.rejected)

    def check(self, requests: Sequence[Request]) -> None:
        """ValueError if stories were asked for otherwise than now: two data sets must not get mixed."""
        for request in requests:
            row = self.stories.get(request.index)
            if row and (row["words"], row["features"]) != (list(request.words.values()), list(request.features)):
                remedy = "choose another --name, or repeat the --seed, --words, --features and --plain of then"
                raise ValueError(f"{self.directory}: story {request.index} was asked for with other words; {remedy}")

    def missing(self, requests: Sequence[Request]) -> list[Request]:
        open_ = [request for request in requests if request.index not in self.stories]
        return [request for request in open_ if self.attempts[request.index] < ATTEMPTS]

    def add(self, row: dict, reason: str) -> None:
        if reason:
            row |= dict(rejected=reason)
            self.rejected.append(row)
            self.attempts[row["index"]] += 1
        else:
            self.stories[row["index"]] = row
        append_json(self.directory / ("rejected.jsonl" if reason else "stories.jsonl"), row)


# ---- Asking ----


def ask(data: DataSet, requests: Sequence[Request], args: argparse.Namespace) -> None:
    """Asks until every story is there or was rejected too often; StopAsking if the budget or the endpoint ends it."""
    from generation.api_client import ApiClient  # here, as `import openai` takes over a second

    bar = tqdm(initial=len(requests) - len(data.missing(requests)), total=len(requests), unit="story", disable=None)
    for _ in range(ATTEMPTS):
        failures, missing = [], data.missing(requests)
        for i, model in enumerate(args.model):
            client = ApiClient(model, **args.api)

            async def write(request: Request, client: ApiClient = client) -> bool:
                seed = random.Random(f"{args.seed}/{request.index}/{data.attempts[request.index]}").getrandbits(31)
                settings = dict(temperature=args.temperature, seed=seed)
                messages = [dict(role="user", content=request.text)]
                reply = await client.chat(messages, args.max_new_tokens, **settings)
                row, reason = read_story(reply.text, reply.finish_reason, request, args)
                data.add(row | dict(model=reply.model), reason)
                return not reason

            for _, result in client.map(write, missing[i :: len(args.model)]):
                failures += [result] * isinstance(result, Exception)
                bar.update(result is True)
                bar.set_postfix_str(f"{len(data.rejected)} rejected, ${client.spent:.4f}", refresh=False)
            if args.api["max_cost"]:  # the rest of it is for the next model, or the next attempt
                args.api["max_cost"] = max(args.api["max_cost"] - client.spent, 1e-9)
    bar.close()
    if failures:
        n = f"{len(failures):,} of {len(requests):,} requests failed; run it again to retry them"
        raise ValueError(f"{n}: {failures[0]}")


def show_request(requests: Sequence[Request], args: argparse.Namespace) -> None:
    from corpus.tokenizer import gpt2

    tokens_in, tokens_out = sum(len(gpt2().encode(request.text)) for request in requests), 250 * len(requests)
    cost = "give --price_in and --price_out to see the cost"
    if args.price_in is not None:
        cost = f"about ${(tokens_in * args.price_in + tokens_out * args.price_out) / 1e6:.4f}"
    print(requests[0].text if requests else "nothing to ask: every story is there")
    print(f"\n{len(requests):,} requests: about {tokens_in:,} tokens in, {tokens_out:,} out; {cost}")


# ---- The data set, compared with others ----


def show(args: argparse.Namespace) -> None:
    """Prints the table; writes diversity.md, .csv, .png and .svg next to the stories."""
    from common.figures import save_figure
    from novelty.diversity import describe, draw

    sets = {name: DataSet(args.data_dir / name) for name in (args.name, *args.compare)}
    for data in sets.values():
        if not data.stories:
            n = f"{len(data.rejected):,} in rejected.jsonl, which says why"
            raise ValueError(f"{data.directory}: no stories there, {n}; write some with --model")
    stories = {name: list(data.stories.values()) for name, data in sets.items()}
    rows, text = describe(stories)
    reasons = Counter(re.sub(" .*", "", row["rejected"]) for row in sets[args.name].rejected)
    text += "".join(f"\n\nrejected: {n:,} {reason} …" for reason, n in reasons.most_common())
    directory = sets[args.name].directory
    publish(directory / "diversity.md", text)
    write_table(directory / "diversity.csv", rows)
    save_figure(draw(stories), directory / "diversity.png")


def main() -> None:
    args = parse_arguments()
    directory = args.data_dir / args.name
    kept = f"every story so far is in {directory}; run the same command to continue"
    with one_line_errors("synthesize.py", kept, f"free space or fix that, then {kept}"):
        stopped = None
        if args.model:
            with lock(directory, ".synthesize.lock", "another synthesize.py is writing there; let it finish"):
                data, requests = DataSet(directory), draw_requests(args)
                data.check(requests)
                if args.dry_run:
                    return show_request(data.missing(requests), args)
                try:
                    ask(data, requests, args)
                except ValueError as error:  # the budget or the endpoint; the stories so far are shown first
                    stopped = error
        if not stopped or data.stories:
            show(args)
        if stopped:
            raise stopped
    file, headers = directory / "stories.jsonl", "" if args.plain else "--headers "
    print(f"wrote {file}; next: python prepare.py --input {file} {headers}--name {args.name}-tokens")


if __name__ == "__main__":
    main()
