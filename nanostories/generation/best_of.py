"""
The best of several draws: of completions of a header, the one that has the most of what it asks
for.

>>> for key, text, finished, facts in complete(backend, {(0, 0): header}, Sampling(best_of=8)):
...     print(text, facts["all_words"])  # how many of the eight had all the words
"""

import collections
from collections.abc import Iterator, Mapping

from nanostories.corpus import instruct_headers
from nanostories.corpus.word_forms import SPEECH, ends_badly, has_sentence, uses_word
from nanostories.generation.prompts import Continuation, Key, Sampling

FEATURES = {"Dialogue": SPEECH.search, "BadEnding": ends_badly}  # others take a reader


def complete(
    backend, prompts: Mapping[Key, str], sampling: Sampling
) -> Iterator[tuple[Key, str, bool, dict]]:
    """Continuations as backend.complete yields them, each with facts for its row. Completion
    j of a prompt is one of its draws j * best_of to (j + 1) * best_of - 1."""
    n = sampling.best_of
    if n == 1:
        for continuation in backend.complete(prompts, sampling):
            yield *continuation, {}
        return
    wanted = {}
    for (i, j), prompt in prompts.items():
        wanted |= {(i, j * n + k): prompt for k in range(n)}
    drawn = collections.defaultdict(list)
    for draw in backend.complete(wanted, sampling):
        i, number = draw[0]
        key = (i, number // n)
        drawn[key].append(draw)
        if len(drawn[key]) == n:
            yield key, *choose(backend, prompts[key], sorted(drawn.pop(key)))


def choose(backend, prompt: str, draws: list[Continuation]) -> tuple[str, bool, dict]:
    """The draw with the most words of the header `prompt`, then with the most of its features and
    its sentence, then the likeliest per token. facts: the first draw, which is a story without
    --best_of, and how many draws have all the words, if any are asked for."""
    # here, as torch takes seconds
    from nanostories.generation.token_likelihoods import log_likelihoods

    asked = instruct_headers.read(prompt).instruction
    words = asked.get("words", ())
    before = backend.encode(prompt)
    end = [backend.tokenizer.end_of_text]  # it counts, so a story that was cut is less likely
    ids = [(before, backend.tokenizer.encode(text) + end) for _, text, _ in draws]
    ranks = []
    for (_, text, _), nats in zip(draws, log_likelihoods(backend, ids)):
        n_words = sum(uses_word(text, word) for word in words)
        n_others = "sentence" in asked and has_sentence(text, asked["sentence"])
        for feature, check in FEATURES.items():
            n_others += feature in asked.get("features", ()) and bool(check(text))
        # The mean: by their sum, the shortest would win. Beam search compares means, too.
        ranks.append((n_words, n_others, nats.mean()))
    _, text, finished = draws[ranks.index(max(ranks))]
    facts = {"first": draws[0][1]}
    if words:
        facts["all_words"] = [rank[0] for rank in ranks].count(len(words))
    return text, finished, facts
