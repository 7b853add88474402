"""
The generation engine: prompts in, completions out as they end, `batch_size` of them at a time.

>>> for completion in generate(model, prompts, top_k=50, seed=7, stop=tokenizer.end_of_text):
...     print(completion.index, tokenizer.decode(completion.tokens), completion.finished)

sample.py is its command line; decode.py is the model that it drives.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from generation.kv_cache import DESK, make_decoder
from model import GPTNeo


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
    prompt i depends on (seed, keys[i]) alone, not on its neighbours (NativeDecoder's logits are the same to the bit,
    TorchDecoder's to the rounding of sums); keys are (0,), (1,), … unless given. `temperature`
    0 is greedy. `on_token(i, token)` is called for every token as it is written. Equal prompts that follow one another
    are read once.
    """
    block_size, device = model.config.block_size, model.wte.weight.device
    check_prompts(prompts, model)
    max_new_tokens = block_size if max_new_tokens is None else min(max_new_tokens, block_size)
    context = min(block_size, max(map(len, prompts), default=0) + max_new_tokens)
    batch_size = min(batch_size, len(prompts))
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
                if not first_logits.isfinite().all():
                    raise ValueError("the model's logits are not finite: its weights are broken, or its training was")
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


def check_prompts(prompts: Sequence[list[int]], model: GPTNeo):
    block_size, vocab_size = model.config.block_size, model.config.vocab_size
    for i, prompt in enumerate(prompts):
        if not 0 < len(prompt) < block_size:
            raise ValueError(f"prompt {i} has {len(prompt)} tokens; this model's context takes 1 to {block_size - 1}")
        if not 0 <= min(prompt) <= max(prompt) < vocab_size:
            raise ValueError(
                f"prompt {i} has ids from {min(prompt)} to {max(prompt)}; this model knows 0 to {vocab_size - 1}"
            )


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
    probabilities = torch.softmax(values / max(temperature, 1e-37), dim=-1)  # less would be 0 in float32
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
    check_prompts(prompts, model)
    max_new_tokens = block_size if max_new_tokens is None else min(max_new_tokens, block_size)
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
