"""
Which activations carry an answer? Two prompts that differ in one word have different answers. Activations of the first
are put into the run on the second, one at a time, to measure how much of the first answer comes back.

>>> patching = patch(model, tokens, others)     # (T,) each; their last tokens are the answers
>>> patching.residual[2, 5]                     # brought back by the residual stream before layer 2, at position 5

Activation patching with a logit difference, as in Wang et al. (2022), "Interpretability in the wild". 0: the difference
is that on the second prompt, 1: that on the first.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from tqdm import tqdm

from interpretation.hooks import run, run_with_cache
from interpretation.logit_attribution import attribution, unembedding
from model import GPTNeo

WRITTEN = 3  # tokens per head
AT_ONCE = 8192  # tokens in a batch of patched runs


@dataclass
class Patching:
    """Results for two prompts of T tokens, not counting their answers. Differences: the logit of the first answer minus
    that of the second, after the last token."""

    first: float  # the difference on the first prompt …
    second: float  # … and on the second
    residual: torch.Tensor  # (L + 1, T): the share brought back by the stream before each layer, and after the last
    heads: torch.Tensor  # (L, H): brought back by the head's output, at all positions
    without: torch.Tensor  # (L, H): lost if, conversely, the head's output on the second is put into the first
    direct: torch.Tensor  # (L, H): what the head itself adds to the difference on the first
    reads: list[list[tuple[int, float]]]  # [L][H]: the position the last token looks at most, and its attention
    writes: list[list[list[int]]]  # [L][H]: the tokens that the head's output there makes likeliest, on the first

    def rows(self, pieces: Sequence[str], text_of: Callable[[int], str]) -> list[dict]:
        """patching.csv: a row for each head. pieces: of the first prompt."""
        return [
            dict(
                layer=layer, head=head, brought_back=self.heads[layer, head].item(),
                lost_without=self.without[layer, head].item(), direct=self.direct[layer, head].item(),
                looks_at=pieces[position], attention=attention,
                writes=", ".join(repr(text_of(i)) for i in self.writes[layer][head]),
            )
            for layer, heads in enumerate(self.reads)
            for head, (position, attention) in enumerate(heads)
        ]  # fmt: skip

    def describe(self, pieces: Sequence[Sequence[str]]) -> list[str]:
        """What is printed and shown on the page. pieces: of both prompts, with their answers."""
        answer, other = (repr(each[-1]) for each in pieces)
        layer, head = divmod(self.heads.argmax().item(), self.heads.size(1))
        position, attention = self.reads[layer][head]
        return [
            f"The logit of {answer} is {self.first:+.2f} above that of {other} on the first prompt, {self.second:+.2f} "
            "on the second. Shares are of the distance between the two.",
            f"Layer {layer}, head {head} alone brings back {self.heads[layer, head]:.0%}: from the last token it looks "
            f"at {pieces[0][position]!r} with {attention:.0%} of its attention, and what it writes there adds "
            f"{self.direct[layer, head]:+.2f} logits. If its output on the second prompt is put into the first, "
            f"{self.without[layer, head]:.0%} is lost.",
        ]


def check_prompts(tokens: Sequence[int], others: Sequence[int], of_text: Sequence[Sequence[str]]) -> None:
    """ValueError if these prompts, with their answers, cannot be patched. of_text: the pieces of both."""
    if len(tokens) != len(others):
        longer = " and ".join(f"{len(ids)} ({'|'.join(pieces)})" for ids, pieces in zip((tokens, others), of_text))
        raise ValueError(f"--patch needs prompts with equally many tokens, but these have {longer}; choose other words")
    if tokens[-1] == others[-1]:
        raise ValueError(f"--patch: the prompts must end in different answers, but both end in {of_text[0][-1]!r}")
    if list(tokens[:-1]) == list(others[:-1]):
        raise ValueError("--patch: the prompts differ only in their answers, so there is nothing to patch")


@torch.no_grad()
def patch(model: GPTNeo, tokens: torch.Tensor, others: torch.Tensor) -> Patching:
    """tokens, others (T + 1,): the prompts, each with its answer at the end."""
    answers = tokens[-1].item(), others[-1].item()
    tokens, others = tokens[None, :-1], others[None, :-1]
    (first, cache), (second, other_cache) = (run_with_cache(model, each) for each in (tokens, others))
    first, second = (difference(logits, answers).item() for logits in (first, second))
    if first <= second:
        raise ValueError(
            f"--patch: the first answer's logit is {first:+.2f} above the second's after the first prompt, "
            f"{second:+.2f} after the second: the model does not tell these prompts apart; choose others"
        )
    n_layer, n_head, T = model.config.n_layer, model.config.n_head, tokens.size(1)
    share = partial(brought_back, model, answers=answers)
    bar = tqdm(desc="patching", total=3 * n_layer, unit="layer", disable=None, delay=1)
    residual, heads, without = torch.zeros(n_layer + 1, T), torch.zeros(n_layer, n_head), torch.zeros(n_layer, n_head)
    first_different = (tokens != others)[0].nonzero()[0].item()  # before it, all activations are the same
    positions = torch.arange(first_different, T, device=tokens.device)
    for layer in range(n_layer + 1):
        name = f"blocks.{layer}.resid_pre" if layer < n_layer else f"blocks.{layer - 1}.resid_post"
        back = share(others, name, cache[name], other_cache[name], positions, dim=1)
        residual[layer, positions.cpu()] = (back.cpu() - second) / (first - second)
        bar.update()
    for layer in range(n_layer):
        name, which = f"blocks.{layer}.z", torch.arange(n_head, device=tokens.device)
        back = share(others, name, cache[name], other_cache[name], which, dim=2)
        heads[layer] = (back.cpu() - second) / (first - second)
        back = share(tokens, name, other_cache[name], cache[name], which, dim=2)
        without[layer] = (first - back.cpu()) / (first - second)
        bar.update(2)
    bar.close()
    parts = attribution(model, cache, -1, *answers)
    direct = torch.tensor([[parts[f"layer {i}, head {j}"] for j in range(n_head)] for i in range(n_layer)])
    looks = [cache[f"blocks.{i}.pattern"][0, :, -1].max(-1) for i in range(n_layer)]
    reads = [list(zip(look.indices.tolist(), look.values.tolist())) for look in looks]
    reader = unembedding(model, model.head.weight, cache[f"blocks.{n_layer - 1}.resid_post"][0, -1])  # (V, C)
    writes = [(cache[f"blocks.{i}.result"][0, -1] @ reader.T).topk(WRITTEN).indices.tolist() for i in range(n_layer)]
    return Patching(first, second, residual, heads, without, direct, reads, writes)


def difference(logits: torch.Tensor, answers: tuple[int, int]) -> torch.Tensor:
    """logits (B, T, V) -> the first answer's lead over the second after the last token, (B,)."""
    return logits[:, -1, answers[0]] - logits[:, -1, answers[1]]


def brought_back(model: GPTNeo, tokens, name: str, source, target, indices, dim: int, answers) -> torch.Tensor:
    """The logit difference, (N,), on tokens (1, T), if activations `name` are `target` (1, …), except at one of N
    indices along `dim`, where they are those of `source`."""
    found = []
    for some in indices.split(max(1, AT_ONCE // tokens.size(1))):
        versions = target.repeat(len(some), *[1] * (target.dim() - 1))
        for version, index in zip(versions, some):
            version.select(dim - 1, index).copy_(source[0].select(dim - 1, index))
        batch = tokens.expand(len(some), -1)
        hidden = run(model, batch, patches={name: lambda _, versions=versions: versions})
        found.append(difference(model.head(hidden[:, -1:]), answers))
    return torch.cat(found)
