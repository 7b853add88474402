"""The practice corpus: the same on every machine, and its bad endings are seen."""

import hashlib

from nanostories.corpus import builtin_stories as S
from nanostories.corpus.word_forms import ends_badly


def test_the_stories_are_those_of_the_first_release():
    """Figures in the docs were measured on them."""
    corpus = list(S.stories(4_000))  # of 20,000, which begin with these
    seen = hashlib.sha256()
    for story in corpus:
        fields = (story.text, story.words, story.features, story.summary, story.sentence)
        seen.update(repr(fields).encode())
        assert ("BadEnding" in story.features) == ends_badly(story.text)
    assert seen.hexdigest() == "23a0979ea8274bcf491a0bbb02fdd1e07626c457635c43a9fc83b23f26fa0f4e"
    assert S.tell(0, 5) == corpus[5] != S.tell(1, 5)
