"""The generation loop: the cache changes nothing, neighbors change nothing, nothing is cut
silently."""

import copy
import functools
import itertools

import numpy as np
import pytest
import torch
from random_models import as_transformers, random_model, randomize

from nanostories.generation.generation_loop import beam_search, draw, generate
from nanostories.generation.prompts import Sampling
from nanostories.kernels import compile_cpp

TEXTS = [[3, 1, 4], [1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9], [3], [2, 3, 8], [4, 6, 2, 6]]
PROMPTS = {(i, 0): text for i, text in enumerate(TEXTS)}
GREEDY = Sampling(temperature=0)


@pytest.fixture(params=["C++", "PyTorch"])
def decoder(request, monkeypatch):
    library = compile_cpp.library
    if request.param == "PyTorch":
        monkeypatch.setattr(
            compile_cpp, "library", lambda name, *of: name != "decode_step" and library(name, *of)
        )
    elif library("decode_step") is None:
        pytest.skip("no C++ compiler that builds decode_step.cpp")


@pytest.fixture(scope="module")
def model():
    return random_model(vocab_size=60, block_size=32, window_size=6)


def completions(model, prompts, sampling, **settings):
    """{key: (tokens, whether it ended by itself)}"""
    return {key: rest for key, *rest in generate(model, prompts, sampling, **settings)}


@torch.inference_mode()
def greedy_without_cache(model, prompt, stop):
    """The textbook loop: the whole text through the whole model for every token."""
    text = list(prompt)
    while len(text) < model.config.block_size:
        token = model(torch.tensor([text]))[0][0, -1].argmax().item()
        if token == stop:
            return [text[len(prompt) :], True]
        text.append(token)
    return [text[len(prompt) :], False]


@pytest.mark.parametrize("batch_size", [1, 2, 5])
def test_greedy_text_is_that_of_the_uncached_model(decoder, model, batch_size):
    texts = [greedy_without_cache(model, prompt, stop=None)[0] for prompt in TEXTS]
    # a token at which some of the completions end, and others do not
    stop = next(token for token in range(60) if {token in text for text in texts} == {True, False})
    expected = {key: greedy_without_cache(model, text, stop) for key, text in PROMPTS.items()}
    assert completions(model, PROMPTS, GREEDY, stop=stop, batch_size=batch_size) == expected


def test_each_token_is_drawn_by_a_random_number_of_its_own(decoder, model):
    """Where all tokens are equally likely, they are those numbers themselves."""
    even = copy.deepcopy(model)
    for parameter in even.parameters():
        parameter.data.zero_()
    prompts = {(0, 1): TEXTS[0], (3, 0): TEXTS[1], (0, 2): TEXTS[2]}
    for key, (tokens, _) in completions(even, prompts, Sampling(seed=5), batch_size=2).items():
        uniform = np.random.default_rng([5, *key]).random(len(tokens), dtype=np.float32)
        assert np.abs(np.array(tokens) + 0.5 - 60 * uniform).max() < 0.501


@functools.cache  # for all decoders
def beams_of_transformers(beams: int, max_new_tokens: int):
    """(model, prompts, {(stop, key of a prompt): the tokens that transformers finds})"""
    shape = dict(vocab_size=30, block_size=48, n_layer=2, n_head=2, n_embd=16, window_size=6)
    model = randomize(random_model(**shape), std=0.4)
    theirs = as_transformers(model)
    prompts = {(n, 0): torch.randint(30, (n,)).tolist() for n in (1, 7, 21)}
    settings = dict(num_beams=beams, do_sample=False, max_new_tokens=max_new_tokens)
    found = {}
    for stop, (key, tokens) in itertools.product(range(8), prompts.items()):
        settings |= dict(eos_token_id=stop, pad_token_id=stop)
        prompt = torch.tensor([tokens])
        text = theirs.generate(prompt, attention_mask=torch.ones_like(prompt), **settings)
        found[stop, key] = text[0, prompt.size(1) :].tolist()
    return model, prompts, found


@pytest.mark.parametrize("beams, max_new_tokens", [(2, 12), (5, 27)])
def test_beam_search_finds_what_transformers_finds(decoder, beams, max_new_tokens):
    model, prompts, found = beams_of_transformers(beams, max_new_tokens)
    sampling = Sampling(beams=beams, max_new_tokens=max_new_tokens)
    ended_by_itself = 0
    for stop in range(8):
        for key, tokens, finished in beam_search(model, prompts, sampling, stop):
            expected = found[stop, key]
            assert finished == (stop in expected)
            assert tokens == (expected[: expected.index(stop)] if finished else expected)
            ended_by_itself += finished
    assert 0 < ended_by_itself < 24


def test_a_prompt_that_does_not_fit_is_named(model):
    with pytest.raises(ValueError, match="prompt 1 has 32 tokens"):
        list(generate(model, {(1, 0): [1] * 32}, GREEDY))


def test_broken_weights_are_not_taken_for_stories(decoder, model):
    broken = copy.deepcopy(model)
    broken.ln_f.bias.data[0] = torch.nan
    for write in (generate, beam_search):
        with pytest.raises(ValueError, match="not finite"):
            list(write(broken, PROMPTS, Sampling()))


LOGITS = torch.tensor([1.0, 3.0, 2.0, 0.0, 2.5])


@pytest.mark.parametrize("temperature, top_k", [(1, None), (0.5, 3), (2, 9)])
def test_draws_follow_the_distribution(temperature, top_k):
    """Shares of all random numbers against probabilities worked out the plain way, in NumPy."""
    weights = np.exp(LOGITS.numpy() / temperature)
    kept = np.argsort(-weights)[: top_k or 5]
    expected = np.zeros(5)
    expected[kept] = weights[kept] / weights[kept].sum()
    uniform = torch.linspace(0, 1, 50_001)[:-1]
    tokens = draw(LOGITS.expand(50_000, 5), uniform, Sampling(temperature, top_k))
    shares = np.bincount(tokens.numpy(), minlength=5) / 50_000
    assert abs(shares - expected).max() < 1e-3
    assert not shares[expected == 0].any()


@pytest.mark.parametrize("top_k", [None, 2, 1])
@pytest.mark.parametrize("temperature", [1.0, 1e-30, 0])
def test_draws_at_the_edges(temperature, top_k):
    uniform = torch.tensor([0.0, 0.999, 1 - 2**-24])
    tokens = draw(LOGITS.expand(3, 5), uniform, Sampling(temperature, top_k)).tolist()
    likeliest = LOGITS.argsort(descending=True).tolist()
    assert set(tokens) <= set(likeliest[: top_k if temperature == 1 else 1])
