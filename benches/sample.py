"""
generate() beside transformers.generate, in float32 and bfloat16: tokens a second, 1 and 64 prompts at a time; memory.

$ python bench.py sample           # needs transformers: pip install -r requirements-dev.txt
"""

import tempfile
from functools import partial

import torch

from benches.measure import alone, alternating_medians, peak_mib
from benches.models import export_random_model, our_model, random_tokens, their_model
from generate import generate
from model import GPTNeo

PROMPT_TOKENS, NEW_TOKENS, TOP_K = 40, 200, 50


def we_generate(model: GPTNeo, prompts: torch.Tensor, batch_size: int, **settings):
    completions = list(generate(model, prompts.tolist(), NEW_TOKENS, batch_size=batch_size, **settings))
    assert all(len(completion.tokens) == NEW_TOKENS for completion in completions)


@torch.inference_mode()
def they_generate(model, prompts: torch.Tensor):
    prompts = prompts.to(model.device)
    settings = dict(do_sample=True, top_k=TOP_K, max_new_tokens=NEW_TOKENS, eos_token_id=None, pad_token_id=0)
    texts = model.generate(prompts, attention_mask=torch.ones_like(prompts), **settings)
    assert texts.shape == (len(prompts), prompts.size(1) + NEW_TOKENS)


def memory_of_ours(directory: str) -> float:
    we_generate(our_model(directory), random_tokens(64, PROMPT_TOKENS), 64, top_k=TOP_K)
    return peak_mib()


def memory_of_theirs(directory: str) -> float:
    they_generate(their_model(directory), random_tokens(64, PROMPT_TOKENS))
    return peak_mib()


def bench(rounds: int) -> tuple[dict, dict]:
    ratios, figures = {}, {}
    with tempfile.TemporaryDirectory() as directory:
        export_random_model(directory)
        ours, theirs = our_model(directory), their_model(directory)
        theirs_bfloat16 = their_model(directory, torch.bfloat16)
        for batch_size in (1, 64):
            prompts = random_tokens(batch_size, PROMPT_TOKENS)
            contestants = {
                "ours": partial(we_generate, ours, prompts, batch_size, top_k=TOP_K),
                "ours, greedy (float32)": partial(we_generate, ours, prompts, batch_size, temperature=0),
                "transformers, float32": partial(they_generate, theirs, prompts),
                "transformers, bfloat16": partial(they_generate, theirs_bfloat16, prompts),
            }
            seconds = alternating_medians(contestants, rounds)
            best_peer = min(seconds["transformers, float32"], seconds["transformers, bfloat16"])
            ratios[f"batch{batch_size}"] = best_peer / seconds["ours"]
            for name, value in seconds.items():
                figures[f"{name}, batch {batch_size}, tokens/s"] = batch_size * NEW_TOKENS / value
        fifty = random_tokens(50, 100).repeat_interleave(10, dim=0)
        seconds = alternating_medians({"500": lambda: we_generate(ours, fifty, 64)}, rounds=1)
        figures["ours, 50 prompts of 100 tokens x 10 completions of 200, no top-k, seconds"] = seconds["500"]
        figures["ours, batch 64, peak MiB"] = alone(memory_of_ours, directory)
        figures["transformers, float32, batch 64, peak MiB"] = alone(memory_of_theirs, directory)
    return ratios, figures
