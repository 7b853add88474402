"""
A likelihood judge's three scores of a completion, from how likely a stronger model finds it.

fluency      log-likelihood of the completion after its beginning, bits per UTF-8 byte: minus the model's bpb on it
consistency  what it gains from its own beginning, bits per byte: that log-likelihood, minus the mean of those after the
             beginnings of N_OTHERS other stories, after half of which its sentences are in another order
ending       the probability that the story ends where it ends

>>> for story, scores in score(load_backend("out/ts_33m"), stories, other_beginnings(stories), bar):
...     print(scores["fluency"])
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tqdm import tqdm

from corpus.instruct_headers import MARKER
from grading.judge_controls import any_order, in_order
from grading.story import Story, key_of

# Other beginnings show what does not belong to the story, other orders what does not follow. With beginnings alone (a
# pointwise mutual information), shuffled sentences went unnoticed; with orders alone, another story's ending: LOG.md.
N_OTHERS = 4
DEFINITION = "3: after 4 others, every second in another order"  # change this with every change that affects scores
AT_ONCE = 32  # stories that are scored and saved together


def beginning(story: Story) -> str:
    """What precedes the completion: as in samples.jsonl, except for trailing whitespace."""
    return f"{story.instruction}\n{MARKER}{story.prompt}" if story.instruction else story.prompt


def other_beginnings(stories: Iterable[Story]) -> dict[str, list[str]]:
    """{task: the beginnings of N_OTHERS other stories}: those before it in the order of hashes.

    (The control OTHER has the ending of the story after it, so the beginning of that story is not among them.) Among
    many stories, adding one changes the others of only N_OTHERS stories.
    """
    ordered = in_order(stories)
    n = min(N_OTHERS, len(ordered) - 1)
    return {story.task: [beginning(ordered[i - j]) for j in range(1, n + 1)] for i, story in enumerate(ordered)}


def key_of_reading(weights: str, story: Story, others: Sequence[str]) -> str:
    """Equal for the same scores of the same story by the same model, wherever that model is stored."""
    return key_of(weights, DEFINITION, beginning(story), story.completion, others)


def score(
    backend, stories: Sequence[Story], others: Mapping[str, Sequence[str]], bar: tqdm
) -> Iterator[tuple[Story, dict[str, float]]]:
    """backend: a generation.backends.LocalBackend. others: by task. bar: counts readings.

    A completion without text has no fluency and no consistency, and without other stories there is no consistency.
    """
    from generation.token_likelihoods import log_likelihoods  # here, so that reading a ledger need not wait for torch

    encode, end = backend.tokenizer.encode, backend.tokenizer.end_of_text
    by_length = sorted(stories, key=lambda story: len(story.prompt) + len(story.completion))
    for start in range(0, len(by_length), AT_ONCE):
        chunk, pairs = by_length[start : start + AT_ONCE], []
        for story in chunk:
            # Encoded by itself: when a model wrote the completion, it began with a new token, too.
            text = encode(story.completion)
            pairs.append((backend.encode(beginning(story)), [*text, end]))
            pairs += [
                (backend.encode(other), encode(any_order(story, i)) if i % 2 else text)
                for i, other in enumerate(others[story.task])
            ]
        nats = iter(log_likelihoods(backend, pairs, bar))
        for story in chunk:
            own = next(nats).double()
            elsewhere = [next(nats).double().sum().item() for _ in others[story.task]]
            if not own.isfinite().all():
                raise ValueError("the judge's likelihoods are not finite: its training diverged or its weights are bad")
            yield story, scores_of(own.tolist(), elsewhere, len(story.completion.encode()))


def scores_of(own: Sequence[float], elsewhere: Sequence[float], n_bytes: int) -> dict[str, float]:
    """own: for each token after the own beginning, end of text last; elsewhere: sums after the others; all in nats."""
    *own, of_end = own
    scores, bits = {}, n_bytes * math.log(2)
    if n_bytes:
        scores["fluency"] = sum(own) / bits
    if n_bytes and elsewhere:
        scores["consistency"] = (sum(own) - sum(elsewhere) / len(elsewhere)) / bits
    return scores | dict(ending=math.exp(of_end))
