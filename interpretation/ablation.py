"""
Does a part of the model matter? The rise in loss when its output is replaced by its mean over other stories.

For heads and for chosen neurons the rise is exact: the model is run again from that layer on. For all neurons it is
estimated to first order, from the gradient of one forward and backward pass.

An interval says how much the rise depends on the stories, not whether the head does anything useful: removing even a
head of random weights may raise the average loss. So a head matters if its interval is above 0 and the rise at least
MIN_RISE, and the heads of the untrained model are ablated as well.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from common.statistics import bootstrap_ratio, interval, spearman
from interpretation.activation_statistics import ActivationStatistics
from interpretation.hooks import run
from interpretation.neuron_preferences import NeuronTable, choose_neurons
from interpretation.word_classes import Batch, TaggedCorpus
from kernels.cross_entropy import CHUNK, cross_entropy_, head_loss
from model import GPTNeo

READ_AT_ONCE = 2048  # tokens in a batch of stories
TOKENS_AT_ONCE = 8192  # tokens in a batch of several ablations of one layer
HEAD_BUDGET, NEURON_BUDGET = 25e12, 4e12  # default FLOPs: about one minute and half a minute on two cores
FEWEST_STORIES = 10  # with fewer, an interval means nothing
TOO_LONG = 10  # times the budget: if even FEWEST_STORIES take longer, ablate only on request
MIN_RISE = 0.01  # nats per token, one percent of perplexity; see above


def ablation_flops(model: GPTNeo, n_tokens: np.ndarray | int, n_parts: int):
    """FLOPs of ablating n_parts heads or neurons: on average half of the layers, and the output head."""
    C, layers = model.config.n_embd, (model.config.n_layer + 1) / 2
    return 2 * n_parts * n_tokens * (layers * 12 * C**2 + C * model.config.vocab_size)


def stories_within(
    budget: float, model: GPTNeo, corpus: TaggedCorpus, numbers: Sequence[int], n_parts: int
) -> Sequence[int]:
    """The first of these stories: as many as `budget` FLOPs allow for ablating n_parts heads or neurons; at least
    FEWEST_STORIES, but none if even these take TOO_LONG times the budget."""
    n_tokens = np.cumsum([len(corpus.stories[number].tokens) for number in numbers])
    flops = ablation_flops(model, n_tokens, n_parts)
    if flops[min(FEWEST_STORIES, len(flops)) - 1] > TOO_LONG * budget:
        return numbers[:0]
    return numbers[: max(FEWEST_STORIES, int((flops <= budget).sum()))]


def losses(model: GPTNeo, x: torch.Tensor, layer: int, targets: torch.Tensor) -> torch.Tensor:
    """x (N, B, T, C), N versions of the residual stream before `layer` -> each story's loss in nats, (N, B)."""
    N, B, T, _ = x.shape
    x = x.flatten(0, 1)
    for i in range(layer, model.config.n_layer):
        x = model.blocks[i](x, i, model.attend)
    x, targets, head = model.ln_f(x).flatten(0, 1), targets.flatten().repeat(N), model.head.weight
    device = x.device.type
    if torch.is_autocast_enabled(device):
        head = head.to(torch.get_autocast_dtype(device))
    nats = torch.empty(len(x), device=x.device)
    for start in range(0, len(x), CHUNK):
        chunk = slice(start, start + CHUNK)
        nats[chunk] = cross_entropy_(x[chunk].to(head.dtype) @ head.T, targets[chunk])
    return nats.view(N, B, T).sum(-1)


def without_heads(model: GPTNeo, layer: int, x: torch.Tensor, heads: Sequence[int], mean: torch.Tensor):
    """The residual stream after `layer`, (N, B, T, C): the output of each of N heads replaced by its `mean` (H, D).

    x (B, T, C) is the residual stream before the layer.
    """
    block, B, N = model.blocks[layer], len(x), len(heads)

    def attend(_, q, k, v):
        y = model.attend(layer, q[:B], k[:B], v[:B])  # the same in every version
        versions = y.repeat(N, 1, 1, 1, 1)  # (N, B, T, H, D)
        for version, head in zip(versions, heads):
            version[:, :, head] = mean[head]
        return versions.flatten(0, 1)

    return block(x.repeat(N, 1, 1), layer, attend).unflatten(0, (N, B))


def without_neurons(model: GPTNeo, layer: int, x: torch.Tensor, activations: torch.Tensor, neurons, mean: torch.Tensor):
    """The same for N neurons: x (B, T, C) is the residual stream after the layer, `activations` (B, T, N) are those of
    the N neurons, `mean` (4C,) those of all of the layer."""
    change = (mean[neurons] - activations).permute(2, 0, 1)  # (N, B, T)
    return x + change[..., None] * model.blocks[layer].mlp_out.weight.T[neurons][:, None, None]


@torch.no_grad()
def ablate_heads(model: GPTNeo, corpus: TaggedCorpus, numbers: Sequence[int], means: list) -> tuple:
    """Each story's loss in nats: with the intact model, (S,), and without each head, (L, H, S).

    means: (H, D) of each layer, over other stories. Runs in the dtype of autocast: on 20 stories, bfloat16 adds 0.0002
    nats per token of noise, less than the stories' own variation.
    """
    n_layer, n_head, device = model.config.n_layer, model.config.n_head, model.wte.weight.device
    intact, without = torch.empty(len(numbers)), torch.empty(n_layer, n_head, len(numbers))
    for batch in corpus.batches(numbers, device, tokens=READ_AT_ONCE, label="ablating heads"):
        stories = [numbers.index(number) for number in batch.index]
        at_once = max(1, TOKENS_AT_ONCE // batch.tokens.numel())
        inputs, _ = layer_inputs(model, batch, [[]] * n_layer)
        intact[stories] = losses(model, inputs[-1][None], n_layer, batch.targets)[0].cpu()
        for layer in range(n_layer):
            for heads in torch.arange(n_head).split(at_once):
                x = without_heads(model, layer, inputs[layer], heads.tolist(), means[layer])
                without[layer, heads[:, None], stories] = losses(model, x, layer + 1, batch.targets).cpu()
    return intact, without


@torch.no_grad()
def ablate_neurons(
    model: GPTNeo, corpus: TaggedCorpus, numbers: Sequence[int], means: list, neurons: list[list[int]]
) -> tuple:
    """The same for the chosen `neurons` of each layer, (S,) and (n, S) for all n of them. means: (4C,) of each layer.

    In float32, because most neurons matter less than the rounding of bfloat16.
    """
    n_layer, device = model.config.n_layer, model.wte.weight.device
    intact, without = torch.empty(len(numbers)), [torch.empty(len(some), len(numbers)) for some in neurons]
    with torch.autocast(device.type, enabled=False):
        for batch in corpus.batches(numbers, device, tokens=READ_AT_ONCE, label="ablating neurons"):
            stories = [numbers.index(number) for number in batch.index]
            at_once = max(1, TOKENS_AT_ONCE // batch.tokens.numel())
            inputs, activations = layer_inputs(model, batch, neurons)
            intact[stories] = losses(model, inputs[-1][None], n_layer, batch.targets)[0].cpu()
            for layer, chosen in enumerate(neurons):
                for i in range(0, len(chosen), at_once):
                    some = slice(i, i + at_once)
                    parts = activations[layer][..., some], chosen[some], means[layer]
                    x = without_neurons(model, layer, inputs[layer + 1], *parts)
                    without[layer][some, stories] = losses(model, x, layer + 1, batch.targets).cpu()
    return intact, torch.cat(without)


def layer_inputs(model: GPTNeo, batch: Batch, neurons: list[list[int]]) -> tuple[list, list]:
    """The residual stream (B, T, C) before every layer and after the last; activations (B, T, n) of chosen neurons."""
    inputs, activations = [], []

    def record(name, tensor):
        layer, part = name.removeprefix("blocks.").split(".")
        if part == "post":
            activations.append(tensor[..., neurons[int(layer)]].float())
        elif part == "resid_pre" or name == f"blocks.{model.config.n_layer - 1}.resid_post":
            inputs.append(tensor)

    run(model, batch.tokens, record)
    return inputs, activations


def estimate_neurons(model: GPTNeo, corpus: TaggedCorpus, numbers: Sequence[int], means: list) -> torch.Tensor:
    """(L, 4C): the rise in loss without each neuron, in nats per token, to first order in the replacement."""
    rises = [torch.zeros_like(mean) for mean in means]

    def record(name, tensor):
        if name.endswith(".post"):
            layer, activations = int(name.split(".")[1]), tensor.detach()

            def add_rise(grad):
                rises[layer] += ((means[layer] - activations) * grad).sum((0, 1))

            tensor.register_hook(add_rise)

    n_tokens = 0
    model.requires_grad_(False)
    model.wpe.weight.requires_grad_(True)  # backward needs at least one parameter that requires a gradient
    for batch in corpus.batches(numbers, model.wte.weight.device, tokens=READ_AT_ONCE, label="estimating neurons"):
        x = run(model, batch.tokens, record)
        n_targets = batch.real.sum().item()
        loss = head_loss(x.flatten(0, 1), model.head.weight, batch.targets.flatten()) * n_targets
        torch.autograd.grad(loss, model.wpe.weight)
        n_tokens += n_targets
    model.requires_grad_(True)
    return torch.stack(rises).cpu() / n_tokens


def rise_with_interval(nats: torch.Tensor, intact: torch.Tensor, tokens: torch.Tensor, seed: int = 0):
    """nats (…, S) of each story without a part, `intact` (S,) with it, over `tokens` (S,) -> the rise in loss in nats
    per token, and the ends of its 95% interval (bootstrap over stories). All (…)."""
    return interval(bootstrap_ratio((nats - intact).double().numpy(), tokens.double().numpy(), seed=seed), len(tokens))


@dataclass
class Effects:
    """Rises in loss without a part, in nats per token, each with the ends of its 95% interval."""

    shown: list[int]  # neurons for the page
    heads: list[tuple[float, float, float]]  # layer by layer; empty if nothing was ablated
    heads_at_random_init: list[tuple[float, float, float]]
    neurons: dict[int, tuple[float, float, float]]  # those that were ablated exactly
    summary: dict  # for summary.json


def stories_to_ablate(model: GPTNeo, corpus: TaggedCorpus, n_stories: int | None, n_parts: int) -> Sequence[int]:
    """Odd stories: n_stories of them, or what the budget allows. Prints a note if these take long, or too long."""
    odd = range(1, len(corpus.stories), 2)
    if n_stories == 0:
        return odd[:0]
    numbers = odd[:n_stories] if n_stories else stories_within(HEAD_BUDGET, model, corpus, odd, n_parts)
    asked = numbers or odd[:FEWEST_STORIES]
    flops = ablation_flops(model, sum(len(corpus.stories[number].tokens) for number in asked), n_parts)
    about = f"about {flops / HEAD_BUDGET:,.0f} minutes on two cores"
    if n_stories is None and not numbers:
        print(f"nothing is ablated: {n_parts // 2} heads would take {about}; --ablate {FEWEST_STORIES} does it anyway")
    elif flops > 2 * HEAD_BUDGET:
        print(f"ablating {n_parts // 2} heads on {len(asked)} stories: {about}", file=sys.stderr, flush=True)
    return numbers


def measure_effects(
    activations: ActivationStatistics,
    untrained: ActivationStatistics,
    table: NeuronTable,
    n_stories: int | None,
    layer: int | None,
) -> Effects:
    """Ablates all heads, also those of the untrained model, and some neurons. Means are over the even stories, losses
    over the odd ones.

    n_stories: for ablating heads; None: what the budget allows, 0: no ablation. layer: show all of its neurons.
    Adds the estimates for all neurons to the table.
    """
    model, corpus = activations.model, activations.corpus
    n_parts = 2 * model.config.n_layer * model.config.n_head  # with the untrained model's
    numbers = stories_to_ablate(model, corpus, n_stories, n_parts)
    if not numbers:
        return Effects(choose_neurons(table, layer)[2], [], [], {}, {})
    n_tokens = torch.tensor([len(corpus.stories[number].tokens) for number in numbers])
    heads, losses_intact = [], []
    for each in (activations, untrained):
        intact, without = ablate_heads(each.model, corpus, numbers, each.means("z"))
        heads.append(list(zip(*rise_with_interval(without.flatten(0, 1), intact, n_tokens))))
        losses_intact.append(float(intact.sum() / n_tokens.sum()))
    summary = dict(stories=len(numbers), loss=losses_intact[0])

    means = activations.means("post")
    table.estimates = estimate_neurons(model, corpus, numbers, means).flatten()
    chosen, random, shown = choose_neurons(table, layer)
    few = stories_within(NEURON_BUDGET, model, corpus, numbers, len(chosen)) or numbers[:FEWEST_STORIES]
    by_layer = [[i % table.width for i in chosen if i // table.width == index] for index in range(len(means))]
    intact, without = ablate_neurons(model, corpus, few, means, by_layer)
    neurons = dict(zip(chosen, zip(*rise_with_interval(without, intact, n_tokens[: len(few)]))))
    exact = torch.tensor([neurons[i][0] for i in random])
    estimates = estimate_neurons(model, corpus, few, means).flatten()  # on the same stories
    summary |= dict(neurons=len(chosen), stories_for_neurons=len(few), estimates_checked=len(random))
    summary |= dict(estimates_rank_correlation=spearman(estimates[random].numpy(), exact.numpy()))
    return Effects(shown, *heads, neurons, summary)
