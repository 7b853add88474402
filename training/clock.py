"""
How long a run has trained, how much of it is done, and whether it must stop.
"""

import time

from training.config import TrainConfig
from training.distributed import Ranks
from training.state import TrainingState
from training.stop_signal import StopSignal


class Clock:
    """Seconds of training, the same on all ranks. Compiling, validation and saving are not counted."""

    def __init__(self, state: TrainingState, ranks: Ranks, stop: StopSignal):
        """Keeps state.seconds up to date."""
        self.state, self.ranks, self.stop = state, ranks, stop
        self.first_step = state.step + 1  # the first of this process, which compiles
        self.lap = (state.step, state.seconds)
        self.should_stop = False
        self.restart()

    def restart(self):
        """Leaves out the time since the last tick."""
        self.started = time.perf_counter()

    def tick(self, after_step: bool = True):
        """Counts the time since the last tick or restart; after a step, also asks whether to stop."""
        now, state = time.perf_counter(), self.state
        if after_step and state.step == self.first_step:
            self.lap, self.started = (state.step, state.seconds), now
        state.seconds, stop = self.ranks.agree(state.seconds + now - self.started, bool(self.stop))
        self.should_stop = stop if after_step else self.should_stop
        self.started = now

    def steps_per_second(self) -> float | None:
        """Since the last call; None if only the step that compiles was taken."""
        (step, seconds), self.lap = self.lap, (self.state.step, self.state.seconds)
        return (self.state.step - step) / (self.state.seconds - seconds) if self.state.step > step else None


def progress(config: TrainConfig, state: TrainingState) -> float:
    """How much of the run is done, 0 to 1: by its steps or its clock, whichever is further along. The clock alone does
    not end a run before min_steps."""
    by_clock = state.seconds / (60 * config.max_minutes) if config.max_minutes else 0.0
    if config.min_steps:
        by_clock = min(by_clock, state.step / config.min_steps)
    return min(1.0, max(state.step / config.max_steps, by_clock))


def minutes_left(config: TrainConfig, state: TrainingState, steps_per_second: float) -> float:
    """Training time left in a run that max_minutes may end."""
    by_clock = max(config.max_minutes, config.min_steps / steps_per_second / 60)
    return min(by_clock, config.max_steps / steps_per_second / 60) - state.seconds / 60
