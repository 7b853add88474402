"""
The scores that each kind of judge gives: what they mean, their scales, and which of them each control must lower.

>>> rubric_of("lm:out/ts_33m").scores["ending"].scale
(0.0, 1.0)
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from grading.judge_controls import CUT, OTHER, SAFE, SHUFFLED, UNASKED

# What a chat judge is asked to grade (the paper's section 3, GPT-Eval), in the words that it sees.
SCORES = {
    "grammar": "is it correct English, without words missing, words that do not exist or sentences that break off?",
    "creativity": "does it have ideas of its own?",
    "consistency": "does it fit the beginning and itself: the same persons, places and things, and nothing that "
    "contradicts what was said before?",
    "plot": "does one thing lead to another, and the whole to an end?",
}
INSTRUCTIONS = {"instructions": "does the story, taken as a whole, do everything that the pupil was told to do?"}
AGE_GROUPS = {"A": "3 or under", "B": "4-5", "C": "6-7", "D": "8-9", "E": "10-12", "F": "13-16"}  # as in the paper
AGES = {"A": 3.0, "B": 4.5, "C": 6.5, "D": 8.5, "E": 11.0, "F": 14.5}  # what a group counts as in a mean, in years


@dataclass(frozen=True)
class Score:
    """Higher is better."""

    scale: tuple[float, float]  # its ends
    form: str = ".1f"  # format of its mean in tables
    fine: str = ".2f"  # format of differences
    unit: str = ""
    about: str = ""  # what it is, in pages


@dataclass(frozen=True)
class Rubric:
    scores: Mapping[str, Score]  # in the order of tables and pictures
    must_lower: Mapping[str, tuple[str, ...]]  # kind of control -> the scores that it lowers, if the judge sees it
    validate: str  # what to do if it has graded no controls


OUT_OF_TEN = Score((0.0, 10.0))

# A chat judge (chat_judge.py). No control tests creativity or age. Another story's
# ending was written to other instructions, if there were any, so it must score lower there, too.
CHAT = Rubric(
    dict.fromkeys((*SCORES, *INSTRUCTIONS), OUT_OF_TEN)
    | dict(age=Score((min(AGES.values()), max(AGES.values())), unit="years")),
    {
        SHUFFLED: ("consistency", "plot"),
        OTHER: ("consistency", "plot", "instructions"),
        CUT: ("grammar", "plot"),
        UNASKED: ("instructions",),
    },
    "run grade.py with --controls",
)

BITS = "bits/byte"

# A likelihood judge (likelihood_judge.py). A safe ending is not spoiled: whether it wins is shown, but no
# verdict depends on it.
LIKELIHOOD = Rubric(
    dict(
        fluency=Score((-math.inf, 0.0), ".3f", ".3f", BITS, "log-likelihood of the completion after its beginning"),
        consistency=Score((-math.inf, math.inf), ".3f", ".3f", BITS, "gain from its own beginning over others'"),
        ending=Score((0.0, 1.0), ".2f", ".3f", about="probability that the story ends where it ends"),
    ),
    {
        SHUFFLED: ("fluency", "consistency"),
        OTHER: ("consistency",),
        CUT: ("ending",),
        UNASKED: ("consistency",),
        SAFE: (),
    },
    "its controls need true endings, which `python sample.py --eval 50` keeps",
)

PREFIX = "lm:"  # of a likelihood judge's name

# Grades that were made elsewhere (imported_grades.py); this stands after the name of their judge.
IMPORTED, MEANS = "imported", "imported means"
ELSEWHERE = {
    f"({IMPORTED})": replace(CHAT, validate="no controls came with its grades, so nothing shows what it sees"),
    f"({MEANS})": replace(CHAT, validate="means alone have no intervals, and nothing shows what it sees"),
}


def is_likelihood_judge(judge: str) -> bool:
    """Whether this is a likelihood judge; otherwise it is a chat judge."""
    return judge.startswith(PREFIX)


def rubric_of(judge: str) -> Rubric:
    elsewhere = (rubric for ending, rubric in ELSEWHERE.items() if judge.endswith(ending))
    return next(elsewhere, LIKELIHOOD if is_likelihood_judge(judge) else CHAT)
