"""JSON and zip archives with a checksum of themselves, by which a single changed bit is found.

A JSON file ends in the SHA-256 of what is before it, and a line of a file of lines in a CRC-32. JSON without a checksum
was written by an earlier version, or by hand. The comment of an archive, a checkpoint, ends in the SHA-256 of every
byte before it.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import zipfile
import zlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

FILE_KEY, LINE_KEY = "sha256", "crc32"

_FILE = re.compile(rb'(.*),\n  "sha256": "([0-9a-f]{64})"\n\}\n', re.DOTALL)
_LINE = re.compile(rb'(.*), "crc32": "([0-9a-f]{8})"\}\n?', re.DOTALL)
_ARCHIVE = b"ddrl-checkpoint sha256 "
_DIGEST_BYTES = 64
_TRAILER_BYTES = len(_ARCHIVE) + _DIGEST_BYTES
_CHECKSUM = {FILE_KEY: re.compile("[0-9a-f]{64}"), LINE_KEY: re.compile("[0-9a-f]{8}")}


class Read(NamedTuple):
    """Content without its checksum, and whether it had one."""

    content: dict[str, Any]
    sealed: bool


def file_bytes(content: Mapping[str, Any]) -> bytes:
    """The bytes of a whole file, with a checksum unless the content is empty.

    Raises ValueError for a number that is not finite.
    """
    text = json.dumps(content, indent=2, allow_nan=False)
    if not content:
        return f"{text}\n".encode()
    digest = hashlib.sha256(text.encode()).hexdigest()
    return f'{text[:-2]},\n  "{FILE_KEY}": "{digest}"\n}}\n'.encode()


def line_bytes(content: Mapping[str, Any], default: Callable[[Any], Any] | None = None) -> bytes:
    """The bytes of a line with its checksum and line end. Raises ValueError for a number that is not finite."""
    text = json.dumps(content, default=default, allow_nan=False)
    return f'{text[:-1]}, "{LINE_KEY}": "{zlib.crc32(text.encode()):08x}"}}\n'.encode()


def read_file(data: bytes) -> Read:
    """The inverse of `file_bytes`, also for a file without a checksum.

    Raises:
        ValueError: it is damaged, or no JSON object.
    """
    match = _FILE.fullmatch(data)
    return _read(data, FILE_KEY, match and hashlib.sha256(match[1] + b"\n}").hexdigest().encode() == match[2])


def read_line(data: bytes) -> Read:
    """The inverse of `line_bytes`, also for a line without a checksum.

    Raises:
        ValueError: it is damaged, or no JSON object.
    """
    match = _LINE.fullmatch(data)
    return _read(data, LINE_KEY, match and b"%08x" % zlib.crc32(match[1] + b"}") == match[2])


def _read(data: bytes, key: str, right: bool | None) -> Read:
    try:
        content = json.loads(data)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(content, dict):
        raise ValueError("it is no JSON object")
    if key in content and not right:
        raise ValueError(f"it does not match its {key}")
    last = next(reversed(content.values()), None)
    if not right and isinstance(last, str) and _CHECKSUM[key].fullmatch(last):
        raise ValueError(f"the name of its {key} is damaged")
    content.pop(key, None)
    return Read(content, bool(right))


def archive_bytes(data: bytes) -> bytes:
    """The bytes of a zip archive with a comment that ends in the SHA-256 of all bytes before it."""
    buffer = io.BytesIO(data)
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.comment = _ARCHIVE + b"0" * _DIGEST_BYTES
    body = buffer.getvalue()[:-_DIGEST_BYTES]
    return body + hashlib.sha256(body).hexdigest().encode()


def is_archive(data: bytes) -> bool:
    """Whether these are the bytes of an archive with a checksum, right or wrong."""
    return data[-_TRAILER_BYTES:-_DIGEST_BYTES] == _ARCHIVE


def archive_is_sound(data: bytes) -> bool:
    """Whether these are the bytes of an archive that matches its checksum."""
    return is_archive(data) and hashlib.sha256(data[:-_DIGEST_BYTES]).hexdigest().encode() == data[-_DIGEST_BYTES:]
