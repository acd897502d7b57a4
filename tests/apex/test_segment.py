"""The bytes of segments: they come back as they were, and nothing else is taken."""

from __future__ import annotations

import dataclasses
import struct
import zlib

import numpy as np
import pytest
import zstandard

from ddrl.apex.segment import SegmentFormat
from ddrl.errors import UsageError
from ddrl.types import Discrete
from tests.apex.segments import FEATURES, IMAGES, Player, noise

FORMATS = (IMAGES, FEATURES)


def assert_equal(mine, other):
    for name, a, b in zip(mine._fields, mine, other, strict=True):
        np.testing.assert_array_equal(a, b, err_msg=name)
        assert getattr(a, "dtype", None) == getattr(b, "dtype", None), name


def with_checksum(body: bytes) -> bytes:
    return struct.pack("<Q", zlib.crc32(body)) + body


@pytest.mark.parametrize("compress", (False, True))
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("transitions", (1, 3, 10))
def test_what_was_encoded_comes_back(format, compress, transitions):
    segment = noise(
        format, np.random.default_rng(0), actor=3, run_id=2**40, simulator=5, first_step=77, transitions=transitions
    )
    assert_equal(format.decode(format.encode(segment, compress)), segment)


@pytest.mark.parametrize("format", FORMATS)
def test_segments_of_play_come_back(format):
    player = Player(format, seed=3)
    segments = player.play(200)
    assert len(segments) > 20
    for segment in segments:
        assert_equal(format.decode(format.encode(segment)), segment)


def test_compression_makes_plain_pictures_small():
    segment = noise(IMAGES, np.random.default_rng(0))
    segment.frames[:] = 3
    plain, compressed = IMAGES.encode(segment, compress=False), IMAGES.encode(segment)
    assert len(plain) - len(compressed) > segment.frames.nbytes * 0.8
    assert_equal(IMAGES.decode(compressed), segment)


@pytest.mark.parametrize("compress", (False, True))
@pytest.mark.parametrize("format", FORMATS)
def test_any_damaged_byte_is_noticed(format, compress):
    data = format.encode(noise(format, np.random.default_rng(0), transitions=2), compress)
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 1 << place % 8
        with pytest.raises(UsageError, match="it is lost|CRC"):
            format.decode(bytes(damaged))


@pytest.mark.parametrize("format", FORMATS)
def test_bytes_of_another_length_are_refused(format):
    data = format.encode(noise(format, np.random.default_rng(0), transitions=2))
    for size in range(len(data)):
        with pytest.raises(UsageError):
            format.decode(data[:size])
        with pytest.raises(UsageError):
            format.decode(with_checksum(data[8:size]) if size >= 8 else data[:size])
    with pytest.raises(UsageError):
        format.decode(with_checksum(data[8:] + b"\0"))


@pytest.mark.parametrize("compress", (False, True))
@pytest.mark.parametrize("format", FORMATS)
def test_nonsense_with_a_right_checksum_raises_nothing_else(format, compress):
    """Whatever a sender writes: a UsageError, or a segment that makes sense."""
    body = format.encode(noise(format, np.random.default_rng(0)), compress)[8:]
    random = np.random.default_rng(1)
    for _ in range(1500):
        wrong = bytearray(body)
        for place in random.integers(len(wrong), size=random.integers(1, 4)):
            wrong[int(place) if random.random() < 0.5 else int(place) % 500] = int(random.integers(256))
        try:
            format.check(format.decode(with_checksum(bytes(wrong))))
        except UsageError as error:
            assert "\n" not in str(error)


def test_compressed_frames_never_take_more_memory_than_they_should():
    segment = noise(IMAGES, np.random.default_rng(0))
    data = IMAGES.encode(segment, compress=True)
    compressor = zstandard.ZstdCompressor(level=1)
    pixels = compressor.compress(segment.frames)
    assert data.endswith(pixels)
    unsized = zstandard.ZstdCompressor(level=1, write_content_size=False).compress(bytes(50_000_000))
    wrong = (compressor.compress(segment.frames.tobytes()[:-1]), pixels[:-1], pixels + b"more", pixels[:9], b"abc", b"")
    for bomb in (compressor.compress(bytes(50_000_000)), unsized, *wrong):
        body = bytearray(data[8 : len(data) - len(pixels)])
        body[52:56] = struct.pack("<I", len(bomb))
        with pytest.raises(UsageError, match="decompress|compressed frames give"):
            IMAGES.decode(with_checksum(bytes(body) + bomb))


@pytest.mark.parametrize(
    "other",
    (
        {"observation_shape": (4, 6)},
        {"n_step": 2},
        {"action_space": Discrete(6)},
        {"stack": 2},
        {"length": 11},
        {"observation_type": "float32"},
    ),
)
def test_a_segment_of_another_format_is_refused_by_name(other):
    theirs = dataclasses.replace(IMAGES, **other)
    data = theirs.encode(noise(theirs, np.random.default_rng(0)))
    with pytest.raises(UsageError, match="start actors and replay with the same settings"):
        IMAGES.decode(data)


@pytest.mark.parametrize(
    "name, value, words",
    (
        ("priority", np.nan, "1 of 10 values of priority .* nan"),
        ("priority", np.inf, "priority .* inf"),
        ("priority", -0.5, "priority .* -0.5"),
        ("reward", np.nan, "reward"),
        ("discount", 1.01, "discount .* 1.0"),
        ("discount", -0.1, "discount"),
        ("action", 5, "action .* 0 to 4 .* 5"),
        ("action", -1, "action"),
        ("version", -1, "version"),
        ("steps", 0, "steps"),
        ("steps", 4, "steps .* 1 to 3"),
        ("row", 2, "rows .* do not rise|lacks frames"),
        ("row", 10**6, "rows .* do not rise"),
        ("row", -1, "rows .* do not rise"),
        ("age", 4, "age"),
    ),
)
def test_bad_values_are_refused_at_the_sender(name, value, words):
    segment = noise(IMAGES, np.random.default_rng(0))
    getattr(segment, name)[4] = value
    with pytest.raises(UsageError, match=words):
        IMAGES.encode(segment)


@pytest.mark.parametrize("name", ("frames", "action"))
def test_features_and_continuous_actions_must_be_numbers(name):
    segment = noise(FEATURES, np.random.default_rng(0))
    getattr(segment, name)[4, 1] = np.nan
    with pytest.raises(UsageError, match="nan"):
        FEATURES.encode(segment)


@pytest.mark.parametrize(
    "change, words",
    (
        ({"actor": -1}, "actor -1"),
        ({"run_id": 2**63}, "run_id"),
        ({"frames": np.zeros((16, 2, 4), np.uint8)}, r"frames .* uint8\[16, 2, 4\], not uint8\[16, 2, 3\]"),
        ({"action": np.zeros(10, np.int64)}, r"int64\[10\], not int32\[10\]"),
        ({"reward": np.zeros(9, np.float32)}, r"float32\[9\], not float32\[10\]"),
        ({"row": np.zeros(0, np.int32)}, "0 transitions"),
        ({"frames": np.zeros((17, 2, 3), np.uint8)}, "17 frames: must be"),
        ({"age": np.full(16, 3, np.uint8), "row": np.arange(2, 12, dtype=np.int32)}, "lacks frames"),
    ),
)
def test_wrong_arrays_are_refused_at_the_sender(change, words):
    with pytest.raises(UsageError, match=words):
        IMAGES.encode(noise(IMAGES, np.random.default_rng(0))._replace(**change))


def test_a_segment_of_too_many_transitions_is_refused():
    long = dataclasses.replace(IMAGES, length=11)
    with pytest.raises(UsageError, match="11 transitions"):
        IMAGES.check(noise(long, np.random.default_rng(0)))


@pytest.mark.parametrize(
    "change, words",
    (
        ({"stack": 3}, "not stacks of 3"),
        ({"n_step": 0}, "--n-step 0"),
        ({"length": 0}, "--length 0"),
        ({"observation_type": "float64"}, "float64"),
    ),
)
def test_a_bad_format_is_refused(change, words):
    with pytest.raises(UsageError, match=words):
        dataclasses.replace(IMAGES, **change)


def test_atari_has_at_most_15_percent_more_than_one_frame_for_each_transition():
    atari = SegmentFormat((4, 84, 84), "uint8", Discrete(6), stack=4, n_step=3)
    data = atari.encode(noise(atari, np.random.default_rng(0)), compress=False)
    assert len(data) / atari.length < 1.15 * 84 * 84
