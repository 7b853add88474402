"""
Write stories with a trained model, one to read or thousands to grade.
nanostories/generation/generation_loop.py draws the tokens.

$ python sample.py  # three stories from the newest run under out/
$ python sample.py --prompt "Once upon a time, there was a cat" --stream  # watch one being written
$ python sample.py --model out/demo --n 5 --temperature 0.8 --top_k 50 --seed 7
$ python sample.py --eval 50 --n 10  # continue validation stories: out/<run>/samples.jsonl
$ python sample.py --eval 100 --n 1 --split train --cut 0.4     # is the rest memorized?
$ python sample.py --prompts prompts/beginnings.txt --model hf:roneneldan/TinyStories-33M --beams 5
# OPENAI_API_KEY, OPENAI_BASE_URL
$ python sample.py --eval 50 --model api:gpt-3.5-turbo --data data/tinystories

A local model's completion depends only on the seed, the prompt's number and its own number: a
larger --n, an interruption or another --batch_size does not change it (on a GPU, rounding may:
docs/sampling.md).
"""

import argparse
import contextlib
import os
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
from nanostories.corpus.token_files import load_meta, load_stories
from nanostories.files import lock, set_aside
from nanostories.generation.prompts import (
    Prompt,
    Sampling,
    evaluation_prompts,
    read_prompts,
    unseen_word_prompts,
)
from nanostories.generation.samples_file import (
    SAMPLES,
    UNSEEN,
    line_of,
    read_rows,
    samples_directory,
    write_rows,
)


def parse_arguments() -> argparse.Namespace:
    parser = Parser(__doc__)
    parser.add_shared("model")
    parser.add_shared(
        "checkpoint",
        metavar="best|last|STEP|all",
        help="weights of a run; all: every step that it kept",
    )
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
    evaluation = parser.add_argument_group("prompts of --eval N")
    evaluation.add_argument(
        "--split", choices=("val", "train"), default="val", help="split of the stories to continue"
    )
    draw = "stories 2 to N + 1 (default), or N random ones, by --seed (default with --split train)"
    evaluation.add_argument("--draw", choices=("first", "random"), help=draw)
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
    parser.add_shared("data")
    parser.add_shared(
        "n", help="completions of each prompt (default: 3; 10 with --prompts and --eval); greedy: 1"
    )
    parser.add_argument(
        "--temperature",
        type=non_negative_float,
        nargs="+",
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
    parser.add_argument("--batch_size", type=positive, default=64, help="stories at a time")
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
    args.api = parser.require_api(args)
    return args


def complete_arguments(args: argparse.Namespace) -> None:
    """Fills in defaults that depend on other flags. ValueError if flags contradict each other."""
    args.to_file = bool(args.prompts or args.eval or args.out)
    if fields := {
        name: getattr(args, name) for name in instruct_headers.FIELDS if getattr(args, name)
    }:
        if args.prompt or args.prompts or args.eval:
            raise UserError(
                f"--{' --'.join(fields)} make a prompt: leave out --prompt, --prompts and --eval"
            )
        args.prompt = instruct_headers.format_header(fields)
    if (args.split, args.draw, args.ask) != ("val", None, []) and not args.eval:
        raise UserError("--split, --draw, --ask and --unseen_words go with --eval")
    if args.max_cost and not args.max_new_tokens:
        raise UserError("--max_cost needs --max_new_tokens, which limits the cost of a story")
    if args.beams > 1 and (args.temperature or args.top_k):
        raise UserError("--beams takes no --temperature and no --top_k")
    if str(args.model).startswith("api:") and (args.top_k or args.beams > 1 or args.stream):
        raise UserError("an api: model takes no --top_k, --beams or --stream")
    if args.dry_run and not str(args.model).startswith("api:"):
        raise UserError("--dry_run shows requests to an api: model; other models cost nothing")
    if args.stream and (args.to_file or args.n not in (None, 1) or args.beams > 1):
        raise UserError(
            "--stream prints one sampled story: leave out --prompts, --eval, --n, --out and --beams"
        )
    args.draw = args.draw or (
        "random" if args.split == "train" else "first"
    )  # neighbors in a file may be alike
    args.temperature = list(dict.fromkeys(args.temperature or [0.0 if args.beams > 1 else 1.0]))
    args.n = args.n or (10 if args.prompts or args.eval else 3)


def prompts_for(model: Model, args: argparse.Namespace) -> list[Prompt]:
    if args.split == "unseen":
        data = args.data or model.evaluation_corpus()
        prompts = unseen_word_prompts(data, args.eval, args.seed)
    elif args.eval:
        seed = args.seed if args.draw == "random" else None
        data = args.data or model.evaluation_corpus()
        prompts = evaluation_prompts(data, args.eval, args.cut, args.ask, args.split, seed)
    else:
        prompts = read_prompts(args.prompts) if args.prompts else [Prompt(args.prompt.rstrip())]
    if model.corpus and any(instruct_headers.read(prompt.text) for prompt in prompts):
        require_headers(model, args.features)
    return prompts


def require_headers(model: Model, features: str | None) -> None:
    """UserError if the model cannot follow a header with these features."""
    if "headers" not in load_meta(model.corpus):
        raise UserError(
            f"{model.name} was trained on {model.corpus}, without headers: it cannot follow these"
            " prompts"
        )
    if not features:
        return
    known = set()
    for story in load_stories(model.corpus, "val")[1]:
        headed = instruct_headers.read(story)
        if headed:
            known |= set(headed.instruction.get("features", ()))
    unknown = sorted({*instruct_headers.split_list(features)} - known)
    if unknown:
        raise UserError(
            f"no such feature: {', '.join(unknown)}; {model.corpus} has"
            f" {', '.join(sorted(known)) or 'none'}"
        )


def sample(model: Model, args: argparse.Namespace) -> None:
    name = model.name
    # first: a mistake is answered before torch is imported
    numbered = dict(enumerate(prompts_for(model, args)))
    from nanostories.generation.backends import load_backend, stream_story

    backend = load_backend(model, args.device, args.batch_size, **args.api)
    prompts = {i: prompt for i, prompt in numbered.items() if backend.fits(prompt.text)}
    if len(prompts) < len(numbered):
        left_out = (
            f"{len(numbered) - len(prompts)} of {len(numbered)} prompts do not fit in the context"
            f" of {name}"
        )
        if args.eval:
            left_out += " (a smaller --cut shortens them, a larger block_size makes room)"
        if not prompts:
            raise UserError(left_out)
        print(f"{left_out}, and are left out")
    max_new_tokens = args.max_new_tokens
    # Some have contexts of 100,000 tokens, which they would fill.
    if model.kind == "hf" and max_new_tokens is None:
        max_new_tokens = 1024
    for temperature in args.temperature:
        sampling = Sampling(temperature, args.top_k, args.beams, max_new_tokens, args.seed)
        n = 1 if temperature == 0 else args.n  # greedy text is the same every time
        if args.dry_run:
            print(backend.preview([prompt.text for prompt in prompts.values()], n, sampling))
            continue
        if args.stream:
            stream_story(backend, args.prompt, sampling)
        elif args.to_file:
            write_samples(model, backend, prompts, n, sampling, args)
        else:
            print_stories(backend, prompts[0].text, n, sampling)
            print(
                f"\n{n} by {name}, seed {args.seed}, temperature {temperature:g}.", file=sys.stderr
            )
    if model.kind == "api":
        if args.price_in is not None:
            print(f"this command spent ${backend.client.ledger.spent:.4f}", file=sys.stderr)
        backend.raise_failures()


def print_stories(backend, prompt: str, n: int, sampling: Sampling) -> None:
    completions = backend.complete([prompt] * n, [(0, j) for j in range(n)], sampling)
    bar = tqdm(completions, "writing", total=n, unit="story", disable=None, delay=1, leave=False)
    stories = {}
    try:
        for j, text, finished in bar:
            ending = "" if finished else " [cut here]"
            stories[j] = prompt + text + ending
    finally:  # stories of an API are paid for, whatever became of the others
        print("\n\n".join(stories[j] for j in sorted(stories)))


def write_samples(
    model: Model, backend, prompts: dict[int, Prompt], n: int, sampling: Sampling, args
) -> None:
    """Writes n completions of every prompt to samples.jsonl, one JSON object per line, in the order
    of prompts.

    Until all are there, each is appended to samples.jsonl.part as it ends, so that a kill loses
    none of them. Completions that an earlier call with the same settings left in either file are
    kept and not generated again.
    """
    name = model.name
    directory = args.out or model.directory
    if args.out and args.checkpoint == "all":  # each step apart
        directory = args.out / model.directory.name
    own_directory = samples_directory(directory, sampling.temperature, args.beams)
    path = own_directory / SAMPLES.get(args.split, UNSEEN)
    evaluation = dict(split=args.split, draw=args.draw, cut=args.cut) if args.eval else {}
    settings = dict(model=name) | evaluation | backend.identity() | asdict(sampling)
    part = path.with_name(path.name + ".part")
    with lock(path.parent, f".{path.name}.lock", busy=f"another sample.py is writing {path.name}"):
        if part.exists():  # a kill may have cut its last line
            os.truncate(part, part.read_bytes().rfind(b"\n") + 1)
        rows = keep_usable(path, settings, prompts) | keep_usable(part, settings, prompts)
        write_rows(part, rows.values())
        n_old, missing = (
            len(rows),
            [(i, j) for i in prompts for j in range(n) if (i, j) not in rows],
        )
        completions = backend.complete([prompts[i].text for i, _ in missing], missing, sampling)
        bar = tqdm(
            desc="writing",
            total=n_old + len(missing),
            initial=n_old,
            unit="story",
            disable=None,
            delay=1,
        )
        with part.open("a", encoding="utf-8") as file, bar, contextlib.closing(completions):
            for index, text, finished in completions:
                i, j = missing[index]
                row = settings | dict(prompt_index=i, sample_index=j) | prompts[i].row()
                rows[i, j] = row | dict(completion=text, finished=finished)
                file.write(line_of(rows[i, j]))
                file.flush()
                bar.update()
        write_rows(path, (rows[key] for key in sorted(rows)))
        part.unlink()
    print(
        f"wrote {path}: {len(rows) - n_old} completions by {name}"
        + f", and {n_old} that were there before" * bool(n_old)
    )
    following = dict(
        val=f"grade.py {directory}", train=f"rouge.py {directory}", unseen=f"instruct.py {path}"
    )
    data = f" --data {args.data}" if args.data and args.split != "unseen" else ""
    print(f"next: python {following[args.split]}{data}")


def keep_usable(path: Path, settings: dict, prompts: dict[int, Prompt]) -> dict:
    """The rows that were sampled in the same way. A file with any others is renamed:
    samples.jsonl-1."""
    usable, differing = {}, set()
    for (i, j), row in read_rows(path).items():
        wanted = (
            dict.fromkeys(("split", "draw", "cut"))
            | settings
            | (prompts[i].row() if i in prompts else {})
        )
        if row.get("weights") == wanted.get("weights", ""):
            row["model"] = wanted[
                "model"
            ]  # the same weights under another name, such as the best and the last
        others = {name for name, value in wanted.items() if row.get(name) != value}
        usable |= {} if others else {(i, j): row}
        differing |= others
    if differing:
        print(
            f"{path} has stories with another {', '.join(sorted(differing))}: kept as"
            f" {set_aside(path)}"
        )
    return usable


def main():
    args = parse_arguments()
    sys.stdout.reconfigure(errors="replace")  # some terminals cannot show every character
    again = "run the same command to continue"
    with one_line_errors(
        "sample.py", f"finished stories are kept; {again}", f"make room or fix that, then {again}"
    ):
        complete_arguments(args)
        for model in open_models(args.model or "", args.checkpoint):
            sample(model, args)


if __name__ == "__main__":
    main()
