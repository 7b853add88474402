"""
Ctrl-C and SIGTERM: the step in progress ends and is saved, then the run stops.
"""

import signal
import sys

from training.distributed import Ranks


class StopSignal:
    """True once Ctrl-C or SIGTERM arrived, so that the current step can end and be saved. A second one kills at once.

    Not under torchrun: some systems signal every process, and then torchrun does, too; it has a timeout of its own.
    """

    def __init__(self, ranks: Ranks):
        self.received, self.ranks = False, ranks
        self.handlers = {number: signal.signal(number, self.receive) for number in (signal.SIGINT, signal.SIGTERM)}

    def receive(self, number, frame):
        if self.ranks.is_first and not self.received:
            hint = " (Ctrl-C again quits at once)" if self.ranks.world_size == 1 else ""
            print(f"\nfinishing this step{hint}", file=sys.stderr)
        self.received = True
        if self.ranks.world_size == 1:
            self.restore()

    def restore(self):
        for number, handler in self.handlers.items():
            signal.signal(number, handler)

    def __bool__(self):
        return self.received
