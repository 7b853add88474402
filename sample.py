"""
Write stories with a trained model, one to read or thousands to grade.

$ python sample.py                                                # three stories from the newest run under out/
$ python sample.py --prompt "Once upon a time, there was a cat" --stream     # watch one being written
$ python sample.py --model out/demo --n 5 --temperature 0.8 --top_k 50 --seed 7
$ python sample.py --words "jump, frog, red" --features Dialogue             # for models trained on headers
$ python sample.py --eval 50 --n 10                     # continue validation stories: out/<run>/samples.jsonl
$ python sample.py --eval 50 --temperature 0 0.3 0.6 1  # once at each: out/<run>/temperature-0.3/samples.jsonl, …
$ python sample.py --eval 50 --split train --checkpoint last     # has it memorized its training stories?
$ python sample.py --eval 50 --n 1 --checkpoint all     # at every step that train.py --keep_checkpoints kept
$ python sample.py --prompts prompts/beginnings.txt --model hf:roneneldan/TinyStories-33M --beams 5
$ python sample.py --eval 50 --model api:gpt-3.5-turbo --data data/tinystories     # OPENAI_API_KEY, OPENAI_BASE_URL

A local model's completion depends only on the seed, the prompt's number and its own number: a larger --n, an
interruption or another --batch_size does not change it (on a GPU, rounding may: docs/sampling.md).
"""

import argparse
import sys
from pathlib import Path

from tqdm import tqdm

from common.cli import Parser, one_line_errors
from corpus import instruct_headers
from generation.prompts import Prompt, Sampling, evaluation_prompts, read_prompts


def parse_arguments() -> argparse.Namespace:
    parser = Parser(__doc__)
    parser.add_shared("model")
    every = "weights of a run: lowest validation loss, last, a step that train.py --keep_checkpoints kept, or all"
    parser.add_shared("checkpoint", metavar="best|last|STEP|all", help=every)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--prompt", default="", help="how the stories begin (default: left to the model)")
    what.add_argument("--prompts", type=Path, help="file of prompts: one per line, or .json or .jsonl")
    what.add_argument("--eval", type=int, metavar="N", help="continue stories 2 to N + 1 of --split")
    header = parser.add_argument_group("a header as the prompt, for models trained on headers")
    header.add_argument("--words", help='words that the story should use, such as "jump, frog, red"')
    header.add_argument("--features", help=f"any of {', '.join(instruct_headers.FEATURES)}")
    header.add_argument("--summary", help="what happens in the story")
    header.add_argument("--sentence", help="a sentence that the story should contain")
    ask = "header fields that --eval shows, such as words summary words,summary (three prompts per story; default: all)"
    header.add_argument("--ask", nargs="+", default=[], metavar="FIELDS", help=ask)
    split = "which stories --eval continues: held-out ones (samples.jsonl) or training stories (samples-train.jsonl)"
    parser.add_argument("--split", choices=("val", "train"), default="val", help=split)
    parser.add_argument("--cut", type=float, default=0.5, help="share of each story's words that --eval shows")
    parser.add_shared("data")
    parser.add_shared("n", help="completions of each prompt (default: 3; 10 with --prompts and --eval)")
    temperature = "1, the default, leaves the model's distribution as it is; 0 is greedy, one completion per prompt;"
    temperature += " several values write to one directory each, out/MODEL/temperature-0.3/ and so on"
    parser.add_argument("--temperature", type=float, nargs="+", metavar="T", help=temperature)
    parser.add_argument("--top_k", type=int, help="sample from the k most likely tokens")
    parser.add_argument("--top_p", type=float, help="sample from the most likely tokens with this total probability")
    parser.add_argument("--beams", type=int, default=1, help="beam search of this width, instead of sampling")
    parser.add_argument("--max_new_tokens", type=int, help="where to cut a story off (default: the end of the context)")
    parser.add_shared("seed")
    parser.add_argument("--batch_size", type=int, default=64, help="stories at a time; on a CPU, the text is the same")
    parser.add_shared("out", help="where to write (default with --prompts and --eval: out/MODEL, see --split)")
    parser.add_argument("--stream", action="store_true", help="print one story while it is being written")
    parser.add_api("for api:MODEL")
    return check_arguments(parser, parser.parse_args())


def check_arguments(parser: Parser, args: argparse.Namespace) -> argparse.Namespace:
    """Exits with a one-line error if a flag is wrong; fills in defaults that depend on other flags."""
    if fields := {name: getattr(args, name) for name in instruct_headers.FIELDS if getattr(args, name)}:
        if args.prompt or args.prompts or args.eval:
            parser.error(f"--{' --'.join(fields)} make a prompt: leave out --prompt, --prompts and --eval")
        try:
            args.prompt = instruct_headers.write(fields)
        except ValueError as error:
            parser.error(str(error))
    for name in ("eval", "n", "top_k", "beams", "max_new_tokens", "batch_size"):
        parser.require(args, name, getattr(args, name) is None or getattr(args, name) >= 1, "at least 1")
    if args.split == "train" and not args.eval:
        parser.error("--split goes with --eval, which continues stories of that split")
    parser.require(args, "cut", 0 < args.cut < 1, "between 0 and 1")
    in_range = all(0 <= temperature < float("inf") for temperature in args.temperature or ())
    parser.require(args, "temperature", in_range, "0 or more")
    parser.require(args, "top_p", args.top_p is None or 0 < args.top_p <= 1, "above 0 and at most 1")
    parser.require(args, "seed", args.seed >= 0, "0 or more")
    known = set(",".join(args.ask or instruct_headers.FIELDS).split(",")) <= {*instruct_headers.FIELDS}
    parser.require(args, "ask", known, ", ".join(instruct_headers.FIELDS))
    args.api = parser.require_api(args)
    if args.max_cost and not args.max_new_tokens:
        parser.error("--max_cost needs --max_new_tokens: without it, nothing limits the cost of a story")
    if args.beams > 1 and (args.temperature or args.top_k or args.top_p):
        parser.error("--beams searches for the most likely text: it takes no --temperature, --top_k or --top_p")
    args.temperature = list(dict.fromkeys(args.temperature or [0.0 if args.beams > 1 else 1.0]))
    if args.temperature == [0] and (args.n or 1) > 1:
        parser.error(f"--n {args.n} with --beams or temperature 0 would write the same text {args.n} times")
    if args.checkpoint == "all" and (args.out or args.stream):
        parser.error("--checkpoint all writes next to the weights of each step: leave out --out and --stream")
    if args.out and args.out.suffix and len(args.temperature) > 1:
        parser.error("--out must be a directory: each of several temperatures gets its own directory in it")
    to_read = args.eval is None and args.prompts is None and args.out is None
    if args.stream and (args.beams > 1 or not to_read or args.n or len(args.temperature) > 1):
        parser.error("--stream prints one story for one --prompt, while it is being written")
    if (args.model or "").startswith("api:") and (args.top_k or args.beams > 1 or args.stream):
        parser.error("an api: model takes no --top_k, --beams or --stream")
    args.n = args.n or (1 if args.temperature == [0] else 3 if to_read else 10)
    return args


def writers(args: argparse.Namespace) -> list[str]:
    """The models to sample from: one, or several with --checkpoint all."""
    from checkpoints.checkpoint import at_checkpoints, newest_run  # here, so that --help need not wait for torch

    name = args.model or str(newest_run())
    return [name] if name.startswith(("hf:", "api:")) else at_checkpoints(str(Path(name)), args.checkpoint)


def write(args: argparse.Namespace, name: str) -> None:
    from checkpoints.checkpoint import corpus_of, directory_of

    if name.startswith("api:"):
        from generation.api_backend import ApiBackend  # needs no torch

        backend = ApiBackend(name.removeprefix("api:"), **args.api)
    else:
        from generation.backends import load_backend, stream_story

        backend = load_backend(name, args.batch_size)
    if args.prompts:
        prompts = read_prompts(args.prompts)
    elif args.eval:
        prompts = evaluation_prompts(args.data or corpus_of(name), args.eval, args.cut, args.ask, args.split)
    else:
        prompts = [Prompt(args.prompt.rstrip())]
    fitting = {i: prompt for i, prompt in enumerate(prompts) if backend.fits(prompt.text)}
    if len(fitting) < len(prompts):
        what = f"{len(prompts) - len(fitting)} of {len(prompts)} prompts do not fit in the context of {name}"
        if not args.eval or not fitting:
            raise ValueError(f"{what}, {backend.model.config.block_size} tokens: shorten them")
        print(f"{what} and are left out")
    for temperature in args.temperature:
        sampling = Sampling(temperature, args.top_k, args.top_p, args.beams, args.max_new_tokens, args.seed)
        n = 1 if temperature == 0 else args.n  # greedy text is the same every time
        if args.stream:
            stream_story(backend, args.prompt, sampling)
        elif args.prompts or args.eval or args.out:
            write_file(path_of(args, directory_of(name), temperature), name, backend, fitting, n, sampling, args)
        else:
            print(f"temperature {temperature:g}:\n\n" if len(args.temperature) > 1 else "", end="")
            print_stories(backend, args.prompt, n, sampling)
            print(f"\n{n} by {name}, seed {args.seed}, temperature {temperature:g}.", file=sys.stderr)
    if name.startswith("api:"):
        print(f"this call: {backend.client.budget}", file=sys.stderr)


def path_of(args: argparse.Namespace, directory: Path, temperature: float) -> Path:
    """The file to write. Each of several temperatures has its own directory, so that they never mix."""
    from generation.samples_file import SAMPLES, at_temperature

    if len(args.temperature) > 1:
        return at_temperature(args.out or directory, temperature) / SAMPLES[args.split]
    return args.out if args.out and not args.out.is_dir() else (args.out or directory) / SAMPLES[args.split]


def write_file(path: Path, name: str, backend, prompts: dict[int, Prompt], n: int, sampling: Sampling, args) -> None:
    from generation.samples_file import SAMPLES, write_samples

    is_cut = args.eval and not any(prompt.instruction for prompt in prompts.values())
    metadata = dict(model=name, cut=args.cut if is_cut else None) | (dict(split=args.split) if args.eval else {})
    write_samples(path, backend, metadata, prompts, n, sampling)
    is_last = sampling.temperature == args.temperature[-1]
    below = path.parent if len(args.temperature) == 1 else path.parent.parent
    follow_ups = dict(val=f"grade.py {below} --no_judge", train=f"rouge.py {below}")
    follow_up = f"; next: python {follow_ups[args.split]}" if is_last and path.name == SAMPLES[args.split] else ""
    print(f"wrote {path}: {len(prompts)} prompts x {n} completions by {name}{follow_up}")


def print_stories(backend, prompt: str, n: int, sampling) -> None:
    completions = backend.complete([prompt] * n, [(0, j) for j in range(n)], sampling)
    bar = tqdm(completions, "writing", total=n, unit="story", disable=None, delay=1, leave=False)
    stories = [prompt.rstrip() + text + ("" if finished else " [cut here]") for _, text, finished in sorted(bar)]
    print("\n\n".join(stories))


def main():
    args = parse_arguments()
    sys.stdout.reconfigure(errors="replace")  # some terminals cannot show every character
    again = "run the same command to continue"
    with one_line_errors("sample.py", f"what was written is kept; {again}", f"make room or fix that, then {again}"):
        for name in writers(args):
            write(args, name)


if __name__ == "__main__":
    main()
