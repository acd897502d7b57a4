"""Checksums of JSON: every flipped bit is found, and what has none can be read."""

from __future__ import annotations

import json

import pytest

from ddrl import rundir, sealed
from ddrl.algorithms.ba3c import BA3CConfig
from ddrl.config import TrainConfig

CONTENT = {"kind": "train", "deep": {"a": [1, 2.5, None]}, "text": 'quoted "sha256": and\nmore'}


@pytest.mark.parametrize(
    ("write", "read"), [(sealed.file_bytes, sealed.read_file), (sealed.line_bytes, sealed.read_line)]
)
def test_every_flipped_bit_is_found(write, read):
    data = write(CONTENT)
    assert read(data) == (CONTENT, True)
    assert json.loads(data).keys() >= CONTENT.keys(), "ordinary JSON"
    for at in range(len(data) - 1):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[at] ^= 1 << bit
            with pytest.raises(ValueError):
                read(bytes(damaged))


def test_what_bears_no_checksum_is_read_and_said(tmp_path):
    assert sealed.read_file(b'{"a": 1}') == ({"a": 1}, False)
    assert sealed.read_line(b'{"text": "0a1b2c3"}') == ({"text": "0a1b2c3"}, False)
    assert sealed.read_file(sealed.file_bytes({})) == ({}, False)


@pytest.mark.parametrize("text", [b"", b"[]", b"3", b'{"a": "\xff"}', b"[" * 100_000, b'{"a":' * 100_000])
def test_what_is_no_json_object_is_a_value_error(text):
    with pytest.raises(ValueError):
        sealed.read_file(text)
    with pytest.raises(ValueError):
        sealed.read_line(text)


def test_files_of_a_run_are_sealed_and_a_damaged_one_is_not_read(tmp_path):
    path = tmp_path / "result.json"
    rundir.write_json(path, {"status": "finished"})
    assert rundir.read_json(path) == {"status": "finished"}
    path.write_bytes(path.read_bytes().replace(b"finished", b"finishee"))
    assert rundir.read_json(path) is None
    assert (
        rundir.config_to_dict(TrainConfig(algorithm=BA3CConfig())).keys().isdisjoint({sealed.FILE_KEY, sealed.LINE_KEY})
    )
