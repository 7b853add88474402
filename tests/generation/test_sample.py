"""sample.py with models of ours: its command line, and what is kept in sets of stories through
interruptions."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from planted import write_corpus
from random_models import random_model, save_run, trained_on
from sample_fixtures import rows_of

from nanostories.corpus.tokenizer import GPT2_VOCAB_SIZE, cut
from nanostories.files import lock
from nanostories.generation import samples_file
from nanostories.generation.backends import LocalBackend
from nanostories.generation.samples_file import read_rows, set_file


@pytest.fixture
def run(tmp_path, corpus):
    """out/tiny with a random model, as train.py would leave it."""
    model = random_model(vocab_size=300, block_size=64)
    facts = trained_on(tmp_path / "data", "tiny")
    save_run(tmp_path / "out" / "tiny", model, cut(np.zeros(GPT2_VOCAB_SIZE), 300), **facts)
    return tmp_path / "out" / "tiny"


def test_the_newest_run_writes_the_same_again(run, sampled):
    flags = "--prompt 'Once upon ' --n 2 --seed 3"
    first = sampled(flags)
    # a random model does not end
    assert first.count("Once upon") == first.count("[cut here]") == 2
    assert sampled(f"{flags} --model out/tiny") == first
    assert sampled("--prompt 'Once upon ' --stream --seed 3").strip() in first


MISTAKES = {
    f"--prompt '{'far too long ' * 20}'": "1 of 1 prompts",
    "--temperature 0.5 nan": "--temperature",
    "--split train": "--eval",
    "--beams 3 --temperature 1": "--temperature",
    "--stream --n 2": "--stream",
    "--price_in 1": "--price_out",
    "--price_in 1 --price_out 1 --max_cost 1": "--max_new_tokens",
    "--prompts train.txt": "rename",
    "--words a --eval 3": "--words",
    "--words a --out x": "data/tiny, without headers",
    "--eval 2 --data headed --out x": "data/tiny, without headers",
    "--model api:x --top_k 5 --prompt Once": "--top_k",
    "--model api:x --n 2": "--prompt",
    "--model api:x --eval 3": "--data",
    "--dry_run": "api:",
    "--best_of 2": "needs headers",
    "--words a --best_of 2 --beams 2": "--best_of",
}


@pytest.mark.parametrize("args", MISTAKES)
def test_mistakes_are_named(run, sample_py, tmp_path, instruct_data_dir, args):
    (tmp_path / "train.txt").write_text("Once upon")
    (tmp_path / "headed").symlink_to(instruct_data_dir / "builtin-instruct")
    said, printed = sample_py(args)
    assert not printed.out and MISTAKES[args] in said
    assert not (tmp_path / "x").exists()


# ---- Sets of stories ----
EVAL = "--data data/tiny --max_new_tokens 6 --cut 0.4 --seed 5 --eval"


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


def test_more_completions_are_added_and_fewer_change_nothing(run, sampled, asked, tmp_path):
    sampled(f"{ARGS} 2")
    path = set_file(run, "prompts")
    few = rows_of(path)
    asked.clear()
    sampled(f"{ARGS} 4 --batch_size 3")
    assert sorted(asked) == [(i, j) for i in range(3) for j in (2, 3)]
    many = rows_of(path)
    assert [row for row in many if row["sample_index"] < 2] == few
    (tmp_path / "prompts.txt").write_text("Once upon\n")
    # the same weights by another name
    sampled(f"{ARGS} 1 --checkpoint last")
    assert len(asked) == 6 and rows_of(path) == many


def test_a_set_is_complete_whatever_was_stopped_before(run, sampled, asked):
    """Equal numbers by prompt, the same as without the interruption; what else was written is used
    by who asks for it."""
    path = set_file(run, "eval")
    part = path.with_name("eval.jsonl.part")
    many = f"{EVAL} 5 --n 4"
    sampled(many)
    rows = read_rows(path)
    settings = dict(model="out/tiny", split="val", draw="first", cut=0.4, finished=False)
    settings |= dict(temperature=1.0, top_k=None, beams=1, max_new_tokens=6, seed=5)
    assert settings.items() <= rows[0, 0].items()
    assert len({row["completion"] for row in rows.values()}) == 20
    whole = path.read_bytes()
    path.unlink()
    lines = whole.splitlines(keepends=True)
    # Shorter stories end first; killed while it wrote the last.
    part.write_bytes(b"".join([lines[5], lines[2], *lines[10:16], lines[7][:20]]))
    asked.clear()
    assert "2 prompts x 2 completions" in sampled(f"{EVAL} 2 --n 2")
    assert path.read_bytes() == b"".join(lines[i] for i in (0, 1, 4, 5))
    assert sorted(asked) == [(0, 0), (0, 1), (1, 0)]
    assert f"{20 - 4 - 7} are new" in sampled(many)
    assert path.read_bytes() == whole and not part.exists()


@pytest.mark.parametrize("n_written", range(3))
def test_a_wider_set_takes_the_place_of_a_deeper_one_and_loses_nothing(
    run, sampled, sample_py, asked, monkeypatch, n_written
):
    """Killed after any of the files is written."""
    path = set_file(run, "eval")
    sampled(f"{EVAL} 2 --n 3")
    deep = path.read_bytes()
    before = read_rows(path)
    write = samples_file.write_rows
    calls = []

    def killed(path, rows):
        if len(calls) == n_written:
            raise KeyboardInterrupt
        calls.append(path)
        write(path, rows)

    with monkeypatch.context() as patched:
        patched.setattr(samples_file, "write_rows", killed)
        assert "stopped" in sample_py(f"{EVAL} 4 --n 1")[0]
    found = read_rows(path) | read_rows(path.with_name("eval.jsonl.part"))
    assert len(calls) == n_written and before.items() <= found.items()
    sampled(f"{EVAL} 4 --n 1")
    assert list(read_rows(path)) == [(i, 0) for i in range(4)]
    asked.clear()
    sampled(f"{EVAL} 2 --n 3")
    assert not asked and path.read_bytes() == deep


@pytest.mark.parametrize("name", ["prompts.jsonl", "prompts.jsonl.part"])
def test_stories_by_other_settings_prompts_or_weights_are_not_added(
    run, sampled, sample_py, asked, tmp_path, name
):
    assert "python grade.py out/tiny --set prompts" in sampled(f"{ARGS} 2")
    path = set_file(run, "prompts").rename(run / "samples" / name)
    before = path.read_bytes()

    def refused(flags: str) -> str:
        asked.clear()
        code, _ = sample_py(flags)
        assert "--out" in code and not asked and path.read_bytes() == before
        return code

    assert "(seed)" in refused(f"{ARGS} 2 --seed 1")
    (tmp_path / "prompts.txt").write_text("Once upon\nThere was\nOne night\n")
    assert "(prompt)" in refused(f"{ARGS} 2")
    checkpoint = torch.load(run / "ckpt.pt", weights_only=True)
    checkpoint["model"]["ln_f.bias"] += 1
    torch.save(checkpoint, run / "ckpt.pt")
    assert "(weights)" in refused(f"{ARGS} 2")


def test_one_temperature_lies_in_one_place(run, sampled, asked):
    """However many are asked for at once; greedy text is written once."""
    sampled(f"{ARGS} 2 --temperature 1 0 0.5 1.0")
    sampled(f"{ARGS} 2 --beams 5")
    assert len(asked) == 6 + 3 + 6 + 3
    places = {".": [1] * 6, "temperature-0": [0] * 3, "temperature-0.5": [0.5] * 6}
    for place, temperatures in (places | {"beams-5": [0] * 3}).items():
        rows = rows_of(set_file(run / place, "prompts"))
        assert [row["temperature"] for row in rows] == temperatures


def test_stories_too_long_for_the_context_are_left_out_of_the_evaluation(run, sampled, tmp_path):
    stories = ["A dog ran.", "A pig ran far.", "word " * 60 + "word.", "A cat ran."]
    write_corpus(tmp_path / "data" / "long", [], stories)
    said = sampled("--eval 3 --n 1 --data data/long --max_new_tokens 2")
    assert "1 of 3 prompts do not fit" in said
    # numbers stay with their stories
    assert [row["prompt_index"] for row in rows_of(set_file(run, "eval"))] == [0, 2]


def test_a_second_call_with_the_same_output_is_refused(run, sample_py, asked):
    with lock(run / "samples", ".prompts.jsonl.lock"):
        assert "prompts.jsonl" in sample_py(f"{ARGS} 2")[0]
        assert not asked and not set_file(run, "prompts").exists()


def test_a_published_model_stops_somewhere(sampled, monkeypatch):
    asked = []

    def complete(prompts, sampling):
        asked.append(sampling.max_new_tokens)
        yield *prompts, " time.", True

    backend = SimpleNamespace(fits=lambda prompt: True, complete=complete)
    monkeypatch.setattr("nanostories.generation.backends.load_backend", lambda *_, **__: backend)
    for flags in ("", "--max_new_tokens 7"):
        sampled(f"--model hf:some/model --n 1 {flags}")
    assert asked == [1024, 7]
