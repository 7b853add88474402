"""Settings: from the file, from the command line, and what is said to mistakes in them."""

import pytest
from conftest import ROOT

from nanostories.training.config import TrainConfig, parse_command_line, read_config


def test_settings_come_from_the_file_then_from_the_command_line(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text('# What it is for.\n\nn_layer = 3  # why\nlearning_rate = 1\ndata = "tiny"\n')
    config, resume = parse_command_line([str(path), "--n_layer=5", "--data=007", "--compile=False"])
    assert not resume
    assert (config.name, config.n_layer, config.learning_rate, config.data) == (
        "mine",
        5,
        1.0,
        "007",
    )
    assert config.compile is False and type(config.learning_rate) is float
    assert parse_command_line([])[0].name == "demo"
    assert parse_command_line(["--resume", str(path), "--name=other"]) == (
        TrainConfig(name="other", n_layer=3, learning_rate=1.0, data="tiny"),
        True,
    )


def test_later_config_files_win_and_the_command_line_over_all(tmp_path):
    first = tmp_path / "mine.py"
    second = tmp_path / "faster.py"
    first.write_text('beta2 = 0.9\nn_layer = 3\ndata_dir = "/mnt/#2"\n')
    second.write_text("n_layer = 4\nwarmup_steps = 5\n")
    config, _ = parse_command_line([str(first), str(second), "--warmup_steps=7"])
    expected = TrainConfig(
        name="mine-faster", beta2=0.9, n_layer=4, warmup_steps=7, data_dir="/mnt/#2"
    )
    assert config == expected


def test_configs_of_ours_that_say_as_fast_are():
    fast = read_config(ROOT / "configs" / "fast.py")
    for name, others in (
        ("demo", {"learning_rate"}),
        ("cpu", {"beta1"}),
        ("builtin_instruct", {"learning_rate"}),
        ("experiment", set()),
    ):
        settings = read_config(ROOT / "configs" / f"{name}.py")
        assert fast.keys() <= settings.keys()
        assert {key for key in fast if settings[key] != fast[key]} <= others


def test_every_config_that_comes_with_us_is_good():
    for path in (ROOT / "configs").glob("*.py"):
        assert parse_command_line([str(path)])[0].name == path.stem


@pytest.mark.parametrize(
    "args, message",
    [
        (["--learning_rat=1"], "unknown setting 'learning_rat'; did you mean 'learning_rate'?"),
        (["--n_layer=two"], "n_layer must be int, not two"),
        (["--compile=1"], "compile must be bool, not 1"),
        (["--block_size=0"], "block_size must be"),
        (["--seed=99999999999999999999"], "seed must be between"),
        (["--n_layer", "3"], "3: no such config file"),
        (["--loss_on=story", "--contrast=published"], "needs loss_on=all"),
        (["--architecture=compressor", "--attend_within_story=True"], "attend_within_story"),
        (["--epochs=2", "--max_steps=10"], "give one"),
        (["--name=../x"], "name must be a plain directory name"),
        (["--name=step-5"], "kept checkpoints have such names"),
        (["--architecture=gpt2", "--window_size=64"], "window_size: architecture=gpt2"),
        (["--start_from=out/x", "--n_embd=64"], "n_embd: not with start_from"),
        (["--start_from=out/x", "--bigram_init=0.1"], "bigram_init: not with start_from"),
        ("n_layer = 3\nn_heads = 4\n", ":2: unknown setting 'n_heads'; did you mean 'n_head'?"),
        ("n_layer = 3\nimport os\n", ":2: unknown setting 'import os'"),
    ],
)
def test_a_wrong_setting_is_named_and_nothing_is_executed(tmp_path, args, message):
    if isinstance(args, str):  # a config file
        (tmp_path / "wrong.py").write_text(args)
        args, message = [str(tmp_path / "wrong.py")], f"wrong.py{message}"
    with pytest.raises(ValueError) as caught:
        parse_command_line(args)
    assert message in str(caught.value) and "\n" not in str(caught.value)
