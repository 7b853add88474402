"""prompts.py: what is continued, from files and from validation stories."""

import json

import pytest
from conftest import ROOT

from corpus import preparation
from generation.prompts import Prompt, cut_story, evaluation_prompts, read_prompts


def test_a_story_is_cut_between_two_words():
    story = "One two  three\n\nfour, five."
    assert cut_story(story, 0.5) == Prompt("One two", "  three\n\nfour, five.")
    assert cut_story(story, 0.99).text == "One two  three\n\nfour,"
    assert cut_story("Alone.", 0.4) == Prompt("Alone.", "")


def test_prompts_are_read_from_lines_and_from_json(tmp_path):
    one, two = Prompt("Once upon"), Prompt("There was", " a cat.")
    rows = [{"prompt": "Once upon "}, {"prompt": "There was", "reference": " a cat."}]
    (tmp_path / "a.txt").write_text("\ufeffOnce upon \n\nThere was\n")
    (tmp_path / "a.json").write_text(json.dumps(["Once upon", rows[1]]))
    (tmp_path / "a.jsonl").write_text("\n\n".join(map(json.dumps, rows)))
    assert read_prompts(tmp_path / "a.txt") == [one, Prompt("There was")]
    (tmp_path / "odd.jsonl").write_text('"Once\u2028upon a"\n')
    assert read_prompts(tmp_path / "odd.jsonl") == [Prompt("Once\u2028upon a")]
    assert read_prompts(tmp_path / "a.json") == read_prompts(tmp_path / "a.jsonl") == [one, two]
    for name, text, message in (
        ("none.txt", None, "cannot be read"),
        ("empty.txt", " \n", "no prompts in it"),
        ("b.json", "{", "cannot be read"),
        ("d.json", "[" * 100_000, "cannot be read"),
        ("f.json", f'["good", {"9" * 5000}]', "cannot be read .Exceeds the limit"),
        ("f.jsonl", f'"good"\n{{"prompt": "good", "id": {"9" * 5000}}}', "cannot be read .Exceeds the limit"),
        ("e.json", '["\\ud800"]', "prompt 1 must be a string"),
        ("b.jsonl", '"good"\n{"text": "x"}', "prompt 2 must be a string"),
        ("c.json", "3", "prompt 1 must be a string"),
    ):
        if text is not None:
            (tmp_path / name).write_text(text)
        with pytest.raises(ValueError, match=f"{name}: {message}") as caught:
            read_prompts(tmp_path / name)
        assert "\n" not in str(caught.value)
    assert len(read_prompts(ROOT / "prompts" / "beginnings.txt")) >= 20


def test_the_evaluation_set_is_stories_2_and_on(corpus, tmp_path, monkeypatch):
    prompts = evaluation_prompts(tmp_path / "data" / "tiny", 3, 0.5)
    stories = corpus[1]
    assert [prompt.text + prompt.reference for prompt in prompts] == stories[1:4]
    assert prompts[0].text == "Story 1 is about a very"
    with pytest.raises(ValueError, match="has 12 stories, --eval 12 needs 13"):
        evaluation_prompts(tmp_path / "data" / "tiny", 12, 0.5)
    monkeypatch.setattr("corpus.token_files.BLOCK", 7)  # tokens: no story is within one
    trained = evaluation_prompts(tmp_path / "data" / "tiny", 27, 0.4, split="train")
    assert [prompt.text + prompt.reference for prompt in trained] == stories[13:]
    with pytest.raises(ValueError, match="its training split has 28 stories, --eval 28 needs 29"):
        evaluation_prompts(tmp_path / "data" / "tiny", 28, 0.5, split="train")
    preparation.prepare(tmp_path / "data" / "one", ["one"], corpus[1], corpus[1][:1], 300, 0.1, 0, 1)
    with pytest.raises(ValueError, match="has 1 story, --eval 1 needs 2"):
        evaluation_prompts(tmp_path / "data" / "one", 1, 0.5)
