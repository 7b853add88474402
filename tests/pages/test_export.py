"""export.py, on the command line."""

import json
import shutil

import pytest
from conftest import page_data
from random_models import random_model, save_run, trained_on

import export
from nanostories.corpus.token_files import load_meta
from nanostories.corpus.tokenizer import Tokenizer


@pytest.fixture
def run(data_dir, tmp_path):
    """A run on a copy of data/tiny."""
    shutil.copytree(data_dir / "tiny", tmp_path / "data" / "tiny")
    meta = load_meta(data_dir / "tiny")
    facts = trained_on(tmp_path / "data", "tiny") | {"step": 20, "best_val_loss": 1.5}
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
    assert data["prefix"] == [data["end_of_text"]] and data["fields"] == []
    assert data["facts"]["trained on"] == "tiny, 20 steps" and data["language"] == "en"
    assert data["openings"][2] == "A new one."
    meta = tmp_path / "data" / "tiny" / "meta.json"
    meta.write_text(json.dumps(json.loads(meta.read_text()) | {"headers": "any fields together"}))
    path = tmp_path / "new" / "a.html"
    assert export_py(f"{run} --html {path} --title '<Tales>' --about 'Of <i>foxes'")[0] == 0
    assert len(page_data(path)["fields"]) == 4
    assert "<h1>&lt;Tales&gt;</h1>\n  <p>Of &lt;i&gt;foxes</p>" in path.read_text()


def test_transformers_files_come_back(run, export_py, tmp_path):
    assert export_py(f"{run} --hf mine")[0] == 0
    assert export_py("hf:mine --html a.html")[0] == 0
    data = page_data(tmp_path / "a.html")
    assert data["prefix"] == [data["end_of_text"]]


def test_bad_input_is_one_line(run, export_py, tmp_path):
    (tmp_path / "file").touch()
    for args in ("api:gpt-4o", f"{run} --html file/a.html", f"{run} --hf {run}"):
        assert export_py(args)[0].startswith("export.py: ")
    assert [path.name for path in run.iterdir()] == ["best.pt"]
