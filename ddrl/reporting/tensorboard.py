"""TensorBoard events without TensorFlow: scalars as TFRecords of Event protocol buffers.

A chief that only coordinates loads no TensorFlow (500 MB, seconds), and the `tensorboard` package is no
dependency; the few fields that scalars need have been the same since 2015. Format: TensorFlow's
`tensorflow/core/util/event.proto`, `summary.proto` and `lib/io/record_writer.cc`. Tests read the files back
with TensorFlow.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Mapping

from ddrl.reporting.callbacks import Callback, Record, RunContext
from ddrl.reporting.metrics import cannot_write, scalars

LARGEST = 3.4e38
"""Scalars are stored as float32: larger ones cannot be written."""


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _crc_table()


def crc32c(data: bytes) -> int:
    """CRC-32C (Castagnoli, RFC 3720) of `data`."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def framed(data: bytes) -> bytes:
    """One TFRecord: length, masked CRC of the length, data, masked CRC of the data."""
    length = struct.pack("<Q", len(data))
    return length + _masked_crc(length) + data + _masked_crc(data)


def scalar_event(wall_time: float, step: int, scalars: Mapping[str, float]) -> bytes:
    """An Event with the simple values `scalars`, by tag; `wall_time` in seconds since 1970, `step` not negative."""
    values = b""
    for tag, value in scalars.items():
        values += _field(1, _field(1, tag.encode()) + b"\x15" + struct.pack("<f", value))
    return b"\x09" + struct.pack("<d", wall_time) + b"\x10" + _varint(step) + _field(5, values)


class TensorBoard(Callback):
    """Writes the numbers of a run to a new events file in its directory, over agent steps; each record at once.

    Raises:
        UsageError: the file cannot be written.
    """

    def __init__(self, context: RunContext) -> None:
        now = time.time()
        name = f"events.out.tfevents.{int(now)}.{socket.gethostname()}.{os.getpid()}.{time.monotonic_ns()}"
        version = b"\x09" + struct.pack("<d", now) + _field(3, b"brain.Event:2")
        try:
            self._file = open(context.run_dir / name, "xb", buffering=0)  # noqa: SIM115 - on_end() closes it
            self._file.write(framed(version))
        except OSError as error:
            raise cannot_write(context.run_dir, error) from error

    def on_metrics(self, record: Record) -> None:
        kept = {tag: value for tag, value in scalars(record).items() if abs(value) <= LARGEST}
        if kept:
            self._file.write(framed(scalar_event(time.time(), int(record.get("agent_steps", 0)), kept)))

    on_evaluation = on_metrics

    def on_end(self, result: Record) -> None:
        self._file.close()


def _masked_crc(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _field(number: int, data: bytes) -> bytes:
    """A length-delimited protocol buffer field."""
    return bytes([number << 3 | 2]) + _varint(len(data)) + data
