"""experiments.py: nothing is lost or done twice when it is killed; mistakes are named."""

import csv
import dataclasses
import os
import signal
import sys
import time
from pathlib import Path

import forks
import pytest
from conftest import ROOT, assert_same_run, log_of

import experiments
import train
from sweeps import plans, runner
from sweeps.plans import SMALL, VARIANTS
from training.config import TrainConfig, parse_command_line
from training.run_directory import TrainingError

# ---- Killed and started again ----


@pytest.fixture
def tiny(config, tmp_path) -> Path:
    """The config file of runs that take seconds."""
    of_the_list = ("name", "out_dir", "data_dir", "max_steps", "eval_interval")
    path = tmp_path / "tiny.py"
    path.write_text("".join(f"{key} = {value!r}\n" for key, value in config.items() if key not in of_the_list))
    return path


def small_list(tiny: Path, steps: int, **b) -> dict:
    """what sweeps.plans holds for a list of two such runs."""
    scale = dataclasses.replace(SMALL, config=str(tiny), steps=dict(grid=steps), learning_rate=None)
    return dict(SMALL=scale, EVAL_INTERVALS=(10, 10), VARIANTS=VARIANTS | dict(grid=dict(a={}, b=b)))


def in_process(monkeypatch, data_dir: Path, tiny: Path, steps: int, *flags: str, **b) -> str | None:
    """experiments.py grid, in tiny's directory; what it exits with."""
    monkeypatch.chdir(tiny.parent)
    monkeypatch.setattr(sys, "argv", ["experiments.py", "grid", f"--data_dir={data_dir}", *flags])
    for name, value in small_list(tiny, steps, **b).items():
        monkeypatch.setattr(plans, name, value)
    try:
        experiments.main()
    except SystemExit as exit:
        return exit.code


def drive(tiny: Path, data_dir: Path, output: Path):
    """experiments.py grid as a process of its own, forked from one that has imported nearly everything."""
    forks.write_to(output)
    os.chdir(tiny.parent)
    vars(plans).update(small_list(tiny, 100, n_layer=1))
    sys.argv = ["experiments.py", "grid", f"--data_dir={data_dir}"]
    experiments.main()


def wait_for(condition, process):
    while not condition():
        assert process.is_alive(), "it ended before"
        time.sleep(0.01)


def child_of(process) -> int:
    return int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0])


def last_step(run: Path) -> int:
    """That a checkpoint holds, at least."""
    return int(log_of(run)[-1]["step"]) if (run / "ckpt.pt").exists() else 0


@pytest.mark.slow
@pytest.mark.skipif(not Path(f"/proc/self/task/{os.getpid()}/children").exists(), reason="needs Linux's /proc")
def test_stopped_and_killed_nothing_is_lost_or_done_twice(tiny, config, data_dir, tmp_path, monkeypatch):
    directory = tmp_path / "out" / "grid"
    output = tmp_path / "output"

    def call():
        return forks.start(drive, tiny, data_dir, output)

    process = call()
    wait_for(lambda: last_step(directory / "a_0") >= 10, process)
    environment = Path(f"/proc/{child_of(process)}/environ").read_text().split("\0")
    assert f"XDG_CACHE_HOME={os.environ['XDG_CACHE_HOME']}" in environment  # else it may choose other kernels than ours
    os.kill(process.pid, signal.SIGINT)
    process.join(300)
    assert process.exitcode == 1
    assert output.read_text().splitlines()[-1] == "experiments.py: stopped; run the same command to resume"
    assert "Stopped and saved." in (directory / "experiment.log").read_text()
    stopped_at = last_step(directory / "a_0")

    process = call()
    wait_for(lambda: last_step(directory / "a_0") >= stopped_at + 20, process)
    child = child_of(process)
    process.kill()
    os.kill(child, signal.SIGKILL)  # as when the machine fails
    process.join(300)
    assert last_step(directory / "a_0") < 100

    process = call()
    wait_for(lambda: last_step(directory / "b_0") >= 20, process)
    child = child_of(process)
    os.kill(child, signal.SIGSTOP)
    process.kill()  # alone: the run in hand goes on
    process.join(300)
    output.unlink()
    process = call()
    wait_for(lambda: output.exists() and "; waiting for it\n" in output.read_text(), process)
    os.kill(child, signal.SIGCONT)
    process.join(300)
    assert process.exitcode == 0, output.read_text()

    commands = [line for line in (directory / "experiment.log").read_text().splitlines() if line.startswith("$ ")]
    started = [("--name=a_0" in command, "--name=b_0" in command, "--resume" in command) for command in commands]
    assert started == [(True, False, False), (True, False, True), (True, False, True), (False, True, False)]
    for run in ("a_0", "b_0"):
        assert [int(row["step"]) for row in log_of(directory / run)] == list(range(5, 101, 5))
    with (directory / "experiment.csv").open(newline="") as file:
        assert [row["run"] for row in csv.DictReader(file)] == ["a_0", "b_0"]
    settings = dict(name="reference", out_dir=str(tmp_path), max_steps=100, warmup_steps=5, eval_interval=10)
    monkeypatch.setattr(train, "plot_loss", lambda *_: None)
    assert_same_run(directory / "a_0", train.train(TrainConfig(**config | settings), resume=False)[0])

    # what stands is not trained again, and what would be another run now is not touched
    before = {path: path.stat().st_mtime_ns for path in directory.rglob("*.pt")}
    message = in_process(monkeypatch, data_dir, tiny, 100, n_layer=2, dropout=0.5)
    assert message.startswith("experiments.py: out/grid/b_0: trained with n_layer=1, now n_layer=2; move it away")
    assert in_process(monkeypatch, data_dir, tiny, 100, n_layer=1) is None
    assert before == {path: path.stat().st_mtime_ns for path in directory.rglob("*.pt")}


def test_the_table_is_of_all_that_is_finished(tiny, data_dir, tmp_path, monkeypatch):
    """Trained in this process: those above and below start others."""

    def train_one(run: plans.Run, *_):
        train.train(run.config, resume=False)

    monkeypatch.setattr(runner, "train_one", train_one)

    def tabulated() -> list[str]:
        with (tmp_path / "out" / "grid" / "experiment.csv").open(newline="") as file:
            return [row["run"] for row in csv.DictReader(file)]

    assert in_process(monkeypatch, data_dir, tiny, 10, "--only=a", "--seeds=2", n_layer=1) is None
    assert tabulated() == ["a_0", "a_1"]
    assert in_process(monkeypatch, data_dir, tiny, 10, "--only=b", n_layer=1) is None
    assert tabulated() == ["a_0", "b_0", "a_1"]
    assert in_process(monkeypatch, data_dir, tiny, 10, "--only=a", n_layer=3) is None  # b_0 is now of other settings
    assert tabulated() == ["a_0", "a_1"]


@pytest.mark.slow
def test_a_run_that_fails_is_named_and_the_others_go_on(tiny, data_dir, tmp_path, monkeypatch, capsys):
    (tmp_path / "out" / "grid").mkdir(parents=True)
    (tmp_path / "out" / "grid" / "a_0").write_text("in the way")
    message = in_process(monkeypatch, data_dir, tiny, 10)
    assert message.startswith("experiments.py: 1 of 2 runs failed (a_0), see out/grid/experiment.log")
    said = capsys.readouterr().out
    assert "a_0: train.py: " in said
    (row,) = [line for line in said.splitlines() if line.startswith("b  ")]
    assert f"{float(log_of(tmp_path / 'out' / 'grid' / 'b_0')[-1]['val_loss']):.3f}" in row


@pytest.mark.slow
def test_what_is_measured_is_not_measured_again(tiny, data_dir, tmp_path, monkeypatch):
    """probe.py, sample.py and grade.py are only noted; grade.py keeps a ledger of its own."""
    called, run, directory = [], tmp_path / "out" / "grid" / "a_0", tmp_path / "out" / "grid"

    def note(script, *arguments):
        called.append(" ".join(map(str, (script, *arguments))))
        writes = {"probe.py": directory / "probe.csv", "sample.py": run / "samples.jsonl"}
        if script in writes:
            writes[script].write_text("set,prompt,right,wrong\n")

    monkeypatch.setattr(runner, "call", note)
    flags = ["--only=a", "--probe", "--grade=lm:out/b", "--grade=qwen", "--max_cost=1", "--price_in=2", "--price_out=3"]
    grade = "grade.py out/grid --judge=lm:out/b --judge=qwen --price_in=2.0 --price_out=3.0 --max_cost=1.0"
    assert in_process(monkeypatch, data_dir, tiny, 10, *flags) is None
    assert called == ["probe.py out/grid", "sample.py --model out/grid/a_0 --eval 50 --n 1", grade]
    assert in_process(monkeypatch, data_dir, tiny, 10, *flags) is None
    assert called[3:] == [grade]
    (run / "ckpt.pt").touch()  # trained on
    assert in_process(monkeypatch, data_dir, tiny, 10, *flags) is None
    assert called[4:] == called[:3]


def test_a_measure_that_fails_is_named(tmp_path):
    with pytest.raises(TrainingError, match="grade.py failed; run the same command to retry it"):
        runner.call("grade.py", tmp_path / "nowhere", "--no_judge")


@pytest.mark.parametrize(
    "args, message",
    [
        (["grid", "--data=nowhere"], "nowhere/meta.json: cannot be read"),
        (["grid", "--data=tiny", "--only", "900-*"], "--only 900-*: "),
        (["grid", "--data=tiny", "--seeds=0"], "--seeds must be at least 1"),
        (["gird"], "invalid choice: 'gird'"),
        (["dropout", "--data=tiny"], "is a run of train.py"),
    ],
)
def test_mistakes_get_one_line(args, message, data_dir, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("out", "dropout").mkdir(parents=True)
    Path("out", "dropout", "ckpt.pt").touch()
    monkeypatch.setattr(sys, "argv", ["experiments.py", *args, f"--data_dir={data_dir}"])
    with pytest.raises(SystemExit) as caught:
        experiments.main()
    said = caught.value.code if isinstance(caught.value.code, str) else capsys.readouterr().err
    assert message in said and said.strip().count("\n") <= 8  # argparse adds its usage
    assert list(Path("out").iterdir()) == [Path("out", "dropout")]


def test_show_prints_commands_that_run(data_dir, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["experiments.py", "contrast", "--data=tiny", f"--data_dir={data_dir}", "--show"])
    experiments.main()
    lines = capsys.readouterr().out.splitlines()
    commands = [line.split() for line in lines if line.startswith("python train.py configs/experiment.py ")]
    assert len(commands) == SMALL.seeds["contrast"] * len(VARIANTS["contrast"])
    for command in commands:
        parse_command_line([str(ROOT / command[2]), *command[3:]])
    monkeypatch.setattr(sys, "argv", ["experiments.py", "contrast", f"--data={data_dir}/tiny", "--show"])
    experiments.main()  # a path says as much as a name and --data_dir
    assert capsys.readouterr().out.splitlines() == lines
    assert not Path("out").exists()
