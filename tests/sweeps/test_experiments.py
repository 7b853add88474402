"""experiments.py: nothing is lost or done twice when it is killed; mistakes are named."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import ROOT, log_of

import experiments
from common.tables import read_table
from experiments import SCALES
from sweeps import runner
from training.config import ConfigError, parse_command_line

DRIVER = """
import dataclasses, sys
sys.path.insert(0, {root!r})
import experiments
from sweeps import plan
plan.EVAL_INTERVALS = (10, 10)
lists = dict(grid=experiments.Experiment(dict(a={{}}, b={b!r}), steps={steps}))
small = dataclasses.replace(experiments.SCALES["small"], config={config!r}, lists=lists, learning_rate=None)
experiments.SCALES["small"] = small
sys.argv = ["experiments.py", "grid", {data_dir!r}, *sys.argv[1:]]
experiments.main()
"""


@pytest.fixture
def start(config, data_dir, tmp_path):
    """start(steps, *flags, **settings of b): experiments.py on a list of two runs of seconds, a and b, as a process."""
    of_the_list = ("name", "out_dir", "data_dir", "max_steps", "eval_interval")
    path, script = tmp_path / "tiny.py", tmp_path / "driver.py"
    path.write_text("".join(f"{key} = {value!r}\n" for key, value in config.items() if key not in of_the_list))

    def call(steps: int, *flags: str, **b) -> subprocess.Popen:
        facts = dict(root=str(ROOT), config=str(path), data_dir=f"--data_dir={data_dir}", steps=steps, b=b)
        script.write_text(DRIVER.format(**facts))
        pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        return subprocess.Popen([sys.executable, script, *flags], cwd=tmp_path, **pipes)

    return call


def ended(process: subprocess.Popen) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


def wait_for(condition, process):
    while not condition():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


def child_of(process) -> int:
    return int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0])


def last_step(run: Path) -> int:
    """That a checkpoint holds, at least."""
    return int(log_of(run)[-1]["step"]) if (run / "ckpt.pt").exists() else 0


def times_written(directory: Path) -> dict:
    return {path: path.stat().st_mtime_ns for path in directory.rglob("*.pt")}


@pytest.mark.slow
@pytest.mark.skipif(not Path(f"/proc/self/task/{os.getpid()}/children").exists(), reason="needs Linux's /proc")
def test_stopped_and_killed_nothing_is_lost_or_done_twice(start, tmp_path):
    directory = tmp_path / "out" / "grid"
    process = start(100, n_layer=1)
    wait_for(lambda: last_step(directory / "a_0") >= 10, process)
    process.send_signal(signal.SIGINT)
    code, _, err = ended(process)
    assert code == 1 and "run the same command to resume" in err
    stopped_at = last_step(directory / "a_0")

    process = start(100, n_layer=1)
    wait_for(lambda: last_step(directory / "a_0") >= min(stopped_at + 20, 90), process)
    child = child_of(process)
    process.kill()
    os.kill(child, signal.SIGKILL)  # as when the machine fails
    ended(process)

    code, out, err = ended(start(100, n_layer=1))
    assert code == 0, err
    commands = [line for line in (directory / "experiment.log").read_text().splitlines() if line.startswith("$ ")]
    started = [("--name=a_0" in command, "--name=b_0" in command, "--resume" in command) for command in commands]
    assert started == [(True, False, False), (True, False, True), (True, False, True), (False, True, False)]
    for run in ("a_0", "b_0"):
        assert [int(row["step"]) for row in log_of(directory / run)] == list(range(5, 101, 5))
    assert [row["run"] for row in read_table(directory / "experiment.csv")] == ["a_0", "b_0"]
    assert (directory / "experiment.md").read_text().strip() in out

    # what is finished is not trained again, and what would be another run now is not touched
    before = times_written(directory)
    code, _, err = ended(start(100, n_layer=2))
    assert code == 1 and "out/grid/b_0: trained with n_layer=1, now n_layer=2; move it away" in err
    code, out, _ = ended(start(100, n_layer=1))
    assert code == 0 and times_written(directory) == before


@pytest.mark.slow
def test_the_table_is_of_all_that_is_finished_and_a_failure_is_named(start, tmp_path):
    directory = tmp_path / "out" / "grid"

    def tabulated() -> list[str]:
        return [row["run"] for row in read_table(directory / "experiment.csv")]

    assert ended(start(10, "--only=a"))[0] == 0
    assert tabulated() == ["a_0"]
    (directory / "b_0").write_text("in the way")
    code, out, err = ended(start(10, "--seeds=2"))
    assert code == 1 and "1 of 4 runs failed (b_0)" in err
    assert tabulated() == ["a_0", "a_1", "b_1"]


def test_what_is_measured_is_not_measured_again(tmp_path, monkeypatch):
    called, directory = [], tmp_path / "out"
    run = type("Run", (), dict(directory=directory / "a_0"))
    run.directory.mkdir(parents=True)
    (run.directory / "ckpt.pt").touch()
    os.utime(run.directory / "ckpt.pt", (0, 0))

    def note(script, *arguments):
        called.append(" ".join(map(str, (script, *arguments))).replace(str(tmp_path), "."))
        writes = {"probe.py": directory / "probe.csv", "sample.py": run.directory / "samples.jsonl"}
        if script in writes:
            writes[script].touch()

    def measure():
        runner.probe(directory, [run])
        runner.grade(directory, [run], ["--judge=qwen"])

    monkeypatch.setattr(runner, "call", note)
    grade = "grade.py ./out --judge=qwen"  # it has a cache of its own
    measure()
    assert called == ["probe.py ./out", "sample.py --model ./out/a_0 --eval 50 --n 1", grade]
    measure()
    assert called[3:] == [grade]
    time.sleep(0.05)
    (run.directory / "ckpt.pt").touch()  # trained on
    measure()
    assert called[4:] == called[:3]


def test_a_measure_that_fails_is_named(tmp_path):
    with pytest.raises(ConfigError, match="grade.py failed"):
        runner.call("grade.py", tmp_path / "nowhere", "--no_judge")


@pytest.mark.parametrize(
    "args, message",
    [
        (["grid", "--data=nowhere"], "nowhere"),
        (["grid", "--data=tiny", "--only", "900-*"], "--only 900-*: "),
        (["grid", "--data=tiny", "--seeds=0"], "--seeds"),
        (["gird"], "invalid choice: 'gird'"),
        (["dropout", "--data=tiny"], "is a run of train.py"),
    ],
)
def test_mistakes_get_one_line(args, message, data_dir, tmp_path, command_line):
    (tmp_path / "out" / "dropout").mkdir(parents=True)
    (tmp_path / "out" / "dropout" / "ckpt.pt").touch()
    code, said = command_line(experiments, tmp_path)(*args, f"--data_dir={data_dir}")
    said = code if isinstance(code, str) else said.err
    assert message in said and said.strip().count("\n") <= 8  # argparse adds its usage
    assert list((tmp_path / "out").iterdir()) == [tmp_path / "out" / "dropout"]


def test_a_dry_run_prints_commands_that_run(data_dir, tmp_path, command_line):
    call = command_line(experiments, tmp_path)
    code, said = call("contrast", "--data=tiny", f"--data_dir={data_dir}", "--dry_run")
    lines = [
        line.split() for line in said.out.splitlines() if line.startswith("python train.py configs/experiment.py ")
    ]
    contrast = SCALES["small"].lists["contrast"]
    assert code == 0 and len(lines) == contrast.seeds * len(contrast.variants)
    for command in lines:
        parse_command_line([str(ROOT / command[2]), *command[3:]])
    assert (
        call("contrast", f"--data={data_dir}/tiny", "--dry_run")[1].out == said.out
    )  # a path, or a name and --data_dir
    assert not (tmp_path / "out").exists()
