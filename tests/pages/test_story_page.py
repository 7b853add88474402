"""story.html as its readers meet it: in a browser without a network, by mouse and keyboard; and
what may not happen. What its engine computes: test_engine_js.py."""

import json
import math
import re

import pytest
from random_models import random_model
from story_pages import page_of
from tokenizer_texts import TEXT, count_tokens

from nanostories.corpus.tokenizer import cut, learn_bpe

HOSTILE = '<img src=x onerror="document.title = 1"></script><script>document.title = 2</script>'
READY = "$('status').textContent !== 'Unpacking the model …'"
STATUS = "$('status').textContent"
ASK = "$('beginning').value = 'Once upon a time'; $('temperature').value = 0;"
BOXES = ("story", "other")
ENGLISH = cut(count_tokens(TEXT), 300)
TEN_WORDS = "document.querySelectorAll('#likeliest button').length === 10"


@pytest.fixture(scope="module")
def tokenizer():
    """One that spells "</script>" and "<!--" with tokens of its own, as learned from web pages."""
    return learn_bpe(["</script", "<!-- -->"] * 2, 300)


@pytest.fixture
def open_page(chromium, tmp_path, tokenizer):
    """open_page() -> the browser, with a storyteller of 48 tokens, ready; what its console says
    fails the test."""

    def opened(name="a model", screen=None, model_tokenizer=tokenizer, **others):
        model = random_model(vocab_size=model_tokenizer.vocab_size, block_size=48)
        path = tmp_path / "story.html"
        path.write_bytes(page_of(model, model_tokenizer, name, **others))
        chromium.open(path, **(screen or {}))
        chromium.wait_for(READY)
        return chromium

    yield opened
    assert chromium.messages == []


def test_a_story_is_told_looked_into_and_told_otherwise(open_page):
    page = open_page()
    page.run(f"{ASK} tell()")
    first = page.run("story.ids")
    assert page.run("$('story').textContent").startswith("Once upon a time") and len(first) == 48
    assert re.search(r"\d+ tokens, \d+ a second", page.run(STATUS))
    page.run("document.querySelector('#story [data-i=\"20\"]').click()")
    page.wait_for(TEN_WORDS)
    found = page.run("ask('inspect', story.ids, 20).then(({ layers }) => layers.at(-1))")
    likely = found["top"]
    share = page.run(f"percent({found['share']})")
    assert page.run("$('word').textContent").endswith(f" {share} here")
    page.run("document.querySelectorAll('#likeliest button')[7].click()")
    page.wait_for("earlier.length === 1 && $('stop').disabled")
    other = page.run("story.ids")
    assert other[:21] == [*first[:20], likely[7]["id"]] and other != first
    page.run("$('back').click()")
    assert page.run("story.ids") == first and page.run("$('back').disabled")
    page.run("branch(story, 2, 99)")  # within the beginning
    assert page.run("document.querySelectorAll('.given').length") == 2


def test_the_keyboard_is_enough(open_page):
    page = open_page()
    page.run(f"{ASK} $('tell').focus()")
    page.press("Enter")
    page.wait_for("story.ids.length === 48 && $('stop').disabled")
    page.run("$('story').children[1].focus()")  # 0 is the end of text, which has no words
    page.press("ArrowRight", "ArrowRight", "ArrowRight", "ArrowLeft", " ")
    page.wait_for(TEN_WORDS)
    assert page.run("document.querySelector('.chosen').dataset.i") == "3"
    page.run("$('tab-next').focus()")
    page.press("ArrowRight", "ArrowRight", "Enter")
    page.wait_for("document.querySelector('.heads')")
    page.press("Tab", "ArrowDown", "ArrowRight", "Enter")
    page.wait_for("document.activeElement.ariaPressed === 'true'")
    page.press("Enter")
    page.wait_for("document.activeElement.className === 'off'")
    assert page.run("[...switchedOff]") == ["1.1"]
    controls = "[...document.querySelectorAll('input, textarea, button, #story [role=button]')]"
    nameless = "(each) => !(each.labels?.length || each.textContent || each.ariaLabel)"
    assert page.run(f"{controls}.length") > 50 and not page.run(f"{controls}.some({nameless})")


def test_a_number_tells_its_story_again(open_page):
    page = open_page()
    page.run("$('temperature').value = 2; tell()")
    told = [page.run("story.ids")]
    number = re.search(r"Story number (\d+)", page.run(STATUS))[1]
    for chosen in (number, ""):
        page.run(f"$('number').value = '{chosen}'; tell()")
        told.append(page.run("story.ids"))
    assert told[0] == told[1] != told[2]


def test_an_emptied_temperature_is_no_temperature(open_page):
    """The browser asks for one; nothing is told at temperature 0."""
    page = open_page()
    page.run("$('temperature').value = ''; $('tell').click()")
    page.run("$('temperature').value = '7'; tell()")
    assert page.run("story.ids") == [] and page.run("$('stop').disabled")
    assert page.run("document.activeElement.id") == "temperature"


def test_a_worker_that_fails_later_or_does_not_start_is_named(open_page):
    page = open_page()
    page.run("worker.postMessage = () => worker.onerror({ message: 'killed' }); guarded(tell)")
    page.wait_for(f"{STATUS}.includes('killed') && !$('tell').disabled")
    page = open_page(screen={"before": "Worker = function () { throw new Error('forbidden'); };"})
    assert "did not start in this browser: forbidden" in page.run(STATUS)


def test_a_beginning_that_is_too_long_is_named_and_stays(open_page):
    page = open_page()
    sentences = {"word " * 60: r"This beginning has \d+ tokens", "🐸🐲": "Story", "": "Story"}
    for typed, sentence in sentences.items():
        page.run(f"$('beginning').value = {json.dumps(typed)}; tell()")
        assert re.match(sentence, page.run(STATUS)), typed
        assert page.run("$('beginning').value") == typed and not page.run("$('tell').disabled")


def test_stopped_in_the_middle_and_at_once(open_page):
    page = open_page()
    stop = "if (story.ids.length > 10) $('stop').click()"
    page.run(f"append = ((append) => (...args) => {{ append(...args); {stop}; }})(append)")
    page.run(f"{ASK} tell()")
    assert 10 < page.run("story.ids.length") < 48 and page.run(STATUS).startswith("Stopped.")
    page.run("$('beginning').value = 'frog '; { const told = tell(); $('stop').click(); told; }")
    assert page.run("story.ids.length === story.given")
    assert page.run(STATUS).startswith("Stopped.")
    assert not page.run("$('tell').disabled")


# ---- The microscope ----
def test_each_view_shows_what_the_engine_finds(open_page):
    page = open_page()
    page.run(f"{ASK} tell().then(() => look(story, 30))")
    found = page.run("ask('inspect', story.ids, 30)")
    shares = page.run("ask('shares', story.ids, [])")
    page.run("openTab('layers')")
    bars = page.run("[...document.querySelectorAll('#panel td.bar')].map((td) => td.textContent)")
    assert bars == [page.run(f"percent({layer['share']})") for layer in found["layers"]]

    page.run("openTab('heads').then(() => pressHead('2.1'))")
    shading = (
        "[...story.box.children].map((word) => Number(word.style.getPropertyValue('--share')))"
    )
    attention = found["attention"][2][1].values()
    pieces = page.run("story.pieces")[:30]  # one without text is no word to look at
    expected = [share if piece else 0 for share, piece in zip(attention, pieces, strict=True)]
    assert page.run(shading)[:30] == pytest.approx(expected, rel=1e-4)
    page.run("pressHead('2.1')")
    without = page.run("ask('inspect', story.ids, 30, ['2.1'])")
    without, intact = (page.run(f"percent({each['share']})") for each in (without, found))
    headline = page.run("$('word').textContent")
    assert f" {without} here ({intact} with all" in headline

    page.run("switchOff([]).then(() => openTab('surprise'))")
    bits = [0, *(-math.log2(share) for share in shares)]
    expected = bits.copy()
    for k in range(1, len(bits) - 1):  # a character's first bytes count with its last one
        if not page.run(f"story.pieces[{k}]"):
            expected[k + 1] += expected[k]
            expected[k] = 0
    expected = [min(1, each / 10) for each in expected]
    assert page.run(shading) == pytest.approx(expected, abs=1e-5)
    n_bytes = len(page.run("story.pieces.slice(1).join('')").encode())
    total = f"{sum(bits) / n_bytes:.2f} bits per byte"
    assert total in page.run("$('panel').textContent")

    page.run("openTab('decided')")
    at = page.run("story.box.children[20].title")
    lens = page.run("ask('inspect', story.ids, 21, [], story.ids[30])")["layers"]
    later = lens[len(lens) // 2 :]
    assert at == f"number {min(layer['rank'] for layer in later)}"


def test_the_dice_that_the_page_shows_drew_the_word(open_page):
    page = open_page()
    page.run(f"{ASK} $('temperature').value = '1'; tell()")
    ids, given, number = page.run("[story.ids, story.given, story.number]")
    i = given + 5
    n_ids = 1 + page.run("data.vocabulary.tokens.length")  # with the end of text
    page.run(f"look(story, {i}).then(() => openTab('next'))")
    thrown = float(re.search(r"dice said ([\d.]+)", page.run("$('panel').textContent"))[1])
    assert thrown == pytest.approx(page.run(f"chance({number}, {i - given})"), abs=1e-3)
    top = page.run(f"ask('inspect', story.ids, {i}, [], 0, {n_ids})")["layers"][-1]["top"]
    share = {token["id"]: token["share"] for token in top}
    before = sum(share[id] for id in range(ids[i]))
    assert before - 1e-3 <= thrown <= before + share[ids[i]] + 1e-3
    page.run(f"branch(story, {i}, {ids[i]})")  # the reader's choice, and what went before
    for k, said in ((i, "chosen by you"), (i + 1, "dice said"), (1, "in the beginning")):
        page.run(f"look(story, {k})")
        assert said in page.run("$('panel').textContent")
    assert "changed" in page.run("nameOf(story)")
    page.run(f"branch(story, {i}, data.end_of_text)")
    assert ": the end." in page.run(STATUS) and page.run("story.ids.length") == i


def test_story_b_is_told_with_the_same_dice_and_parts_at_the_change(open_page):
    """The first different word is marked, with its chances; B is without A's heads, or without
    others."""
    page = open_page(model_tokenizer=ENGLISH)
    page.run("$('beginning').value = 'Tom saw Tom'; $('number').value = 7; tell()")
    page.run("openTab('compare').then(() => tellOther({}))")
    assert "the same story." in page.run("$('panel').textContent")
    page.run("look(story, 30).then(() => tellOther({ temperature: 5 }))")
    a, b = page.run("[story.ids, other.ids]")
    k = next(k for k in range(48) if a[k] != b[k])
    marked = page.run("[...document.querySelectorAll('.differs')].map((word) => word.dataset.i)")
    assert k >= 30 and marked == [str(k), str(k)]
    page.run("tellOther({ off: ['0.0', '1.2'] })")
    assert page.run("other.off") == ["0.0", "1.2"] and page.run("other.ids")[:30] == a[:30]
    page.run("story.off = ['0.1']; tellOther({ temperature: 2 })")
    assert page.run("other.off") == ["0.1"]
    page.run("look(other, 12).then(() => branch(other, 12))")
    assert page.run("story.ids")[:12] == a[:12] and not page.run("other")


def test_story_b_with_another_name(open_page):
    """Of more tokens, not within words; a name that does not fit is refused in a sentence."""
    page = open_page(model_tokenizer=ENGLISH)
    page.run("$('beginning').value = 'Tom saw Tomorrow with Tom'; $('number').value = 7; tell()")
    page.run("story.ids.splice(28); story.pieces.splice(28)")  # so that B can be as long
    page.run("openTab('compare').then(() => tellOther({}, ['Tom', 'Bartholomew']))")
    before = page.run("other.pieces.slice(0, other.given).join('')")
    assert before == "Bartholomew saw Tomorrow with Bartholomew"
    page.run("other.ids.splice(other.given, 100, ...story.ids.slice(story.given)); showView()")
    page.wait_for("$('panel').textContent.startsWith('Both tell')")
    page.run("other.ids[other.given + 5] = 9; other.pieces[other.given + 5] = 'x'; showView()")
    page.wait_for("document.querySelectorAll('.differs').length === 2")
    places = [page.run(f"Number($('{box}').querySelector('.differs').dataset.i)") for box in BOXES]
    assert places == page.run("[story.given + 5, other.given + 5]")
    share = page.run("ask('inspect', other.ids, other.given + 5, [], 9).then((it) => it.share)")
    cells = "[...document.querySelectorAll('#panel td')].map((cell) => cell.textContent)"
    assert page.run(cells)[3] == page.run(f"percent({share})")
    page.run("look(other, 3).then(() => tellOther({}))")  # B is told again: its word is gone
    assert page.run("looking") is None
    for names, said in (
        (["Nobody", "Tom"], "Type two names"),
        (["Tom", ""], "Type two names"),
        (["Tom", "Bartholomew" * 60], "longer than the model can read"),
    ):
        page.run(f"tellOther({{}}, {json.dumps(names)})")
        assert said in page.run(STATUS)
    assert page.run("ask('inspect', story.ids, 3)")["share"] > 0
    page.run("Promise.all([tell(), tellOther({}, ['Nobody', 'Tom'])])")  # while A is being told
    assert "Type two names" in page.run(STATUS)


# ---- Untrusted text, and the policy ----
def test_names_tokens_and_prompts_are_never_markup(open_page, tokenizer):
    assert {"</", "script"} <= {token.decode(errors="replace") for token in tokenizer.ranks}
    page = open_page(
        HOSTILE,
        introduction=HOSTILE,
        facts={HOSTILE: HOSTILE},
        openings=[HOSTILE],
        language=HOSTILE,
    )
    scripts = page.run("document.scripts.length")
    page.run(f"$('beginning').value = {json.dumps(HOSTILE)}.slice(0, 30); tell()")
    page.run("look(story, 9)")
    assert page.run(TEN_WORDS) and page.run("document.title") == f"{HOSTILE} tells stories"
    assert page.run("document.querySelectorAll('img, main script').length") == 0
    assert page.run("document.querySelector('#about td').textContent") == HOSTILE
    assert page.run("document.scripts.length") == scripts == 6  # not the weights


def test_the_policy_lets_nothing_in_and_nothing_out(open_page):
    """Scripts, styles, pictures, requests, frames, forms, from the page and from its worker."""
    page = open_page()
    page.run("""(() => {
        globalThis.seen = [];
        const note = (event) => seen.push(event.effectiveDirective);
        document.addEventListener("securitypolicyviolation", note);
        for (const [tag, content] of [
          ["script", { textContent: "document.title = 3" }],
          ["style", { textContent: "body { color: red }" }],
          ["img", { src: "https://example.org/a.png" }],
          ["iframe", { src: "https://example.org/" }],
        ]) {
          document.body.append(Object.assign(document.createElement(tag), content));
        }
        const form = document.createElement("form");
        form.action = "https://example.org/";
        document.body.append(form);
        form.submit();
        fetch("https://example.org/").catch(() => {});
        const code = `
          const note = (event) => postMessage("worker: " + event.effectiveDirective);
          addEventListener("securitypolicyviolation", note);
          fetch("https://example.org/").catch(() => {});`;
        const other = new Worker(URL.createObjectURL(new Blob([code])));
        other.onmessage = ({ data }) => seen.push(data);
    })()""")
    forbidden = "script-src-elem style-src-elem img-src frame-src connect-src form-action".split()
    for violation in (*forbidden, "worker: connect-src"):
        page.wait_for(f"seen.includes('{violation}')")
    assert page.run("document.title") == "a model tells stories" and page.messages
    page.messages.clear()


# ---- Models trained under headers; screens ----
def test_a_header_is_asked_for_as_python_writes_it(open_page):
    page = open_page(model_tokenizer=ENGLISH, has_headers=True)
    for field, text in {
        "Words": " jump,frog ,, red",
        "Features": "Dialogue,BadEnding",
        "Summary": "A frog  jumps.\\t",
        "Random sentence": "It was cold.",
    }.items():
        page.run(f"document.querySelector('[data-field=\"{field}\"]').value = '{text}'")
    header = "Words: jump, frog, red\nFeatures: Dialogue, BadEnding\n"
    header += "Summary: A frog jumps.\nRandom sentence: It was cold.\n"
    assert page.run("promptText()") == f"{header}Story:"
    page.run("$('beginning').value = 'One day '")
    assert page.run("promptText()") == f"{header}Story:\n\nOne day"


@pytest.mark.parametrize("width, dark", [(360, True), (1400, False)])
def test_it_fits_the_screen(open_page, width, dark):
    screen = {"width": width, "dark": dark}
    page = open_page("long" * 30, has_headers=True, language="hi", screen=screen)
    page.run("$('beginning').value = 'longword'.repeat(3); tell().then(() => look(story, 3))")
    page.run("for (const each of document.querySelectorAll('details')) each.open = true")
    page.check_screen()
    assert page.run("$('story').lang") == "hi" and page.run("document.documentElement.lang") == "en"
