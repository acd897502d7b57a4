"""Which files of replays the checkpoints of a run name, and whether they are sound. Imports no TensorFlow."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from ddrl import checkpoint as checkpoints
from ddrl.checkpoint import Checkpoint
from ddrl.config import TrainConfig
from ddrl.errors import UsageError
from ddrl.replay import storage

WORKER_KEY = "replay"  # key in a worker's state, for the manifest of its replay
_SHARD_KEY = re.compile(r"shard(\d+)")  # keys in the learner's state, for the manifests of the replay shards
READERS = 4  # files that are read at once


def worker_directory(run_dir: Path, worker: int) -> Path:
    """The directory of a worker's replay."""
    return run_dir / "replay" / f"worker-{worker}"


def shard_directory(run_dir: Path, shard: int) -> Path:
    """The directory of a replay shard."""
    return run_dir / "replay" / f"shard-{shard}"


def names_on_disk(run_dir: Path, directory: Path) -> set[str] | None:
    """The names of the files in a replay's directory that checkpoints on disk name; None if a checkpoint cannot be
    read, since the files that it names are then unknown."""
    names: set[str] = set()
    for path in checkpoints.list_checkpoints(run_dir):
        try:
            checkpoint = checkpoints.load(path)
        except UsageError:
            return None
        for where, manifest in replays_of(run_dir, checkpoint):
            if where == directory:
                names.update(entry["name"] for entry in storage.entries_in(manifest))
    return names


def check_replays(run_dir: Path, checkpoint: Checkpoint, read: bool = True) -> None:
    """Checks all files of the replays that a checkpoint names.

    Args:
        run_dir: the directory of the run.
        checkpoint: names the files.
        read: read the files, which may have gigabytes; if not, only their sizes are compared.

    Raises:
        UsageError: a file is missing or damaged.
    """
    check = storage.check_file if read else storage.check_size
    files = [
        (directory, entry)
        for directory, manifest in replays_of(run_dir, checkpoint)
        for entry in storage.entries_in(manifest)
    ]
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


def replays_of(run_dir: Path, checkpoint: Checkpoint) -> Iterator[tuple[Path, np.ndarray]]:
    """Yields directory and manifest of each replay that a checkpoint names."""
    for worker, state in checkpoint.worker_states.items():
        for key, array in state.items():
            if key == WORKER_KEY:
                yield worker_directory(run_dir, worker), array
            elif match := _SHARD_KEY.fullmatch(key):
                yield shard_directory(run_dir, int(match[1])), array
