"""Follows a file of JSON lines, such as RUN/metrics.jsonl, while another process appends to it."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ddrl import sealed
from ddrl.files import open_regular

PART_BYTES = 1 << 22
"""How much of a file of lines is in memory at once."""


class JsonLines:
    """Follows a file of JSON lines that another process appends to.

    Args:
        path: path of the file, which need not exist yet.
        from_end: leave out the lines that are there already.

    Attributes:
        damaged: number of lines that were left out, as they are no JSON objects or do not match their checksum.
    """

    def __init__(self, path: Path, from_end: bool = False):
        self._path, self.damaged, self._offset = path, 0, 0
        if from_end:
            for _ in self.lines():  # not the file's size: whoever appends cuts off half a line at the end first
                pass

    def read(self) -> list[dict[str, Any]]:
        """The records of the whole lines that came since the last call."""
        return [record for line in self.lines() if (record := self.record(line)) is not None]

    def record(self, line: bytes) -> dict[str, Any] | None:
        """The record in a line; None for a damaged line, which is counted."""
        try:
            return sealed.read_line(line).content
        except ValueError:
            self.damaged += 1
            return None

    def lines(self) -> Iterator[bytes]:
        """Yields the whole lines that came since the last call, without line ends; memory holds PART_BYTES of them."""
        try:
            with open_regular(self._path) as file:
                while data := _read_at(file, self._offset):
                    whole = data[: data.rfind(b"\n") + 1]
                    if not whole and len(data) == PART_BYTES:
                        whole = data  # no record is that long: it is read as damaged
                    self._offset += len(whole)
                    yield from whole.removesuffix(b"\n").split(b"\n") if whole else ()
                    if len(data) < PART_BYTES:
                        return
        except OSError:
            return


def _read_at(file: io.FileIO, offset: int) -> bytes:
    file.seek(offset)
    return file.read(PART_BYTES)
