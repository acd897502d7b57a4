"""The wire format: a header of 64-bit words, and a float32 payload for some kinds. Nothing is pickled.

Header and payload are two MPI messages with two tags per channel, so that a payload goes from the array where it
was computed to the array where it is used without a copy. (As one buffer, packing and unpacking cost as much
as the transfer itself.)
"""

from __future__ import annotations

import enum
import struct
from typing import Any, NamedTuple


class Kind(enum.IntEnum):
    """Kind of a message."""

    GRADIENT = 1  # worker -> shard: its slice of one gradient
    READY = 2  # shard -> chief: whose gradients for this step it holds
    COMMIT = 3  # chief -> shard: close the step with these members (or, in asynchronous mode, a command)
    PARAMETERS = 4  # shard -> worker: its slice of the new version
    NORM_REQUEST = 5  # chief -> shard: squared norm of the average over these members?
    NORM = 6  # shard -> chief: the answer
    EXPECT = 7  # chief -> shard: report from this number of gradients on
    FETCH = 8  # reader -> shard: a published version, please
    PUBLISHED = 9  # shard -> reader: its slice of a published version
    SNAPSHOT = 10  # shard -> chief: its slice of parameters and optimizer slots, for a checkpoint
    LOAD = 11  # chief -> shard: parameters and slots to start from
    BLOB = 12  # anyone -> anyone: announces bytes of any length (control, metrics, states)
    BLOB_BYTES = 13  # the announced bytes
    SLICE = 14  # replica -> replica: the part of a gradient that the other one averages
    AVERAGE = 15  # replica -> replica: the part of the average that it made
    REGROUP = 16  # chief's replica -> replicas: these are the members from now on
    OUTCOME = 17  # replica -> chief's replica: the last step that it completed, and its average
    RESUME = 18  # chief's replica -> replicas: the last step that any of them completed, and its average
    DRAW = 19  # learner -> replay shard: a batch, please
    SAMPLE = 20  # replay shard -> learner: the batch
    PRIORITIES = 21  # learner -> replay shard: new ones of transitions that were drawn
    TRIM = 22  # learner -> replay shard: cut the replay down to its soft capacity
    PAUSE = 23  # learner -> replay shard: whether it waits until there are more transitions
    SIZE = 24  # replay shard -> learner: how many transitions there are
    ACKNOWLEDGE = 25  # replay shard -> actor: how many of its segments were taken
    WORD = 26  # chief -> workers and shards: it is there


# Kinds that must not overtake one another share a tag; MPI keeps the order per sender and tag, but for messages of
# which the newest alone counts. (A COMMIT that was written before a death, and arrives after the EXPECT that followed
# it, would restore the old count.)
CHANNEL = {kind: kind for kind in Kind} | {
    Kind.EXPECT: Kind.COMMIT,
    Kind.NORM_REQUEST: Kind.COMMIT,
    Kind.NORM: Kind.READY,
    Kind.TRIM: Kind.DRAW,
    Kind.PAUSE: Kind.DRAW,
}


class Flag(enum.IntFlag):
    """Flags of a header."""

    NONE = 0
    FINITE = 1  # GRADIENT: every element of the whole gradient is finite
    SKIP = 2  # COMMIT, PARAMETERS: the step was refused; the version did not change
    PUBLISH = 4  # COMMIT: keep a copy of this version for readers
    CHECKPOINT = 8  # COMMIT, PARAMETERS: a checkpoint is taken at this update boundary; SIZE: the shard begins to save
    STOP = 16  # COMMIT, PARAMETERS: training ends with this version
    COMMAND = 32  # COMMIT: closes no step; only carries flags and the learning rate
    REFRESH = 64  # PARAMETERS: newer ones under the step that the worker has, to act with
    WITH_UPDATE = 128  # COMMIT, SLICE: a step that is refused goes without PUBLISH, CHECKPOINT and STOP


TO_WORKER = Flag.SKIP | Flag.CHECKPOINT | Flag.STOP
"""What a worker is told with its parameters."""


class Header(NamedTuple):
    """Fields of every message; what a kind does not use stays at its default.

    Attributes:
        kind: what the message is.
        generation: of the members of an all-reduce; it grows when one of them is lost.
        sender: stable id of the sending worker or shard (never its MPI rank).
        step: the slot that the message is about.
        version: updates behind the parameters that the message is about (a gradient's: where it was taken).
        flags: see `Flag`.
        count: samples behind a gradient; gradients expected at the next step; bytes of a blob.
        value: learning rate (COMMIT, LOAD) or squared norm of the average (READY, NORM; NaN: not computed); a replica's
            READY, OUTCOME and RESUME have the norm itself; importance exponent (DRAW); sum of a replay shard's weights
            (SAMPLE, SIZE).
        scale: factor on the averaged gradient (COMMIT).
        ahead: learning rate of the update after this one (COMMIT), for working ahead.
        members: bitmap of worker ids.
        refused: bitmap of the workers whose gradient is not finite.
    """

    kind: Kind
    generation: int = 0
    sender: int = 0
    step: int = 0
    version: int = 0
    flags: Flag = Flag.NONE
    count: int = 0  # type: ignore[assignment]  # of a NamedTuple, whose method it hides
    value: float = float("nan")
    scale: float = 1.0
    ahead: float = float("nan")
    members: int = 0
    refused: int = 0


class Garbled(Exception):
    """What came from a rank is no message of this version: one line that names the rank."""


Payload = Any
"""<float32>[n], or None for a kind that has none."""


class Message(NamedTuple):
    """A message to `peer` (a process), or from it.

    Attributes:
        payload: <float32>[n] or None. It is borrowed: whoever sends it must not change it any more; whoever
            receives it may use it until the second next message of that kind from that peer.
        newest_only: at most one such message of its kind to the peer is in flight; a newer one replaces one that waits.
            What is sent again and again without an answer is to be so: after 512 messages that a rank has not received,
            shared memory of Open MPI 5 has no room left for messages to others.
    """

    peer: int
    header: Header
    payload: Payload = None
    newest_only: bool = False


class HeaderFormat:
    """Encodes headers for a job of at most `workers` workers: 10 words and two bitmaps."""

    def __init__(self, workers: int):
        self.bitmap_words = max(1, (workers + 63) // 64)
        self.words = 10 + 2 * self.bitmap_words
        self.nbytes = 8 * self.words
        self._fields = struct.Struct("<7q3d")

    def encode_into(self, header: Header, buffer: memoryview) -> None:
        """Writes `header` into the first `nbytes` of a byte buffer."""
        self._fields.pack_into(
            buffer,
            0,
            header.kind,
            header.generation,
            header.sender,
            header.step,
            header.version,
            header.flags,
            header.count,
            header.value,
            header.scale,
            header.ahead,
        )
        size = 8 * self.bitmap_words
        buffer[80 : 80 + size] = header.members.to_bytes(size, "little")
        buffer[80 + size : 80 + 2 * size] = header.refused.to_bytes(size, "little")

    def decode(self, buffer: memoryview) -> Header:
        """Reads the header at the start of a byte buffer.

        Raises:
            ValueError: it is cut off, or of an unknown kind (a foreign or corrupt message).
        """
        if len(buffer) < self.nbytes:
            raise ValueError(f"a header has {len(buffer)} bytes, and those of this job have {self.nbytes}")
        kind, generation, sender, step, version, flags, count, value, scale, ahead = self._fields.unpack_from(buffer)
        size = 8 * self.bitmap_words
        members = int.from_bytes(buffer[80 : 80 + size], "little")
        refused = int.from_bytes(buffer[80 + size : 80 + 2 * size], "little")
        words = (Kind(kind), generation, sender, step, version, Flag(flags), count)
        return Header(*words, value, scale, ahead, members, refused)
