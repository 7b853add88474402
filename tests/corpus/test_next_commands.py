"""What prepare.py and train.py print as the next command works, also for few stories."""

import re
import shlex

import pytest
from conftest import ROOT
from story_files import STORIES, run_prepare, write_stories

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


@pytest.mark.parametrize("n, held_out, header", [(25, 8, []), (1000, 150, ["--headers"])])
def test_the_printed_commands_work(tmp_path, capsys, command_line, n, held_out, header):
    stories = [story.text for story in builtin_stories.stories(n, 0)]
    path = write_stories(tmp_path / "few.txt", stories)
    flags = ["--name=few", "--vocab_size=500", f"--data_dir={tmp_path}", *header]
    run_prepare("--input", path, *flags)
    assert load_meta(tmp_path / "few")["splits"]["val"]["stories"] >= held_out
    arguments = printed(capsys.readouterr().out)
    length = "--epochs=0.01" if "--epochs=5" in arguments else "--max_steps=2"
    _, said = command_line(train, ROOT)(*arguments, *TINY, f"--out_dir={tmp_path}", length)
    flags = ["--n=1", "--max_new_tokens=5", "--device=cpu"]
    code, said = command_line(sample, ROOT)(*printed(said.out), *flags)
    assert code == 0 and said.out.strip()


def test_a_file_that_was_not_split_is_named(tmp_path, capfd):
    """Of many files, only the first have a line each."""
    folder = tmp_path / "mine"
    folder.mkdir()
    for i in range(30):
        write_stories(folder / f"{i:02}.txt", STORIES[10 * i : 10 * i + 8])
    write_stories(folder / "unsplit.txt", ["\n\n".join(STORIES)])
    run_prepare("--input", folder, "--name=many", "--data_dir", tmp_path)
    said = capfd.readouterr().out
    assert f"{folder}/00.txt: 8 stories; first: Once there were 0 dragons." in said
    assert f"{folder}/29.txt" not in said
    assert f"longest story of {folder}/unsplit.txt a single one" in said
