"""The generation engine: the cache changes nothing, neighbours change nothing, nothing is cut silently."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest
import torch
from conftest import ROOT

import sample
from model import CHECKPOINT_FORMAT, GPTNeo, GPTNeoConfig
from sample import draw, encode_prompt, generate, load_run, newest_run
from tokenizer import GPT2_VOCAB_SIZE, cut

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
    assert sample_py("--prompt", "Once upon ", "--n", "2", "--seed", "3", "--run", "out/tiny")[1].out == first.out
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
    assert encode_prompt(tokenizer, "a b \n") == [299] + tokenizer.encode("a b")


@pytest.mark.parametrize(
    "args, message",
    [
        (["--run", "nowhere"], "nowhere: no such"),
        (["--prompt", "far too long " * 20], "tokens, and this model takes 22: shorten it"),
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


def test_a_checkpoint_cut_short_is_named(run, sample_py):
    whole = (run / "ckpt.pt").read_bytes()
    for size in (0, 10, 1000, len(whole) // 2, len(whole) - 1):
        (run / "ckpt.pt").write_bytes(whole[:size])
        code, printed = sample_py()
        assert code == "sample.py: out/tiny/ckpt.pt: not a readable checkpoint (cut short, or not written by train.py)"
    (run / "ckpt.pt").write_text("step,loss\n1,2\n")
    assert "not a readable checkpoint" in sample_py()[0]


def test_a_reader_who_leaves_early_is_no_error(run, tmp_path):
    command = f"{sys.executable} {ROOT / 'sample.py'} --n 50 | head -c 20"
    result = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, errors="replace")
    assert result.stderr == ""


def test_without_any_run_it_says_what_to_do(tmp_path):
    """As a new user would, in a process of its own."""
    result = subprocess.run([sys.executable, ROOT / "sample.py"], cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 1
    message = "no run under out/ yet: train one with `python train.py`, or name one with --run"
    assert result.stderr == f"sample.py: {message}\n"
