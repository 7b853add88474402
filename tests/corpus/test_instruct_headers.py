"""Headers over stories: read, written, drawn, derived; and corpora of stories under headers."""

import importlib
import json
import re
import subprocess
import sys

import numpy as np
import pytest
from conftest import ROOT
from story_files import misread, run_prepare, stories_in, write_stories

from nanostories.corpus import instruct_headers, sources
from nanostories.corpus.instruct_headers import StoryWithHeader, story_tokens
from nanostories.corpus.token_files import load_meta
from nanostories.corpus.tokenizer import GPT2_VOCAB_SIZE, cut, gpt2

BLOCK = """Features: Dialogue, Twist
Words: jump, frog, red
Story:

A red frog jumped.
"Oh!" it said."""


def test_a_header_is_read_and_written():
    story = instruct_headers.read(BLOCK)
    fields = dict(features="Dialogue, Twist", words="jump, frog, red")
    assert story == StoryWithHeader(fields, 'A red frog jumped.\n"Oh!" it said.')
    assert list(story.fields) == ["features", "words"] and str(story) == BLOCK
    assert story.instruction == dict(words=["jump", "frog", "red"], features=["Dialogue", "Twist"])
    assert story.only(["words"]).header == "Words: jump, frog, red\nStory:"
    assert (
        instruct_headers.format_header(dict(words="jump,frog ,  red"))
        == "Words: jump, frog, red\nStory:"
    )
    for text in (
        "",
        "It ran.",
        "Words: a\nIt ran.",
        "oks.\nSummary: A.\nStory:\nHe ran.",
        "Story: It.",
    ):
        assert instruct_headers.read(text) is None


@pytest.mark.parametrize(
    "text",
    [
        # on two lines; a story may say story
        "Summary: A frog\nruns.\nStory: \n\nIt ran.\nStory: two.",
        "Summary: No.\nSummary: A frog runs.\nStory:\nIt ran.\nStory: two.",  # twice
        "Story: \n\nIt ran.\nStory: two.\n\nSummary: A frog runs.",  # below the story
        "Story: It ran.\nStory: two.\nSummary: A frog runs.\n",  # and the story behind the colon
    ],
)
def test_oddities_of_the_published_files(text):
    assert instruct_headers.read(text) == StoryWithHeader(
        dict(summary="A frog runs."), "It ran.\nStory: two."
    )


@pytest.mark.parametrize("vocab_size", [257, 400, 50257])
def test_the_tokens_of_stories(vocab_size):
    """Told from the text alone; a vocabulary of 257 spells "Story:" in bytes."""
    told = ["It ran.\nStory: it.\n\nStory:\n\nAway.", "A.", "Words: no.", "“ó” 🐉"]
    texts = [
        str(StoryWithHeader(dict(words="a, b", summary=f"{i}. Story: c"), story))
        for i, story in enumerate(told)
    ]
    counts = np.bincount(gpt2().encode(" ".join(texts)), minlength=GPT2_VOCAB_SIZE)
    tokenizer = gpt2() if vocab_size == GPT2_VOCAB_SIZE else cut(counts, vocab_size)
    tokens = tokenizer.encode_stories(texts)
    assert tokenizer.decode(tokens[story_tokens(tokens, tokenizer)]) == "".join(
        f"\n\n{t}<|endoftext|>" for t in told
    )
    whole = story_tokens(tokens, tokenizer)
    end = np.flatnonzero(tokens == tokenizer.end_of_text)[1] + 1  # where the third header begins
    for n in (0, 1, end - 2, end, end + 3):
        assert story_tokens(tokens[:n], tokenizer).tolist() == whole[:n].tolist()
    assert not story_tokens(tokenizer.encode_stories(["No header.", "None."]), tokenizer).any()


# ---- Corpora ----
def test_instruct_from_the_hub(hub, tmp_path):
    """The published files' layout and slips: a fragment first, a summary below, bytes cut from a
    quotation mark."""
    block = "Words: {0}, b, c\nRandom sentence: It is {0}.\nStory: \n\nIt is {0}.\nOh!\n"
    train = [block.format(i) for i in range(40)]
    train.append("Features: Twist\nStory: \n\nIt ran.\n\nSummary: It \xe2\x80runs.\n")
    val = [
        "ooks. He ran.\nSummary: He ran.\n",
        *(block.format(i).replace("Words", "Summary") for i in range(30, 50)),
    ]
    texts = {
        split: "<|endoftext|>\n".join([*stories, ""])
        for split, stories in (("train", train), ("valid", val))
    }
    files = {
        f"TinyStories-Instruct-{split}.txt": text.encode("latin-1") for split, text in texts.items()
    }
    hub.repositories = {"datasets/roneneldan/TinyStoriesInstruct": files}
    offline = dict(HF_ENDPOINT="http://127.0.0.1:9")  # the files are those of the other corpus
    for corpus, headers, more in (
        ("instruct", sources.ANY, {}),
        ("instruct-ood", sources.OOD, offline),
    ):
        command = [sys.executable, ROOT / "prepare.py", corpus, "--vocab_size", "400"]
        environment = hub.environment(tmp_path / "cache", **more)
        subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)
        assert load_meta(tmp_path / "data" / corpus)["headers"] == headers
    stories, directory = (
        stories_in(tmp_path / "data" / "instruct", "train"),
        tmp_path / "data" / "instruct",
    )
    assert stories[0] == "Words: 0, b, c\nRandom sentence: It is 0.\nStory:\n\nIt is 0.\nOh!"
    assert stories[-1] == "Features: Twist\nSummary: It \ufffdruns.\nStory:\n\nIt ran."
    assert (
        len(stories) == 31
    )  # the ten stories that are in val are not here, though their headers are others
    assert stories_in(directory, "val")[0].startswith(
        "Summary: 30, b, c\nRandom sentence: It is 30.\nStory:"
    )
    cleaning = load_meta(directory)["cleaning"]
    assert (
        cleaning["empty dropped"] == 1 and cleaning["validation stories dropped from train"] == 10
    )


def test_builtin_under_headers(instruct_data_dir):
    """The same stories in the same splits as without headers; out of distribution as it says."""
    for corpus in ("builtin-instruct", "builtin-instruct-ood"):
        for split in ("train", "val"):
            with_headers = [
                instruct_headers.read(text)
                for text in stories_in(instruct_data_dir / corpus, split)
            ]
            assert [one.story for one in with_headers] == stories_in(
                instruct_data_dir / "builtin", split
            )
            both = sum({"words", "summary"} <= one.fields.keys() for one in with_headers) / len(
                with_headers
            )
            assert (
                0.18 < both < 0.36 if corpus == "builtin-instruct" else both == (split == "val")
            )  # 4 of 15


def test_a_row_of_synthesize_keeps_its_own_fields_as_its_header(tmp_path):
    """Some of them, as in the published texts; another row gets a header made from its story."""
    own = dict(
        words=["win", "frog", "red"],
        features=["Twist"],
        summary="A frog\nwins.",
        sentence="It won.",
    )
    rows = [own | dict(text=f"A frog, number {i}, is here.\n\nIt won.") for i in range(150)]
    rows += [dict(text=f"Tom {i} ate.", words=[], features=[]) for i in range(50)]
    (tmp_path / "stories.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    to = ("--data_dir", tmp_path, "--val_share", 0.2)
    run_prepare("--input", tmp_path / "stories.jsonl", "--headers", "--name", "x", *to)
    found = [
        instruct_headers.read(text)
        for split in ("train", "val")
        for text in stories_in(tmp_path / "x", split)
    ]
    assert sorted(story.story for story in found) == sorted(row["text"] for row in rows)
    own |= dict(words="win, frog, red", features="Twist", summary="A frog wins.")
    headers = {tuple(story.fields.items()) for story in found if "frog" in story.story}
    assert (
        all(own[name] == text for header in headers for name, text in header) and len(headers) > 30
    )
    made = [story for story in found if "Tom" in story.story]
    assert all(
        story.fields.items() <= dict(words="eat", sentence=story.story).items() for story in made
    )
    (tmp_path / "bad.jsonl").write_text('{"text": 3, "words": ["ran"]}\n')
    with pytest.raises(SystemExit, match="bad.jsonl: no story in line 1"):
        run_prepare("--input", tmp_path / "bad.jsonl", "--headers", "--name", "y", *to)
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(
        importlib.import_module("pyarrow").Table.from_pylist(rows), tmp_path / "stories.parquet"
    )
    from_jsonl = sources.read_files([tmp_path / "stories.jsonl"], headers=True)
    from_parquet = sources.read_files([tmp_path / "stories.parquet"], headers=True)
    assert list(from_jsonl) == list(from_parquet)


def test_your_own_stories_get_headers_of_the_cleaned_text(tmp_path):
    """Quotes behind mojibake are seen, ’ is an apostrophe, and no sentence is blank or cut out of
    speech."""
    texts = [
        f"{a}I won’t run. I can’t.{b} Then Tom {i} ate.\n\n\nBye."
        for i in range(100)
        for a, b in ("“”", "‘’")
    ]
    given = "Summary: A given one.\nStory:\n\nIt ran."
    path = write_stories(tmp_path / "t.txt", [*(misread(text, "kept") for text in texts), given])
    run_prepare(
        "--input", path, "--headers", "--name", "x", "--data_dir", tmp_path, "--val_share", 0.2
    )
    found = stories_in(tmp_path / "x", "train") + stories_in(tmp_path / "x", "val")
    stories = [instruct_headers.read(text) for text in found]
    assert given in found and sorted(story.story for story in stories) == sorted(
        [*texts, "It ran."]
    )
    assert {story.fields.get("features", "Dialogue") for story in stories} == {"Dialogue"}
    assert all("win" not in story.fields.get("words", "") for story in stories)
    sentences = {
        re.sub(r"\d+", "", story.fields["sentence"])
        for story in stories
        if "sentence" in story.fields
    }
    assert (
        sentences == {"Then Tom  ate.", "Bye."}
        and load_meta(tmp_path / "x")["headers"] == sources.ANY
    )
