"""Our Muon beside PyTorch's, which optimizer has which weights, and the learning rate over a
run."""

import copy

import pytest
import torch

from model import GPTNeo, GPTNeoConfig
from nanostories.training.config import TrainConfig
from nanostories.training.optimizers import Muon, learning_rate, make_optimizers
from nanostories.variants import MODELS
from train import TrainingState, loss_and_gradients, train_step


@pytest.mark.parametrize("shape", [(64, 16), (16, 64)])
def test_muon_equals_pytorchs(shape):
    config = TrainConfig(learning_rate=0.02, weight_decay=0.1, beta1=0.95)
    settings = dict(lr=0.02, weight_decay=0.1, momentum=0.95)
    ours = [torch.nn.Parameter(torch.randn(shape)) for _ in range(3)]
    theirs = copy.deepcopy(ours)
    our_muon = Muon([ours], config, torch.bfloat16)
    their_muon = torch.optim.Muon(theirs, adjust_lr_fn="match_rms_adamw", **settings)
    for _ in range(4):
        for a, b in zip(ours, theirs):
            a.grad = torch.randn(shape)
            b.grad = a.grad.clone()  # Muon writes to it
        our_muon.step()
        their_muon.step()
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)


def test_learning_rate_warms_up_stays_and_falls():
    config = TrainConfig(learning_rate=1.0, warmup_steps=4, warmdown=0.5)
    rising = [learning_rate(step, 0.0, config) for step in range(6)]
    assert rising == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0])
    falling = [learning_rate(100, done, config) for done in (0.5, 0.75, 1.0)]
    assert falling == pytest.approx([1.0, 0.5, 0.0])
    assert learning_rate(10**6, 1.0, TrainConfig(learning_rate=1.0)) == 1.0  # as published


def small_model(architecture: str = "gptneo") -> GPTNeo:
    shape = GPTNeoConfig(vocab_size=50, block_size=16, n_layer=2, n_head=2, n_embd=8)
    return MODELS[architecture](shape)


@pytest.mark.parametrize("architecture", ["gptneo", "compressor"])
@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_every_weight_has_one_optimizer_and_vectors_do_not_decay(name, architecture):
    """Muon has every matrix of the blocks: by AdamW at the same learning rate a compressor's hardly
    learn, to a loss of 3.66, not 2.78 (LOG.md)."""
    model = small_model(architecture)
    model.scale = torch.nn.Parameter(torch.ones(()))
    model.blocks[0].filters = torch.nn.Parameter(torch.ones(2, 3, 4, 5))
    optimizers = make_optimizers(model, TrainConfig(optimizer=name, beta1=0.8, beta2=0.99))
    assert optimizers[-1].defaults["betas"] == (0.8, 0.99)
    found = {}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                assert parameter not in found
                found[parameter] = (type(optimizer), group["weight_decay"])
    expected = {}
    for parameter in model.parameters():
        decay = 0.1 if parameter.dim() >= 2 else 0.0
        expected[parameter] = (torch.optim.AdamW, decay)
    if name == "muon":
        matrices = [p for p in model.blocks.parameters() if p.dim() == 2]
        expected |= dict.fromkeys(matrices, (Muon, 0.1))
    assert found == expected


@pytest.mark.parametrize("where", ["blocks.0.qkv.weight", "ln_f.bias"])
def test_in_float16_an_overflow_in_one_optimizers_gradients_skips_the_step_of_all(where):
    model = small_model()
    state = TrainingState(model, TrainConfig(optimizer="muon", dtype="float16", compile=False))
    before = copy.deepcopy(model.state_dict())
    scale = state.scaler.get_scale()
    tokens = torch.randint(50, (6, 17))
    step = (state, lambda x, y: model(x, y)[1], [(tokens[:, :-1], tokens[:, 1:], 1.0)])
    hook = model.get_parameter(where).register_hook(lambda gradient: gradient * torch.inf)
    train_step(*step)
    assert state.sums[1].isfinite()  # the log has no infinite norm
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    hook.remove()
    train_step(*step)
    for name, weight in model.named_parameters():
        assert weight.isfinite().all() and not weight.equal(before[name]), name
    assert state.scaler.get_scale() == scale / 2 and state.step == 2


def test_gradients_are_added_before_a_graph_overwrites_them(monkeypatch):
    """Each micro-batch writes its gradients where the one before it wrote them. (Without a graph:
    test_train.py, the first step)"""
    place = torch.zeros(())
    monkeypatch.setattr(torch.autograd, "grad", lambda loss, _: [place.copy_(loss)])
    config = TrainConfig(dtype="float32", compile=False, cuda_graphs=True)
    state = TrainingState(small_model(), config)
    micro_batches = [(torch.tensor(loss), None, 0.5) for loss in (1.0, 2.0, 4.0)]
    _, (gradient,) = loss_and_gradients(state, lambda loss, _: loss, micro_batches)
    assert gradient == 3.5
