"""Settings: from the file, from the command line, and what is said to mistakes in them."""

import pytest
from conftest import ROOT

from nanostories.cli import UserError
from nanostories.files import write_json
from nanostories.training.config import TrainConfig, parse_command_line


def test_later_config_files_win_and_the_command_line_over_all(tmp_path):
    first = tmp_path / "mine.py"
    second = tmp_path / "faster.py"
    first.write_text(
        '# What it is for.\n\nn_layer = 3  # why\nlearning_rate = 1\ndata_dir = "/mnt/#2"\n'
    )
    second.write_text("n_layer = 4\nwarmup_steps = 5\ncompile = False\nmax_steps = 20_000\n")
    paths = [str(first), str(second)]
    config, resume = parse_command_line([*paths, "--warmup_steps=7", "--data=007"])
    expected = TrainConfig(
        name="mine-faster-007",
        n_layer=4,
        learning_rate=1.0,
        data_dir="/mnt/#2",
        warmup_steps=7,
        compile=False,
        max_steps=20_000,
        data="007",
    )
    assert config == expected and type(config.learning_rate) is float and not resume
    config, resume = parse_command_line(["--resume", paths[0], "--name=other"])
    assert (config.name, config.n_layer, resume) == ("other", 3, True)
    assert parse_command_line([])[0].name == "demo"
    for path, place, name in (
        ("/mnt/builtin", "/mnt", "demo-builtin"),
        ("data/builtin/", "data", "demo"),  # the config's own
        ("./x", "data", "demo-x"),
    ):
        config, _ = parse_command_line([f"--data={path}"])  # a path, as for other commands
        assert (config.data_dir, config.name) == (place, name)


# Layers and width of the models at https://huggingface.co/roneneldan, which have 16 heads
PUBLISHED = {
    "ts_1m": (8, 64),
    "ts_3m": (8, 128),
    "ts_8m": (8, 256),
    "ts_28m": (8, 512),
    "ts_33m": (4, 768),
    "ts_1l_21m": (1, 1024),
    "ts_2l_33m": (2, 1024),
}


def test_every_config_that_comes_with_us_is_good():
    shapes = {}
    for path in (ROOT / "configs").glob("*.py"):
        config, _ = parse_command_line([str(path)])
        assert config.name == path.stem
        shapes[config.name] = (config.n_layer, config.n_embd, config.n_head)
    for name, shape in PUBLISHED.items():
        assert shapes[name] == (*shape, 16)


MISTAKES = {  # and what the message says
    "--resume=out/demo": "to continue a run: --resume out/RUN",
    "--learning_rat=1": "unknown setting 'learning_rat'; did you mean learning_rate?",
    "--n_layer=two": "n_layer must be int, not two",
    "--compile=1": "compile must be True or False, not 1",
    "--block_size=0": "block_size must be 1 or more",
    "--learning_rate=nan": "learning_rate must be 0 or more",
    "--optimizer=sgd": "optimizer must be one of adamw, muon",
    "--n_layer 3": "--n_layer: needs a value, as --n_layer=VALUE",
    "--n_head=3": "must be a multiple of n_head (3)",
    "--loss_on=story --contrast=published": "needs loss_on=all",
    "--architecture=compressor --attend_within_story=True": "attend_within_story",
    "--epochs=2 --max_steps=10": "max_steps: epochs=2.0 sets it",
    "--name=../x": "name=../x: must be a plain directory name",
    "--name=step-2-test": "name=step-2-test: must be",
    "--beta1=1": "beta1 must be between 0 and 0.9999",
    "--block_size=10 --short_window_steps=5": "multiple of 4",
    "configs": "to continue a run: --resume",
    "--start_from=out/x --n_layer=3": "n_layer: start_from=out/x sets it",
    # in a file
    "n_layer = 3\nn_heads = 4\n": "wrong.py:2: unknown setting 'n_heads'; did you mean n_head?",
    "n_layer = len('abc')\n": "wrong.py:1: expected name = value",
    "n_layer = 3\ndata = 'café'\n": "wrong.py:2: expected name = value, in UTF-8",
}


@pytest.mark.parametrize("mistake, message", MISTAKES.items())
def test_a_wrong_setting_is_named_and_nothing_is_executed(tmp_path, mistake, message):
    arguments = mistake.replace("configs", str(ROOT / "configs")).split()
    if "\n" in mistake:
        path = tmp_path / "wrong.py"
        path.write_text(mistake, encoding="latin-1")
        arguments = [str(path)]
    with pytest.raises(UserError) as caught:
        parse_command_line(arguments)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_run_is_resumed_by_its_directory(tmp_path):
    run = tmp_path / "moved"
    run.mkdir()
    with pytest.raises(UserError, match="no config.json"):
        parse_command_line(["--resume", str(run)])
    settings = vars(TrainConfig(name="run", n_layer=3, max_steps=7, data="mine"))
    write_json(run / "config.json", settings)
    config, resume = parse_command_line(["--resume", str(run), "--max_steps=9"])
    assert resume
    moved = {"name": "moved", "out_dir": str(tmp_path), "max_steps": 9}
    assert vars(config) == settings | moved
