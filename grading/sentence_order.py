"""
The contrastive objective: a story is to be likelier than the same story with its sentences in another order.

The published form divides by the loss on the shuffled story, so it never stops paying for making nonsense unlikely:

    reciprocal   L_next + alpha / (L_shuffled + 0.01)
    margin       L_next + alpha * max(0, margin - (L_shuffled - L_in_order)), which asks for no more than a margin

L_next is of the whole batch, the others are of those of its rows that are also shuffled.

$ python train.py configs/contrast_256.py
$ python contrastive.py out/contrast_256 out/ts_8m       # how often does a run tell a true story from a shuffled one?
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F
from tqdm import tqdm

from checkpoints.checkpoint import corpus_of, load_run
from common.files import write_json
from common.statistics import wilson
from corpus.token_files import load_meta, load_tokens
from corpus.tokenizer import END_OF_TEXT, Tokenizer
from variants.contrastive import sentence_ends, shuffle_sentences

# ---- A true story and one in another order ----

# All sentences but the first shuffled: so many cues are off that a plain model of a million parameters soon tells it.
# Two neighbours exchanged: harder.
ORDERS = ("shuffled", "swapped")
FILE = "orders.json"


def with_another(
    story: str, order: str, tokenizer: Tokenizer, ends: torch.Tensor, block_size: int, seed: int
) -> torch.Tensor | None:
    """The story and itself in another order, (2, T) tokens with T - 1 <= block_size; None if it has no other.

    Of a story that is too long, those whole sentences are taken that fit.
    """
    tokens = torch.tensor([tokenizer.end_of_text, *tokenizer.encode(story), tokenizer.end_of_text])
    if len(tokens) > block_size + 1:
        tokens = tokens[: block_size + 1]
        tokens = tokens[: ends[tokens].nonzero().amax() + 1] if ends[tokens].any() else tokens[:1]
    n_sentences = int(ends[tokens].sum())
    generator = torch.Generator().manual_seed(seed)
    for _ in range(20 if n_sentences > 2 else 0):  # of few sentences, the true order may well come up
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
    """By how much each story is likelier than in another order, the same for every model, in nats per token."""
    ends, device, results = sentence_ends(tokenizer), model.wte.weight.device, []
    for seed, story in enumerate(tqdm(stories, order, unit="story", leave=False, disable=None, delay=1)):
        pair = with_another(story, order, tokenizer, ends, model.config.block_size, seed)
        if pair is not None:
            logits = model(pair[:, :-1].to(device))[0]  # (2, T - 1, V)
            true, other = F.cross_entropy(logits.mT, pair[:, 1:].to(device), reduction="none").mean(1).tolist()
            results.append(other - true)
    return results


def tell_apart(run: Path) -> dict[str, dict]:
    """How many stories of the validation split the run finds likelier than in each other order; also written."""
    model, tokenizer = load_run(run)
    model = model.to("cuda" if torch.cuda.is_available() else "cpu")
    corpus = corpus_of(str(run))
    text = Tokenizer(load_meta(corpus)["gpt2_ids"]).decode(load_tokens(corpus, "val"))
    stories = [story for story in text.split(END_OF_TEXT) if story]
    result = {}
    for order in ORDERS:
        of_stories = leads(model, tokenizer, stories, order)
        if not of_stories:
            raise ValueError(f"{corpus}: its validation stories are too short to be put in another order")
        right, n = sum(lead > 0 for lead in of_stories), len(of_stories)
        low, high = wilson(right / n, n)
        result[order] = dict(share=right / n, low=low, high=high, stories=n, lead=sum(of_stories) / n)
    write_json(run / FILE, result)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="runs, or directories with runs below them")
    args = parser.parse_args()
    try:
        for directory in args.runs:
            runs = sorted(path.parent for path in directory.rglob("ckpt.pt"))
            if not runs:
                raise ValueError(f"{directory}: no run below it; train one with `python train.py`")
            for run in runs:
                for order, r in tell_apart(run).items():
                    share = f"{r['share']:6.1%} [{r['low']:.1%}, {r['high']:.1%}] of {r['stories']} stories"
                    print(f"{run}: {share} are likelier than {order}, by {r['lead']:.3f} nats per token on average")
        print(f"The intervals are Wilson's, 95 %. Each run has its figures in {FILE}")
    except KeyboardInterrupt:
        sys.exit("\ncontrastive.py: stopped; the runs that were named have their figures")
    except (ValueError, OSError) as error:
        sys.exit(f"contrastive.py: {error}")


if __name__ == "__main__":
    main()
