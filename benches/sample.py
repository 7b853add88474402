"""
Our generate() against transformers.generate and a plain GPT without a cache, as nanoGPT samples:
tokens per second with 1, 16 and 64 prompts at a time. Dtypes that this processor only emulates are
skipped. All share a process.

$ python bench.py sample           # needs transformers: pip install -r requirements-dev.txt
"""

from functools import partial

import torch

from benches.measure import DEVICE, alternating_medians, peer_dtypes, seconds_of
from benches.models import SHAPE, PlainGPT, our_model, random_tokens, their_model
from model import GPTNeo
from nanostories.device import set_up_device
from nanostories.generation.generation_loop import draw, generate
from nanostories.kernels.compile_cpp import dtype_name

PROMPT_TOKENS, NEW_TOKENS, TOP_K = 40, 200, 50
PLAIN_NEW_TOKENS = (
    10  # by the plain GPT, halfway through a text: without a cache, all of it would take minutes
)


def ours(
    model: GPTNeo,
    prompts: torch.Tensor,
    batch_size: int = 64,
    top_k: int | None = TOP_K,
    **settings,
):
    completions = list(
        generate(
            model, prompts.tolist(), NEW_TOKENS, top_k=top_k, batch_size=batch_size, **settings
        )
    )
    assert all(len(completion.tokens) == NEW_TOKENS for completion in completions)


@torch.inference_mode()
def transformers(model, prompts: torch.Tensor):
    prompts = prompts.to(model.device)
    settings = dict(
        do_sample=True, top_k=TOP_K, max_new_tokens=NEW_TOKENS, eos_token_id=None, pad_token_id=0
    )
    texts = model.generate(prompts, attention_mask=torch.ones_like(prompts), **settings)
    assert texts.shape == (len(prompts), prompts.size(1) + NEW_TOKENS)


@torch.inference_mode()
def nanogpt(model: PlainGPT, texts: torch.Tensor):
    for _ in range(PLAIN_NEW_TOKENS):
        tokens = draw(model(texts), torch.rand(len(texts), device=texts.device), 1.0, TOP_K)
        texts = torch.cat([texts, tokens[:, None]], dim=1)


def bench(rounds: int = 3) -> tuple[dict, dict]:
    set_up_device(DEVICE)
    ratios, figures = {}, {}
    model, plain = our_model(), PlainGPT(**SHAPE).to(DEVICE).eval()
    theirs = {dtype_name(dtype): their_model(dtype) for dtype in peer_dtypes()}
    for batch_size in (1, 16, 64):
        prompts = random_tokens(batch_size, PROMPT_TOKENS)
        halfway = random_tokens(batch_size, PROMPT_TOKENS + NEW_TOKENS // 2).to(DEVICE)
        contestants = {
            "ours": partial(ours, model, prompts, batch_size),
            "ours, greedy (float32)": partial(
                ours, model, prompts, batch_size, None, temperature=0
            ),
            "nanoGPT-style, float32": partial(nanogpt, plain, halfway),
        } | {
            f"transformers, {name}": partial(transformers, peer, prompts)
            for name, peer in theirs.items()
        }
        seconds = alternating_medians(contestants, rounds)
        seconds["nanoGPT-style, float32"] *= NEW_TOKENS / PLAIN_NEW_TOKENS
        best_peer = min(value for name, value in seconds.items() if name.startswith("transformers"))
        ratios[f"batch{batch_size}"] = best_peer / seconds["ours"]
        ratios[f"nanogpt_batch{batch_size}"] = seconds["nanoGPT-style, float32"] / seconds["ours"]
        for name, value in seconds.items():
            figures[f"{name}, batch {batch_size}, tokens/s"] = batch_size * NEW_TOKENS / value
    fifty = random_tokens(50, 100).repeat_interleave(10, dim=0)
    label = "ours, 50 prompts of 100 tokens x 10 completions of 200, no top-k, seconds"
    figures[label] = seconds_of(lambda: ours(model, fifty, top_k=None))
    return ratios, figures
