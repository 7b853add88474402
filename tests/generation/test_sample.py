"""sample.py with models of ours: its command line, and what is kept in sets of stories through
interruptions."""

import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from conftest import ROOT
from planted import write_corpus
from random_models import save_run, trained_on
from sample_fixtures import rows_of

from model import GPTNeo, GPTNeoConfig
from nanostories.corpus.tokenizer import GPT2_VOCAB_SIZE, cut
from nanostories.files import lock
from nanostories.generation import samples_file
from nanostories.generation.backends import LocalBackend
from nanostories.generation.samples_file import read_rows, set_file


@pytest.fixture
def run(tmp_path, corpus):
    """out/tiny with an untrained model, as train.py would leave it."""
    torch.manual_seed(0)
    model = GPTNeo(GPTNeoConfig(vocab_size=300, block_size=64, n_layer=1, n_head=2, n_embd=8))
    facts = trained_on(tmp_path / "data", "tiny")
    save_run(tmp_path / "out" / "tiny", model, cut(np.zeros(GPT2_VOCAB_SIZE), 300), **facts)
    return tmp_path / "out" / "tiny"


def change_weights(path, target=None):
    checkpoint = torch.load(path, weights_only=True)
    checkpoint["model"]["ln_f.bias"] += 1
    torch.save(checkpoint, target or path)


def test_the_newest_run_writes_the_same_again(run, sample_py):
    flags = "--prompt 'Once upon ' --n 2 --seed 3"
    code, first = sample_py(flags)
    assert code == 0 and first.out.count("Once upon") == 2
    assert first.out.count("[cut here]") == 2  # an untrained model does not end
    assert sample_py(f"{flags} --model out/tiny")[1].out == first.out
    streamed = sample_py("--prompt 'Once upon ' --stream --seed 3")[1].out
    assert streamed.strip() in first.out
    # the model begins
    assert sample_py("--n 1 --max_new_tokens 5")[1].out.strip().endswith("[cut here]")


MISTAKES = {
    f"--prompt '{'far too long ' * 20}'": "1 of 1 prompts",
    "--temperature 0.5 nan": "--temperature",
    "--cut 1": "--cut",
    "--split train": "--eval",
    "--unseen_words": "--eval",
    "--beams 3 --temperature 1": "--temperature",
    "--stream --n 2": "--stream",
    "--price_in 1": "--price_out",
    "--prompts train.txt": "rename",
    "--words a --eval 3": "--words",
    "--words a --out x": "data/tiny, without headers",
    "--eval 2 --data headed --out x": "data/tiny, without headers",
    "--model api:x --top_k 5": "--top_k",
    "--model api:x --eval 3": "--data",
    "--dry_run": "api:",
    "--best_of 2": "needs headers",
    "--words a --best_of 2 --beams 2": "--best_of",
    "--words a --best_of 2 --temperature 1 0": "--best_of",
    "--model api:x --words a --best_of 2": "--best_of",
}


@pytest.mark.parametrize("args", MISTAKES)
def test_mistakes_get_one_line(run, sample_py, tmp_path, instruct_data_dir, args):
    (tmp_path / "train.txt").write_text("Once upon")
    (tmp_path / "headed").symlink_to(instruct_data_dir / "builtin-instruct")
    code, printed = sample_py(args)
    complaint = code
    if code == 2:  # argparse prints its own, after the usage
        complaint = printed.err.splitlines()[-1]
    assert printed.out == "" and MISTAKES[args] in complaint and "\n" not in complaint
    assert not (tmp_path / "x").exists()


def test_help_does_not_wait_for_torch(tmp_path):
    command = [sys.executable, "-X", "importtime", ROOT / "sample.py", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert not re.search(r"\| +(torch|openai)$", done.stderr, re.MULTILINE)


def test_a_header_from_the_command_line(run, sample_py, tmp_path):
    (tmp_path / "data").rename(tmp_path / "gone")  # it has no headers
    header = "--words 'a, b' --summary 'It\nran.'"
    assert sample_py(f"{header} --max_new_tokens 1 --out x --n 1")[0] == 0
    (row,) = rows_of(tmp_path / "x" / "samples" / "prompt.jsonl")
    assert row["prompt"] == "Words: a, b\nSummary: It ran.\nStory:"
    assert row["instruction"] == dict(words=["a", "b"], summary="It ran.")


# ---- Sets of stories ----
EVAL = "--data data/tiny --max_new_tokens 6 --eval"


def test_samples_of_the_evaluation_set(run, corpus, sample_py):
    code, printed = sample_py(f"{EVAL} 4 --n 3 --cut 0.4 --seed 5")
    assert code == 0 and "python grade.py out/tiny" in printed.out
    rows = rows_of(set_file(run, "eval"))
    keys = [(row["prompt_index"], row["sample_index"]) for row in rows]
    assert keys == [(i, j) for i in range(4) for j in range(3)]
    assert rows[0]["prompt"] + rows[0]["reference"] == corpus[1]
    assert len({row["completion"] for row in rows}) == 12
    settings = dict(model="out/tiny", split="val", draw="first", cut=0.4, finished=False)
    settings |= dict(temperature=1.0, top_k=None, beams=1, max_new_tokens=6, seed=5)
    assert all(settings.items() <= row.items() for row in rows)


def test_random_training_stories_by_the_last_checkpoint(run, corpus, sample_py):
    change_weights(run / "ckpt.pt", run / "best.pt")
    assert sample_py(f"{EVAL} 4 --n 1")[0] == 0
    assert sample_py(f"{EVAL} 4 --n 1 --split train --checkpoint last")[0] == 0
    rows = rows_of(set_file(run, "train"))
    stories = [row["prompt"] + row["reference"] for row in rows]
    # the first 12 are held out
    assert len({*stories} & {*corpus[13:]}) == 4 and stories != corpus[13:17]
    assert [row["prompt_index"] for row in rows] == [0, 1, 2, 3]
    settings = dict(split="train", draw="random", model="out/tiny/ckpt.pt")
    assert all(settings.items() <= row.items() for row in rows)
    assert rows[0]["weights"] != rows_of(set_file(run, "eval"))[0]["weights"]


ARGS = "--prompts prompts.txt --max_new_tokens 5 --n"


@pytest.fixture
def asked(run, tmp_path, monkeypatch) -> list:
    """prompts.txt, and which completions the model is asked for."""
    (tmp_path / "prompts.txt").write_text("Once upon\nThere was\nOne day\n")
    keys_asked = []
    complete = LocalBackend.complete

    def watched(self, prompts, sampling):
        keys_asked.extend(prompts)
        return complete(self, prompts, sampling)

    monkeypatch.setattr(LocalBackend, "complete", watched)
    return keys_asked


def test_more_completions_are_added_and_fewer_change_nothing(run, sample_py, asked, tmp_path):
    assert sample_py(f"{ARGS} 2")[0] == 0
    path = set_file(run, "prompts")
    few = rows_of(path)
    asked.clear()
    assert sample_py(f"{ARGS} 4 --batch_size 3")[0] == 0
    assert sorted(asked) == [(i, j) for i in range(3) for j in (2, 3)]
    many = path.read_bytes()
    assert [row for row in rows_of(path) if row["sample_index"] < 2] == few
    asked.clear()
    # the same weights by another name
    assert sample_py(f"{ARGS} 4 --checkpoint last")[0] == 0
    (tmp_path / "prompts.txt").write_text("Once upon\n")
    assert sample_py(f"{ARGS} 1")[0] == 0
    assert not asked and path.read_bytes() == many


def test_a_set_is_complete_whatever_was_stopped_before(run, sample_py, asked):
    """Equal numbers by prompt, the same as without the interruption; what else was written is used
    by who asks for it."""
    path = set_file(run, "eval")
    part = path.with_name("eval.jsonl.part")
    few = f"{EVAL} 2 --n 2"
    many = f"{EVAL} 5 --n 4"
    assert sample_py(few)[0] == 0
    expected = path.read_bytes()
    path.unlink()
    assert sample_py(many)[0] == 0
    whole = path.read_bytes()
    path.unlink()
    lines = whole.splitlines(keepends=True)
    # Shorter stories end first; killed while it wrote the last.
    part.write_bytes(b"".join([lines[5], lines[2], *lines[10:16], lines[7][:20]]))
    asked.clear()
    code, printed = sample_py(few)
    assert path.read_bytes() == expected and sorted(asked) == [(0, 0), (0, 1), (1, 0)]
    assert "2 prompts x 2 completions" in printed.out and "keeps 7 others" in printed.out
    code, printed = sample_py(many)
    assert path.read_bytes() == whole and f"{20 - 4 - 7} are new" in printed.out
    assert not part.exists()


def test_a_wider_set_takes_the_place_of_a_deeper_one_and_loses_nothing(run, sample_py, asked):
    path = set_file(run, "eval")
    assert sample_py(f"{EVAL} 2 --n 3")[0] == 0
    deep = path.read_bytes()
    assert sample_py(f"{EVAL} 4 --n 1")[0] == 0
    assert list(read_rows(path)) == [(i, 0) for i in range(4)]
    asked.clear()
    assert sample_py(f"{EVAL} 2 --n 3")[0] == 0
    assert not asked and path.read_bytes() == deep


@pytest.mark.parametrize("n_written", range(3))
def test_killed_while_a_set_is_finished_nothing_is_lost(run, sample_py, monkeypatch, n_written):
    """After any of the files is written."""
    path = set_file(run, "eval")
    assert sample_py(f"{EVAL} 2 --n 3")[0] == 0
    before = read_rows(path)
    write = samples_file.write_rows
    calls = []

    def killed(path, rows):
        if len(calls) == n_written:
            raise KeyboardInterrupt
        calls.append(path)
        write(path, rows)

    monkeypatch.setattr(samples_file, "write_rows", killed)
    code, _ = sample_py(f"{EVAL} 4 --n 1")
    found = read_rows(path) | read_rows(path.with_name("eval.jsonl.part"))
    assert "stopped" in code and len(calls) == n_written and before.items() <= found.items()


def test_prompts_of_a_file_lie_beside_the_evaluation(run, sample_py, asked):
    assert sample_py(f"{EVAL} 4 --n 1")[0] == 0
    before = set_file(run, "eval").read_bytes()
    code, printed = sample_py(f"{ARGS} 1")
    assert code == 0 and "python grade.py out/tiny --set prompts" in printed.out
    assert len(rows_of(set_file(run, "prompts"))) == 3
    assert "another cut, prompt, reference" in sample_py(f"{EVAL} 4 --n 1 --cut 0.3")[0]
    assert set_file(run, "eval").read_bytes() == before


@pytest.mark.parametrize("name", ["prompts.jsonl", "prompts.jsonl.part"])
def test_stories_by_other_settings_prompts_or_weights_are_not_added(
    run, sample_py, asked, tmp_path, name
):
    assert sample_py(f"{ARGS} 2")[0] == 0
    before = set_file(run, "prompts").rename(run / "samples" / name).read_bytes()

    def refused(flags: str) -> str:
        asked.clear()
        code, _ = sample_py(flags)
        assert "--out" in code and not asked and (run / "samples" / name).read_bytes() == before
        return code

    assert "another seed" in refused(f"{ARGS} 2 --seed 1")
    (tmp_path / "prompts.txt").write_text("Once upon\nThere was\nOne night\n")
    assert "another prompt:" in refused(f"{ARGS} 2")
    change_weights(run / "ckpt.pt")
    assert "another weights" in refused(f"{ARGS} 2")
    assert sample_py(f"{ARGS} 2 --out out/x")[0] == 0 and len(asked) == 6


def test_one_temperature_lies_in_one_place(run, sample_py, asked):
    """However many are asked for at once; what is there is not written again, and greedy text is
    written once."""
    assert sample_py(f"{ARGS} 2 --temperature 1 0 0.5 1.0")[0] == 0
    places = {"1": (".", 6), "0": ("temperature-0", 3), "0.5": ("temperature-0.5", 6)}
    for temperature, (place, n) in places.items():
        path = set_file(run / place, "prompts")
        written = rows_of(path)
        assert len(written) == n and {row["temperature"] for row in written} == {float(temperature)}
        asked.clear()
        assert sample_py(f"{ARGS} 2 --temperature {temperature}")[0] == 0 and not asked
        path.unlink()
        assert sample_py(f"{ARGS} 2 --temperature {temperature}")[0] == 0
        assert rows_of(path) == written
    assert sample_py(f"{ARGS} 2 --beams 5")[0] == 0
    beams = rows_of(set_file(run / "beams-5", "prompts"))
    assert [(row["temperature"], row["beams"]) for row in beams] == [(0, 5)] * 3


def test_stories_too_long_for_the_context_are_left_out_of_the_evaluation(run, sample_py, tmp_path):
    stories = ["A dog ran.", "A pig ran far.", "word " * 60 + "word.", "A cat ran."]
    write_corpus(tmp_path / "data" / "long", [], stories)
    code, printed = sample_py("--eval 3 --n 1 --data data/long --max_new_tokens 2")
    assert code == 0 and "1 of 3 prompts do not fit" in printed.out
    # numbers stay with their stories
    assert [row["prompt_index"] for row in rows_of(set_file(run, "eval"))] == [0, 2]


def test_a_second_call_with_the_same_output_is_refused(run, sample_py, asked):
    with lock(run / "samples", ".prompts.jsonl.lock"):
        assert "prompts.jsonl" in sample_py(f"{ARGS} 2")[0]
        assert not asked and not set_file(run, "prompts").exists()
        # another output is its own matter
        assert sample_py(f"{ARGS} 1 --out out/other")[0] == 0


def test_a_published_model_stops_somewhere(sample_py, monkeypatch):
    asked = []

    class Backend:
        def fits(self, prompt):
            return True

        def complete(self, prompts, sampling):
            asked.append(sampling.max_new_tokens)
            yield *prompts, " time.", True

    monkeypatch.setattr("nanostories.generation.backends.load_backend", lambda *_, **__: Backend())
    for flags in ("", "--max_new_tokens 7"):
        assert sample_py(f"--model hf:some/model --n 1 {flags}")[0] == 0
    assert asked == [1024, 7]
