"""export.py, on the command line."""

import pytest
from conftest import page_data
from random_models import random_model, save_run, trained_on

import export
from nanostories.corpus.token_files import load_meta
from nanostories.corpus.tokenizer import Tokenizer


@pytest.fixture
def run(instruct_data_dir, tmp_path):
    """Of stories under headers."""
    meta = load_meta(instruct_data_dir / "builtin-instruct")
    facts = trained_on(instruct_data_dir, "builtin-instruct") | {"step": 20, "best_val_loss": 1.5}
    model = random_model(vocab_size=meta["vocab_size"])
    save_run(tmp_path / "run", model, Tokenizer(**meta["vocabulary"]), "best.pt", **facts)
    return tmp_path / "run"


@pytest.fixture
def export_py(command_line, tmp_path):
    return command_line(export, tmp_path)


def test_a_run_becomes_a_page(run, export_py, tmp_path):
    code, printed = export_py(run)
    page = run / "story.html"
    assert code == 0 and printed.out.splitlines()[-1].startswith(f"wrote {page} (0.")
    data = page_data(page)
    assert data["prefix"] == [data["end_of_text"]] and len(data["fields"]) == 4
    assert data["facts"]["trained on"] == "builtin-instruct, 20 steps"
    assert len(data["openings"]) == 4 and data["language"] == "en"
    path = tmp_path / "new" / "a.html"
    assert export_py(f"{run} --html {path} --title '<Tales>' --about 'Of <i>foxes'")[0] == 0
    assert "<h1>&lt;Tales&gt;</h1>\n  <p>Of &lt;i&gt;foxes</p>" in path.read_text()


def test_transformers_files_come_back(run, export_py, tmp_path):
    assert export_py(f"{run} --hf mine")[0] == 0
    assert export_py("hf:mine --html a.html")[0] == 0
    data = page_data(tmp_path / "a.html")
    assert data["prefix"] == [data["end_of_text"]] and data["fields"] == []


def test_bad_input_is_one_line(run, export_py, tmp_path):
    (tmp_path / "file").touch()
    for args in ("api:gpt-4o", f"{run} --html file/a.html", f"{run} --hf {run}"):
        assert export_py(args)[0].startswith("export.py: ")
    assert [path.name for path in run.iterdir()] == ["best.pt"]
