"""Segments: what an actor of Ape-X sends to a replay (Horgan et al. 2018, appendix F), and their bytes on the wire."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import struct
import zlib
from typing import Any, NamedTuple

import numpy as np
import zstandard

from ddrl import checks
from ddrl.errors import UsageError
from ddrl.replay.replay import LARGEST_PRIORITY
from ddrl.structured import field_types, float_parts, type_of
from ddrl.types import ActionSpace, Discrete, MultiDiscrete

MAGIC = b"ddrs"
VERSION = 1  # of the layout of the bytes
LOST = "it is lost; if more of them are, look for faulty memory or a faulty network"
COMPRESSED = 1  # flag: the frames are compressed
LARGEST_NUMBER = 2**63 - 1
KEPT_TYPES = ("uint8", "float32", "bool")
# magic, version, flags, actor, run_id, simulator, first step, transitions, frames, bytes of description and of frames
_HEADER = struct.Struct("<4sHHqqqqIIII")
_CHECKSUM = struct.Struct("<Q")  # CRC-32 of all that follows it


class Segment(NamedTuple):
    """M transitions of n steps of one simulator, in the order of its steps; each frame is there once.

    The observation of transition i ends with `frames[row[i]]`, the one after its steps with `frames[row[i] +
    steps[i]]`. Transition i is the simulator's step `first_step + row[i] - row[0]`.

    Attributes:
        actor: id of the sender.
        run_id: of the sender's incarnation; an actor that comes back has a larger one.
        simulator: number of the simulator within the actor.
        first_step: step of the first transition, counted from the beginning of the incarnation; none is repeated.
        frames: <observation's type>[F, ...] one after the other.
        age: <uint8>[F] how many earlier frames belong to the stack that ends with this one; older ones are zero.
        row: <int32>[M] number of the frame with which the observation ends, rising.
        steps: <int32>[M] from 1 to n; fewer than n where the episode ends before.
        action: <int32>[M], or <float32>[M, A].
        reward: <float32>[M] discounted sum of the rewards of the steps.
        discount: <float32>[M] of the value after the steps: 0 after a termination.
        version: <int64>[M] of the parameters that chose the action.
        priority: <float32>[M] initial priority, at least 0.
    """

    actor: int
    run_id: int
    simulator: int
    first_step: int
    frames: Any
    age: Any
    row: Any
    steps: Any
    action: Any
    reward: Any
    discount: Any
    version: Any
    priority: Any


@dataclasses.dataclass(frozen=True)
class SegmentFormat:
    """The format of the segments of a job, in which actors and replay shards must agree.

    Attributes:
        observation_shape: of one observation.
        observation_type: type of one observation, as text by `ddrl.structured.type_text`.
        action_space: of the environment.
        stack: frames in an observation, oldest first along its first axis.
        n_step: n, the most steps of a transition.
        length: the most steps that a segment covers, and so the most transitions. To 50 frames of Atari, the 3 earlier
            ones that stacks need and the 3 later ones that 3-step returns need add 12%.

    Raises:
        UsageError: a number is out of range, or the observation is not that many frames.
    """

    observation_shape: tuple[int, ...]
    observation_type: str
    action_space: ActionSpace
    stack: int = 1
    n_step: int = 1
    length: int = 50

    def __post_init__(self) -> None:
        shape = self.observation_shape
        if self.stack < 1 or self.stack > 255 or (self.stack > 1 and (not shape or shape[0] % self.stack)):
            raise UsageError(f"observations {list(shape)} are not stacks of {self.stack} frames (1 to 255): use 1")
        checks.between(self, 1, 10_000, "n_step", "length")
        for _, dtype in (field_types(self.observation_dtype) or {"": ((), self.observation_dtype)}).values():
            if dtype.name not in KEPT_TYPES:
                raise UsageError(f"observations of type {dtype}: a replay keeps {', '.join(KEPT_TYPES)}")

    @functools.cached_property
    def observation_dtype(self) -> np.dtype:
        """Type of one observation."""
        return type_of(self.observation_type)

    @property
    def frame_shape(self) -> tuple[int, ...]:
        """Shape of one frame."""
        shape = self.observation_shape
        return shape if self.stack == 1 else (shape[0] // self.stack, *shape[1:])

    @property
    def frame_bytes(self) -> int:
        """Bytes of one frame."""
        return math.prod(self.frame_shape) * self.observation_dtype.itemsize

    @property
    def most_frames(self) -> int:
        """The most frames of a segment."""
        return self.stack - 1 + self.length + self.n_step

    @property
    def action_type(self) -> np.dtype:
        """Type of one component of an action."""
        return self.action_space.action_dtype

    @functools.cached_property
    def description(self) -> bytes:
        """The format as JSON, padded to a multiple of 8 bytes, which sender and receiver compare."""
        space = self.action_space
        facts = {
            "observation": list(self.observation_shape),
            "type": self.observation_type,
            "actions": space.count if isinstance(space, Discrete) else _components(space),
            "stack": self.stack,
            "n_step": self.n_step,
            "length": self.length,
        }
        text = json.dumps(facts).encode()
        return text + b" " * (-len(text) % 8)

    def columns(self, transitions: int, frames: int) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
        """Shape and type of each array but the frames, the largest items first, so that all are aligned."""
        m = (transitions,)
        four: dict[str, tuple[tuple[int, ...], np.dtype]] = {
            name: (m, np.dtype(np.float32)) for name in ("reward", "discount", "priority")
        }
        four |= {name: (m, np.dtype(np.int32)) for name in ("row", "steps")}
        action = ((*m, *self.action_space.action_shape), self.action_type)
        return {"version": (m, np.dtype(np.int64)), **four, "action": action, "age": ((frames,), np.dtype(np.uint8))}

    def encode(self, segment: Segment, compress: bool | None = None) -> bytes:
        """The bytes of a segment to send.

        Neighboring frames of a game are so alike that Zstandard makes 40 bytes of 7,900, for less processor time than
        copying and checking them takes.

        Args:
            segment: of this format.
            compress: whether to compress the frames (None: if they are images).

        Raises:
            UsageError: the segment is not of this format, or has values that a replay must not get.
        """
        self.check(segment)
        transitions, frames = len(segment.row), len(segment.frames)
        arrays = [np.ascontiguousarray(getattr(segment, name)) for name in self.columns(transitions, frames)]
        pixels: Any = np.ascontiguousarray(segment.frames).view(np.uint8)
        size = pixels.nbytes
        if compress is None:
            compress = self._has_pixels
        if compress:
            pixels = zstandard.ZstdCompressor(level=1).compress(pixels)
            size = len(pixels)
        header = _HEADER.pack(
            MAGIC,
            VERSION,
            COMPRESSED if compress else 0,
            segment.actor,
            segment.run_id,
            segment.simulator,
            segment.first_step,
            transitions,
            frames,
            len(self.description),
            size,
        )
        parts = [header, self.description, *arrays, pixels]
        checksum = functools.reduce(lambda value, part: zlib.crc32(part, value), parts, 0)
        return b"".join([_CHECKSUM.pack(checksum), *parts])

    def decode(self, data: bytes) -> Segment:
        """The segment in bytes that `encode` made; its arrays are views of bytes, and must not be written to.

        Raises:
            UsageError: the bytes are damaged, of another format, or hold values that a replay must not get.
        """
        start = _CHECKSUM.size + _HEADER.size
        if len(data) < start:
            raise UsageError(f"a segment of {len(data)} bytes, of which the header alone has {start}: {LOST}")
        view = memoryview(data)
        (checksum,) = _CHECKSUM.unpack_from(view)
        if zlib.crc32(view[_CHECKSUM.size :]) != checksum:
            raise UsageError(f"a segment of {len(data)} bytes is damaged (its CRC-32 does not match): {LOST}")
        magic, version, flags, *name, transitions, frames, described, size = _HEADER.unpack_from(view, _CHECKSUM.size)
        if (magic, version) != (MAGIC, VERSION) or flags & ~COMPRESSED:
            raise UsageError(f"not a segment of version {VERSION}: run the same version of ddrl everywhere")
        theirs = bytes(view[start : start + described])
        if theirs != self.description:
            raise UsageError(
                f"a segment of {theirs[:400]!a}, not of {self.description!a}: start actors and replay with"
                " the same settings"
            )
        self._check_counts(transitions, frames)
        columns: dict[str, Any] = {}
        at = start + described
        for column, (shape, dtype) in self.columns(transitions, frames).items():
            columns[column], at = _array(view, at, shape, dtype)
        if len(data) != at + size:
            raise UsageError(f"a segment of {len(data)} bytes, not {at + size} as its header says: {LOST}")
        pixels = self._decompress(view[at:], frames) if flags & COMPRESSED else view[at:]
        columns["frames"], end = _array(pixels, 0, (frames, *self.frame_shape), self.observation_dtype)
        if end != len(pixels):
            raise UsageError(f"{len(pixels)} bytes of frames, not {end}: {LOST}")
        segment = Segment(*name, **columns)
        self.check(segment)
        return segment

    def check(self, segment: Segment) -> None:
        """Raises UsageError, which names the value, where a segment is not of this format or makes no sense."""
        for name in ("actor", "run_id", "simulator", "first_step"):
            if not 0 <= getattr(segment, name) <= LARGEST_NUMBER:
                raise UsageError(
                    f"a segment with {name} {getattr(segment, name)}: must be between 0 and {LARGEST_NUMBER}"
                )
        transitions, frames = len(segment.row), len(segment.frames)
        self._check_counts(transitions, frames)
        expected = self.columns(transitions, frames)
        expected["frames"] = ((frames, *self.frame_shape), self.observation_dtype)
        for name, (shape, dtype) in expected.items():
            array = getattr(segment, name)
            if array.shape != shape or array.dtype != dtype:
                raise UsageError(
                    f"{name} of a segment is {array.dtype}{list(array.shape)}, not {dtype}{list(shape)}: start actors"
                    " and replay with the same settings"
                )
        self._check_values(segment)
        self._check_rows(segment)

    @property
    def _has_pixels(self) -> bool:
        """Whether most of an observation is uint8."""
        fields = field_types(self.observation_dtype) or {"": (self.frame_shape, self.observation_dtype)}
        return 2 * sum(math.prod(shape) for shape, dtype in fields.values() if dtype == np.uint8) > self.frame_bytes

    def _check_counts(self, transitions: int, frames: int) -> None:
        if not 1 <= transitions <= self.length or not 2 <= frames <= self.most_frames:
            raise UsageError(
                f"a segment of {transitions} transitions and {frames} frames: must be 1 to {self.length} and 2 to"
                f" {self.most_frames}; start actors and replay with the same --segment-length"
            )

    def _check_values(self, segment: Segment) -> None:
        _require("priority", segment.priority, 0.0, LARGEST_PRIORITY)
        _require("discount", segment.discount, 0.0, 1.0)
        _require("reward", segment.reward, -LARGEST_PRIORITY, LARGEST_PRIORITY)
        _require("version", segment.version, 0, LARGEST_NUMBER)
        if isinstance(self.action_space, Discrete):
            _require("action", segment.action, 0, self.action_space.count - 1)
        else:
            _require("action", segment.action, -LARGEST_PRIORITY, LARGEST_PRIORITY)
        for part in float_parts(segment.frames):
            _require("observation", part, -LARGEST_PRIORITY, LARGEST_PRIORITY)

    def _check_rows(self, segment: Segment) -> None:
        """Raises UsageError if rows do not rise within the segment, or if frames of a stack are missing."""
        row, steps = segment.row.astype(np.int64), segment.steps
        _require("steps", steps, 1, self.n_step)
        _require("age", segment.age, 0, self.stack - 1)
        after = row + steps
        rising = (row[1:] > row[:-1]).all() and row[-1] - row[0] < self.length
        if not rising or row[0] < 0 or after.max() >= len(segment.frames):
            raise UsageError(
                f"rows {row[0]} to {row[-1]} of a segment of {len(segment.frames)} frames do not rise within it: a "
                "fault of the actor"
            )
        if (segment.age[row] > row).any() or (segment.age[after] > after).any():
            raise UsageError("a segment lacks frames of its first stacks: a fault of the actor")

    def _decompress(self, data: memoryview, frames: int) -> bytes:
        expected = frames * self.frame_bytes
        try:
            # The size is checked first, so that no data, whatever they are, can take more memory than the frames.
            size = zstandard.get_frame_parameters(data).content_size
            if size == expected:
                return zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise UsageError(f"the frames of a segment cannot be decompressed ({error}): {LOST}") from error
        raise UsageError(f"compressed frames give {size} bytes, not {expected}: {LOST}")


def _components(space: ActionSpace) -> str:
    if isinstance(space, MultiDiscrete):
        return f"int32{list(space.counts)}"
    return f"float32{list(space.action_shape)}"


def renumbered(data: bytes, actor: int, run_id: int, simulator: int, first_step: int) -> bytes:
    """The bytes of a segment as if its transitions were those of another sender or of other steps."""
    copy = bytearray(data)
    magic, version, flags, *_, transitions, frames, described, size = _HEADER.unpack_from(data, _CHECKSUM.size)
    numbers = (actor, run_id, simulator, first_step, transitions, frames, described, size)
    _HEADER.pack_into(copy, _CHECKSUM.size, magic, version, flags, *numbers)
    _CHECKSUM.pack_into(copy, 0, zlib.crc32(memoryview(copy)[_CHECKSUM.size :]))
    return bytes(copy)


def _array(data: Any, start: int, shape: tuple[int, ...], dtype: np.dtype) -> tuple[np.ndarray, int]:
    """The array that begins at byte `start`, and where it ends."""
    count = math.prod(shape)
    end = start + count * dtype.itemsize
    if end > len(data):
        raise UsageError(f"a segment of {len(data)} bytes ends before byte {end}: {LOST}")
    return np.frombuffer(data, dtype, count, start).reshape(shape), end


def _require(name: str, values: np.ndarray, low: float, high: float) -> None:
    """Raises UsageError where a value is below `low`, above `high` or not a number."""
    if values.min() >= low and values.max() <= high:  # not a number: False
        return
    wrong = ~((values >= low) & (values <= high))
    raise UsageError(
        f"{wrong.sum()} of {wrong.size} values of {name} in a segment are out of {low:g} to {high:g} (the first is"
        f" {values[wrong][0]}): nothing of the segment was taken"
    )
