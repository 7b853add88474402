"""The generation engine: the cache changes nothing, neighbours change nothing, nothing is cut silently."""

import dataclasses
import http.server
import json
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from conftest import ROOT

import prepare
import sample
from model import CHECKPOINT_FORMAT, GPTNeo, GPTNeoConfig
from sample import LocalStudent, beam_search, cut_story, draw, generate, load_run, newest_run, read_prompts
from tokenizer import GPT2_VOCAB_SIZE, cut, gpt2

PROMPTS = [[3, 1, 4], [1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9], [3], [2, 3, 8], [4, 6, 2, 6]]


@pytest.fixture(scope="module")
def model() -> GPTNeo:
    torch.manual_seed(0)
    model = GPTNeo(GPTNeoConfig(vocab_size=60, block_size=32, n_layer=3, n_head=4, n_embd=32, window_size=6)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def completions(model, prompts, **settings):
    return {completion.index: completion for completion in generate(model, prompts, **settings)}


@torch.inference_mode()
def greedy_without_cache(model, prompt, stop):
    """The textbook loop: the whole text through the whole model for every token."""
    text = list(prompt)
    while len(text) < model.config.block_size:
        token = model(torch.tensor([text]))[0][0, -1].argmax().item()
        if token == stop:
            return text[len(prompt) :], True
        text.append(token)
    return text[len(prompt) :], False


@pytest.mark.parametrize("batch_size", [1, 2, 5])
def test_greedy_text_is_that_of_the_uncached_model(model, batch_size):
    texts = [greedy_without_cache(model, prompt, stop=None)[0] for prompt in PROMPTS]
    # a token at which some of the completions end, and others do not
    stop = next(token for token in range(60) if {token in text for text in texts} == {True, False})
    result = completions(model, PROMPTS, temperature=0, stop=stop, batch_size=batch_size)
    assert sorted(result) == list(range(len(PROMPTS)))
    for index, prompt in enumerate(PROMPTS):
        tokens, finished = greedy_without_cache(model, prompt, stop)
        assert (result[index].tokens, result[index].finished) == (tokens, finished)


@pytest.mark.parametrize("settings", [{}, dict(top_k=5), dict(top_p=0.7), dict(top_k=20, top_p=0.9, temperature=1.5)])
def test_a_prompts_text_does_not_depend_on_its_batch(model, settings):
    alone = completions(model, PROMPTS, seed=1, stop=0, batch_size=1, **settings)
    for batch_size in (2, 3, 5):
        assert completions(model, PROMPTS, seed=1, stop=0, batch_size=batch_size, **settings) == alone
    assert completions(model, PROMPTS[:2], seed=1, stop=0, **settings) == {i: alone[i] for i in range(2)}
    assert completions(model, PROMPTS, seed=2, stop=0, **settings) != alone
    twins = completions(model, [PROMPTS[0]] * 2, seed=1, **settings)
    assert twins[0].tokens != twins[1].tokens


def test_the_end_of_the_context_is_reported(model):
    result = completions(model, PROMPTS, temperature=0, stop=None)
    for index, prompt in enumerate(PROMPTS):
        assert not result[index].finished
        assert len(prompt) + len(result[index].tokens) == model.config.block_size
    short = completions(model, PROMPTS, temperature=0, stop=None, max_new_tokens=4)
    assert [short[i].tokens for i in range(5)] == [result[i].tokens[:4] for i in range(5)]


def test_a_key_says_what_is_drawn(model):
    """Whatever the place in the list: that is what lets an interrupted run go on, and n grow."""
    keys = [(0, 0), (0, 1), (1, 0), (1, 1)]
    prompts = [PROMPTS[0], PROMPTS[0], PROMPTS[1], PROMPTS[1]]
    all_of_them = completions(model, prompts, seed=3, stop=0, keys=keys)
    some = completions(model, prompts[3:0:-2], seed=3, stop=0, keys=keys[3:0:-2])
    assert [some[0].tokens, some[1].tokens] == [all_of_them[3].tokens, all_of_them[1].tokens]


@pytest.mark.parametrize("beams, max_new_tokens", [(2, 12), (5, 12), (2, 27), (5, 27)])
def test_beam_search_finds_what_transformers_finds(beams, max_new_tokens):
    from test_model import as_transformers  # here, as it needs transformers

    ended_by_itself = 0
    for seed in range(6):
        torch.manual_seed(seed)
        model = GPTNeo(GPTNeoConfig(vocab_size=30, block_size=48, n_layer=2, n_head=2, n_embd=16, window_size=6)).eval()
        for name, parameter in model.named_parameters():
            torch.nn.init.normal_(parameter, mean=1.0 if "ln" in name and "weight" in name else 0.0, std=0.4)
        prompts = [torch.randint(30, (length,)).tolist() for length in (1, 7, 21)]
        for completion in beam_search(model, prompts, beams, max_new_tokens, stop=seed):
            prompt = torch.tensor([prompts[completion.index]])
            settings = dict(max_new_tokens=max_new_tokens, eos_token_id=seed, pad_token_id=seed)
            theirs = (
                as_transformers(model)
                .generate(prompt, attention_mask=torch.ones_like(prompt), num_beams=beams, do_sample=False, **settings)[
                    0, prompt.size(1) :
                ]
                .tolist()
            )
            finished = seed in theirs
            assert completion.tokens == (theirs[: theirs.index(seed)] if finished else theirs)
            assert completion.finished == finished
            ended_by_itself += finished
    assert 0 < ended_by_itself < 18


def test_a_beam_search_that_fills_the_context_says_so(model):
    (completion,) = beam_search(model, [PROMPTS[0]], beams=3)
    assert len(completion.tokens) == 32 - 3 and not completion.finished


@pytest.fixture(scope="module")
def trained() -> GPTNeo:
    """A model that has learned something: to count up to 20 from anywhere, and then stop."""
    torch.manual_seed(0)
    model = GPTNeo(GPTNeoConfig(vocab_size=40, block_size=48, n_layer=2, n_head=4, n_embd=32, window_size=6))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(150):
        text = (torch.randint(20, (16, 1)) + torch.arange(49)).clamp(max=20)
        loss = model(text[:, :-1], text[:, 1:])[1]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.2
    return model.eval()


def test_the_same_holds_for_a_trained_model(trained):
    prompts = [[5, 6], [0, 1, 2, 3], [11], [17, 18]]
    result = completions(trained, prompts, temperature=0, stop=20)
    for index, prompt in enumerate(prompts):
        assert (result[index].tokens, result[index].finished) == greedy_without_cache(trained, prompt, stop=20)
        assert result[index].tokens == list(range(prompt[-1] + 1, 20))
    alone = completions(trained, prompts, temperature=1.5, seed=1, stop=20, batch_size=1)
    assert completions(trained, prompts, temperature=1.5, seed=1, stop=20, batch_size=3) == alone
    endless = completions(trained, prompts, temperature=0, stop=39)
    for index, prompt in enumerate(prompts):
        assert len(prompt) + len(endless[index].tokens) == 48 and not endless[index].finished


def test_tokens_are_reported_as_they_are_written(model):
    written = {i: [] for i in range(len(PROMPTS))}
    result = completions(model, PROMPTS, stop=0, batch_size=2, on_token=lambda i, token: written[i].append(token))
    assert written == {i: completion.tokens for i, completion in result.items()}


@pytest.mark.parametrize("length", [0, 32, 40])
def test_a_prompt_that_does_not_fit_is_named(model, length):
    with pytest.raises(ValueError, match=f"prompt 1 has {length} tokens; this model's context takes 1 to 31"):
        list(generate(model, [[1], [1] * length]))


LOGITS = torch.tensor([1.0, 3.0, 2.0, 0.0, 2.5])


@pytest.mark.parametrize("temperature, top_k, top_p", [(1, None, None), (0.5, 3, None), (2, None, 0.8), (1, 4, 0.6)])
def test_draws_follow_the_distribution(temperature, top_k, top_p):
    """Shares of 50,000 draws against probabilities worked out the plain way, in NumPy."""
    weights = np.exp(LOGITS.numpy() / temperature)
    order = np.argsort(-weights)
    kept = order[: top_k or 5]
    if top_p:
        share = weights[kept] / weights[kept].sum()
        kept = kept[: int(np.searchsorted(np.cumsum(share), top_p)) + 1]
    expected = np.zeros(5)
    expected[kept] = weights[kept] / weights[kept].sum()

    uniform = torch.rand(50_000, generator=torch.Generator().manual_seed(0))
    tokens = draw(LOGITS.expand(50_000, 5), uniform, temperature, top_k, top_p)
    shares = np.bincount(tokens.numpy(), minlength=5) / 50_000
    assert abs(shares - expected).max() < 0.01
    assert shares[expected == 0].sum() == 0


def test_draws_at_the_edges():
    for uniform in (0.0, 1 - 2**-24):
        for top_k, top_p in ((None, None), (2, None), (None, 0.5), (1, 0.1)):
            token = draw(LOGITS[None], torch.tensor([uniform]), 1.0, top_k, top_p).item()
            assert 0 <= token < 5
    assert draw(LOGITS[None], torch.tensor([0.999]), 1.0, 1, None).item() == 1
    assert draw(LOGITS[None], torch.tensor([0.999]), 1e-40, None, None).item() == 1
    assert draw(LOGITS[None], torch.tensor([0.999]), 0, None, None).item() == 1


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
    assert read_prompts(tmp_path / "a.json") == read_prompts(tmp_path / "a.jsonl") == [one, two]
    for name, text, message in (
        ("none.txt", None, "cannot be read"),
        ("empty.txt", " \n", "no prompt in it"),
        ("b.json", "{", "not JSON"),
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
    return prepare.prepare(tmp_path / "data" / "tiny", ["tiny"], stories, stories[:12], 300, 0.1, 0, 1), stories


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
def sample_py(monkeypatch, capsys, tmp_path):
    """Calls the command line in tmp_path -> (exit code or message, what it printed)."""

    def call(*args):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["sample.py", *args])
        try:
            sample.main()
        except SystemExit as end:
            return end.code, capsys.readouterr()
        return 0, capsys.readouterr()

    return call


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
    ours, theirs = LocalStudent(None, tokenizer, [tokenizer.end_of_text]), LocalStudent(None, tokenizer, [])
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
    assert printed.out == (
        "4 prompts x 3 completions by out/tiny are in out/tiny/samples.jsonl. Next: python grade.py out/tiny\n"
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

    # More completions leave those that were there as they were, and the earlier file is kept.
    code, printed = sample_py(*args[:3], "5", *args[4:], "--batch_size", "2")
    more = rows_of(run / "samples.jsonl")
    assert [row for row in more if row["sample_index"] < 3] == rows
    assert "out/tiny/samples.jsonl existed: kept as out/tiny/samples-1.jsonl" in printed.out
    assert rows_of(run / "samples-1.jsonl") == rows


def test_an_interrupted_call_goes_on_where_it_was(run, sample_py, tmp_path, monkeypatch):
    (tmp_path / "prompts.txt").write_text("Once upon\nThere was\nOne day\n")
    args = ("--prompts", "prompts.txt", "--n", "4", "--max_new_tokens", "5")
    assert sample_py(*args)[0] == 0
    whole = rows_of(run / "samples.jsonl")
    part = run / "samples.jsonl.part"
    lines = (run / "samples.jsonl").read_text().splitlines(keepends=True)
    part.write_text("".join([lines[5], lines[2], lines[7][:20]]))  # killed while it wrote the third
    asked = []
    complete = LocalStudent.complete
    monkeypatch.setattr(
        LocalStudent,
        "complete",
        lambda self, texts, keys, how: (asked.extend(keys), complete(self, texts, keys, how))[1],
    )
    assert sample_py(*args)[0] == 0
    assert rows_of(run / "samples.jsonl") == whole
    assert len(asked) == 10 and not {(0, 2), (1, 1)} & set(asked)
    assert not part.exists()

    part.write_text(lines[0])  # of another seed: not mixed in, and not lost
    assert sample_py(*args, "--seed", "1")[0] == 0
    assert all(row["seed"] == 1 for row in rows_of(run / "samples.jsonl"))
    assert (run / "samples.jsonl-1.part").read_text() == lines[0]


def test_greedy_and_beams_are_written_once(run, sample_py):
    for how in (("--temperature", "0"), ("--beams", "5")):
        assert sample_py("--prompt", "Once", *how, "--max_new_tokens", "5", "--out", "out/once.jsonl")[0] == 0
        (row,) = rows_of(run.parent / "once.jsonl")
        assert row["prompt"] == "Once" and row["reference"] is None
        code, printed = sample_py("--prompt", "Once", "--n", "2", *how)
        assert code == 2 and "would write the same text 2 times" in printed.err


def test_stories_too_long_for_the_context_are_left_out_of_the_evaluation(run, sample_py, tmp_path):
    stories = ["A dog ran.", "A pig ran far. The end is here.", "word " * 60 + "word.", "A cat ran. The end is near."]
    prepare.prepare(tmp_path / "data" / "long", ["long"], ["Another story."], stories, 300, 0.1, 0, 1)
    code, printed = sample_py("--eval", "3", "--n", "1", "--data", "data/long", "--max_new_tokens", "2")
    assert code == 0 and "1 of 3 prompts do not fit into the context of out/tiny and are left out" in printed.out
    assert len(rows_of(run / "samples.jsonl")) == 2


# A model behind an endpoint


class Endpoint(http.server.BaseHTTPRequestHandler):
    """Answers chat completions as server.answer(number of the request, request) says: a status and a text."""

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append(request | dict(path=self.path, key=self.headers["Authorization"]))
        status, text = self.server.answer(len(self.server.requests), request)
        choice = dict(index=0, message=dict(role="assistant", content=text), finish_reason="stop")
        facts = dict(id="1", object="chat.completion", created=0, model="m", choices=[choice])
        body = json.dumps(facts if status == 200 else dict(error=dict(message=text))).encode()
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
