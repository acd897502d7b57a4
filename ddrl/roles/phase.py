"""The states that a job goes through from training to its end, by which its chief decides what is next."""

from __future__ import annotations

import enum


class Phase(enum.Enum):
    """What the job is doing."""

    RUNNING = "running"
    STOPPING = "stopping"  # STOP goes out with the next COMMIT
    SAVING = "saving"  # the last checkpoint's parts are on their way
    EVALUATING = "evaluating"  # the last evaluation plays
    ENDED = "ended"
