"""Which files of replays the checkpoints of a run name, and whether they are sound. Imports no TensorFlow."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from ddrl import checkpoint as checkpoints
from ddrl.checkpoint import Checkpoint
from ddrl.config import TrainConfig
from ddrl.errors import UsageError
from ddrl.replay import storage

WORKER_KEY = "replay"  # key in a worker's state, for the manifest of its replay
_SHARD_KEY = re.compile(r"shard(\d+)")  # keys in the learner's state, for the manifests of the replay shards
READERS = 4  # files that are read at once

ReplayFile = tuple[Path, dict[str, Any]]
"""A replay's directory and a file's entry in its manifest."""


def worker_directory(run_dir: Path, worker: int) -> Path:
    """The directory of a worker's replay."""
    return run_dir / "replay" / f"worker-{worker}"


def shard_directory(run_dir: Path, shard: int) -> Path:
    """The directory of a replay shard."""
    return run_dir / "replay" / f"shard-{shard}"


def check_replays(run_dir: Path, checkpoint: Checkpoint, read: bool = True) -> None:
    """Checks all files of the replays that a checkpoint names.

    Args:
        run_dir: the directory of the run.
        checkpoint: names the files.
        read: read the files, which may have gigabytes; if not, only their sizes are compared.

    Raises:
        UsageError: a file is missing or damaged.
    """
    check_files(files_of(run_dir, checkpoint), read)


def check_files(files: Sequence[ReplayFile], read: bool) -> None:
    """As `check_replays`, for the result of `files_of`."""
    check: Callable[..., None] = storage.read if read else storage.check_size
    with ThreadPoolExecutor(READERS) as readers:
        for _ in readers.map(lambda file: check(*file), files):
            pass


def newest_sound(
    run_dir: Path, config: TrainConfig, left_out: list[str] | None = None, read: bool = True
) -> Checkpoint:
    """The newest checkpoint of a run that is sound, together with its replays: a resume starts from it.

    With Ape-X, if no checkpoint has sound replays, it is the newest sound checkpoint, and replay shards begin empty.

    Args:
        run_dir: the directory of the run.
        config: settings of the run.
        left_out: as for `load_latest`.
        read: as for `check_replays`.

    Raises:
        UsageError: there is none.
    """
    left_out = [] if left_out is None else left_out
    if not config.has_replay:
        return checkpoints.load_latest(run_dir, left_out=left_out)
    try:
        return checkpoints.load_latest(run_dir, lambda checkpoint: check_replays(run_dir, checkpoint, read), left_out)
    except UsageError:
        if not config.apex.actors:
            raise
        left_out.clear()
        return checkpoints.load_latest(run_dir, left_out=left_out)


def files_of(run_dir: Path, checkpoint: Checkpoint) -> list[ReplayFile]:
    """All files of the replays that a checkpoint names. Raises UsageError if a manifest is malformed."""
    return [
        (directory, entry)
        for directory, manifest in replays_of(run_dir, checkpoint)
        for entry in storage.entries_in(manifest)
    ]


def replays_of(run_dir: Path, checkpoint: Checkpoint) -> Iterator[tuple[Path, np.ndarray]]:
    """Yields directory and manifest of each replay that a checkpoint names."""
    for worker, state in checkpoint.worker_states.items():
        for key, array in state.items():
            if key == WORKER_KEY:
                yield worker_directory(run_dir, worker), array
            elif match := _SHARD_KEY.fullmatch(key):
                yield shard_directory(run_dir, int(match[1])), array
