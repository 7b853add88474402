"""
Lessons for a model's page: claims about how it works, measured where a name comes for the second
time in a story of its own. A lesson is left out if a claim of it does not hold for this model.

>>> for lesson in find_lessons(model, means, words, stories):
...     print(lesson.kind, lesson.holds, [claim.measured for claim in lesson.claims])

All is measured on the weights as they are in the page, which measures again when a lesson is opened
(lessons.js).
"""

import functools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from model import GPTNeo
from nanostories.interpretation.ablation import without
from nanostories.interpretation.hooks import run

MOST_TRIED = 12  # second mentions
EXPECTED = 0.5  # probability of the name
FEW = 2  # heads to switch off, as the claims say


@dataclass
class Claim:
    text: str  # "the name" is the word at the lesson's place
    measured: float
    low: float = 0.0  # needed: at least this, and at most `high`
    high: float = 1.0

    @property
    def holds(self) -> bool:
        return self.low <= self.measured <= self.high


@dataclass
class Lesson:
    kind: str
    ids: list[int]  # the story
    i: int  # the place of the second mention
    claims: list[Claim]
    shows: dict  # what else lessons.js measures and lets the reader try

    @property
    def holds(self) -> bool:
        return all(claim.holds for claim in self.claims)


# (ids, heads that are off, each as "layer.head") -> (n_layer, V), the probabilities after the last
# token if a layer were the last one (the "logit lens"); and (n_layer, n_head, T), attention from it
Read = Callable[..., tuple[torch.Tensor, torch.Tensor]]


@torch.no_grad()
def read(model: GPTNeo, means: torch.Tensor, ids: Sequence[int], off: Sequence[str] = ()):
    """`Read` for a model; means (n_layer, n_head, D), of what its heads put out."""
    patches = {}
    for layer, of_heads in enumerate(means):
        heads = [head for head in range(len(of_heads)) if f"{layer}.{head}" in off]
        patches[f"blocks.{layer}.z"] = without(heads, of_heads)
    cache = {}
    run(model, torch.tensor([ids]), cache.__setitem__, patches, with_pattern=True)
    layers = range(len(means))
    hidden = torch.stack([cache[f"blocks.{layer}.resid_post"][0, -1] for layer in layers])
    attention = torch.stack([cache[f"blocks.{layer}.pattern"][0, :, -1] for layer in layers])
    return model.head(model.ln_f(hidden)).softmax(-1), attention


def find_lessons(
    model: GPTNeo, means: torch.Tensor, words: Sequence[str], stories: Sequence[list[int]]
) -> list[Lesson]:
    """For each kind the first lesson that holds, or the first that was tried. words: the text of
    each token."""
    found = {}
    mentions = second_mentions(model, words, stories)
    names = {ids[i] for _, ids, i, _ in mentions}
    for share, ids, i, unsure in mentions[:MOST_TRIED]:
        other = min(names.difference(ids), default=ids[i])
        for lesson in lessons_at(functools.partial(read, model, means), ids, i, unsure, other):
            kept = found.setdefault(lesson.kind, lesson)
            if lesson.holds and not kept.holds:
                found[lesson.kind] = lesson
        # All lessons need a name that is expected, and the next one is so even less.
        if share < EXPECTED or all(lesson.holds for lesson in found.values()):
            break
    return list(found.values())


@torch.no_grad()
def second_mentions(model: GPTNeo, words: Sequence[str], stories: Sequence[list[int]]) -> list:
    """[(probability, story, place, unsure)], the likeliest first, of names: whole words with a
    capital that come after a lower-case one. unsure: the largest probability of a third likeliest
    token in the story, and where."""
    mentions = []
    for ids in stories:
        logits, _ = model(torch.tensor([ids]))
        shares = logits[0].softmax(-1)
        for i in range(1, len(ids) - 1):
            before, word, after = (words[id] for id in ids[i - 1 : i + 2])
            is_name = before[-1:].islower() and word[1:3].istitle() and not after[:1].isalpha()
            if is_name and ids[:i].count(ids[i]) == 1:
                third, place = shares[:-1].topk(3).values[:, 2].max(0)
                unsure = (third.item(), place.item() + 1)
                mentions.append((shares[i - 1, ids[i]].item(), ids, i, unsure))
    return sorted(mentions, reverse=True)


def lessons_at(
    read: Read, ids: list[int], i: int, unsure: tuple[float, int], other: int
) -> Iterator[Lesson]:
    """One of each kind, for the second mention of a name at place i. unsure: as above; other: a
    name to exchange it with."""
    lesson = functools.partial(Lesson, ids=ids, i=i)
    name = ids[i]
    lens, attention = read(ids[:i])
    share = lens[-1, name].item()
    expected = Claim("the name is expected", share, low=EXPECTED)

    third, place = unsure
    certain = Claim("the name is nearly certain", share, low=0.9)
    uncertain = Claim("elsewhere, the third likeliest word is possible", third, low=0.1)
    yield lesson("dice", claims=[certain, uncertain], shows={"place": place})

    n_layers = max(1, len(lens) // 2)
    early = lens[:n_layers, name].max().item()
    late = Claim("the first half of the layers does not know it", early, high=0.2)
    yield lesson("layers", claims=[expected, late], shows={"layers": n_layers})

    first = ids.index(name)
    looks = attention[:, :, first]
    heads = [f"{layer}.{head}" for layer, head in (looks >= 0).nonzero().tolist()]
    most = Claim("one head looks at its first mention", looks.max().item(), low=0.5)
    shows = {"head": heads[looks.argmax()], "place": first}
    yield lesson("heads", claims=[expected, most], shows=shows)

    claims, shows = switch_off(read, ids[:i], name, heads)
    yield lesson("switch", claims=[expected, *claims], shows=shows)

    exchanged = [other if id == name else id for id in ids[:i]]
    lens, _ = read(exchanged)
    new = Claim("with another name before, that one is expected", lens[-1, other].item(), low=0.5)
    old = Claim("and the old one is forgotten", lens[-1, name].item(), high=0.1)
    shows = {"exchanged": exchanged, "other": other}
    yield lesson("hero", claims=[expected, new, old], shows=shows)


def switch_off(read: Read, ids: list[int], name: int, heads: list[str]):
    """(claims, what the page switches off): the heads without which the name is least expected
    after these tokens, and as many others."""

    def share_without(off):
        lens, _ = read(ids, off)
        return lens[-1, name].item()

    heads = sorted(heads, key=lambda head: share_without([head]))
    few = heads[:FEW]
    others = heads[FEW:]
    random.Random(0).shuffle(others)
    others = others[:FEW]
    share = share_without([])
    gone = Claim("without two heads, it is expected much less", share_without(few), high=share / 2)
    stays = Claim(
        "without two others, drawn by lot, it still is", share_without(others), low=0.8 * share
    )
    return [gone, stays], {"few": few, "others": others}
