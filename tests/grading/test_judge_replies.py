"""judge_replies.py: nothing is read into a reply that does not stand there."""

import json

import pytest

from grading import rubrics
from grading.judge_replies import BadReply, read_reply

GOOD = dict(grammar=8, creativity=7, consistency=9, plot=6, age_group="C")
READ = dict(grammar=8.0, creativity=7.0, consistency=9.0, plot=6.0, age=6.5)


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(GOOD),
        json.dumps(dict(assessment='He wrote {"grammar": 1}, [3]. Grammar: 2/10.') | GOOD, indent=2),
        "```json\n" + json.dumps(GOOD) + "\n```",
        "Here you are: " + json.dumps(GOOD) + " I hope that helps.",
        "<think>Grammar: 3/10? {no}</think>\n" + json.dumps(GOOD),
        json.dumps({key.title().replace("_", " "): str(value) for key, value in GOOD.items()}),
        json.dumps(GOOD | dict(grammar="8/10", age_group="C: 6-7")),
        '[8, 7, 9, 6, "C"]',
        "My grades: [8, 7, 9, 6, C]",
        "Grammar: 8/10, Creativity: 7/10, Consistency: 9/10, Plot: 6/10, Age group: C: 6-7",
        "**Grammar:** 8/10\n**Creativity**: 7\n**Consistency:** 9 / 10\n**Plot:** 6.0/10.\nAge group: C (6–7 years)",
        "The grammar is good. Grammar: 8. Creativity: 7. Consistency: 9. Plot: 6. Age: c",
        "Grammar: 8 out of 10. Creativity: 7 (of 10). Consistency: 9, with 2 slips. Plot: 6. Age: c",
        '{"assessment": "Good.\nAnd:\ttabs, }", ' + json.dumps(GOOD)[1:],
        '{"assessment": "As in [1, ], {2,}: \\"no\\",}", ' + json.dumps(GOOD)[1:-1] + ",\n}",
        "Grammar score: 8, Creativity score: 7/10\nConsistency_score: 9\n**Plot score:** 6, Age group: C",
        json.dumps(dict(grammar_score=8) | {k: v for k, v in GOOD.items() if k != "grammar"}),
        json.dumps(GOOD | dict(age_group="6-7 years old")),
        json.dumps(GOOD | dict(age_group="Group C (6–7 years old)")),
        "Grammar: 8, Creativity: 7, Consistency: 9, Plot: 6, Age: 6-7 years old",
    ],
)
def test_replies_in_all_three_forms(text):
    assert read_reply(text, list(rubrics.SCORES)) == READ


@pytest.mark.parametrize(
    "text, reason",
    [
        ("", "no grammar, creativity, consistency, plot in it"),
        ("I'm sorry, but I can't help with that.", "no grammar"),
        (json.dumps(GOOD)[:-10], "broken JSON"),
        ("{" * 100_000, "broken JSON"),
        (json.dumps(GOOD | dict(grammar=11)), "grammar is '11', not a number from 0 to 10"),
        (json.dumps(GOOD | dict(plot=-1)), "plot is '-1'"),
        (json.dumps(GOOD | dict(plot=True)), "plot is 'True'"),
        (json.dumps(GOOD | dict(plot=None)), "plot is 'None'"),
        (json.dumps(GOOD | dict(plot=float("nan"))), "plot is 'nan'"),
        (json.dumps(GOOD | dict(plot="eight")), "plot is 'eight'"),
        (json.dumps(GOOD | dict(plot="8/20")), "plot is '8/20'"),
        (json.dumps({key: value for key, value in GOOD.items() if key != "plot"}), "no plot in it"),
        (json.dumps(dict(scores=GOOD)), "no grammar"),
        ("[8, 7, 9, C]", "an array of 4, not of 5"),
        ("[8, 7, 9, 60, C]", "plot is '60'"),
        (json.dumps(GOOD)[:-1] + ', "grammar_score": 5}', "grammar is given twice"),
        ('{"grammar": 8, "creativity": 7, "consistency": 9, "plot": "6,}"}', "plot is '6,}'"),
        ("Grammar: 8, Grammar score: 6, Creativity: 7, Consistency: 9, Plot: 6", "given twice: 6 and 8"),
        ("Grammar: eight, Creativity: 7, Consistency: 9, Plot: 6, Age group: C", "grammar is 'eight'"),
        ("Grammar: 8/100, Creativity: 7, Consistency: 9, Plot: 6, Age group: C", "grammar is '8/100'"),
        ("Grammar: 8-9, Creativity: 7, Consistency: 9, Plot: 6, Age group: C", "grammar is '8-9'"),
        ("Grammar: 8, Grammar: 6, Creativity: 7, Consistency: 9, Plot: 6, Age group: C", "given twice: 6 and 8"),
        ("Grammar: 7 or 8, Creativity: 7, Consistency: 9, Plot: 6, Age group: C", "grammar is '7 or 8'"),
        ("Grammar: 7 (maybe 8), Creativity: 7, Consistency: 9, Plot: 6, Age group: C", r"grammar is '7 (maybe 8'"),
        ("Grammar: 7/10, or 8/10, Creativity: 7, Consistency: 9, Plot: 6, Age group: C", "grammar is '7/10, or 8/10'"),
        ("Grammar: 8 – 9, Creativity: 7, Consistency: 9, Plot: 6, Age group: C", "grammar is '8 – 9'"),
        (json.dumps(GOOD)[:-1] + ', "grammar": 5}', "grammar is given twice"),
        ("[8, 7, 9, 6, C] or rather [7, 7, 9, 6, C]", "2 arrays, not one"),
    ],
)
def test_replies_that_are_no_grades(text, reason):
    with pytest.raises(BadReply, match=reason.replace("(", r"\(")):
        read_reply(text, list(rubrics.SCORES))


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(GOOD | dict(age_group="G")),
        json.dumps(GOOD | dict(age_group=7)),
        json.dumps(GOOD | dict(age_group=None)),
        json.dumps(GOOD | dict(age_group=["C"] * 2)),
        json.dumps({key: value for key, value in GOOD.items() if key != "age_group"}),
        json.dumps(GOOD)[:-1] + ', "Age group": "D"}',
        json.dumps(GOOD)[:-1] + ', "Age group": "D", "age": "C"}',
        "[8, 7, 9, 6, Q]",
        "Grammar: 8, Creativity: 7, Consistency: 9, Plot: 6, Age: B, Age group: C",
        "Grammar: 8, Creativity: 7, Consistency: 9, Plot: 6, Age group: C, or D",
        "Grammar: 8, Creativity: 7, Consistency: 9, Plot: 6",
        "Grammar: 8, Creativity: 7, Consistency: 9, Plot: 6, Age group: young",
        "Grammar: 8, Creativity: 7, Consistency: 9, Plot: 6, Age group: 6-9 years old",
    ],
)
def test_scores_are_kept_without_an_age(text):
    assert read_reply(text, list(rubrics.SCORES)) == {name: READ[name] for name in rubrics.SCORES}


def test_the_papers_age_groups():
    for letter, years in rubrics.AGES.items():
        numbers = [float(word) for word in rubrics.AGE_GROUPS[letter].replace("-", " ").split() if word.isdigit()]
        assert years == sum(numbers) / len(numbers)
        assert read_reply(json.dumps(GOOD | dict(age_group=letter.lower())), list(rubrics.SCORES))["age"] == years
