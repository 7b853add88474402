"""nanostories/novelty/diversity.py: what was planted in a corpus is counted."""

from planted import write_corpus

import rouge
from nanostories.corpus import builtin_stories
from nanostories.corpus.instruct_headers import add_header
from nanostories.corpus.sources import ANY
from nanostories.corpus.token_files import stories_of
from nanostories.novelty.words import open_corpus
from nanostories.results import load


def test_headers_are_no_story(tmp_path):
    texts = [story.text for story in builtin_stories.stories(40)]
    headed = [add_header(text) for text in texts]
    corpus = open_corpus(write_corpus(tmp_path / "headed", headed[:30], headed[30:], headers=ANY))
    held_out = stories_of(corpus.held_out, corpus.tokenizer)
    found = [*map(corpus.text, range(30)), *held_out]
    assert [text.strip() for text in found] == texts


def test_planted_copies_and_retold_stories_are_counted(command_line, tmp_path):
    """80 training stories that share nothing but their openings, of which half are retold once;
    20 validation stories, of which 5 are copies but for their capitals and marks, 5 retold. Beside
    them, a clean corpus."""
    new = []
    for i in range(70):
        words = [f"word{i}x{j}" for j in range(60)]
        new.append(f"Once upon a time {' '.join(words)}.")
    retold = [f"Once there was a change. {text[20:]} The end." for text in new]
    copied = [f'"{text[:-1].upper()}!"' for text in new[:5]]
    again = [text.replace("change", "fox") for text in retold[5:10]]
    training = [text for pair in zip(new[:40], retold[:40]) for text in pair]
    data = write_corpus(tmp_path / "planted", training, [*new[60:], *copied, *again])
    clean = [story.text for story in builtin_stories.stories(60)]
    write_corpus(tmp_path / "clean", clean, new[:20])
    assert command_line(rouge, tmp_path)("planted clean")[0] == 0
    assert (data / "diversity.png").exists()
    tables = {table.facts["kind"]: table.rows for table in load(data / "diversity.json").tables}
    assert [row["training stories"] for row in tables["data"]] == [80, 60]
    openings = {row["opening"]: row["stories"] for row in tables["openings"][:2]}
    assert openings == {"once upon a time": 0.5, "once there was a": 0.5}
    few, many = (row["distinct 1-grams"] for row in tables["data"])
    assert few > many  # made-up words against the few of the built-in stories
    found = {}
    for row in tables["diversity"]:
        if row["data"] == "planted":
            found[row["measure"]] = (row["validation"][0], row["training"][0])
    assert found["copy of another story"] == found["has dialogue"] == (5 / 20, 0)
    assert found["near-duplicate"] == (10 / 20, 1)  # every training story has its like
    # new[60:] share one 4-gram of 61
    assert found["share of 4-grams in any other story"][0] < 0.52
