"""Finds the checkpoint from which a run resumes: the newest sound one, with its replays and its settings.

This module imports no TensorFlow.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from ddrl.checkpoint import Checkpoint
from ddrl.config import TrainConfig
from ddrl.replay_files import newest_sound
from ddrl.resumable import check_settings


class Start(NamedTuple):
    """The state from which a run begins or resumes.

    Attributes:
        checkpoint: the state, which has version 0 at the beginning of a run.
        notes: (name, text) of events that say what differs from before, such as settings.
    """

    checkpoint: Checkpoint
    notes: tuple[tuple[str, str], ...] = ()


def newest_start(run_dir: Path, config: TrainConfig) -> Start:
    """The checkpoint of `newest_sound`, and what differs from before.

    Raises:
        UsageError: there is no such checkpoint, or it was made with incompatible settings.
    """
    left_out: list[str] = []
    loaded = newest_sound(run_dir, config, left_out)
    notes = [("checkpoint_left_out", text) for text in left_out]
    if changed := check_settings(loaded, config, run_dir):
        notes.append(("settings_changed", f"since the checkpoint of update {loaded.version}: {changed}"))
    return Start(loaded, tuple(notes))
