"""Which runs an experiment has, and what they cost."""

import dataclasses

import pytest

import experiments
from model import GPTNeo, GPTNeoConfig
from sweeps.plans import PUBLISHED, PUBLISHED_META, SMALL, VARIANTS, Run, count_parameters_and_flops, plan_runs
from training.config import TrainConfig

META = dict(vocab_size=10_000, splits=dict(train=dict(tokens=1_400_000, sha256="-")))


def planned(experiment: str, scale=SMALL, n_seeds: int = 1, out_dir: str = "out/x") -> list[Run]:
    return plan_runs(experiment, scale, n_seeds, dict(data="sample", out_dir=out_dir), META)


def test_a_step_costs_the_model_the_objective_and_muon():
    shape = dict(block_size=64, n_layer=2, n_head=2, n_embd=32)
    plain = TrainConfig(**shape, batch_size=8, grad_accum_steps=3)
    model = GPTNeo(GPTNeoConfig(vocab_size=500, **shape))
    parameters, flops = count_parameters_and_flops(plain, 500)
    assert parameters == model.num_params()
    assert flops == 3 * 8 * 64 * model.flops_per_token(64)
    # a quarter of every batch of 8 goes through the model a second time
    contrasted = dataclasses.replace(plain, contrast="margin", contrast_share=0.25)
    assert count_parameters_and_flops(contrasted, 500)[1] == flops * 10 / 8
    blocks = [3 * 32 * 32, 32 * 32, 2 * 4 * 32 * 32]
    assert sum(blocks) == 12 * 32 * 32
    muon = 2 * 5 * sum(n * (4 * 32 * 32 * long + 2 * 32**3) for n, long in ((1, 96), (1, 32), (2, 128)))
    assert count_parameters_and_flops(dataclasses.replace(plain, optimizer="muon"), 500)[1] == flops + muon


@pytest.mark.parametrize("scale", [SMALL, PUBLISHED])
@pytest.mark.parametrize("experiment", VARIANTS)
def test_every_list_is_of_runs_that_can_be(experiment, scale):
    meta = dict(META, splits=dict(train=dict(tokens=470_000_000)))
    runs = plan_runs(experiment, scale, 2, dict(data="sample", out_dir="out/x"), meta)
    assert len({run.config.name for run in runs}) == len(runs) >= 8
    for run in runs:
        assert run.config.out_dir == "out/x"
        assert run.config.warmup_steps == pytest.approx(scale.warmup * run.config.max_steps, abs=1)
        assert run.config.eval_interval <= 250
        assert run.flops == run.config.max_steps * count_parameters_and_flops(run.config, 10_000)[1]
    assert {run.config.seed for run in runs} == {0, 1}


def test_the_published_grid_is_in_the_list():
    shapes = {(run.config.n_embd, run.config.n_layer, run.config.n_head) for run in planned("grid")}
    assert {(128, 8, 4), (128, 12, 4), (256, 8, 2), (256, 8, 4), (256, 8, 8), (256, 12, 4)} <= shapes
    assert {(512, 8, 4), (512, 12, 4)} <= shapes
    assert {n_layer for _, n_layer, _ in shapes} == {1, 2, 8, 12}


def test_published_lists_have_every_published_shape(data_dir, tmp_path, command_line):
    shapes = {(run.config.n_embd, run.config.n_layer) for run in planned("grid", PUBLISHED) if run.config.n_head == 16}
    assert len(shapes) == 28 and {(64, 8), (128, 8), (256, 8), (512, 8), (768, 4), (1024, 1), (1024, 2)} <= shapes
    assert {768, 2048} <= {run.config.n_embd for run in plan_runs("scaling", PUBLISHED, 1, {}, PUBLISHED_META)}
    code, said = command_line(experiments, tmp_path)("grid", "--published", "--show", "--markdown")  # without any data
    assert code == 0 and "| 768-4-16_0 |" in said.out and "GPU hours at 125 TFLOP/s" in said.out
    (row,) = [line.split(" | ") for line in said.out.splitlines() if "| 1024-2-16_0 |" in line]
    run = next(run for run in planned("grid", PUBLISHED) if run.variant == "1024-2-16")
    assert float(row[4].strip(" |")) == pytest.approx(run.flops / (312e12 * 0.4 * 3600), abs=0.006)
    code, said = command_line(experiments, tmp_path)("grid", "--show")
    assert "meta.json: cannot be read" in code


@pytest.mark.parametrize("experiment", ["contrast", "compressor"])
def test_equal_compute_is_equal_to_a_step(experiment):
    runs = {run.variant: run for run in planned(experiment)}
    n_equal = 0
    for variant, settings in VARIANTS[experiment].items():
        if "flops_of" in settings:
            run, other = runs[variant], runs[settings["flops_of"]]
            assert abs(run.flops - other.flops) <= run.flops / run.config.max_steps / 2
            assert run.tokens != other.tokens
            n_equal += 1
    assert n_equal >= 3


def test_scaling_takes_what_fits_the_budget():
    runs = planned("scaling")
    assert {run.budget for run in runs} == set(SMALL.budgets)
    for run in runs:
        assert run.flops == pytest.approx(run.budget, rel=0.5 / SMALL.least_steps)
        assert run.config.max_steps >= SMALL.least_steps and run.tokens <= SMALL.most_epochs * 1_400_000
    widths, depths = ({getattr(run.config, key) for run in runs} for key in ("n_embd", "n_layer"))
    assert {64, 1024} <= widths and {2, 12} <= depths
    for budget in SMALL.budgets:
        assert len({run.variant for run in runs if run.budget == budget}) >= 3


def test_wide_models_learn_more_slowly():
    rates = {run.variant: run.config.learning_rate for run in planned("grid")}
    assert rates["128-8-4"] == 1 / 128 and rates["512-8-4"] == 1 / 512
    assert {run.config.learning_rate for run in planned("contrast")} == {8e-3}
    assert {run.config.learning_rate for run in planned("grid", PUBLISHED)} == {5e-4}
