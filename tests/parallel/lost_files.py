"""A file system that is lost: from the moment that the file RUN-lost is there, nothing in RUN can be had.

RUN-lost holds the name of the error that every access gets, such as ESTALE, or HANG: then it does not return.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from pathlib import Path

EVENTS = ("open", "os.listdir", "os.scandir", "os.mkdir", "os.rename", "os.remove", "os.truncate", "os.utime")
LONG_SECONDS = 200.0


def marker(run_dir: Path) -> Path:
    """The file that makes the loss."""
    return run_dir.with_name(f"{run_dir.name}-lost")


def arm(run_dir: Path) -> None:
    """Prepares this process for the loss. Files that are open already stay usable."""
    inside, mark, real = os.fspath(run_dir), os.fspath(marker(run_dir)), os.stat

    def check(path: object) -> None:
        if isinstance(path, (str, os.PathLike)) and os.fspath(path).startswith(inside + os.sep):
            try:
                real(mark)
            except FileNotFoundError:
                return
            lose(path)

    def lose(path: object) -> None:
        with os.fdopen(os.open(mark, os.O_RDONLY)) as file:
            name = file.read()
        if name == "HANG":
            time.sleep(LONG_SECONDS)
        number = getattr(errno, name)
        raise OSError(number, os.strerror(number), path)

    def stat(path, *arguments, **options):
        check(path)
        return real(path, *arguments, **options)

    os.stat = stat  # has no audit event
    sys.addaudithook(lambda event, arguments: check(arguments[0]) if event in EVENTS else None)
