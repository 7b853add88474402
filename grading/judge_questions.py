"""
How a judge is asked: GPT-Eval (the paper's section 3) in three forms. The forms are published, the words are our own.

ours    one question, one reply: a JSON object of an assessment, the scores and an age group
paper   two turns, as in the paper: an assessment in prose first; then, that being said, the scores and the age group
scores  one question, and for a reply nothing but an array of three numbers, as one reproduction asked: no plot, no age

>>> PROTOCOLS["scores"].names(Story("Once upon a time", " there was a cat."))
['grammar', 'creativity', 'consistency']
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from grading.rubrics import AGE_GROUPS, INSTRUCTIONS, SCORES
from grading.story import Story

AFTER_A_BEGINNING = """\
A pupil was given the beginning of a story and wrote the rest. Below, the beginning stands before the mark *** and \
what the pupil wrote stands behind it. The beginning may break off in mid-sentence; then the pupil had to finish that \
sentence first. Judge what the pupil wrote, as a continuation of that beginning.
{told}
----
{prompt} ***{completion}
----
"""
FROM_THE_FIRST_WORD = """\
A pupil wrote the story below, from its first word to its last. Judge it.
{told}
----
{completion}
----
"""
TOLD = "\nThe pupil had been told:\n----\n{instruction}\n----\n"

OURS = """\
{story}
First say in one or two sentences what is good and what is wrong. Then give a whole number from 0 (worst) to 10 (best) \
for each of these:
{rubric}
Last, age_group: how old would you guess the pupil is? A letter: {ages}.

Answer with one JSON object and nothing else: {{{json}}}"""
ASSESS = """\
{story}
Assess it in a few sentences, without grades yet:
{rubric}"""
THEN_GRADE = """\
Now grade it, with a whole number from 0 (worst) to 10 (best) for each of {names}; and guess how old the pupil is, by \
a letter: {ages}. Answer with one line of this form and nothing else: {line}"""
THREE_NUMBERS = """\
{story}
Give it a whole number from 0 (worst) to 10 (best) for each of {names}, in this order.

Answer with an array of the numbers and nothing else: [{array}]"""


@dataclass(frozen=True)
class Protocol:
    name: str
    turns: tuple[str, ...]  # the questions, each asked after the reply to the one before
    reply_tokens: int  # a guess for a reply, before there are any
    scores: tuple[str, ...] = tuple(SCORES)
    has_age: bool = True
    is_json: bool = False

    def rubric(self, story: Story) -> dict[str, str]:
        """The names of the scores that it asks for, each with what it means."""
        rubric = {name: SCORES[name] for name in self.scores}
        if not story.prompt:
            rubric["consistency"] = rubric["consistency"].replace("fit the beginning and itself", "fit itself")
        return rubric | (INSTRUCTIONS if story.instruction else {})

    def names(self, story: Story) -> list[str]:
        return list(self.rubric(story))

    def questions(self, story: Story) -> list[str]:
        """What the judge sees, turn by turn. It never says who wrote the completion."""
        rubric, names = self.rubric(story), self.names(story)
        form = ['"assessment": TEXT', *(f'"{name}": NUMBER' for name in names), '"age_group": LETTER']
        fields = dict(
            story=shown(story),
            rubric="\n".join(f"- {name}: {meaning}" for name, meaning in rubric.items()),
            ages=", ".join(f"{letter}: {ages}" for letter, ages in AGE_GROUPS.items()),
            names=f"{', '.join(names[:-1])} and {names[-1]}",
            json=", ".join(form),
            line=", ".join([*(f"{name.capitalize()}: NUMBER/10" for name in names), "Age group: LETTER"]),
            array=", ".join(name.upper() for name in names),
        )
        return [turn.format(**fields) for turn in self.turns]

    def text(self, story: Story) -> str:
        """All that is asked, by which its grades are found again."""
        return "\n".join(self.questions(story))

    def sha256(self) -> str:
        """Of its words, without a story."""
        kinds = (Story("?", ""), Story("", ""), Story("?", "", "?"), Story("", "", "?"))
        return hashlib.sha256("".join(map(self.text, kinds)).encode()).hexdigest()

    def messages(self, story: Story, replies: Sequence[str]) -> list[dict]:
        """The conversation up to the next question. replies: to those before."""
        said = [dict(role="user", content=question) for question in self.questions(story)]
        for i, reply in enumerate(replies):
            said.insert(2 * i + 1, dict(role="assistant", content=reply))
        return said[: 2 * len(replies) + 1]

    def response_format(self, story: Story) -> dict:
        """The reply's form as a JSON schema, without ranges, which not every API takes: read_reply checks those."""
        properties = {"assessment": {"type": "string"}} | {name: {"type": "integer"} for name in self.names(story)}
        properties["age_group"] = {"type": "string", "enum": list(AGE_GROUPS)}
        schema = dict(type="object", properties=properties, required=list(properties), additionalProperties=False)
        return {"type": "json_schema", "json_schema": {"name": "grades", "strict": True, "schema": schema}}


def shown(story: Story) -> str:
    """The story with what its writer was given, and no beginning where there was none."""
    told = TOLD.format(instruction=story.instruction) if story.instruction else ""
    if not story.prompt:
        return FROM_THE_FIRST_WORD.format(told=told, completion=story.completion.strip())
    return AFTER_A_BEGINNING.format(told=told, prompt=story.prompt, completion=story.completion)


PROTOCOLS = {
    protocol.name: protocol
    for protocol in (
        Protocol("ours", (OURS,), 100, is_json=True),
        Protocol("paper", (ASSESS, THEN_GRADE), 60),
        Protocol("scores", (THREE_NUMBERS,), 10, scores=("grammar", "creativity", "consistency"), has_age=False),
    )
}
