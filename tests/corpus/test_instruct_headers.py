"""Headers over stories: read, written, drawn, derived; and corpora of stories under headers."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from story_files import misread, prepared_stories, run_prepare, stories_in, write_stories
from tokenizer_texts import count_tokens

from nanostories.corpus import instruct_headers, sources
from nanostories.corpus.instruct_headers import StoryWithHeader, story_tokens
from nanostories.corpus.token_files import load_meta
from nanostories.corpus.tokenizer import cut

BLOCK = """Features: Dialogue, Twist
Words: jump, frog, red
Story:

A red frog jumped.
"Oh!" it said."""


NO_HEADER = ["It ran.", "Words: a\nIt ran.", "oks.\nSummary: A.\nStory:\nHe ran.", "Story: It."]


def test_a_header_is_read_and_written():
    story = instruct_headers.read(BLOCK)
    fields = dict(features="Dialogue, Twist", words="jump, frog, red")
    assert story == StoryWithHeader(fields, 'A red frog jumped.\n"Oh!" it said.')
    assert str(story) == BLOCK
    assert story.instruction == dict(words=["jump", "frog", "red"], features=["Dialogue", "Twist"])
    header = story.only(["words"]).header
    assert header == instruct_headers.format_header(dict(words="jump,frog ,  red"))
    assert not any(instruct_headers.read(text) for text in NO_HEADER)


ODDITIES = [
    "Summary: A frog\nruns.\nStory: \n\nIt ran.\nStory: two.",  # a story may say story
    "Summary: No.\nSummary: A frog runs.\nStory:\nIt ran.\nStory: two.",
    "Story: It ran.\nStory: two.\n\nSummary: A frog runs.\n",  # below the story
]


@pytest.mark.parametrize("text", ODDITIES)
def test_oddities_of_the_published_files(text):
    expected = StoryWithHeader(dict(summary="A frog runs."), "It ran.\nStory: two.")
    assert instruct_headers.read(text) == expected


@pytest.mark.parametrize("vocab_size", [257, 50257])
def test_the_tokens_of_stories(vocab_size):
    """Told from the text alone; a vocabulary of 257 spells "Story:" in bytes."""
    told = ["It ran.\nStory: it.\n\nStory:\n\nAway.", "A.", "Words: no.", "“ó” 🐉"]
    texts = [str(StoryWithHeader(dict(summary="No. Story: c"), story)) for story in told]
    tokenizer = cut(count_tokens(" ".join(texts)), vocab_size)
    tokens = tokenizer.encode_stories(texts)
    is_story = story_tokens(tokens, tokenizer)
    expected = "".join(f"\n\n{story}<|endoftext|>" for story in told)
    assert tokenizer.decode(tokens[is_story]) == expected
    end = np.flatnonzero(tokens == tokenizer.end_of_text)[1] + 1  # where the third header begins
    for n in (0, end - 2, end + 3):
        assert story_tokens(tokens[:n], tokenizer).tolist() == is_story[:n].tolist()
    assert not story_tokens(tokenizer.encode_stories(["No header.", "None."]), tokenizer).any()


# ---- Corpora ----
def with_headers(data_dir: Path, source: Path) -> list[StoryWithHeader]:
    texts = prepared_stories(data_dir, source, "--headers", "--val_share", 0.2)
    return [instruct_headers.read(text) for text in texts]


def test_the_published_instruct_files(tmp_path, monkeypatch):
    """Their layout and slips: a fragment first, a summary below, bytes cut from a quotation
    mark."""
    block = "Words: {0}, b, c\nRandom sentence: It is {0}.\nStory: \n\nIt is {0}.\nOh!\n"
    train = [block.format(i) for i in range(40)]
    train.append("Features: Twist\nStory: \n\nIt ran.\n\nSummary: It \xe2\x80runs.\n")
    val = [story.replace("Words", "Summary") for story in train[30:40]]
    val.insert(0, "ooks. He ran.\nSummary: He ran.\n")
    for split, stories in (("train", train), ("valid", val)):
        text = "<|endoftext|>\n".join(stories)
        (tmp_path / f"TinyStories-Instruct-{split}.txt").write_bytes(text.encode("latin-1"))
    monkeypatch.setattr(sources, "from_hub", lambda *args, **others: tmp_path)
    run_prepare("instruct", "--vocab_size", 400, "--data_dir", tmp_path)
    stories = stories_in(tmp_path / "instruct", "train")
    assert stories[0] == "Words: 0, b, c\nRandom sentence: It is 0.\nStory:\n\nIt is 0.\nOh!"
    assert stories[-1] == "Features: Twist\nSummary: It \ufffdruns.\nStory:\n\nIt ran."
    assert load_meta(tmp_path / "instruct")["cleaning"]["dropped without a header or a story"] == 1
    assert len(stories) == 31  # without those in val, though their headers are others


@pytest.mark.parametrize(
    "corpus, shares", [("builtin-instruct", (4 / 15, 4 / 15)), ("builtin-instruct-ood", (0, 1))]
)
def test_builtin_under_headers(instruct_data_dir, corpus, shares):
    """The same stories in the same splits as without headers; the share of those whose header has
    words and summary."""
    for split, share in zip(("train", "val"), shares):
        texts = stories_in(instruct_data_dir / corpus, split)
        stories = [instruct_headers.read(text) for text in texts]
        plain = stories_in(instruct_data_dir / "builtin", split)
        assert [story.story for story in stories] == plain
        n_both = sum({"words", "summary"} <= story.fields.keys() for story in stories)
        assert n_both / len(stories) == pytest.approx(share, rel=0.35)


def test_a_row_of_synthesize_keeps_its_own_fields_as_its_header(tmp_path):
    """Some of them, as in the published texts."""
    own = dict(words=["win", "frog"], features=["Twist"], summary="A frog\nwins.")
    rows = [own | dict(text=f"A frog, number {i}, is here.") for i in range(90)]
    path = tmp_path / "stories.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    found = with_headers(tmp_path, path)
    assert sorted(story.story for story in found) == sorted(row["text"] for row in rows)
    shown = dict(words="win, frog", features="Twist", summary="A frog wins.")
    assert all(story.fields.items() <= shown.items() for story in found)
    assert len({story.header for story in found}) > 10  # of 15: any subset, in any order


def test_your_own_stories_get_headers_of_the_cleaned_text(tmp_path):
    """Quotes behind mojibake are seen, ’ is an apostrophe, and no sentence is blank or cut out of
    speech."""
    texts = []
    for i in range(100):
        texts.append(f"“I won’t run. I can’t.” Then Tom {i} ate.\n\n\nBye.")
        texts.append(f"‘I won’t run. I can’t.’ Then Tom {i} ate.\n\n\nBye.")
        texts.append(f"Then Tom {i} ate.")  # nobody speaks
    given = "Summary: A given one.\nStory:\n\nIt ran."
    path = write_stories(tmp_path / "t.txt", [*map(misread, texts), given])
    stories = with_headers(tmp_path, path)
    assert load_meta(tmp_path / "x")["headers"] == sources.ANY
    assert given in map(str, stories)
    sentences = set()
    for story in stories:
        if "features" in story.fields:
            assert story.fields["features"] == "Dialogue" and "won’t" in story.story
        assert "win" not in story.fields.get("words", "")
        sentences.add(re.sub(r"\d+", "", story.fields.get("sentence", "Bye.")))
    assert sentences == {"Then Tom  ate.", "Bye."}
