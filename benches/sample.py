"""
Our generate() against transformers.generate and a plain GPT without a cache, as nanoGPT samples:
tokens per second with 1, 16 and 64 prompts at a time. Dtypes that this processor only emulates are
skipped. All share a process.

$ python bench.py sample           # needs transformers: pip install -r requirements-dev.txt
"""

from functools import partial

import torch

from benches.measure import DEVICE, alternating_medians, peer_dtypes, seconds_of
from benches.models import SHAPE, PlainGPT, random_tokens, tell_stories, transformers_gptneo
from model import GPTNeo
from nanostories.device import set_up_device

PROMPT_TOKENS = 40
NEW_TOKENS = 200
TOP_K = 50
# Of the plain GPT, halfway through a text: without a cache, all of it would take minutes.
PLAIN_NEW_TOKENS = 10


def transformers(model: torch.nn.Module, prompts: torch.Tensor) -> None:
    texts = model.generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        do_sample=True,
        top_k=TOP_K,
        max_new_tokens=NEW_TOKENS,
        pad_token_id=0,
    )
    assert texts.size(1) == PROMPT_TOKENS + NEW_TOKENS


@torch.inference_mode()
def nanogpt(model: PlainGPT, texts: torch.Tensor) -> None:
    for _ in range(PLAIN_NEW_TOKENS):
        logits, _ = model(texts)
        logits, ids = logits.topk(TOP_K)
        choices = torch.multinomial(logits.softmax(-1), 1)
        texts = torch.cat([texts, ids.gather(1, choices)], dim=1)


def bench(rounds=3):
    set_up_device(DEVICE)
    torch.manual_seed(0)
    our_model = GPTNeo(SHAPE).to(DEVICE).eval()
    plain_model = PlainGPT(SHAPE).to(DEVICE).eval()
    their_models = {}
    for dtype in peer_dtypes():
        their_models[f"transformers, {dtype}"] = transformers_gptneo(SHAPE, dtype).to(DEVICE).eval()

    ratios = {}
    figures = {}
    for batch_size in (1, 16, 64):
        prompts = random_tokens(batch_size, PROMPT_TOKENS)
        halfway = random_tokens(batch_size, PROMPT_TOKENS + NEW_TOKENS // 2)
        contestants = {
            "ours": partial(tell_stories, our_model, prompts, NEW_TOKENS, TOP_K),
            "nanoGPT-style": partial(nanogpt, plain_model, halfway),
        }
        for name, model in their_models.items():
            contestants[name] = partial(transformers, model, prompts)
        seconds = alternating_medians(contestants, rounds)
        seconds["nanoGPT-style"] *= NEW_TOKENS / PLAIN_NEW_TOKENS
        for name, value in seconds.items():
            figures[f"{name}, batch {batch_size}, tokens/s"] = batch_size * NEW_TOKENS / value
        their_seconds = min(seconds[name] for name in their_models)
        ratios[f"transformers, batch {batch_size}"] = their_seconds / seconds["ours"]
        ratios[f"nanoGPT-style, batch {batch_size}"] = seconds["nanoGPT-style"] / seconds["ours"]

    many = random_tokens(50, 100).repeat_interleave(10, dim=0)
    label = "ours, 50 prompts of 100 tokens x 10 completions of 200, no top-k, seconds"
    figures[label] = seconds_of(partial(tell_stories, our_model, many, NEW_TOKENS))
    return ratios, figures
