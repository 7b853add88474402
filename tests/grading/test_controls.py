"""controls.py: endings spoiled in one way each, the same ones whenever they are made."""

import random

from grade_fixtures import true_endings

from nanostories.grading.controls import make_controls, reordered
from nanostories.grading.scores import CUT, OTHER, SHUFFLED, SPOILED, TRUE_ENDING
from nanostories.grading.stories import Story
from nanostories.text import sentences


def test_each_is_spoiled_in_one_way():
    endings = true_endings(60)
    kinds = make_controls(endings)
    true = {story.prompt: story.completion for story in endings}
    assert {story.prompt: story.completion for story in kinds[TRUE_ENDING]} == true

    def spoiled(kind: str):
        """Yields (true ending, its first sentence, what became of it)."""
        assert len(kinds[kind]) > 55
        for story in kinds[kind]:
            ending = true[story.prompt]
            assert story.completion != ending
            yield ending, sentences(ending, story.prompt)[0], story.completion

    for ending, first, text in spoiled(SHUFFLED):
        assert sorted(text) == sorted(ending) and text.startswith(first)
    for ending, first, text in spoiled(OTHER):
        rest = text.removeprefix(first)
        assert rest and rest != text
        assert any(other.endswith(rest) for other in true.values() if other != ending)
    for ending, _, text in spoiled(CUT):
        n = len(text)
        assert ending.startswith(text) and len(ending) / 4 < n < len(ending) - 1
        assert ending[n - 1].isalnum() and not ending[n].isalnum()


def test_another_order_depends_on_the_sentences_alone():
    kinds = make_controls(true_endings(30))
    true = {story.prompt: story for story in kinds[TRUE_ENDING]}
    for story in kinds[SHUFFLED]:
        assert reordered(story, 1) == reordered(true[story.prompt], 1)
    assert reordered(Story("A cat", ""), 1) == ""


def test_a_sentence_that_breaks_off_stays_last():
    broken_off = Story("A cat", " sat. It ran. It fell. It slept. Then the")
    orders = {reordered(broken_off, seed) for seed in range(9)}
    assert len(orders) > 2 and all(order.endswith(". Then the") for order in orders)
    assert not make_controls([broken_off])[CUT]  # it is cut already


def test_more_stories_leave_them_as_they_were():
    """So what was paid for stays of use."""
    endings = true_endings(60)
    few, many = make_controls(endings[:50]), make_controls(random.Random(0).sample(endings, 60))
    for kind in (TRUE_ENDING, SHUFFLED, CUT):
        assert set(few[kind]) <= set(many[kind])
    assert len(set(few[OTHER]) & set(many[OTHER])) >= 40


def test_what_cannot_be_spoiled_is_left_out():
    kinds = make_controls([Story("A cat", " sat."), Story("A dog", "")])
    assert [len(kinds[kind]) for kind in (TRUE_ENDING, *SPOILED)] == [2, 0, 0, 0]
