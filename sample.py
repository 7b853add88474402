"""
Write stories with a trained model.

$ python sample.py                                                # three stories from the newest run under out/
$ python sample.py --prompt "Once upon a time, there was a cat"   # continue this
$ python sample.py --run out/demo --n 5 --temperature 0.8 --top_k 50 --seed 7
"""

import argparse
import codecs
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from model import GPTNeo, KVCache, from_checkpoint, load_checkpoint
from tokenizer import Tokenizer


@dataclass
class Completion:
    index: int  # which of the prompts this continues
    tokens: list[int] = field(default_factory=list)  # what was written, without the prompt and without the stop token
    finished: bool = False  # ended by itself; False: cut at max_new_tokens or at the end of the context


@torch.inference_mode()
def generate(
    model: GPTNeo,
    prompts: list[list[int]],
    max_new_tokens: int | None = None,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    stop: int | None = None,
    batch_size: int = 16,
    on_token: Callable[[int, int], None] | None = None,
) -> Iterator[Completion]:
    """Continue every prompt (a list of ids), `batch_size` at a time, and yield each completion when it ends.

    A completion ends at the token `stop`, after `max_new_tokens`, or where the context is full. What is drawn for
    prompt i depends on (seed, i) alone, not on its neighbours. `temperature` 0 is greedy. `on_token(i, token)` is
    called for every token as it is written.
    """
    config = model.config
    device = model.wte.weight.device
    for i, prompt in enumerate(prompts):
        if not 0 < len(prompt) < config.block_size:
            raise ValueError(
                f"prompt {i} has {len(prompt)} tokens; this model's context takes 1 to {config.block_size - 1}"
            )
    max_new_tokens = min(max_new_tokens or config.block_size, config.block_size)

    batch_size = min(batch_size, len(prompts))
    cache = KVCache(config, batch_size, device, model.wte.weight.dtype)
    logits = torch.zeros(batch_size, config.vocab_size, device=device)
    draws = np.zeros((batch_size, max_new_tokens))
    slots: list[Completion | None] = [None] * batch_size
    waiting = list(range(len(prompts)))[::-1]

    while True:
        for slot in range(batch_size):  # a slot that is free takes the next prompt at once
            if slots[slot] is None and waiting:
                index = waiting.pop()
                slots[slot] = Completion(index)
                draws[slot] = np.random.default_rng([seed, index]).random(max_new_tokens)
                logits[slot] = model.prefill(torch.tensor(prompts[index], device=device), cache, slot)
        if not any(slots):
            return
        uniform = [draws[slot, len(c.tokens)] if c else 0.0 for slot, c in enumerate(slots)]
        tokens = draw(logits, torch.tensor(uniform, device=device, dtype=torch.float32), temperature, top_k, top_p)
        for slot, token in enumerate(tokens.tolist()):
            completion = slots[slot]
            if completion is None:
                continue
            if token == stop:
                completion.finished = True
            else:
                completion.tokens.append(token)
                if on_token:
                    on_token(completion.index, token)
            full = len(prompts[completion.index]) + len(completion.tokens) >= config.block_size
            if completion.finished or full or len(completion.tokens) == max_new_tokens:
                yield completion
                slots[slot] = None
                cache.lengths[slot] = 0
        if any(slots):
            logits = model.step(tokens, cache)


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


def encode_prompt(tokenizer: Tokenizer, text: str) -> list[int]:
    """In training every story follows an end of text, so a prompt does too; trailing blanks would split a word off."""
    return [tokenizer.end_of_text] + tokenizer.encode(text.rstrip())


def newest_run(out_dir: str | Path = "out") -> Path:
    checkpoints = sorted(Path(out_dir).glob("*/ckpt.pt"), key=lambda path: path.stat().st_mtime)
    if not checkpoints:
        raise ValueError(f"no run under {out_dir}/ yet: train one with `python train.py`, or name one with --run")
    return checkpoints[-1].parent


def load_run(run: str | Path) -> tuple[GPTNeo, Tokenizer]:
    """The best model of a run (a directory with checkpoints, or one checkpoint file) and its tokenizer."""
    path = Path(run)
    if path.is_dir():
        path = path / ("best.pt" if (path / "best.pt").exists() else "ckpt.pt")
    checkpoint = load_checkpoint(path)
    return from_checkpoint(checkpoint), Tokenizer(checkpoint["gpt2_ids"])


def print_stories(model: GPTNeo, tokenizer: Tokenizer, prompt: str, n: int = 1, **sampling):
    """Print `n` continuations of the prompt, one after the other, each while it is written."""
    tokens = encode_prompt(tokenizer, prompt)
    if len(tokens) >= model.config.block_size:
        longest = model.config.block_size - 2
        raise ValueError(f"the prompt has {len(tokens) - 1} tokens, and this model takes {longest}: shorten it")
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")  # a character may take several tokens

    def show(_, token):
        print(decoder.decode(tokenizer.decode_bytes([token])), end="", flush=True)

    stop = tokenizer.end_of_text
    print(prompt.rstrip(), end="", flush=True)
    for completion in generate(model, [tokens] * n, stop=stop, batch_size=1, on_token=show, **sampling):
        print(decoder.decode(b"", final=True) + ("" if completion.finished else " [cut here]"))
        if completion.index < n - 1:
            print("\n" + prompt.rstrip(), end="", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompt", default="", help="how the stories begin (default: the model begins)")
    parser.add_argument("--run", help="directory of the run, or a checkpoint (default: the newest under out/)")
    parser.add_argument("--n", type=int, default=3, help="number of stories")
    parser.add_argument("--temperature", type=float, default=0.6, help="0 is greedy, 1 as the model has it")
    parser.add_argument("--top_k", type=int, help="draw from the k likeliest tokens")
    parser.add_argument("--top_p", type=float, help="draw from the likeliest tokens that hold this share together")
    parser.add_argument("--max_new_tokens", type=int, help="cut a story here (default: the context is the limit)")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    for name, ok, what in (
        ("n", args.n >= 1, "at least 1"),
        ("temperature", args.temperature >= 0, "0 or more"),
        ("top_k", args.top_k is None or args.top_k >= 1, "at least 1"),
        ("top_p", args.top_p is None or 0 < args.top_p <= 1, "above 0 and at most 1"),
        ("max_new_tokens", args.max_new_tokens is None or args.max_new_tokens >= 1, "at least 1"),
        ("seed", args.seed >= 0, "0 or more"),
    ):
        if not ok:
            parser.error(f"--{name} must be {what}, not {getattr(args, name)}")
    sys.stdout.reconfigure(errors="replace")  # no terminal is too old for a story
    try:
        run = Path(args.run) if args.run else newest_run()
        model, tokenizer = load_run(run)
        settings = {key: getattr(args, key) for key in ("temperature", "top_k", "top_p", "max_new_tokens", "seed")}
        print_stories(model, tokenizer, args.prompt, args.n, **settings)
    except ValueError as error:
        sys.exit(f"sample.py: {error}")
    except (KeyboardInterrupt, BrokenPipeError):  # Ctrl-C, or `| head` has seen enough
        sys.stderr.close()  # Python would complain that it could not flush
        sys.exit(1)
    print(f"\n{args.n} by {run}, seed {args.seed}, temperature {args.temperature}.", file=sys.stderr)


if __name__ == "__main__":
    main()
