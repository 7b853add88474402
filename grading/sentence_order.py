"""
How often a model finds a true story likelier than the same story with its sentences in another order.

>>> compare_orders("out/demo")["swapped"]["share"]  # also written to out/demo/orders.json
0.84
"""

from collections.abc import Sequence

import torch
import torch.nn as nn
import torch.nn.functional as F
from tqdm import tqdm

from checkpoints.checkpoint import corpus_of, directory_of, load_run
from common.files import write_json
from common.statistics import wilson
from corpus.token_files import load_stories
from corpus.tokenizer import Tokenizer
from variants.contrastive import sentence_ends, shuffle_sentences

# shuffled: all sentences but the first; has so many cues that even a model of a million parameters soon notices.
# swapped: two neighboring sentences; harder.
ORDERS = ("shuffled", "swapped")
FILE = "orders.json"


def with_other_order(
    story: str, order: str, tokenizer: Tokenizer, ends: torch.Tensor, block_size: int, seed: int
) -> torch.Tensor | None:
    """The story as it is and in another order, (2, T) tokens with T - 1 <= block_size; None if there is no other.

    A story that is too long is cut after the last whole sentence that fits.
    """
    tokens = torch.tensor([tokenizer.end_of_text, *tokenizer.encode(story), tokenizer.end_of_text])
    if len(tokens) > block_size + 1:
        tokens = tokens[: block_size + 1]
        tokens = tokens[: ends[tokens].nonzero().amax() + 1] if ends[tokens].any() else tokens[:1]
    n_sentences = int(ends[tokens].sum())
    generator = torch.Generator().manual_seed(seed)
    for _ in range(20 if n_sentences > 2 else 0):  # with few sentences, a draw may well be the true order
        keys = torch.rand(len(tokens) + 1, generator=generator)
        if order == "swapped":
            i = 1 + int(torch.randint(n_sentences - 2, (), generator=generator))
            keys = keys.sort().values
            keys[[i, i + 1]] = keys[[i + 1, i]]
        other = shuffle_sentences(tokens[None], ends, tokenizer.end_of_text, keys[None])[0]
        if not other.equal(tokens):
            return torch.stack([tokens, other])
    return None


@torch.inference_mode()
def leads(model: nn.Module, tokenizer: Tokenizer, stories: Sequence[str], order: str) -> list[float]:
    """How much likelier each story is than in another order (the same for every model), in nats per token."""
    ends, device, results = sentence_ends(tokenizer), model.wte.weight.device, []
    for seed, story in enumerate(tqdm(stories, order, unit="story", leave=False, disable=None, delay=1)):
        pair = with_other_order(story, order, tokenizer, ends, model.config.block_size, seed)
        if pair is not None:
            logits = model(pair[:, :-1].to(device))[0]  # (2, T - 1, V)
            true, other = F.cross_entropy(logits.mT, pair[:, 1:].to(device), reduction="none").mean(1).tolist()
            results.append(other - true)
    return results


def compare_orders(run: str) -> dict[str, dict]:
    """{order: share of the run's validation stories that it finds likelier than in this order, ...}; writes FILE."""
    model, tokenizer = load_run(run)
    model = model.to("cuda" if torch.cuda.is_available() else "cpu")
    corpus = corpus_of(run)
    stories = list(load_stories(corpus, "val")[1])
    result = {}
    for order in ORDERS:
        of_stories = leads(model, tokenizer, stories, order)
        if not of_stories:
            raise ValueError(f"{corpus}: its validation stories are too short to be put in another order")
        right, n = sum(lead > 0 for lead in of_stories), len(of_stories)
        low, high = wilson(right / n, n)
        result[order] = dict(share=right / n, low=low, high=high, stories=n, lead=sum(of_stories) / n)
    write_json(directory_of(run) / FILE, result)
    return result
