"""
Processes that run train.py or grade.py, forked from one that has imported everything: a tenth of a
second instead of four. Trainings can be ranks, as torchrun starts them, and can meet with an
accident at a chosen step.
"""

import multiprocessing
import os
import signal
import sys
from pathlib import Path

from conftest import ROOT

import grade
import train
from nanostories.training import data_order

CONTEXT = multiprocessing.get_context("forkserver")
# Optimizers import torch._dynamo. There is one server for each worker of pytest.
CONTEXT.set_forkserver_preload(
    [
        "forks",
        "torch._dynamo",
        "openai",
        "nanostories.grading.metrics",
        "nanostories.grading.pictures",
    ]
)


def fork(
    args: list[str], output: Path, accident: str = "", step: int = 0, **environment
) -> multiprocessing.Process:
    """python train.py ARGS as a process; what it says goes to the file `output`."""
    return start(run, args, output, accident, step, environment)


def start(function, *arguments) -> multiprocessing.Process:
    os.environ["PYTHONPATH"] = (
        f"{ROOT}{os.pathsep}{ROOT / 'tests'}"  # for the server, which starts with the first
    )
    process = CONTEXT.Process(target=function, args=arguments, daemon=True)
    process.start()
    return process


def grade_in(directory: Path, url: str):
    """python grade.py out --judge j"""
    os.chdir(directory)
    os.environ["OPENAI_API_KEY"] = "secret-key"
    sys.argv = ["grade.py", "out", "--judge", "j", "--base_url", url, "--concurrency", "4"]
    grade.main()


def fork_ranks(
    size: int,
    args: list[str],
    output: Path,
    accident: str = "",
    step: int = 0,
    victim: int = 1,
):
    """torchrun --nproc_per_node=SIZE train.py ARGS, to its end: what each rank said, the exit code
    as the last word."""
    # below those that the system gives to servers of other tests
    place = dict(MASTER_ADDR="127.0.0.1", MASTER_PORT=10_000 + os.getpid() % 20_000)
    outputs = [output.with_name(f"{output.name}.{rank}") for rank in range(size)]
    processes = []
    for rank in range(size):
        place |= dict(WORLD_SIZE=size, RANK=rank, LOCAL_RANK=rank)
        processes.append(
            fork(args, outputs[rank], accident if rank == victim else "", step, **place)
        )
    for process in processes:
        process.join(180)
        assert process.exitcode is not None, "a rank hangs"
    return [f"{path.read_text()} {process.exitcode}" for path, process in zip(outputs, processes)]


def run(args: list[str], output: Path, accident: str, step: int, environment: dict):
    with output.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", buffering=1, closefd=False)
    os.environ |= {key: str(value) for key, value in environment.items()}
    train.plot_run = lambda *args: None  # it and the story take most of the time
    train.stream_story = lambda *args: None
    if accident:
        arrange(accident, step)
    sys.argv = ["train.py", *args]
    train.main()


# ---- Accidents, each instead of a call of a function ----
def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)


def be_told_to_stop(for_step, *args):
    for _ in range(2):  # as where a system tells every process, and torchrun its own again
        signal.raise_signal(signal.SIGTERM)
    return for_step(*args)


def lose_half_a_row(append_row, path, row):
    with path.open("a") as file:
        file.write("2")  # and not yet the 0 of step 20
    die()


def write_half_of_ckpt(write, path, data):
    write(path, data if path.name != ".ckpt.pt.tmp" else bytes(data)[: len(data) // 2])
    if path.name == ".ckpt.pt.tmp":
        die()


KILLED = {  # where: (holder of the function, its name, what happens instead)
    "within a row of the log": (train.run_directory, "append_row", lose_half_a_row),
    "within ckpt.pt": (Path, "write_bytes", write_half_of_ckpt),
}
ACCIDENTS = KILLED | {
    "in the evaluation": (train, "evaluate", die),
    "told to stop": (data_order.Windows, "for_step", be_told_to_stop),
    "out of memory": (data_order.Windows, "for_step", lambda *_: bytes(1 << 62)),
}


def arrange(accident: str, step: int):
    """From now on, the accident happens while `step` is done."""
    holder, name, happen = ACCIDENTS[accident]
    learning_rate = train.learning_rate
    function = getattr(holder, name)
    now = [0]

    def note_the_step(done, *args):
        now[0] = done + 1
        return learning_rate(done, *args)

    train.learning_rate = note_the_step

    def function_with_accident(*args, **more):
        return happen(function, *args, **more) if now[0] == step else function(*args, **more)

    setattr(holder, name, function_with_accident)
