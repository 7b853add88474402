"""
Which activations carry an answer? Two prompts that differ in one word have different answers.
Activations of the first are put into the run on the second, one at a time, to measure how much of
the first answer comes back.

# (T + 1,) each; their last tokens are the answers
>>> heads, residual, differences = patch(model, tokens, others)
>>> residual[2, 5]  # brought back by the residual stream before layer 2, at position 5
>>> heads[0]["brought_back"]           # by head 0 of layer 0

Activation patching with a logit difference, as in Wang et al. (2022), "Interpretability in the
wild". 0: the difference is that on the second prompt, 1: that on the first.
"""

from collections.abc import Sequence
from functools import partial

import torch
from tqdm import tqdm

from model import GPTNeo
from nanostories.cli import UserError
from nanostories.interpretation.hooks import run, run_with_cache
from nanostories.interpretation.logit_attribution import unembedding

WRITTEN = 3  # tokens per head
AT_ONCE = 8192  # tokens in a batch of patched runs


def check_prompts(
    tokens: Sequence[int], others: Sequence[int], pieces: Sequence[Sequence[str]]
) -> None:
    """ValueError if these prompts, with their answers, cannot be patched. pieces: the pieces of
    both."""
    if len(tokens) != len(others):
        longer = " and ".join(
            f"{len(ids)} ({'|'.join(pieces)})" for ids, pieces in zip((tokens, others), pieces)
        )
        raise UserError(
            f"--patch needs prompts with equally many tokens, but these have {longer}; choose other"
            " words"
        )
    if tokens[-1] == others[-1]:
        raise UserError(
            f"--patch: the prompts must end in different answers, but both end in {pieces[0][-1]!r}"
        )
    if list(tokens[:-1]) == list(others[:-1]):
        raise UserError(
            "--patch: the prompts differ only in their answers, so there is nothing to patch"
        )


@torch.no_grad()
def predict_answers(
    model: GPTNeo, tokens: torch.Tensor, others: torch.Tensor
) -> list[dict[str, tuple[int, float]]]:
    """After each of the two prompts: its own answer, the other's and the likeliest token, each with
    its probability."""
    given, answers = [], (tokens[-1].item(), others[-1].item())
    for prompt, (own, other) in ((tokens, answers), (others, answers[::-1])):
        p = model(prompt[None, :-1])[0][0, -1].softmax(-1)
        asked = dict(own=own, other=other, likeliest=p.argmax().item())
        given.append({which: (token, p[token].item()) for which, token in asked.items()})
    return given


@torch.no_grad()
def patch(
    model: GPTNeo, tokens: torch.Tensor, others: torch.Tensor
) -> tuple[list[dict], torch.Tensor, tuple[float, float]]:
    """tokens, others (T + 1,): the prompts, each with its answer at the end. ValueError if they
    make no difference.

    -> for each head: brought_back by its output at all positions; lost_without, if, conversely, its
    output on the second prompt is put into the first; and on the first prompt, at the last token:
    direct, its addition to the difference, looks_at, the position with most of its `attention`, and
    the tokens that it writes, likeliest first; (L + 1, T), brought back by the residual stream
    before each layer, and after the last, at each position; the differences on both prompts: the
    logit of the first answer minus that of the second, after the last token.
    """
    answers = tokens[-1].item(), others[-1].item()
    tokens, others = tokens[None, :-1], others[None, :-1]
    (logits, cache), (other_logits, other_cache) = (
        run_with_cache(model, each) for each in (tokens, others)
    )
    first, second = (difference(each, answers).item() for each in (logits, other_logits))
    if first <= second:
        raise UserError(
            f"--patch: the first answer's logit is {first:+.2f} above the second's after the first"
            f" prompt, {second:+.2f} after the second: the model does not tell these prompts apart;"
            " choose others"
        )
    n_layer, n_head, T = model.config.n_layer, model.config.n_head, tokens.size(1)
    put = partial(differences_with, model, answers=answers)
    reader = unembedding(
        model, model.head.weight, cache[f"blocks.{n_layer - 1}.resid_post"][0, -1]
    )  # (V, C)
    residual, rows = torch.zeros(n_layer + 1, T), []
    first_different = (
        (tokens != others)[0].nonzero()[0].item()
    )  # before it, all activations are the same
    positions, which = (
        torch.arange(*each, device=tokens.device) for each in ((first_different, T), (0, n_head))
    )
    for layer in tqdm(range(n_layer + 1), "patching", unit="layer", disable=None, delay=1):
        name = f"blocks.{layer}.resid_pre" if layer < n_layer else f"blocks.{layer - 1}.resid_post"
        back = put(others, name, cache[name], other_cache[name], positions, dim=1)
        residual[layer, first_different:] = (back.cpu() - second) / (first - second)
        if layer == n_layer:
            break
        name = f"blocks.{layer}.z"
        back = put(others, name, cache[name], other_cache[name], which, dim=2)
        without = put(tokens, name, other_cache[name], cache[name], which, dim=2)
        attention, looks_at = cache[f"blocks.{layer}.pattern"][0, :, -1].max(-1)
        written = cache[f"blocks.{layer}.result"][0, -1] @ reader.T  # (H, V)
        direct = (written[:, answers[0]] - written[:, answers[1]]).tolist()
        writes = written.topk(WRITTEN).indices.tolist()
        for head in range(n_head):
            row = dict(
                layer=layer,
                head=head,
                brought_back=((back[head] - second) / (first - second)).item(),
            )
            row |= dict(lost_without=((first - without[head]) / (first - second)).item())
            row |= dict(direct=direct[head], looks_at=looks_at[head].item())
            rows.append(row | dict(attention=attention[head].item(), writes=writes[head]))
    return rows, residual, (first, second)


def difference(logits: torch.Tensor, answers: tuple[int, int]) -> torch.Tensor:
    """logits (B, T, V) -> the first answer's lead over the second after the last token, (B,)."""
    return logits[:, -1, answers[0]] - logits[:, -1, answers[1]]


def differences_with(
    model: GPTNeo, tokens, name: str, source, target, indices, dim: int, answers
) -> torch.Tensor:
    """The logit difference, (N,), on tokens (1, T), if activations `name` are `target` (1, …),
    except at one of N indices along `dim`, where they are those of `source`."""
    found = []
    for some in indices.split(max(1, AT_ONCE // tokens.size(1))):
        versions = target.repeat(len(some), *[1] * (target.dim() - 1))
        for version, index in zip(versions, some):
            version.select(dim - 1, index).copy_(source[0].select(dim - 1, index))
        batch = tokens.expand(len(some), -1)
        hidden = run(model, batch, patches={name: lambda _, versions=versions: versions})
        found.append(difference(model.head(hidden[:, -1:]), answers))
    return torch.cat(found)
