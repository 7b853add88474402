"""Which runs a list has, and what they cost."""

import dataclasses
from collections import defaultdict
from datetime import timedelta
from pathlib import Path

import pytest
from conftest import ROOT

import experiments
from model import GPTNeo, GPTNeoConfig
from nanostories.sweeps.lists import EXPERIMENTS, SCALES
from nanostories.sweeps.plan import MAX_EPOCHS, PlannedRun, count_parameters_and_flops, plan_runs
from nanostories.training.config import TrainConfig

CORPORA = defaultdict(lambda: (Path("data", "x"), 10_000, 470_000_000))


def planned(
    name: str, scale: str = "small", n_seeds: int = 1, out: str = "out/x"
) -> list[PlannedRun]:
    experiment = EXPERIMENTS[name]
    return plan_runs(
        experiment.runs(scale), SCALES[scale], n_seeds, Path(out), experiment.data, CORPORA
    )


def test_a_step_costs_the_model_the_objective_and_muon():
    shape = dict(block_size=64, n_layer=2, n_head=2, n_embd=32)
    plain = TrainConfig(**shape, batch_size=8, grad_accum_steps=3)
    model = GPTNeo(GPTNeoConfig(vocab_size=500, **shape))
    parameters, flops = count_parameters_and_flops(plain, 500)
    assert parameters == model.num_params()
    assert flops == 3 * 8 * 64 * model.flops_per_token(64)
    # a third of every batch of 8 goes through the model a second time
    contrasted = dataclasses.replace(plain, contrast="published")
    assert count_parameters_and_flops(contrasted, 500)[1] == flops * 11 / 8
    layers = 2
    steps = 5  # of Newton and Schulz
    long_sides = 96 + 32 + 128 + 128  # of matrices whose short side is 32
    muon = layers * steps * (4 * 32 * 32 * long_sides + 4 * 2 * 32**3)
    by_muon = dataclasses.replace(plain, optimizer="muon")
    assert count_parameters_and_flops(by_muon, 500)[1] == flops + muon


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_list_has_runs_that_can_be(name, scale):
    listed = EXPERIMENTS[name].runs(scale)
    runs = planned(name, scale, 2)
    assert (runs or listed.models) and len({run.config.name for run in runs}) == len(runs)
    for run in runs:
        assert run.config.eval_interval <= 250


def test_a_dry_run_shows_hours_and_commands_and_needs_no_data(tmp_path, command_line, monkeypatch):
    call = command_line(experiments, tmp_path)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    said = call("shapes --scale=published --dry_run")[1].out
    (row,) = [line.split("|") for line in said.splitlines() if line.startswith("| 512-12-4_0 ")]
    run = next(run for run in planned("shapes", "published") if run.variant == "512-12-4")
    assert row[5].strip() == str(timedelta(seconds=run.flops // experiments.A100))
    # without a corpus, built-in stories are assumed
    said = call("shapes --dry_run --models=hf:gpt2")[1].out
    commands = [line for line in said.splitlines() if line.startswith("python train.py ")]
    assert len(commands) == 8 and "then scores, probes, whose time" in said
    assert (ROOT / commands[0].split()[2]).exists()
    said = call("scaling --budgets 1e12 2e12 --only=*-64-2-4_* --dry_run")[1].out
    assert said.count("| 2.0e12-") == 1 and "| 1.0e12-64-2-4_0 " in said and "e11" not in said
    # existing models train nothing: no speed is measured
    monkeypatch.setattr(experiments, "training_speed", None)
    said = call("shapes --dry_run --only_models hf:gpt2 hf:x")[1].out
    assert "python train.py" not in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "line, complaint",
    [
        ("memory --models=hf:x", "leave out --models"),
        ("heads --budgets=1e12", "--budgets"),
        ("heads --only_models=hf:x --steps=5", "--steps"),
        ("heads --dry_run --data=real", "not a corpus"),
        ("shapes --dry_run --only=900-*", "--only 900-*"),
        ("shapes --scale=real --models=api:x", "set OPENAI_API_KEY"),
        ("shapes --grade='--judge=human --judge lm:out/a --judge gpt'", "set JUDGE_API_KEY"),
        # which needs no key, so that the next mistake is named
        (
            "shapes --scale=real --models=api:x --sample '--base_url http://x'",
            "prepare.py --input train.txt",
        ),
    ],
)
def test_mistakes_are_named(line, complaint, tmp_path, command_line):
    assert complaint in command_line(experiments, tmp_path)(line)[0]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "name, corpora",
    [("paper_shapes", ["instruct", "tinystories"]), ("prompts", ["tinystories-published"])],
)
def test_a_plan_names_missing_corpora_and_keys(name, corpora, tmp_path, command_line):
    command = f"{name} --scale=published --grade='--judge gpt' --dry_run"
    said = command_line(experiments, tmp_path)(command)[1].out
    missing = [line.split()[1] for line in said.splitlines() if line.startswith("missing: ")]
    assert missing == [*(f"data/{corpus}," for corpus in corpora), "JUDGE_API_KEY"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("scale", SCALES)
def test_scaling_takes_what_fits_the_budget(scale):
    runs = planned("scaling", scale)
    fewest = SCALES[scale].min_steps
    for run in runs:
        assert run.flops == pytest.approx(run.budget, rel=0.5 / fewest)
        assert run.config.max_steps >= fewest and run.tokens <= MAX_EPOCHS * 470e6
        assert len([other for other in runs if other.budget == run.budget]) >= 3
