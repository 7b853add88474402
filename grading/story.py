"""
What a judge grades.

>>> Story("Once upon a time, Mia had a", " red ball.")
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Story:
    """What is graded: a completion of a prompt, perhaps with an instruction (words, features, a summary)."""

    prompt: str
    completion: str
    instruction: str = ""

    @property
    def task(self) -> str:
        """What the writer was given. Stories of the same task are compared."""
        return f"{self.instruction}\n{self.prompt}" if self.instruction else self.prompt
