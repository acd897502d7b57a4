"""Runs and checkpoints as people name them, and the command that goes on with a run."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

from ddrl.checkpoint import DIRECTORY, best_path, checkpoint_path, list_checkpoints, version_of
from ddrl.errors import UsageError
from ddrl.wording import plural

CHECKPOINT = re.compile(r"update-(\d+)\.npz|best\.npz")  # zeros may be missing where somebody types it
BEST = "best"


def run_and_checkpoint(named: str, checkpoint: str = "") -> tuple[Path, Path | None]:
    """The directory of a run, and the file of the checkpoint that was named, or None for the newest one.

    Args:
        named: a run's directory, its directory of checkpoints, or one of the files there.
        checkpoint: the number of its update, `best` (of the best evaluation), or a file; empty: as `named` says.

    Raises:
        UsageError: there is no such checkpoint, or both name one.
    """
    path = Path(named)
    if path.name == DIRECTORY and list_checkpoints(path.absolute().parent):
        return run_and_checkpoint(str(_above(path)), checkpoint)
    match = CHECKPOINT.fullmatch(path.name)
    if match and path.absolute().parent.name == DIRECTORY:
        if checkpoint:
            raise UsageError(f"--checkpoint {checkpoint}: {named} already names one; give one of the two")
        run = _above(_above(path))
        return run, _of_version(run, int(match[1])) if match[1] else _best_of(run)
    if not checkpoint:
        return path, None
    if checkpoint == BEST:
        return path, _best_of(path)
    return path, _of_version(path, int(checkpoint)) if checkpoint.isdecimal() else _of_file(path, checkpoint)


def run_and_checkpoint_in_one(named: str) -> tuple[Path, Path | None]:
    """As `run_and_checkpoint`, from one word.

    Args:
        named: RUN, or RUN:CHECKPOINT. A path that exists is RUN, even if it has colons.

    Raises:
        UsageError: as `run_and_checkpoint`.
    """
    run, colon, checkpoint = named.rpartition(":")
    if not colon or os.path.exists(named):
        return run_and_checkpoint(named)
    return run_and_checkpoint(run, checkpoint)


def go_on(run_dir: str | Path) -> str:
    """A text with the command that continues a run from its checkpoint or, without one, starts it again."""
    where = shlex.quote(str(run_dir))
    try:
        begun = bool(list_checkpoints(run_dir)) or not Path(run_dir).is_dir()
    except UsageError:  # it cannot be read now, but may be once it is mended
        begun = True
    if begun:
        return f"resume with `ddrl train --resume {where}`"
    return f"start again with `ddrl train --resume-or-start --run-dir {where}`, as there is no checkpoint yet"


def _above(path: Path) -> Path:
    """The directory that a path is in: a relative path if the path names that directory, else an absolute one."""
    return path.parent if path.parent.name or path.is_absolute() else path.absolute().parent


def _best_of(run: Path) -> Path:
    path = best_path(run)
    if path.exists() or not run.is_dir():
        return path
    raise UsageError(
        f"{run} has no {DIRECTORY}/{path.name}: no evaluation of it has ended with all its games over, or an earlier "
        "version of ddrl trained it; name another checkpoint, or none for the newest"
    )


def _of_version(run: Path, version: int) -> Path:
    path = checkpoint_path(run, version)
    if path.exists() or not run.is_dir():
        return path
    there = [str(version_of(each)) for each in list_checkpoints(run)]
    have = f", only of {plural('update', len(there))} {', '.join(there)}" if there else "; it has none"
    raise UsageError(f"{run} has no checkpoint of update {version}{have}")


def _of_file(run: Path, named: str) -> Path:
    """The file of this name. One that is not there is refused here only if its name is that of no checkpoint's file."""
    if named.endswith(".npz") or os.path.exists(named) or not run.is_dir():
        return Path(named)
    raise UsageError(f"{run} has no checkpoint {named}; name the number of an update, {BEST}, or a file")
