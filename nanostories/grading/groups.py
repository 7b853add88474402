"""
Runs that continue the same prompts, and so can be compared, and the controls of their prompts.

>>> (group,) = group_runs(runs)
>>> group.controls["(true ending)"][0].completion
' red ball.'
"""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from nanostories.generation.prompts import PIECE, first_words
from nanostories.grading.controls import make_controls
from nanostories.grading.stories import Run, Story


class Group:
    """Runs that continue the same prompts."""

    def __init__(self, runs: Sequence[Run], data: Path | None):
        self.runs = runs
        shared = shared_prompts(runs)
        self.prompts = [prompt for prompt in runs[0].prompts if prompt in shared]
        self.data = data
        self.controls = make_controls(self.true_endings())

    @cached_property
    def corpus(self) -> Path | None:
        """That the prompts are from."""
        return self.data or next((run.corpus for run in self.runs if run.corpus), None)

    @cached_property
    def story_of_prompt(self) -> dict[str, str]:
        """{prompt: its true story}: prompts with other instructions for one story are no
        independent observations. A prompt without a true story stands for itself."""
        found = {prompt: prompt for prompt in self.prompts}
        for story in self.stories(with_controls=False):
            if story.reference:
                found[story.prompt] = f"{story.opening}{story.reference}"
        return found

    def sources(self, with_controls: bool = False) -> dict[str, list[Story]]:
        """{name of a run, or of a control: its stories after the shared prompts}"""
        prompts = set(self.prompts)
        found = {}
        for run in self.runs:
            found[run.name] = [story for story in run.stories if story.prompt in prompts]
        return found | self.controls if with_controls else found

    def stories(self, with_controls: bool) -> list[Story]:
        return list(itertools.chain(*self.sources(with_controls).values()))

    def true_endings(self) -> list[Story]:
        """One for each prompt that has one. Where completions of all runs were cut, at the end of a
        context, a longer true ending is cut there, too, as most scores depend on the length."""
        longest = None  # completion, in words
        if all(run.is_cut for run in self.runs):
            stories = itertools.chain.from_iterable(run.stories for run in self.runs)
            longest = max(len(PIECE.findall(story.completion)) for story in stories)
        endings = {}
        for story in self.stories(with_controls=False):
            if story.reference:
                ending = story.reference
                if longest is not None:
                    ending = first_words(ending, longest)
                endings[story.prompt] = replace(story, completion=ending, finished=None)
        return list(endings.values())

    @property
    def title(self) -> str:
        names = [run.name for run in self.runs]
        return ", ".join(names if len(names) < 4 else [*names[:2], f"{len(names) - 2} more"])


def group_runs(runs: Sequence[Run], data: Path | None = None) -> list[Group]:
    """A run joins the first group with which it shares half of its own prompts, or of those that
    the group shares."""
    groups = []
    for run in runs:
        for others in groups:
            shared = shared_prompts(others)
            both = shared.intersection(run.prompts)
            if len(both) >= min(len(shared), len(run.prompts)) / 2:
                others.append(run)
                break
        else:
            groups.append([run])
    return [Group(members, data) for members in groups]


def shared_prompts(runs: Sequence[Run]) -> set[str]:
    """Those that all of the runs have."""
    return set.intersection(*[set(run.prompts) for run in runs])
