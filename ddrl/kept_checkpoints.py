"""The checkpoints that a run keeps on disk: which are sound, which replay files they name, and which may be removed."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import NamedTuple

from ddrl import checkpoint as checkpoints
from ddrl.checkpoint import Checkpoint
from ddrl.errors import UsageError
from ddrl.files import identity
from ddrl.replay_files import ReplayFile, check_files, files_of


class _Known(NamedTuple):
    """What is known of a sound checkpoint: the `identity` of its file, and the files of replays that it names."""

    identity: tuple[int, ...]
    files: list[ReplayFile]


class KeptCheckpoints:
    """Saves checkpoints of a run and removes old ones; reads a checkpoint only if it did not save it, and only once.

    A file whose `identity` is as it was is taken to hold what it held, and is read again otherwise. A bit that a disk
    loses without a write is found at a resume. Used by one thread at a time.

    Args:
        run_dir: the directory of the run.
    """

    def __init__(self, run_dir: Path):
        self._run_dir = run_dir
        self._known: dict[Path, _Known] = {}

    def save(self, checkpoint: Checkpoint, keep: int) -> Path:
        """Writes a checkpoint, then removes those that are older than the newest `keep` (at least 1) sound ones.

        A checkpoint is sound if it can be read and the files of replays that it names have their sizes.

        Raises:
            UsageError: as `checkpoint.save`, or the directory cannot be read. Older ones stay as they were.
        """
        path = checkpoints.save(self._run_dir, checkpoint)
        with contextlib.suppress(OSError, UsageError):  # it is read then, and does not count if it is not sound
            self._known[path] = _Known(identity(path), files_of(self._run_dir, checkpoint))
        self._remove_old(path, max(keep, 1))
        return path

    def names_in(self, directory: Path) -> set[str] | None:
        """The names of the files in a replay's directory that checkpoints on disk name.

        It is None if a checkpoint cannot be read, since the files that it names are then unknown.
        """
        names: set[str] = set()
        for path in self._paths():
            try:
                files = self._files(path)
            except (OSError, UsageError):
                return None
            names.update(entry["name"] for where, entry in files if where == directory)
        return names

    def _remove_old(self, saved: Path, keep: int) -> None:
        """Removes what is older than the `keep`-th newest sound file, but not the one that was just saved, and the
        temporary files that a killed save left, if possible."""
        sound = 0
        for path in reversed(self._paths()):
            if sound >= keep and path != saved:
                with contextlib.suppress(OSError):  # such as a directory that somebody has put there
                    path.unlink(missing_ok=True)
            else:
                with contextlib.suppress(OSError, UsageError):  # it is not sound, and does not count
                    check_files(self._files(path), read=False)
                    sound += 1
        for leftover in saved.parent.glob(".update-*.npz*.tmp"):
            with contextlib.suppress(OSError):
                leftover.unlink(missing_ok=True)

    def _paths(self) -> list[Path]:
        """As `list_checkpoints`; forgets files that are gone."""
        paths = checkpoints.list_checkpoints(self._run_dir)
        self._known = {path: self._known[path] for path in paths if path in self._known}
        return paths

    def _files(self, path: Path) -> list[ReplayFile]:
        """The files of replays that a checkpoint names. Raises OSError or UsageError if it cannot be read."""
        known, now = self._known.get(path), identity(path)
        if known is None or known.identity != now:
            known = self._known[path] = _Known(now, files_of(self._run_dir, checkpoints.load(path)))
        return known.files
