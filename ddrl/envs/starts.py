"""Human starts: states of games that people played, from which an evaluation begins (Nair et al. 2015, section 5).

A start is kept as the person's actions from the beginning of the game on. Without sticky actions the emulator is
deterministic, so the same actions lead to the same state on every machine, and a file of actions holds nothing that
could be executed.
"""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ddrl.envs.protocols import Protocol
from ddrl.errors import UsageError, in_one_line
from ddrl.files import read_regular

ACTIONS = 18  # number of actions that ALE knows
MOST_BYTES = 1 << 28  # of a file and its arrays; a start of half an hour has 108,000


class Starts(NamedTuple):
    """Recorded starts of one game.

    Attributes:
        actions: <uint8>[frames] for each start: ALE's number (0: no-op, 1: FIRE, ...) of the action in each frame.
        seed: the seed with which the emulator was reset before each start.
        stamp: file name, number of starts and the file's SHA-256, for the protocol of a result.
    """

    actions: tuple[np.ndarray, ...]
    seed: int
    stamp: dict[str, str | int]


def load_starts(path: Path) -> Starts:
    """Starts from a .npz: `actions` <uint8>[n, longest], `lengths` <int>[n] in frames, `seed` <int>[].

    Raises:
        UsageError: the file cannot be read, or has something else in it.
    """
    try:
        data = read_regular(path, MOST_BYTES)
    except OSError as error:
        raise UsageError(f"--starts {path}: {error.strerror or error}") from error
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as content:
            if (size := sum(member.file_size for member in content.zip.infolist())) > MOST_BYTES:  # once decompressed
                raise ValueError(f"{size:,} bytes are more than {MOST_BYTES:,}")
            actions, lengths, seed = (np.asarray(content[name]) for name in ("actions", "lengths", "seed"))
    except Exception as error:  # zipfile and numpy raise a dozen kinds on damaged bytes
        raise _refusal(path, f"its arrays cannot be read ({in_one_line(error):.200})") from error
    if actions.ndim != 2 or actions.dtype != np.uint8 or not len(actions):
        raise _refusal(path, f"actions are {actions.dtype}{list(actions.shape)}")
    if lengths.shape != actions.shape[:1] or not np.issubdtype(lengths.dtype, np.integer):
        raise _refusal(path, f"lengths are {lengths.dtype}{list(lengths.shape)} for {len(actions)} starts")
    if lengths.min() < 0 or lengths.max() > actions.shape[1]:
        raise _refusal(path, f"lengths are {lengths.min()} to {lengths.max()} of {actions.shape[1]} frames")
    if seed.shape or not np.issubdtype(seed.dtype, np.integer) or not 0 <= seed < 1 << 31:
        raise _refusal(path, "seed is not a number from 0 to 2^31 - 1")
    rows = tuple(row[:length].copy() for row, length in zip(actions, lengths, strict=True))
    largest = max((int(row.max()) for row in rows if len(row)), default=0)
    if largest >= ACTIONS:
        raise _refusal(path, f"it has action {largest}, and ALE has 0 to {ACTIONS - 1}")
    digest = hashlib.sha256(data).hexdigest()
    return Starts(rows, int(seed), {"starts": path.name, "starts_count": len(rows), "starts_sha256": digest})


def check_protocol(protocol: Protocol) -> None:
    """Raises UsageError where the recorded actions would not lead to the recorded states."""
    if protocol.stickiness:
        raise UsageError(
            f"--starts: protocol {protocol.name!r} has sticky actions ({protocol.stickiness}), with which recorded "
            "actions lead elsewhere; evaluate a run with another protocol"
        )


def _refusal(path: Path, why: str) -> UsageError:
    need = "actions <uint8>[starts, frames], lengths <int>[starts], seed <int>[]"
    return UsageError(f"--starts {path}: {why}; it must be an .npz with {need}")
