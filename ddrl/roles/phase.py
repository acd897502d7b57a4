"""The phases of a job from training to its end, by which the chief decides what to do next."""

from __future__ import annotations

import enum


class Phase(enum.Enum):
    """What the job is doing."""

    RUNNING = "running"
    STOPPING = "stopping"  # STOP goes out with the next COMMIT
    SAVING = "saving"  # the last checkpoint's parts are on their way
    EVALUATING = "evaluating"  # the final evaluation is playing
    ENDED = "ended"
