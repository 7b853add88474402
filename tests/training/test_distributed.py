"""Many devices: any number of processes trains the same run, and stops, ends and fails as one."""

import signal
import subprocess
import sys
import time

import pytest
from conftest import ROOT, arguments, assert_same_curve, run_of
from forks import fork_ranks

from nanostories.checkpoints.checkpoint import load_checkpoint
from nanostories.training.config import TrainConfig
from nanostories.training.distributed import Ranks
from train import make_builtin

pytestmark = pytest.mark.usefixtures("quick")


def exit_codes(said: list[str]) -> list[str]:
    return [text.split()[-1] for text in said]


def test_the_same_run_on_two_processes_that_stop_together_and_then_on_four(config, tmp_path):
    """Two have a micro-batch each, four half of one."""
    run = tmp_path / "out" / "run"
    config |= {"attend_within_story": True, "align_stories": True}
    config |= {"optimizer": "muon", "max_minutes": 60.0}
    reference = run_of(config, name="reference")
    said = fork_ranks(2, arguments(config), tmp_path / "said", "told to stop", step=13)
    assert "--resume" in said[0] and exit_codes(said) == ["1", "1"]
    assert load_checkpoint(run / "ckpt.pt")["step"] == 13
    said = fork_ranks(4, arguments(config, "--resume"), tmp_path / "said")
    assert "Next: python sample.py" in said[0] and said[1:] == [" 0"] * 3, said  # one speaks
    assert_same_curve(run, reference)


def test_of_machines_that_share_a_disk_one_makes_the_corpus(config, monkeypatch):
    """Both ranks are the first on theirs, and wait for it."""
    done = []
    made = subprocess.CompletedProcess([], 0)
    monkeypatch.setattr("train.subprocess.run", lambda *_, **__: done.append("made") or made)
    monkeypatch.setattr(Ranks, "barrier", lambda ranks: done.append(ranks.rank))
    for rank in (0, 1):
        make_builtin(TrainConfig(**config | {"data": "builtin"}), Ranks(rank, 2))
    assert done == ["made", 0, 1]


@pytest.mark.parametrize(
    "accident, victim, remedy",
    [
        ("in the evaluation", 0, ""),
        ("out of memory", 1, "out of memory; halve --batch_size"),
    ],
)
def test_a_rank_that_dies_ends_the_run(config, tmp_path, accident, victim, remedy):
    said = fork_ranks(2, arguments(config), tmp_path / "said", accident, step=20, victim=victim)
    assert f"process {1 - victim}: another process failed" in said[1 - victim].splitlines()[-2]
    assert remedy in said[victim]
    ends = ["-9", "1"] if victim == 0 else ["1", "1"]
    assert exit_codes(said) == ends and "Traceback" not in "".join(said)
    assert load_checkpoint(tmp_path / "out" / "run" / "ckpt.pt")["step"] == 10


def test_torchrun_itself(config, tmp_path):
    """Started as a user does, stopped with Ctrl-C."""
    run = tmp_path / "out" / "run"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    command = [*torchrun, ROOT / "train.py", *arguments(config | {"max_steps": 10**6})]
    said = tmp_path / "said"
    with said.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            while not (run / "ckpt.pt").exists():
                assert process.poll() is None, said.read_text()
                time.sleep(0.05)
            process.send_signal(signal.SIGINT)
            process.wait(60)
        finally:
            process.kill()
    text = said.read_text()
    assert text.count("Stopped and saved") == 1 and "train.py, process" not in text, text
    assert load_checkpoint(run / "ckpt.pt")["step"] >= 10
