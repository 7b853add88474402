"""
The generation loop: prompts in, completions out as they end, `batch_size` of them at a time; sampling and beam search.
(The decoders in decoders.py run the model and its KV cache; sampling on a GPU uses gpu_decoder.py instead.)

>>> for completion in generate(model, prompts, top_k=50, seed=7, stop=tokenizer.end_of_text):
...     print(completion.index, tokenizer.decode(completion.tokens), completion.finished)
"""

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from generation.decoders import SCRATCH, make_decoder
from generation.gpu_decoder import BURST, GpuDecoder
from model import GPTNeo
from variants.compressor import Compressor


@dataclass
class Completion:
    index: int  # of the prompt that this continues
    tokens: list[int] = field(default_factory=list)  # without the prompt and without the stop token
    finished: bool = False  # ended with the stop token; False: cut at max_new_tokens or at the end of the context


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
    """Continues every prompt (a list of ids), `batch_size` at a time, and yields each completion when it ends.

    A completion ends at the token `stop`, after `max_new_tokens`, or where the context is full. What is drawn for
    prompt i depends only on (seed, keys[i]), not on the rest of the batch (NativeDecoder's logits are bit-identical,
    the other decoders' equal up to rounding); keys are (0,), (1,), … unless given. `temperature` 0 is greedy.
    `on_token(i, token)` is called for every token as it is drawn. A CPU reads consecutive equal prompts only once.
    ValueError if a prompt does not fit the model, or its logits are not finite.
    """
    block_size, device = model.config.block_size, model.wte.weight.device
    max_new_tokens, context = check_lengths(prompts, model, max_new_tokens)
    batch_size = min(batch_size, len(prompts))
    keys = keys or [(index,) for index in range(len(prompts))]
    if grows_on_gpu(model):
        drawing = functools.partial(draw, temperature=temperature, top_k=top_k, top_p=top_p)
        exact = temperature == 0 or not torch.cuda.is_bf16_supported(including_emulation=False)
        dtype = torch.float32 if exact else torch.bfloat16
        decoder = GpuDecoder(model, batch_size, context, max_new_tokens, drawing, dtype) if prompts else None
        yield from grow_on_gpu(decoder, prompts, block_size, max_new_tokens, batch_size, seed, keys, stop, on_token)
        return
    decoder = make_decoder(model, batch_size, context, exact=temperature == 0)
    waiting = iter(enumerate(prompts))
    free = list(range(batch_size))
    active: dict[int, Completion] = {}  # slot -> its completion so far
    uniform = np.zeros((batch_size, max_new_tokens), dtype=np.float32)
    logits: list[torch.Tensor] = []  # of the next token in the active slots, in their order
    in_scratch, first_logits = None, None

    while True:
        for index, prompt in itertools.islice(waiting, len(free)):  # a free slot takes the next prompt at once
            if prompt != in_scratch:
                in_scratch, first_logits = prompt, decoder.read(SCRATCH, prompt)
                if not first_logits.isfinite().all():
                    raise ValueError("the model's logits are not finite: its training diverged or its weights are bad")
            slot = free.pop()
            decoder.copy(SCRATCH, slot)
            logits.append(first_logits[None])
            active[slot] = Completion(index)
            uniform[slot] = uniform_numbers(seed, keys[index], max_new_tokens)
        if not active:
            return
        chances = [uniform[slot, len(completion.tokens)] for slot, completion in active.items()]
        tokens = draw(torch.cat(logits), torch.tensor(chances, device=device), temperature, top_k, top_p)
        continuing = {}
        for slot, token in zip(list(active), tokens.tolist()):
            completion = active[slot]
            if token == stop:
                completion.finished = True
            else:
                completion.tokens.append(token)
                if on_token:
                    on_token(completion.index, token)
            full = len(prompts[completion.index]) + len(completion.tokens) >= block_size
            if completion.finished or full or len(completion.tokens) == max_new_tokens:
                yield active.pop(slot)
                free.append(slot)
            else:
                continuing[slot] = token
        logits = [decoder.step(list(continuing), list(continuing.values()))] if continuing else []


def uniform_numbers(seed: int, key: tuple[int, ...], n: int) -> np.ndarray:
    return np.random.default_rng([seed, *key]).random(n, dtype=np.float32)


def grows_on_gpu(model: GPTNeo) -> bool:
    return model.wte.weight.is_cuda and not isinstance(model, Compressor)


def grow_on_gpu(decoder, prompts, block_size, max_new_tokens, batch_size, seed, keys, stop, on_token):
    """generate() with a GpuDecoder: the host reads the texts every BURST tokens, or after each for `on_token`."""
    waiting, free = iter(range(len(prompts))), list(range(batch_size))
    active: dict[int, Completion] = {}  # slot -> its completion so far
    while True:
        if entering := [(free.pop(), index) for index in itertools.islice(waiting, len(free))]:
            uniform = np.stack([uniform_numbers(seed, keys[index], max_new_tokens) for _, index in entering])
            slots, indices = zip(*entering)
            decoder.start(list(slots), [prompts[index] for index in indices], uniform)
            active |= {slot: Completion(index) for slot, index in entering}
        if not active:
            return
        room = {
            slot: min(max_new_tokens, block_size - len(prompts[text.index])) - len(text.tokens)
            for slot, text in active.items()
        }
        n_steps = min(1 if on_token else BURST, max(room.values()))
        written = decoder.run(n_steps)
        ended = []
        for slot, completion in active.items():
            start = len(completion.tokens)
            tokens = written[slot, start : start + min(n_steps, room[slot])].tolist()
            if stop in tokens:
                tokens, completion.finished = tokens[: tokens.index(stop)], True
            completion.tokens += tokens
            for token in tokens if on_token else ():
                on_token(completion.index, token)
            if completion.finished or room[slot] <= n_steps:
                ended.append(slot)
        for slot in ended:
            yield active.pop(slot)
        free += ended


def check_lengths(prompts: Sequence[list[int]], model: GPTNeo, max_new_tokens: int | None) -> tuple[int, int]:
    """(most new tokens, longest text including its prompt). ValueError if a prompt does not fit the model."""
    block_size, vocab_size = model.config.block_size, model.config.vocab_size
    for i, prompt in enumerate(prompts):
        if not 0 < len(prompt) < block_size:
            raise ValueError(f"prompt {i} has {len(prompt)} tokens; this model's context takes 1 to {block_size - 1}")
        if not 0 <= min(prompt) <= max(prompt) < vocab_size:
            found = f"ids from {min(prompt)} to {max(prompt)}"
            raise ValueError(f"prompt {i} has {found}; this model knows 0 to {vocab_size - 1}")
    max_new_tokens = block_size if max_new_tokens is None else min(max_new_tokens, block_size)
    return max_new_tokens, min(block_size, max(map(len, prompts), default=0) + max_new_tokens)


def draw(
    logits: torch.Tensor, uniform: torch.Tensor, temperature: float, top_k: int | None, top_p: float | None
) -> torch.Tensor:
    """An id for each row of logits, (B, V) -> (B,), by inverting the cumulative distribution at `uniform`, (B,)."""
    if temperature == 0:
        return logits.argmax(-1)
    logits = logits.float() - logits.amax(-1, keepdim=True).float()  # otherwise a tiny temperature overflows
    if top_k is None and top_p is None:
        values, ids = logits, None
    else:
        values, ids = logits.topk(min(top_k or logits.size(-1), logits.size(-1)), dim=-1)
    probabilities = torch.softmax(values / max(temperature, 1e-37), dim=-1)  # smaller ones are 0 in float32
    cumulative = probabilities.cumsum(-1)
    total = cumulative[:, -1:]
    if top_p is not None:
        # The smallest set of most likely tokens with at least top_p: drop a token where those before it suffice.
        inside = (cumulative - probabilities) < top_p
        total = (probabilities * inside).sum(-1, keepdim=True)
    choice = torch.searchsorted(cumulative, uniform[:, None] * total, right=True).clamp(max=values.size(-1) - 1)
    return (choice if ids is None else ids.gather(-1, choice))[:, 0]


@torch.inference_mode()
def beam_search(
    model: GPTNeo, prompts: Sequence[list[int]], beams: int, max_new_tokens: int | None = None, stop: int | None = None
) -> Iterator[Completion]:
    """Yields the most likely continuation that a beam search finds for each prompt, one prompt after the other.

    Texts compete by their mean log-probability per token, as in transformers.generate(num_beams=beams): candidates
    that end are set aside, and the search ends when no growing text could beat the worst of the `beams` best of those.
    """
    block_size = model.config.block_size
    max_new_tokens, context = check_lengths(prompts, model, max_new_tokens)
    decoder = make_decoder(model, beams, context, exact=True)
    for index, prompt in enumerate(prompts):
        logits = decoder.read(SCRATCH, prompt)[None]
        for slot in range(beams):
            decoder.copy(SCRATCH, slot)
        growing = [Beam(0.0, [], slot=0)]
        ended: list[tuple[float, list[int], bool]] = []  # mean log-probability, tokens, whether ended by itself
        longest = min(max_new_tokens, block_size - len(prompt))
        for length in range(1, longest + 1):
            scores = torch.log_softmax(logits.float(), -1) + torch.tensor([[beam.score] for beam in growing]).to(logits)
            best, flat = (x.tolist() for x in scores.flatten().topk(min(2 * beams, scores.numel())))
            candidates = [(score, growing[i // scores.size(1)], i % scores.size(1)) for score, i in zip(best, flat)]
            ended += [(score / length, beam.tokens, True) for score, beam, token in candidates[:beams] if token == stop]
            continuing = [candidate for candidate in candidates if candidate[2] != stop][:beams]
            if length == longest:
                ended += [(score / length, beam.tokens + [token], False) for score, beam, token in continuing]
            ended = sorted(ended, key=lambda text: -text[0])[:beams]
            if not continuing or len(ended) == beams and continuing[0][0] / length <= ended[-1][0]:
                break
            growing = grow(continuing, decoder, beams)
            if length < longest:
                logits = decoder.step([beam.slot for beam in growing], [beam.tokens[-1] for beam in growing])
        yield Completion(index, ended[0][1], ended[0][2])


@dataclass
class Beam:
    score: float  # sum of the log-probabilities of its tokens
    tokens: list[int]
    slot: int  # where the decoder has read all but the last of them


def grow(candidates: list[tuple[float, Beam, int]], decoder, beams: int) -> list[Beam]:
    """The chosen candidates as beams. The first child of a beam stays in its slot; other children get a copy of it."""
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
