"""
The generation loop: prompts in, completions out as they end, `batch_size` of them at a time;
sampling and beam search. (decoders.py runs the model and keeps its cache.)

>>> for completion in generate(model, prompts, top_k=50, seed=7, stop=tokenizer.end_of_text):
...     print(completion.index, tokenizer.decode(completion.tokens), completion.finished)
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from model import GPTNeo
from nanostories.cli import UserError
from nanostories.generation.decoders import make_decoder


@dataclass
class Completion:
    index: int  # index of the prompt that this continues
    tokens: list[int] = field(default_factory=list)  # without the prompt and without the stop token
    # ended with the stop token; False: cut at max_new_tokens or at the end of the context
    finished: bool = False


@torch.inference_mode()
def generate(
    model: GPTNeo,
    prompts: Sequence[list[int]],
    max_new_tokens: int | None = None,
    temperature: float = 1.0,
    top_k: int | None = None,
    seed: int = 0,
    stop: int | None = None,
    batch_size: int = 64,
    keys: Sequence[tuple[int, ...]] | None = None,
    on_token: Callable[[int], None] | None = None,
) -> Iterator[Completion]:
    """Continues every prompt (a list of ids), `batch_size` at a time, and yields each completion
    when it ends: at the token `stop`, after `max_new_tokens`, or where the context is full.
    ValueError if a prompt does not fit the model.

    The draws for prompt i depend only on (seed, keys[i]), not on the rest of the batch
    (TorchDecoder's logits depend on it by rounding); keys are (0,), (1,), … unless given. on_token:
    called for every token as it is drawn.
    """
    longest, context = lengths(prompts, model, max_new_tokens)
    n_slots = spare = min(
        batch_size, len(prompts)
    )  # one more slot, the last, keeps the last prompt as it was read
    decoder = make_decoder(model, n_slots + 1, context, exact=temperature == 0)
    waiting, free = iter(enumerate(prompts)), list(range(n_slots))
    growing: dict[int, Completion] = {}  # slot -> its completion so far
    uniforms = np.zeros(
        (n_slots, longest), dtype=np.float32
    )  # the random numbers for each slot's draws
    logits: list[torch.Tensor] = []  # next-token logits of each growing completion, in their order
    was_read, first_logits = None, None

    while True:
        # Who is next: a free slot takes the next prompt at once. Equal prompts in a row are read
        # only once.
        for index, prompt in itertools.islice(waiting, len(free)):
            if prompt != was_read:
                was_read, first_logits = prompt, decoder.read(spare, prompt)
                if not first_logits.isfinite().all():
                    raise UserError(
                        "the model's logits are not finite: its training diverged or its weights"
                        " are bad"
                    )
            slot = free.pop()
            decoder.copy([spare], [slot])
            logits.append(first_logits[None])
            growing[slot] = Completion(index)
            generator = np.random.default_rng([seed, *(keys[index] if keys else (index,))])
            generator.random(out=uniforms[slot], dtype=np.float32)
        if not growing:
            return
        # Draw.
        uniform = [uniforms[slot, len(completion.tokens)] for slot, completion in growing.items()]
        tokens = draw(torch.cat(logits), torch.tensor(uniform), temperature, top_k).tolist()
        # Stop, or write and go on.
        continuing = {}
        for (slot, completion), token in zip(list(growing.items()), tokens):
            completion.finished = token == stop
            if not completion.finished:
                completion.tokens.append(token)
                if on_token:
                    on_token(token)
            full = (
                len(prompts[completion.index]) + len(completion.tokens) >= model.config.block_size
            )
            if completion.finished or full or len(completion.tokens) == longest:
                yield growing.pop(slot)
                free.append(slot)
            else:
                continuing[slot] = token
        logits = [decoder.step(list(continuing), list(continuing.values()))] if continuing else []


def lengths(
    prompts: Sequence[list[int]], model: GPTNeo, max_new_tokens: int | None
) -> tuple[int, int]:
    """(most new tokens, longest text including its prompt)"""
    block_size = model.config.block_size
    for i, prompt in enumerate(prompts):
        if not 0 < len(prompt) < block_size:
            raise UserError(
                f"prompt {i} has {len(prompt)} tokens; this model's context takes 1 to"
                f" {block_size - 1}"
            )
    longest = min(max_new_tokens or block_size, block_size)
    return longest, min(block_size, max(map(len, prompts), default=0) + longest)


def draw(
    logits: torch.Tensor, uniform: torch.Tensor, temperature: float, top_k: int | None
) -> torch.Tensor:
    """An id for each row of logits, (B, V) -> (B,), by inverting the cumulative distribution at
    `uniform`, (B,)."""
    if temperature == 0:
        return logits.argmax(-1)
    values, ids = (
        logits.float() - logits.amax(-1, keepdim=True).float(),
        None,
    )  # or a tiny temperature overflows
    if top_k:
        values, ids = values.topk(min(top_k, values.size(-1)), dim=-1)
    cumulative = torch.softmax(values / max(temperature, 1e-37), dim=-1).cumsum(
        -1
    )  # smaller ones are 0 in float32
    target = uniform.to(cumulative.device)[:, None] * cumulative[:, -1:]
    choice = torch.searchsorted(cumulative, target, right=True).clamp(max=values.size(-1) - 1)
    return (choice if ids is None else ids.gather(-1, choice))[:, 0]


@torch.inference_mode()
def beam_search(
    model: GPTNeo,
    prompts: Sequence[list[int]],
    beams: int,
    max_new_tokens: int | None = None,
    stop: int | None = None,
) -> Iterator[Completion]:
    """Yields the most likely continuation of each prompt, one after the other. Texts compete by
    their mean log-probability per token, as in transformers.generate(num_beams=beams): candidates
    that end are set aside, and the search ends when no growing text could beat the worst of the
    `beams` best of those."""
    longest, context = lengths(prompts, model, max_new_tokens)
    decoder = make_decoder(model, beams, context, exact=True)
    for index, prompt in enumerate(prompts):
        logits = decoder.read(0, prompt)[None]
        growing = [(0.0, [])]  # log-probability and tokens of the text in each slot
        ended: list[
            tuple[float, list[int], bool]
        ] = []  # mean log-probability, tokens, whether ended by itself
        last = min(longest, model.config.block_size - len(prompt))
        for length in range(1, last + 1):
            scores = torch.log_softmax(logits, -1) + torch.tensor(
                [[score] for score, _ in growing]
            ).to(logits)
            best, flat = (x.tolist() for x in scores.flatten().topk(min(2 * beams, scores.numel())))
            candidates = [
                (score, *divmod(i, scores.size(1))) for score, i in zip(best, flat)
            ]  # score, slot, token
            stopped = [(score, slot) for score, slot, token in candidates[:beams] if token == stop]
            ended += [(score / length, growing[slot][1], True) for score, slot in stopped]
            continuing = [candidate for candidate in candidates if candidate[-1] != stop][:beams]
            growing = [(score, growing[slot][1] + [token]) for score, slot, token in continuing]
            if length == last:
                ended += [(score / length, text, False) for score, text in growing]
            ended = sorted(ended, key=lambda text: -text[0])[:beams]
            if (
                length == last
                or not growing
                or len(ended) == beams
                and growing[0][0] / length <= ended[-1][0]
            ):
                break
            if moved := {new: old for new, (_, old, _) in enumerate(continuing) if new != old}:
                decoder.copy([*moved.values()], [*moved])
            logits = decoder.step(list(range(len(growing))), [text[-1] for _, text in growing])
        yield Completion(index, ended[0][1], ended[0][2])
