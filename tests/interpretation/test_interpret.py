"""interpret.py: its files, its command line, and its pages in a browser."""

import shlex

import pytest
from planted import write_corpus
from random_models import model_to_probe, save_run, trained_on

import interpret
from nanostories.corpus import builtin_stories
from nanostories.interpretation import activation_patching
from nanostories.pages import interpretation_pages
from nanostories.results import load, outdated
from nanostories.tables import read_table

MARKUP = "<script>document.title = 'broken'</script> Tom & <b>Mia</b>."


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
def visited(interpret_py, trained, monkeypatch):
    """The results for a text that holds markup. The page shows all neurons: some fire there."""
    monkeypatch.setattr(interpretation_pages, "SHOWN_OTHERS", 64)
    if not (trained / "results").exists():
        text = shlex.quote(MARKUP)
        assert interpret_py(f"out/run --stories 50 --text {text} --out results")[0] == 0
    return trained / "results"


def test_everything_is_written(visited):
    result = load(visited / "interpret.json")
    assert list(result.sources) == ["../out/run/ckpt.pt"] and not outdated(result, visited)
    tables = {table.facts["kind"]: table.rows for table in result.tables}
    assert list(tables) == ["heads", "roles", "ablation", "neurons"]
    row = tables["heads"][0]
    roles = {head["role"] for head in read_table(visited / "heads.csv")}
    assert row["run"].endswith("out/run")
    assert sum(row[role] for role in roles) == len(tables["ablation"]) == 4
    neurons = read_table(visited / "neurons.csv")
    assert len(neurons) == 2 * 32 and len(read_table(visited / "residual.csv")) == 2 * 8
    for kind in tables["neurons"][:-1]:
        n = sum(neuron["prefers"] == kind["kind"] for neuron in neurons)
        assert kind["neurons"] == n and kind["neurons (%)"] == pytest.approx(n / 0.64)


def test_answers_are_patched(interpret_py, trained, monkeypatch):
    monkeypatch.setattr(activation_patching, "FEW_LOGITS", -100)  # weights are random
    assert interpret_py("out/run --patch Number:1:1 Number:2:2 --out patched")[0] == 0
    out = trained / "patched"
    assert sorted(path.suffix for path in out.iterdir()) == [".json", ".png", ".svg"]
    rows = load(out / "patching.json").tables[0].rows
    assert sorted(row["head"] for row in rows) == ["0.0", "0.1", "1.0", "1.1"]


MISTAKES = [
    ("api:gpt", "api:gpt"),
    ("out/run --stories 3", "--stories"),
    (f"out/run --patch '{'cat ' * 100}' '{'dog ' * 100}'", "64"),
    ("out/run --patch 'Tom ran' 'Mia ran off'", "--patch"),
    ("out/run --patch 'Tom ran' 'Mia ran' --text 'Tom ran'", "--text"),
    ("out/run --patch Number:1:1 Number:2:1", "does not favor"),
]


@pytest.mark.parametrize("args, named", MISTAKES)
def test_mistakes_get_one_line(interpret_py, args, named):
    code, printed = interpret_py(args)
    assert named in code


# ---- The page ----
@pytest.mark.parametrize("width, dark", [(360, False), (1400, True)])
def test_the_neurons_page_fits_the_screen_and_can_be_read(chromium, visited, width, dark):
    """What stories hold is no markup."""
    chromium.open(visited / "neurons.html", width=width, dark=dark)
    chromium.run("document.querySelectorAll('details').forEach((each) => (each.open = true))")
    assert chromium.run("document.title").startswith("Neurons of")
    assert "<script>" in chromium.run("document.body.textContent")
    chromium.check_screen()
