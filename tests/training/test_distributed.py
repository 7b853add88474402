"""Many devices: any number of processes trains the same run, and stops, ends and fails as one."""

import math
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch
from conftest import ROOT, arguments, assert_same_curve, log_of, weights
from forks import fork_ranks

from checkpoints.checkpoint import load_checkpoint
from kernels import attention, autotune, cross_entropy
from train import train
from training.config import ConfigError, TrainConfig
from training.data_order import dropout_seed
from training.distributed import Ranks

pytestmark = pytest.mark.xdist_group("several processes")  # together they are too many for two cores


@pytest.fixture(autouse=True)
def one_thread():
    """As each of the ranks has: which kernels are fastest depends on it, and with them the last bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    chosen = (attention.measured_implementation, cross_entropy.implementation, autotune.fast_dtype)
    for implementation in chosen:
        implementation.cache_clear()
    yield
    torch.set_num_threads(before)
    for implementation in chosen:
        implementation.cache_clear()


@pytest.fixture
def reference(config):
    """One process alone."""
    return train(TrainConfig(**config | dict(name="reference")), resume=False)[0]


@pytest.mark.parametrize(
    "size, changes",
    [
        (2, {}),  # a micro-batch each
        (4, {}),  # half a micro-batch each
        (2, dict(optimizer="muon", dropout=0.1)),
        (2, dict(grad_accum_steps=4, batch_size=2, dtype="bfloat16", align_stories=True)),  # two micro-batches each
        (2, dict(attend_within_story=True)),
    ],
)
def test_the_same_run_on_more_processes(config, tmp_path, size, changes):
    config |= changes
    reference, _ = train(TrainConfig(**config | dict(name="reference")), resume=False)
    said = fork_ranks(size, arguments(config), tmp_path / "said")
    assert [text.split()[-1] for text in said] == ["0"] * size, said
    assert_same_curve(tmp_path / "out" / "run", reference)
    assert "Next: python sample.py" in said[0]
    assert said[1:] == [" 0"] * (size - 1)  # one speaks
    assert weights(tmp_path / "out" / "run").keys() == weights(reference).keys()


def test_a_run_goes_on_with_another_number_of_processes(config, reference, tmp_path):
    train(TrainConfig(**config | dict(max_steps=10)), resume=False)
    said = fork_ranks(2, arguments(config, "--resume"), tmp_path / "said")
    assert [text.split()[-1] for text in said] == ["0", "0"], said
    assert_same_curve(tmp_path / "out" / "run", reference)


def test_all_stop_at_the_same_step_and_save(config, reference, tmp_path):
    run = tmp_path / "out" / "run"
    said = fork_ranks(2, arguments(config), tmp_path / "said", "told to stop", step=13)
    assert "Stopped and saved. Run the same command with --resume" in said[0]
    assert [text.split()[-1] for text in said] == ["1", "1"]
    assert load_checkpoint(run / "ckpt.pt")["step"] == 13
    fork_ranks(4, arguments(config, "--resume"), tmp_path / "said")
    assert_same_curve(run, reference)


def test_the_clock_of_the_first_rank_ends_the_run(config, tmp_path):
    config |= dict(max_steps=10**6, max_minutes=0.01, warmdown=1.0, eval_interval=10**6)
    said = fork_ranks(2, arguments(config), tmp_path / "said")
    assert [text.split()[-1] for text in said] == ["0", "0"], said
    checkpoint = load_checkpoint(tmp_path / "out" / "run" / "ckpt.pt")
    assert checkpoint["seconds"] >= 0.6 and checkpoint["step"] > 0


@pytest.mark.parametrize("accident, victim", [("in the step", 0), ("in the evaluation", 1), ("out of memory", 1)])
def test_a_rank_that_dies_ends_the_run(config, tmp_path, accident, victim):
    said = fork_ranks(2, arguments(config), tmp_path / "said", accident, step=20, victim=victim)
    lost = f"train.py, process {1 - victim}: another process has failed, see its message"
    assert said[1 - victim].splitlines()[-2].startswith(lost) and said[1 - victim].endswith(" 1")
    if accident == "out of memory":
        message = "train.py, process 1: out of memory; halve batch_size and double grad_accum_steps"
        assert said[victim].startswith(message) and said[victim].count("\n") == 1
    else:
        assert said[victim].endswith(" -9")
    assert "Traceback" not in "".join(said)
    assert load_checkpoint(tmp_path / "out" / "run" / "ckpt.pt")["step"] == 10


def test_torchrun_itself(config, reference, tmp_path):
    """Started as a user does, stopped with Ctrl-C, then resumed by one process alone."""
    run = tmp_path / "out" / "run"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", ROOT / "train.py"]
    command = [*torchrun, *arguments(config | dict(max_steps=10**6))]
    with (tmp_path / "said").open("w") as said:
        environment = os.environ | dict(OMP_NUM_THREADS="1")
        process = subprocess.Popen(command, stdout=said, stderr=said, env=environment)
        while not (run / "ckpt.pt").exists():
            assert process.poll() is None, (tmp_path / "said").read_text()
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        process.wait(60)
    said = (tmp_path / "said").read_text()
    assert said.count("Stopped and saved. Run the same command with --resume") == 1, said
    assert "train.py, process" not in said
    step = load_checkpoint(run / "ckpt.pt")["step"]
    assert step >= 10
    train(TrainConfig(**config | dict(max_steps=step + 1)), resume=True)
    rows = {row["step"]: row for row in log_of(run)}
    for row in log_of(reference)[:2]:
        assert float(rows[row["step"]]["train_loss"]) == pytest.approx(float(row["train_loss"]), abs=1e-4)


# ---- What the ranks do, one by one ----


@pytest.mark.parametrize(
    "batch_size, grad_accum_steps, size, share",
    [(80, 16, 1, (16, 80)), (80, 16, 8, (2, 80)), (8, 1, 4, (1, 2)), (80, 16, 32, (1, 40)), (6, 2, 3, (2, 2))],
)
def test_a_step_is_divided(batch_size, grad_accum_steps, size, share):
    config = TrainConfig(batch_size=batch_size, grad_accum_steps=grad_accum_steps)
    assert Ranks(world_size=size).divide_step(config) == share
    assert math.prod(share) * size == config.sequences_per_step


def test_what_cannot_be_divided_is_refused(config, tmp_path):
    message = "grad_accum_steps=2 micro-batches of batch_size=4 cannot be divided among 3 processes; make one of them"
    with pytest.raises(ConfigError, match=message):
        Ranks(world_size=3).divide_step(TrainConfig(**config))
    said = fork_ranks(3, arguments(config), tmp_path / "said")
    assert message in said[0] and not (tmp_path / "out").exists()


@pytest.mark.parametrize("device", ["cuda:1", "mps"])
def test_a_device_that_cannot_be_shared_is_refused(device):
    with pytest.raises(ConfigError, match=f"several processes need device=cuda .a GPU each. or cpu, not {device}"):
        Ranks(world_size=2).device_name(device)


def test_dropout_has_a_stream_for_every_micro_batch():
    seeds = {dropout_seed(seed, step, i) for seed in range(3) for step in range(10) for i in range(10)}
    assert len(seeds) == 300
    torch.manual_seed(max(seeds))  # any of them is one that torch takes


@pytest.mark.parametrize("last", range(4))
def test_the_first_of_every_machine_makes_the_data_before_its_others_look(last):
    """Two machines of two ranks, with a disk each; whichever rank comes last."""
    meeting, made, order = threading.Barrier(4), set(), []

    class Threads(Ranks):
        def barrier(self):
            meeting.wait(timeout=60)

    def work(rank):
        machine, local_rank = divmod(rank, 2)
        time.sleep(0.1 * (rank == last))
        with Threads(rank, 4, local_rank).first_goes_first():
            order.append((rank, machine in made))
            time.sleep(0.02)
            made.add(machine)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert order[:2] == [(0, False), (2, False)] and sorted(order[2:]) == [(1, True), (3, True)]
