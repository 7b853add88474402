"""interpret.py: its files, its command line, and its pages in a browser."""

import base64
import csv
import json
import re
import shutil
import sys

import numpy as np
import pytest
import torch
from conftest import arguments, seen_in

import interpret
import train
from checkpoints.checkpoint import from_checkpoint, load_checkpoint
from checkpoints.huggingface import save_hf
from corpus import preparation
from corpus.tokenizer import GPT2_VOCAB_SIZE, Tokenizer, cut
from interpretation.activation_patching import Patching
from interpretation.activation_statistics import untrained_copy
from interpretation.compare_runs import COLORS, ClearestParts
from interpretation.head_roles import HEAD_ROLES
from interpretation.summary import FORMAT
from interpretation.word_classes import KINDS
from model import GPTNeo, GPTNeoConfig
from pages import interpretation_pages as pages
from training.config import parse_command_line


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """out/run of a tiny model, and data/tiny whose stories hold what would be markup."""
    directory = tmp_path_factory.mktemp("interpret")
    rng, names, things = np.random.default_rng(0), ["Tom", "Mia", "Ben", "Sue"], ["ball", "cat", "kite", "drum", "hat"]
    texts = [
        f"{rng.choice(names)} had a {rng.choice(things)}. Then, {rng.choice(names)} saw it. Number {i}."
        for i in range(150)
    ]
    texts[1] = f"<script>document.title = 'broken'</script> {texts[1]} </body> <b>Bold</b> & more."
    preparation.prepare(directory / "data" / "tiny", ["tests"], texts[40:], texts[:40], vocab_size=300)
    config = dict(
        name="run", out_dir=str(directory / "out"), data="tiny", data_dir=str(directory / "data"), device="cpu",
        dtype="float32", compile=False, block_size=64, n_layer=2, n_head=2, n_embd=16, batch_size=4, max_steps=2,
        eval_tokens=400, eval_interval=2, copy_init=0.03,
    )  # fmt: skip
    train.train(*parse_command_line(arguments(config)))
    return directory


@pytest.fixture
def interpret_py(command_line, trained):
    return command_line(interpret, trained)


def rows_of(path) -> list[dict]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def page_data(path) -> dict:
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', path.read_text(), re.S)[1])


def test_before_training_it_is_as_the_run_started(interpret_py, monkeypatch):
    started = []
    monkeypatch.setattr(interpret, "untrained_copy", lambda *args: started.append(untrained_copy(*args)) or started[-1])
    assert interpret_py("out/run", "--stories", "10", "--ablate", "0", "--out", "started")[0] == 0
    for block in started[0].blocks:
        copies = block.attention_out.weight @ block.qkv.weight[-16:]
        torch.testing.assert_close(copies, 0.03 * torch.eye(16))


def test_all_files_are_written(interpret_py, trained):
    code, printed = interpret_py("out/run", "--stories", "30", "--out", "all")
    assert code == 0 and "4 heads" in printed.out and "128 neurons" in printed.out
    out = trained / "all"
    assert sorted(path.name for path in out.iterdir()) == [
        "attention.html", "attention.npz", "attention.png", "heads.csv", "neurons.csv", "neurons.html", "summary.json",
    ]  # fmt: skip
    with np.load(out / "attention.npz") as file:
        assert file["attention"].shape == (2, 2, *2 * file["tokens"].shape) and file["tokens"][0] == "<|endoftext|>"
        np.testing.assert_allclose(file["attention"].sum(-1), 1, atol=1e-5)
    heads, neurons = rows_of(out / "heads.csv"), rows_of(out / "neurons.csv")
    assert [(row["layer"], row["head"]) for row in heads] == [("0", "0"), ("0", "1"), ("1", "0"), ("1", "1")]
    assert len(neurons) == 128 and sum(row["rise"] != "" for row in neurons) >= 20
    for row in heads:
        assert float(row["rise_low"]) <= float(row["rise"]) <= float(row["rise_high"])
        assert 0 <= float(row["copies"]) <= 1 and row["writes"]
    summary = json.loads((out / "summary.json").read_text())
    assert summary["format"] == FORMAT and summary["stories"] == 30 and summary["ablation"]["stories"] == 15
    assert set(summary["heads"]["ablated"]) == {"trained", "random_init"} and "at random initialization" in printed.out
    assert max(float(row["top_activations"].split(" | ")[0]) for row in neurons) == pytest.approx(
        max(summary["neurons"]["highest"]["tokens"].values()), abs=1e-3
    )
    for name in ("attention.html", "neurons.html"):
        assert (out / name).stat().st_size < 2_000_000
        assert not re.search(r"""(src|href)=|https?://|@import|url\(""", (out / name).read_text().split('id="data"')[0])


def test_what_is_drawn_can_be_chosen(interpret_py, trained):
    args = ("--stories", "30", "--ablate", "0", "--text", "Tom had a ball.", "--layer", "1", "--out", "chosen")
    assert interpret_py("out/run", *args)[0] == 0
    data = page_data(trained / "chosen" / "attention.html")
    assert [(head["layer"], head["head"]) for head in data["heads"]] == [(1, 0), (1, 1)]
    assert "".join(data["tokens"]) == "‹start›Tom had a ball."
    assert len(data["rows"]) == 4 and "rise" not in data["rows"][0]
    cards = page_data(trained / "chosen" / "neurons.html")["neurons"]
    assert {card["layer"] for card in cards} == {1} and len(cards) == 64
    with np.load(trained / "chosen" / "attention.npz") as file:
        assert file["attention"].shape[:2] == (2, 2)
    assert (
        interpret_py("--model", "out/run", "--stories", "0", "--text", "Tom ran.", "--head", "1", "--out", "alone")[0]
        == 0
    )
    assert [head["layer"] for head in page_data(trained / "alone" / "attention.html")["heads"]] == [0, 1]
    assert sorted(path.suffix for path in (trained / "alone").iterdir()) == [".html", ".npz", ".png"]


def test_what_would_take_long_is_not_begun_unasked(interpret_py, trained, monkeypatch):
    monkeypatch.setattr("interpretation.ablation.HEAD_BUDGET", 1e4)
    code, printed = interpret_py("out/run", "--stories", "20", "--out", "long")
    assert code == 0 and re.search(r"nothing is ablated: 4 heads would take about [\d,]+ minutes", printed.out)
    assert "rise" not in rows_of(trained / "long" / "heads.csv")[0]
    code, printed = interpret_py("out/run", "--stories", "20", "--ablate", "10", "--out", "long")
    assert code == 0 and re.search(r"ablating 4 heads on 10 stories: about [\d,]+ minutes", printed.err)
    assert "rise" in rows_of(trained / "long" / "heads.csv")[0]


def test_answers_are_patched(interpret_py, trained, browser):
    texts = "Tom had a cat. Mia saw a cat", "Tom had a hat. Mia saw a hat"
    code, printed = interpret_py("out/run", "--patch", *texts, "--out", "patched")
    assert code == 0 and "brings back" in printed.out and "open patching.html" in printed.out
    out = trained / "patched"
    assert sorted(path.name for path in out.iterdir()) == ["patching.csv", "patching.html", "patching.png"]
    rows, data = rows_of(out / "patching.csv"), page_data(out / "patching.html")
    assert [(row["layer"], row["head"]) for row in rows] == [("0", "0"), ("0", "1"), ("1", "0"), ("1", "1")]
    assert len(data["residual"]) == 3 and {len(layer) for layer in data["residual"]} == {len(data["tokens"])}
    where = [" / " in token for token in data["tokens"]].index(True)
    assert data["residual"][0][where] == 1 and data["residual"][-1][-1] == 1
    document, console = browser(out / "patching.html", "fill('direct');")
    assert console == [] and document.count("<tr>") == 2 + len(data["tokens"]) + 4
    code, _ = interpret_py("out/run", "--patch", "Tom ran", "Mia ran off", "--out", "patched")
    assert "--patch needs prompts with equally many tokens" in code


def test_published_models_read_any_corpus(interpret_py, trained):
    checkpoint = load_checkpoint(trained / "out" / "run")
    save_hf(from_checkpoint(checkpoint), trained / "exported", Tokenizer(checkpoint["gpt2_ids"]))
    args = ("--stories", "20", "--ablate", "0", "--out")
    assert interpret_py("hf:exported", "--data", "data/tiny", *args, "theirs")[0] == 0
    assert interpret_py("out/run", *args, "ours")[0] == 0
    assert rows_of(trained / "theirs" / "heads.csv") == rows_of(trained / "ours" / "heads.csv")
    # Another vocabulary than the corpus has: the text is the same
    model = GPTNeo(GPTNeoConfig(vocab_size=400, block_size=32, n_layer=1, n_head=2, n_embd=8))
    save_hf(model, trained / "others", cut(np.zeros(GPT2_VOCAB_SIZE), 400))
    assert interpret_py("hf:others", "--data", "data/tiny", *args, "other_vocabulary")[0] == 0


def test_models_are_compared(interpret_py, trained):
    for name in ("b", "a"):
        (trained / "models" / name).mkdir(parents=True)
        shutil.copy(trained / "out" / "run" / "best.pt", trained / "models" / name / "best.pt")
        shutil.copy(trained / "out" / "run" / "ckpt.pt", trained / "models" / name / "ckpt.pt")
    code, _ = interpret_py("--compare", "models/a", "models/b")
    assert code.endswith("models/a/interpret/summary.json: not found; make it with: python interpret.py models/a")
    for name, n in (("a", "12"), ("b", "0")):
        assert interpret_py(f"models/{name}", "--stories", "24", "--ablate", n)[0] == 0
    save_hf(
        GPTNeo(GPTNeoConfig(300, 32, n_layer=1, n_head=2, n_embd=8)),
        trained / "published",
        cut(np.zeros(GPT2_VOCAB_SIZE), 300),
    )
    code, _ = interpret_py("--compare", "models/a", "hf:published")
    assert code.endswith("summary.json: not found; make it with: python interpret.py hf:published --data DATA")
    remedy = code.replace("DATA", "data/tiny").partition("interpret.py: ")[2].partition("interpret.py ")[2].split()
    assert interpret_py(*remedy, "--stories", "12", "--ablate", "0")[0] == 0
    assert "8-1-2" in interpret_py("--compare", "models/a", "hf:published")[1].out
    code, printed = interpret_py("--compare", "models/a", "models/b")
    assert code == 0 and "16-2-2" in printed.out and "open models/compare.html" in printed.out
    assert (trained / "models" / "compare.png").stat().st_size > 5000
    data = page_data(trained / "models" / "compare.html")
    assert [row["run"] for row in data["counts"]] == ["a", "b"] and data["counts"][1]["loss"] == ""
    for name, model in zip("ab", data["models"]):
        there = trained / "models" / name / "interpret"
        of_csv = {(row["layer"], row["head"]): row for row in rows_of(there / "heads.csv")}
        with np.load(there / "attention.npz") as file:
            attention = file["attention"]
        maps = np.frombuffer(base64.b64decode(model["attention"]), np.uint8).reshape(4, *2 * [len(model["tokens"])])
        for head, levels in zip(model["heads"], maps):
            layer, i = head["layer"], head["head"]
            assert head["writes"] == of_csv[layer, i]["writes"] and ("rise" in head) == (name == "a")
            np.testing.assert_allclose((levels / 255) ** 2, attention[int(layer), int(i)], atol=0.005)
        assert len({(head["layer"], head["head"]) for head in model["heads"]}) == 4
    a, b = rows_of(trained / "models" / "compare.csv")
    assert a["heads"] == "4" and a["loss"] and not b["loss"]
    assert len(COLORS) >= len(HEAD_ROLES)
    shares = [sum(int(row[key]) for key in row if key.startswith("role: ")) for row in (a, b)]
    assert shares == [4, 4] and sum(int(a[kind]) for kind in ("positional", "semantic", "uniform", "unclear")) == 4
    summary = trained / "models" / "a" / "interpret" / "summary.json"
    summary.write_text(summary.read_text().replace(f'"format": {FORMAT}', '"format": 99'))
    assert f"format 99, but this version reads {FORMAT}" in interpret_py("--compare", "models/a", "models/b")[0]


@pytest.mark.parametrize(
    "args, message",
    [
        (["out/none"], "no such checkpoint"),
        (["api:gpt"], "a model behind an API cannot be inspected"),
        (["hf:exported"], "needs --data, a corpus that prepare.py made"),
        (["out/run", "--data", "data/none"], "data/none/meta.json: cannot be read"),
        (["out/run", "--layer", "2"], "--layer must be at most 1 for out/run, not 2"),
        (["out/run", "--head", "-1"], "--head must be 0 or more"),
        (["out/run", "--stories", "3"], "--stories must be 0, or at least 10"),
        (["out/run", "--ablate", "3"], "--ablate must be 0, or at least 10"),
        (["out/run", "--stories", "30", "--ablate", "16"], "are read: use --stories 32, or --ablate 15 at most"),
        (["out/run", "--ablate", "30"], "data/tiny are read: use --ablate 20 at most"),  # it has 40
        (["out/run", "--stories", "0"], "--stories 0 only draws attention, for which it needs a --text"),
        (["out/run", "--text", "cat " * 100], "--text has 102 tokens, but out/run reads only 64; shorten it"),
        (["out/run", "--out", "data/tiny/meta.json"], "data/tiny/meta.json: File exists"),
        (["out/run", "--compare", "out/run"], "put all runs after --compare, including out/run"),
    ],
)
def test_mistakes_get_one_line(interpret_py, args, message):
    code, printed = interpret_py(*args)
    complaint = printed.err.splitlines()[-1] if code == 2 else code
    assert message in complaint and "\n" not in complaint and "Traceback" not in printed.err


# ---- The pages, in a browser ----


@pytest.fixture(scope="module")
def visited(trained, monkeypatch_module):
    """A directory with both pages, attention on a text that holds markup."""
    monkeypatch_module.chdir(trained)
    text = "<script>document.title = 'broken'</script> Tom & <b>Mia</b>."
    flags = ["out/run", "--stories", "30", "--ablate", "10", "--text", text, "--out", "pages"]
    monkeypatch_module.setattr(sys, "argv", ["interpret.py", *flags])
    interpret.main()
    return trained / "pages"


@pytest.fixture(scope="module")
def monkeypatch_module():
    with pytest.MonkeyPatch.context() as patch:
        yield patch


POINT = """
const before = document.getElementById("grid").textContent;
spans[6].dispatchEvent(new MouseEvent("mouseover", {bubbles: true}));
const after = document.getElementById("grid").textContent;
document.querySelector("#head-1-1").click();
document.querySelectorAll("#heads th")[4].click();
document.body.append(element("pre", {id: "seen"}, JSON.stringify({
  before, after, background: spans[3].style.background, outline: spans[6].style.outline,
  text: document.getElementById("text").textContent, title: document.title,
  whose: document.getElementById("whose").textContent, scripts: document.scripts.length,
  lens: document.getElementById("lens").textContent, lines: document.querySelectorAll("#lens tr").length,
  bold: document.querySelectorAll("b").length, rows: document.querySelectorAll("#heads tbody tr").length,
})));
"""


def test_pointing_at_a_token_shows_where_each_head_looks(browser, visited):
    document, console = browser(visited / "attention.html", POINT)
    assert console == []
    seen = seen_in(document)
    assert seen["before"] != seen["after"] and seen["after"].count("→") == 4 and "→" not in seen["before"]
    assert "rgba" in seen["background"] and "solid" in seen["outline"]
    assert "<script>document.title = 'broken'</script> Tom & <b>Mia</b>." in seen["text"]
    assert seen["title"] == "Attention in out/run" and seen["scripts"] == 3 and seen["bold"] == 1
    data = page_data(visited / "attention.html")
    assert seen["lines"] == 3 and f"after “{data['tokens'][6]}”" in seen["lens"]
    assert all(data["lens"][layer][6][0][0].replace("\n", "↵") in seen["lens"] for layer in range(3))
    assert "layer 1, head 1" in seen["whose"] and seen["rows"] == 4


BROWSE = """
byId("kind").value = "none"; byId("kind").dispatchEvent(new Event("change"));
const none = byId("count").textContent;
byId("kind").value = ""; byId("search").value = "</b>"; byId("search").dispatchEvent(new Event("input"));
byId("search").value = ""; byId("search").dispatchEvent(new Event("input"));
for (let i = 0; i < 9; i++) byId("more").click();
const token = document.querySelector(".peak");
token.dispatchEvent(new MouseEvent("mousemove", {bubbles: true, clientX: 5, clientY: 5}));
document.body.append(element("pre", {id: "seen"}, JSON.stringify({
  none, tip: tip.textContent, shown: tip.style.display, cards: document.querySelectorAll(".card").length,
  text: byId("cards").textContent, title: document.title, scripts: document.scripts.length,
  inside: byId("cards").querySelectorAll("script, b b, .token b").length,
})));
"""


@pytest.mark.slow
def test_neurons_can_be_browsed(browser, visited):
    document, console = browser(visited / "neurons.html", BROWSE)
    assert console == []
    seen = seen_in(document)
    assert seen["shown"] == "block" and "100% of this neuron's highest activation" in seen["tip"]
    assert (
        seen["cards"] == len(page_data(visited / "neurons.html")["neurons"]) and "neurons on this page" in seen["none"]
    )
    assert "<script>" in seen["text"]  # the story's own
    assert seen["title"] == "Neurons of out/run" and seen["scripts"] == 3 and seen["inside"] == 0


FRAMES = """
const widths = {};
for (const width of [360, 500, 1000, 1400]) {
  const page = document.documentElement.outerHTML.replace(/<script>const widths.*/s, "");
  const frame = element("iframe", { srcdoc: page });
  frame.style.cssText = `width: ${width}px; height: 900px; border: 0`;
  frame.addEventListener("load", () => {
    widths[width] = frame.contentDocument.documentElement.scrollWidth;
    if (Object.keys(widths).length === 4) document.body.append(element("pre", {id: "seen"}, JSON.stringify(widths)));
  });
  document.body.append(frame);
}
"""


def test_nothing_is_wider_than_the_screen(browser, visited):
    """Many heads to a layer, contexts of long words, many layers of patching, many models: on phones and desktops."""
    heads = [dict(layer=layer, head=head, role="previous token") for layer in range(2) for head in range(16)]
    pieces, lens = [" grandmother"] * 12, [[[(" grandmother", 0.5)] * 3] * 12] * 3
    rows = page_data(visited / "attention.html")["rows"]
    context = dict(ids=list(range(12)), levels="9" * 12, peak=3, value=1.0)
    neuron = page_data(visited / "neurons.html")["neurons"][0] | dict(contexts=[context])
    tensors = torch.ones(13, 11), *torch.ones(3, 12, 12)
    patching = Patching(1.0, -1.0, *tensors, [[(0, 1.0)] * 12] * 12, [[[0]] * 12] * 12)
    patched = patching.rows(pieces, lambda i: pieces[i])
    writes = " | ".join(["grandmother"] * 9)
    head = dict(
        layer="0", head="0", role="mixed", looks_at="names", share=0.5, uniform=0.1, copies="0.3", writes=writes
    )
    told = dict(layer="0", neuron="0", why="name", auc=0.9, top_tokens=writes, top_activations="1.0 | 0.5", rise="")
    parts = ClearestParts([head] * 8, np.zeros((8, 12, 12)), pieces, [told] * 8)
    counts = dict.fromkeys(["run", *(f"a column {i}" for i in range(12))], "a_run_of_a_very_long_name_without_end")
    for name, content in dict(
        attention=pages.attention_page("a", np.zeros((32, 12, 12)), pieces, heads, rows, lens),
        neurons=pages.neurons_page("a", "", [], KINDS, pieces, [neuron]),
        patching=pages.patching_page("a", patching, (pieces, pieces), patched, []),
        compare=pages.compare_page([counts] * 6, [parts] * 6),
    ).items():
        (visited / f"wide-{name}.html").write_bytes(content)
        document, _ = browser(visited / f"wide-{name}.html", FRAMES)
        widths = seen_in(document)
        assert all(width <= int(screen) for screen, width in widths.items()), (name, widths)
