"""
The page on which people grade stories, blind (grade.py --judge human).

>>> write_page(groups, Path("out"))  # out/read.html
"""

import random
from collections.abc import Sequence
from pathlib import Path

from nanostories.files import write_bytes
from nanostories.grading.comparisons import FEWEST_PROMPTS
from nanostories.grading.groups import Group
from nanostories.grading.people import SCORES, story_key
from nanostories.grading.scores import CHAT, CUT, OTHER, TRUE_ENDING
from nanostories.pages.html import page

GRADED_STORIES = 60  # about an hour; more, if the groups and runs are many
PROMPTS = FEWEST_PROMPTS + 3  # of each group at least, as an ending may have no control


def write_page(groups: Sequence[Group], directory: Path) -> Path:
    """Of prompts drawn at random, with seed 0: the first completion by each run, the true ending
    and two spoiled ones; all in random order."""
    rng = random.Random(0)
    chosen = {}
    for group in groups:
        # no shuffled endings: a third kind of control would make it too long
        controls = [group.controls[kind] for kind in (TRUE_ENDING, OTHER, CUT)]
        sources = [each for each in (*group.sources().values(), *controls) if each]
        n_prompts = max(PROMPTS, GRADED_STORIES // len(groups) // len(sources))
        for prompt in rng.sample(group.prompts, min(n_prompts, len(group.prompts))):
            for stories in sources:
                story = next((story for story in stories if story.prompt == prompt), None)
                if story:
                    chosen[story_key(story)] = story
    items = []
    for key, story in chosen.items():
        shown = {"key": key, "beginning": story.opening, "completion": story.completion}
        items.append(shown | {"instruction": story.instruction})
    rng.shuffle(items)
    scores = [{"name": name, "about": CHAT[name].about} for name in SCORES]
    path = directory / "read.html"
    write_bytes(path, page("Stories to grade", "read", {"stories": items, "scores": scores}))
    return path
