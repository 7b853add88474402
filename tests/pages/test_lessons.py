"""nanostories/pages/lessons.py, and its lessons on the page."""

import pytest
import torch
from planted_model import WORDS, V, planted_corpus, planted_model
from random_models import random_model
from story_pages import page_of

from nanostories.pages import story_page as pages
from nanostories.pages.lessons import Claim, Lesson, find_lessons, lessons_at


def held(model) -> set[str]:
    """The kinds of lessons that hold for a model of planted_model.WORDS."""
    stories = [story.tokens.tolist() for story in planted_corpus(20).stories]
    words = [f" {word}" for word in WORDS]
    found = find_lessons(model, pages.head_means(model, stories), words, stories)
    assert len(found) == 5
    return {lesson.kind for lesson in found if lesson.holds}


def test_lessons_hold_for_a_planted_model_and_none_for_a_random_one():
    assert held(planted_model()) >= {"heads", "switch", "hero"}
    assert held(random_model(vocab_size=V)) == set()


def test_a_lesson_holds_if_all_its_claims_do():
    claims = [Claim("", 0.5, low=0.5), Claim("", 0.4, low=0.5), Claim("", 0.6, high=0.5)]
    lessons = [Lesson("dice", [], 0, [claims[0], claim], {}) for claim in claims]
    assert [lesson.holds for lesson in lessons] == [True, False, False]


def page_with(tmp_path, monkeypatch, lessons):
    """A page of a random model; lessons: called with what find_lessons is, in its place"""
    monkeypatch.setattr(pages, "find_lessons", lessons)
    path = tmp_path / "story.html"
    path.write_bytes(page_of(random_model(vocab_size=300, block_size=48)))
    return path


OPENED = """measureAgain(data.lessons[%d]).then((now) => [
  now,
  data.lessons[%d].claims.map((claim) => claim.measured),
  tab,
  looking.i === 30 && looking.told === story,
  [...$("claims").querySelectorAll("td:last-child")].map((td) => td.textContent),
])"""


def test_the_page_measures_what_was_measured(chromium, tmp_path, monkeypatch):
    """Each kind of lesson, at a place of a random model's story; whether it holds or not."""
    ids = [299, *torch.randint(300, (40,)).tolist()]
    ids[30] = ids[7]

    def all_hold(model, means, words, stories):
        lessons = list(lessons_at(model, means, ids, 30, other=11))
        for lesson in lessons:
            for claim in lesson.claims:
                claim.low, claim.high = 0.0, 1.0
        return lessons

    chromium.open(page_with(tmp_path, monkeypatch, all_hold))
    chromium.wait_for("document.querySelectorAll('#lessons button').length === 5")
    for k, expected in enumerate(["next", "layers", "heads", "heads", "compare"]):
        chromium.run(f"openLesson(data.lessons[{k}])")
        now, before, tab, is_there, shown = chromium.run(OPENED % (k, k))
        assert now == pytest.approx(before, abs=1e-3)
        assert tab == expected and is_there
        assert shown == [chromium.run(f"percent({figure})") for figure in now]
    # of two at once the second stays; a story that is asked for meanwhile closes the lesson
    chromium.run("Promise.all([openLesson(data.lessons[4]), openLesson(data.lessons[1])])")
    assert chromium.run("tab") == "layers"
    assert chromium.run("document.querySelector('#lesson h2').textContent") == "Lesson: Layers"
    chromium.run("Promise.all([openLesson(data.lessons[4]), tell()])")
    assert chromium.run("$('lesson').hidden")
    assert chromium.messages == []


def test_a_model_without_lessons_says_so(chromium, tmp_path, monkeypatch):
    failed = [Lesson("dice", [], 0, [Claim("It knows", 0.02, low=0.5)], {})]
    chromium.open(page_with(tmp_path, monkeypatch, lambda *_: failed))
    chromium.wait_for("$('lessons').textContent.startsWith('No lessons')")
    assert chromium.run("data.lessons") == []
