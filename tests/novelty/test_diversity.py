"""nanostories/novelty/diversity.py: what was planted in a corpus is counted."""

import pytest
from planted import write_corpus

import rouge
from nanostories.corpus import builtin_stories
from nanostories.corpus.instruct_headers import add_header
from nanostories.corpus.sources import ANY
from nanostories.corpus.token_files import stories_of
from nanostories.novelty.diversity import metrics_of
from nanostories.novelty.words import open_corpus
from nanostories.results import load


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """80 training stories that share nothing but their openings, of which half are retold once;
    20 validation stories, of which 5 are copies but for their capitals and marks, 5 retold."""
    new = []
    for i in range(70):
        words = [f"word{i}x{j}" for j in range(60)]
        new.append(f"Once upon a time {' '.join(words)}.")
    retold = [f"Once there was a change. {text[20:]} The end." for text in new]
    copied = [f'"{text[:-1].upper()}!"' for text in new]
    training = [text for pair in zip(new[:40], retold[:40]) for text in pair]
    validation = [*new[60:], *copied[:5], *retold[5:10][::-1]]
    validation[-5:] = [text.replace("change", "fox") for text in validation[-5:]]
    directory = tmp_path_factory.mktemp("diversity")
    write_corpus(directory / "clean", [s.text for s in builtin_stories.stories(60)], new[:20])
    return write_corpus(directory / "planted", training, validation)


def test_planted_copies_and_retold_stories_are_counted(data):
    corpus = open_corpus(data)
    stories = [corpus.encode(corpus.text(i)) for i in range(len(corpus))]
    metrics = {name: metric.cells() for name, metric in metrics_of(corpus, stories).items()}
    found = {name: (x["completions"][0], x["baseline"][0]) for name, x in metrics.items()}
    assert found["copy"] == (5 / 20, 0)
    assert found["near-duplicate"] == (10 / 20, 1)  # every training story has its like
    assert found["dialogue"] == (5 / 20, 0)
    # new[60:] share one 4-gram of 61
    assert found["share of 4-grams in any other story"][0] < 0.52


def test_headers_are_no_story(tmp_path):
    texts = [story.text for story in builtin_stories.stories(40)]
    headed = [add_header(text) for text in texts]
    for name, stories in (("plain", texts), ("headed", headed)):
        facts = {"headers": ANY} if name == "headed" else {}
        write_corpus(tmp_path / name, stories[:30], stories[30:], **facts)
    plain, without = (open_corpus(tmp_path / name) for name in ("plain", "headed"))
    assert [plain.text(i) for i in range(30)] == [without.text(i).strip() for i in range(30)]
    held_out = [list(stories_of(corpus.held_out, corpus.tokenizer)) for corpus in (plain, without)]
    assert held_out[0] == [text.strip() for text in held_out[1]]


def test_corpora_stand_beside_each_other(data, command_line, tmp_path):
    clean = data.parent / "clean"
    code, printed = command_line(rouge, tmp_path)(data, clean)
    assert code == 0 and (data / "diversity.png").exists()
    tables = {table.facts["kind"]: table.rows for table in load(data / "diversity.json").tables}
    assert [row["training stories"] for row in tables["data"]] == [80, 60]
    first, second, *_ = tables["openings"]
    assert (first["opening"], first["stories"]) == ("once upon a time", 0.5)
    assert (second["opening"], second["stories"]) == ("once there was a", 0.5)
    few, many = (row["distinct 1-grams"] for row in tables["data"])
    assert few > many  # made-up words against the few of the built-in stories
