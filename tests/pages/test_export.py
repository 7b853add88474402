"""export.py's page, on the command line."""

import dataclasses

import numpy as np
import pytest
import torch
from conftest import log_of, page_data, settings
from random_models import random_model

import export
import report
import train
from browser import pack_model
from checkpoints.checkpoint import CHECKPOINT_FORMAT
from corpus.tokenizer import cut
from training.config import TrainConfig
from variants.compressor import Compressor


@pytest.fixture(scope="module")
def run(data_dir, tmp_path_factory):
    directory = tmp_path_factory.mktemp("export")
    return train.train(TrainConfig(**settings(data_dir, directory)), resume=False)[0]


@pytest.fixture
def export_py(command_line, tmp_path):
    return command_line(export, tmp_path)


def test_a_run_becomes_a_page_that_tells_its_own_quality(run, export_py):
    code, printed = export_py(run)
    assert code == 0
    *_, float32, float16, int8, last = printed.out.splitlines()
    assert last.startswith(f"wrote {run / 'story.html'} (0.") and "int8" in last
    facts = page_data(run / "story.html")
    for line, row in zip((float32, float16, int8), facts["quality"]):
        assert line.split()[:3] == [row["dtype"], f"{row['megabytes']:.1f}", f"{row['bpb']:.4f}"]
    assert facts["quality"][0]["kl"] == 0 < facts["quality"][1]["kl"] < facts["quality"][2]["kl"] < 0.01
    assert facts["quality"][0]["bpb"] == pytest.approx(
        float(log_of(run)[-1]["bpb"]), rel=0.1
    )  # which reads longer windows
    about = dict(facts["about"])
    assert about["learned from"] == "tiny, 20 steps" and facts["prefix"] == [facts["end_of_text"]]


def test_the_report_links_to_it(run, export_py):
    assert export_py(run)[0] == 0
    sections = page_data(report.make_report(run.parent)[0])["sections"]
    links = [part["rows"] for part in sections[0]["parts"] if part["type"] == "table"][1:]
    assert links == [[[["run", "run/story.html"]]]]
    (run / "story.html").unlink()
    assert "story.html" not in report.make_report(run.parent)[0].decode()


def test_another_dtype_and_place(run, export_py, tmp_path):
    sizes = {}
    for dtype in ("float32", "float16"):
        code, printed = export_py(run, "--dtype", dtype, "--html", tmp_path / "new" / f"{dtype}.html")
        assert code == 0
        sizes[dtype] = (tmp_path / "new" / f"{dtype}.html").stat().st_size
    assert sizes["float16"] < sizes["float32"] and page_data(tmp_path / "new" / "float16.html")["dtype"] == "float16"


def test_a_published_model_without_a_corpus_is_exported_unmeasured(run, export_py, tmp_path):
    assert export_py(run, "--hf", tmp_path / "mine")[0] == 0
    code, printed = export_py(f"hf:{tmp_path / 'mine'}", "--html", "a.html")
    assert code == 0 and "was not measured" in printed.out and page_data(tmp_path / "a.html")["quality"] == []


def test_stories_that_do_not_fit_are_not_measured(run, export_py, monkeypatch):
    monkeypatch.setattr("browser.pack_model.story_tokens", lambda ids, tokenizer: np.zeros(len(ids), dtype=bool))
    load_stories = pack_model.load_stories
    monkeypatch.setattr(
        pack_model,
        "load_stories",
        lambda *args: (load_stories(*args)[0] | dict(headers=1), load_stories(*args)[1]),
    )
    code, printed = export_py(run)
    assert code == 0 and "was not measured" in printed.out and page_data(run / "story.html")["quality"] == []


def test_the_license_is_that_of_what_is_known(tmp_path):
    directory = tmp_path / "TinyStories-8M"
    directory.mkdir()
    licenses = {
        name: dict(pack_model.about(name, random_model(), "int8", {}))["license"]
        for name in ("hf:roneneldan/TinyStories-8M", "hf:somebody/TinyStories-like", f"hf:{directory}")
    }
    known, *others = licenses.values()
    assert "CDLA" in known and others == [pack_model.UNKNOWN_LICENSE] * 2


def test_bad_input_is_one_line(run, export_py, tmp_path, data_dir, monkeypatch):
    config = random_model(vocab_size=257).config
    state = dict(
        format=CHECKPOINT_FORMAT,
        model_config=dataclasses.asdict(config),
        gpt2_ids=cut(torch.zeros(50257).numpy(), 257).gpt2_ids,
    )
    (tmp_path / "compressor").mkdir()
    torch.save(
        state | dict(model_class="compressor", model=Compressor(config).state_dict()),
        tmp_path / "compressor" / "best.pt",
    )
    (tmp_path / "file").write_text("")
    for args, complaint in (
        (["nothing"], "nothing: no such checkpoint"),
        (["compressor"], "neither transformers nor the page supports a compressor"),
        (["api:gpt-4o"], "api:gpt-4o: a model behind an API has no weights"),
        ([run, "--html", tmp_path / "file" / "a.html"], "file"),
        ([run, "--html", "/proc/a.html"], "/proc"),
        ([run, "--data", "nowhere"], "nowhere/meta.json: cannot be read"),
    ):
        code, printed = export_py(*args)
        assert str(code).startswith("export.py: ") and complaint in code and "\n" not in code, code
    monkeypatch.setattr("browser.pack_model.LARGEST", 20_000)
    assert (
        "MB of weights as float32; a page holds 0: --dtype int8 is smaller" in export_py(run, "--dtype", "float32")[0]
    )
    code, printed = export_py(run, "--hf", "x", "--html", "y")
    assert code == 2 and "leave out --html" in printed.err.splitlines()[-1]
    assert not (tmp_path / "x").exists()
