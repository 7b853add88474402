"""
Write stories with a trained model, one to read or thousands to grade.
nanostories/generation/generation_loop.py draws the tokens.

$ python sample.py  # three stories from the newest run under out/
$ python sample.py --prompt "Once upon a time, there was a cat" --stream  # watch one being written
$ python sample.py --model out/demo --n 5 --temperature 0.8 --top_k 50 --seed 7
$ python sample.py --eval 50 --n 10  # continue validation stories: out/<run>/samples/eval.jsonl
$ python sample.py --eval 100 --n 1 --split train               # is the rest memorized?
$ python sample.py --prompts prompts/beginnings.txt --model hf:roneneldan/TinyStories-33M --beams 5
$ python sample.py --words "jump, frog, red" --best_of 8  # of eight, the one that has the words
# OPENAI_API_KEY, OPENAI_BASE_URL
$ python sample.py --eval 50 --model api:gpt-3.5-turbo --data data/tinystories

A local model's completion depends only on the seed, the prompt's number and its own number: a
larger --n, an interruption or another --batch_size does not change it (on a GPU, rounding may:
docs/sampling.md).
"""

import argparse
import shlex
import sys
from dataclasses import asdict
from pathlib import Path

from tqdm import tqdm

from nanostories.checkpoints.models import Model, open_models
from nanostories.cli import (
    Parser,
    UserError,
    existing_file,
    non_negative_float,
    one_line_errors,
    positive,
    share,
)
from nanostories.corpus import instruct_headers
from nanostories.corpus.token_files import load_meta
from nanostories.files import lock
from nanostories.generation.best_of import complete
from nanostories.generation.prompts import (
    Prompt,
    Sampling,
    evaluation_prompts,
    read_prompts,
    unseen_word_prompts,
)
from nanostories.generation.samples_file import (
    EVAL,
    PROMPT,
    SET_NAMES,
    Samples,
    numbered,
    samples_directory,
    set_file,
)

# Some published models have contexts of 100,000 tokens, which they would fill.
HF_MAX_NEW_TOKENS = 1024
# A flag, and those that it does not go with
CONFLICTS = {
    "beams": ("temperature", "top_k", "stream", "best_of"),
    "stream": ("prompts", "eval", "n", "out", "best_of"),
}
# A header makes a prompt by itself.
CONFLICTS |= dict.fromkeys(instruct_headers.FIELDS, ("prompt", "prompts", "eval"))


def parse_arguments() -> argparse.Namespace:
    parser = Parser(__doc__)
    parser.add_shared("model")
    parser.add_shared(
        "checkpoint",
        metavar="best|last|STEP|all",
        help="weights of a run; all: every step that it kept",
    )
    add_prompt_arguments(parser)
    parser.add_shared("data")
    n_help = "completions of each prompt (default: 3; 10 with --prompts and --eval); greedy: 1"
    parser.add_argument("--n", type=positive, help=n_help)
    parser.add_argument(
        "--temperature",
        type=non_negative_float,
        nargs="+",
        default=[],
        metavar="T",
        help="0: greedy (default: 1)",
    )
    parser.add_argument("--top_k", type=positive, help="sample from the k most likely tokens")
    parser.add_argument(
        "--beams", type=positive, default=1, help="beam search of this width, instead of sampling"
    )
    parser.add_argument(
        "--max_new_tokens",
        type=positive,
        help="longest completion (default: to the context's end; hf: models at most 1,024)",
    )
    parser.add_shared("seed")
    parser.add_argument(
        "--batch_size",
        type=positive,
        default=64,
        help="stories at a time (other architectures of the hub: at most 4)",
    )
    parser.add_argument(
        "--device", default="auto", help="cpu, cuda, cuda:1 (…) or mps (default: cuda or cpu)"
    )
    parser.add_shared(
        "out", help="directory to write to (default with --prompts and --eval: out/MODEL)"
    )
    parser.add_argument(
        "--stream", action="store_true", help="print one story while it is being written"
    )
    parser.add_argument(
        "--dry_run",
        action="store_true",
        help="with api:MODEL: show one request, how many there are and their cost; send nothing",
    )
    parser.add_api("for api:MODEL")
    args = parser.parse_args()
    check_arguments(args, parser)
    args.api = parser.require_api(args)
    return args


def add_prompt_arguments(parser: Parser) -> None:
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--prompt", default="", help="how the stories begin (default: left to the model)"
    )
    source.add_argument("--prompts", type=existing_file, help="file of prompts, one per line")
    source.add_argument("--eval", type=positive, metavar="N", help="continue N stories of --split")
    header = parser.add_argument_group("a header as the prompt, for models trained on headers")
    header.add_argument(
        "--words", help='words that the story should use, such as "jump, frog, red"'
    )
    header.add_argument(
        "--features", help="features of the training stories, such as Dialogue, BadEnding"
    )
    header.add_argument("--summary", help="what happens in the story")
    header.add_argument("--sentence", help="a sentence that the story should contain")
    best_of = (
        "keep the one of N stories that has the most words of its header (then: features and"
        " sentence, as far as rules can tell; then the likeliest per token)"
    )
    header.add_argument("--best_of", type=positive, default=1, metavar="N", help=best_of)
    evaluation = parser.add_argument_group("prompts of --eval N")
    split = "split of the stories: val (stories 2 to N + 1), or train (N random ones, by --seed)"
    evaluation.add_argument("--split", choices=("val", "train"), default="val", help=split)
    evaluation.add_argument(
        "--cut", type=share, default=0.5, help="share of each story's words that is shown"
    )
    ask = (
        "header fields that are shown, such as words summary words,summary: three prompts per story"
        " (default: all)"
    )
    evaluation.add_argument("--ask", nargs="+", default=[], metavar="FIELDS", help=ask)
    unseen = "instead, headers of words that the training stories lack (prompts/unseen_words.txt)"
    evaluation.add_argument(
        "--unseen_words", action="store_const", const="unseen", dest="split", help=unseen
    )


def check_arguments(args: argparse.Namespace, parser: Parser) -> None:
    """Ends with a message if flags contradict each other."""
    given = {name for name, value in vars(args).items() if value != parser.get_default(name)}
    for flag, others in CONFLICTS.items():
        wrong = [f"--{name}" for name in others if name in given]
        if flag in given and wrong:
            parser.error(f"--{flag} cannot be combined with {', '.join(wrong)}")
    is_api = str(args.model).startswith("api:")
    is_cost_limited = args.max_cost or (args.dry_run and args.price_in)
    asked = set(",".join(args.ask).split(","))
    contradictions = [  # (true if it is one, message)
        (
            is_api and given & {"top_k", "beams", "stream", "best_of"},
            "an api: model takes no --top_k, --beams, --stream or --best_of",
        ),
        (
            is_api and not given & {"prompt", "prompts", "eval", *instruct_headers.FIELDS},
            "an api: model needs --prompt, --prompts, --eval or a header",
        ),
        (
            args.dry_run and not is_api,
            "--dry_run shows the requests to an api: model; other models cost nothing",
        ),
        (
            is_cost_limited and not args.max_new_tokens,
            "--max_cost, or the cost of a --dry_run, needs --max_new_tokens: without it a story may"
            " cost any amount",
        ),
        (
            not args.eval and given & {"ask", "cut", "split"},
            "--split, --cut, --ask and --unseen_words need --eval N, the number of stories",
        ),
        (
            args.ask and not asked <= instruct_headers.FIELDS.keys(),
            f"--ask takes {', '.join(instruct_headers.FIELDS)}, or several joined by commas; not"
            f" {' '.join(args.ask)}",
        ),
        (args.ask and args.split == "unseen", "--unseen_words cannot be combined with --ask"),
        (
            args.best_of > 1 and 0 in args.temperature,
            "--best_of cannot be combined with --temperature 0",
        ),
        (
            args.prompts and args.prompts.stem in SET_NAMES,
            f"--prompts {args.prompts}: another set has this name: rename the file",
        ),
    ]
    for is_wrong, message in contradictions:
        if is_wrong:
            parser.error(message)


def set_name(args: argparse.Namespace) -> str | None:
    """None: the stories are printed."""
    if args.prompts:
        return args.prompts.stem
    if args.eval:
        return EVAL if args.split == "val" else args.split
    return PROMPT if args.out else None


def prompts_for(model: Model, args: argparse.Namespace) -> list[Prompt]:
    flags = vars(args)
    header = {name: flags[name] for name in instruct_headers.FIELDS if flags[name]}
    if args.eval:
        data = args.data or model.evaluation_corpus()
    if args.split == "unseen":
        prompts = unseen_word_prompts(data, args.eval, args.seed)
    elif args.eval:
        prompts = evaluation_prompts(data, args.eval, args.cut, args.ask, args.split, args.seed)
    elif args.prompts:
        prompts = read_prompts(args.prompts)
    elif header:
        prompts = [Prompt(instruct_headers.format_header(header))]
    else:
        prompts = [Prompt(args.prompt.rstrip())]
    has_headers = any(instruct_headers.read(prompt.text) for prompt in prompts)
    if model.corpus and has_headers and "headers" not in load_meta(model.corpus):
        raise UserError(
            f"{model.name} was trained on {model.corpus}, without headers: it cannot follow these"
            " prompts"
        )
    if args.best_of > 1 and not all("instruction" in prompt.row() for prompt in prompts):
        raise UserError("--best_of needs headers: give it --words, or --eval of stories under them")
    return prompts


def prompts_that_fit(backend, prompts: list[Prompt]) -> dict[int, Prompt]:
    """By their numbers. Those that fill the model's context are left out."""
    fitting = {i: prompt for i, prompt in enumerate(prompts) if backend.fits(prompt.text)}
    left_out = f"{len(prompts) - len(fitting)} of {len(prompts)} prompts do not fit in the context"
    if not fitting:
        raise UserError(f"{left_out}: shorten them (with --eval: a smaller --cut)")
    if len(fitting) < len(prompts):
        print(f"{left_out}, and are left out")
    return fitting


def sample(model: Model, args: argparse.Namespace) -> None:
    # first: a mistake is answered before torch is imported
    prompts = prompts_for(model, args)
    from nanostories.generation.backends import load_backend, stream_story

    backend = load_backend(model, args.device, args.batch_size, **args.api)
    prompts = prompts_that_fit(backend, prompts)
    max_new_tokens = args.max_new_tokens
    if model.kind == "hf" and max_new_tokens is None:
        max_new_tokens = HF_MAX_NEW_TOKENS
    try:
        for temperature in args.temperature or [0.0 if args.beams > 1 else 1.0]:
            sampling = Sampling(
                temperature, args.top_k, args.beams, max_new_tokens, args.seed, args.best_of
            )
            n = args.n or (10 if args.prompts or args.eval else 3)
            if temperature == 0:
                n = 1  # greedy text is the same every time
            wanted = numbered(prompts, n)
            samples = None
            if set_name(args):
                samples = set_to_write(model, backend, prompts, sampling, args)
            if args.dry_run:
                if samples:
                    samples.read()
                    wanted = samples.missing(n)
                requests = [backend.request(*item, sampling) for item in wanted.items()]
                print(backend.client.preview(requests))
            elif samples:
                write_stories(samples, backend, n, sampling)
                print(f"next: python {next_command(samples.path, args)}")
            elif args.stream:
                stream_story(backend, prompts[0].text, sampling)
            else:
                print_stories(model, backend, wanted, sampling)
    finally:
        if model.kind == "api" and args.price_in is not None and not args.dry_run:
            print(f"this command spent ${backend.client.ledger.spent:.4f}", file=sys.stderr)
    if model.kind == "api":
        backend.raise_failures()


def set_to_write(
    model: Model, backend, prompts: dict[int, Prompt], sampling: Sampling, args: argparse.Namespace
) -> Samples:
    settings = {}
    if args.eval:
        settings = dict(
            split=args.split,
            draw="random" if args.split == "train" else "first",
            cut=args.cut,
            ask=" ".join(args.ask) or None,
        )
    settings |= backend.identity() | asdict(sampling)
    directory = args.out or model.directory
    if args.out and args.checkpoint == "all":  # each step apart
        directory = args.out / model.directory.name
    path = set_file(samples_directory(directory, sampling), set_name(args))
    return Samples(path, model.name, settings, prompts)


def print_stories(model: Model, backend, wanted: dict, sampling: Sampling) -> None:
    for key, text, finished, facts in complete(backend, wanted, sampling):
        ending = "" if finished else " [cut here]"
        if "all_words" in facts:
            ending += f"\n[{facts['all_words']} of {sampling.best_of} draws had all the words]"
        print(f"{wanted[key]}{text}{ending}\n", flush=True)
    settings = f"seed {sampling.seed}, temperature {sampling.temperature:g}"
    print(f"{len(wanted)} by {model.name}, {settings}.", file=sys.stderr)


def write_stories(samples: Samples, backend, n: int, sampling: Sampling) -> None:
    """Writes n completions of every prompt to samples/NAME.jsonl; those that are there are not
    written again."""
    path = samples.path
    busy = f"another sample.py is writing {path.name}"
    with lock(path.parent, f".{path.name}.lock", busy):
        samples.read()
        missing = samples.missing(n)
        completions = complete(backend, missing, sampling)
        bar = tqdm(completions, "writing", len(missing), unit="story", disable=None, delay=1)
        for completion in bar:
            samples.add(*completion)
        samples.finish(n)
    n_failed = len(samples.missing(n))
    n_new = len(missing) - n_failed
    n_prompts = len({i for i, _ in samples.in_set})
    n_each = len(samples.in_set) // max(n_prompts, 1)
    print(f"{path}: {n_prompts} prompts x {n_each} completions by {samples.model}; {n_new} are new")
    if n_failed:
        print(f"incomplete: {n_failed} failed; prompts that have fewer than {n} are left out")
    counts = [row["all_words"] for row in samples.rows.values() if "all_words" in row]
    if counts:
        print(f"{sum(counts)} of {sampling.best_of * len(counts)} draws had all the words")


def next_command(path: Path, args: argparse.Namespace) -> str:
    """What reads the set at this path."""
    data = f" --data {shlex.quote(str(args.data))}" if args.data else ""
    place = shlex.quote(str(path.parent.parent))
    commands = dict(train=f"rouge.py {place}{data}", unseen=f"instruct.py {place}")
    grade = f"grade.py {place} --set {shlex.quote(path.stem)}{data}"
    return commands.get(path.stem, grade)


def main():
    args = parse_arguments()
    again = "run the same command to continue"
    kept = "nothing was written"
    if set_name(args):
        kept = f"finished stories are kept; {again}"
    with one_line_errors("sample.py", kept, f"make room or fix that, then {again}"):
        for model in open_models(args.model or "", args.checkpoint):
            sample(model, args)


if __name__ == "__main__":
    main()
