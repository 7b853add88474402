"""export.py, on the command line."""

import json
import shutil

import pytest
from conftest import page_data
from random_models import random_model, save_run

import export
from nanostories.corpus.token_files import load_meta
from nanostories.corpus.tokenizer import Tokenizer


@pytest.fixture
def run(data_dir, tmp_path):
    """A run on a copy of data/tiny."""
    shutil.copytree(data_dir / "tiny", tmp_path / "data" / "tiny")
    meta = load_meta(tmp_path / "data" / "tiny")
    facts = dict(step=20, best_val_loss=1.5, data_sha256=meta["splits"]["train"]["sha256"])
    facts |= dict(train_config=dict(data="tiny", data_dir=str(tmp_path / "data")))
    model, tokenizer = random_model(vocab_size=meta["vocab_size"]), Tokenizer(**meta["vocabulary"])
    save_run(tmp_path / "out" / "run", model, tokenizer, "best.pt", **facts)
    return tmp_path / "out" / "run"


@pytest.fixture
def export_py(command_line, tmp_path):
    return command_line(export, tmp_path)


def test_a_run_becomes_a_page(run, export_py, tmp_path):
    code, printed = export_py(run)
    assert code == 0 and printed.out.splitlines()[-1].startswith(f"wrote {run / 'story.html'} (0.")
    data = page_data(run / "story.html")
    assert data["prefix"] == [data["end_of_text"]]
    html = (run / "story.html").read_text()
    assert "tiny, 20 steps" in html and "<title>run tells stories" in html
    assert "data-field" not in html.partition("<script")[0]
    assert (
        export_py(run, "--html", tmp_path / "new" / "a.html")[0] == 0
        and (tmp_path / "new" / "a.html").exists()
    )


def test_transformers_files_come_back(run, export_py, tmp_path):
    assert export_py(run, "--hf", tmp_path / "mine")[0] == 0
    assert export_py(f"hf:{tmp_path / 'mine'}", "--html", "a.html")[0] == 0
    assert page_data(tmp_path / "a.html")["engine"]["config"]["n_embd"] == 32


def test_a_models_headers_get_fields(run, export_py, tmp_path):
    meta = tmp_path / "data" / "tiny" / "meta.json"
    meta.write_text(json.dumps(json.loads(meta.read_text()) | dict(headers="any fields together")))
    assert export_py(run)[0] == 0 and (run / "story.html").read_text().count('data-field="') == 4


def test_bad_input_is_one_line(run, export_py, tmp_path):
    (tmp_path / "file").write_text("")
    for args, complaint in (
        (["nothing"], "nothing"),
        (["api:gpt-4o"], "api:gpt-4o"),
        ([run, "--html", tmp_path / "file" / "a.html"], "file"),
    ):
        code, _ = export_py(*args)
        assert str(code).startswith("export.py: ") and complaint in code and "\n" not in code, code
    assert not (run / "story.html").exists()
    code, printed = export_py(run, "--hf", "x", "--html", "y")
    assert code == 2 and "--html" in printed.err.splitlines()[-1] and not (tmp_path / "x").exists()
