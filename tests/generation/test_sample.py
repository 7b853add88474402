"""sample.py with models of ours: its command line, and what is kept in samples.jsonl through interruptions."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest
import torch
from conftest import ROOT
from sample_fixtures import heavy_imports, rows_of, rows_of_part

from checkpoints.checkpoint import CHECKPOINT_FORMAT, from_checkpoint, load_checkpoint, load_run, newest_run
from checkpoints.huggingface import save_hf, save_hf_tokenizer
from common.files import lock
from corpus import preparation
from corpus.tokenizer import GPT2_VOCAB_SIZE, cut, gpt2
from generation import generation_loop
from generation.backends import LocalBackend
from generation.samples_file import write_rows
from model import GPTNeo, GPTNeoConfig


@pytest.fixture
def run(tmp_path):
    """out/tiny with an untrained model, as train.py would leave it."""
    tokenizer = cut(np.zeros(GPT2_VOCAB_SIZE), 300)
    config = GPTNeoConfig(vocab_size=300, block_size=24, n_layer=1, n_head=2, n_embd=8)
    torch.manual_seed(0)
    run = tmp_path / "out" / "tiny"
    run.mkdir(parents=True)
    state = dict(format=CHECKPOINT_FORMAT, model_config=dataclasses.asdict(config), gpt2_ids=tokenizer.gpt2_ids)
    torch.save(state | dict(model=GPTNeo(config).state_dict()), run / "ckpt.pt")
    return run


def test_command_line_takes_the_newest_run_and_repeats_itself(run, sample_py):
    code, first = sample_py("--prompt", "Once upon ", "--n", "2", "--seed", "3")
    assert code == 0
    assert first.out.count("Once upon") == 2
    assert first.out.count("[cut here]") == 2  # an untrained model does not end
    assert sample_py("--prompt", "Once upon ", "--n", "2", "--seed", "3", "--model", "out/tiny")[1].out == first.out
    alone = sample_py("--prompt", "Once upon ", "--n", "1", "--seed", "3")[1].out
    assert first.out.startswith(alone)
    other = sample_py("--prompt", "Once upon ", "--n", "2", "--seed", "4")[1].out
    assert not set(other.split("\n\n")) & set(first.out.split("\n\n"))  # no story of one seed is one of another


def test_a_run_is_read_from_its_best_checkpoint(run):
    checkpoint = torch.load(run / "ckpt.pt", weights_only=True)
    checkpoint["model"]["ln_f.bias"] += 1
    torch.save(checkpoint, run / "best.pt")
    model, tokenizer = load_run(run)
    torch.testing.assert_close(model.ln_f.bias, checkpoint["model"]["ln_f.bias"])
    assert newest_run(run.parent) == run


def test_what_a_model_is_given():
    tokenizer = gpt2()
    ours, theirs = LocalBackend(None, tokenizer, [tokenizer.end_of_text]), LocalBackend(None, tokenizer, [])
    assert ours.encode("a b \n") == [tokenizer.end_of_text] + tokenizer.encode("a b")
    assert theirs.encode("a b \n") == tokenizer.encode("a b")
    assert theirs.encode(" ") == [tokenizer.end_of_text]


@pytest.mark.parametrize(
    "args, message",
    [
        (["--model", "nowhere"], "nowhere: no such"),
        (
            ["--prompt", "far too long " * 20],
            "1 of 1 prompts do not fit in the context of out/tiny, 24 tokens: shorten",
        ),
        (["--temperature", "-1"], "--temperature must be 0 or more"),
        (["--top_k", "0"], "--top_k must be at least 1"),
        (["--top_p", "1.5"], "--top_p must be above 0"),
        (["--n", "0"], "--n must be at least 1"),
    ],
)
def test_mistakes_get_one_line(run, sample_py, args, message):
    code, printed = sample_py(*args)
    assert printed.out == ""
    complaint = printed.err.splitlines()[-1] if code == 2 else code  # argparse prints its own, after the usage
    assert message in complaint
    assert "\n" not in complaint


def test_an_empty_prompt_lets_the_model_begin(run, sample_py):
    code, printed = sample_py("--n", "1", "--max_new_tokens", "5")
    assert code == 0 and printed.out.endswith(" [cut here]\n")
    assert sample_py("--stream", "--max_new_tokens", "5")[1].out == printed.out


def test_a_checkpoint_cut_short_is_named(run, sample_py):
    whole = (run / "ckpt.pt").read_bytes()
    for size in (0, 10, 1000, len(whole) // 2, len(whole) - 1):
        (run / "ckpt.pt").write_bytes(whole[:size])
        code, printed = sample_py()
        assert code == "sample.py: out/tiny/ckpt.pt: not a readable checkpoint (cut short, or not written by train.py)"
    (run / "ckpt.pt").write_text("step,loss\n1,2\n")
    assert "not a readable checkpoint" in sample_py()[0]


def test_a_reader_who_leaves_early_is_no_error(run, tmp_path):
    command = f"{sys.executable} {ROOT / 'sample.py'} --stream | head -c 20"
    result = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, errors="replace")
    assert result.stderr == ""


def test_what_takes_long_to_import_is_imported_only_where_it_is_used(run, tmp_path):
    assert heavy_imports(tmp_path, "sample.py", "--help") == heavy_imports(tmp_path, "instruct.py", "--help") == set()
    assert heavy_imports(tmp_path, "sample.py", "--n", "1", "--max_new_tokens", "1") == {"torch"}


def test_without_any_run_it_says_what_to_do(tmp_path):
    """As a new user would, in a process of its own."""
    result = subprocess.run([sys.executable, ROOT / "sample.py"], cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 1
    message = "no run under out/ yet: train one with `python train.py`, or name one with --model"
    assert result.stderr == f"sample.py: {message}\n"


# samples.jsonl


def test_samples_of_the_evaluation_set(run, corpus, sample_py, tmp_path):
    args = ("--eval", "4", "--n", "3", "--data", "data/tiny", "--max_new_tokens", "6", "--cut", "0.4", "--seed", "5")
    code, printed = sample_py(*args)
    assert code == 0
    what = "out/tiny/samples.jsonl: 4 prompts x 3 completions by out/tiny"
    assert printed.out == f"wrote {what}; next: python grade.py out/tiny --no_judge\n"
    rows = rows_of(run / "samples.jsonl")
    assert [(row["prompt_index"], row["sample_index"]) for row in rows] == [(i, j) for i in range(4) for j in range(3)]
    assert rows[0]["prompt"] + rows[0]["reference"] == corpus[1][1]
    assert len({row["completion"] for row in rows}) == 12
    settings = dict(
        model="out/tiny", cut=0.4, temperature=1.0, top_k=None, top_p=None, beams=1, max_new_tokens=6, seed=5
    )
    assert all(settings.items() <= row.items() and row["finished"] is False for row in rows)
    assert sorted(path.name for path in run.iterdir()) == ["ckpt.pt", "samples.jsonl"]


def test_training_stories_by_the_last_checkpoint_go_into_a_file_of_their_own(run, corpus, sample_py, asked):
    state = torch.load(run / "ckpt.pt", weights_only=True)
    state["model"]["ln_f.bias"] += 1
    torch.save(state, run / "best.pt")
    args = ("--eval", "3", "--n", "1", "--data", "data/tiny", "--max_new_tokens", "6")
    assert sample_py(*args)[0] == 0
    assert sample_py(*args, "--split", "train", "--cut", "0.4", "--checkpoint", "last")[0] == 0
    held_out, trained = rows_of(run / "samples.jsonl"), rows_of(run / "samples-train.jsonl")
    assert [row["prompt"] + row["reference"] for row in trained] == corpus[1][13:16]  # the first 12 are held out
    assert {(row["split"], row["model"], row["cut"]) for row in held_out} == {("val", "out/tiny", 0.5)}
    assert {(row["split"], row["model"], row["cut"]) for row in trained} == {("train", "out/tiny/ckpt.pt", 0.4)}
    assert held_out[0]["weights"] != trained[0]["weights"]
    write_rows(run / "samples.jsonl", [{name: row[name] for name in row if name != "split"} for row in held_out])
    asked.clear()
    assert sample_py(*args)[0] == 0 and not asked  # a file of an older version is of validation stories
    assert "--split goes with --eval" in sample_py("--split", "train")[1].err


ARGS = ("--prompts", "prompts.txt", "--max_new_tokens", "5", "--n")


@pytest.fixture
def asked(run, tmp_path, monkeypatch) -> list:
    """prompts.txt, and which completions the model is asked for."""
    (tmp_path / "prompts.txt").write_text("Once upon\nThere was\nOne day\n")
    keys_asked = []
    complete = LocalBackend.complete

    def watched(self, prompts, keys, sampling):
        keys_asked.extend(keys)
        return complete(self, prompts, keys, sampling)

    monkeypatch.setattr(LocalBackend, "complete", watched)
    return keys_asked


def test_more_completions_are_added_to_those_that_are_there(run, sample_py, asked):
    assert sample_py(*ARGS, "2")[0] == 0
    few = rows_of(run / "samples.jsonl")
    asked.clear()
    assert sample_py(*ARGS, "4", "--batch_size", "3")[0] == 0
    assert sorted(asked) == [(i, j) for i in range(3) for j in (2, 3)]
    many = rows_of(run / "samples.jsonl")
    assert [row for row in many if row["sample_index"] < 2] == few
    (run / "samples.jsonl").unlink()
    assert sample_py(*ARGS, "4")[0] == 0
    assert rows_of(run / "samples.jsonl") == many
    assert sample_py(*ARGS, "1")[0] == 0  # fewer: what there was is kept
    assert rows_of(run / "samples.jsonl") == [row for row in many if row["sample_index"] < 1]
    assert rows_of(run / "samples-1.jsonl") == many


def test_an_interrupted_call_goes_on_where_it_was(run, sample_py, asked):
    assert sample_py(*ARGS, "4")[0] == 0
    whole = rows_of(run / "samples.jsonl")
    part = run / "samples.jsonl.part"
    lines = (run / "samples.jsonl").read_text().splitlines(keepends=True)
    (run / "samples.jsonl").unlink()
    part.write_text("".join([lines[5], "[1]\n", lines[2], lines[7][:20]]))  # killed while it wrote the last
    asked.clear()
    assert sample_py(*ARGS, "4")[0] == 0
    assert rows_of(run / "samples.jsonl") == whole
    assert len(asked) == 10 and not {(0, 2), (1, 1)} & set(asked)
    assert not part.exists()


def test_what_other_settings_or_weights_wrote_is_kept_apart(run, sample_py, asked):
    assert sample_py(*ARGS, "2")[0] == 0
    first = (run / "samples.jsonl").read_text()
    (run / "samples.jsonl").rename(run / "samples.jsonl.part")
    code, printed = sample_py(*ARGS, "2", "--seed", "1")
    assert code == 0 and "kept as out/tiny/samples-1.jsonl.part" in printed.out
    assert all(row["seed"] == 1 for row in rows_of(run / "samples.jsonl"))
    assert (run / "samples-1.jsonl.part").read_text() == first

    checkpoint = torch.load(run / "ckpt.pt", weights_only=True)
    checkpoint["model"]["ln_f.bias"] += 1
    torch.save(checkpoint, run / "ckpt.pt")
    asked.clear()
    code, printed = sample_py(*ARGS, "2", "--seed", "1")
    assert len(asked) == 6 and "kept as out/tiny/samples-1.jsonl" in printed.out


def test_out_may_be_a_directory_or_a_file(run, sample_py, asked, tmp_path):
    assert sample_py(*ARGS, "1", "--out", "out/tiny")[0] == 0
    assert len(rows_of(run / "samples.jsonl")) == 3 and (run / "ckpt.pt").exists()
    assert sample_py(*ARGS, "1", "--out", "new/place.jsonl")[0] == 0
    assert len(rows_of(tmp_path / "new" / "place.jsonl")) == 3


@pytest.mark.slow
def test_a_full_disk_loses_nothing(run, asked, tmp_path):
    """A limit on the size of files stands for it; the same call goes on when there is room."""
    command = f"ulimit -f 4; exec {sys.executable} {ROOT / 'sample.py'} {' '.join(ARGS)} 200"
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("sample.py: ") and "make room" in done.stderr.splitlines()[-1]
    rows = rows_of_part(run)
    assert 0 < len(rows) < 600
    again = subprocess.run(
        [sys.executable, ROOT / "sample.py", *ARGS, "200"], cwd=tmp_path, capture_output=True, text=True
    )
    assert again.returncode == 0
    assert all(row in rows_of(run / "samples.jsonl") for row in rows)


def test_greedy_and_beams_are_written_once(run, sample_py):
    for how in (("--temperature", "0"), ("--beams", "5")):
        assert sample_py("--prompt", "Once", *how, "--max_new_tokens", "5", "--out", "out/once.jsonl")[0] == 0
        (row,) = rows_of(run.parent / "once.jsonl")
        assert row["prompt"] == "Once" and row["reference"] is None
        (run.parent / "once.jsonl").unlink()
        code, printed = sample_py("--prompt", "Once", "--n", "2", *how)
        assert code == 2 and "would write the same text 2 times" in printed.err
    assert row["temperature"] == 0 and row["beams"] == 5
    assert "it takes no --temperature" in sample_py("--beams", "3", "--temperature", "1")[1].err
    assert "--stream prints one story" in sample_py("--stream", "--n", "2")[1].err


def test_several_temperatures_lie_apart(run, corpus, sample_py, monkeypatch):
    """Each as a call of its own would have written it; what is there is not written again."""
    args = ("--eval", "3", "--data", "data/tiny", "--max_new_tokens", "6", "--n")
    code, printed = sample_py(*args, "2", "--temperature", "1", "0", "0.5", "1.0")
    assert code == 0 and printed.out.splitlines()[1:] == [
        "wrote out/tiny/temperature-0/samples.jsonl: 3 prompts x 1 completions by out/tiny",
        "wrote out/tiny/temperature-0.5/samples.jsonl: 3 prompts x 2 completions by out/tiny; "
        "next: python grade.py out/tiny --no_judge",
    ]
    written = {path.parent.name: rows_of(path) for path in run.glob("*/samples.jsonl")}
    assert {name: len(rows) for name, rows in written.items()} == {
        "temperature-0": 3, "temperature-0.5": 6, "temperature-1": 6,
    }  # fmt: skip
    for name, rows in written.items():
        assert {f"temperature-{row['temperature']:g}" for row in rows} == {name}
        alone = ("--temperature", name.removeprefix("temperature-"), "--out", "out/alone.jsonl")
        assert sample_py(*args, "1" if name == "temperature-0" else "2", *alone)[0] == 0
        assert rows_of(run.parent / "alone.jsonl") == rows
        (run.parent / "alone.jsonl").unlink()
    assert not (run / "samples.jsonl").exists()
    with monkeypatch.context() as patch:
        patch.setattr(LocalBackend, "complete", lambda self, prompts, *_: (_ for _ in map(pytest.fail, prompts)))
        assert sample_py(*args, "2", "--temperature", "0.5", "0", "1")[0] == 0  # nothing is missing
    assert sample_py(*args, "4", "--temperature", "0", "1", "--out", "new")[0] == 0
    more = rows_of(run.parent.parent / "new" / "temperature-1" / "samples.jsonl")
    assert [row for row in more if row["sample_index"] < 2] == written["temperature-1"] and len(more) == 12


def test_several_temperatures_to_read(run, sample_py):
    code, printed = sample_py("--prompt", "Once", "--n", "2", "--max_new_tokens", "3", "--temperature", "0", "1")
    cold, hot = printed.out.split("temperature 1:\n\n")
    assert cold.startswith("temperature 0:\n\n") and (cold.count("Once"), hot.count("Once")) == (1, 2)
    assert "--stream prints one story" in sample_py("--stream", "--temperature", "0", "1")[1].err
    assert "--out must be a directory" in sample_py("--temperature", "0", "1", "--out", "a.jsonl")[1].err
    assert "--temperature must be 0 or more" in sample_py("--temperature", "0.5", "-1")[1].err


def test_stories_too_long_for_the_context_are_left_out_of_the_evaluation(run, sample_py, tmp_path):
    stories = ["A dog ran.", "A pig ran far. The end is here.", "word " * 60 + "word.", "A cat ran. The end is near."]
    preparation.prepare(tmp_path / "data" / "long", ["long"], ["Another story."], stories, 300, 0.1, 0, 1)
    code, printed = sample_py("--eval", "3", "--n", "1", "--data", "data/long", "--max_new_tokens", "2")
    assert code == 0 and "1 of 3 prompts do not fit in the context of out/tiny and are left out" in printed.out
    assert [row["prompt_index"] for row in rows_of(run / "samples.jsonl")] == [0, 2]  # numbers stay with their stories


def test_a_tokenizer_of_another_model_is_refused(run, sample_py, tmp_path):
    checkpoint = load_checkpoint(run)
    save_hf(from_checkpoint(checkpoint), tmp_path / "exported", cut(np.zeros(GPT2_VOCAB_SIZE), 300))
    assert sample_py("--model", "hf:exported", "--max_new_tokens", "3")[0] == 0
    save_hf_tokenizer(cut(np.zeros(GPT2_VOCAB_SIZE), 400), tmp_path / "exported")
    code, _ = sample_py("--model", "hf:exported")
    assert code == "sample.py: exported: the model has 300 ids, its tokenizer 400; they do not belong together"


def test_a_second_call_with_the_same_output_is_refused(run, sample_py, asked):
    with lock(run, ".samples.jsonl.lock"):
        code, _ = sample_py(*ARGS, "2")
        assert sample_py(*ARGS, "1", "--out", "out/tiny/other.jsonl")[0] == 0  # another output is its own matter
    assert code == ("sample.py: out/tiny: another sample.py is writing samples.jsonl; wait, or choose another --out")
    assert len(asked) == 3 and not (run / "samples.jsonl").exists()
    assert sample_py(*ARGS, "2")[0] == 0


def test_a_damaged_row_is_written_again(run, sample_py, asked):
    assert sample_py(*ARGS, "2")[0] == 0
    whole = (run / "samples.jsonl").read_bytes()
    broken = whole.replace(b'"completion": "', b'"completion": "\xff', 1)
    (run / "samples.jsonl").write_bytes(broken)
    asked.clear()
    code, printed = sample_py(*ARGS, "2")
    assert code == 0 and asked == [(0, 0)] and (run / "samples.jsonl").read_bytes() == whole
    assert "1 damaged line left out, the first is line 1" in printed.err
    assert (run / "samples-1.jsonl").read_bytes() == broken


def test_a_file_that_sample_py_did_not_write_is_kept(run, sample_py, tmp_path):
    (tmp_path / "thesis.txt").write_text("Chapter 1")
    code, printed = sample_py("--prompt", "Once", "--n", "1", "--max_new_tokens", "2", "--out", "thesis.txt")
    assert code == 0 and "kept as thesis-1.txt" in printed.out
    assert (tmp_path / "thesis-1.txt").read_text() == "Chapter 1"


MEMORY = [torch.OutOfMemoryError("CUDA out of memory"), MemoryError(), RuntimeError("[enforce fail at alloc_cpu.cpp] "
    "DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes. Error code 12")]  # fmt: skip


@pytest.mark.parametrize("error", MEMORY, ids=lambda error: type(error).__name__)
def test_out_of_memory_names_what_to_lower(run, sample_py, monkeypatch, error):
    def out_of_memory(*args, **kwargs):
        raise error

    monkeypatch.setattr(generation_loop, "make_decoder", out_of_memory)
    assert sample_py("--n", "2")[0] == "sample.py: out of memory; lower --batch_size, which is 64"
    assert sample_py("--beams", "7")[0] == "sample.py: out of memory; lower --beams, which is 7"
    error.args = ("another error",)
    if type(error) is RuntimeError:
        with pytest.raises(RuntimeError, match="another error"):
            sample_py("--n", "2")
