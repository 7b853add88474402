"""probe.py --loss_by_kind: every token is of one kind, and the parts sum to the whole."""

import numpy as np
import pytest
from random_models import model_to_probe, save_run, trained_on

import probe
from nanostories.corpus.tokenizer import gpt2
from nanostories.interpretation.token_kinds import loss_tables, token_kinds
from nanostories.pages.shaded_stories import FULL_SHADE, shaded_stories
from nanostories.results import load

STORY = 'One day, Tom saw a zebrafish. He said, "Look, Tom\'s zebrafish!" Then Tom\n\nlooked at it.'
EXPECTED = """
One: beginning of a sentence | day: content word, first | ,: punctuation | Tom: name, first
saw: content word, first | a: function word | z: content word, first | ebra: inside of a word
fish: inside of a word | .: punctuation | He: beginning of a sentence
said: content word, first | ,: punctuation | ": quotation mark | Look: beginning of a sentence
,: punctuation | Tom: name, again | 's: function word | z: content word, again
ebra: inside of a word | fish: inside of a word | !": quotation mark
Then: beginning of a sentence | Tom: name, again | : punctuation | : punctuation
look: content word, first | ed: inside of a word
at: function word | it: function word | .: punctuation | : end of the story
"""


def test_kinds_of_a_story_s_tokens():
    tokenizer = gpt2()
    (kinds,) = token_kinds([STORY], tokenizer)
    tokens = [tokenizer.decode([i]).strip() for i in tokenizer.encode(STORY)]
    found = [f"{token}: {kind}" for token, kind in zip([*tokens, ""], kinds, strict=True)]
    assert found == EXPECTED.strip().replace("\n", " | ").split(" | ")


def test_the_bytes_of_a_character_are_of_one_kind():
    tokenizer = gpt2()
    (kinds,) = token_kinds(["Tom sat. “No”"], tokenizer)  # each mark is two tokens
    assert kinds.tolist().count("quotation mark") == 4
    (kinds,) = token_kinds(["कुत्ता दौड़ा।"], tokenizer)
    first, *others = kinds[:-1]
    assert first == "beginning of a sentence"
    assert {"inside of a word", "content word, first"} <= set(others)
    assert others.count("content word, first") == 1


def test_without_english_lists_all_words_are_alike():
    texts = ["Der Hund sah den Mann. Dann lief der Hund weg."]
    kinds = token_kinds(texts, gpt2())
    is_again = kinds[0] == "content word, again"
    by_kind, _ = loss_tables(kinds, {"m": [np.where(is_again, 0.5, 2.0)]})
    assert "do not look English" in by_kind.about
    losses = {row["tokens"]: row["m"][0] for row in by_kind.rows}
    assert losses["content word, again"] == 0.5 and losses["punctuation"] == 2
    assert "function word" not in losses


@pytest.mark.parametrize("name", ["builtin", "builtin-instruct"])
def test_kinds_and_positions_sum_to_the_mean_loss(instruct_data_dir, tmp_path, command_line, name):
    corpus = trained_on(instruct_data_dir, name)
    for name, layers in (("a", 1), ("b", 2)):
        save_run(tmp_path / name, model_to_probe(n_layer=layers), **corpus)
    assert command_line(probe, tmp_path)("a b --loss_by_kind --out .")[0] == 0
    tables = load(tmp_path / "loss_by_kind.json").tables
    assert "Story:" not in (tmp_path / "loss_by_kind.html").read_text()  # of a header
    for table in tables:
        *parts, whole = table.rows
        for column in table.columns[2::2]:
            total = sum(row["share of tokens"] * row[column][0] for row in parts)
            assert total == pytest.approx(whole[column][0], abs=1e-6)
            assert sum(row[f"{column}, share"] for row in parts) == pytest.approx(1)
    losses, _, gains, _ = (table.rows[-1] for table in tables)
    assert gains["a minus b"][0] == pytest.approx(losses["a"][0] - losses["b"][0], abs=1e-9)


SHADES = """[...document.querySelector(".shaded").children].map((token) => {
  const [red, , blue] = getComputedStyle(token).backgroundColor.match(/[\\d.]+/g).map(Number);
  return [token.textContent, Number(token.dataset.shade), blue > red];
})"""


@pytest.mark.parametrize("width, dark", [(360, True), (1400, False)])
def test_tokens_are_shaded_by_the_difference_of_the_losses(width, dark, chromium, tmp_path):
    kinds = token_kinds([STORY] * 7, gpt2())
    gains = np.linspace(-4, 4, len(kinds[0]))
    losses = {"a": [gains + 5] * 7, "<b>": [np.full(len(gains), 5.0)] * 7}
    path = tmp_path / "loss_by_kind.html"
    path.write_bytes(shaded_stories([STORY] * 7, kinds, losses, gpt2()))
    chromium.open(path, width, dark=dark)
    chromium.check_screen()
    texts, shades, are_blue = zip(*chromium.run(SHADES))
    assert "".join(texts) == f"{STORY}‹end›"
    assert shades == pytest.approx(gains / FULL_SHADE, abs=1e-4)
    assert list(are_blue) == (gains > 0).tolist()
    over = "new Event('pointerover', {bubbles: true})"
    chromium.run(f"document.querySelectorAll('.shaded span')[3].dispatchEvent({over})")
    expected = f"Tom · name, first · a {5 + gains[3]:.3f}, <b> 5.000 nats"
    assert chromium.run("document.querySelector('#about').textContent") == expected
