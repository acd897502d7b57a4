"""A file system that is lost: from the moment that the file RUN-lost is there, nothing in RUN can be had.

RUN-lost holds the name of the error that every access gets, such as ESTALE. With EROFS, only changes get it. With HANG,
accesses do not return before RUN-lost is gone.
"""

from __future__ import annotations

import errno
import io
import os
import sys
import time
from pathlib import Path

READS = ("os.listdir", "os.scandir")
CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.truncate", "os.utime")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
HANG, READ_ONLY = "HANG", "EROFS"
LONG_SECONDS = 400.0  # longer than any test waits


def marker(run_dir: Path) -> Path:
    """The file that makes the loss."""
    return run_dir.with_name(f"{run_dir.name}-lost")


class Loss:
    """Raises, or does not return, for what is in a run directory once that is lost."""

    def __init__(self, run_dir: Path):
        self._run_dir, self._marker = os.fspath(run_dir), marker(run_dir)

    def check(self, path: object, changes: bool) -> None:
        """To be called before an access, which may be one that changes something."""
        if not isinstance(path, (str, os.PathLike)) or not f"{os.fspath(path)}/".startswith(f"{self._run_dir}/"):
            return
        end = time.monotonic() + LONG_SECONDS
        while (name := self._name()) == HANG and time.monotonic() < end:
            time.sleep(0.1)
        if name not in ("", HANG) and (changes or name != READ_ONLY):
            number = getattr(errno, name)
            raise OSError(number, os.strerror(number), path)

    def audit(self, event: str, arguments: tuple) -> None:
        """The audit hook."""
        if event == "open":  # path, mode, flags
            self.check(arguments[0], bool(arguments[2] & WRITING))
        elif event in READS or event in CHANGES:
            self.check(arguments[0], event in CHANGES)

    def _name(self) -> str:
        """What the marker holds; empty without one."""
        try:
            with open(self._marker) as file:
                return file.read()
        except FileNotFoundError:
            return ""


def arm(run_dir: Path) -> None:
    """Prepares this process for the loss. Of the files that are open then, metrics.jsonl is lost, too."""
    from ddrl.reporting import metrics

    loss, stat, append = Loss(run_dir), os.stat, metrics.append_regular

    class Appended(io.FileIO):
        path: Path

        def write(self, data: bytes) -> int:
            loss.check(self.path, True)
            return super().write(data)

    def append_regular(path: Path) -> Appended:
        with append(path) as file:
            appended = Appended(os.dup(file.fileno()), "a")
        appended.path = path
        return appended

    def checked_stat(path, *arguments, **options):
        loss.check(path, False)
        return stat(path, *arguments, **options)

    metrics.append_regular = append_regular
    os.stat = checked_stat  # has no audit event
    sys.addaudithook(loss.audit)
