"""
The generation loop: prompts in, completions out as they end, `batch_size` of them at a time;
sampling and beam search. (decoders.py runs the model and keeps its cache.)

>>> prompts = {(0, 0): tokenizer.encode("Once upon a time")}
>>> for key, tokens, finished in generate(model, prompts, Sampling(top_k=50, seed=7), end_of_text):
...     print(key, tokenizer.decode(tokens), finished)
"""

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch

from model import GPTNeo
from nanostories.cli import UserError
from nanostories.generation.decoders import make_decoder
from nanostories.generation.prompts import Key, Sampling

# The key of its prompt; its tokens, without the prompt and without the stop token; whether it ended
# with the stop token (or was cut at max_new_tokens or at the end of the context)
Completion = tuple[Key, list[int], bool]


@dataclass
class GrowingText:
    """A completion so far."""

    key: Key
    random_numbers: np.random.Generator  # one for each of its tokens
    tokens: list[int] = field(default_factory=list)


@torch.inference_mode()
def generate(
    model: GPTNeo,
    prompts: Mapping[Key, list[int]],
    sampling: Sampling,
    stop: int | None = None,
    batch_size: int = 64,
    on_token: Callable[[int], None] | None = None,
) -> Iterator[Completion]:
    """Continues every prompt (a list of ids), `batch_size` at a time, and yields each completion
    when it ends. UserError if a prompt does not fit the model.

    The draws for a prompt depend only on the seed and its key, not on the rest of the batch
    (TorchDecoder's logits depend on it by rounding). on_token: called for every token as it is
    drawn.
    """
    room, context = room_for(prompts, model, sampling)
    spare = min(batch_size, len(prompts))  # the last slot: it keeps the last prompt as it was read
    decoder = make_decoder(model, spare + 1, context, exact=sampling.temperature == 0)
    free = list(range(spare))
    waiting = iter(prompts.items())
    growing: dict[int, GrowingText] = {}  # by slot
    last_prompt = None
    while True:
        drawn = {}  # the next token of each
        if growing:
            last_tokens = [text.tokens[-1] for text in growing.values()]
            logits = decoder.step(list(growing), last_tokens)
            drawn = dict(zip(growing, draw_next(logits, growing.values(), sampling)))
        # A free slot takes the next prompt at once. Equal prompts in a row are read only once.
        for key, prompt in itertools.islice(waiting, len(free)):
            if prompt != last_prompt:
                last_prompt = prompt
                first_logits = read(decoder, spare, prompt)[None]
            slot = free.pop()
            decoder.copy([spare], [slot])
            text = GrowingText(key, np.random.default_rng([sampling.seed, *key]))
            growing[slot] = text
            drawn[slot] = draw_next(first_logits, [text], sampling)[0]
        if not growing:
            return
        for slot, token in drawn.items():
            text = growing[slot]
            if token != stop:
                text.tokens.append(token)
                if on_token:
                    on_token(token)
            if token == stop or len(text.tokens) == room[text.key]:
                yield text.key, text.tokens, token == stop
                del growing[slot]
                free.append(slot)


def draw_next(
    logits: torch.Tensor, texts: Collection[GrowingText], sampling: Sampling
) -> list[int]:
    """A token for each text, by a random number of its own."""
    numbers = [text.random_numbers.random(dtype=np.float32) for text in texts]
    return draw(logits, torch.tensor(numbers), sampling).tolist()


def room_for(
    prompts: Mapping[Key, list[int]], model: GPTNeo, sampling: Sampling
) -> tuple[dict[Key, int], int]:
    """How many tokens may follow each prompt, and the most tokens of a prompt with these."""
    block_size = model.config.block_size
    room = {}
    longest = 0
    for key, prompt in prompts.items():
        left = block_size - len(prompt)
        if left < 1:
            raise UserError(
                f"prompt {key[0]} has {len(prompt)} tokens; this model's context takes up to"
                f" {block_size - 1}"
            )
        room[key] = min(left, sampling.max_new_tokens or left)
        longest = max(longest, len(prompt) + room[key])
    return room, longest


def read(decoder, slot: int, prompt: list[int]) -> torch.Tensor:
    """The logits after a prompt, (V,)."""
    logits = decoder.read(slot, prompt)
    if not logits.isfinite().all():
        raise UserError(
            "the model's logits are not finite: its training diverged or its weights are bad"
        )
    return logits


def draw(logits: torch.Tensor, uniform: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """An id for each row of logits, (B, V) -> (B,), by inverting the cumulative distribution at
    `uniform`, (B,)."""
    if sampling.temperature == 0:
        return logits.argmax(-1)
    # Below the largest, or a tiny temperature overflows.
    values = logits.float() - logits.amax(-1, keepdim=True).float()
    ids = None
    if sampling.top_k:
        values, ids = values.topk(min(sampling.top_k, values.size(-1)))
    cumulative = (values / sampling.temperature).softmax(-1).cumsum(-1)
    target = uniform.to(cumulative.device)[:, None] * cumulative[:, -1:]
    choice = torch.searchsorted(cumulative, target, right=True).clamp(max=values.size(-1) - 1)
    if ids is not None:
        choice = ids.gather(-1, choice)
    return choice[:, 0]


@torch.inference_mode()
def beam_search(
    model: GPTNeo, prompts: Mapping[Key, list[int]], sampling: Sampling, stop: int | None = None
) -> Iterator[Completion]:
    """Yields the most likely continuation of each prompt, one after the other."""
    room, context = room_for(prompts, model, sampling)
    decoder = make_decoder(model, sampling.beams, context, exact=True)
    for key, prompt in prompts.items():
        yield key, *most_likely(decoder, prompt, room[key], sampling.beams, stop)


def most_likely(
    decoder, prompt: list[int], room: int, beams: int, stop: int | None
) -> tuple[list[int], bool]:
    """Tokens, and whether they ended by themselves. Texts compete by the mean log-probability of
    their tokens, as in transformers.generate(num_beams=beams): candidates that end are set aside,
    and the search ends when no growing text now beats the worst of the `beams` best of those."""
    logits = read(decoder, 0, prompt)[None]
    growing = [(0.0, [], 0)]  # log-probability, tokens, the slot that they come from
    ended = []
    for length in range(1, room + 1):
        before = torch.tensor([text[0] for text in growing]).to(logits)
        scores = logits.log_softmax(-1) + before[:, None]  # (texts, V)
        best = scores.flatten().topk(min(2 * beams, scores.numel()))
        candidates = []
        for rank, (score, i) in enumerate(zip(best.values.tolist(), best.indices.tolist())):
            slot, token = divmod(i, scores.size(1))
            tokens = growing[slot][1]
            if token != stop:
                candidates.append((score, [*tokens, token], slot))
            elif rank < beams:
                ended.append((score / length, tokens, True))
        growing = candidates[:beams]
        if length == room:
            ended += [(score / length, tokens, False) for score, tokens, _ in growing]
        ended = sorted(ended, key=lambda text: -text[0])[:beams]
        if length == room or not growing:
            break
        if len(ended) == beams and growing[0][0] / length <= ended[-1][0]:
            break
        moved = {new: old for new, (_, _, old) in enumerate(growing) if new != old}
        if moved:
            decoder.copy(list(moved.values()), list(moved))
        last_tokens = [tokens[-1] for _, tokens, _ in growing]
        logits = decoder.step(list(range(len(growing))), last_tokens)
    _, tokens, finished = ended[0]
    return tokens, finished
