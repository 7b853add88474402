"""interpret.py: its files, its command line, and its pages in a browser."""

import shlex

import numpy as np
import pytest
from planted import write_corpus
from random_models import model_to_probe, save_run, trained_on

import interpret
from model import GPTNeo, GPTNeoConfig
from nanostories.checkpoints.huggingface import save_hf
from nanostories.corpus import builtin_stories
from nanostories.corpus.tokenizer import GPT2_VOCAB_SIZE, cut
from nanostories.results import load, outdated
from nanostories.tables import read_table

MARKUP = "<script>document.title = 'broken'</script> Tom & <b>Mia</b>."
HEADS = [("0", "0"), ("0", "1"), ("1", "0"), ("1", "1")]
FEW = "--stories 50"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """out/run of a tiny model, and data/tiny, whose stories begin with what would be markup."""
    directory = tmp_path_factory.mktemp("interpret")
    stories = [f"{MARKUP} {story.text}" for story in builtin_stories.stories(50)]
    write_corpus(directory / "data" / "tiny", stories, stories)
    run = trained_on(directory / "data", "tiny")
    save_run(directory / "out" / "run", model_to_probe(block_size=64), **run)
    return directory


@pytest.fixture
def interpret_py(command_line, trained):
    return command_line(interpret, trained)


@pytest.fixture
def visited(interpret_py, trained):
    """The results for a text that holds markup."""
    if not (trained / "results").exists():
        text = shlex.quote(MARKUP)
        assert interpret_py(f"out/run {FEW} --text {text} --out results")[0] == 0
    return trained / "results"


def test_everything_is_written(visited):
    result = load(visited / "interpret.json")
    assert list(result.sources) == ["../out/run/ckpt.pt"] and not outdated(result, visited)
    tables = {table.facts["kind"]: table.rows for table in result.tables}
    assert list(tables) == ["heads", "roles", "ablation", "neurons"]
    row = tables["heads"][0]
    heads = read_table(visited / "heads.csv")
    assert [(head["layer"], head["head"]) for head in heads] == HEADS
    assert row["run"].endswith("out/run") and row["heads"] == 4
    assert sum(row[role] for role in {head["role"] for head in heads}) == 4
    assert len(tables["ablation"]) == 4
    neurons = read_table(visited / "neurons.csv")
    assert len(neurons) == 2 * 32 and len(read_table(visited / "residual.csv")) == 2 * 8
    for kind in tables["neurons"][:-1]:
        n = sum(neuron["prefers"] == kind["kind"] for neuron in neurons)
        assert kind["neurons"] == n and kind["neurons (%)"] == pytest.approx(n / 0.64)


def test_answers_are_patched(interpret_py, trained, monkeypatch):
    """In either order: after two steps of training, it may prefer the other's answer."""
    for texts in ("Number:1:1 Number:2:2", "Number:1:2 Number:2:1"):
        code, _ = interpret_py(f"out/run --patch {texts} --out patched")
        assert code == 0 or "does not tell" in code
        if code == 0:
            told_apart = texts
    out = trained / "patched"
    assert sorted(path.suffix for path in out.iterdir()) == [".json", ".png", ".svg"]
    found = load(out / "patching.json")
    (heads,) = found.tables
    assert "hardly tells" in found.warnings[0]  # two steps of training
    monkeypatch.setattr(interpret, "FEW_LOGITS", 0)
    interpret_py(f"out/run --patch {told_apart} --out patched")
    assert load(out / "patching.json").warnings == []
    assert sorted(row["head"] for row in heads.rows) == ["0.0", "0.1", "1.0", "1.1"]


def test_published_models_read_any_corpus(interpret_py, trained):
    """With another vocabulary than the corpus has: the text is the same."""
    model = GPTNeo(GPTNeoConfig(vocab_size=400, block_size=32, n_layer=1, n_head=2, n_embd=8))
    save_hf(model, trained / "others", cut(np.zeros(GPT2_VOCAB_SIZE), 400))
    args = f"hf:others {FEW} --out other"
    assert "--data" in interpret_py(args)[0]
    assert interpret_py(f"{args} --data data/tiny")[0] == 0
    assert load(trained / "other" / "interpret.json").tables[0].rows[0]["heads"] == 2


MISTAKES = [
    ("api:gpt", "api:gpt"),
    ("out/run --stories 3", "--stories"),
    (f"out/run --patch '{'cat ' * 100}' '{'dog ' * 100}'", "64"),
    ("out/run --patch 'Tom ran' 'Mia ran off'", "--patch"),
    ("out/run --patch 'Tom ran' 'Mia ran'", "--patch"),
]


@pytest.mark.parametrize("args, named", MISTAKES)
def test_mistakes_get_one_line(interpret_py, args, named):
    code, printed = interpret_py(args)
    assert named in code and "\n" not in code and "Traceback" not in printed.err


# ---- The page ----
@pytest.mark.parametrize("width, dark", [(360, False), (1400, True)])
def test_the_neurons_page_fits_the_screen_and_can_be_read(chromium, visited, width, dark):
    """What stories hold is no markup."""
    chromium.open(visited / "neurons.html", width=width, dark=dark)
    chromium.run("document.querySelectorAll('details').forEach((each) => (each.open = true))")
    assert chromium.run("document.title").startswith("Neurons of")
    assert "<script>" in chromium.run("document.body.textContent")
    chromium.check_screen()
