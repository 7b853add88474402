"""experiments.py: nothing is lost or done twice when it is stopped; mistakes are named."""

import _thread
import os
import threading
import time
from pathlib import Path

import pytest
from conftest import log_of

import experiments
from nanostories.cli import UserError
from nanostories.sweeps import lists, runner

STEPS = 60
# In place of train.py, whose own stops have their tests: it waits to be stopped, and ends when it
# is resumed.
TRAIN = """
import signal, sys
from pathlib import Path
settings = dict(flag[2:].split("=") for flag in sys.argv[1:] if "=" in flag)
run, step = Path(settings["out_dir"], settings["name"]), 60 if "--resume" in sys.argv else 10
signal.signal(signal.SIGTERM, lambda *_: sys.exit("Stopped and saved"))
run.mkdir(parents=True, exist_ok=True)
(run / "ckpt.pt").touch()
(run / "log.csv").write_text(f"step,tokens,train_loss,val_loss,bpb,seconds\\n{step},{step},3,3.5,1,1\\n")
while step == 10:
    signal.pause()
"""  # noqa: E501


@pytest.fixture
def start(config, data_dir, tmp_path, command_line, monkeypatch):
    """start(): experiments.py on a list of one run."""
    named = ("name", "out_dir", "data_dir", "max_steps", "eval_interval")
    path = tmp_path / "tiny.py"
    path.write_text(
        "".join(f"{key} = {value!r}\n" for key, value in config.items() if key not in named)
    )
    runs = lists.Runs(dict(a={}), steps=STEPS)
    monkeypatch.setitem(lists.EXPERIMENTS, "heads", lists.Experiment("a run", runs, runs))
    monkeypatch.setitem(
        lists.SCALES, "small", lists.Scale(str(path), dict(tinystories="tiny"), 0.0, None, 1, 1)
    )
    (tmp_path / "train.py").write_text(TRAIN)
    monkeypatch.setattr(runner, "ROOT", tmp_path)
    call = command_line(experiments, tmp_path)
    return lambda: call("heads", f"--data_dir={data_dir}")


def interrupt_after(log: Path) -> None:
    """As Ctrl-C would, in another thread."""
    while not (log.exists() and log_of(log.parent)):
        time.sleep(0.01)
    _thread.interrupt_main()


def test_stopped_nothing_is_lost_or_done_twice(start, tmp_path):
    directory = tmp_path / "out" / "heads"
    threading.Thread(target=interrupt_after, args=(directory / "a_0" / "log.csv",)).start()
    code, said = start()
    assert "run the same command to resume" in f"{code} {said.err}"

    code, said = start()
    assert code == 0 and "1/1  a_0: validation loss 3.5" in said.out, said.err
    log = (directory / "experiment.log").read_text().splitlines()
    assert ["--resume" in line for line in log if line.startswith("$ ")] == [
        False,
        True,
    ] and "Stopped and saved" in log
    assert (directory / "experiment.md").read_text().strip() in said.out
    before = (
        (directory / "a_0" / "log.csv").stat().st_mtime_ns
    )  # what is finished is not trained again
    assert start()[0] == 0 and (directory / "a_0" / "log.csv").stat().st_mtime_ns == before


def test_what_is_measured_is_not_measured_again(tmp_path, monkeypatch):
    called, run = [], tmp_path / "a_0"
    run.mkdir()
    (run / "ckpt.pt").touch()
    sample, grade = (
        (["sample.py", "--n", "1"], [str(run)]),
        (["grade.py", "."], [str(run), "hf:gpt2"]),
    )
    commands = [sample, (["sample.py", "gpt2"], ["hf:gpt2"]), grade, (["interpret.py"], [str(run)])]
    monkeypatch.setattr(runner, "call", lambda command: called.append(command[0]))
    runner.run_missing(commands, tmp_path)
    assert called == ["sample.py", "sample.py", "grade.py", "interpret.py"]
    runner.run_missing(commands, tmp_path)
    assert len(called) == 4
    commands[1] = (
        ["sample.py", "gpt2", "--n", "10"],
        ["hf:gpt2"],
    )  # more stories: what summarizes them runs again
    runner.run_missing(commands, tmp_path)
    assert called[4:] == ["sample.py", "grade.py"]
    os.utime(run / "ckpt.pt", (0, 0))  # trained again
    runner.run_missing(commands, tmp_path)
    assert called[6:] == ["sample.py", "grade.py", "interpret.py"]


def test_a_measure_that_fails_is_named(tmp_path, monkeypatch):
    (tmp_path / "grade.py").write_text("raise SystemExit('nothing here')")
    monkeypatch.setattr(runner, "ROOT", tmp_path)
    with pytest.raises(UserError, match="grade.py .* failed"):
        runner.call(["grade.py", str(tmp_path / "nowhere"), "--no_judge"])


@pytest.mark.parametrize(
    "args, message",
    [
        (["shapes", "--data=nowhere"], "nowhere"),
        (["shapes", "--data=tiny", "--only", "900-*"], "--only 900-*: "),
        (["shapes", "--data=tiny", "--seeds=0"], "--seeds"),
        (["shape"], "invalid choice: 'shape'"),
    ],
)
def test_mistakes_get_one_line(args, message, data_dir, tmp_path, command_line):
    code, said = command_line(experiments, tmp_path)(*args, f"--data_dir={data_dir}")
    said = code if isinstance(code, str) else said.err
    assert message in said.strip().splitlines()[-1]  # below argparse's usage
    assert not (tmp_path / "out").exists()
