"""Headers over stories: read, written, drawn, derived; and corpora of stories under headers."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from story_files import misread, run_prepare, stories_in, write_stories
from tokenizer_texts import count_tokens

from nanostories.cli import UserError
from nanostories.corpus import instruct_headers, sources
from nanostories.corpus.instruct_headers import StoryWithHeader, story_tokens
from nanostories.corpus.token_files import load_meta
from nanostories.corpus.tokenizer import cut

BLOCK = """Features: Dialogue, Twist
Words: jump, frog, red
Story:

A red frog jumped.
"Oh!" it said."""


NO_HEADER = [
    "",
    "It ran.",
    "Words: a\nIt ran.",
    "oks.\nSummary: A.\nStory:\nHe ran.",
    "Story: It.",
]


def test_a_header_is_read_and_written():
    story = instruct_headers.read(BLOCK)
    fields = dict(features="Dialogue, Twist", words="jump, frog, red")
    assert story == StoryWithHeader(fields, 'A red frog jumped.\n"Oh!" it said.')
    assert list(story.fields) == ["features", "words"] and str(story) == BLOCK
    assert story.instruction == dict(words=["jump", "frog", "red"], features=["Dialogue", "Twist"])
    header = "Words: jump, frog, red\nStory:"
    assert story.only(["words"]).header == header
    assert instruct_headers.format_header(dict(words="jump,frog ,  red")) == header
    assert not any(instruct_headers.read(text) for text in NO_HEADER)


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
    expected = StoryWithHeader(dict(summary="A frog runs."), "It ran.\nStory: two.")
    assert instruct_headers.read(text) == expected


@pytest.mark.parametrize("vocab_size", [257, 50257])
def test_the_tokens_of_stories(vocab_size):
    """Told from the text alone; a vocabulary of 257 spells "Story:" in bytes."""
    told = ["It ran.\nStory: it.\n\nStory:\n\nAway.", "A.", "Words: no.", "“ó” 🐉"]
    texts = []
    for i, story in enumerate(told):
        texts.append(str(StoryWithHeader(dict(words="a, b", summary=f"{i}. Story: c"), story)))
    tokenizer = cut(count_tokens(" ".join(texts)), vocab_size)
    tokens = tokenizer.encode_stories(texts)
    is_story = story_tokens(tokens, tokenizer)
    expected = "".join(f"\n\n{story}<|endoftext|>" for story in told)
    assert tokenizer.decode(tokens[is_story]) == expected
    end = np.flatnonzero(tokens == tokenizer.end_of_text)[1] + 1  # where the third header begins
    for n in (0, 1, end - 2, end, end + 3):
        assert story_tokens(tokens[:n], tokenizer).tolist() == is_story[:n].tolist()
    assert not story_tokens(tokenizer.encode_stories(["No header.", "None."]), tokenizer).any()


# ---- Corpora ----
def read_corpus(directory: Path, *splits: str) -> list[StoryWithHeader]:
    texts = []
    for split in splits:
        texts += stories_in(directory, split)
    return [instruct_headers.read(text) for text in texts]


def with_headers(data_dir: Path, source: Path) -> list[StoryWithHeader]:
    flags = ("--headers", "--name", "x", "--data_dir", data_dir, "--val_share", 0.2)
    run_prepare("--input", source, *flags)
    return read_corpus(data_dir / "x", "train", "val")


def test_the_published_instruct_files(tmp_path, monkeypatch):
    """Their layout and slips: a fragment first, a summary below, bytes cut from a quotation
    mark."""
    block = "Words: {0}, b, c\nRandom sentence: It is {0}.\nStory: \n\nIt is {0}.\nOh!\n"
    train = [block.format(i) for i in range(40)]
    train.append("Features: Twist\nStory: \n\nIt ran.\n\nSummary: It \xe2\x80runs.\n")
    val = [block.format(i).replace("Words", "Summary") for i in range(30, 50)]
    val.insert(0, "ooks. He ran.\nSummary: He ran.\n")
    for split, stories in (("train", train), ("valid", val)):
        text = "<|endoftext|>\n".join([*stories, ""])
        (tmp_path / f"TinyStories-Instruct-{split}.txt").write_bytes(text.encode("latin-1"))
    monkeypatch.setattr(sources, "from_hub", lambda *args, **others: tmp_path)
    for corpus, headers in (("instruct", sources.ANY), ("instruct-ood", sources.OOD)):
        run_prepare(corpus, "--vocab_size", 400, "--data_dir", tmp_path)
        assert load_meta(tmp_path / corpus)["headers"] == headers

    stories = stories_in(tmp_path / "instruct", "train")
    assert stories[0] == "Words: 0, b, c\nRandom sentence: It is 0.\nStory:\n\nIt is 0.\nOh!"
    assert stories[-1] == "Features: Twist\nSummary: It \ufffdruns.\nStory:\n\nIt ran."
    counts = load_meta(tmp_path / "instruct")["cleaning"]
    assert counts["without a header or a story dropped"] == 1
    # though their headers are others
    assert counts["validation stories dropped from train"] == 10 == 41 - len(stories)


def test_builtin_under_headers(instruct_data_dir):
    """The same stories in the same splits as without headers; the share of those whose header has
    words and summary."""
    for corpus, train_share, val_share in (
        ("builtin-instruct", 4 / 15, 4 / 15),
        ("builtin-instruct-ood", 0, 1),
    ):
        for split, share in (("train", train_share), ("val", val_share)):
            stories = read_corpus(instruct_data_dir / corpus, split)
            plain = stories_in(instruct_data_dir / "builtin", split)
            assert [story.story for story in stories] == plain
            n_both = sum({"words", "summary"} <= story.fields.keys() for story in stories)
            assert n_both / len(stories) == pytest.approx(share, rel=0.35)


def test_a_row_of_synthesize_keeps_its_own_fields_as_its_header(tmp_path):
    """Some of them, as in the published texts; another row gets a header made from its story."""
    own = dict(
        words=["win", "frog"], features=["Twist"], summary="A frog\nwins.", sentence="It won."
    )
    rows = [own | dict(text=f"A frog, number {i}, is here.\n\nIt won.") for i in range(150)]
    rows += [dict(text=f"Tom {i} ate.", words=[], features=[]) for i in range(50)]
    jsonl = tmp_path / "stories.jsonl"
    jsonl.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = with_headers(tmp_path, jsonl)
    assert sorted(story.story for story in found) == sorted(row["text"] for row in rows)
    shown = dict(words="win, frog", features="Twist", summary="A frog wins.", sentence="It won.")
    headers = set()
    for story in found:
        if "frog" in story.story:
            assert story.fields.items() <= shown.items()
            headers.add(story.header)
        else:
            assert story.fields.items() <= dict(words="eat", sentence=story.story).items()
    assert len(headers) > 30
    (tmp_path / "bad.jsonl").write_text('{"text": 3, "words": ["ran"]}\n')
    with pytest.raises(UserError, match="bad.jsonl: no story in line 1"):
        list(sources.read_files([tmp_path / "bad.jsonl"], headers=True))

    table = pytest.importorskip("pyarrow").Table.from_pylist(rows)
    parquet = tmp_path / "stories.parquet"
    pytest.importorskip("pyarrow.parquet").write_table(table, parquet)
    from_jsonl = list(sources.read_files([jsonl], headers=True))
    assert list(sources.read_files([parquet], headers=True)) == from_jsonl


def test_your_own_stories_get_headers_of_the_cleaned_text(tmp_path):
    """Quotes behind mojibake are seen, ’ is an apostrophe, and no sentence is blank or cut out of
    speech."""
    texts = []
    for i in range(100):
        for opening, closing in ("“”", "‘’"):
            speech = f"{opening}I won’t run. I can’t.{closing}"
            texts.append(f"{speech} Then Tom {i} ate.\n\n\nBye.")
    given = "Summary: A given one.\nStory:\n\nIt ran."
    path = write_stories(tmp_path / "t.txt", [*map(misread, texts), given])
    stories = with_headers(tmp_path, path)
    assert load_meta(tmp_path / "x")["headers"] == sources.ANY
    assert given in [str(story) for story in stories]
    assert sorted(story.story for story in stories) == sorted([*texts, "It ran."])
    sentences = set()
    for story in stories:
        assert story.fields.get("features", "Dialogue") == "Dialogue"
        assert "win" not in story.fields.get("words", "")
        sentences.add(re.sub(r"\d+", "", story.fields.get("sentence", "Bye.")))
    assert sentences == {"Then Tom  ate.", "Bye."}
