"""Which runs a list has, and what they cost."""

import dataclasses
from pathlib import Path

import pytest
from conftest import ROOT

import experiments
from model import GPTNeo, GPTNeoConfig
from nanostories.sweeps.lists import EXPERIMENTS, SCALES
from nanostories.sweeps.plan import MAX_EPOCHS, PlannedRun, count_parameters_and_flops, plan_runs
from nanostories.training.config import TrainConfig, parse_command_line

META = dict(vocab_size=10_000, splits=dict(train=dict(tokens=470_000_000, sha256="-")))
NAMES = (
    "tinystories",
    "tinystories-published",
    "instruct",
    "instruct-ood",
    "builtin-instruct",
)
CORPORA = {name: (Path("data", name), META) for name in NAMES}


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
    listed, runs = EXPERIMENTS[name].runs(scale), planned(name, scale, 2)
    assert (runs or listed.models) and len({run.config.name for run in runs}) == len(runs)
    for run in runs:
        assert run.config.out_dir == "out/x" and run.config.eval_interval <= 250
        assert run.config.warmup_steps == pytest.approx(
            SCALES[scale].warmup * run.config.max_steps, abs=1
        )
        assert run.flops == run.config.max_steps * count_parameters_and_flops(run.config, 10_000)[1]
        if (
            run.config.start_from and scale != "published"
        ):  # a run of the same list, which comes before
            source = next(r for r in runs if str(r.directory) == run.config.start_from)
            assert runs.index(source) < runs.index(run) and source.config.seed == run.config.seed


def test_published_lists_need_no_data_to_be_counted(tmp_path, command_line, monkeypatch):
    call = command_line(experiments, tmp_path)
    shapes = {(run.config.n_embd, run.config.n_layer) for run in planned("scaling", "published")}
    assert {(64, 8), (256, 8), (512, 12), (1024, 2), (2048, 2)} <= shapes
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    code, said = call("shapes --scale=published --dry_run")
    (row,) = [line.split("|") for line in said.out.splitlines() if line.startswith("| 512-12-4_0 ")]
    run = next(run for run in planned("shapes", "published") if run.variant == "512-12-4")
    _, minutes, seconds = map(int, row[5].split(":"))
    assert code == 0 and 60 * minutes + seconds == int(run.flops / experiments.A100)
    assert "scores, probes of 10 models" in said.out  # 8 runs, gpt2 and gpt2-medium
    # without a corpus, built-in stories are assumed; another one must be there
    code, said = call("heads --dry_run")
    commands = [line for line in said.out.splitlines() if line.startswith("python train.py ")]
    assert code == 0 and len(commands) == 8
    for command in commands:
        _, _, config, *flags = command.split()
        parse_command_line([str(ROOT / config), *flags])
    with monkeypatch.context() as patched:  # existing models train nothing: no speed is measured
        patched.setattr("experiments.training_speed", None)
        code, said = call("prompts --dry_run --only_models=hf:x")
    assert code == 0 and "beginnings, probes of 1 models" in said.out and "$" not in said.out
    said = call("scaling --budgets 1e12 2e12 --only=*-64-2-4 --dry_run")[1].out
    assert said.count("| 2.0e12-") == 1 and "| 1.0e12-64-2-4_0 " in said and "e11" not in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "line, complaint",
    [
        ("memory --models=hf:x", "leave out --models"),
        ("scaling --only_models=hf:x", "leave out --models"),
        ("scaling --steps=5", "--steps"),
        ("heads --budgets=1e12", "--budgets"),
        ("heads --only_models=hf:x --steps=5", "--steps"),
        ("heads --dry_run --data=real", "not a corpus"),
        ("shapes --dry_run --only=900-*", "--only 900-*: "),
        ("shapes --seeds=0", "--seeds"),
        ("shape", "invalid choice: 'shape'"),
    ],
)
def test_mistakes_are_named(line, complaint, tmp_path, command_line):
    code, said = command_line(experiments, tmp_path)(line)
    (said,) = f"{said.err}{code}".removesuffix("2").splitlines()
    assert complaint in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_what_is_missing_is_named_before_anything_runs(name, tmp_path, command_line, monkeypatch):
    """Corpora with the commands that make them, and keys; not those that are there."""
    for variable in ("OPENAI_API_KEY", "JUDGE_API_KEY", "OPENAI_BASE_URL", "JUDGE_BASE_URL"):
        monkeypatch.delenv(variable, raising=False)
    call = command_line(experiments, tmp_path)
    published = f"{name} --scale=published"
    code, said = call(f"{published} --dry_run --grade='--judge gpt'")
    lines = [line for line in said.out.splitlines() if line.startswith("missing: ")]
    experiment = EXPERIMENTS[name]
    corpora = {experiment.data}
    corpora |= {x.get("data", experiment.data) for x in experiment.published.variants.values()}
    keys = [line for line in lines if "KEY" in line]
    is_judged = {"scores", "beginnings"} & set(experiment.measures)
    assert code == 0 and keys == (["missing: JUDGE_API_KEY"] if is_judged else [])
    made = [line for line in lines if ", which is made first by python prepare.py " in line]
    assert {line.split()[1] for line in made} == {f"data/{corpus}," for corpus in corpora}
    assert len(made) + len(keys) == len(lines)
    if name == "baselines":
        several = f"{published} --models=api:x --grade='--judge gpt --judge=human --judge lm:out/a'"
        code, said = call(f"{several} --dry_run")
        assert "missing: OPENAI_API_KEY\nmissing: JUDGE_API_KEY\n" in said.out
        assert "set OPENAI_API_KEY and JUDGE_API_KEY" in call(several)[0]
        monkeypatch.setenv("OPENAI_API_KEY", "x")
        assert "_API_KEY" not in call(f"{several} --dry_run")[1].out
    assert not (tmp_path / "out").exists() and not (tmp_path / "data").exists()


def test_the_real_scale_needs_stories_and_trains_longer_on_them(tmp_path, command_line):
    call = command_line(experiments, tmp_path)
    code, _ = call("heads", "--scale=real")
    assert "prepare.py --input train.txt --val valid.txt --name=real" in code
    for name in ("heads", "scaling"):
        small, real = planned(name, "small"), planned(name, "real")
        assert {run.variant for run in small} == {run.variant for run in real}
        assert max(run.flops for run in real) > 6 * max(run.flops for run in small)


def test_models_are_added_to_a_list_or_take_its_place(tmp_path, command_line):
    call = command_line(experiments, tmp_path)
    said = call("shapes --dry_run --models=hf:gpt2")[1].out
    assert said.count("python train.py") == 8 and "of 9 models" in said
    said = call("shapes --dry_run --only_models hf:gpt2 hf:x")[1].out
    assert "python train.py" not in said and "of 2 models" in said
    said = call("baselines --scale=published --dry_run --models=api:x")[1].out
    assert "of 12 models" in said


@pytest.mark.parametrize("scale", SCALES)
def test_scaling_takes_what_fits_the_budget(scale):
    runs, own = planned("scaling", scale), SCALES[scale]
    for run in runs:
        assert run.flops == pytest.approx(run.budget, rel=0.5 / own.min_steps)
        assert run.config.max_steps >= own.min_steps and run.tokens <= MAX_EPOCHS * 470e6
    for budget in EXPERIMENTS["scaling"].small.budgets if scale == "small" else ():
        assert len({run.variant for run in runs if run.budget == budget}) >= 3
