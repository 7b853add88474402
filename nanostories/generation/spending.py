"""
What requests to an API cost, and the budget that they never exceed.

>>> ledger = Ledger(Path("out/spending.jsonl"), budget=1.0)
>>> if ledger.reserve("gpt-4o-mini", 0.02):  # the most that a request may cost
...     ledger.append("gpt-4o-mini", reserved=-0.02, dollars=0.003)  # what its reply cost
"""

import io
import json
from pathlib import Path

from nanostories.cli import UserError


class Ledger:
    """A file of JSON lines, to which several processes may append at once.

    What a request may cost at most is `reserved` before it is sent. Its reply takes that back, and
    adds the `dollars` that it cost. So a request whose reply was lost, or whose process was killed,
    stays reserved: it may have been paid for.
    """

    def __init__(self, path: Path | None, budget: float):
        """path: None for a ledger that ends with this process. budget: dollars."""
        self.path = path
        self.budget = budget
        self.file = path.open("a+b", buffering=0) if path else io.BytesIO()
        self.spent = 0.0  # dollars, by this process, with what is reserved
        self.total = 0.0  # the same, by all
        self.n_bytes_read = 0

    def reserve(self, model: str, dollars: float) -> bool:
        """Returns False if that might exceed the budget."""
        if dollars > self.left():
            return False
        self.append(model, dollars)
        # Two processes may both have found room for one request. Now each sees the other's line.
        if self.left() < 0:
            self.append(model, -dollars)
            return False
        return True

    def append(self, model: str, reserved: float, dollars: float = 0.0, tokens=(0, 0)) -> None:
        """tokens: in and out."""
        row = dict(model=model, reserved=reserved, dollars=dollars, tokens=tokens)
        self.file.write(json.dumps(row).encode() + b"\n")
        self.spent = max(0.0, self.spent + reserved + dollars)  # never -0.0000

    def left(self) -> float:
        """Dollars of the budget, after the lines that were added since the last call."""
        self.file.seek(self.n_bytes_read)
        for line in self.file.read().splitlines():
            try:
                row = json.loads(line)
                self.total += row["reserved"] + row["dollars"]
            except (ValueError, TypeError, LookupError):
                raise UserError(f"{self.path}: not a file of --spending: {line[:80]}") from None
        self.n_bytes_read = self.file.tell()
        return self.budget - self.total
