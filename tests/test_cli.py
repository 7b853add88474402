"""A wrong flag or path is named, with what it may have been."""

import argparse

import pytest

from nanostories.cli import Parser, existing_path


@pytest.mark.parametrize("wrong", ["--text_column", "--text-column", "--kolumn=x"])
def test_an_unknown_flag_is_named_rather_than_its_value(wrong, capsys):
    parser = Parser("")
    parser.add_argument("corpus", nargs="?", choices=("builtin",))
    parser.add_argument("--column")
    with pytest.raises(SystemExit):
        parser.parse_args([wrong, "conte"])
    message = capsys.readouterr().err
    assert f"no flag {wrong.partition('=')[0]}; did you mean --column?" in message
    assert parser.parse_args(["--col=--n 2"]).column == "--n 2"


def test_a_wrong_path_shows_what_is_like_it(tmp_path):
    (tmp_path / "contes.csv").touch()
    (tmp_path / "runs").mkdir()
    for wrong, like_it in (("conte.csv", "contes.csv"), ("other", "runs")):
        with pytest.raises(argparse.ArgumentTypeError, match=rf"there are: \S*{like_it}$"):
            existing_path(str(tmp_path / wrong))
