"""
Which activations carry an answer? Two prompts that differ in one word have different answers.
Activations of the first are put into the run on the second, one at a time, to measure how much of
the first answer comes back.

>>> patching = patch(model, texts)  # (2, T + 1); the last tokens are the answers
>>> patching.residual[2, 5]  # brought back by the residual stream before layer 2, at position 5
>>> patching.heads[3, 0]  # brought back by head 0 of layer 3, by its output at all positions

Activation patching with a logit difference, as in Wang et al. (2022), "Interpretability in the
wild". 0: the difference is that on the second prompt, 1: that on the first.
"""

from dataclasses import dataclass

import torch
from tqdm import tqdm

from model import GPTNeo
from nanostories.cli import UserError
from nanostories.interpretation.hooks import run, run_with_cache

FEW_LOGITS = 0.5  # shares of a smaller difference would mean little


@dataclass
class Patching:
    leads: list[float]  # the first answer's logit minus the second's, after each prompt
    # Shares of the first answer that come back.
    residual: torch.Tensor  # (L + 1, T): before each layer, and after the last, at each position
    heads: torch.Tensor  # (L, H)


@torch.no_grad()
def patch(model: GPTNeo, texts: torch.Tensor) -> Patching:
    """texts (2, T + 1): the prompts, each with its answer at the end. UserError if the model hardly
    favors each text's own."""
    prompts = texts[:, :-1]
    logits, cache = run_with_cache(model, prompts)
    first, second = lead(logits, texts).tolist()
    if first - second < FEW_LOGITS:
        raise UserError(
            f"--patch: the first answer's logit is {first:+.2f} above the second's after the first"
            f" text, {second:+.2f} after the second: the model does not favor each text's own"
            f" answer by {FEW_LOGITS} logits in all; choose texts whose last tokens differ, and"
            " follow from a word before"
        )

    def brought_back(name: str, dim: int) -> torch.Tensor:
        """(N,): the share that comes back with these activations of the first prompt, at one of the
        N indices along `dim` at a time."""
        shares = []
        for i in range(cache[name].size(dim)):
            patched = cache[name][1:].clone()
            patched.select(dim, i).copy_(cache[name][:1].select(dim, i))
            hidden = run(model, prompts[1:], patches={name: lambda _, patched=patched: patched})
            patched_lead = lead(model.head(hidden), texts).item()
            shares.append((patched_lead - second) / (first - second))
        return torch.tensor(shares)

    residual = []
    heads = []
    last = model.config.n_layer - 1
    for layer in tqdm(range(last + 1), "patching", unit="layer", disable=None, delay=1):
        residual.append(brought_back(f"blocks.{layer}.resid_pre", dim=1))
        heads.append(brought_back(f"blocks.{layer}.z", dim=2))
    residual.append(brought_back(f"blocks.{last}.resid_post", dim=1))
    return Patching([first, second], torch.stack(residual), torch.stack(heads))


def lead(logits: torch.Tensor, texts: torch.Tensor) -> torch.Tensor:
    """logits (B, T, V) -> the first answer's lead over the second after the last token, (B,)."""
    first, second = texts[:, -1]
    return logits[:, -1, first] - logits[:, -1, second]
