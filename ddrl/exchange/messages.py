"""The wire format: a header of 64-bit words, and a float32 payload for some kinds. Nothing is pickled.

Header and payload are two MPI messages with two tags per channel, so that a payload goes from the array where it
was computed to the array where it is used without a copy. (With one buffer for both, packing and unpacking cost as much
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
    NORM_REQUEST = 5  # chief -> shard: asks for the squared norm of the average over these members
    NORM = 6  # shard -> chief: the answer to a NORM_REQUEST
    EXPECT = 7  # chief -> shard: report as soon as this number of gradients is there
    FETCH = 8  # reader -> shard: asks for a published version
    PUBLISHED = 9  # shard -> reader: its slice of a published version
    SNAPSHOT = 10  # shard -> chief: its slice of parameters and optimizer slots, for a checkpoint
    LOAD = 11  # chief -> shard: parameters and slots to start from
    BLOB = 12  # anyone -> anyone: announces bytes of any length (control, metrics, states)
    BLOB_BYTES = 13  # the announced bytes
    SLICE = 14  # replica -> replica: the part of a gradient that the receiver averages
    AVERAGE = 15  # replica -> replica: the part of the average that the sender made
    REGROUP = 16  # chief's replica -> replicas: the members from now on
    OUTCOME = 17  # replica -> chief's replica: the last step that it completed, and that step's average
    RESUME = 18  # chief's replica -> replicas: the last step that any of them completed, and that step's average
    DRAW = 19  # learner -> replay shard: asks for a batch
    SAMPLE = 20  # replay shard -> learner: the batch
    PRIORITIES = 21  # learner -> replay shard: new priorities of transitions that were drawn
    TRIM = 22  # learner -> replay shard: cut the replay down to its soft capacity
    PAUSE = 23  # learner -> replay shard: whether the learner waits until there are more transitions
    SIZE = 24  # replay shard -> learner: how many transitions it holds
    ACKNOWLEDGE = 25  # replay shard -> actor: how many of the actor's segments were taken
    WORD = 26  # chief -> workers and shards: sign of life


# Kinds that must not overtake one another share a tag, since MPI keeps the order per sender and tag; the order is not
# kept for messages that are sent with `newest_only`. (If a COMMIT that was sent before a death arrived after the EXPECT
# that followed it, it would restore the old count.)
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
    REFRESH = 64  # PARAMETERS: newer parameters to act with, while the worker's step stays the same
    WITH_UPDATE = 128  # COMMIT, SLICE: if the step is refused, its PUBLISH, CHECKPOINT and STOP do not happen


TO_WORKER = Flag.SKIP | Flag.CHECKPOINT | Flag.STOP
"""The flags of a COMMIT that are passed on to workers with their parameters."""


class Header(NamedTuple):
    """Fields of every message; a field that a kind does not use keeps its default.

    Attributes:
        kind: kind of the message.
        generation: number of the all-reduce's group of members; it grows when a member is lost, and when the chief
            gives a command between two steps.
        sender: stable id of the sending worker or shard (never its MPI rank).
        step: the step that the message is about; the shard's own version (PUBLISHED); number of the batch, from 0 on,
            among those that the shard is asked for (DRAW, SAMPLE); transitions drawn so far (SIZE); topic (BLOB).
        version: updates behind the parameters that the message is about (GRADIENT: behind those where it was taken);
            transitions that ever came to a replay shard (SAMPLE, SIZE).
        flags: see `Flag`.
        count: samples behind a gradient (GRADIENT, READY); gradients expected for a step (COMMIT, EXPECT); updates that
            the optimizer has made (LOAD, SNAPSHOT); transitions that a replay shard holds (SAMPLE, SIZE); batches that
            have arrived from the shard, whose buffers it may use again (DRAW); 1 or 0, whether the learner waits
            (PAUSE); segments of the actor that were taken or refused so far (ACKNOWLEDGE); bytes (BLOB).
        value: learning rate (COMMIT, LOAD); squared norm of the average (READY, NORM, AVERAGE; NaN: not computed), but
            the norm itself in a replica's READY, OUTCOME and RESUME, and the staleness in the READY of an asynchronous
            update; importance exponent (DRAW); sum of a replay shard's weights (SAMPLE, SIZE).
        scale: factor on the averaged gradient (COMMIT).
        ahead: learning rate of the update after this one (COMMIT), with which a shard computes that update ahead.
        members: bitmap of the workers in the step.
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
    """A rank sent bytes that are no message of this version of ddrl; the text is one line that names the rank."""


Payload = Any
"""Payload of a message: <float32>[n], or None if its kind has none."""


class Message(NamedTuple):
    """A message to or from the process `peer`.

    Attributes:
        payload: <float32>[n] or None. It is borrowed: the sender must not change it any more, and the receiver may use
            it until it gets the second message after it of that kind from that peer.
        newest_only: at most one message of this kind to the peer is in flight, and a newer one replaces one that waits.
            Messages that are sent repeatedly and get no answer need this: after 512 messages that a rank has not
            received, the shared memory of Open MPI 5 has no room left for messages to others.
    """

    peer: int
    header: Header
    payload: Payload = None
    newest_only: bool = False


class HeaderFormat:
    """Encodes headers for a job of at most `workers` workers: 10 words and two bitmaps."""

    def __init__(self, workers: int):
        self.bitmap_words = max(1, (workers + 63) // 64)
        self.nbytes = 8 * (10 + 2 * self.bitmap_words)
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
            ValueError: the header is cut off, or of an unknown kind (a foreign or corrupt message).
        """
        if len(buffer) < self.nbytes:
            raise ValueError(f"a header has {len(buffer)} bytes, and those of this job have {self.nbytes}")
        kind, generation, sender, step, version, flags, count, value, scale, ahead = self._fields.unpack_from(buffer)
        size = 8 * self.bitmap_words
        members = int.from_bytes(buffer[80 : 80 + size], "little")
        refused = int.from_bytes(buffer[80 + size : 80 + 2 * size], "little")
        words = (Kind(kind), generation, sender, step, version, Flag(flags), count)
        return Header(*words, value, scale, ahead, members, refused)
