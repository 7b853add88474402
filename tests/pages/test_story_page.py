"""story.html as its readers meet it: in a browser without a network, by mouse and keyboard; and
what may not happen."""

import json
import re

import pytest
from random_models import random_model
from test_engine_js import READY, write_page
from tokenizer_texts import TEXT, count_tokens

from nanostories.corpus.tokenizer import cut, learn_bpe

HOSTILE = '<img src=x onerror="document.title = 1"></script><script>document.title = 2</script>'
STATUS, WORD = (f"document.getElementById('{name}').textContent" for name in ("status", "word"))


@pytest.fixture(scope="module")
def tokenizer():
    """One that spells "</script>" and "<!--" with tokens of its own, as learned from web pages."""
    return learn_bpe(["</script", "<!-- -->"] * 2, 300)


@pytest.fixture
def page(chromium, tmp_path, tokenizer):
    """A storyteller of 48 tokens, ready; what its console says fails the test."""
    model = random_model(vocab_size=tokenizer.vocab_size, block_size=48)
    chromium.open(
        write_page(tmp_path / "story.html", model, tokenizer, prefix=[tokenizer.end_of_text])
    )
    chromium.wait_for(READY)
    yield chromium
    assert chromium.messages == []


def test_a_story_is_told_looked_into_and_told_otherwise(page):
    page.run("$('beginning').value = 'Once upon a time'; $('temperature').value = 0; tell()")
    first = page.run("story.ids")
    assert page.run("$('story').textContent").startswith("Once upon a time") and len(first) == 48
    assert re.search(r"\d+ tokens, \d+ a second", page.run(STATUS))
    page.run("document.querySelector('#story [data-i=\"20\"]').click()")
    page.wait_for("document.querySelectorAll('#likeliest button').length === 10")
    found = page.run("ask('likeliest', story.ids, 20, 10)")
    likely = found["tokens"]
    assert found["own"] == likely[0]["share"] and page.run(f"percent({found['own']})") in page.run(
        WORD
    )  # greedy
    page.run("document.querySelectorAll('#likeliest button')[7].click()")
    page.wait_for("earlier.length === 1 && $('stop').disabled")
    assert (
        page.run("story.ids")[:21] == [*first[:20], likely[7]["id"]]
        and page.run("story.ids") != first
    )
    page.run("$('back').click()")
    assert page.run("story.ids") == first and page.run("$('back').disabled")
    page.run("tell()")
    assert page.run("story.ids") == first  # greedy


def test_the_keyboard_is_enough(page):
    page.run(
        "$('beginning').value = 'Once upon a time'; $('temperature').value = 0; $('tell').focus()"
    )
    page.press("Enter")
    page.wait_for("story.ids.length === 48 && $('stop').disabled")
    page.run("$('story').children[0].focus()")
    for key in ("ArrowRight", "ArrowRight", "ArrowRight", "ArrowLeft", "Enter"):
        page.press(key)
    page.wait_for("document.querySelectorAll('#likeliest button').length === 10")
    assert page.run("document.querySelector('.chosen').dataset.i") == "2"
    nameless = "(each) => !(each.labels?.length || each.textContent.trim() || each.ariaLabel)"
    controls = page.run(
        "[...document.querySelectorAll('input, select, textarea,"
        f" button')].filter({nameless}).length"
    )
    assert controls == 0  # a screen reader has a name for each


def test_a_beginning_that_is_too_long_is_named_and_stays(page):
    for typed, sentence in (
        ("word " * 60, r"This beginning has \d+ tokens"),
        ("🐸🐲", "The "),
        ("", "The "),
    ):
        page.run(f"$('beginning').value = {json.dumps(typed)}; tell()")
        assert re.match(sentence, page.run(STATUS)), typed
        assert page.run("$('beginning').value") == typed and not page.run("$('tell').disabled")


def test_stopped_in_the_middle_and_while_it_is_read(page):
    stop = "if (story.ids.length > 10) $('stop').click()"
    page.run(f"append = ((append) => (...args) => {{ append(...args); {stop}; }})(append)")
    page.run("$('beginning').value = 'Once upon a time'; $('temperature').value = 0; tell()")
    length = page.run("story.ids.length")
    assert 10 < length < 48 and page.run(STATUS).startswith("Stopped.")
    page.run(
        "$('beginning').value = 'frog '.repeat(9); { const telling = tell(); $('stop').click();"
        " telling }"
    )
    assert page.run("story.ids.length") == length and page.run(STATUS).startswith("Stopped.")
    assert not page.run("$('tell').disabled")


# ---- Untrusted text, and the policy ----
def test_names_tokens_and_prompts_are_never_markup(chromium, tmp_path, tokenizer):
    assert {"</", "script"} <= {token.decode(errors="replace") for token in tokenizer.ranks}
    model = random_model(vocab_size=tokenizer.vocab_size, block_size=48)
    path = write_page(
        tmp_path / "story.html", model, tokenizer, title=HOSTILE, about=[("model", HOSTILE)]
    )
    chromium.open(path)
    chromium.wait_for(READY)
    scripts = chromium.run("document.scripts.length")
    chromium.run(f"$('beginning').value = {json.dumps(HOSTILE)}.slice(0, 30); tell()")
    chromium.run("look(9)")
    assert chromium.run("document.querySelectorAll('#likeliest button').length") == 10
    assert chromium.run("document.title") == f"{HOSTILE} tells stories"
    assert chromium.run("document.querySelectorAll('img, b').length") == 0
    assert chromium.run("document.querySelector('td:last-child').textContent") == HOSTILE
    assert (
        chromium.run("document.scripts.length") == scripts == 3
    )  # data, engine, page: the weights are gone
    assert chromium.messages == []


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
    })""")  # noqa: E501
    directives = {
        "script-src-elem",
        "img-src",
        "frame-src",
        "style-src-elem",
        "connect-src",
        "form-action",
    }
    assert set(violations[0]) >= directives | {"worker: connect-src"}
    assert violations[1] == "a model tells stories" and page.messages
    page.messages.clear()


# ---- Models trained under headers; screens ----
def test_a_header_is_asked_for_as_python_writes_it(chromium, tmp_path):
    path = write_page(
        tmp_path / "a.html",
        random_model(vocab_size=300),
        cut(count_tokens(TEXT), 300),
        headers=True,
    )
    chromium.open(path)
    chromium.wait_for(READY)
    typed = {
        "Words": " jump,frog ,, red",
        "Features": "Dialogue,BadEnding",
        "Summary": "A frog  jumps.\\t",
    }
    for field, text in (typed | {"Random sentence": "It was cold."}).items():
        chromium.run(f"document.querySelector('[data-field=\"{field}\"]').value = '{text}'")
    header = "Words: jump, frog, red\nFeatures: Dialogue, BadEnding\n"
    header += "Summary: A frog jumps.\nRandom sentence: It was cold.\n"
    assert chromium.run("prompt()") == f"{header}Story:"
    assert (
        chromium.run("$('beginning').value = 'One day '; prompt()") == f"{header}Story:\n\nOne day"
    )
    assert chromium.messages == []


@pytest.mark.parametrize("width", [360, 1400])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_fits_the_screen(chromium, tmp_path, tokenizer, width, dark):
    model = random_model(vocab_size=tokenizer.vocab_size)
    title = "long" * 30
    chromium.open(
        write_page(tmp_path / "a.html", model, tokenizer, title=title, headers=True),
        width,
        800,
        dark,
    )
    chromium.wait_for(READY)
    chromium.run(f"$('beginning').value = '{'longword' * 3}'; tell().then(() => look(3))")
    chromium.run("for (const each of document.querySelectorAll('details')) each.open = true")
    assert chromium.run("document.documentElement.scrollWidth") <= width
    background = chromium.run("getComputedStyle(document.body).backgroundColor")
    assert (max(map(int, re.findall(r"\d+", background))) < 60) is dark and chromium.messages == []
