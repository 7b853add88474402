"""story.html as its readers meet it: in a browser without a network, by mouse and keyboard; and what may not happen."""

import json
import re

import pytest
from random_models import random_model
from test_engine_js import READY, write_page
from tokenizer_texts import TEXT, count_tokens

from corpus import instruct_headers
from corpus.tokenizer import Tokenizer, cut, gpt2, gpt2_ranks, merged_from

HOSTILE = '<img src=x onerror="document.title = 1"></script><script>document.title = 2</script>'
TEXT_OF = "document.getElementById('{}').textContent"


@pytest.fixture(scope="module")
def tokenizer():
    """A cut that spells "</script>" with tokens of its own, as a vocabulary learned from web pages would."""
    ranks = gpt2_ranks()
    kept = {bytes([byte]) for byte in range(256)} | {b"</", b"script", b"<!--", b"--", b"![", b"!--"} & ranks.keys()
    frontier = list(kept)
    while frontier:
        parts = merged_from(frontier.pop(), ranks)
        frontier += set(parts) - kept
        kept |= set(parts)
    return Tokenizer(sorted(ranks[token] for token in kept))


@pytest.fixture
def page(chromium, tmp_path, tokenizer):
    """A storyteller of 48 tokens, ready; what its console says fails the test."""
    model = random_model(vocab_size=tokenizer.vocab_size, block_size=48)
    chromium.open(write_page(tmp_path / "story.html", model, tokenizer, prefix=[tokenizer.end_of_text]))
    chromium.wait_for(READY)
    yield chromium
    assert chromium.messages == []


def test_a_story_is_told_looked_into_and_told_otherwise(page):
    page.run("$('beginning').value = 'Once upon a time'; tell()")
    told = page.run("tale.ids")
    assert page.run(TEXT_OF.format("story")).startswith("Once upon a time") and len(told) == 48
    assert re.search(r"remembers no more than 48 tokens. \d+ tokens, \d+ a second", page.run(TEXT_OF.format("status")))
    page.run("document.querySelector('#story [data-i=\"20\"]').click()")
    page.wait_for("document.querySelectorAll('#likeliest button').length === 10")
    shares = page.run("[...document.querySelectorAll('#likeliest .quiet')].map((each) => parseFloat(each.textContent))")
    assert shares == sorted(shares, reverse=True)
    chosen = page.run("ask('likeliest', tale.ids, 20, 10)")[7]["id"]
    page.run("document.querySelectorAll('#likeliest button')[7].click()")
    page.wait_for("tales.length === 2 && $('stop').disabled")
    assert page.run("tale.ids")[:21] == [*told[:20], chosen] and page.run("tales[0].ids") == told
    page.run("document.querySelectorAll('#branches button')[0].click()")
    assert page.run("tale.ids") == told == page.run("Array.from(tales[0].ids)")
    page.run("$('seed').value = 5; $('beginning').value = ''; tell()")
    again = page.run("tale.ids")
    page.run("tell()")
    assert page.run("tale.ids") == again != told


def test_a_pasted_text_is_tinted_by_its_surprise_and_by_attention(page):
    page.run("$('beginning').value = 'A fox and a frog. 🐸'; check()")
    losses = page.run("tale.losses")
    assert losses[0] is None and page.run(TEXT_OF.format("story")) == "A fox and a frog. 🐸"
    tints = page.run(
        "[...$('story').children].map((each) => Number(each.style.background.split(', ').at(-1).slice(0, -1)))"
    )
    expected = [min(1, loss / 8) * 0.6 for loss in losses[1:]]
    assert tints[1:] == pytest.approx(expected, abs=0.01) and page.run("$('coloring').value") == "surprise"
    nats = sum(losses[1:])
    assert f"Loss of this text: {nats / len(losses[1:]):.3f} nats per token" in page.run(TEXT_OF.format("legend"))
    page.run("$('coloring').value = 'attention'; $('coloring').onchange(); $('layer').value = 2; $('head').value = 1")
    page.run("point(9)")
    attention = page.run("ask('attention', tale.ids, 2, 1, 9)")
    tints = page.run(
        "[...$('story').children].map((each) => Number(each.style.background.split(', ').at(-1).slice(0, -1)) || 0)"
    )
    strongest = max(range(len(attention)), key=attention.__getitem__)
    assert attention[strongest] > 0 and tints[strongest] == max(tints) and max(tints[10:]) == 0


def test_the_keyboard_is_enough(page):
    page.run("$('beginning').value = 'Once upon'; $('tell').focus()")
    page.press("Enter", "\r")
    page.wait_for("tale.ids.length === 48 && $('stop').disabled")
    page.run("$('story').focus()")
    for key in ("ArrowRight", "ArrowRight", "ArrowRight", "ArrowLeft", "Enter"):
        page.press(key, "\r" if key == "Enter" else "")
    page.wait_for("document.querySelectorAll('#likeliest button').length === 10")
    assert page.run("chosen") == page.run("cursor") == 1 and "% likely" in page.run(TEXT_OF.format("pointed"))
    nameless = "(each) => !(each.labels?.length || each.textContent.trim() || each.ariaLabel)"
    controls = page.run(f"[...document.querySelectorAll('input, select, textarea, button')].filter({nameless}).length")
    assert controls == 0  # a screen reader has something to say of each


def test_what_cannot_be_is_a_sentence_and_what_was_typed_stays(page):
    for action, typed, sentence in (
        ("tell", "word " * 60, r"This beginning has \d+ tokens, but the model remembers only 48: shorten it to 47."),
        ("check", "  \n ", "Type or paste a text first."),
        ("check", "frog " * 60, r"Your text has \d+ tokens; the model remembers 48, so only its beginning is tinted."),
        ("check", "🐸🐲👩‍👧", r"Read: \d+ tokens."),
        ("tell", "🐸🐲", "The page is full: this model remembers no more than 48 tokens."),
        ("tell", "", "The page is full: this model remembers no more than 48 tokens."),
    ):
        page.run(f"$('beginning').value = {json.dumps(typed)}; {action}()")
        assert re.match(sentence, page.run(TEXT_OF.format("status"))), typed
        assert page.run("$('beginning').value") == typed and not page.run("$('tell').disabled")


def test_stopped_in_the_middle(page):
    page.run(
        "append = ((append) => (...args) => { append(...args); if (tale.ids.length > 10) $('stop').click(); })(append)"
    )
    page.run("$('beginning').value = ''; tell()")
    length = page.run("tale.ids.length")
    assert 10 < length < 48 and page.run(TEXT_OF.format("status")).startswith("Stopped.")
    assert page.run("tale.ids.length") == length and not page.run("$('tell').disabled")


@pytest.mark.parametrize("missing, sentence", [("Worker", "no web workers"), ("WebAssembly", "Ready.")])
def test_in_a_browser_without(missing, sentence, chromium, tmp_path, tokenizer):
    """Without workers it says so; without WebAssembly JavaScript multiplies, to the same numbers."""
    model = random_model(vocab_size=tokenizer.vocab_size)
    content = write_page(tmp_path / "a.html", model, tokenizer).read_text()
    path = tmp_path / "old.html"
    if missing == "Worker":
        script = chromium.call("Page.addScriptToEvaluateOnNewDocument", source="delete window.Worker")["identifier"]
    path.write_text(re.sub(r'"kernels":"[^"]*"', '"kernels":""', content) if missing == "WebAssembly" else content)
    chromium.open(path)
    chromium.wait_for(READY)
    assert sentence in chromium.run(TEXT_OF.format("status"))
    if missing == "Worker":
        chromium.call("Page.removeScriptToEvaluateOnNewDocument", identifier=script)
        return
    assert chromium.run("arithmetic") == "JavaScript"
    slow = chromium.run("ask('read', [1, 2, 3, 4])")
    chromium.open(tmp_path / "a.html")
    chromium.wait_for(READY)
    assert chromium.run("arithmetic") == "WebAssembly"
    assert chromium.run("ask('read', [1, 2, 3, 4])")[1:] == pytest.approx(slow[1:], abs=1e-4)


# ---- Untrusted text, and the policy ----


def test_names_tokens_and_prompts_are_never_markup(chromium, tmp_path, tokenizer):
    assert {"</", "script"} <= {token.decode(errors="replace") for token in tokenizer.ranks}
    model = random_model(vocab_size=tokenizer.vocab_size, block_size=48)
    path = write_page(tmp_path / "story.html", model, tokenizer, [tokenizer.end_of_text], name=f"hf:{HOSTILE}")
    chromium.open(path)
    chromium.wait_for(READY)
    scripts = chromium.run("document.scripts.length")
    for action in ("tell", "check"):
        chromium.run(f"$('beginning').value = {json.dumps(HOSTILE)}.slice(0, 30); {action}()")
    chromium.run("look(9)")
    chromium.wait_for("document.querySelectorAll('#likeliest button').length === 10")
    assert chromium.run("document.title") == f"{HOSTILE} tells stories"
    assert chromium.run("document.querySelectorAll('img, b').length") == 0 and HOSTILE in chromium.run(
        TEXT_OF.format("facts")
    )
    assert chromium.run("document.scripts.length") == scripts == 3  # data, engine, page: the weights are gone
    assert chromium.messages == []


def test_stopped_before_and_while_it_is_read(page):
    page.run("$('beginning').value = 'frog '.repeat(9); const told = tell(); $('stop').click(); told")
    assert page.run("tales.length") == 0 and page.run(TEXT_OF.format("status")).startswith("Stopped.")
    page.run("""globalThis.plain = ask; ask = (call, ids, ...others) => {
        if (call === "read" && ids.length === 16) { ask = plain; $("stop").click(); }
        return plain(call, ids, ...others);
    }; $('beginning').value = 'frog '.repeat(20); check()""")
    assert page.run("tales.length") == 1 and page.run("tale.losses") == []
    page.run("attention = [1]; look(3)")
    assert page.run("tale.losses") == page.run("ask('read', tale.ids)") and "NaN" not in page.run("$('word').innerHTML")
    share = page.run("percent(Math.exp(-tale.losses[3]))")
    assert f"({share})" in page.run(TEXT_OF.format("word")) and page.run("$('story').children[3].style.background")
    page.run("showTale()")
    assert page.run("attention") == []


def test_figures_are_of_what_they_count(page):
    page.run("tale = {ids: [1, 2, 3], losses: [null, 1, 2], pieces: ['abc', 'de', 'f']}; showLegend('surprise')")
    assert "1.500 nats per token, 1.443 bits per byte" in page.run(TEXT_OF.format("legend"))
    page.run("tale = {ids: Array(48).fill(1), losses: [], pieces: [], ending: 'The end.'}; goOn()")  # nothing is added
    assert page.run(TEXT_OF.format("status")) == "The end." and page.run("speed") == 0


def test_a_worker_that_dies_is_a_sentence(page):
    page.run("ask = () => new Promise((_, reject) => waiting.set(-1, { reject })); const told = guarded(tell)")
    page.run("worker.onerror(); told")
    assert page.run(TEXT_OF.format("status")) == "That did not work in this browser: its worker failed"
    assert not page.run("$('tell').disabled") and page.run("waiting.size") == 0


def test_the_policy_lets_nothing_in_and_nothing_out(page):
    """Scripts, styles, pictures, requests, frames, forms, from the page and from its worker."""
    violations = page.run("""new Promise((resolve) => {
        const seen = [];
        document.addEventListener("securitypolicyviolation", (event) => seen.push(event.effectiveDirective));
        for (const [tag, set] of [
          ["script", { textContent: "document.title = 3" }], ["style", { textContent: "body { color: red }" }],
          ["img", { src: "https://example.org/a.png" }], ["iframe", { src: "https://example.org/" }],
        ]) {
          document.body.append(Object.assign(document.createElement(tag), set));
        }
        const form = Object.assign(document.createElement("form"), { action: "https://example.org/" });
        document.body.append(form);
        form.submit();
        fetch("https://example.org/").catch(() => {});
        const code = `
          addEventListener("securitypolicyviolation", (event) => postMessage("worker: " + event.effectiveDirective));
          fetch("https://example.org/").catch(() => {});`;
        new Worker(URL.createObjectURL(new Blob([code]))).onmessage = ({ data }) => seen.push(data);
        setTimeout(() => resolve([seen, document.title]), 500);
    })""")
    directives = {"script-src-elem", "img-src", "frame-src", "style-src-elem", "connect-src", "form-action"}
    assert set(violations[0]) >= directives | {"worker: connect-src"}
    assert violations[1] == "a model tells stories" and page.messages
    page.messages.clear()


# ---- Models trained under headers ----


def test_a_header_is_asked_for_as_python_writes_it(chromium, tmp_path):
    tokenizer = cut(count_tokens(TEXT), 300)
    path = write_page(tmp_path / "story.html", random_model(vocab_size=300), tokenizer)
    path.write_text(path.read_text().replace('"has_headers":false', '"has_headers":true'))
    chromium.open(path)
    chromium.wait_for(READY)
    chromium.run("""$("field-words").value = " jump,frog ,, red"; $("field-summary").value = "A frog  jumps.\\t";
        for (const name of ["Dialogue", "BadEnding"]) document.querySelector(`[value=${name}]`).click();
        $("field-sentence").value = "It was cold."; $("beginning").value = "One day "; """)
    fields = dict(
        words="jump, frog, red", features="Dialogue, BadEnding", summary="A frog jumps.", sentence="It was cold."
    )
    assert chromium.run("given()") == f"{instruct_headers.write(fields)}\n\nOne day"
    chromium.run("$('beginning').value = ''")
    assert chromium.run("given()") == instruct_headers.write(fields) and chromium.messages == []


# ---- Size, width ----


def test_a_page_is_small(tmp_path):
    """1.5 bytes a parameter and 120 kB, for the narrowest of the published shapes and GPT-2's vocabulary."""
    model = random_model(vocab_size=50257, block_size=2048, n_embd=64, n_layer=8, n_head=16, window_size=256)
    size = write_page(tmp_path / "a.html", model, gpt2(), dtype="int8").stat().st_size
    assert size <= 1.5 * model.num_params() + 120_000


@pytest.mark.parametrize("width", [360, 1400])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_fits_the_screen(chromium, tmp_path, tokenizer, width, dark):
    model = random_model(vocab_size=tokenizer.vocab_size)
    chromium.open(write_page(tmp_path / "a.html", model, tokenizer, name=f"hf:{'long' * 30}"), width, 800, dark)
    chromium.wait_for(READY)
    chromium.run(f"$('beginning').value = '{'longword' * 3}'; check()")
    chromium.run("for (const each of document.querySelectorAll('details')) each.open = true; look(3)")
    assert chromium.run("document.documentElement.scrollWidth") <= width
    background = chromium.run("getComputedStyle(document.body).backgroundColor")
    assert (max(map(int, re.findall(r"\d+", background))) < 60) is dark and chromium.messages == []
