"""What prepare.py and train.py print as the next command works, also for few stories."""

import re
import shlex

import pytest
from conftest import ROOT
from story_files import run_prepare, write_stories

import sample
import train
from nanostories.corpus import builtin_stories
from nanostories.corpus.token_files import load_meta

TINY = (
    "--n_layer=1 --n_embd=32 --n_head=2 --block_size=64 --batch_size=2 --eval_tokens=500"
    " --device=cpu --compile=False --max_minutes=0"
).split()


def printed(text: str) -> list[str]:
    """The arguments of the command that is printed as next."""
    (command,) = re.findall(r"[nN]ext: python \S+ (.*)", text)
    return shlex.split(command)


@pytest.mark.parametrize("n, held_out, headers", [(25, 8, False), (50, 10, True), (400, 50, True)])
def test_the_printed_commands_work(tmp_path, capsys, command_line, n, held_out, headers):
    stories = [story.text for story in builtin_stories.stories(n, 0)]
    path = write_stories(tmp_path / "few.txt", stories)
    flags = ["--name=few", "--vocab_size=500", "--data_dir", tmp_path / "data"]
    if headers:
        flags.append("--headers")
    run_prepare("--input", path, *flags)
    assert load_meta(tmp_path / "data" / "few")["splits"]["val"]["stories"] >= held_out
    arguments = printed(capsys.readouterr().out)
    length = "--epochs=0.01" if "--epochs=5" in arguments else "--max_steps=2"
    places = [f"--data_dir={tmp_path / 'data'}", f"--out_dir={tmp_path / 'out'}"]
    _, said = command_line(train, ROOT)(*arguments, *TINY, *places, length)
    flags = ["--n=1", "--max_new_tokens=5", "--device=cpu"]
    code, said = command_line(sample, ROOT)(*printed(said.out), *flags)
    assert code == 0 and said.out.strip()


def test_a_file_of_one_unsplit_story_among_good_ones_is_named(tmp_path, capsys):
    stories = [story.text for story in builtin_stories.stories(60, 0)]
    folder = tmp_path / "mine"
    folder.mkdir()
    write_stories(folder / "good.txt", stories)
    write_stories(folder / "unsplit.txt", ["\n\n".join(stories)])  # alone in its file
    run_prepare("--input", folder, "--name=mine", "--data_dir", tmp_path / "data")
    said = capsys.readouterr()
    warnings = [line for line in (said.out + said.err).splitlines() if "single one" in line]
    assert len(warnings) == 1 and "unsplit.txt" in warnings[0]
