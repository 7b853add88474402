"""interpret.py: its files, its command line, and its pages in a browser."""

import base64
import json

import numpy as np
import pytest
from conftest import page_data, settings

import interpret
from model import GPTNeo, GPTNeoConfig
from nanostories.checkpoints.checkpoint import load_run
from nanostories.checkpoints.huggingface import save_hf
from nanostories.corpus.tokenizer import GPT2_VOCAB_SIZE, cut
from nanostories.pages import interpretation_pages as pages
from nanostories.tables import read_table, write_table
from nanostories.training.config import TrainConfig
from prepare import Options, prepare
from train import train

MARKUP = "<script>document.title = 'broken'</script> Tom & <b>Mia</b>."


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """out/run of a tiny model, and data/tiny whose stories hold what would be markup."""
    directory = tmp_path_factory.mktemp("interpret")
    rng, names, things = (
        np.random.default_rng(0),
        ["Tom", "Mia", "Ben", "Sue"],
        ["ball", "cat", "kite", "drum", "hat"],
    )
    texts = [
        f"{rng.choice(names)} had a {rng.choice(things)}. Then, {rng.choice(names)} saw it. Number"
        f" {i}."
        for i in range(150)
    ]
    texts[1] = f"{texts[1]} {MARKUP}"
    tiny = directory / "data" / "tiny"
    prepare(tiny, ["made for the tests"], texts[40:], texts[:40], Options(vocab_size=300))
    changes = dict(block_size=64, batch_size=4, grad_accum_steps=1, max_steps=2, eval_interval=2)
    train(TrainConfig(**settings(directory / "data", directory) | changes), resume=False)
    return directory


@pytest.fixture
def interpret_py(command_line, trained):
    return command_line(interpret, trained)


def test_everything_is_written_beside_the_run(interpret_py, trained):
    code, printed = interpret_py("out/run", "--stories", "30", "--ablate", "15")
    out = trained / "out" / "run"
    assert code == 0 and (out / "interpret.md").read_text() in printed.out
    assert "of 4 heads matter" in printed.out and "of 128 neurons" in printed.out
    heads, neurons = read_table(out / "heads.csv"), read_table(out / "neurons.csv")
    assert [(row["layer"], row["head"]) for row in heads] == [
        ("0", "0"),
        ("0", "1"),
        ("1", "0"),
        ("1", "1"),
    ]
    for row in heads:
        assert (
            float(row["loss_increase_low"])
            <= float(row["loss_increase"])
            <= float(row["loss_increase_high"])
        )
        assert 0 <= float(row["copies"]) <= 1 and row["writes"]
    assert len(neurons) == 128 and 20 <= sum(row["loss_increase"] != "" for row in neurons) <= 27
    assert all(row["token_5"] in row["context_5"] for row in neurons)
    text = json.loads((out / "attention.json").read_text())
    assert len(text["heads"]) == 4 and len(text["lens"]) == 3 and text["tokens"][0] == "‹start›"
    assert len(text["attention"]) >= 4 * len(text["tokens"]) ** 2
    assert all((out / name).stat().st_size > 5000 for name in ("interpret.png", "interpret.svg"))
    assert all(
        (out / name).stat().st_size < 2_000_000 for name in ("attention.html", "neurons.html")
    )


def test_what_is_drawn_can_be_chosen(interpret_py, trained):
    args = ("--stories", "30", "--ablate", "10", "--text", "Tom had a ball.", "--out", "chosen")
    assert interpret_py("out/run", *args)[0] == 0
    data = page_data(trained / "chosen" / "attention.html")
    assert "".join(data["tokens"]) == "‹start›Tom had a ball."
    assert len(data["rows"]) == len(data["heads"]) == 4


def test_answers_are_patched(interpret_py, trained):
    texts = "Tom had a cat. Mia saw a cat", "Tom had a hat. Mia saw a hat"
    code, printed = interpret_py("out/run", "--patch", *texts, "--out", "patched")
    out = trained / "patched"
    assert code == 0 and (out / "patching.md").read_text() in printed.out
    assert printed.out.index("its answer") < printed.out.index("brought back")
    assert sorted(path.suffix for path in out.iterdir()) == [".csv", ".md", ".png", ".svg"]
    rows = read_table(out / "patching.csv")
    assert [(row["layer"], row["head"]) for row in rows] == [
        ("0", "0"),
        ("0", "1"),
        ("1", "0"),
        ("1", "1"),
    ]
    code, _ = interpret_py("out/run", "--patch", "Tom ran", "Mia ran off", "--out", "patched")
    assert "--patch" in code


def test_published_models_read_any_corpus(interpret_py, trained):
    model, tokenizer = load_run(trained / "out" / "run")
    save_hf(model, trained / "exported", tokenizer)
    args = ("--stories", "20", "--ablate", "10", "--out")
    assert interpret_py("hf:exported", "--data", "data/tiny", *args, "theirs")[0] == 0
    assert interpret_py("out/run", *args, "ours")[0] == 0
    assert read_table(trained / "theirs" / "heads.csv") == read_table(
        trained / "ours" / "heads.csv"
    )
    # Another vocabulary than the corpus has: the text is the same
    model = GPTNeo(GPTNeoConfig(vocab_size=400, block_size=32, n_layer=1, n_head=2, n_embd=8))
    save_hf(model, trained / "others", cut(np.zeros(GPT2_VOCAB_SIZE), 400))
    assert interpret_py("hf:others", "--data", "data/tiny", *args, "other_vocabulary")[0] == 0


@pytest.mark.parametrize(
    "args, named",
    [(["out/none"], "out/none"), (["api:gpt"], "api:gpt"), (["hf:exported"], "--data")]
    + [(["out/run", "--data", "data/none"], "data/none")]
    + [
        (["out/run", "--stories", "12"], "--stories"),
        (["out/run", "--text", "cat " * 100], "102 tokens"),
    ]
    + [(["out/run", "--out", "data/tiny/meta.json"], "data/tiny/meta.json")],
)
def test_mistakes_get_one_line(interpret_py, args, named):
    code, printed = interpret_py(*args)
    complaint = printed.err.splitlines()[-1] if code == 2 else code
    assert named in complaint and "\n" not in complaint and "Traceback" not in printed.err


# ---- The pages, in a browser ----
@pytest.fixture
def visited(interpret_py, trained):
    """A directory with both pages, attention on a text that holds markup."""
    directory = trained / "pages"
    if not directory.exists():
        flags = ["--stories", "30", "--ablate", "10", "--text", MARKUP, "--out", "pages"]
        assert interpret_py("out/run", *flags)[0] == 0
    return directory


POINT = """(() => {
  spans[6].dispatchEvent(new MouseEvent("mouseover", {bubbles: true}));
  const captions = byId("grid").textContent;
  const averaged = [mean.weight(6, 3), byId("whose").textContent];
  document.querySelector("#head-1-1").click();
  document.querySelectorAll("#heads th button")[3].click();
  return {
    captions, averaged, background: spans[3].style.background,
    text: byId("text").textContent, whose: byId("whose").textContent,
    lens: [...document.querySelectorAll("#lens tr")].map((row) => row.textContent), title: document.title,
    increases: [...document.querySelectorAll("#heads tbody tr")].map((row) => parseFloat(row.cells[3].textContent)),
  };
})()"""  # noqa: E501


def test_pointing_at_a_token_shows_where_each_head_looks(chromium, visited):
    chromium.open(visited / "attention.html")
    seen, data = chromium.run(POINT), page_data(visited / "attention.html")
    assert chromium.messages == []
    assert (
        seen["captions"].count("→") == 4
        and "rgba" in seen["background"]
        and "layer 1, head 1" in seen["whose"]
    )
    maps = (
        np.frombuffer(base64.b64decode(data["attention"]), np.uint8).reshape(
            4, len(data["tokens"]), -1
        )
        / 255
    )
    assert seen["averaged"] == [pytest.approx(maps[:, 6, 3].mean()), "the mean of the heads shown"]
    assert MARKUP in seen["text"] and seen["title"] == "Attention in out/run"
    likeliest = [layer[6][0][0].replace("\n", "↵") for layer in data["lens"]]
    assert all(token in line for token, line in zip(likeliest[::-1], seen["lens"], strict=True))
    assert (
        seen["increases"] == sorted(seen["increases"], reverse=True) and len(seen["increases"]) == 4
    )


BROWSE = """(() => {
  const type = (id, value) => {
    byId(id).value = value;
    byId(id).dispatchEvent(new Event("input"));
    return parseInt(byId("count").textContent);
  };
  const none = type("kind", "nothing strongly"), any = type("kind", "anything"), found = type("search", "%s");
  type("search", "");
  for (let i = 0; i < 9; i++) byId("more").click();
  const shade = document.querySelector(".peak").style.background, cards = document.querySelectorAll(".card").length;
  return { none, any, found, cards, shade, text: byId("cards").textContent, title: document.title };
})()"""  # noqa: E501


def test_neurons_can_be_browsed(chromium, visited):
    neurons = page_data(visited / "neurons.html")["neurons"]
    tokens = [{neuron[f"token_{i}"].strip().lower() for i in range(1, 6)} for neuron in neurons]
    word = max(set.union(*tokens), key=len)
    chromium.open(visited / "neurons.html")
    seen = chromium.run(BROWSE % word)
    assert chromium.messages == []
    assert (
        seen["cards"] == seen["any"] == len(neurons)
        and seen["found"] == sum(word in each for each in tokens) > 0
    )
    assert (
        seen["none"] == sum(neuron["prefers"] == "" for neuron in neurons)
        and "rgba" in seen["shade"]
    )
    assert "<script>" in seen["text"] and seen["title"] == "Neurons of out/run"  # the story's own


@pytest.mark.parametrize("width", [360, 1400])
def test_nothing_is_wider_than_the_screen(chromium, visited, tmp_path, width):
    """Many heads to a layer, and contexts of long words; and the logit lens is not cut off."""
    rows = read_table(visited / "neurons.csv")
    long = dict(
        token_1=" grandmother", context_1=" grandmother" * 12, shades_1="9" * 132 + "P" * 12
    )
    write_table(tmp_path / "neurons.csv", [row | long for row in rows])
    data = json.loads((visited / "attention.json").read_text())
    heads = [
        dict(layer=layer, head=head, role="previous token")
        for layer in range(2)
        for head in range(16)
    ]
    data |= dict(
        tokens=[" grandmother"] * 12, lens=[[[(" grandmother", 0.5)] * 3] * 12] * 3, heads=heads
    )
    (tmp_path / "attention.json").write_text(
        json.dumps(data | dict(attention="A" * (32 * 144 * 4 // 3)))
    )
    (tmp_path / "heads.csv").write_text((visited / "heads.csv").read_text())
    for name, page in dict(attention=pages.attention_page, neurons=pages.neurons_page).items():
        (tmp_path / f"{name}.html").write_bytes(page("a", tmp_path))
        chromium.open(tmp_path / f"{name}.html", width=width)
        assert (
            chromium.messages == []
            and chromium.run("document.documentElement.scrollWidth") <= width
        )
    chromium.open(visited / "attention.html", width=width)
    assert chromium.run("byId('lens').scrollHeight <= byId('lens').clientHeight")
