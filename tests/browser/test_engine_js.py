"""browser/engine.js, in a real browser, against Python with the same rounded weights."""

import json
import random
import re
import shutil
import subprocess

import pytest
import torch
import torch.nn.functional as F
from conftest import ROOT
from random_models import random_model
from tokenizer_texts import TEXT, count_tokens, random_text

from browser.pack_model import pack_storyteller, title_of
from browser.quantize import DTYPES, rounded
from corpus.tokenizer import Tokenizer, cut, gpt2
from generation.backends import LocalBackend
from generation.generation_loop import draw
from interpretation.hooks import run_with_cache
from pages.story_page import story_page

GPT2 = dict(scale_attention=True, qkv_bias=True, window_size=48)
READY = "document.getElementById('status').textContent !== 'Unpacking the storyteller …'"


def write_page(path, model, tokenizer: Tokenizer, prefix=(), dtype="float32", name="hf:a model"):
    facts, weights = pack_storyteller(name, LocalBackend(model, tokenizer, prefix), dtype, [])
    path.write_bytes(story_page(title_of(name), "", facts, weights))
    return path


@pytest.fixture
def storyteller(chromium, tmp_path):
    """storyteller(model, tokenizer, …) opens its page -> call(name of a call of the engine, *arguments)."""

    def of(model, tokenizer, **others):
        chromium.open(write_page(tmp_path / "story.html", model, tokenizer, **others))
        chromium.wait_for(READY)
        return lambda *args: chromium.run(f"ask(...{json.dumps(args)})")

    yield of
    assert chromium.messages == []


# ---- The tokenizer ----

LANGUAGES = """Der Bär aß süße Brötchen.|Жила-была лиса в лесу.|Μια φορά κι έναν καιρό|昔々、あるところに狐がいました。
옛날 옛적에 여우가|كان يا ما كان ثعلب صغير|היה היה שועל קטן|एक बार की बात है|นานมาแล้วมีจิ้งจอก
Il était une fois l’été|ⅷ ½ ³ ٣ ௧|don't I'll we've IT'S 's|a\u00a0b\u2003c\u3000 d|\x85\x1c\x1f \ufeff\u200b\u180e x
👩\u200d👧🐉🇩🇪|e\u0301\u0323|Ǆ ǅ ª º|</script><!-- <b>&amp;|  \n\n \t x  |_-- !?… (1,234.5)|aaaaaaaaaaaaaaaaaaaaaaaaa"""


def test_text_of_any_language_has_the_ids_of_python(storyteller, chromium):
    """With GPT-2's vocabulary, and with a cut one."""
    rng = random.Random(0)
    texts = [*re.split(r"[|\n]", LANGUAGES), LANGUAGES, TEXT, *(random_text(rng) for _ in range(300))]
    for tokenizer in (gpt2(), cut(count_tokens(TEXT), 300)):
        shape = dict(vocab_size=tokenizer.vocab_size, n_embd=4, n_head=1, n_layer=1, block_size=4)
        call = storyteller(random_model(**shape), tokenizer)
        found = chromium.run(f"Promise.all({json.dumps(texts)}.map((text) => ask('encode', text)))")
        for text, ids in zip(texts, found, strict=True):
            assert ids == tokenizer.encode(text), repr(text)
        decoded = [bytes(each.values()) for each in call("bytes", ids)]
        assert b"".join(decoded).decode() == text


# ---- The model ----


GREEDY = """async (prompts) => {
  for (const ids of prompts) {
    while (ids.length < config.block_size) ids.push((await ask("next", ids, { temperature: 0 }, 0)).id);
  }
  return prompts;
}"""
DRAW = """(settings, n) => Promise.all(Array.from({ length: n }, (_, i) =>
  ask("next", [1, 2, 3], settings, (i + 0.5) / n).then(({ id }) => id)))"""


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [dict(window_size=7), GPT2], ids=["GPT-Neo", "GPT-2"])
def test_greedy_text_is_that_of_python(storyteller, chromium, dtype, shape):
    """20 prompts, each to the end of the context; and losses, likeliest tokens and attention on the way."""
    tokenizer = cut(count_tokens(TEXT), 300)
    model = random_model(vocab_size=300, block_size=48, **shape)
    call, reference = storyteller(model, tokenizer, dtype=dtype), rounded(model, dtype)
    rng = random.Random(0)
    prompts = [[rng.randrange(300) for _ in range(rng.randrange(1, 12))] for _ in range(20)]
    for prompt, ids in zip(prompts, chromium.run(f"({GREEDY})({json.dumps(prompts)})")):
        expected = list(prompt)
        with torch.inference_mode():
            while len(expected) < 48:
                expected.append(reference(torch.tensor([expected]))[0][0, -1].argmax().item())
        assert ids == expected

    logits, cache = run_with_cache(reference, torch.tensor([ids]))
    expected = F.cross_entropy(logits[0, :-1], torch.tensor(ids[1:]), reduction="none").detach()
    losses = call("read", ids)
    assert losses[0] is None
    torch.testing.assert_close(torch.tensor(losses[1:]), expected, atol=1e-4, rtol=1e-4)
    shares, best = logits[0, 29].softmax(-1).topk(10)
    found = call("likeliest", ids, 30, 10)
    assert [each["id"] for each in found] == best.tolist()
    assert [each["share"] for each in found] == pytest.approx(shares.tolist(), rel=1e-4)
    for layer, head, t in ((0, 3, 40), (1, 0, 40), (2, 1, 0)):
        attention = cache[f"blocks.{layer}.pattern"][0, head, t].tolist()
        assert call("attention", ids, layer, head, t) == pytest.approx(attention, abs=1e-5)


def test_the_binary_is_that_of_its_source(tmp_path):
    if not shutil.which("wat2wasm"):
        pytest.skip("needs wat2wasm: apt install wabt, or npm install wabt")
    room = ROOT / "browser"
    subprocess.run(["wat2wasm", room / "multiply.wat", "--output", tmp_path / "multiply.wasm"], check=True)
    assert (tmp_path / "multiply.wasm").read_bytes() == (room / "multiply.wasm").read_bytes()


def test_what_is_read_again_differently_is_as_if_read_for_the_first_time(storyteller):
    model = random_model(vocab_size=300)
    call = storyteller(model, cut(count_tokens(TEXT), 300))
    first, second = list(range(20)), [*range(10), 200, *range(11, 15)]
    losses = {tuple(ids): call("read", ids) for ids in (first, second)}
    call("likeliest", second, 5, 3)
    for ids in (first, second[:10], [7], second):
        assert call("read", ids) == losses.get(tuple(ids), call("read", ids))
    fresh = storyteller(model, cut(count_tokens(TEXT), 300))
    assert fresh("read", second) == losses[tuple(second)]


def test_draws_follow_the_distribution(storyteller, chromium):
    """As often as in Python, where tokens stand in another order; top_k and top_p leave out the same ones."""
    storyteller(random_model(vocab_size=300), cut(count_tokens(TEXT), 300))
    with torch.inference_mode():
        logits = random_model(vocab_size=300)(torch.tensor([[1, 2, 3]]))[0][0, -1]
    for settings in (dict(), dict(temperature=0.5), dict(top_k=3), dict(top_p=0.6), dict(top_k=20, top_p=0.3)):
        settings = dict(temperature=1.0, top_k=0, top_p=1.0) | settings
        n = 400
        uniform = (torch.arange(n) + 0.5) / n
        expected = draw(
            logits.expand(n, -1), uniform, settings["temperature"], settings["top_k"] or None, settings["top_p"]
        )
        drawn = chromium.run(f"({DRAW})({json.dumps(settings)}, {n})")
        counts, expected = (torch.bincount(torch.as_tensor(ids), minlength=300) for ids in (drawn, expected))
        assert (counts - expected).abs().max() <= 2, settings
    numbers = chromium.run("Array.from({length: 4000}, (_, i) => uniform(i % 40, Math.floor(i / 40)))")
    assert 0 <= min(numbers) < max(numbers) < 1 and len(set(numbers)) > 3990
    histogram = torch.histc(torch.tensor(numbers), 10, 0, 1)
    assert (histogram - 400).abs().max() < 80  # four standard deviations
