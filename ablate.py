"""
Does a part of the model matter? The rise in loss when its output is replaced by its mean over other stories.

Exactly, for heads and for chosen neurons: the model is run again from the layer of the part on. For all neurons at
once, to first order: what the gradient says of the same replacement, from one pass forward and backward.
"""

from collections.abc import Sequence

import numpy as np
import torch
from tqdm import tqdm

from attention import causal_attention
from loss import CHUNK, cross_entropy_, head_loss
from model import GPTNeo
from watch import fast_attention, run_fast
from words import Batch, Corpus

TOKENS_AT_ONCE = 8192  # through the rest of the model, the ablations of a layer beside each other
RESAMPLES = 2000  # of the stories, for an interval
BUDGET = 45e12  # floating-point operations for all ablations, by default: one or two minutes on two cores
FEWEST = 10  # stories that the loss is measured on


def affordable(model: GPTNeo, corpus: Corpus, numbers: Sequence[int], n_neurons: int) -> list[int]:
    """As many of these stories, the first ones, as BUDGET allows to ablate all heads and so many neurons on.

    An ablation runs half of the layers on average, and the head.
    """
    c = model.config
    layers = (c.n_layer + 1) / 2 * 12 * c.n_embd**2
    per_token = 2 * (c.n_layer * c.n_head + n_neurons) * (layers + c.n_embd * c.vocab_size)
    tokens = np.cumsum([len(corpus.stories[number].tokens) for number in numbers])
    return list(numbers[: max(FEWEST, int((tokens * per_token <= BUDGET).sum()))])


def losses(model: GPTNeo, x: torch.Tensor, layer: int, targets: torch.Tensor) -> torch.Tensor:
    """x (N, B, T, C), N versions of the residual stream before `layer` -> nats of each story, (N, B)."""
    N, B, T, _ = x.shape
    x, attend = x.flatten(0, 1), fast_attention(model)
    for i in range(layer, model.config.n_layer):
        x = model.blocks[i](x, i, attend)
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
    """The residual stream behind `layer`, (N, B, T, C): once for each of N heads, its output being its `mean` (H, D).

    x (B, T, C) is that before the layer.
    """
    block, B, N = model.blocks[layer], len(x), len(heads)

    def attend(_, q, k, v):
        y = causal_attention(q[:B], k[:B], v[:B], model.config.window(layer))  # the same in every version
        versions = y.repeat(N, 1, 1, 1, 1)  # (N, B, T, H, D)
        for version, head in zip(versions, heads):
            version[:, :, head] = mean[head]
        return versions.flatten(0, 1)

    return block(x.repeat(N, 1, 1), layer, attend).unflatten(0, (N, B))


def without_neurons(model: GPTNeo, layer: int, x: torch.Tensor, activations: torch.Tensor, neurons, mean: torch.Tensor):
    """The same for N neurons: x (B, T, C) is the residual stream behind the layer, `activations` (B, T, N) are theirs
    and `mean` (4C,) is that of all of the layer."""
    change = (mean[neurons] - activations).permute(2, 0, 1)  # (N, B, T)
    return x + change[..., None] * model.blocks[layer].mlp_out.weight.T[neurons][:, None, None]


@torch.no_grad()
def ablate(
    model: GPTNeo,
    corpus: Corpus,
    numbers: Sequence[int],
    head_means: list,
    neuron_means: list,
    neurons: list[list[int]],
) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """Nats of each of these stories: as the model is (S,), without each head (L, H, S), and for every layer without
    each of its chosen `neurons` (n, S). The means are of other stories: (H, D) and (4C,) of every layer.
    """
    config, device = model.config, model.wte.weight.device
    n_layer, n_head = config.n_layer, config.n_head
    place = {number: i for i, number in enumerate(numbers)}
    whole, heads = torch.empty(len(numbers)), torch.empty(n_layer, n_head, len(numbers))
    chosen = [torch.empty(len(some), len(numbers)) for some in neurons]
    bar = tqdm(desc="ablating", total=len(numbers), unit="story", disable=None, delay=1)
    for batch in corpus.batches(numbers, device, tokens=2048):
        stories = [place[number] for number in batch.index]
        at_once = max(1, TOKENS_AT_ONCE // batch.tokens.numel())
        inputs, activations = layer_inputs(model, batch, neurons)
        whole[stories] = losses(model, inputs[-1][None], n_layer, batch.targets)[0].cpu()
        for layer in range(n_layer):
            for some in torch.arange(n_head).split(at_once):
                x = without_heads(model, layer, inputs[layer], some.tolist(), head_means[layer])
                heads[layer, some[:, None], stories] = losses(model, x, layer + 1, batch.targets).cpu()
            for some in torch.arange(len(neurons[layer])).split(at_once):
                which = [neurons[layer][i] for i in some]
                parts = inputs[layer + 1], activations[layer][..., some], which, neuron_means[layer]
                x = without_neurons(model, layer, *parts)
                chosen[layer][some[:, None], stories] = losses(model, x, layer + 1, batch.targets).cpu()
        bar.update(len(stories))
    bar.close()
    return whole, heads, chosen


def layer_inputs(model: GPTNeo, batch: Batch, neurons: list[list[int]]) -> tuple[list, list]:
    """The residual stream (B, T, C) before every layer and behind the last; activations (B, T, n) of chosen neurons."""
    inputs, activations = [], []

    def see(name, tensor):
        if name.endswith("mlp"):
            activations.append(tensor[..., neurons[len(activations)]].float())
        else:
            inputs.append(tensor)

    run_fast(model, batch.tokens, see)
    return inputs, activations


def estimate_neurons(model: GPTNeo, corpus: Corpus, numbers: Sequence[int], means: list) -> torch.Tensor:
    """(L, 4C): the rise in loss without each neuron, in nats per token, to first order in what is replaced."""
    rises = [torch.zeros_like(mean) for mean in means]

    def see(name, tensor):
        if name.endswith("mlp"):
            layer, activations = int(name.split(".")[1]), tensor.detach()

            def gather(grad):
                rises[layer] += ((means[layer] - activations) * grad).sum((0, 1))

            tensor.register_hook(gather)

    n_tokens, device = 0, model.wte.weight.device
    bar = tqdm(desc="estimating", total=len(numbers), unit="story", disable=None, delay=1)
    model.requires_grad_(False)
    model.wpe.weight.requires_grad_(True)  # so that a gradient flows, and no other is computed
    for batch in corpus.batches(numbers, device):
        x = run_fast(model, batch.tokens, see)
        n_targets = batch.real.sum().item()
        loss = head_loss(x.flatten(0, 1), model.head.weight, batch.targets.flatten()) * n_targets
        torch.autograd.grad(loss, model.wpe.weight)
        n_tokens += n_targets
        bar.update(len(batch.index))
    bar.close()
    model.requires_grad_(True)
    return torch.stack(rises).cpu() / n_tokens


def rise_with_interval(nats: torch.Tensor, whole: torch.Tensor, tokens: torch.Tensor, seed: int = 0):
    """nats (…, S) of each story without a part, `whole` (S,) with it, over `tokens` (S,) -> the rise in loss in nats
    per token, and the ends of its 95 % interval (bootstrap: stories drawn with replacement). All (…)."""
    rng = np.random.default_rng(seed)
    draws = rng.multinomial(len(tokens), np.full(len(tokens), 1 / len(tokens)), RESAMPLES)  # how often each story is in
    differences, tokens = (nats - whole).double().numpy(), tokens.double().numpy()
    resampled = differences @ draws.T / (draws @ tokens)
    low, high = np.percentile(resampled, [2.5, 97.5], axis=-1)
    return differences.sum(-1) / tokens.sum(), low, high


def rank_correlation(a: torch.Tensor, b: torch.Tensor) -> float:
    """Spearman's, of two rows of numbers without ties."""
    ranks = torch.stack([x.argsort().argsort().double() for x in (a, b)])
    return torch.corrcoef(ranks)[0, 1].item()
