"""Which runs an experiment has, and what they cost."""

import dataclasses

import pytest

import experiments
from experiments import SCALES
from model import GPTNeo, GPTNeoConfig
from sweeps.plan import Run, count_parameters_and_flops, plan_runs
from training.config import TrainConfig

META = dict(vocab_size=10_000, splits=dict(train=dict(tokens=1_400_000, sha256="-")))


def planned(experiment: str, scale: str = "small", n_seeds: int = 1, out_dir: str = "out/x", meta=META) -> list[Run]:
    scale = SCALES[scale]
    return plan_runs(scale.lists[experiment], scale, n_seeds, dict(data="sample", out_dir=out_dir), meta)


def test_a_step_costs_the_model_the_objective_and_muon():
    shape = dict(block_size=64, n_layer=2, n_head=2, n_embd=32)
    plain = TrainConfig(**shape, batch_size=8, grad_accum_steps=3)
    model = GPTNeo(GPTNeoConfig(vocab_size=500, **shape))
    parameters, flops = count_parameters_and_flops(plain, 500)
    assert parameters == model.num_params()
    assert flops == 3 * 8 * 64 * model.flops_per_token(64)
    # half of every batch of 8 goes through the model a second time
    contrasted = dataclasses.replace(plain, contrast="margin")
    assert count_parameters_and_flops(contrasted, 500)[1] == flops * 12 / 8
    muon = 2 * 5 * sum(n * (4 * 32 * 32 * long + 2 * 32**3) for n, long in ((1, 96), (1, 32), (2, 128)))
    assert count_parameters_and_flops(dataclasses.replace(plain, optimizer="muon"), 500)[1] == flops + muon


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("experiment", SCALES["small"].lists)
def test_every_list_is_of_runs_that_can_be(experiment, scale):
    runs = planned(experiment, scale, 2, meta=dict(META, splits=dict(train=dict(tokens=470_000_000))))
    assert len({run.config.name for run in runs}) == len(runs) >= 8
    for run in runs:
        assert run.config.out_dir == "out/x" and run.config.eval_interval <= 250
        assert run.config.warmup_steps == pytest.approx(SCALES[scale].warmup * run.config.max_steps, abs=1)
        assert run.flops == run.config.max_steps * count_parameters_and_flops(run.config, 10_000)[1]
    assert {run.config.seed for run in runs} == {0, 1}


def test_published_lists_need_no_data_to_be_counted(tmp_path, command_line):
    shapes = {(run.config.n_embd, run.config.n_layer) for run in planned("grid", "published")}
    assert {(64, 8), (128, 8), (256, 8), (512, 8), (768, 4), (1024, 1), (1024, 2), (2048, 8)} <= shapes
    code, said = command_line(experiments, tmp_path)("grid", "--scale=published", "--dry_run")
    (row,) = [line.split("|") for line in said.out.splitlines() if line.startswith("| 1024-2-16_0 ")]
    run = next(run for run in planned("grid", "published") if run.variant == "1024-2-16")
    assert code == 0 and float(row[5]) == pytest.approx(run.flops / (312e12 * 0.4 * 3600), abs=0.006)
    code, said = command_line(experiments, tmp_path)("grid", "--dry_run")
    assert "no corpus" in code


@pytest.mark.parametrize("experiment", ["contrast", "compressor"])
def test_equal_compute_is_equal_to_a_step(experiment):
    runs, n_equal = {run.variant: run for run in planned(experiment)}, 0
    for variant, settings in SCALES["small"].lists[experiment].variants.items():
        if "flops_of" in settings:
            run, other = runs[variant], runs[settings["flops_of"]]
            assert abs(run.flops - other.flops) <= run.flops / run.config.max_steps / 2
            assert run.tokens != other.tokens
            n_equal += 1
    assert n_equal >= 3


def test_scaling_takes_what_fits_the_budget():
    runs, scale = planned("scaling"), SCALES["small"]
    budgets = scale.lists["scaling"].budgets
    for run in runs:
        assert run.flops == pytest.approx(run.budget, rel=0.5 / scale.fewest_steps)
        assert run.config.max_steps >= scale.fewest_steps and run.tokens <= scale.most_epochs * 1_400_000
    for budget in budgets:
        assert len({run.variant for run in runs if run.budget == budget}) >= 3


def test_wide_models_learn_more_slowly():
    rates = {run.variant: run.config.learning_rate for run in planned("grid")}
    assert rates["128-8-4"] == 1 / 128 and rates["512-8-4"] == 1 / 512
    assert {run.config.learning_rate for run in planned("contrast")} == {8e-3}
    assert len({run.config.learning_rate for run in planned("grid", "published")}) == 1
