"""
Write stories with a trained model, one to read or thousands to grade.

$ python sample.py                                                # three stories from the newest run under out/
$ python sample.py --prompt "Once upon a time, there was a cat" --stream     # watch one being written
$ python sample.py --model out/demo --n 5 --temperature 0.8 --top_k 50 --seed 7
$ python sample.py --words "jump, frog, red" --features Dialogue             # for models trained on headers
$ python sample.py --eval 50 --n 10                     # validation stories, continued: out/<run>/samples.jsonl
$ python sample.py --prompts prompts/beginnings.txt --model hf:roneneldan/TinyStories-33M --beams 5
$ python sample.py --eval 50 --model api:gpt-3.5-turbo --data data/tinystories     # OPENAI_API_KEY, OPENAI_BASE_URL

Every completion of a local model depends on its seed, its prompt's number and its own number alone: another batch size,
more of them or an interruption change none of those that were there before.
"""

import argparse
import codecs
import concurrent.futures
import itertools
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import openai
import torch
from tqdm import tqdm

import headers
import hub
from compressor import MODELS
from files import read_json, write_whole
from generate import beam_search, generate
from model import GPTNeo, from_checkpoint, load_checkpoint
from prepare import DataError
from prompts import Prompt, evaluation_prompts, one_line, read_prompts
from stories import FEATURES
from tokenizer import END_OF_TEXT, Tokenizer

# ---- Who writes ----


@dataclass(frozen=True)
class Sampling:
    """How completions are drawn."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    beams: int = 1
    max_new_tokens: int | None = None
    seed: int = 0


Key = tuple[int, int]  # number of the prompt, number of the completion
Continuation = tuple[int, str, bool]  # which of the prompts, its text, whether it ended by itself


class LocalStudent:
    """A model of ours, or a published one, on this machine."""

    def __init__(self, model: GPTNeo, tokenizer: Tokenizer, prefix: Sequence[int], batch_size: int = 64):
        self.model, self.tokenizer, self.prefix, self.batch_size = model, tokenizer, list(prefix), batch_size

    def identity(self) -> dict:
        """Tells these weights from others of the same name."""
        return dict(weights=f"{sum(p.double().abs().sum().item() for p in self.model.parameters()):.12e}")

    def encode(self, prompt: str) -> list[int]:
        """Trailing blanks go: they would split a word off. A model must be given something to begin with."""
        return self.prefix + self.tokenizer.encode(prompt.rstrip()) or [self.tokenizer.end_of_text]

    def fits(self, prompt: str) -> bool:
        return len(self.encode(prompt)) < self.model.config.block_size

    def complete(self, prompts: Sequence[str], keys: Sequence[Key], sampling: Sampling) -> Iterator[Continuation]:
        """As they come."""
        ids, stop = [self.encode(prompt) for prompt in prompts], self.tokenizer.end_of_text
        settings = asdict(sampling)
        if settings.pop("beams") > 1:
            completions = beam_search(self.model, ids, sampling.beams, sampling.max_new_tokens, stop)
        else:
            completions = generate(self.model, ids, **settings, stop=stop, batch_size=self.batch_size, keys=keys)
        for completion in completions:
            yield completion.index, self.tokenizer.decode(completion.tokens), completion.finished


class EndpointError(ValueError):
    """What an endpoint would not do, in one line."""


class ApiStudent:
    """A model behind any OpenAI-compatible endpoint, asked to continue a story: the GPT-3.5 baseline."""

    INSTRUCTION = (
        "You are given the beginning of a story for small children, which breaks off, perhaps in the middle of a "
        "sentence. Continue it from exactly there to its end, in the same simple words. Answer with the continuation "
        "alone: do not repeat the beginning, and add no title and no remark."
    )
    UNDER_A_HEADER = (
        "Write a story for small children, in words that a child of three knows. You are told what it must have: "
        "words, features, a summary that it follows, a sentence that stands in it. Answer with the story alone."
    )
    REQUESTS_AT_ONCE = 8

    def __init__(self, name: str):
        self.name = name
        key = os.environ.get("OPENAI_API_KEY")
        if not key and not os.environ.get("OPENAI_BASE_URL"):
            raise ValueError(f"api:{name} needs OPENAI_API_KEY, or OPENAI_BASE_URL for a server of your own")
        self.client = openai.OpenAI(api_key=key or "none", max_retries=6, timeout=120)

    def identity(self) -> dict:
        return dict(base_url=str(self.client.base_url))

    def fits(self, prompt: str) -> bool:
        return True

    def complete(self, prompts: Sequence[str], keys: Sequence[Key], sampling: Sampling) -> Iterator[Continuation]:
        """As they come. When one fails, or at Ctrl-C, nothing more is asked, but what is on its way is paid for."""
        failure = None
        pool = concurrent.futures.ThreadPoolExecutor(self.REQUESTS_AT_ONCE)
        requests = [pool.submit(self.ask, *request, sampling) for request in zip(itertools.count(), prompts, keys)]
        waiting = set(requests)
        while waiting:
            try:
                done, waiting = concurrent.futures.wait(waiting, return_when=concurrent.futures.FIRST_COMPLETED)
            except KeyboardInterrupt as interrupt:
                if failure:
                    raise
                failure, done = interrupt, set()
                print("stopping when the answers on their way are here", file=sys.stderr)
            for request in done:
                if not request.exception():
                    yield request.result()
                elif not failure:
                    failure = request.exception()
            if failure:
                pool.shutdown(wait=False, cancel_futures=True)
                waiting = {request for request in waiting if not request.cancelled()}
        if failure:
            raise failure

    def ask(self, i: int, prompt: str, key: Key, sampling: Sampling) -> Continuation:
        told = self.UNDER_A_HEADER if headers.read(prompt) else self.INSTRUCTION
        limits = {"max_tokens": sampling.max_new_tokens, "top_p": sampling.top_p}
        try:
            answer = self.client.chat.completions.create(
                model=self.name,
                messages=[{"role": "system", "content": told}, {"role": "user", "content": prompt}],
                temperature=sampling.temperature,
                seed=int(np.random.SeedSequence([sampling.seed, *key]).generate_state(1)[0] >> 1),
                **{name: value for name, value in limits.items() if value is not None},
            )
        except (openai.OpenAIError, json.JSONDecodeError) as error:
            raise EndpointError(f"api:{self.name} at {self.client.base_url}: {one_line(error)}") from None
        if not getattr(answer, "choices", None):
            raise EndpointError(
                f"api:{self.name} at {self.client.base_url}: {one_line(answer)!r} is no completion; is that the URL of "
                "an OpenAI-compatible endpoint? Most end in /v1"
            )
        text = answer.choices[0].message.content or ""
        if prompt and text[:1].isalnum():  # chat models drop the blank that they would have begun with
            text = " " + text
        return i, text, answer.choices[0].finish_reason == "stop"


def newest_run(out_dir: str | Path = "out") -> Path:
    checkpoints = sorted(Path(out_dir).glob("*/ckpt.pt"), key=lambda path: path.stat().st_mtime)
    if not checkpoints:
        raise ValueError(f"no run under {out_dir}/ yet: train one with `python train.py`, or name one with --model")
    return checkpoints[-1].parent


def load_run(run: str | Path) -> tuple[GPTNeo, Tokenizer]:
    checkpoint = load_checkpoint(run)
    model_class = MODELS[checkpoint.get("model_class", "gptneo")]
    return from_checkpoint(checkpoint, model_class), Tokenizer(checkpoint["gpt2_ids"])


def load_student(name: str, batch_size: int = 64) -> LocalStudent | ApiStudent:
    """Whoever --model names: a run of ours, hf:ID-or-directory, or api:MODEL. ValueError says what is wrong with it."""
    kind, _, rest = name.partition(":")
    if kind == "api":
        return ApiStudent(rest)
    if kind == "hf":
        directory = hub.model_directory(rest)
        model, tokenizer = GPTNeo.from_hf(directory), Tokenizer.from_hf(directory)
        if tokenizer.vocab_size != model.config.vocab_size:
            sizes = f"the model has {model.config.vocab_size} ids, its tokenizer {tokenizer.vocab_size}"
            raise ValueError(f"{directory}: {sizes}; they do not belong together")
        # In our training every story follows an end of text, so a prompt does too; others are prompted without.
        follows_end_of_text = read_json(directory / "config.json").get("prompt_prefix") == END_OF_TEXT
    else:
        (model, tokenizer), follows_end_of_text = load_run(name), True
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return LocalStudent(model.to(device), tokenizer, [tokenizer.end_of_text] * follows_end_of_text, batch_size)


# ---- What is kept ----


def write_samples(path: Path, student, facts: dict, prompts: dict[int, Prompt], n: int, sampling: Sampling) -> None:
    """Writes `path`: a JSON object for each of n completions of every prompt (by its number), in their order.

    While it goes on they gather in <path>.part. What a call with the same settings has left there or in `path`, whether
    interrupted or with a smaller n, is not asked for again; what is of other settings is kept under another name.
    """
    part = path.with_name(path.name + ".part")
    facts = facts | student.identity() | asdict(sampling)
    wanted = {
        (i, j): facts | dict(prompt_index=i, sample_index=j) | prompt.row()
        for i, prompt in prompts.items()
        for j in range(n)
    }
    done = {}
    for file in (path, part):
        rows = read_rows(file)
        of_use = {key: row for key, row in rows.items() if row.items() >= wanted.get(key, {"": 0}).items()}
        if len(of_use) < len(rows):
            put_aside(file)
        done |= of_use
    missing = [key for key in wanted if key not in done]
    write_rows(part, done.values())
    bar = tqdm(desc="writing", total=len(wanted), initial=len(done), unit="story", disable=None, delay=1)
    with part.open("a", encoding="utf-8") as file, bar:
        for i, text, finished in student.complete([prompts[i].text for i, _ in missing], missing, sampling):
            row = wanted[missing[i]] | dict(completion=text, finished=finished)
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            file.flush()
            done[missing[i]] = row
            bar.update()
    write_rows(path, (done[key] for key in wanted))
    part.unlink()


def read_rows(path: Path) -> dict[Key, dict]:
    """What an earlier call had written; its last line may be cut."""
    rows = {}
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n") if path.exists() else []:
        try:
            row = json.loads(line)
            rows[row["prompt_index"], row["sample_index"]] = row
        except (ValueError, TypeError, KeyError):
            continue
    return rows


def write_rows(path: Path, rows) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())


def put_aside(path: Path) -> None:
    """Renames what stands at `path`, so that nothing is lost by writing there: samples.jsonl -> samples-1.jsonl."""
    stem, dot, endings = path.name.partition(".")
    names = (path.with_name(f"{stem}-{i}{dot}{endings}") for i in itertools.count(1))
    free = next(name for name in names if not name.exists())
    path.rename(free)
    print(f"{path} was of other settings or weights: kept as {free}")


# ---- The command line ----


def stream_story(student: LocalStudent, prompt: str, sampling: Sampling) -> None:
    """Prints the prompt and one continuation while it is written."""
    tokenizer, settings = student.tokenizer, asdict(sampling)
    del settings["beams"]
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")  # a character may take several tokens

    def show(_, token):
        print(decoder.decode(tokenizer.decode_bytes([token])), end="", flush=True)

    print(prompt.rstrip(), end="", flush=True)
    settings |= dict(stop=tokenizer.end_of_text, batch_size=1, keys=[(0, 0)], on_token=show)
    (completion,) = generate(student.model, [student.encode(prompt)], **settings)
    print(decoder.decode(b"", final=True) + ("" if completion.finished else " [cut here]"))


def print_stories(student, prompt: str, n: int, sampling: Sampling) -> None:
    completions = student.complete([prompt] * n, [(0, j) for j in range(n)], sampling)
    bar = tqdm(completions, "writing", total=n, unit="story", disable=None, delay=1, leave=False)
    stories = [prompt.rstrip() + text + ("" if finished else " [cut here]") for _, text, finished in sorted(bar)]
    print("\n\n".join(stories))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model", help="a run (or checkpoint), hf:ID-or-directory, api:MODEL (default: newest in out/)"
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--prompt", default="", help="how the stories begin (default: the model begins)")
    what.add_argument("--prompts", type=Path, help="file of prompts: one a line, or .json, .jsonl")
    what.add_argument("--eval", type=int, metavar="N", help="continue validation stories 2 to N + 1")
    told = parser.add_argument_group("a header as the prompt, for models that were trained under headers")
    told.add_argument("--words", help='words of the story, such as "jump, frog, red"')
    told.add_argument("--features", help=f"some of {', '.join(FEATURES)}")
    told.add_argument("--summary", help="what happens in it")
    told.add_argument("--sentence", help="a sentence that stands in it")
    ask = "what --eval shows of headers, such as: words summary words,summary (three prompts a story; default: all)"
    told.add_argument("--ask", nargs="+", default=[], metavar="FIELDS", help=ask)
    parser.add_argument("--cut", type=float, default=0.5, help="share of its words that --eval shows of a story")
    parser.add_argument("--data", type=Path, help="corpus of --eval (default: that of the run)")
    parser.add_argument("--n", type=int, help="completions of each prompt (default: 3; 10 with --prompts and --eval)")
    parser.add_argument("--temperature", type=float, help="1, the default, is as the model has it; 0 is greedy")
    parser.add_argument("--top_k", type=int, help="draw from the k likeliest tokens")
    parser.add_argument("--top_p", type=float, help="draw from the likeliest tokens that hold this share together")
    parser.add_argument("--beams", type=int, default=1, help="search with so many beams instead of drawing")
    parser.add_argument("--max_new_tokens", type=int, help="cut a story here (default: the context is the limit)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch_size", type=int, default=64, help="stories at once; the text does not depend on it")
    parser.add_argument("--out", type=Path, help="write here (default with --prompts, --eval: out/MODEL/samples.jsonl)")
    parser.add_argument("--stream", action="store_true", help="print one story as it is written")
    args = parser.parse_args()
    if fields := {name: getattr(args, name) for name in headers.FIELDS if getattr(args, name)}:
        if args.prompt or args.prompts or args.eval:
            parser.error(f"--{' --'.join(fields)} make a prompt: leave out --prompt, --prompts and --eval")
        try:
            args.prompt = headers.write(fields)
        except ValueError as error:
            parser.error(str(error))
    for name, ok, what in (
        ("eval", args.eval is None or args.eval >= 1, "at least 1"),
        ("cut", 0 < args.cut < 1, "between 0 and 1"),
        ("ask", set(",".join(args.ask or headers.FIELDS).split(",")) <= {*headers.FIELDS}, ", ".join(headers.FIELDS)),
        ("n", args.n is None or args.n >= 1, "at least 1"),
        ("temperature", args.temperature is None or args.temperature >= 0, "0 or more"),
        ("top_k", args.top_k is None or args.top_k >= 1, "at least 1"),
        ("top_p", args.top_p is None or 0 < args.top_p <= 1, "above 0 and at most 1"),
        ("beams", args.beams >= 1, "at least 1"),
        ("max_new_tokens", args.max_new_tokens is None or args.max_new_tokens >= 1, "at least 1"),
        ("seed", args.seed >= 0, "0 or more"),
        ("batch_size", args.batch_size >= 1, "at least 1"),
    ):
        if not ok:
            parser.error(f"--{name} must be {what}, not {getattr(args, name)}")
    if args.beams > 1 and (args.temperature or args.top_k or args.top_p):
        parser.error("--beams searches for the likeliest text: it takes no --temperature, --top_k or --top_p")
    if args.temperature is None:
        args.temperature = 0.0 if args.beams > 1 else 1.0
    if args.temperature == 0 and (args.n or 1) > 1:
        parser.error(f"--n {args.n} with --beams or temperature 0 would write the same text {args.n} times")
    to_read = args.eval is None and args.prompts is None and args.out is None
    if args.stream and (args.beams > 1 or not to_read or args.n):
        parser.error("--stream prints one story of one --prompt, as it is drawn")
    if (args.model or "").startswith("api:") and (args.top_k or args.beams > 1 or args.stream):
        parser.error("an api: model takes no --top_k, --beams or --stream")
    args.n = args.n or (1 if args.temperature == 0 else 3 if to_read else 10)
    return args


def main():
    args = parse_arguments()
    sys.stdout.reconfigure(errors="replace")  # no terminal is too old for a story
    try:
        write(args)
    except KeyboardInterrupt:
        print("\nsample.py: stopped; what was written is kept, the same call goes on", file=sys.stderr, flush=True)
        os._exit(1)  # without waiting for requests that are on their way
    except BrokenPipeError:  # `| head` has seen enough
        sys.stderr.close()  # Python would complain that it could not flush
        sys.exit(1)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        sys.exit(f"sample.py: {where}{error.strerror}; mend that (make room?), then repeat the call: it goes on")
    except (ValueError, DataError) as error:
        sys.exit(f"sample.py: {error}")
    except torch.OutOfMemoryError:
        sys.exit(f"sample.py: out of memory; lower --batch_size, which is {args.batch_size}")


def write(args: argparse.Namespace) -> None:
    name = args.model or str(newest_run())
    if not name.startswith(("hf:", "api:")):
        name = str(Path(name))
    sampling = Sampling(args.temperature, args.top_k, args.top_p, args.beams, args.max_new_tokens, args.seed)
    student = load_student(name, args.batch_size)
    if args.prompts:
        prompts = dict(enumerate(read_prompts(args.prompts)))
    elif args.eval:
        prompts = dict(enumerate(evaluation_prompts(args.data or corpus_of(name), args.eval, args.cut, args.ask)))
    else:
        prompts = {0: Prompt(args.prompt.rstrip())}
    fitting = {i: prompt for i, prompt in prompts.items() if student.fits(prompt.text)}
    if len(fitting) < len(prompts):
        what = f"{len(prompts) - len(fitting)} of {len(prompts)} prompts do not fit into the context of {name}"
        if not args.eval or not fitting:
            raise ValueError(f"{what}, {student.model.config.block_size} tokens: shorten them")
        print(f"{what} and are left out")
    if args.stream:
        stream_story(student, args.prompt, sampling)
    elif args.prompts or args.eval or args.out:
        path = args.out or directory_of(name)
        path = path / "samples.jsonl" if path.is_dir() or not args.out else path
        is_cut = args.eval and not any(prompt.instruction for prompt in fitting.values())
        facts = dict(model=name, cut=args.cut if is_cut else None)
        write_samples(path, student, facts, fitting, args.n, sampling)
        print(f"{len(fitting)} prompts x {args.n} completions by {name} are in {path}, one JSON object a line")
    else:
        print_stories(student, args.prompt, args.n, sampling)
        print(f"\n{args.n} by {name}, seed {args.seed}, temperature {args.temperature}.", file=sys.stderr)


def directory_of(model: str) -> Path:
    """Where its samples belong: in the run itself, in out/roneneldan--TinyStories-8M, in out/api--gpt-3.5-turbo."""
    kind, _, rest = model.partition(":")
    if kind == "api":
        return Path("out", f"api--{rest.replace('/', '--')}")
    if kind == "hf":
        return Path("out", Path(rest).resolve().name if Path(rest).is_dir() else rest.replace("/", "--"))
    return Path(model) if Path(model).is_dir() else Path(model).parent


def corpus_of(model: str) -> Path:
    if model.startswith(("hf:", "api:")):
        raise ValueError(f"--eval with {model} needs --data, a corpus that prepare.py made, such as data/tinystories")
    config = load_checkpoint(model)["train_config"]
    return Path(config["data_dir"], config["data"])


if __name__ == "__main__":
    main()
