"""controls.py: endings spoiled in one way each, the same ones whenever they are made."""

import random

from grade_fixtures import true_endings

from nanostories.grading.controls import make_controls, reordered
from nanostories.grading.scores import CUT, OTHER, SHUFFLED, TRUE_ENDING
from nanostories.grading.stories import Story
from nanostories.text import sentences


def test_each_is_spoiled_in_one_way():
    endings = true_endings(60)
    kinds = make_controls(endings)
    true = {story.prompt: story.completion for story in kinds[TRUE_ENDING]}
    assert {story.prompt: story.completion for story in endings} == true
    assert all(len(kinds[kind]) > 55 for kind in (SHUFFLED, OTHER, CUT))
    for kind in (SHUFFLED, OTHER, CUT):
        assert all(story.completion != true[story.prompt] for story in kinds[kind])
    for story in kinds[SHUFFLED]:
        ending = true[story.prompt]
        assert sorted(story.completion.split()) == sorted(ending.split()) and len(
            story.completion
        ) == len(ending)
        assert story.completion.startswith(sentences(ending, story.prompt)[0])
    for story in kinds[OTHER]:
        first = sentences(true[story.prompt], story.prompt)[0]
        rest = story.completion.removeprefix(first)
        assert story.completion.startswith(first)
        assert any(
            rest and other.endswith(rest)
            for prompt, other in true.items()
            if prompt != story.prompt
        )
    broken_off = Story("A cat", " sat. It ran. It fell. It slept. Then the")
    kinds_of_broken_off = make_controls([broken_off])
    assert not kinds_of_broken_off[CUT]  # it is cut already
    assert kinds_of_broken_off[SHUFFLED][0].completion.endswith(". Then the")  # it stays last
    for story in kinds[CUT]:
        ending = true[story.prompt]
        assert (
            ending.startswith(story.completion)
            and len(ending) / 4 < len(story.completion) < len(ending) - 1
        )
        assert story.completion[-1].isalnum() and not ending[len(story.completion)].isalnum()


def test_another_order_depends_on_the_sentences_alone():
    kinds = make_controls(true_endings(30))
    true = {story.prompt: story for story in kinds[TRUE_ENDING]}
    moved = 0
    for story in kinds[SHUFFLED]:
        for seed in (1, 3):
            order = reordered(story, seed)
            assert order == reordered(true[story.prompt], seed)
            assert sorted(order.split()) == sorted(story.completion.split()) and len(order) == len(
                story.completion
            )
            moved += order != true[story.prompt].completion
    assert moved > 50 and reordered(Story("A cat", " sat. It ran."), 1) == " sat. It ran."
    assert reordered(Story("A cat", ""), 1) == ""
    orders = {
        reordered(Story("A cat", " sat. It ran. It fell. It slept. Then the"), seed)
        for seed in range(9)
    }
    assert len(orders) > 2 and all(order.endswith(". Then the") for order in orders)


def test_more_stories_leave_them_as_they_were():
    """So what was paid for stays of use."""
    endings = true_endings(60)
    few, many = make_controls(endings[:50]), make_controls(random.Random(0).sample(endings, 60))
    for kind in (TRUE_ENDING, SHUFFLED, CUT):
        assert set(few[kind]) <= set(many[kind])
    assert len(set(few[OTHER]) & set(many[OTHER])) >= 40


def test_what_cannot_be_spoiled_is_left_out():
    kinds = make_controls([Story("A cat", " sat."), Story("A dog", "")])
    assert [len(kinds[kind]) for kind in (TRUE_ENDING, SHUFFLED, OTHER, CUT)] == [2, 0, 0, 0]
    assert len(make_controls([Story("A cat", " sat. It ran. It ran. It slept a lot.")])[OTHER]) == 0
    assert make_controls([]) == {TRUE_ENDING: [], SHUFFLED: [], OTHER: [], CUT: []}
