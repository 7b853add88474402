"""Settings: from the file, from the command line, and what is said to mistakes in them."""

import pytest
from conftest import ROOT

from nanostories.training.config import TrainConfig, parse_command_line, settings_line


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


def test_a_recipe_sets_what_nothing_else_sets_and_says_so(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text('recipe = "fast"\nbeta2 = 0.9\n')
    config = parse_command_line([str(path), "--warmup_steps=7"])[0]
    assert (config.optimizer, config.align_stories, config.beta2, config.warmup_steps) == (
        "muon",
        True,
        0.9,
        7,
    )
    assert settings_line(config) == "recipe=fast, but beta2=0.9, warmup_steps=7"
    adamw = parse_command_line([str(path), "--recipe=adamw"])[0]
    assert (
        adamw == TrainConfig(name="mine", beta2=0.9)
        and settings_line(adamw) == "recipe=adamw, but beta2=0.9"
    )
    assert settings_line(TrainConfig()) == "recipe=adamw"
    assert "learning_rate" in settings_line(
        parse_command_line(["--recipe=adamw"])[0]
    )  # the demo's stays


def test_every_config_that_comes_with_us_is_good():
    for path in (ROOT / "configs").glob("*.py"):
        assert parse_command_line([str(path)])[0].name == path.stem


@pytest.mark.parametrize(
    "args, message",
    [
        (["--learning_rat=1"], "unknown setting 'learning_rat'; did you mean 'learning_rate'?"),
        (["--n_layer=two"], "n_layer must be int, not two"),
        (["--compile=1"], "compile must be bool, not 1"),
        (["--block_size=0"], "block_size must be at least 1, not 0"),
        (["--seed=99999999999999999999"], "seed must be between"),
        (["--n_layer", "3"], "3: no such config file"),
        (["--loss_on=story", "--contrast=published"], "needs loss_on=all"),
        (["--architecture=compressor", "--attend_within_story=True"], "attend_within_story"),
        (["--epochs=2", "--max_steps=10"], "give one"),
        (["--name=../x"], "name must be a plain directory name"),
        (["--architecture=gpt2", "--window_size=64"], "window_size=64"),
        (["--start_from=out/x", "--n_embd=64"], "n_embd: leave it out"),
        (["--start_from=out/x", "--bigram_init=0.1"], "bigram_init: leave it out"),
        ("n_layer = 3\nn_heads = 4\n", ":2: unknown setting 'n_heads'; did you mean 'n_head'?"),
        ("n_layer = 3\nimport os\n", ":2: expected a setting"),
    ],
)
def test_a_wrong_setting_is_named_and_nothing_is_executed(tmp_path, args, message):
    if isinstance(args, str):  # a config file
        (tmp_path / "wrong.py").write_text(args)
        args, message = [str(tmp_path / "wrong.py")], f"wrong.py{message}"
    with pytest.raises(ValueError) as caught:
        parse_command_line(args)
    assert message in str(caught.value) and "\n" not in str(caught.value)
