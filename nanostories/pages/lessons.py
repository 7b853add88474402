"""
Lessons for a model's page: claims about how it works, measured where a name comes for the second
time in a story of its own. A lesson is left out if a claim of it does not hold there.

>>> for lesson in find_lessons(model, means, words, stories):
...     print(lesson.kind, lesson.holds, [claim.measured for claim in lesson.claims])

All is measured on the weights as they are in the page, which measures again when a lesson is opened
(lessons.js).
"""

import functools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from model import GPTNeo
from nanostories.interpretation.ablation import without
from nanostories.interpretation.hooks import run
from nanostories.interpretation.logit_attribution import logit_lens

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


@torch.no_grad()
def inspect(model: GPTNeo, means: torch.Tensor, ids: Sequence[int], off: Sequence[str] = ()):
    """(n_layer, V), the probabilities after the last token if a layer were the last one (the "logit
    lens"); (n_layer, n_head, T), the attention from it. means: (n_layer, n_head, D), of what the
    heads put out; off: heads, each as "layer.head"."""
    patches = {}
    for layer, of_heads in enumerate(means):
        heads = [head for head in range(len(of_heads)) if f"{layer}.{head}" in off]
        patches[f"blocks.{layer}.z"] = without(heads, of_heads)
    cache = {}
    run(model, torch.tensor([ids]), cache, patches, with_pattern=True)
    layers = range(len(means))
    hidden = torch.stack([cache[f"blocks.{layer}.resid_post"][0, -1] for layer in layers])
    attention = torch.stack([cache[f"blocks.{layer}.pattern"][0, :, -1] for layer in layers])
    return logit_lens(model, hidden).softmax(-1), attention


def find_lessons(
    model: GPTNeo, means: torch.Tensor, words: Sequence[str], stories: Sequence[list[int]]
) -> list[Lesson]:
    """For each kind the first lesson that holds, or the first that was tried. words: the text of
    each token."""
    lessons = {}  # by kind
    mentions = second_mentions(model, words, stories)
    names = {ids[i] for _, ids, i in mentions}
    for share, ids, i in mentions[:MOST_TRIED]:
        other = min(names.difference(ids), default=ids[i])
        for lesson in lessons_at(model, means, ids, i, other):
            kept = lessons.setdefault(lesson.kind, lesson)
            if lesson.holds and not kept.holds:
                lessons[lesson.kind] = lesson
        # All lessons need a name that is expected, and later mentions are even less expected.
        if share < EXPECTED or all(lesson.holds for lesson in lessons.values()):
            break
    return list(lessons.values())


def second_mentions(
    model: GPTNeo, words: Sequence[str], stories: Sequence[list[int]]
) -> list[tuple[float, list[int], int]]:
    """(probability, story, place in it) of names that come for the second time, the likeliest
    first. Names are whole words with a capital that come after a lower-case one."""
    mentions = []
    for ids in stories:
        shares = shares_of(model, ids)
        for i in range(1, len(ids) - 1):
            before, word, after = (words[id] for id in ids[i - 1 : i + 2])
            is_capitalized = len(word) > 2 and word[1:3].istitle()  # " Li" of " Lily"; not " I"
            is_name = before[-1:].islower() and is_capitalized and not after[:1].isalpha()
            if is_name and ids[:i].count(ids[i]) == 1:
                mentions.append((shares[i - 1, ids[i]].item(), ids, i))
    return sorted(mentions, key=lambda mention: -mention[0])


@torch.no_grad()
def shares_of(model: GPTNeo, ids: Sequence[int]) -> torch.Tensor:
    """(T, V): the probability of each token in the place after each of these."""
    logits, _ = model(torch.tensor([ids]))
    return logits[0].softmax(-1)


def lessons_at(
    model: GPTNeo, means: torch.Tensor, ids: list[int], i: int, other: int
) -> Iterator[Lesson]:
    """One of each kind, at a place i of a story where a name comes for the second time. other: a
    name to exchange it with."""
    name = ids[i]
    look = functools.partial(inspect, model, means)
    lesson = functools.partial(Lesson, ids=ids, i=i)
    lens, attention = look(ids[:i])
    share = lens[-1, name].item()
    expected = Claim("the name is expected", share, low=EXPECTED)

    certain = Claim("the name is nearly certain", share, low=0.9)
    third, place = shares_of(model, ids[:-1]).topk(3).values[:, 2].max(0)
    uncertain = Claim("elsewhere, the third likeliest word is possible", third.item(), low=0.1)
    yield lesson("dice", claims=[certain, uncertain], shows={"place": place.item() + 1})

    n_layers = max(1, len(lens) // 2)
    early = lens[:n_layers, name].max().item()
    late = Claim("the first half of the layers does not know it", early, high=0.2)
    yield lesson("layers", claims=[expected, late], shows={"layers": n_layers})

    first = ids.index(name)
    looks = attention[:, :, first]
    heads = [f"{layer}.{head}" for layer, head in np.ndindex(*looks.shape)]
    most = Claim("one head looks at its first mention", looks.max().item(), low=0.5)
    shows = {"head": heads[looks.argmax()], "place": first}
    yield lesson("heads", claims=[expected, most], shows=shows)

    if len(heads) >= 2 * FEW:  # else there are no others to compare with
        claims, shows = switch_off(look, ids[:i], name, heads, share)
        yield lesson("switch", claims=[expected, *claims], shows=shows)

    exchanged = [other if id == name else id for id in ids[:i]]
    lens, _ = look(exchanged)
    new = Claim("with another name before, that one is expected", lens[-1, other].item(), low=0.5)
    old = Claim("and the old one is forgotten", lens[-1, name].item(), high=0.1)
    shows = {"exchanged": exchanged, "other": other}
    yield lesson("hero", claims=[expected, new, old], shows=shows)


def switch_off(look, ids: list[int], name: int, heads: list[str], share: float):
    """(claims, what the page switches off): the heads without which the name is least expected
    after these tokens, and as many others. share: of the name with all heads."""

    def share_without(off):
        lens, _ = look(ids, off)
        return lens[-1, name].item()

    heads = sorted(heads, key=lambda head: share_without([head]))
    few = heads[:FEW]
    others = heads[FEW:]
    random.Random(0).shuffle(others)
    others = others[:FEW]
    gone = Claim("without two heads, it is expected much less", share_without(few), high=share / 2)
    still = share_without(others)
    stays = Claim("without two others, picked at random, it still is", still, low=0.8 * share)
    return [gone, stays], {"few": few, "others": others}
