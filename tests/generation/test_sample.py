"""sample.py: what is continued, by whom, and what is kept of it, through mistakes and interruptions."""

import dataclasses
import http.server
import json
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch
from conftest import ROOT

import sample
from checkpoints.checkpoint import CHECKPOINT_FORMAT, from_checkpoint, load_checkpoint, load_run, newest_run
from checkpoints.huggingface import save_hf, save_hf_tokenizer
from corpus import preparation
from corpus.tokenizer import GPT2_VOCAB_SIZE, cut, gpt2
from generation import samples_file
from generation.backends import LocalBackend
from generation.prompts import cut_story, read_prompts
from model import GPTNeo, GPTNeoConfig

# What is continued


def test_a_story_is_cut_between_two_words():
    story = "One two  three\n\nfour, five."
    assert cut_story(story, 0.5) == sample.Prompt("One two", "  three\n\nfour, five.")
    assert cut_story(story, 0.99).text == "One two  three\n\nfour,"
    assert cut_story("Alone.", 0.4) == sample.Prompt("Alone.", "")


def test_prompts_are_read_from_lines_and_from_json(tmp_path):
    one, two = sample.Prompt("Once upon"), sample.Prompt("There was", " a cat.")
    rows = [{"prompt": "Once upon "}, {"prompt": "There was", "reference": " a cat."}]
    (tmp_path / "a.txt").write_text("\ufeffOnce upon \n\nThere was\n")
    (tmp_path / "a.json").write_text(json.dumps(["Once upon", rows[1]]))
    (tmp_path / "a.jsonl").write_text("\n\n".join(map(json.dumps, rows)))
    assert read_prompts(tmp_path / "a.txt") == [one, sample.Prompt("There was")]
    (tmp_path / "odd.jsonl").write_text('"Once\u2028upon a"\n')
    assert read_prompts(tmp_path / "odd.jsonl") == [sample.Prompt("Once\u2028upon a")]
    assert read_prompts(tmp_path / "a.json") == read_prompts(tmp_path / "a.jsonl") == [one, two]
    for name, text, message in (
        ("none.txt", None, "cannot be read"),
        ("empty.txt", " \n", "no prompt in it"),
        ("b.json", "{", "cannot be read"),
        ("d.json", "[" * 100_000, "cannot be read"),
        ("e.json", '["\\ud800"]', "prompt 1 must be a text"),
        ("b.jsonl", '"good"\n{"text": "x"}', "prompt 2 must be a text"),
        ("c.json", "3", "prompt 1 must be a text"),
    ):
        if text is not None:
            (tmp_path / name).write_text(text)
        with pytest.raises(ValueError, match=f"{name}: {message}") as caught:
            read_prompts(tmp_path / name)
        assert "\n" not in str(caught.value)
    assert len(read_prompts(ROOT / "prompts" / "beginnings.txt")) >= 20


@pytest.fixture
def corpus(tmp_path):
    """data/tiny with 12 validation stories, the first two of them alike in their beginning."""
    stories = [f"Story {i} is about a very small dog. It ran. The end." for i in range(40)]
    return preparation.prepare(tmp_path / "data" / "tiny", ["tiny"], stories, stories[:12], 300, 0.1, 0, 1), stories


def test_the_evaluation_set_is_stories_2_and_on(corpus, tmp_path):
    prompts = sample.evaluation_prompts(tmp_path / "data" / "tiny", 3, 0.5)
    stories = corpus[1]
    assert [prompt.text + prompt.reference for prompt in prompts] == stories[1:4]
    assert prompts[0].text == "Story 1 is about a very"
    with pytest.raises(ValueError, match="has 12 stories, --eval 12 needs 13"):
        sample.evaluation_prompts(tmp_path / "data" / "tiny", 12, 0.5)


# The command line


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


@pytest.fixture
def sample_py(command_line, tmp_path):
    return command_line(sample, tmp_path)


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
            "1 of 1 prompts do not fit into the context of out/tiny, 24 tokens: shorten",
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


def test_without_any_run_it_says_what_to_do(tmp_path):
    """As a new user would, in a process of its own."""
    result = subprocess.run([sys.executable, ROOT / "sample.py"], cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 1
    message = "no run under out/ yet: train one with `python train.py`, or name one with --model"
    assert result.stderr == f"sample.py: {message}\n"


# samples.jsonl


def rows_of(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_samples_of_the_evaluation_set(run, corpus, sample_py, tmp_path):
    args = ("--eval", "4", "--n", "3", "--data", "data/tiny", "--max_new_tokens", "6", "--cut", "0.4", "--seed", "5")
    code, printed = sample_py(*args)
    assert code == 0
    assert (
        printed.out == "4 prompts x 3 completions by out/tiny are in out/tiny/samples.jsonl, one JSON object a line\n"
    )
    rows = rows_of(run / "samples.jsonl")
    assert [(row["prompt_index"], row["sample_index"]) for row in rows] == [(i, j) for i in range(4) for j in range(3)]
    assert rows[0]["prompt"] + rows[0]["reference"] == corpus[1][1]
    assert len({row["completion"] for row in rows}) == 12
    settings = dict(
        model="out/tiny", cut=0.4, temperature=1.0, top_k=None, top_p=None, beams=1, max_new_tokens=6, seed=5
    )
    assert all(settings.items() <= row.items() and row["finished"] is False for row in rows)
    assert sorted(path.name for path in run.iterdir()) == ["ckpt.pt", "samples.jsonl"]


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


def rows_of_part(run) -> list[dict]:
    return list(samples_file.read_rows(run / "samples.jsonl.part").values())


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


def test_stories_too_long_for_the_context_are_left_out_of_the_evaluation(run, sample_py, tmp_path):
    stories = ["A dog ran.", "A pig ran far. The end is here.", "word " * 60 + "word.", "A cat ran. The end is near."]
    preparation.prepare(tmp_path / "data" / "long", ["long"], ["Another story."], stories, 300, 0.1, 0, 1)
    code, printed = sample_py("--eval", "3", "--n", "1", "--data", "data/long", "--max_new_tokens", "2")
    assert code == 0 and "1 of 3 prompts do not fit into the context of out/tiny and are left out" in printed.out
    assert [row["prompt_index"] for row in rows_of(run / "samples.jsonl")] == [0, 2]  # numbers stay with their stories


def test_a_tokenizer_of_another_model_is_refused(run, sample_py, tmp_path):
    checkpoint = load_checkpoint(run)
    save_hf(from_checkpoint(checkpoint), tmp_path / "exported", cut(np.zeros(GPT2_VOCAB_SIZE), 300))
    assert sample_py("--model", "hf:exported", "--max_new_tokens", "3")[0] == 0
    save_hf_tokenizer(cut(np.zeros(GPT2_VOCAB_SIZE), 400), tmp_path / "exported")
    code, _ = sample_py("--model", "hf:exported")
    assert code == "sample.py: exported: the model has 300 ids, its tokenizer 400; they do not belong together"


# A model behind an endpoint


class Endpoint(http.server.BaseHTTPRequestHandler):
    """Answers chat completions as server.answer(number of the request, request) says: a status and a text."""

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append(request | dict(path=self.path, key=self.headers["Authorization"]))
        status, text = self.server.answer(len(self.server.requests), request)
        choice = dict(index=0, message=dict(role="assistant", content=text), finish_reason="stop")
        facts = dict(id="1", object="chat.completion", created=0, model="m", choices=[choice])
        raw = getattr(self.server, "raw", None)
        body = raw.encode() if raw else json.dumps(facts if status == 200 else dict(error=dict(message=text))).encode()
        self.send_response(status)
        for name, value in (("Content-Type", "application/json"), ("Content-Length", len(body)), ("retry-after", "0")):
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


@pytest.fixture
def endpoint(monkeypatch):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    server.requests = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{server.server_port}/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    yield server
    server.shutdown()
    server.server_close()


API = ("--model", "api:gpt-3.5-turbo", "--prompts", "prompts.txt", "--n", "2", "--temperature", "0.7")


def test_an_api_model_continues_stories(endpoint, sample_py, tmp_path):
    """Through a server that fails now and then."""
    (tmp_path / "prompts.txt").write_text("Once upon\nOne day, Tom\n")
    endpoint.answer = lambda number, request: (503, "busy") if number % 3 == 2 else (200, "a time. The end.")
    assert sample_py(*API)[0] == 0
    rows = rows_of(tmp_path / "out" / "api--gpt-3.5-turbo" / "samples.jsonl")
    assert [row["completion"] for row in rows] == [" a time. The end."] * 4
    assert all(row["finished"] and row["temperature"] == 0.7 for row in rows)
    request = endpoint.requests[0]
    assert request["path"] == "/v1/chat/completions" and request["key"] == "Bearer secret"
    assert request["model"] == "gpt-3.5-turbo" and request["temperature"] == 0.7
    assert {request["messages"][-1]["content"] for request in endpoint.requests} == {"Once upon", "One day, Tom"}
    assert len({request["seed"] for request in endpoint.requests}) == 4


def test_what_was_paid_for_is_kept_when_the_endpoint_gives_up(endpoint, sample_py, tmp_path):
    (tmp_path / "prompts.txt").write_text("Once upon\nOne day, Tom\n")
    endpoint.answer = lambda number, request: (200, "a time.") if number <= 3 else (401, "no such\nkey")
    code, printed = sample_py(*API)
    assert code.startswith("sample.py: api:gpt-3.5-turbo at http://127.0.0.1") and "no such" in code
    assert "\n" not in code
    had = len(endpoint.requests)
    endpoint.answer = lambda number, request: (200, "another time.")
    assert sample_py(*API)[0] == 0
    assert len(endpoint.requests) - had == 1
    rows = rows_of(tmp_path / "out" / "api--gpt-3.5-turbo" / "samples.jsonl")
    assert sorted(row["completion"] for row in rows) == [" a time."] * 3 + [" another time."]


def test_an_api_model_without_a_key_says_so(sample_py, monkeypatch, tmp_path):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    (tmp_path / "prompts.txt").write_text("Once upon\n")
    code, printed = sample_py(*API)
    assert "OPENAI_API_KEY" in code and "\n" not in code
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    assert "takes no --top_k" in sample_py(*API, "--top_k", "5")[1].err
    assert "needs --data" in sample_py("--model", "api:x", "--eval", "3")[0]


@pytest.mark.parametrize("answer", ["<html>Not here</html>", '{"error": "no"}', '{"choices": []}', '{"choi'])
def test_an_endpoint_that_is_none_is_named(endpoint, sample_py, tmp_path, answer):
    (tmp_path / "prompts.txt").write_text("Once upon\n")
    endpoint.answer = lambda number, request: (200, None)
    endpoint.raw = answer
    code, _ = sample_py(*API)
    assert code.startswith("sample.py: api:gpt-3.5-turbo at http://127.0.0.1") and "\n" not in code


def test_ctrl_c_keeps_the_answers_that_are_on_their_way(endpoint, tmp_path):
    (tmp_path / "prompts.txt").write_text("Once upon\n" * 20)

    def slowly(number, request):
        time.sleep(2)
        return 200, "a time."

    endpoint.answer = slowly
    process = subprocess.Popen(
        [sys.executable, ROOT / "sample.py", *API], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    while len(endpoint.requests) < 8:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    stderr = process.communicate(timeout=30)[1]
    assert process.returncode == 1 and "the same call goes on" in stderr and "Traceback" not in stderr
    assert len(rows_of_part(tmp_path / "out" / "api--gpt-3.5-turbo")) == 8
