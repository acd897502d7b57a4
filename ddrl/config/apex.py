"""Settings of a replay in ranks of its own, which many actors fill: Ape-X."""

from __future__ import annotations

import dataclasses

from ddrl import checks
from ddrl.exchange.settings import MOST_RANKS

LARGEST_RATIO = 10_000.0
MOST_WAITING = 4_096  # segments or batches, which take memory


@dataclasses.dataclass(frozen=True)
class ApexConfig:
    """Ape-X: actors and a replay in ranks of their own (Horgan et al. 2018)."""

    actors: int = 0
    """Ranks that act, each with as many simulators as --simulators says. Each has a child process that computes; the
    only worker learns (0: no Ape-X, workers act themselves)."""
    replay_shards: int = 1
    """Ranks that each keep an equal part of the replay."""
    segment_length: int = 50
    """Agent steps of a simulator that an actor sends together."""
    segments_in_flight: int = 8
    """Segments that an actor sends to a shard before it waits for an acknowledgment."""
    duplicates: int = 1
    """Number of times that each transition is inserted. This imitates as many identical actors (Horgan et al. 2018,
    appendix A)."""
    refresh_every_frames: int = 400
    """Frames of each simulator after which an actor asks for newer parameters."""
    prefetch: int = 16
    """Batches that are drawn ahead of their updates, requested or waiting for the learner."""
    target_every_updates: int = 2_500
    """Updates between copies of the parameters to the target network."""
    trim_every_updates: int = 100
    """Updates after which the replay is cut back to --replay-capacity. In between, it may grow by a quarter."""
    eviction_exponent: float | None = None
    """Exponent of the priorities by which transitions are evicted, at most 0 (None: the oldest go first)."""
    samples_per_insert: float = 0.0
    """Transitions learned for each one inserted (0: no limit). Whichever side is ahead of this ratio waits."""

    def __post_init__(self) -> None:
        checks.between(self, 0, MOST_RANKS, "actors")
        checks.at_least(self, 1, "replay_shards", "refresh_every_frames", "target_every_updates", "trim_every_updates")
        checks.between(self, 1, MOST_WAITING, "segments_in_flight", "prefetch", "duplicates")
        checks.between(self, 1, 10_000, "segment_length")
        checks.between(self, 0.0, LARGEST_RATIO, "samples_per_insert")
        if self.eviction_exponent is not None:
            checks.between(self, -2.0, 0.0, "eviction_exponent", why="0 evicts uniformly")
