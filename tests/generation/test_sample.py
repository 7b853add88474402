"""sample.py with models of ours: its command line, and what is kept in samples.jsonl through
interruptions."""

import re
import shlex
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
from nanostories.corpus.tokenizer import GPT2_VOCAB_SIZE, cut, gpt2
from nanostories.files import lock
from nanostories.generation.backends import LocalBackend


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
    code, first = sample_py("--prompt", "Once upon ", "--n", "2", "--seed", "3")
    assert code == 0 and first.out.count("Once upon") == 2
    assert first.out.count("[cut here]") == 2  # an untrained model does not end
    assert (
        sample_py("--prompt", "Once upon ", "--n", "2", "--seed", "3", "--model", "out/tiny")[1].out
        == first.out
    )
    assert first.out.startswith(
        sample_py("--prompt", "Once upon ", "--stream", "--seed", "3")[1].out
    )
    assert sample_py("--n", "1", "--max_new_tokens", "5")[1].out.endswith(
        " [cut here]\n"
    )  # the model begins


def test_the_prompt_as_a_model_is_given_it():
    tokenizer = gpt2()
    ours, theirs = (
        LocalBackend(None, tokenizer, [tokenizer.end_of_text]),
        LocalBackend(None, tokenizer, []),
    )
    assert ours.encode("a b \n") == [tokenizer.end_of_text] + tokenizer.encode("a b")
    assert theirs.encode("a b \n") == tokenizer.encode("a b")
    assert theirs.encode(" ") == [tokenizer.end_of_text]


MISTAKES = {
    "--model nowhere": "nowhere",
    f"--prompt '{'far too long ' * 20}'": "1 of 1 prompts",
    "--prompts nowhere.txt": "nowhere.txt",
    "--temperature 0.5 nan": "--temperature",
    "--cut 1": "--cut",
    "--split train": "--eval",
    "--unseen_words": "--eval",
    "--beams 3 --temperature 1": "--temperature",
    "--stream --n 2": "--stream",
    "--price_in 1": "--price_out",
    "--words a --eval 3": "--words",
    "--model api:x --top_k 5": "--top_k",
    "--model api:x --eval 3": "--data",
}


@pytest.mark.parametrize("args", MISTAKES)
def test_mistakes_get_one_line(run, sample_py, args):
    code, printed = sample_py(*shlex.split(args))
    complaint = (
        printed.err.splitlines()[-1] if code == 2 else code
    )  # argparse prints its own, after the usage
    assert printed.out == "" and MISTAKES[args] in complaint and "\n" not in complaint


def test_help_does_not_wait_for_torch(tmp_path):
    command = [sys.executable, "-X", "importtime", ROOT / "sample.py", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert not re.search(r"\| +(torch|openai)$", done.stderr, re.MULTILINE)


def test_a_header_from_the_command_line(run, sample_py):
    asked = (
        "--words",
        "a, b",
        "--summary",
        "It\nran.",
        "--out",
        "x",
        "--n",
        "1",
        "--max_new_tokens",
        "1",
    )
    (run.parent.parent / "data").rename(run.parent.parent / "gone")  # it has no headers
    assert sample_py(*asked)[0] == 0
    (row,) = rows_of(run.parent.parent / "x" / "samples.jsonl")
    assert row["prompt"] == "Words: a, b\nSummary: It ran.\nStory:"
    assert row["instruction"] == dict(words=["a", "b"], summary="It ran.")


def test_a_model_trained_without_headers_is_given_none(run, corpus, instruct_data_dir, sample_py):
    for args in (
        ["--words", "dog"],
        ["--eval", "2", "--data", str(instruct_data_dir / "builtin-instruct")],
    ):
        code, printed = sample_py(*args, "--out", "x")
        assert "headers" in code and "data/tiny" in code and "\n" not in code and printed.out == ""
    assert not (run.parent.parent / "x").exists()


def test_features_are_those_of_the_training_stories(run, instruct_data_dir, sample_py, monkeypatch):
    corpus = instruct_data_dir / "builtin-instruct"
    name = "nanostories.checkpoints.models.find_training_corpus"
    monkeypatch.setattr(name, lambda checkpoint: corpus)
    assert sample_py("--features", "BadEnding", "--n", "1", "--max_new_tokens", "1")[0] == 0
    assert "no such feature: Dialog;" in sample_py("--features", "BadEnding, Dialog")[0]


# ---- samples.jsonl ----

EVAL = ("--eval", "4", "--data", "data/tiny", "--max_new_tokens", "6")


def test_samples_of_the_evaluation_set(run, corpus, sample_py):
    code, printed = sample_py(*EVAL, "--n", "3", "--cut", "0.4", "--seed", "5")
    assert (
        code == 0
        and "out/tiny/samples.jsonl" in printed.out
        and "python grade.py out/tiny" in printed.out
    )
    rows = rows_of(run / "samples.jsonl")
    assert [(row["prompt_index"], row["sample_index"]) for row in rows] == [
        (i, j) for i in range(4) for j in range(3)
    ]
    assert rows[0]["prompt"] + rows[0]["reference"] == corpus[1]
    assert len({row["completion"] for row in rows}) == 12
    settings = dict(
        model="out/tiny", cut=0.4, temperature=1.0, top_k=None, beams=1, max_new_tokens=6, seed=5
    )
    assert all(settings.items() <= row.items() and row["finished"] is False for row in rows)


def test_random_training_stories_by_the_last_checkpoint(run, corpus, sample_py):
    change_weights(run / "ckpt.pt", run / "best.pt")
    assert sample_py(*EVAL, "--n", "1")[0] == 0
    memorization = ("--split", "train", "--cut", "0.4", "--checkpoint", "last")
    assert sample_py(*EVAL, "--n", "1", *memorization)[0] == 0
    held_out, drawn = rows_of(run / "samples.jsonl"), rows_of(run / "samples-train.jsonl")
    stories = [row["prompt"] + row["reference"] for row in drawn]
    assert (
        len({*stories} & {*corpus[13:]}) == 4 and stories != corpus[13:17]
    )  # the first 12 are held out
    assert [row["prompt_index"] for row in drawn] == [0, 1, 2, 3] and held_out[0][
        "weights"
    ] != drawn[0]["weights"]
    marks = ("split", "draw", "model", "cut")
    assert {tuple(row[name] for name in marks) for row in held_out} == {
        ("val", "first", "out/tiny", 0.5)
    }
    assert {tuple(row[name] for name in marks) for row in drawn} == {
        ("train", "random", "out/tiny/ckpt.pt", 0.4)
    }


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


def test_more_completions_are_added_and_fewer_change_nothing(run, sample_py, asked):
    assert sample_py(*ARGS, "2")[0] == 0
    few = rows_of(run / "samples.jsonl")
    asked.clear()
    assert sample_py(*ARGS, "4", "--batch_size", "3")[0] == 0
    assert sorted(asked) == [(i, j) for i in range(3) for j in (2, 3)]
    many = (run / "samples.jsonl").read_bytes()
    assert [row for row in rows_of(run / "samples.jsonl") if row["sample_index"] < 2] == few
    (run.parent.parent / "prompts.txt").write_text("Once upon\n")
    asked.clear()
    assert sample_py(*ARGS, "1")[0] == 0 and not asked  # fewer prompts, too
    assert (run / "samples.jsonl").read_bytes() == many
    assert (
        sample_py(*ARGS, "4", "--checkpoint", "last")[0] == 0 and not asked
    )  # the same weights by another name


def test_an_interrupted_call_goes_on_where_it_was(run, sample_py, asked):
    assert sample_py(*ARGS, "4")[0] == 0
    whole, part = (run / "samples.jsonl").read_bytes(), run / "samples.jsonl.part"
    lines = whole.splitlines(keepends=True)
    (run / "samples.jsonl").unlink()
    part.write_bytes(
        b"".join([lines[5], lines[2], lines[7][:20]])
    )  # killed while it wrote the last
    asked.clear()
    assert sample_py(*ARGS, "4")[0] == 0
    assert (run / "samples.jsonl").read_bytes() == whole
    assert len(asked) == 10 and not {(0, 2), (1, 1)} & set(asked) and not part.exists()


def test_other_settings_prompts_or_weights_are_kept_apart(run, sample_py, asked, tmp_path):
    def moved() -> str:
        asked.clear()
        code, printed = sample_py(*ARGS, "2", "--seed", "1")
        assert code == 0 and len(rows_of(run / "samples.jsonl")) == 6
        return printed.out

    assert sample_py(*ARGS, "2")[0] == 0
    first = (run / "samples.jsonl").rename(run / "samples.jsonl.part").read_text()
    assert "another seed: kept as out/tiny/samples.jsonl.part-1" in moved() and len(asked) == 6
    assert (run / "samples.jsonl.part-1").read_text() == first
    change_weights(run / "ckpt.pt")
    assert "another weights: kept as out/tiny/samples.jsonl-1" in moved() and len(asked) == 6
    (tmp_path / "prompts.txt").write_text("Once upon\nThere was\nOne night\n")
    assert "another prompt: kept as out/tiny/samples.jsonl-2" in moved() and len(asked) == 2
    (path := run / "samples.jsonl").write_text(
        path.read_text().replace('"seed"', '"split": "val", "seed"')
    )
    assert (
        "another split: kept as out/tiny/samples.jsonl-3" in moved() and len(asked) == 6
    )  # as --eval writes


def test_one_temperature_lies_in_one_place(run, sample_py, asked):
    """However many are asked for at once; what is there is not written again, and greedy text is
    written once."""
    assert sample_py(*ARGS, "2", "--temperature", "1", "0", "0.5", "1.0")[0] == 0
    for place, temperature, n in (
        (".", "1", 6),
        ("temperature-0", "0", 3),
        ("temperature-0.5", "0.5", 6),
    ):
        path = run / place / "samples.jsonl"
        written = rows_of(path)
        assert len(written) == n and {row["temperature"] for row in written} == {float(temperature)}
        asked.clear()
        assert sample_py(*ARGS, "2", "--temperature", temperature)[0] == 0 and not asked
        path.unlink()
        assert (
            sample_py(*ARGS, "2", "--temperature", temperature)[0] == 0 and rows_of(path) == written
        )
    assert sample_py(*ARGS, "2", "--beams", "5")[0] == 0
    beams = rows_of(run / "beams-5" / "samples.jsonl")
    assert [(row["temperature"], row["beams"]) for row in beams] == [(0, 5)] * 3


def test_stories_too_long_for_the_context_are_left_out_of_the_evaluation(run, sample_py, tmp_path):
    stories = [
        "A dog ran.",
        "A pig ran far. The end is here.",
        "word " * 60 + "word.",
        "A cat ran. The end is near.",
    ]
    write_corpus(tmp_path / "data" / "long", [], stories)
    code, printed = sample_py(
        "--eval", "3", "--n", "1", "--data", "data/long", "--max_new_tokens", "2"
    )
    assert code == 0 and "1 of 3 prompts do not fit" in printed.out
    assert [row["prompt_index"] for row in rows_of(run / "samples.jsonl")] == [
        0,
        2,
    ]  # numbers stay with their stories


def test_a_second_call_with_the_same_output_is_refused(run, sample_py, asked):
    with lock(run, ".samples.jsonl.lock"):
        code, _ = sample_py(*ARGS, "2")
        assert (
            sample_py(*ARGS, "1", "--out", "out/other")[0] == 0
        )  # another output is its own matter
    assert "samples.jsonl" in code and len(asked) == 3 and not (run / "samples.jsonl").exists()
    assert sample_py(*ARGS, "2")[0] == 0


def test_a_published_model_stops_somewhere(sample_py, monkeypatch):
    asked = []

    class Backend:
        def fits(self, prompt):
            return True

        def complete(self, prompts, keys, sampling):
            asked.append(sampling.max_new_tokens)
            yield 0, " time.", True

    monkeypatch.setattr("nanostories.generation.backends.load_backend", lambda *_, **__: Backend())
    for flags in ((), ("--max_new_tokens", "7")):
        assert sample_py("--model", "hf:some/model", "--n", "1", *flags)[0] == 0
    assert asked == [1024, 7]
