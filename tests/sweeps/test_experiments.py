"""experiments.py: nothing is lost or done twice when it is stopped; mistakes are named."""

import sys
from dataclasses import replace

import pytest
from random_models import model_to_probe, save_run, trained_on

import experiments
from nanostories.cli import UserError
from nanostories.results import Table, load, save
from nanostories.sweeps import lists, measures, memory, runner
from nanostories.sweeps.measures import Command
from nanostories.sweeps.plan import PlannedRun
from nanostories.training.config import TrainConfig

# In place of train.py, whose own stops have their tests: run a_0 sends us the signal of Ctrl-C and
# waits to be stopped, and ends when it is resumed; b_0 fails.
TRAIN = """
import os, signal, sys
sys.path[:0] = {paths!r}
from pathlib import Path
from random_models import model_to_probe, save_run, trained_on
from nanostories.training.config import parse_command_line
resumed = "--resume" in sys.argv
config, _ = parse_command_line([x for x in sys.argv[1:] if x != "--resume"])
if config.name == "b_0":
    sys.exit("no")
run = Path(config.out_dir, config.name)
step, done = (60, 1) if resumed else (10, 0.2)
signal.signal(signal.SIGINT, lambda *_: sys.exit("Stopped and saved"))
facts = trained_on(Path(config.data_dir), config.data)
save_run(run, model_to_probe(), **facts | dict(train_config=vars(config)))
log = "step,tokens,done,train_loss,val_loss,bpb,tokens_per_s,seconds"
(run / "log.csv").write_text(f"{{log}}\\n{{step}},{{step}},{{done}},3,3.5,1,9,1\\n")
if not resumed:
    os.kill(os.getppid(), signal.SIGINT)
    while True:
        signal.pause()
"""


@pytest.fixture
def start(data_dir, tmp_path, command_line, monkeypatch):
    """start(): experiments.py on a list of two runs."""
    runs = lists.Runs({"a": {}, "b": {}}, steps=60)
    scale = replace(lists.SMALL, corpora={"tinystories": "tiny"})
    monkeypatch.setitem(lists.EXPERIMENTS, "heads", lists.Experiment("two runs", runs, runs))
    monkeypatch.setitem(lists.SCALES, "small", scale)
    (tmp_path / "train.py").write_text(TRAIN.format(paths=[x for x in sys.path if x]))
    monkeypatch.setattr(runner, "ROOT", tmp_path)
    call = command_line(experiments, tmp_path)
    return lambda: call("heads", f"--data_dir={data_dir}")


def test_stopped_nothing_is_lost_or_done_twice_and_a_failure_is_named(start, tmp_path):
    directory = tmp_path / "out" / "heads"
    log = directory / "a_0" / "log.csv"
    code, said = start()
    assert "run the same command to resume" in f"{code} {said.err}"

    code, said = start()
    assert "a_0: validation loss 3.5" in said.out and "1 of 2 runs failed (b_0)" in code
    lines = (directory / "experiment.log").read_text().splitlines()
    resumed = ["--resume" in line for line in lines if line.startswith("$ ")]
    assert resumed == [False, True, False] and "Stopped and saved" in lines
    result = load(directory / "experiment.json")
    assert [row["run"] for row in result.tables[0].rows] == ["a"]
    before = log.stat().st_mtime_ns
    start()  # what is finished is not trained again
    assert log.stat().st_mtime_ns == before


def test_a_measure_is_current_if_its_command_and_sources_are(tmp_path, monkeypatch):
    """And if its result is there."""
    source = tmp_path / "eval.jsonl"
    result = tmp_path / "grades.json"
    command = ["grade.py", "--no_judge"]

    def is_current(*flags) -> bool:
        return runner.is_current(Command(result, [*command, *flags]))

    assert not is_current()
    source.write_text("{}")
    monkeypatch.setattr(sys, "argv", command)
    save(result, "grade.py", [Table("x", [])], sources=[source])
    assert is_current()
    assert not is_current("--controls")
    source.write_text("[]")
    assert not is_current()


def test_a_run_is_finished_if_its_settings_and_data_are_the_same(data_dir, tmp_path):
    config = TrainConfig(data="tiny", data_dir=str(data_dir), out_dir=str(tmp_path), name="a")
    run = PlannedRun("a", [], config, 1, 1, None)
    facts = trained_on(data_dir, "tiny") | dict(train_config=vars(config))
    save_run(run.directory, model_to_probe(), **facts)
    for done, expected in ((0.9, False), (1.0, True)):
        (run.directory / "log.csv").write_text(f"step,done\n1,{done}\n")
        assert runner.is_finished(run) == expected
    for changed, complaint in (
        (dict(data_sha256="x"), "other stories"),
        (dict(train_config=vars(replace(config, seed=1))), "seed=1, and now it would be 0"),
    ):
        save_run(run.directory, model_to_probe(), **facts | changed)
        with pytest.raises(UserError, match=complaint):
            runner.is_finished(run)


def test_a_measure_that_fails_is_named_and_called_again_and_the_others_are_made(
    tmp_path, monkeypatch
):
    (tmp_path / "probe.py").write_text("from pathlib import Path\nPath('probed').touch()")
    (tmp_path / "grade.py").write_text("raise SystemExit('no key')")
    grade = measures.grade(["out"], measures.Settings(tmp_path), "eval")
    todo = [grade, Command(tmp_path / "x.json", ["probe.py"])]
    monkeypatch.setattr(runner, "ROOT", tmp_path)
    monkeypatch.setattr(measures, "commands", lambda *_: todo)
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        problems = experiments.measure(lists.EXPERIMENTS["shapes"], [], None)
        assert problems == ["grade.py failed, see above"]
        (tmp_path / "probed").unlink()


def test_memory_says_where_it_is_measured(monkeypatch):
    """Windows has no module `resource`."""
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(SystemExit, match="on Linux alone"):
        memory.limit_memory(500)
