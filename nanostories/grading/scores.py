"""
The one table of scores and metrics: unit, scale, which way is better, which controls test it, and a
sentence about it.

>>> score_of("lm:out/ts_33m", "ending").scale
(0.0, 1.0)

To add a likelihood score or a metric: a line here, and a function in likelihood_judge.py or
metrics.py. To add a chat score: a line here, and its name and sentence in a question of prompts/.
Tables and pictures follow.
"""

from math import inf
from typing import NamedTuple

# Endings of known quality, which test a judge; controls.py makes them.
TRUE_ENDING = "(true ending)"
SHUFFLED = "(shuffled)"
OTHER = "(another ending)"
CUT = "(cut off)"
SPOILED = (SHUFFLED, OTHER, CUT)

LIKELIHOOD_PREFIX = "lm:"  # how the names of likelihood judges begin
HUMAN = "human"  # and those of people: human:NAME
# The paper's age groups, the middle of each in years
AGES = {"A": 3.0, "B": 4.5, "C": 6.5, "D": 8.5, "E": 11.0, "F": 14.5}


class Score(NamedTuple):
    about: str
    unit: str = ""
    scale: tuple[float, float] = (0.0, 10.0)
    better: str = "higher"  # or "lower" or "neither"
    form: str = ".2f"  # format of its mean
    # the controls that must score lower than true endings, or the judge is blind
    tested_by: tuple[str, ...] = ()


# A chat judge's grades (GPT-Eval, the paper's section 3), in the words that it sees. No control
# tests creativity and age. The ending of another story was written to other instructions, so it
# must score lower there, too.
CHAT = {
    "grammar": Score(
        "is the language correct, without words missing, words that do not exist or sentences that"
        " break off?",
        tested_by=(CUT,),
    ),
    "creativity": Score("does it have ideas of its own?"),
    "consistency": Score(
        "does it fit the beginning and itself: the same people, places and things, and nothing"
        " that contradicts what was said before?",
        tested_by=(SHUFFLED, OTHER),
    ),
    "plot": Score(
        "does one thing lead to another, and the whole to an end?", tested_by=(SHUFFLED, OTHER, CUT)
    ),
    "instructions": Score(
        "does the story, taken as a whole, do everything that the pupil was told to do?",
        tested_by=(OTHER,),
    ),
    "age": Score(
        "how old would you guess the pupil is?", "years", (AGES["A"], AGES["F"]), "neither", ".1f"
    ),
}
# A score that a question of the user's names
OWN = Score("as the question describes it", scale=(-1e9, 1e9))

# likelihood_judge.py reads these off a language model.
LIKELIHOOD = {
    "fluency": Score(
        "log-likelihood of the completion after its beginning: minus the judge's bits per byte"
        " on it",
        "bits/byte",
        (-inf, 0.0),
        form=".3f",
        tested_by=(SHUFFLED,),
    ),
    "consistency": Score(
        "how much likelier the completion is after its own beginning than after those of other "
        "stories",
        "bits/byte",
        (-inf, inf),
        form=".3f",
        tested_by=(SHUFFLED, OTHER),
    ),
    "ending": Score(
        "probability that the story ends where it ends", scale=(0.0, 1.0), tested_by=(CUT,)
    ),
}

# metrics.py counts these without a judge.
METRICS = {
    "bpb": Score(
        "validation loss in bits per byte, comparable across vocabularies",
        "bits/byte",
        (0.0, inf),
        "lower",
        ".3f",
    ),
    "ended": Score(
        "share of the stories that the model ended by itself", "%", (0.0, 1.0), "higher", ".0%"
    ),
    "repeated": Score(
        "share of 4-grams of words that came earlier in the same story",
        "%",
        (0.0, 1.0),
        "lower",
        ".1%",
    ),
    "words": Score("words in a completion", "words", (0.0, inf), "neither", ".0f"),
}


def is_likelihood_judge(judge: str) -> bool:
    return judge.startswith(LIKELIHOOD_PREFIX)


def score_of(judge: str, name: str) -> Score:
    """judge "": the metrics, which need none."""
    scores = CHAT
    if not judge:
        scores = METRICS
    elif is_likelihood_judge(judge):
        scores = LIKELIHOOD
    return scores.get(name, OWN)
