"""
What a judge grades, and the keys under which grades are kept.

>>> Story("Once upon a time, Mia had a", " red ball.")
"""

import hashlib
import json
from dataclasses import dataclass


def key_of(*facts) -> str:
    """A hash of facts that JSON can hold: equal for equal facts, and only then."""
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


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

    @property
    def sha256(self) -> str:
        """A hash of the text that is graded, whatever the question about it."""
        return key_of(self.instruction, self.prompt, self.completion)
