"""The outcome of an all-reduce step. Every replica computes the same one from the headers of the step's SLICEs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from ddrl.exchange.averaging import refused_by
from ddrl.exchange.messages import Flag, Header, Kind
from ddrl.exchange.sharding import to_bitmap


def refused_among(headers: Iterable[Header]) -> int:
    """Bitmap of the workers whose gradients are not finite, by the headers of their SLICEs."""
    return to_bitmap(h.sender for h in headers if not h.flags & Flag.FINITE)


def outcome_of(headers: Sequence[Header], asked: Flag, refused: int, squared: float, sender: int) -> Header:
    """The outcome of a step: its members, samples, norm, refusal and flags.

    Args:
        headers: those of the SLICEs of all members, for this step.
        asked: flags of the SLICE that comes from the chief's process.
        refused: see `refused_among`.
        squared: squared norm of the average of all gradients; NaN if some are refused, and there is no average.
        sender: id of the worker whose replica this is.
    """
    members = to_bitmap(h.sender for h in headers)
    refused = refused or refused_by(squared, members)
    flags = asked & ~Flag.FINITE
    if refused:
        flags = Flag.SKIP | (Flag.NONE if flags & Flag.WITH_UPDATE else flags)
    return Header(
        Kind.OUTCOME,
        sender=sender,
        step=headers[0].step,
        count=sum(h.count for h in headers),
        value=math.sqrt(squared) if squared >= 0 else squared,
        members=members,
        refused=refused,
        flags=flags & ~Flag.WITH_UPDATE,
    )
