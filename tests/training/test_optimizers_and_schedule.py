"""Which optimizer has which weights, and the learning rate over a run."""

import pytest

from model import GPTNeo, GPTNeoConfig
from training.config import TrainConfig
from training.optimizers_and_schedule import learning_rate, make_optimizers


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
