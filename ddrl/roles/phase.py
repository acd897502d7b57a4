"""Where a job is, as its chief sees it."""

from __future__ import annotations

import enum


class Phase(enum.Enum):
    """Where the job is."""

    RUNNING = "running"
    STOPPING = "stopping"  # STOP goes out with the next COMMIT
    SAVING = "saving"  # the last checkpoint's parts are on their way
    EVALUATING = "evaluating"  # the last evaluation plays
    ENDED = "ended"
