"""What the learner knows of each replay shard, and which of them it asks for the next batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np

from ddrl.apex.memory import BATCHES_ON_THEIR_WAY

SILENT_SECONDS = 10.0  # a shard that has not spoken for so long is named, and not waited for


@dataclasses.dataclass
class KnownShard:
    """What the learner knows of a living shard.

    Attributes:
        size: its transitions, when it last spoke.
        weight: sum of the weights by which they are drawn: their priorities to the power of the priority exponent.
        inserted: transitions that ever came to it.
        asked: batches that it was asked for.
        received: batches that have come from it.
        heard: when it last spoke, by time.monotonic; 0 before.
        words: how often it has spoken.
        saving: whether it has said that it writes its part of a checkpoint: it may be silent meanwhile.
        told: whether its silence was reported.
        credit: batches that it should have been asked for, by its share of the weights, minus those that it was.
    """

    process: int
    size: int = 0
    weight: float = 0.0
    inserted: int = 0
    asked: int = 0
    received: int = 0
    credit: float = 0.0
    heard: float = 0.0
    words: int = 0
    saving: bool = False
    told: bool = False

    def silent(self, now: float) -> bool:
        """Whether it has been silent for too long. Before its first word, the start of the job waits for it."""
        return self.heard > 0.0 and not self.saving and now - self.heard >= SILENT_SECONDS


def next_to_ask(shards: Iterable[KnownShard]) -> KnownShard | None:
    """The shard that is furthest behind its share of the batches, or None if it owes many batches already.

    To ask another shard instead would make the shares depend on how fast shards answer.
    """
    able = [shard for shard in shards if shard.size and not (shard.told or shard.saving)]
    if not able:
        return None
    total = sum(shard.weight for shard in able)
    credits = [shard.credit + shard.weight / total for shard in able]
    chosen = able[int(np.argmax(credits))]
    if chosen.asked - chosen.received >= BATCHES_ON_THEIR_WAY:
        return None
    for shard, credit in zip(able, credits, strict=True):
        shard.credit = credit
    chosen.credit -= 1.0
    return chosen
