"""
What a chat judge is asked: GPT-Eval (the paper's section 3) in three forms. Published forms, in our own words.

ours    one question, one reply: a JSON object of an assessment, the scores and an age group
paper   two turns, as in the paper: first an assessment in prose, then the scores and the age group
scores  one question, with a reply of only three numbers in an array, as in one reproduction: no plot, no age

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
    reply_tokens: int  # per reply; a guess, until there are some
    scores: tuple[str, ...] = tuple(SCORES)
    has_age: bool = True
    is_json: bool = False

    def rubric(self, story: Story) -> dict[str, str]:
        """The scores that it asks for, each with its meaning."""
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
        """Everything that is asked; grades are stored under its hash."""
        return "\n".join(self.questions(story))

    def sha256(self) -> str:
        """A hash of its words, without a story."""
        kinds = (Story("?", ""), Story("", ""), Story("?", "", "?"), Story("", "", "?"))
        return hashlib.sha256("".join(map(self.text, kinds)).encode()).hexdigest()

    def messages(self, story: Story, replies: Sequence[str]) -> list[dict]:
        """The conversation up to the next question. replies: those to the earlier questions."""
        said = [dict(role="user", content=question) for question in self.questions(story)]
        for i, reply in enumerate(replies):
            said.insert(2 * i + 1, dict(role="assistant", content=reply))
        return said[: 2 * len(replies) + 1]

    def response_format(self, story: Story) -> dict:
        """The reply's form as a JSON schema. Not every API accepts ranges in it, so read_reply checks those."""
        properties = {"assessment": {"type": "string"}} | {name: {"type": "integer"} for name in self.names(story)}
        properties["age_group"] = {"type": "string", "enum": list(AGE_GROUPS)}
        schema = dict(type="object", properties=properties, required=list(properties), additionalProperties=False)
        return {"type": "json_schema", "json_schema": {"name": "grades", "strict": True, "schema": schema}}


def shown(story: Story) -> str:
    """The story with what its writer was given: an instruction, a beginning, both or neither."""
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
