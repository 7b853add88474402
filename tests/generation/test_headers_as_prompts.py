"""Stories to order: headers as prompts, from validation stories and from the command line."""

import sys

import pytest
from conftest import arguments, settings
from sample_fixtures import rows_of
from story_files import stories_in

import train as train_module
from corpus import instruct_headers
from generation.prompts import evaluation_prompts


def test_headers_of_validation_stories_are_prompts(instruct_data_dir):
    told = [instruct_headers.read(text) for text in stories_in(instruct_data_dir / "builtin-instruct-ood", "val")]
    prompts = evaluation_prompts(instruct_data_dir / "builtin-instruct-ood", 5, 0.5)
    assert [prompt.text + prompt.reference for prompt in prompts] == [str(one) for one in told[1:6]]
    assert all(prompt.text.endswith("\nStory:") for prompt in prompts)
    asked = evaluation_prompts(instruct_data_dir / "builtin-instruct-ood", 4, 0.5, ["words", "summary,words"])
    assert [set(prompt.instruction) for prompt in asked] == [{"words"}, {"words", "summary"}] * 4
    assert [prompt.reference for prompt in asked[::2]] == [prompt.reference for prompt in prompts[:4]]
    with pytest.raises(
        ValueError,
        match="has [1-9][0-9]+ stories after its first whose header has sentence, words, --eval 10000 needs 10000",
    ):
        evaluation_prompts(instruct_data_dir / "builtin-instruct", 10000, 0.5, ["words,sentence"])
    with pytest.raises(ValueError, match="has 0 stories after its first whose header has words, --eval 3 needs 3"):
        evaluation_prompts(instruct_data_dir / "builtin", 3, 0.5, ["words"])


@pytest.fixture
def trained(instruct_data_dir, tmp_path, monkeypatch, capsys):
    """out/run of a model with a context that holds header and story, as train.py's command line leaves it."""
    monkeypatch.chdir(tmp_path)
    config = settings(instruct_data_dir, tmp_path) | dict(
        data="builtin-instruct",
        loss_on="story",
        eval_tokens=4000,
        block_size=512,
        max_steps=2,
        eval_interval=2,
        batch_size=1,
        out_dir="out",
    )
    monkeypatch.setattr(sys, "argv", ["train.py", *arguments(config | dict(out_dir=str(tmp_path / "out")))])
    train_module.main()
    return tmp_path / "out" / "run", capsys.readouterr().out


def test_a_run_ends_with_a_story_to_order_and_says_how_to_ask(trained):
    _, said = trained
    assert "\nWords: hide, fox, little\nStory:" in said and '--words "jump, frog, red"' in said.splitlines()[-2]


def test_asked_for_by_command_line(trained, sample_py, instruct_data_dir):
    run, _ = trained
    asked = ("--words", "jump,frog , red", "--features", "Dialogue, Twist", "--summary", "It\nran.", "--n", "1")
    code, printed = sample_py(*asked, "--max_new_tokens", "3")
    header = "Words: jump, frog, red\nFeatures: Dialogue, Twist\nSummary: It ran.\nStory:"
    assert code == 0 and printed.out.startswith(header)
    code, printed = sample_py("--sentence", "It ran.", "--out", "out/x.jsonl", "--n", "2", "--max_new_tokens", "3")
    assert (
        code == 0 and [row["instruction"] for row in rows_of(run.parent / "x.jsonl")] == [dict(sentence="It ran.")] * 2
    )
    for args, complaint in (
        (("--features", "Dialog"), "no such feature: Dialog; the features are Dialogue, Twist, BadEnding, MoralValue"),
        (("--words", "a", "--eval", "3"), "--words make a prompt: leave out --prompt, --prompts and --eval"),
        (("--eval", "3", "--ask", "word"), "--ask must be words, features, summary, sentence"),
    ):
        code, printed = sample_py(*args)
        assert code == 2 and complaint in printed.err.splitlines()[-1]


def test_a_model_behind_an_endpoint_is_told_what_a_header_is(endpoint, sample_py):
    endpoint.fault = lambda number, request: ("say", "A frog.")
    assert sample_py("--model", "api:m", "--words", "frog", "--n", "1")[0] == 0
    system, user = endpoint.requests[0]["messages"]
    assert user["content"] == "Words: frog\nStory:" and "breaks off" not in system["content"]
