"""What a run goes on from: its newest sound checkpoint, with its replays and its settings. Imports no TensorFlow."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from ddrl import checkpoint as checkpoints
from ddrl.checkpoint import Checkpoint
from ddrl.config import TrainConfig
from ddrl.errors import UsageError
from ddrl.replay_files import check_replays
from ddrl.resumable import check_settings


class Start(NamedTuple):
    """Where a run begins or goes on.

    Attributes:
        notes: (name, text) of the events that tell what is not as before.
    """

    checkpoint: Checkpoint
    notes: tuple[tuple[str, str], ...] = ()


def newest_start(run_dir: Path, config: TrainConfig) -> Start:
    """The newest checkpoint that is sound, with its replays. Shards of Ape-X may begin empty where none has sound ones.

    Raises:
        UsageError: there is none, or it was made with other settings.
    """
    left_out: list[str] = []
    loaded = _newest(run_dir, config, left_out)
    notes = [("checkpoint_left_out", text) for text in left_out]
    if changed := check_settings(loaded, config, run_dir):
        notes.append(("settings_changed", f"since the checkpoint of update {loaded.version}: {changed}"))
    return Start(loaded, tuple(notes))


def _newest(run_dir: Path, config: TrainConfig, left_out: list[str]) -> Checkpoint:
    if not config.has_replay:
        return checkpoints.load_latest(run_dir, left_out=left_out)
    try:
        return checkpoints.load_latest(run_dir, lambda checkpoint: check_replays(run_dir, checkpoint), left_out)
    except UsageError:
        if not config.apex.actors:
            raise
        left_out.clear()
        return checkpoints.load_latest(run_dir, left_out=left_out)
