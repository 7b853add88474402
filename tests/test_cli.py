"""A wrong flag or path is named, with what it may have been."""

import argparse

import pytest

from nanostories.cli import Parser, existing_path


@pytest.mark.parametrize("wrong", ["--text_column", "--text-column", "--kolumn=x", "--columns"])
def test_an_unknown_flag_is_named_rather_than_its_value(wrong, capsys):
    parser = Parser("")
    parser.add_argument("corpus", nargs="?", choices=("builtin",))
    parser.add_argument("--column")
    with pytest.raises(SystemExit):
        parser.parse_args([wrong, "conte"])
    message = capsys.readouterr().err
    assert f"no flag {wrong.partition('=')[0]}; did you mean --column?" in message


def test_flags_may_be_short_and_values_may_begin_with_dashes():
    parser = Parser("")
    parser.add_argument("--column")
    assert parser.parse_args(["--col", "a"]).column == "a"
    assert parser.parse_args(["--column=--n 2"]).column == "--n 2"


def test_a_wrong_path_shows_what_is_like_it(tmp_path):
    (tmp_path / "contes.csv").touch()
    (tmp_path / "runs").mkdir()
    with pytest.raises(argparse.ArgumentTypeError, match=r"there are: \S*contes.csv$"):
        existing_path(str(tmp_path / "conte.csv"))
    with pytest.raises(argparse.ArgumentTypeError, match=r"there are: \S*runs$"):
        existing_path(str(tmp_path / "other"))
