"""interpret.py: its files, its command line, and its pages in a browser."""

import numpy as np
import pytest
from conftest import settings

import interpret
from model import GPTNeo, GPTNeoConfig
from nanostories.checkpoints.huggingface import save_hf
from nanostories.corpus.tokenizer import GPT2_VOCAB_SIZE, cut
from nanostories.results import load, outdated
from nanostories.tables import read_table
from nanostories.training.config import TrainConfig
from prepare import Options, prepare
from train import train

MARKUP = "<script>document.title = 'broken'</script> Tom & <b>Mia</b>."
HEADS = [("0", "0"), ("0", "1"), ("1", "0"), ("1", "1")]
FEW = ("--stories", "50")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """out/run of a tiny model, and data/tiny whose stories hold what would be markup."""
    directory = tmp_path_factory.mktemp("interpret")
    rng = np.random.default_rng(0)
    texts = []
    for i in range(170):
        name, other = rng.choice(["Tom", "Mia", "Ben", "Sue"], 2)
        thing = rng.choice(["ball", "cat", "kite", "drum", "hat"])
        texts.append(f"{name} had a {thing}. Then, {other} saw it. Number {i}.")
    texts[1] += MARKUP
    tiny = directory / "data" / "tiny"
    prepare(tiny, ["made for the tests"], texts[60:], texts[:60], Options(vocab_size=300))
    changes = {"block_size": 64, "batch_size": 4, "max_steps": 2, "eval_interval": 2}
    train(TrainConfig(**settings(directory / "data", directory) | changes), resume=False)
    return directory


@pytest.fixture
def interpret_py(command_line, trained):
    return command_line(interpret, trained)


@pytest.fixture
def visited(interpret_py, trained):
    """The results for a text that holds markup."""
    if not (trained / "results").exists():
        code, _ = interpret_py("out/run", *FEW, "--text", MARKUP, "--out", "results")
        assert code == 0
    return trained / "results"


def test_everything_is_written(visited):
    result = load(visited / "interpret.json")
    assert list(result.sources) == ["../out/run/best.pt"] and not outdated(result, visited)
    tables = {table.facts["kind"]: table.rows for table in result.tables}
    assert list(tables) == ["heads", "roles", "ablation", "neurons"]
    row = tables["heads"][0]
    heads = read_table(visited / "heads.csv")
    assert [(head["layer"], head["head"]) for head in heads] == HEADS
    assert row["run"].endswith("out/run") and row["heads"] == 4
    assert sum(row[role] for role in {head["role"] for head in heads}) == 4
    assert sorted(head["head"] for head in tables["ablation"]) == ["0.0", "0.1", "1.0", "1.1"]
    neurons = read_table(visited / "neurons.csv")
    assert len(neurons) == 128
    for kind in tables["neurons"][:-1]:
        n = sum(neuron["prefers"] == kind["kind"] for neuron in neurons)
        assert kind["neurons"] == n and kind["neurons (%)"] == pytest.approx(n / 1.28)


def test_ctrl_c_while_pictures_are_drawn_is_told_as_it_is(interpret_py, trained, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("nanostories.figures.save_figure", stop)
    code, _ = interpret_py("out/run", *FEW, "--out", "stopped")
    assert (trained / "stopped" / "heads.csv").exists() and "unchanged" not in code


def test_answers_are_patched(interpret_py, trained):
    """In either order: after two steps of training, it may prefer the other's answer."""
    texts = ("Number:1:1", "Number:2:2")
    exchanged = ("Number:1:2", "Number:2:1")
    codes = []
    for pair in (texts, exchanged):
        code, _ = interpret_py("out/run", "--patch", *pair, "--out", "patched")
        codes.append(code)
    assert 0 in codes and any("does not tell" in str(code) for code in codes)
    out = trained / "patched"
    assert sorted(path.suffix for path in out.iterdir()) == [".json", ".png", ".svg"]
    (heads,) = load(out / "patching.json").tables
    assert sorted(row["head"] for row in heads.rows) == ["0.0", "0.1", "1.0", "1.1"]


def test_published_models_read_any_corpus(interpret_py, trained):
    """With another vocabulary than the corpus has: the text is the same."""
    model = GPTNeo(GPTNeoConfig(vocab_size=400, block_size=32, n_layer=1, n_head=2, n_embd=8))
    save_hf(model, trained / "others", cut(np.zeros(GPT2_VOCAB_SIZE), 400))
    args = ("hf:others", *FEW, "--out", "other")
    code, _ = interpret_py(*args)
    assert "--data" in code
    assert interpret_py(*args, "--data", "data/tiny")[0] == 0
    assert load(trained / "other" / "interpret.json").tables[0].rows[0]["heads"] == 2


MISTAKES = [
    (["out/none"], "out/none"),
    (["api:gpt"], "api:gpt"),
    (["out/run", "--data", "data/none"], "data/none"),
    (["out/run", "--stories", "12"], "--stories"),
    (["out/run", "--patch", "cat " * 100, "dog " * 100], "64"),
    (["out/run", "--patch", "Tom ran", "Mia ran off"], "--patch"),
    (["out/run", "--patch", "Tom ran", "Mia ran"], "--patch"),
    (["out/run", "--out", "data/tiny/meta.json"], "data/tiny/meta.json"),
]


@pytest.mark.parametrize("args, named", MISTAKES)
def test_mistakes_get_one_line(interpret_py, args, named):
    code, printed = interpret_py(*args)
    assert named in code and "\n" not in code and "Traceback" not in printed.err


# ---- The page ----
CONTRAST = """(() => {
  const channels = (color) => color.match(/[\\d.]+/g).map(Number);
  const light = (color) => color.slice(0, 3).map((x) => x / 255)
    .map((x) => (x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4))
    .reduce((sum, x, i) => sum + x * [0.2126, 0.7152, 0.0722][i], 0);
  const under = (node) => {
    if (!node) return [255, 255, 255];
    const [r, g, b, alpha = 1] = channels(getComputedStyle(node).backgroundColor);
    const below = alpha < 1 ? under(node.parentElement) : [0, 0, 0];
    return [r, g, b].map((x, i) => alpha * x + (1 - alpha) * below[i]);
  };
  const worst = { contrast: 99 };
  for (const node of document.querySelectorAll("body *")) {
    const hasText = [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim());
    if (!hasText || !node.checkVisibility()) continue;
    const [a, b] = [light(channels(getComputedStyle(node).color)), light(under(node))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < worst.contrast) Object.assign(worst, { contrast, node: node.outerHTML.slice(0, 200) });
  }
  return worst;
})()"""  # noqa: E501


@pytest.mark.parametrize("width, dark", [(360, False), (1400, True)])
def test_the_neurons_page_fits_the_screen_and_can_be_read(chromium, visited, width, dark):
    """What stories hold is no markup; every text has a contrast of 4.5."""
    chromium.open(visited / "neurons.html", width=width, dark=dark)
    chromium.run("document.querySelectorAll('details').forEach((each) => (each.open = true))")
    assert chromium.messages == [] and chromium.run("document.title").startswith("Neurons of")
    assert "<script>" in chromium.run("document.body.textContent")
    assert chromium.run("document.documentElement.scrollWidth") <= width
    worst = chromium.run(CONTRAST)
    assert worst["contrast"] >= 4.5, worst
