"""
Runs that continue the same prompts, and so can be compared, and the controls of their prompts.

>>> (group,) = group_runs(runs)
>>> group.controls["(true ending)"][0].completion
' red ball.'
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from nanostories.generation.prompts import PIECE, first_words
from nanostories.grading.controls import make_controls
from nanostories.grading.stories import Run, Story


class Group:
    """Runs that continue the same prompts."""

    def __init__(self, runs: Sequence[Run], shared: Collection[str], data: Path | None = None):
        """shared: the prompts that all of the runs have."""
        self.runs = runs
        self.prompts = [prompt for prompt in runs[0].prompts if prompt in shared]
        # The corpus that the prompts are from
        self.corpus = data or next((run.corpus for run in runs if run.corpus), None)
        self.controls = make_controls(self.true_endings())

    def sources(self) -> dict[str, list[Story]]:
        """{name of a run: its stories after the shared prompts}"""
        prompts = set(self.prompts)
        found = {}
        for run in self.runs:
            found[run.name] = [story for story in run.stories if story.prompt in prompts]
        return found

    def true_endings(self) -> list[Story]:
        """One for each prompt that has one. Where completions were cut, at the end of a context, a
        longer true ending is cut there, too, as most scores depend on the length."""
        endings = {}
        longest = None
        for run in self.runs:
            for row, story in zip(run.rows, run.stories):
                if row["reference"] and story.prompt in self.prompts:
                    ending = replace(story, completion=row["reference"], finished=None)
                    endings[story.prompt] = ending
            if not all(row.get("finished", True) for row in run.rows):
                words = [len(PIECE.findall(story.completion)) for story in run.stories]
                longest = max(words + [longest or 0])
        if longest is not None:
            for prompt, story in endings.items():
                short = first_words(story.completion, longest)
                endings[prompt] = replace(story, completion=short)
        return list(endings.values())

    @property
    def title(self) -> str:
        names = [run.name for run in self.runs]
        return ", ".join(names if len(names) < 4 else [*names[:2], f"{len(names) - 2} more"])


def group_runs(runs: Sequence[Run], data: Path | None = None) -> list[Group]:
    """A run joins the first group with which it shares half of its own prompts, or of those that
    the group shares."""
    members = []  # the runs of each group
    shared = []  # the prompts that all of them have
    for run in runs:
        prompts = set(run.prompts)
        for i, others in enumerate(shared):
            if len(others & prompts) >= min(len(others), len(prompts)) / 2:
                members[i].append(run)
                shared[i] = others & prompts
                break
        else:
            members.append([run])
            shared.append(prompts)
    return [Group(group, prompts, data) for group, prompts in zip(members, shared)]
