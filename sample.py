"""
Write stories with a trained model, one to read or thousands to grade.

$ python sample.py                                                # three stories from the newest run under out/
$ python sample.py --prompt "Once upon a time, there was a cat" --stream     # watch one being written
$ python sample.py --model out/demo --n 5 --temperature 0.8 --top_k 50 --seed 7
$ python sample.py --eval 50 --n 10                     # validation stories, continued: out/<run>/samples.jsonl
$ python sample.py --prompts prompts/beginnings.txt --model hf:roneneldan/TinyStories-33M --beams 5
$ python sample.py --eval 50 --model api:gpt-3.5-turbo --data data/tinystories     # OPENAI_API_KEY, OPENAI_BASE_URL

Every completion depends on its seed, its prompt's number and its own number alone: more of them, another batch size or
an interruption change none of those that were there before.
"""

import argparse
import codecs
import concurrent.futures
import itertools
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import openai
import torch
from tqdm import tqdm

import hub
from decode import DESK, make_decoder
from model import GPTNeo, from_checkpoint, load_checkpoint
from prepare import DataError, load_meta, load_tokens
from tokenizer import END_OF_TEXT, Tokenizer

# ---- The engine ----


@dataclass
class Completion:
    index: int  # which of the prompts this continues
    tokens: list[int] = field(default_factory=list)  # what was written, without the prompt and without the stop token
    finished: bool = False  # ended by itself; False: cut at max_new_tokens or at the end of the context


@torch.inference_mode()
def generate(
    model: GPTNeo,
    prompts: Sequence[list[int]],
    max_new_tokens: int | None = None,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    stop: int | None = None,
    batch_size: int = 64,
    keys: Sequence[tuple[int, ...]] | None = None,
    on_token: Callable[[int, int], None] | None = None,
) -> Iterator[Completion]:
    """Continue every prompt (a list of ids), `batch_size` at a time, and yield each completion when it ends.

    A completion ends at the token `stop`, after `max_new_tokens`, or where the context is full. What is drawn for
    prompt i depends on (seed, keys[i]) alone, not on its neighbours; keys are (0,), (1,), … unless given. `temperature`
    0 is greedy. `on_token(i, token)` is called for every token as it is written. Equal prompts that follow one another
    are read once.
    """
    block_size, device = model.config.block_size, model.wte.weight.device
    check_lengths(prompts, block_size)
    max_new_tokens = min(max_new_tokens or block_size, block_size)
    context = min(block_size, max(map(len, prompts), default=0) + max_new_tokens)
    decoder = make_decoder(model, batch_size, context, exact=temperature == 0)
    waiting = iter(enumerate(prompts))
    free = list(range(batch_size))
    at_work: dict[int, Completion] = {}  # slot -> what is written there
    uniform = np.zeros((batch_size, max_new_tokens), dtype=np.float32)
    logits: list[torch.Tensor] = []  # of what comes next in the slots at work, in their order
    on_desk, first_logits = None, None

    while True:
        for index, prompt in itertools.islice(waiting, len(free)):  # a slot that is free takes the next prompt at once
            if prompt != on_desk:
                on_desk, first_logits = prompt, decoder.read(DESK, prompt)
            slot = free.pop()
            decoder.copy(DESK, slot)
            logits.append(first_logits[None])
            at_work[slot] = Completion(index)
            key = keys[index] if keys else (index,)
            uniform[slot] = np.random.default_rng([seed, *key]).random(max_new_tokens, dtype=np.float32)
        if not at_work:
            return
        chances = [uniform[slot, len(completion.tokens)] for slot, completion in at_work.items()]
        tokens = draw(torch.cat(logits), torch.tensor(chances, device=device), temperature, top_k, top_p)
        going_on = {}
        for slot, token in zip(list(at_work), tokens.tolist()):
            completion = at_work[slot]
            if token == stop:
                completion.finished = True
            else:
                completion.tokens.append(token)
                if on_token:
                    on_token(completion.index, token)
            full = len(prompts[completion.index]) + len(completion.tokens) >= block_size
            if completion.finished or full or len(completion.tokens) == max_new_tokens:
                yield at_work.pop(slot)
                free.append(slot)
            else:
                going_on[slot] = token
        logits = [decoder.step(list(going_on), list(going_on.values()))] if going_on else []


def check_lengths(prompts: Sequence[list[int]], block_size: int):
    for i, prompt in enumerate(prompts):
        if not 0 < len(prompt) < block_size:
            raise ValueError(f"prompt {i} has {len(prompt)} tokens; this model's context takes 1 to {block_size - 1}")


def draw(
    logits: torch.Tensor, uniform: torch.Tensor, temperature: float, top_k: int | None, top_p: float | None
) -> torch.Tensor:
    """One id for each row of logits (B, V), by inverting the cumulative distribution at `uniform` (B,) in [0, 1)."""
    if temperature == 0:
        return logits.argmax(-1)
    logits = logits.float() - logits.amax(-1, keepdim=True).float()  # else a tiny temperature overflows
    if top_k is None and top_p is None:
        values, ids = logits, None
    else:
        values, ids = logits.topk(min(top_k or logits.size(-1), logits.size(-1)), dim=-1)
    probabilities = torch.softmax(values / temperature, dim=-1)
    cumulative = probabilities.cumsum(-1)
    total = cumulative[:, -1:]
    if top_p is not None:
        # The smallest set of the likeliest tokens that holds at least top_p: drop where the ones before suffice.
        inside = (cumulative - probabilities) < top_p
        total = (probabilities * inside).sum(-1, keepdim=True)
    choice = torch.searchsorted(cumulative, uniform[:, None] * total, right=True).clamp(max=values.size(-1) - 1)
    return (choice if ids is None else ids.gather(-1, choice))[:, 0]


@torch.inference_mode()
def beam_search(
    model: GPTNeo, prompts: Sequence[list[int]], beams: int, max_new_tokens: int | None = None, stop: int | None = None
) -> Iterator[Completion]:
    """The likeliest continuation of every prompt that a search with so many beams finds, one after the other.

    Texts compete by their mean log-probability per token, as transformers.generate(num_beams=beams) has it: candidates
    that end are put aside, and the search ends when no text still growing could beat the worst of `beams` of those.
    """
    block_size = model.config.block_size
    check_lengths(prompts, block_size)
    max_new_tokens = min(max_new_tokens or block_size, block_size)
    context = min(block_size, max(map(len, prompts), default=0) + max_new_tokens)
    decoder = make_decoder(model, beams, context, exact=True)
    for index, prompt in enumerate(prompts):
        logits = decoder.read(DESK, prompt)[None]
        for slot in range(beams):
            decoder.copy(DESK, slot)
        growing = [Beam(0.0, [], slot=0)]
        ended: list[tuple[float, list[int], bool]] = []  # mean log-probability, tokens, whether ended by itself
        longest = min(max_new_tokens, block_size - len(prompt))
        for length in range(1, longest + 1):
            scores = torch.log_softmax(logits.float(), -1) + torch.tensor([[beam.score] for beam in growing]).to(logits)
            best, flat = scores.flatten().topk(min(2 * beams, scores.numel()))
            candidates = [
                (score, growing[i // scores.size(1)], i % scores.size(1))
                for score, i in zip(best.tolist(), flat.tolist())
            ]
            ended += [(score / length, beam.tokens, True) for score, beam, token in candidates[:beams] if token == stop]
            going_on = [candidate for candidate in candidates if candidate[2] != stop][:beams]
            if length == longest:
                ended += [(score / length, beam.tokens + [token], False) for score, beam, token in going_on]
            ended = sorted(ended, key=lambda text: -text[0])[:beams]
            if not going_on or len(ended) == beams and going_on[0][0] / length <= ended[-1][0]:
                break
            growing = grow(going_on, decoder, beams)
            if length < longest:
                logits = decoder.step([beam.slot for beam in growing], [beam.tokens[-1] for beam in growing])
        yield Completion(index, ended[0][1], ended[0][2])


@dataclass
class Beam:
    score: float  # log-probability of its tokens together
    tokens: list[int]
    slot: int  # where the decoder has all of them but the last


def grow(candidates: list[tuple[float, Beam, int]], decoder, beams: int) -> list[Beam]:
    """The chosen candidates as beams. The first child of a beam stays in its slot; its others get a copy elsewhere."""
    free = set(range(beams)) - {parent.slot for _, parent, _ in candidates}
    taken, grown = set(), []
    for score, parent, token in candidates:
        slot = parent.slot
        if slot in taken:
            slot = free.pop()
            decoder.copy(parent.slot, slot)
        taken.add(slot)
        grown.append(Beam(score, parent.tokens + [token], slot))
    return grown


# ---- Who writes ----


@dataclass(frozen=True)
class Sampling:
    """How completions are drawn; with the prompt and its number it says all of a local model's text."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    beams: int = 1
    max_new_tokens: int | None = None
    seed: int = 0


class LocalStudent:
    """A model of ours, or a published one, on this machine."""

    def __init__(self, model: GPTNeo, tokenizer: Tokenizer, prefix: Sequence[int], batch_size: int = 64):
        self.model, self.tokenizer, self.prefix, self.batch_size = model, tokenizer, list(prefix), batch_size

    def encode(self, prompt: str) -> list[int]:
        """Trailing blanks go: they would split a word off. A model must be given something to begin with."""
        return self.prefix + self.tokenizer.encode(prompt.rstrip()) or [self.tokenizer.end_of_text]

    def fits(self, prompt: str) -> bool:
        return len(self.encode(prompt)) < self.model.config.block_size

    def complete(self, prompts: Sequence[str], keys: Sequence[tuple[int, int]], sampling: Sampling):
        """Yields (index of the prompt, text, finished) as they come."""
        ids, stop = [self.encode(prompt) for prompt in prompts], self.tokenizer.end_of_text
        settings = asdict(sampling)
        beams, seed = settings.pop("beams"), settings.pop("seed")
        if beams > 1:
            completions = beam_search(self.model, ids, beams, sampling.max_new_tokens, stop)
        else:
            completions = generate(
                self.model, ids, **settings, seed=seed, stop=stop, batch_size=self.batch_size, keys=keys
            )
        for completion in completions:
            yield completion.index, self.tokenizer.decode(completion.tokens), completion.finished


class ApiStudent:
    """A model behind any OpenAI-compatible endpoint, asked to continue a story: the GPT-3.5 baseline."""

    INSTRUCTION = (
        "You are given the beginning of a story for small children, which breaks off, perhaps in the middle of a "
        "sentence. Continue it from exactly there to its end, in the same simple words. Answer with the continuation "
        "alone: do not repeat the beginning, and add no title and no remark."
    )
    REQUESTS_AT_ONCE = 8

    def __init__(self, name: str):
        self.name = name
        key = os.environ.get("OPENAI_API_KEY")
        if not key and not os.environ.get("OPENAI_BASE_URL"):
            raise ValueError(f"api:{name} needs OPENAI_API_KEY, or OPENAI_BASE_URL for a server of your own")
        self.client = openai.OpenAI(api_key=key or "none", max_retries=6, timeout=120)

    def fits(self, prompt: str) -> bool:
        return True

    def complete(self, prompts: Sequence[str], keys: Sequence[tuple[int, int]], sampling: Sampling):
        failure = None
        pool = concurrent.futures.ThreadPoolExecutor(self.REQUESTS_AT_ONCE)
        try:
            requests = [pool.submit(self.ask, *request, sampling) for request in zip(itertools.count(), prompts, keys)]
            for request in concurrent.futures.as_completed(requests):
                if request.cancelled():
                    continue
                if not isinstance(request.exception(), openai.OpenAIError):
                    yield request.result()
                elif failure is None:  # no more requests; but what is on its way is paid for, and is kept
                    failure = request.exception()
                    pool.shutdown(wait=False, cancel_futures=True)
        finally:
            pool.shutdown(cancel_futures=True)
        if failure:
            raise ValueError(f"api:{self.name} at {self.client.base_url}: {one_line(failure)}") from failure

    def ask(self, i: int, prompt: str, key: tuple[int, int], sampling: Sampling) -> tuple[int, str, bool]:
        limits = {"max_tokens": sampling.max_new_tokens, "top_p": sampling.top_p}
        answer = self.client.chat.completions.create(
            model=self.name,
            messages=[{"role": "system", "content": self.INSTRUCTION}, {"role": "user", "content": prompt}],
            temperature=sampling.temperature,
            seed=int(np.random.SeedSequence([sampling.seed, *key]).generate_state(1)[0] >> 1),
            **{name: value for name, value in limits.items() if value is not None},
        )
        text = answer.choices[0].message.content or ""
        if prompt and text[:1].isalnum():  # chat models drop the blank that they would have begun with
            text = " " + text
        return i, text, answer.choices[0].finish_reason == "stop"


def one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def newest_run(out_dir: str | Path = "out") -> Path:
    checkpoints = sorted(Path(out_dir).glob("*/ckpt.pt"), key=lambda path: path.stat().st_mtime)
    if not checkpoints:
        raise ValueError(f"no run under {out_dir}/ yet: train one with `python train.py`, or name one with --model")
    return checkpoints[-1].parent


def load_run(run: str | Path) -> tuple[GPTNeo, Tokenizer]:
    checkpoint = load_checkpoint(run)
    return from_checkpoint(checkpoint), Tokenizer(checkpoint["gpt2_ids"])


def load_student(name: str, batch_size: int = 64) -> LocalStudent | ApiStudent:
    """Whoever --model names: a run of ours, hf:ID-or-directory, or api:MODEL. ValueError says what is wrong with it."""
    if name.startswith("api:"):
        return ApiStudent(name.removeprefix("api:"))
    if name.startswith("hf:"):
        directory = hub.model_directory(name.removeprefix("hf:"))
        model, tokenizer = GPTNeo.from_hf(directory), Tokenizer.from_hf(directory)
        # In our training every story follows an end of text, so a prompt does too; others are prompted without.
        follows_end_of_text = hub.read_json(directory / "config.json").get("prompt_prefix") == END_OF_TEXT
    else:
        (model, tokenizer), follows_end_of_text = load_run(name), True
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return LocalStudent(model.to(device), tokenizer, [tokenizer.end_of_text] * follows_end_of_text, batch_size)


# ---- What is continued ----


@dataclass
class Prompt:
    text: str
    reference: str | None = None  # how the story truly goes on


def read_prompts(path: Path) -> list[Prompt]:
    """One prompt a line; or JSON: an array, or one value a line, of strings or of {"prompt": …, "reference": …}."""
    try:
        text = path.read_text(encoding="utf-8-sig").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot be read ({getattr(error, 'strerror', 'not UTF-8 text')})") from None
    rows = text.splitlines()
    try:
        if path.suffix == ".json":
            rows = json.loads(text)
        elif path.suffix == ".jsonl":
            rows = [json.loads(row) for row in rows if row.strip()]
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: not JSON ({one_line(error)})") from None
    prompts = []
    for number, row in enumerate(rows if isinstance(rows, list) else [rows], 1):
        row = row if isinstance(row, dict) else {"prompt": row}
        prompt, reference = row.get("prompt"), row.get("reference")
        if not isinstance(prompt, str) or not isinstance(reference, str | None):
            raise ValueError(f'{path}: prompt {number} must be a text, or an object such as {{"prompt": "Once upon"}}')
        if prompt.strip():
            prompts.append(Prompt(prompt.rstrip(), reference))
    if not prompts:
        raise ValueError(f"{path}: no prompt in it")
    return prompts


def evaluation_prompts(directory: Path, n: int, cut: float) -> list[Prompt]:
    """Validation stories 2 to n + 1, cut after this share of their words; the first ones share one beginning."""
    meta = load_meta(directory)
    tokenizer, tokens = Tokenizer(meta["gpt2_ids"]), load_tokens(directory, "val")
    ends = np.flatnonzero(tokens == tokenizer.end_of_text)[: n + 1]
    if len(ends) < n + 1:
        raise ValueError(f"{directory}: its validation split has {len(ends)} stories, --eval {n} needs {n + 1}")
    stories = [tokenizer.decode(tokens[start + 1 : end]) for start, end in zip(ends, ends[1:])]
    return [cut_story(story, cut) for story in stories]


def cut_story(story: str, share: float) -> Prompt:
    words = list(re.finditer(r"\S+", story))
    end = words[max(1, int(share * len(words))) - 1].end()
    return Prompt(story[:end], story[end:])


# ---- What is kept ----


def write_samples(path: Path, student, facts: dict, prompts: list[Prompt], n: int, sampling: Sampling) -> None:
    """Writes `path`, a JSON object for every completion, in the order of the prompts.

    While it goes on they gather in <path>.part; after an interruption, what is there already is not asked for again.
    """
    part = path.with_name(path.name + ".part")
    wanted = {
        (i, j): facts
        | asdict(sampling)
        | dict(prompt_index=i, sample_index=j, prompt=prompt.text, reference=prompt.reference)
        for i, prompt in enumerate(prompts)
        for j in range(n)
    }
    done = {key: row for key, row in read_part(part).items() if row.items() >= wanted.get(key, {"": 0}).items()}
    if not done:
        put_aside(part)
    write_rows(part, list(done.values()))  # without the line that was cut
    missing = [key for key in wanted if key not in done]
    bar = tqdm(desc="writing", total=len(wanted), initial=len(done), unit="story", disable=None, delay=1)
    with part.open("a", encoding="utf-8") as file, bar:
        for i, text, finished in student.complete([prompts[i].text for i, _ in missing], missing, sampling):
            row = wanted[missing[i]] | dict(completion=text, finished=finished)
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            file.flush()
            done[missing[i]] = row
            bar.update()
    put_aside(path)
    write_rows(path, [done[key] for key in wanted])
    part.unlink()


def write_rows(path: Path, rows: list[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    temporary.replace(path)


def read_part(part: Path) -> dict[tuple[int, int], dict]:
    """What an interrupted call had written; its last line may be cut."""
    rows = {}
    for line in part.read_text(encoding="utf-8", errors="replace").splitlines() if part.exists() else []:
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        rows[row["prompt_index"], row["sample_index"]] = row
    return rows


def put_aside(path: Path) -> None:
    """Renames what stands at `path`, so that nothing is lost by writing there: samples.jsonl -> samples-1.jsonl."""
    if path.exists():
        names = (path.with_name(f"{path.stem}-{i}{path.suffix}") for i in itertools.count(1))
        free = next(name for name in names if not name.exists())
        path.rename(free)
        print(f"{path} existed: kept as {free}")


# ---- The command line ----


def stream_story(student: LocalStudent, prompt: str, sampling: Sampling) -> None:
    """Prints the prompt and one continuation while it is written."""
    tokenizer = student.tokenizer
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")  # a character may take several tokens

    def show(_, token):
        print(decoder.decode(tokenizer.decode_bytes([token])), end="", flush=True)

    print(prompt.rstrip(), end="", flush=True)
    settings = asdict(sampling)
    del settings["beams"]
    ids = [student.encode(prompt)]
    (completion,) = generate(
        student.model, ids, **settings, stop=tokenizer.end_of_text, batch_size=1, keys=[(0, 0)], on_token=show
    )
    print(decoder.decode(b"", final=True) + ("" if completion.finished else " [cut here]"))


def print_stories(student, prompt: str, n: int, sampling: Sampling) -> None:
    keys = [(0, j) for j in range(n)]
    completions = student.complete([prompt] * n, keys, sampling)
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
    parser.add_argument("--cut", type=float, default=0.5, help="share of its words that --eval shows of a story")
    parser.add_argument("--data", type=Path, help="corpus of --eval (default: that of the run)")
    parser.add_argument("--n", type=int, help="completions of each prompt (default: 3; 10 with --prompts and --eval)")
    parser.add_argument("--temperature", type=float, default=1.0, help="0 is greedy, 1 as the model has it")
    parser.add_argument("--top_k", type=int, help="draw from the k likeliest tokens")
    parser.add_argument("--top_p", type=float, help="draw from the likeliest tokens that hold this share together")
    parser.add_argument("--beams", type=int, default=1, help="search with so many beams instead of drawing")
    parser.add_argument("--max_new_tokens", type=int, help="cut a story here (default: the context is the limit)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch_size", type=int, default=64, help="stories at once; the text does not depend on it")
    parser.add_argument("--out", type=Path, help="write here (default with --prompts, --eval: out/MODEL/samples.jsonl)")
    parser.add_argument("--stream", action="store_true", help="print one story as it is written")
    args = parser.parse_args()
    for name, ok, what in (
        ("eval", args.eval is None or args.eval >= 1, "at least 1"),
        ("cut", 0 < args.cut < 1, "between 0 and 1"),
        ("n", args.n is None or args.n >= 1, "at least 1"),
        ("temperature", args.temperature >= 0, "0 or more"),
        ("top_k", args.top_k is None or args.top_k >= 1, "at least 1"),
        ("top_p", args.top_p is None or 0 < args.top_p <= 1, "above 0 and at most 1"),
        ("beams", args.beams >= 1, "at least 1"),
        ("max_new_tokens", args.max_new_tokens is None or args.max_new_tokens >= 1, "at least 1"),
        ("seed", args.seed >= 0, "0 or more"),
        ("batch_size", args.batch_size >= 1, "at least 1"),
    ):
        if not ok:
            parser.error(f"--{name} must be {what}, not {getattr(args, name)}")
    always_the_same = args.beams > 1 or args.temperature == 0
    if always_the_same and (args.n or 1) > 1:
        parser.error(f"--n {args.n} with --beams or temperature 0 would write the same text {args.n} times")
    args.n = args.n or (1 if always_the_same else 3 if args.eval is None and args.prompts is None else 10)
    is_api = (args.model or "").startswith("api:")
    if is_api and (args.top_k or args.beams > 1 or args.stream):
        parser.error("an api: model takes no --top_k, --beams or --stream")
    if args.stream and (args.beams > 1 or args.eval or args.prompts or args.out):
        parser.error("--stream prints one story of one --prompt, as it is drawn")
    return args


def main():
    args = parse_arguments()
    sys.stdout.reconfigure(errors="replace")  # no terminal is too old for a story
    try:
        write(args)
    except (KeyboardInterrupt, BrokenPipeError):  # Ctrl-C, or `| head` has seen enough
        sys.stderr.close()  # Python would complain that it could not flush
        sys.exit(1)
    except (ValueError, DataError, OSError) as error:
        sys.exit(f"sample.py: {error}")


def write(args: argparse.Namespace) -> None:
    name = args.model or str(newest_run())
    sampling = Sampling(args.temperature, args.top_k, args.top_p, args.beams, args.max_new_tokens, args.seed)
    student = load_student(name, args.batch_size)
    if args.prompts:
        prompts = read_prompts(args.prompts)
    elif args.eval:
        prompts = evaluation_prompts(args.data or corpus_of(name), args.eval, args.cut)
    else:
        prompts = [Prompt(args.prompt.rstrip())]
    fitting = [prompt for prompt in prompts if student.fits(prompt.text)]
    if len(fitting) < len(prompts):
        what = f"{len(prompts) - len(fitting)} of {len(prompts)} prompts do not fit into the context of {name}"
        if not args.eval or not fitting:
            raise ValueError(f"{what}, {student.model.config.block_size} tokens: shorten them")
        print(f"{what} and are left out")
    if args.stream:
        stream_story(student, args.prompt, sampling)
    elif args.prompts or args.eval or args.out:
        n_texts = f"{len(fitting)} prompts x {args.n} completions"
        path = args.out or directory_of(name) / "samples.jsonl"
        facts = dict(model=name, cut=args.cut if args.eval else None)
        write_samples(path, student, facts, fitting, args.n, sampling)
        print(f"{n_texts} by {name} are in {path}. Next: python grade.py {path.parent}")
    else:
        print_stories(student, args.prompt, args.n, sampling)
        print(f"\n{args.n} by {name}, seed {args.seed}, temperature {args.temperature}.", file=sys.stderr)


def directory_of(model: str) -> Path:
    """Where its samples belong: in the run itself, in out/roneneldan--TinyStories-8M, in out/api--gpt-3.5-turbo."""
    if model.startswith("api:"):
        return Path("out", model.replace(":", "--").replace("/", "--"))
    path = Path(model.removeprefix("hf:"))
    if model.startswith("hf:"):
        return Path("out", path.resolve().name if path.is_dir() else str(path).replace("/", "--"))
    return path if path.is_dir() else path.parent


def corpus_of(model: str) -> Path:
    if model.startswith(("hf:", "api:")):
        raise ValueError(
            f"--eval with {model} needs --data, a corpus that prepare.py has made: --data data/tinystories"
        )
    config = load_checkpoint(model)["train_config"]
    return Path(config["data_dir"], config["data"])


if __name__ == "__main__":
    main()
