"""prompts.py: what is continued, from files, validation stories and headers."""

import pytest
from story_files import stories_in

from nanostories.corpus import instruct_headers
from nanostories.generation.prompts import (
    Prompt,
    cut_story,
    evaluation_prompts,
    openings,
    read_prompts,
)


@pytest.mark.parametrize(
    "beginning, ending, share",
    [
        ("One two", "  three\n\nfour, five.", 0.5),
        ("Alone.", "", 0.4),
        ("狐が森へ", "行った。", 0.6),
        ("「はい。」", "と言った。", 0.5),
        ("กาลครั้งห", "นึ่งนานมา", 0.5),
        # not between two sentences, but before the last word
        ("Tom had a", " ball. It was a red one.", 0.5),
        ('Mia said, "Please', ' sit." "I cannot."', 0.7),
        ('"Stop!"', " said Mr. Fox.", 0.3),
        ('"Stop!" said Mr.', " Fox.", 0.9),
    ],
)
def test_a_story_is_cut_between_two_words(beginning, ending, share):
    """Where there is no space between them, between two characters, with their marks."""
    assert cut_story(beginning + ending, share) == Prompt(beginning, ending)


def test_prompts_are_read_from_lines(tmp_path):
    (tmp_path / "a.txt").write_text("Once upon \n\nThere\u2028was\n", encoding="utf-8-sig")
    assert read_prompts(tmp_path / "a.txt") == [Prompt("Once upon"), Prompt("There\u2028was")]
    for name, text in (("empty.txt", " \n"), ("c.jsonl", '{"prompt": "Once"}')):
        (tmp_path / name).write_text(text)
        with pytest.raises(ValueError, match=f"{name}: no prompts"):
            read_prompts(tmp_path / name)


def test_the_evaluation_set_is_stories_2_and_on(corpus, tmp_path):
    tiny = tmp_path / "data" / "tiny"
    prompts = evaluation_prompts(tiny, 11, 0.5)
    assert [prompt.text + prompt.reference for prompt in prompts] == corpus[1:12]
    assert prompts[0].text == "Story 1 is about a very"
    assert openings(tiny, 4) == ["Story 0 is about a very small"]
    with pytest.raises(ValueError, match=f"{tiny}: .* train split has 27 stories"):
        evaluation_prompts(tiny, 28, 0.5, split="train")


def test_stories_drawn_at_random(corpus, tmp_path):
    """The seed decides which; more stories begin with the fewer; all of them are all but the first,
    each once."""

    def drawn(n: int, seed: int) -> list[Prompt]:
        return evaluation_prompts(tmp_path / "data" / "tiny", n, 0.4, split="train", seed=seed)

    every = drawn(27, 1)
    assert drawn(5, 1) == every[:5] != drawn(5, 2)
    assert sorted(prompt.text + prompt.reference for prompt in every) == sorted(corpus[13:])


def test_headers_of_validation_stories_are_prompts(instruct_data_dir):
    corpus = instruct_data_dir / "builtin-instruct-ood"
    stories = [instruct_headers.read(text) for text in stories_in(corpus, "val")]
    assert openings(corpus, 2)[0] in stories[0].story
    prompts = evaluation_prompts(corpus, 5, 0.5)
    for prompt, story in zip(prompts, stories[1:]):
        assert prompt == Prompt(story.header, f"\n\n{story.story}")
    asked = evaluation_prompts(corpus, 2, 0.5, ["words", "summary,words"])
    fields = [set(prompt.row()["instruction"]) for prompt in asked]
    assert fields == [{"words"}, {"words", "summary"}] * 2
    assert asked[0].reference == asked[1].reference == prompts[0].reference
    with pytest.raises(ValueError, match="[1-9][0-9]+ stories whose header has words,sentence"):
        evaluation_prompts(instruct_data_dir / "builtin-instruct", 10000, 0.5, ["words,sentence"])
