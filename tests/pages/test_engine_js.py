"""nanostories/pages/engine.js and story_page.py: in the Node of playwright's package, against
Python with the same rounded weights."""

import json
import random
import re
import subprocess

import numpy as np
import pytest
import scipy.stats
import torch
import wasmtime
from conftest import page_data
from playwright._impl._driver import compute_driver_executable
from random_models import random_model
from story_pages import page_of
from tokenizer_texts import SCRIPTS, TEXT, count_tokens, random_text

from nanostories.cli import UserError
from nanostories.corpus.tokenizer import cut, gpt2, learn_bpe
from nanostories.generation.backends import LocalBackend
from nanostories.interpretation.ablation import without
from nanostories.interpretation.hooks import run_with_cache
from nanostories.pages.html import TEMPLATES
from nanostories.pages.lessons import inspect
from nanostories.pages.story_page import head_means, int8_rows, own_stories, pack

SHAPES = {
    "GPT-Neo": {},
    "GPT-2": {"scale_attention": True, "qkv_bias": True, "window_size": 48},
}
NODE = """
const vm = require("vm");
const { source, engine, weights, script, input } = JSON.parse(require("fs").readFileSync(0));
vm.runInThisContext(source);
vm.runInThisContext("CALLS").load(engine, weights);
const output = vm.runInThisContext(`(${script})`)(input);
console.log(JSON.stringify(output));
"""


def rounded(model):
    """As the page has it."""
    return pack(model)[2]


def run_in_node(page: bytes, script: str, input=None, has_webassembly: bool = True):
    """The value of a function in JavaScript, called beside the page's engine with its weights."""
    engine = page_data(page)["engine"]
    if not has_webassembly:
        engine["kernel"] = ""
    job = {"engine": engine, "script": script, "input": input}
    job["source"] = (TEMPLATES / "engine.js").read_text()
    job["weights"] = re.search('id="weights">(.*?)</script>', page.decode())[1]
    node, _ = compute_driver_executable()
    return json.loads(subprocess.check_output([node, "-e", NODE], input=json.dumps(job), text=True))


def test_the_binary_is_that_of_its_source():
    assembled = bytes(wasmtime.wat2wasm((TEMPLATES / "multiply.wat").read_text()))
    binary = (TEMPLATES / "multiply.wasm").read_bytes()
    names = assembled.removeprefix(binary)  # of locals, for debuggers: section 0
    assert names != assembled and names[0] == 0


# ---- The tokenizer ----

LANGUAGES = """Der Bär aß süße Brötchen.|Жила-была лиса в лесу.|Μια φορά κι έναν καιρό|昔々、あるところに狐がいました。
옛날 옛적에 여우가|كان يا ما كان ثعلب صغير|היה היה שועל קטן|एक बार की बात है|นานมาแล้วมีจิ้งจอก
Il était une fois l’été|ⅷ ½ ³ ٣ ௧|don't I'll we've IT'S 's|a\u00a0b\u2003c\u3000 d|\x85\x1c\x1f \ufeff\u200b\u180e x
👩\u200d👧🐉🇩🇪|e\u0301\u0323|Ǆ ǅ ª º|</script><!-- <b>&amp;|  \n\n \t x  |_-- !?… (1,234.5)|aaaaaaaaaaaaaaaaaaaaaaaaa"""  # noqa: E501


ENCODE = """([vocabulary, texts]) => {
  const tokenizer = new Tokenizer(vocabulary);
  return texts.map((text) => {
    const ids = tokenizer.encode(text);
    return [ids, ids.flatMap((id) => [...tokenizer.bytes(id)])];
  });
}"""


def test_text_of_any_language_has_the_ids_of_python():
    """With GPT-2's vocabulary, a cut one and a learned one."""
    rng = random.Random(0)
    texts = [*re.split(r"[|\n]", LANGUAGES), LANGUAGES, TEXT]
    texts += [random_text(rng) for _ in range(300)]
    learned = learn_bpe([*LANGUAGES.split("\n"), *SCRIPTS], 700)
    for tokenizer in (gpt2(), cut(count_tokens(TEXT), 300), learned):
        vocab_size = tokenizer.vocab_size
        model = random_model(vocab_size=vocab_size, n_embd=16, n_head=1, n_layer=1, block_size=4)
        page = page_of(model, tokenizer)
        found = run_in_node(page, ENCODE, [page_data(page)["vocabulary"], texts])
        for text, (ids, own_bytes) in zip(texts, found, strict=True):
            assert ids == tokenizer.encode(text), repr(text)
            assert bytes(own_bytes).decode() == text


# ---- The model ----

GREEDY = """([prompts, off]) => {
  for (const ids of prompts) {
    while (ids.length < 48) ids.push(CALLS.next(ids, { temperature: 0, off }));
  }
  const hasKernel = model.memory.kernel !== undefined;
  const found = CALLS.inspect(prompts[19], 30, off);
  found.attention = found.attention.map((heads) => heads.map((row) => [...row]));
  return [prompts, found, CALLS.shares(prompts[19], off), hasKernel];
}"""


def test_weights_are_rounded_to_the_nearest():
    weight = random_model().wte.weight
    rows, scale = int8_rows(weight)
    assert (rows.abs().amax(1) == 127).all()
    scale = scale[:, None]
    assert ((rows * scale - weight).abs() <= 0.5001 * scale).all()


@torch.no_grad()
@pytest.mark.parametrize("off", [[], ["0.1", "1.0", "1.3"]])
@pytest.mark.parametrize("has_webassembly", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_what_it_computes_is_what_python_computes(shape, has_webassembly, off):
    """Greedy text after 20 prompts, to the end of the context; in one of them, lens and attention
    of a token, and all shares. 301: arrays are padded."""
    model = random_model(vocab_size=301, block_size=48, **SHAPES[shape])
    page = page_of(model)
    prompts = torch.randint(300, (20, 5)).tolist()
    told, found, shares, has_kernel = run_in_node(page, GREEDY, [prompts, off], has_webassembly)
    assert has_kernel == has_webassembly
    model = rounded(model)
    means = torch.tensor(page_data(page)["engine"]["means"]).unflatten(1, (4, 8))
    patches = {}  # 0.1, 1.0 and 1.3 replaced by their means
    for layer, heads in enumerate([[1], [0, 3]] if off else []):
        patches[f"blocks.{layer}.z"] = without(heads, means[layer])
    logits, _ = run_with_cache(model, torch.tensor(told), patches)  # (20, 48, 301)
    for prompt, ids, greedy in zip(prompts, told, logits.argmax(-1).tolist(), strict=True):
        assert ids == prompt + greedy[4:-1]

    ids = told[19]
    expected = logits[19].softmax(-1)
    assert shares == pytest.approx(expected[range(47), ids[1:]].tolist(), rel=1e-4)
    lens, attention = inspect(model, means, ids[:30], off)
    for of_layer, said in zip(lens, found["layers"], strict=True):
        top = of_layer.topk(10)
        assert [token["id"] for token in said["top"]] == top.indices.tolist()
        top_shares = [token["share"] for token in said["top"]]
        assert top_shares == pytest.approx(top.values.tolist(), rel=1e-4)
        assert said["share"] == pytest.approx(of_layer[ids[30]].item(), rel=1e-4)
        assert said["rank"] == 1 + (of_layer > of_layer[ids[30]]).sum()
    shown = torch.tensor(found["attention"])
    torch.testing.assert_close(shown, attention, atol=1e-5, rtol=1e-4)
    assert found["share"] == found["layers"][-1]["share"] == shares[29]


def test_means_are_those_of_the_models_own_stories():
    model = rounded(random_model(vocab_size=300))
    backend = LocalBackend(model, cut(count_tokens(TEXT), 300), [5])
    stories = own_stories(backend, ["Once upon a time", "One day"])
    begun = backend.encode("One day")
    assert stories[3][: len(begun)] == begun and stories[1] != stories[3]
    z = [run_with_cache(model, torch.tensor([ids]))[1]["blocks.2.z"][0] for ids in stories]
    torch.testing.assert_close(head_means(model, stories)[2], torch.cat(z).mean(0))


def test_a_branch_reads_as_if_for_the_first_time():
    page = page_of(random_model(vocab_size=300))
    first = list(range(20))
    second = [*range(10), 200, *range(11, 15)]
    script = "(texts) => texts.map((ids) => CALLS.inspect(ids, ids.length).layers)"
    found = run_in_node(page, script, [first, second, second[:10], [7], second])
    fresh = run_in_node(page, script, [second])
    assert found[1] == found[4] == fresh[0] != found[0]


@torch.no_grad()
def test_draws_follow_the_distribution():
    model = random_model(vocab_size=300)
    script = """() => {
      CALLS.next([1, 2, 3], { temperature: 0.5, number: 0, given: 0, off: [] });
      return Array.from({ length: 400 }, (_, i) => model.draw(0.5, (i + 0.5) / 400));
    }"""
    drawn = run_in_node(page_of(model), script)
    shares = (rounded(model)(torch.tensor([[1, 2, 3]]))[0][0, -1] / 0.5).softmax(-1)
    counts = torch.bincount(torch.tensor(drawn), minlength=300)
    assert (counts - 400 * shares).abs().max() <= 2


def test_a_number_decides_what_is_drawn():
    """Evenly between 0 and 1 over numbers and positions, and independently from one to the next."""
    script = """() => {
      const numbers = Array.from({ length: 100 }, (_, number) => number);
      return numbers.map((number) => numbers.map((t) => chance(number, t)));
    }"""
    draws = np.array(run_in_node(page_of(random_model(vocab_size=300)), script))
    assert scipy.stats.kstest(draws.ravel(), "uniform").pvalue > 0.01
    for neighbors in (draws[1:] * draws[:-1], draws[:, 1:] * draws[:, :-1]):
        assert abs(neighbors.mean() - 1 / 4) < 0.01


# ---- What the page refuses ----
MODELS = {"width": random_model(n_embd=36), "weights": random_model()}
MODELS["weights"].ln_f.weight.data[3] = torch.nan
with torch.device("meta"):  # without memory
    MODELS["size"] = random_model(vocab_size=50257, n_embd=2048)


@pytest.mark.parametrize("fault", MODELS)
def test_models_that_the_page_cannot_hold_are_refused(fault):
    with pytest.raises(UserError, match="a model: "):
        page_of(MODELS[fault], gpt2())
