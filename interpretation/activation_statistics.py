"""
Runs a model over all stories once and collects what its heads and neurons do.

>>> statistics = ActivationStatistics(model, corpus)
>>> statistics.heads.rows(...), statistics.neurons.top(6), statistics.means("post")
"""

import torch

from interpretation.head_roles import HeadStatistics
from interpretation.hooks import run
from interpretation.neuron_preferences import NeuronStatistics
from interpretation.word_classes import TaggedCorpus
from model import GPTNeo


class ActivationStatistics:
    """What heads and neurons do over all stories, and their mean outputs over the even-numbered ones.

    with_heads=False skips what heads look at, and with it the slow path that materializes attention.
    """

    def __init__(self, model: GPTNeo, corpus: TaggedCorpus, with_heads: bool = True):
        self.model, self.corpus, self.neurons = model, corpus, NeuronStatistics(model, corpus)
        self.heads = HeadStatistics(model, corpus) if with_heads else None
        self.sums, self.n = {}, 0  # for the means
        device = model.wte.weight.device
        label = "reading" if with_heads else "reading, at random initialization"
        for batch in corpus.batches(range(len(corpus.stories)), device, label=label):
            self.neurons.start(batch)
            even = torch.tensor([number % 2 == 0 for number in batch.index], device=device)
            self.averaged = batch.real & even[:, None]
            self.n += self.averaged.sum().item()
            if with_heads:
                self.heads.start(batch)
            with torch.no_grad():
                run(model, batch.tokens, self.record, with_pattern=with_heads)

    def record(self, name: str, tensor: torch.Tensor):
        layer, _, part = name.removeprefix("blocks.").partition(".")
        if part == "pattern":
            self.heads.add(int(layer), tensor)
        if part == "post":
            self.neurons.add(int(layer), tensor)
        if part in ("z", "post"):
            self.sums[name] = self.sums.get(name, 0) + tensor[self.averaged].float().sum(0)

    def means(self, part: str) -> list[torch.Tensor]:
        """The mean "z" (H, D) or "post" (4C,) of every layer, over the tokens of the even stories."""
        return [self.sums[f"blocks.{layer}.{part}"] / self.n for layer in range(self.model.config.n_layer)]


def untrained_copy(model: GPTNeo, copy_init: float = 0.0) -> GPTNeo:
    """The same model at random initialization. copy_init: how strongly its run made heads copy."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        random = GPTNeo(model.config)
        if copy_init:
            random.init_copying(copy_init)
        return random.to(model.wte.weight.device).eval()
