"""nanostories/pages/engine.js and nanostories/pages/story_page.py: in a real browser, against
Python with the same rounded weights."""

import copy
import json
import random
import re
import shutil
import subprocess

import pytest
import torch
from conftest import ROOT
from random_models import random_model
from tokenizer_texts import SCRIPTS, TEXT, count_tokens, random_text

from nanostories.corpus.tokenizer import Tokenizer, cut, gpt2, learn_bpe
from nanostories.generation.backends import LocalBackend
from nanostories.pages.story_page import int8_rows, story_page

GPT2 = dict(scale_attention=True, qkv_bias=True, window_size=48)
READY = "document.getElementById('status').textContent !== 'Unpacking the model …'"


@torch.no_grad()
def rounded(model):
    """A copy with the weights that the browser has, as float32."""
    model = copy.deepcopy(model)
    for parameter in model.parameters():
        if parameter.dim() == 2:
            rows, scale = int8_rows(parameter)
            parameter.copy_(rows * scale[:, None])
    return model


def write_page(path, model, tokenizer: Tokenizer, prefix=(), title="a model", **others):
    path.write_bytes(story_page(title, LocalBackend(model, tokenizer, prefix), **others))
    return path


@pytest.fixture
def storyteller(chromium, tmp_path):
    """storyteller(model, tokenizer, …) opens its page -> call(name of a call of the engine,
    *arguments)."""

    def opened(model, tokenizer, **others):
        chromium.open(write_page(tmp_path / "story.html", model, tokenizer, **others))
        chromium.wait_for(READY)
        return lambda *args: chromium.run(f"ask(...{json.dumps(args)})")

    yield opened
    assert chromium.messages == []


# ---- Weights ----
def test_int8_is_wrong_by_half_a_step_at_most():
    weight = torch.randn(50, 64) * torch.logspace(-12, 3, 50)[:, None]
    weight[7] = 0
    rows, scale = int8_rows(weight)
    assert ((rows * scale[:, None] - weight).abs() <= 0.5001 * scale[:, None]).all()
    assert (rows.abs().amax(1)[8:] == 127).all() and not rows[7].any()


# ---- The tokenizer ----

LANGUAGES = """Der Bär aß süße Brötchen.|Жила-была лиса в лесу.|Μια φορά κι έναν καιρό|昔々、あるところに狐がいました。
옛날 옛적에 여우가|كان يا ما كان ثعلب صغير|היה היה שועל קטן|एक बार की बात है|นานมาแล้วมีจิ้งจอก
Il était une fois l’été|ⅷ ½ ³ ٣ ௧|don't I'll we've IT'S 's|a\u00a0b\u2003c\u3000 d|\x85\x1c\x1f \ufeff\u200b\u180e x
👩\u200d👧🐉🇩🇪|e\u0301\u0323|Ǆ ǅ ª º|</script><!-- <b>&amp;|  \n\n \t x  |_-- !?… (1,234.5)|aaaaaaaaaaaaaaaaaaaaaaaaa"""  # noqa: E501


def test_text_of_any_language_has_the_ids_of_python(storyteller, chromium):
    """With GPT-2's vocabulary, a cut one and a learned one."""
    rng = random.Random(0)
    texts = [
        *re.split(r"[|\n]", LANGUAGES),
        LANGUAGES,
        TEXT,
        *(random_text(rng) for _ in range(300)),
    ]
    for tokenizer in (
        gpt2(),
        cut(count_tokens(TEXT), 300),
        learn_bpe([*LANGUAGES.split("\n"), *SCRIPTS], 700),
    ):
        shape = dict(vocab_size=tokenizer.vocab_size, n_embd=16, n_head=1, n_layer=1, block_size=4)
        call = storyteller(random_model(**shape), tokenizer)
        found = chromium.run(f"Promise.all({json.dumps(texts)}.map((text) => ask('encode', text)))")
        for text, ids in zip(texts, found, strict=True):
            assert ids == tokenizer.encode(text), repr(text)
        decoded = [bytes(each.values()) for each in call("bytes", ids)]
        assert b"".join(decoded).decode() == text


# ---- The model ----

GREEDY = """(async (prompts) => {
  for (const ids of prompts) {
    while (ids.length < contextLength) ids.push((await ask("next", ids, 0, 0)).id);
  }
  return prompts;
})"""
DRAW = """((temperature, n) => Promise.all(Array.from({ length: n }, (_, i) =>
  ask("next", [1, 2, 3], temperature, (i + 0.5) / n).then(({ id }) => id))))"""


@pytest.mark.parametrize("shape", [dict(window_size=7), GPT2], ids=["GPT-Neo", "GPT-2"])
def test_greedy_text_is_that_of_python(storyteller, chromium, shape):
    """20 prompts, each to the end of the context; and likeliest tokens. 301: arrays are padded."""
    model = random_model(vocab_size=301, block_size=48, **shape)
    call, reference = storyteller(model, cut(count_tokens(TEXT), 301)), rounded(model)
    rng = random.Random(0)
    prompts = [[rng.randrange(300) for _ in range(rng.randrange(1, 12))] for _ in range(20)]
    for prompt, ids in zip(prompts, chromium.run(f"{GREEDY}({json.dumps(prompts)})")):
        expected = list(prompt)
        with torch.inference_mode():
            while len(expected) < 48:
                expected.append(reference(torch.tensor([expected]))[0][0, -1].argmax().item())
        assert ids == expected

    with torch.inference_mode():
        logits = reference(torch.tensor([ids]))[0]
    for t in (1, 30, 47):
        shares, found = logits[0, t - 1].softmax(-1), call("likeliest", ids, t, 10)
        assert [each["id"] for each in found["tokens"]] == shares.topk(10).indices.tolist()
        listed = [found["own"], *(each["share"] for each in found["tokens"])]
        assert listed == pytest.approx(
            [shares[ids[t]].item(), *shares.topk(10).values.tolist()], rel=1e-4
        )


def test_the_binary_is_that_of_its_source(tmp_path):
    if not shutil.which("wat2wasm"):
        pytest.skip("needs wat2wasm: apt install wabt, or npm install wabt")
    pages = ROOT / "pages"
    subprocess.run(
        ["wat2wasm", pages / "multiply.wat", "--output", tmp_path / "multiply.wasm"], check=True
    )
    assert (tmp_path / "multiply.wasm").read_bytes() == (pages / "multiply.wasm").read_bytes()


def test_a_branch_reads_as_if_for_the_first_time(storyteller):
    model = random_model(vocab_size=300)
    call = storyteller(model, cut(count_tokens(TEXT), 300))
    first, second = list(range(20)), [*range(10), 200, *range(11, 15)]
    found = [
        call("likeliest", ids, len(ids), 9) for ids in (first, second, second[:10], [7], second)
    ]
    assert found[1] == found[4] != found[0]
    fresh = storyteller(model, cut(count_tokens(TEXT), 300))
    assert fresh("likeliest", second, len(second), 9) == found[1]


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_draws_follow_the_distribution(storyteller, chromium, temperature):
    model, n = random_model(vocab_size=300), 400
    storyteller(model, cut(count_tokens(TEXT), 300))
    with torch.inference_mode():
        shares = (rounded(model)(torch.tensor([[1, 2, 3]]))[0][0, -1] / temperature).softmax(-1)
    counts = torch.bincount(
        torch.tensor(chromium.run(f"{DRAW}({temperature}, {n})")), minlength=300
    )
    assert (counts - n * shares).abs().max() <= 2


# ---- What the page refuses ----
@pytest.mark.parametrize("fault", ["width", "nan", "size", "class", "setting"])
def test_models_that_the_page_cannot_hold_are_refused(fault, monkeypatch):
    model = random_model(n_embd=36 if fault == "width" else 32)
    if fault == "nan":
        model.ln_f.weight.data[3] = torch.nan
    if fault == "size":
        monkeypatch.setattr("nanostories.pages.story_page.LARGEST", 1000)
    if fault == "class":
        model = torch.nn.Linear(2, 2)
    if fault == "setting":
        monkeypatch.setattr("nanostories.pages.story_page.CONFIG", {"vocab_size"})
    with pytest.raises(ValueError, match="a model: "):
        story_page("a model", LocalBackend(model, cut(count_tokens(TEXT), 257), []))
