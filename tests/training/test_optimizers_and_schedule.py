"""Which optimizer has which weights, and the learning rate over a run."""

import types

import pytest
import torch

from model import GPTNeo, GPTNeoConfig
from training.config import TrainConfig
from training.optimizers_and_schedule import learning_rate, make_optimizers
from training.state import TrainingState


def test_learning_rate_warms_up_stays_and_falls():
    config = TrainConfig(learning_rate=1.0, warmup_steps=4, warmdown=0.5)
    assert [learning_rate(step, 0.0, config) for step in range(6)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0])
    assert [learning_rate(100, done, config) for done in (0.5, 0.75, 1.0)] == pytest.approx([1.0, 0.5, 0.0])
    assert learning_rate(10**6, 1.0, TrainConfig(learning_rate=1.0)) == 1.0  # constant, as published


def test_biases_and_layer_norms_do_not_decay():
    model = GPTNeo(GPTNeoConfig(vocab_size=50, n_layer=1, n_head=2, n_embd=8))
    (adamw,) = make_optimizers(model, TrainConfig())
    for group in adamw.param_groups:
        for parameter in group["params"]:
            assert group["weight_decay"] == (0.1 if parameter.dim() == 2 else 0.0)
    assert sum(p.numel() for group in adamw.param_groups for p in group["params"]) == model.num_params()


def test_muon_has_the_matrices_of_the_blocks_and_adamw_the_rest():
    model = GPTNeo(GPTNeoConfig(vocab_size=50, n_layer=2, n_head=2, n_embd=8))
    muon, adamw = make_optimizers(model, TrainConfig(optimizer="muon"))
    ids = [{id(p) for group in optimizer.param_groups for p in group["params"]} for optimizer in (muon, adamw)]
    assert ids[0] == {id(p) for p in model.blocks.parameters() if p.dim() == 2}
    assert ids[0] | ids[1] == {id(p) for p in model.parameters()} and not ids[0] & ids[1]


@pytest.mark.parametrize("where", ["blocks.0.qkv.weight", "wte.weight", "ln_f.bias"])
def test_an_infinity_in_one_optimizers_gradient_skips_the_step_of_all(where):
    """float16 overflows now and then: the scaler must then leave Muon's and AdamW's weights alone, and scale less."""
    shape = GPTNeoConfig(vocab_size=50, block_size=16, n_layer=2, n_head=2, n_embd=8)
    corpus = types.SimpleNamespace(tokenizer=types.SimpleNamespace(gpt2_ids=[]), sha256="")
    half = torch.float16
    state = TrainingState(TrainConfig(optimizer="muon"), shape, corpus, torch.device("cpu"), half, half)
    state.set_learning_rate(0.1)
    before = {name: weight.clone() for name, weight in state.model.state_dict().items()}
    tokens = torch.randint(50, (2, 17))
    for overflow in (True, False):
        state.scaler.scale(state.model(tokens[:, :-1], tokens[:, 1:])[1]).backward()
        if overflow:
            state.model.get_parameter(where).grad.view(-1)[3] = torch.inf
            scale = state.scaler.get_scale()
        state.optimizer_step(grad_clip=1.0)
        assert state.sums[1].isfinite() and state.sums[2] == state.step  # the log has no infinite norm
        for name, weight in state.model.state_dict().items():
            assert weight.isfinite().all() and weight.equal(before[name]) == overflow, name
    assert state.scaler.get_scale() == scale / 2
